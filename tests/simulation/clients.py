"""The clients of a simulated broker, one task each: they connect, work, lose their connection and connect again.

Each draws from a generator of its own, so that what one does depends on the seed and on the answers it gets, not on the others.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.records import RecordMetadata
from penstock.clients.retry import NO_RETRY
from penstock.errors import BatchFailed, PenstockError, TransactionNotActive, TransactionNotFound
from penstock.testing.load import OUTCOME_UNKNOWN
from tests.simulation.history import TOPICS, History
from tests.simulation.world import World

OPTIONS: Final = ClientOptions(retry=NO_RETRY, request_timeout_s=3.0, connect_timeout_s=2.0)
PATIENT: Final = ClientOptions(request_timeout_s=60.0)
"""For reading everything, when nothing goes wrong any more."""
PRODUCED: Final = ("single", "single", "spread", "interval", "loose")
CHURNED: Final = ("churn-a", "churn-b")
KEYS: Final = 8

Result = RecordMetadata | PenstockError | None


class Actor(ABC):
    """Connects and works until it is told to stop."""

    def __init__(self, world: World, history: History, protocol: str, number: int, chance: Random) -> None:
        self.world = world
        self.history = history
        self.protocol = protocol
        self.name = f"{protocol}-{number}"
        self.chance = chance
        self._stopping = False
        self._connections = 0
        self._sent = 0

    async def run(self) -> None:
        while not self._stopping:
            try:
                client = await connect(self.world, self.protocol, self.chance)
            except PenstockError:
                await self.pause(0.3)
                continue
            self._connections += 1
            try:
                await self.use(client)
            except PenstockError as error:
                self.world.trace.note("actor", self.name, type(error).__name__)
            finally:
                await close(client)
            await self.pause(0.1)

    def stop(self) -> None:
        self._stopping = True

    @property
    def line(self) -> str:
        """The producer's name on this connection: order is promised within one connection."""
        return f"{self.name}.{self._connections}"

    async def use(self, client: Any) -> None:
        for _ in range(self.chance.randint(3, 30)):
            if self._stopping:
                return
            await self.act(client)
            await self.pause(0.06)

    @abstractmethod
    async def act(self, client: Any) -> None:
        """Do one thing. A `PenstockError` makes the actor connect again."""

    async def pause(self, seconds_mean: float) -> None:
        await asyncio.sleep(self.chance.expovariate(1 / seconds_mean))

    def values(self, count: int) -> list[bytes]:
        """Return values that nobody else sends."""
        size = self.chance.choice((10, 10, 200, 200, 4000))
        self._sent += count
        return [f"{self.line}:{self._sent - count + number}:".encode().ljust(size, b".") for number in range(count)]


class Producer(Actor):
    """Sends batches to one topic after another; over FlyMQ also with keys and in transactions."""

    async def act(self, client: Any) -> None:
        if self.protocol == "flymq" and self.chance.random() < 0.25:
            await self._transact(client)
            return
        topic = self.chance.choice(PRODUCED)
        values = self.values(self.chance.choice((1, 1, 3, 12)))
        keys = self._keys(len(values)) if self.protocol == "flymq" else [None] * len(values)
        attempts = self.history.sending(self.line, topic, keys, values)
        results = await self._send(client, topic, keys, values)
        self.history.answered(attempts, results)
        self.world.trace.note("sent", self.line, topic, len(values), *{attempt.state: None for attempt in attempts})
        error = next((result for result in results if isinstance(result, PenstockError)), None)
        if error is not None:
            raise error

    def _keys(self, count: int) -> list[bytes | None]:
        if self.chance.random() < 0.5:
            return [None] * count
        return [b"key-%d" % self.chance.randrange(KEYS) for _ in range(count)]

    async def _send(
        self, client: Any, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes]
    ) -> list[Result]:
        records: Any = list(values) if not any(keys) else list(zip(keys, values, strict=True))
        try:
            stored = await client.send_many(topic, records)
        except BatchFailed as error:
            return list(error.results)
        except PenstockError as error:
            return [error] * len(values)
        if isinstance(stored, list):
            return list(stored)
        if isinstance(stored, int) and TOPICS[topic].partitions == 1:
            return [RecordMetadata(topic, 0, stored + number, 0) for number in range(len(values))]
        return [None] * len(values)

    async def _transact(self, client: Any) -> None:
        """Send to several topics at once; one in five is rolled back."""
        topics = self.chance.sample(("single", "spread", "loose"), self.chance.randint(1, 3))
        parts = [(topic, self.values(self.chance.randint(1, 4))) for topic in topics]
        attempts = [
            attempt
            for topic, values in parts
            for attempt in self.history.sending(self.line, topic, [None] * len(values), values)
        ]
        self.history.transactions.append([attempt.id for attempt in attempts])
        rolled_back = self.chance.random() < 0.2
        outcome: PenstockError | None = TransactionNotActive("rolled back") if rolled_back else None
        is_sent = False
        try:
            transaction = await client.transaction().begin()
            for topic, values in parts:
                await transaction.send_many(topic, values)
            if rolled_back:
                await transaction.rollback()
            else:
                is_sent = True
                await transaction.commit()
        except PenstockError as error:
            unknown = is_sent and isinstance(error, OUTCOME_UNKNOWN)
            outcome = error if unknown else TransactionNotActive(str(error))
            raise
        finally:
            self.history.answered(attempts, [outcome] * len(attempts))
            self.world.trace.note("transaction", self.line, type(outcome).__name__)


