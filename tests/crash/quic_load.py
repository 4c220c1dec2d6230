"""Load over QUIC on one broker, over many of its lives, and what must hold when it is back.

Everything is noted here, outside the broker: what was sent, and which answers came. Fujin's answers carry no offsets, so its records are
known by their values: each names its stream and its place on it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from penstock.clients.options import ClientOptions
from penstock.clients.quic import QuicConnection, QuicStream, connect_quic
from penstock.clients.retry import NO_RETRY
from penstock.errors import PenstockError
from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.quic.packets import Address
from penstock.testing import BrokerProcess
from tests.protocols.fujin import requests

OPTIONS = ClientOptions(retry=NO_RETRY, request_timeout_s=20.0)
WAIT_S_MAX = 60.0
REPLY_BYTES = 6
"""Of a WRITE that was carried out."""
GOODBYE, STOP = 10, 12
# Small enough that every kind of file is begun, finished and deleted within a second of load.
CONFIG = """
[log]
segment_bytes = "64 KiB"
journal_bytes = "1 MiB"
checkpoint_bytes = "1 MiB"
maintenance_interval_s = 0.1
"""


_LISTENER = '[listeners.{}]\nbind = "127.0.0.1:0"'


def quic_broker(
    directory: Path, topics: dict[str, int], *, top: str = "", fujin: str = "", felix: str = "", more: str = ""
) -> BrokerProcess:
    """A broker with both listeners; `topics` by name, with their partitions. The rest are further settings."""
    parts = [top, CONFIG, _LISTENER.format("fujin"), fujin, _LISTENER.format("felix"), felix]
    parts += [f'[[topics]]\nname = "{name}"\npartitions = {count}' for name, count in topics.items()]
    return BrokerProcess(directory / "data", config="\n".join([*parts, more]))


def url(broker: BrokerProcess, scheme: str) -> str:
    return f"{scheme}://{broker.addresses[scheme]}?ca={broker.certificate}"


async def until(condition: Callable[[], object], what: str, seconds: float = WAIT_S_MAX) -> None:
    """Poll for something that another process brings about."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)
    assert condition(), what


@asynccontextmanager
async def beside(*chores: Awaitable[None]) -> AsyncIterator[None]:
    """Chores that continue until the block ends, or until they have lost their broker."""

    async def until_it_dies(chore: Awaitable[None]) -> None:
        try:
            await chore
        except* PenstockError:
            pass  # the broker is gone, which is what these tests are about

    tasks = [asyncio.ensure_future(until_it_dies(chore)) for chore in chores]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


async def kill_over_and_over(
    broker: BrokerProcess,
    rounds: int,
    chores: Callable[[], Iterable[Awaitable[None]]],
    progress: Callable[[], int],
    seed: int,
) -> None:
    """Several lives, each under the same load and ended at a moment of its own. The broker runs when this returns."""
    chance = random.Random(seed)
    for _ in range(rounds):
        await asyncio.to_thread(broker.start)
        before = progress()
        async with beside(*chores()):
            await until(lambda before=before: progress() > before, "the broker acknowledges nothing")  # type: ignore[misc]
            await asyncio.sleep(chance.uniform(0.02, 0.3))  # the moment of the kill is the thing that varies
            await asyncio.to_thread(broker.kill9)
    await asyncio.to_thread(broker.start)


# -- WRITE --------------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class WrittenStream:
    """One stream of WRITEs, hundreds of them in flight."""

    name: str
    sent: int = 0
    acknowledged: int = 0

    def value(self, number: int) -> bytes:
        return f"{self.name}/{number}/".encode().ljust(120, b".")


Datagrams = Sequence[tuple[bytes, Address]]
Tap = Callable[[Datagrams], None]


def _shown_to(tap: Tap, send: Callable[[Datagrams, bytes], None]) -> Callable[[Datagrams, bytes], None]:
    def sent(datagrams: Datagrams, origin: bytes = b"") -> None:
        tap(datagrams)
        send(datagrams, origin)
        tap(datagrams)

    return sent


