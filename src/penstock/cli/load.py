"""The load of `penstock bench`: produce and fetch over real connections, and what was measured.

Records travel in batches that share the window of `in_flight` records of a connection; a latency is the time from handing a batch
over to its last acknowledgement (or from asking for records to having them), so with one record in flight it is that of one record.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from penstock.clients.options import ClientOptions
from penstock.errors import InvalidRequest
from penstock.protocols.flymq.client import AsyncFlyMQClient

BATCHES_IN_FLIGHT = 8
PAYLOADS_BYTES = 1 << 20
FETCH_RECORDS_MAX = 10_000

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Load:
    records: int
    size_bytes: int
    connections: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One phase. `in_flight` counts records when producing and fetches when reading, of each connection."""

    phase: str
    connections: int
    in_flight: int
    size_bytes: int
    durability: str
    records: int
    seconds: float
    latencies_ms: Sequence[float]
    """Sorted."""

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @property
    def megabytes_per_s(self) -> float:
        return self.records * self.size_bytes / self.seconds / 1e6

    def latency_ms(self, percent: float) -> float:
        return self.latencies_ms[min(len(self.latencies_ms) - 1, int(len(self.latencies_ms) * percent / 100))]


async def run_load(url: str, topic: str, load: Load, durability: str, progress: OnProgress) -> list[Measured]:
    """Write the load into a topic, then read the topic from its start. Nothing else should use it meanwhile."""
    options = ClientOptions(in_flight_requests_max=max(load.in_flight, 1))
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(AsyncFlyMQClient(url, options=options)) for _ in range(load.connections)
        ]
        produced = await _produce(clients, topic, load, durability, progress)
        fetched = await _fetch(clients, topic, load, durability, progress)
    return [produced, fetched]


async def _produce(
    clients: list[AsyncFlyMQClient], topic: str, load: Load, durability: str, progress: OnProgress
) -> Measured:
    # A few different values: enough that compression cannot cheat, few enough to stay in memory.
    payloads = [os.urandom(load.size_bytes) for _ in range(max(1, min(64, PAYLOADS_BYTES // max(1, load.size_bytes))))]
    batch_records = max(1, load.in_flight // BATCHES_IN_FLIGHT)
    workers = min(load.in_flight, BATCHES_IN_FLIGHT)
    batch = [payloads[i % len(payloads)] for i in range(batch_records)]
    left = load.records
    latencies_ms: list[float] = []

    async def work(client: AsyncFlyMQClient) -> None:
        nonlocal left
        while left > 0:
            count = min(batch_records, left)
            left -= count
            before = time.perf_counter()
            await client.send_many(topic, batch if count == batch_records else batch[:count])
            latencies_ms.append((time.perf_counter() - before) * 1000)
            progress(count * load.size_bytes, count)

    began = time.perf_counter()
    await _all(work(client) for client in clients for _ in range(workers))
    seconds = time.perf_counter() - began
    return Measured(
        "produce",
        load.connections,
        min(load.in_flight, workers * batch_records),
        load.size_bytes,
        durability,
        load.records,
        seconds,
        sorted(latencies_ms),
    )


async def _fetch(
    clients: list[AsyncFlyMQClient], topic: str, load: Load, durability: str, progress: OnProgress
) -> Measured:
    partitions = (await clients[0].describe_topic(topic)).partitions
    latencies_ms: list[float] = []
    records = 0

    async def work(client: AsyncFlyMQClient, mine: Sequence[int]) -> None:
        nonlocal records
        for index in mine:
            offset, end = partitions[index].start_offset, partitions[index].next_offset
            while offset < end:
                before = time.perf_counter()
                result = await client.fetch(topic, index, offset, FETCH_RECORDS_MAX)
                latencies_ms.append((time.perf_counter() - before) * 1000)
                if result.next_offset <= offset:
                    raise InvalidRequest(f"topic {topic} changed while it was read: let nothing else use it")
                offset = result.next_offset
                records += len(result.records)
                progress(len(result.records) * load.size_bytes, len(result.records))

    readers = min(len(clients), len(partitions))
    began = time.perf_counter()
    await _all(work(client, range(first, len(partitions), readers)) for first, client in enumerate(clients[:readers]))
    seconds = time.perf_counter() - began
    return Measured("fetch", readers, 1, load.size_bytes, durability, records, seconds, sorted(latencies_ms))


async def _all(work: Iterable[Coroutine[None, None, None]]) -> None:
    """Do everything at once; the first failure ends the rest and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for each in work:
                group.create_task(each)
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
