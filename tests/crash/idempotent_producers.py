"""Idempotent producers whose connections are cut and whose broker is killed while they write.

`python -m tests.crash.idempotent_producers --kills 200` makes more kills than the tests do, and prints what happened. Clients write all
the time, through a relay: single records at once, batches with keys, batches with headers, to a topic with one partition and to one with
three. Each round waits until a client was answered since the last kill, and kills again after a moment: each fourth time the broker with
SIGKILL (`--broker-every`), otherwise all connections, whose answers the relay keeps back for a moment, so that records are stored whose
acknowledgement nobody gets. At the end each record must be there exactly once, where its acknowledgement says, also for readers of a
broker that was started once more.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from penstock.clients.options import ClientOptions
from penstock.clients.records import RecordMetadata
from penstock.clients.retry import RetryPolicy
from penstock.errors import PenstockError
from penstock.protocols.flymq.client.client import AsyncFlyMQClient
from penstock.testing.process import BrokerProcess
from tests.crash.relay import Relay

TOPICS = {"single": 1, "spread": 3}
ROUND_S_MAX = 90.0
BROKER_EVERY = 4
"""By default, one of this many kills is of the broker."""
PAUSE_S_MAX = 0.05
SILENCE_S_MAX = 0.03
"""How long answers are kept back before connections are cut."""
REASONS_SHOWN_MAX = 10
OPTIONS = ClientOptions(retry=RetryPolicy(attempts_max=1000, elapsed_s_max=60.0, delay_s_max=0.1))


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class Producer:
    """One client that writes until it is stopped, and what it was told of each record."""

    def __init__(self, name: str, write: Callable[[Producer, AsyncFlyMQClient, str], Awaitable[None]]) -> None:
        self.name = name
        self._write = write
        self._number = 0
        self.stopping = False
        self.acknowledged: dict[bytes, Place] = {}
        self.failed: dict[bytes, PenstockError] = {}

    async def run(self, url: str) -> None:
        async with AsyncFlyMQClient(url, options=OPTIONS) as client:
            turn = 0
            while not self.stopping:
                await self._write(self, client, list(TOPICS)[turn % len(TOPICS)])
                turn += 1

    def values(self, count: int) -> list[bytes]:
        first, self._number = self._number, self._number + count
        return [f"{self.name}-{number}".encode() for number in range(first, self._number)]

    def note(self, values: list[bytes], results: list[RecordMetadata] | PenstockError) -> None:
        if isinstance(results, PenstockError):
            self.failed.update(dict.fromkeys(values, results))
            return
        for value, stored in zip(values, results, strict=True):
            self.acknowledged[value] = Place(stored.topic, stored.partition, stored.offset)


async def write_singles(producer: Producer, client: AsyncFlyMQClient, topic: str) -> None:
    values = producer.values(20)
    results = await asyncio.gather(*(client.send(topic, value) for value in values), return_exceptions=True)
    for value, result in zip(values, results, strict=True):
        if isinstance(result, BaseException) and not isinstance(result, PenstockError):
            raise result
        producer.note([value], result if isinstance(result, PenstockError) else [result])


async def write_keyed(producer: Producer, client: AsyncFlyMQClient, topic: str) -> None:
    values = producer.values(3000)
    records = [(b"key-%d" % (number % 50), value) for number, value in enumerate(values)]
    await _write_many(producer, client.send_many(topic, records), values)


async def write_with_headers(producer: Producer, client: AsyncFlyMQClient, topic: str) -> None:
    values = producer.values(100)
    await _write_many(producer, client.send_many(topic, [(None, value, {"from": b"x"}) for value in values]), values)


async def _write_many(producer: Producer, writing: Awaitable[list[RecordMetadata]], values: list[bytes]) -> None:
    try:
        producer.note(values, await writing)
    except PenstockError as error:
        producer.note(values, error)


class Outcome(NamedTuple):
    kills: int
    cuts: int
    acknowledged: int
    failed: int
    reasons: set[str]
    """Why records were not acknowledged."""
    lost: list[bytes]
    """Acknowledged, and not where the acknowledgement says."""
    twice: list[bytes]


async def run(
    directory: Path,
    *,
    kills: int,
    seed: int,
    broker_every: int = BROKER_EVERY,
    report: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Write through this many kills, and read everything."""
    chance = random.Random(seed)
    broker = BrokerProcess(directory / "data")
    await asyncio.to_thread(broker.start)
    try:
        async with AsyncFlyMQClient(broker.url) as client:
            for topic, partitions in TOPICS.items():
                await client.create_topic(topic, partitions)
        host, _, port = broker.address.rpartition(":")
        relay = Relay(host, int(port))
        url = f"flymq://{await relay.start()}"
        producers = [
            Producer(name, write)
            for name, write in (("singles", write_singles), ("keyed", write_keyed), ("headers", write_with_headers))
        ]
        running = [asyncio.create_task(producer.run(url)) for producer in producers]
        crashes = 0
        for number in range(kills):
            await _answered(producers, running, any)
            await asyncio.sleep(chance.uniform(0.0, PAUSE_S_MAX))
            if number % broker_every == broker_every - 1:
                await asyncio.to_thread(broker.kill9)
                await asyncio.to_thread(broker.start)
                crashes += 1
            else:
                await relay.cut(chance.uniform(0.0, SILENCE_S_MAX))
            report(f"kill {number + 1}: {sum(len(each.acknowledged) for each in producers)} records acknowledged\n")
        await _answered(producers, running, all)
        for producer in producers:
            producer.stopping = True
        await asyncio.gather(*running)
        await relay.close()
        await asyncio.to_thread(broker.kill9)
        await asyncio.to_thread(broker.start)
        return await _check(broker.url, producers, crashes, relay.cuts)
    finally:
        await asyncio.to_thread(broker.close)