class Compactor(Actor):
    """The one writer of the compacted topic: each key again and again."""

    async def act(self, client: Any) -> None:
        values = self.values(self.chance.randint(1, 6))
        keys: list[bytes | None] = [b"key-%d" % self.chance.randrange(KEYS) for _ in values]
        attempts = self.history.sending(self.line, "compacted", keys, values)
        results: list[Result]
        try:
            results = list(await client.send_many("compacted", list(zip(keys, values, strict=True))))
        except BatchFailed as error:
            results = list(error.results)
        except PenstockError as error:
            results = [error] * len(values)
        self.history.answered(attempts, results)
        for result in results:
            if isinstance(result, PenstockError):
                raise result


class GroupReader(Actor):
    """Reads one topic in a group of its own, and commits how far it is."""

    topic = "spread"

    async def act(self, client: Any) -> None:
        partition = self.chance.randrange(TOPICS[self.topic].partitions)
        place = self.name, self.topic, partition
        committed = await client.committed(self.topic, self.name, partition)
        self.history.found_committed(place, committed)
        fetched = await client.fetch(self.topic, partition, committed or 0)
        for record in fetched.records:
            self.history.saw(self.topic, partition, record.offset, record.value)
        if not fetched.records:
            return
        offset = self.chance.choice(fetched.records).offset + 1
        commits = self.history.commits[place]
        commits.unknown.add(offset)
        # Whatever the error is: a commit may be sent twice, and the first may have been carried out.
        await client.commit(self.topic, self.name, partition, offset)
        self.world.trace.note("committed", *place, offset)
        commits.acked = offset
        commits.unknown.clear()


class BlipMQSubscriber(Actor):
    """Polls the subscription that was made before anything was published, and acknowledges most of what comes."""

    topic = "single"
    subscription = 0

    async def act(self, client: Any) -> None:
        messages = await client.poll(self.subscription, self.chance.randint(1, 20))
        self.history.delivered[f"blipmq {self.topic}"] |= {message.value for message in messages}
        tags = [message.tag for message in messages if self.chance.random() < 0.8]
        if tags:
            await client.ack(self.subscription, *tags)


class FujinReader(Actor):
    """Reads one topic in the listener's group; acknowledges most, refuses some, and leaves the rest for others."""

    topic = "spread"

    async def act(self, client: Any) -> None:
        async with client.reader(self.topic) as reader:
            for _ in range(self.chance.randint(1, 5)):
                messages = await reader.next_batch(20, timeout_s=0.5)
                self.history.delivered[f"fujin {self.topic}"] |= {message.value for message in messages}
                drawn = [(message, self.chance.random()) for message in messages]
                acked = [message for message, draw in drawn if draw < 0.8]
                refused = [message for message, draw in drawn if 0.8 <= draw < 0.9]
                if acked:
                    await reader.ack(*acked)
                if refused:
                    await reader.nack(*refused)


class FelixSubscriber(Actor):
    """Follows a stream from wherever it is."""

    topic = "single"

    async def act(self, client: Any) -> None:
        subscription = await client.subscribe(self.topic, start=self.chance.choice(("earliest", "latest")))
        try:
            for _ in range(self.chance.randint(1, 40)):
                event = await subscription.next(timeout_s=0.5)
                if event is None:
                    return
                if self.chance.random() < 0.05:
                    await self.pause(1.0)  # a slow reader
                if event.offset is not None:
                    self.history.saw(self.topic, 0, event.offset, event.value)
        finally:
            subscription.close()


class Churner(Actor):
    """Creates and deletes topics, with a few records in between. Only it knows their names."""

    async def act(self, client: Any) -> None:
        topic = self.chance.choice(CHURNED)
        exists = self.history.topics.get(topic, False)
        if exists is None:
            exists = self.history.topics[topic] = topic in await client.topics()
        self.history.topics[topic] = None
        if not exists:
            await client.create_topic(topic, self.chance.randint(1, 3))
            self.history.topics[topic] = True
            if old := [record.value async for record in client.records(topic)]:
                self.history.violations.append(f"{topic} was created and holds {old[:3]}")
            await client.send_many(topic, self.values(3))
        else:
            await client.delete_topic(topic)
            self.history.topics[topic] = False


async def connect(world: World, protocol: str, chance: Random, options: ClientOptions = OPTIONS) -> Any:
    return await penstock.connect_async(world.url(protocol), options=options, random=Random(chance.random()))


async def close(client: Any) -> None:
    try:
        await client.close()
    except (PenstockError, TransactionNotFound):
        pass  # the broker is gone
