"""Consumers of one group while their topic changes under load: partitions added, settings altered, truncated, created again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import pytest

from penstock.protocols.flymq.client.client import AsyncFlyMQClient
from penstock.protocols.flymq.client.consumer import AsyncConsumer
from penstock.testing import RunningBroker

GROUP = "billing"
MEMBERS = 3
ROUNDS = 10


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(topics=[{"name": "orders", "partitions": 4}]) as broker:
        yield broker


class Processing:
    """Members of a group, each read by a task of its own."""

    def __init__(self, consumers: list[AsyncConsumer]) -> None:
        self.consumers = consumers
        self.seen: list[Counter[bytes]] = [Counter() for _ in consumers]
        self._tasks = [asyncio.create_task(self._read(index)) for index in range(len(consumers))]

    @property
    def values(self) -> set[bytes]:
        return {value for seen in self.seen for value in seen}

    def shares(self) -> list[int]:
        return sorted(len(each.assignment) for each in self.consumers)

    async def until_shared(self, shares: list[int]) -> None:
        while self.shares() != shares:
            await self._turn()

    async def until_seen(self, values: set[bytes]) -> None:
        while not values <= self.values:
            await self._turn()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _turn(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0)

    async def _read(self, index: int) -> None:
        while True:
            self.seen[index].update(record.value or b"" for record in await self.consumers[index].poll(timeout_s=0.05))


@asynccontextmanager
async def processing(
    broker: RunningBroker, start: Literal["earliest", "latest"] = "earliest"
) -> AsyncIterator[Processing]:
    async with AsyncExitStack() as stack:
        consumers = []
        for _ in range(MEMBERS):
            client = await stack.enter_async_context(AsyncFlyMQClient(f"flymq://{broker.address}"))
            consumer = client.consumer(["orders"], group=GROUP, start=start)
            consumers.append(await stack.enter_async_context(consumer))
        work = Processing(consumers)
        stack.push_async_callback(work.stop)
        yield work


async def produce(client: AsyncFlyMQClient, label: str, partitions: int) -> set[bytes]:
    values = {b"%s-%d-%d" % (label.encode(), index, number) for index in range(partitions) for number in range(ROUNDS)}
    for value in sorted(values):
        await client.send("orders", value, partition=int(value.split(b"-")[1]))
    return values


async def test_partitions_are_added_and_retention_is_altered_under_load_and_every_record_is_processed(
    broker: RunningBroker,
) -> None:
    async with AsyncFlyMQClient(f"flymq://{broker.address}") as producer, processing(broker) as work:
        sent = await produce(producer, "before", 4)
        await work.until_shared([1, 1, 2])

        load = asyncio.create_task(produce(producer, "during", 4))
        await producer.add_partitions("orders", 12)
        await producer.alter_topic("orders", retention_ms="7d", segment_bytes="1MiB")
        sent |= await produce(producer, "added", 12)
        await producer.alter_topic("orders", retention_ms="forever")
        sent |= await load

        await work.until_seen(sent)
        await work.until_shared([4, 4, 4])
        seen = [set(each) for each in work.seen]
        after = await produce(producer, "after", 12)
        await work.until_seen(after)
        assert all(set(now) > before for now, before in zip(work.seen, seen, strict=True))
        assert work.values == sent | after
    [group] = await _described(broker)
    assert group == {index: (ROUNDS * (4 if index < 4 else 2), 0) for index in range(12)}


async def test_members_that_begin_at_the_end_read_added_partitions_from_their_start(broker: RunningBroker) -> None:
    async with AsyncFlyMQClient(f"flymq://{broker.address}") as producer, processing(broker, "latest") as work:
        await work.until_shared([1, 1, 2])
        await producer.add_partitions("orders", 12)
        sent = await produce(producer, "added", 12)
        await work.until_shared([4, 4, 4])
        await work.until_seen(await produce(producer, "after", 12))
        assert work.values >= sent


async def test_members_continue_after_their_topic_is_truncated_or_created_again(broker: RunningBroker) -> None:
    async with AsyncFlyMQClient(f"flymq://{broker.address}") as producer, processing(broker) as work:
        await work.until_seen(await produce(producer, "before", 4))
        await producer.truncate_topic("orders", "latest")
        await work.until_seen(await produce(producer, "truncated", 4))
        await producer.delete_topic("orders")
        await producer.create_topic("orders", partitions=6)
        await work.until_seen(await produce(producer, "again", 6))
        await work.until_shared([2, 2, 2])
    [group] = await _described(broker)
    assert group == dict.fromkeys(range(6), (ROUNDS, 0))


async def _described(broker: RunningBroker) -> list[dict[int, tuple[int, int]]]:
    """Committed offset and lag by partition, of each topic that the group reads."""
    async with AsyncFlyMQClient(f"flymq://{broker.address}") as client:
        return [
            {each.partition: (each.committed, each.lag) for each in group.partitions}
            for group in await client.monitoring.groups(group=GROUP)
        ]