async def _answered(
    producers: list[Producer], running: list[asyncio.Task[None]], wanted: Callable[[Iterable[bool]], bool]
) -> None:
    """Wait until any producer, or all, were answered once more than now."""
    before = [len(producer.acknowledged) for producer in producers]
    until_s = time.monotonic() + ROUND_S_MAX
    while not wanted(len(each.acknowledged) > count for each, count in zip(producers, before, strict=True)):
        for task in running:
            if task.done():
                task.result()
        assert time.monotonic() < until_s, f"no producer gets on within {ROUND_S_MAX} s"
        await asyncio.sleep(0.005)


async def _check(url: str, producers: list[Producer], crashes: int, cuts: int) -> Outcome:
    stored: Counter[bytes] = Counter()
    places: dict[bytes, Place] = {}
    async with AsyncFlyMQClient(url) as client:
        for topic in TOPICS:
            async for batch in client.batches(topic):
                for record in batch:
                    assert record.value is not None
                    stored[record.value] += 1
                    places[record.value] = Place(topic, record.partition, record.offset)
    acknowledged = {value: place for producer in producers for value, place in producer.acknowledged.items()}
    failed = {value for producer in producers for value in producer.failed}
    return Outcome(
        crashes,
        cuts,
        len(acknowledged),
        len(failed),
        {f"{type(error).__name__}: {error}" for producer in producers for error in producer.failed.values()},
        [value for value, place in acknowledged.items() if places.get(value) != place],
        [value for value, count in stored.items() if count > 1],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--broker-every", type=int, default=BROKER_EVERY, help="one of this many kills is of the broker"
    )
    arguments = parser.parse_args()

    def report(line: str) -> None:
        sys.stdout.write(line)
        sys.stdout.flush()

    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="penstock-producers-") as directory:
        outcome = asyncio.run(
            run(
                Path(directory),
                kills=arguments.kills,
                seed=arguments.seed,
                broker_every=arguments.broker_every,
                report=report,
            )
        )
    report(
        f"{outcome.kills} kills of the broker and {outcome.cuts} of all connections in {time.monotonic() - started_s:.0f} s: "
        f"{outcome.acknowledged} records acknowledged, {len(outcome.lost)} lost, {len(outcome.twice)} stored twice, "
        f"{outcome.failed} without an acknowledgement\n"
    )
    for reason in sorted(outcome.reasons)[:REASONS_SHOWN_MAX]:
        report(f"not acknowledged: {reason}\n")
    if outcome.lost or outcome.twice:
        sys.exit(1)


if __name__ == "__main__":
    main()