class PipelinedWrites:
    """Streams that write to one topic, answered one by one."""

    IN_FLIGHT = 600
    BATCH = 40

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.streams: list[WrittenStream] = []

    @property
    def acknowledged(self) -> int:
        return sum(stream.acknowledged for stream in self.streams)

    async def one_connection(
        self,
        broker: BrokerProcess,
        streams: int,
        *,
        tap: Tap | None = None,
        opened: Callable[[QuicConnection], None] | None = None,
    ) -> None:
        """Writes until it is ended. `tap` is shown every datagram that is sent, `opened` is given the connection."""
        host, _, port = broker.addresses["fujin"].rpartition(":")
        async with await connect_quic(host, int(port), alpn="fujin", ca_file=broker.certificate) as connection:
            if opened is not None:
                opened(connection)
            if tap is not None:
                connection.endpoint.send = _shown_to(tap, connection.endpoint.send)  # type: ignore[method-assign, assignment]
            connection.on_stream = lambda ping: ping.on_data(
                lambda data: None if data else ping.send(b"\x0b", end=True)
            )
            async with asyncio.TaskGroup() as writers:
                for _ in range(streams):
                    noted = WrittenStream(f"stream-{len(self.streams)}")
                    self.streams.append(noted)
                    writers.create_task(self._write(connection.open_stream(), noted))

    async def _write(self, stream: QuicStream, noted: WrittenStream) -> None:
        answers = b""
        stopping = False
        room = asyncio.Event()

        def answered(data: bytes) -> None:
            nonlocal answers, stopping
            answers += data
            at = 0
            while at < len(answers):
                if answers[at] in (STOP, GOODBYE):
                    stopping = True
                    at += 1
                elif len(answers) - at < REPLY_BYTES:
                    break
                else:
                    answer, number = answers[at : at + REPLY_BYTES], noted.acknowledged + 1
                    assert answer == requests.written(number), f"{answer!r} does not answer write {number}"
                    noted.acknowledged = number
                    at += REPLY_BYTES
            answers = answers[at:]
            room.set()

        stream.on_data(answered)
        await stream.write(requests.CONNECT_WRITER)
        topic = self.topic.encode()
        while not stopping:
            if noted.sent - noted.acknowledged > self.IN_FLIGHT:
                room.clear()
                await room.wait()
                continue
            numbers = range(noted.sent, noted.sent + self.BATCH)
            noted.sent += self.BATCH
            data = b"".join(requests.write(number + 1, topic, noted.value(number)) for number in numbers)
            await stream.write(data)
            await asyncio.sleep(0)
        await stream.write(requests.DISCONNECT, end=True)

    def check(self, values: Iterable[bytes]) -> None:
        """Of each stream a beginning, in its order, each record once, at least what was acknowledged; and nothing else."""
        found: dict[str, list[int]] = defaultdict(list)
        for value in values:
            name, number, padding = value.decode().split("/")
            assert not padding.strip("."), f"{value!r} is not what was sent"
            found[name].append(int(number))
        for stream in self.streams:
            numbers = found.pop(stream.name, [])
            assert numbers == list(range(len(numbers))), f"{stream.name} is out of order or has gaps: {numbers[:20]}"
            assert stream.acknowledged <= len(numbers) <= stream.sent, f"{stream} has {len(numbers)} records"
        assert not found, "records of streams that never were"


# -- transactions -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Attempt:
    """One transaction; its number is in the value of each of its records."""

    number: int
    state: Literal["open", "committing", "acknowledged", "rolled back"] = "open"


@dataclass
class Transactions:
    """Transactions over several topics, by clients that commit, one that rolls back, and one that never comes to an end."""

    topics: dict[str, int]
    """With the records that each transaction has for them."""
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def acknowledged(self) -> int:
        return sum(attempt.state == "acknowledged" for attempt in self.attempts)

    async def committing(self, broker: BrokerProcess) -> None:
        async with AsyncFujinClient(url(broker, "fujin"), options=OPTIONS) as client:
            while True:
                async with client.transaction() as transaction:
                    attempt = await self._fill(transaction.send_many)
                    attempt.state = "committing"
                    await transaction.commit()
                    attempt.state = "acknowledged"

    async def rolling_back(self, broker: BrokerProcess) -> None:
        async with AsyncFujinClient(url(broker, "fujin"), options=OPTIONS) as client:
            while True:
                async with client.transaction() as transaction:
                    attempt = await self._fill(transaction.send_many)
                    attempt.state = "rolled back"
                    await transaction.rollback()

    async def staying_open(self, broker: BrokerProcess) -> None:
        async with AsyncFujinClient(url(broker, "fujin"), options=OPTIONS) as client:
            async with client.transaction() as transaction:
                await self._fill(transaction.send_many)
                await asyncio.Event().wait()

    async def _fill(self, send_many: Callable[[str, list[bytes]], Awaitable[None]]) -> Attempt:
        attempt = Attempt(len(self.attempts))
        self.attempts.append(attempt)
        for topic, count in self.topics.items():
            await send_many(topic, [b"%d/%d" % (attempt.number, row) for row in range(count)])
        return attempt

    def check(self, values: dict[str, list[bytes]]) -> None:
        """All of a transaction or nothing; all of those that were acknowledged; nothing of those that nobody committed."""
        found = {topic: Counter(int(value.partition(b"/")[0]) for value in rows) for topic, rows in values.items()}
        for topic, rows in values.items():
            twice = [value for value, count in Counter(rows).items() if count > 1]
            assert not twice, f"{twice[0]!r} is in {topic} more than once"
        for attempt in self.attempts:
            held = {topic: rows.pop(attempt.number, 0) for topic, rows in found.items()}
            whole = held == self.topics
            assert whole or not any(held.values()), f"{held} of {self.topics} records of {attempt} are there"
            assert whole or attempt.state != "acknowledged", f"{attempt} is gone"
            assert not whole or attempt.state in ("acknowledged", "committing"), f"{attempt} is there"
        assert not any(found.values()), "records of transactions that never were"


def values_of(broker: BrokerProcess, topics: Iterable[str]) -> Iterator[tuple[str, list[bytes]]]:
    with broker.connect() as client:
        for topic in topics:
            yield topic, [record.value or b"" for record in client.records(topic)]
