"""The async client against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime

import pytest

import penstock
from penstock.clients.reading import POLL_S_MAX, POLL_S_MIN
from penstock.clients.records import GroupDescription, Lag, Record
from penstock.errors import (
    AccessDenied,
    GroupNotFound,
    InvalidRequest,
    InvalidTopicName,
    NoSpace,
    OutcomeUnknown,
    PartitionNotFound,
    TopicNotFound,
)
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.testing import RunningBroker


@pytest.fixture
async def client(penstock_broker: RunningBroker) -> AsyncIterator[AsyncFlyMQClient]:
    async with await penstock.connect_async(penstock_broker.url) as client:
        yield client


async def values_of(client: AsyncFlyMQClient, topic: str, **how: object) -> list[bytes]:
    return [record.value or b"" async for record in client.records(topic, **how)]  # type: ignore[arg-type]


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


# -- producing and fetching ------------------------------------------------------------------------------------------------


async def test_a_record_comes_back_with_its_key_and_offset(client: AsyncFlyMQClient) -> None:
    metadata = await client.send("orders", b"one", key=b"k")
    assert (metadata.topic, metadata.partition, metadata.offset) == ("orders", 0, 0)
    result = await client.fetch("orders", 0, 0)
    assert result.records == [Record("orders", 0, 0, b"k", b"one", metadata.timestamp_ms)]
    assert result.next_offset == 1


async def test_keys_choose_partitions_and_records_without_one_take_turns(client: AsyncFlyMQClient) -> None:
    await client.create_topic("orders", 3)
    keyed = await client.send_many("orders", [(b"a", b"1"), (b"k1", b"2"), (b"user-123", b"3")])
    assert [each.partition for each in keyed] == [1, 0, 2]
    turns = await client.send_many("orders", [b"1", b"2", b"3"])
    assert sorted(each.partition for each in turns) == [0, 1, 2]
    assert (await client.send("orders", b"here", partition=2)).partition == 2
    with pytest.raises(PartitionNotFound):
        await client.send("orders", b"nowhere", partition=3)


async def test_a_large_batch_keeps_its_order(client: AsyncFlyMQClient) -> None:
    metadata = await client.send_many("orders", numbered(0, 20_000))
    assert [each.offset for each in metadata] == list(range(20_000))
    assert await values_of(client, "orders") == numbered(0, 20_000)


async def test_a_filter_leaves_records_out_and_moves_on(client: AsyncFlyMQClient) -> None:
    await client.send_many("orders", [b"red", b"green", b"RED too", b"blue"])
    result = await client.fetch("orders", 0, 0, filter="red")
    assert [record.value for record in result.records] == [b"red", b"RED too"]
    assert result.next_offset == 4
    assert await values_of(client, "orders", filter="red") == [b"red", b"RED too"]


async def test_a_fetch_at_the_end_is_empty(client: AsyncFlyMQClient) -> None:
    await client.send("orders", b"one")
    result = await client.fetch("orders", 0, 1)
    assert (result.records, result.next_offset) == ([], 1)


# -- iterating -------------------------------------------------------------------------------------------------------------


async def test_iteration_covers_all_partitions_and_ends_at_what_was_the_end(client: AsyncFlyMQClient) -> None:
    await client.create_topic("orders", 3)
    await client.send_many("orders", numbered(0, 300))
    seen: list[Record] = []
    async for record in client.records("orders"):
        if not seen:
            await client.send_many("orders", [b"late"] * 3)
        seen.append(record)
    assert sorted(int(record.value or b"") for record in seen) == list(range(300))
    assert {record.partition for record in seen} == {0, 1, 2}
    for partition in range(3):
        assert [record.offset for record in seen if record.partition == partition] == list(range(100))


async def test_iteration_starts_where_it_is_told(penstock_broker: RunningBroker, client: AsyncFlyMQClient) -> None:
    penstock_broker.clock.advance(60)
    await client.send_many("orders", numbered(0, 5))
    penstock_broker.clock.advance(60)
    noon = datetime.fromtimestamp(penstock_broker.clock.now_ms() / 1000, UTC)
    await client.send_many("orders", numbered(5, 8))
    assert await values_of(client, "orders", start="earliest") == numbered(0, 8)
    assert await values_of(client, "orders", start=6) == numbered(6, 8)
    assert await values_of(client, "orders", start=noon) == numbered(5, 8)
    assert await values_of(client, "orders", start="latest") == []
    assert await values_of(client, "orders", start=100) == []
    assert await values_of(client, "orders", partition=0, limit=2) == numbered(0, 2)
    with pytest.raises(InvalidRequest, match="start 'noon' is not known"):
        await values_of(client, "orders", start="noon")
    with pytest.raises(PartitionNotFound):
        await values_of(client, "orders", partition=1)
    with pytest.raises(InvalidRequest, match="limit is 0"):
        await values_of(client, "orders", limit=0)
    with pytest.raises(TopicNotFound):
        await values_of(client, "nothing")


async def test_following_waits_longer_and_longer_and_starts_over_when_records_come(
    penstock_broker: RunningBroker,
) -> None:
    waits: list[float] = []
    wake: dict[int, Callable[[], Awaitable[object]]] = {}

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) in wake:
            await wake[len(waits)]()

    async with AsyncFlyMQClient(penstock_broker.url, sleep=sleep) as client:
        await client.send("orders", b"before")
        wake[10] = lambda: client.send("orders", b"after ten")
        wake[12] = lambda: client.send("orders", b"after twelve")
        seen = await values_of(client, "orders", start="latest", follow=True, limit=2)
    assert seen == [b"after ten", b"after twelve"]
    assert waits[:3] == [POLL_S_MIN, 2 * POLL_S_MIN, 4 * POLL_S_MIN]
    assert waits[9] == POLL_S_MAX
    assert waits[10] == POLL_S_MIN


async def test_a_follower_survives_a_restart_of_the_broker(
    penstock_broker: RunningBroker, client: AsyncFlyMQClient
) -> None:
    await client.send("orders", b"before")
    seen = []
    async with aclosing(client.records("orders", follow=True)) as records:
        async for record in records:
            seen.append(record.value)
            if len(seen) == 2:
                break
            await asyncio.to_thread(penstock_broker.restart)
            await client.topics()
            await client.send("orders", b"after")
    assert seen == [b"before", b"after"]


# -- groups ----------------------------------------------------------------------------------------------------------------


async def test_a_group_continues_where_it_stopped(client: AsyncFlyMQClient) -> None:
    await client.send_many("orders", numbered(0, 5))
    assert await values_of(client, "orders", group="g", limit=3) == numbered(0, 3)
    assert await client.committed("orders", "g", 0) == 3
    assert await values_of(client, "orders", group="g") == numbered(3, 5)
    assert await values_of(client, "orders", group="g", start="earliest") == []
    assert await values_of(client, "orders", group="other", start="latest") == []


async def test_a_record_is_committed_once_the_next_one_is_asked_for(client: AsyncFlyMQClient) -> None:
    await client.send_many("orders", numbered(0, 5))
    async with aclosing(client.records("orders", group="g")) as records:
        async for record in records:
            if record.offset == 2:
                break
    assert await client.committed("orders", "g", 0) is None
    assert await values_of(client, "orders", group="g", commit=False) == numbered(0, 5)
    assert await client.committed("orders", "g", 0) is None


async def test_a_group_is_described_moved_and_deleted(penstock_broker: RunningBroker, client: AsyncFlyMQClient) -> None:
    await client.create_topic("orders", 2)
    await client.send_many("orders", numbered(0, 4), partition=1)
    penstock_broker.clock.advance(10)
    moment = datetime.fromtimestamp(penstock_broker.clock.now_ms() / 1000, UTC)
    await client.send_many("orders", numbered(4, 6), partition=1)
    assert await client.committed("orders", "g", 1) is None
    await client.commit("orders", "g", 1, 2)
    assert await client.committed("orders", "g", 1) == 2
    assert await client.committed("orders", "g", 0) is None
    assert await client.lag("orders", "g", 1) == Lag(2, 6, 4)
    assert await client.groups() == [GroupDescription("orders", "g", 0, {1: 2})]
    assert await client.describe_group("g") == [GroupDescription("orders", "g", 0, {1: 2})]
    assert await client.describe_group("g", "orders") == [GroupDescription("orders", "g", 0, {1: 2})]
    assert await client.reset("orders", "g", 1, "earliest") == 0
    assert await client.reset("orders", "g", 1, "latest") == 6
    assert await client.reset("orders", "g", 1, 3) == 3
    assert await client.reset("orders", "g", 1, moment) == 4
    assert await client.committed("orders", "g", 1) == 4
    assert await client.seek_to_time("orders", None, 1, 0) == 0
    assert await client.committed("orders", "g", 1) == 4
    assert await client.subscribe("orders", "g", 1) == 4
    assert await client.describe_group("g") == [GroupDescription("orders", "g", 1, {1: 4})]
    await client.delete_group("g", "orders")
    for gone in (client.describe_group("g"), client.describe_group("g", "orders"), client.delete_group("g")):
        with pytest.raises(GroupNotFound):
            await gone


# -- topics ----------------------------------------------------------------------------------------------------------------


async def test_a_topic_is_created_described_and_deleted(client: AsyncFlyMQClient) -> None:
    await client.create_topic("site/hall", 2, durability="none", retention_ms=60_000)
    await client.send("orders", b"one")
    assert await client.topics() == ["orders", "site/hall"]
    described = await client.describe_topic("site/hall")
    assert [(each.start_offset, each.next_offset) for each in described.partitions] == [(0, 0), (0, 0)]
    assert described.config["durability"] == "none"
    assert described.config["retention_ms"] == "60000"
    await client.delete_topic("site/hall")
    assert await client.topics() == ["orders"]
    with pytest.raises(TopicNotFound):
        await client.describe_topic("site/hall")


async def test_refusals_of_the_broker_are_typed(client: AsyncFlyMQClient) -> None:
    with pytest.raises(InvalidTopicName):
        await client.create_topic("../up")
    with pytest.raises(AccessDenied):
        await client.send("__groups", b"one")
    with pytest.raises(InvalidRequest):
        await client.create_topic("orders", 1, durability="perhaps")
    with pytest.raises(TopicNotFound):
        await client.fetch("nothing", 0, 0)


async def test_a_full_disk_is_a_retriable_refusal_and_a_failed_flush_is_not(
    penstock_broker: RunningBroker, client: AsyncFlyMQClient
) -> None:
    await client.send("orders", b"zero")
    penstock_broker.disk.disk_full()
    with pytest.raises(NoSpace) as full:
        await client.send("orders", b"refused")
    assert full.value.retriable
    penstock_broker.disk.disk_full_off()
    assert (await client.send("orders", b"one")).offset == 1
    penstock_broker.disk.fail_next_fsync()
    with pytest.raises(OutcomeUnknown) as failed:
        await client.send("orders", b"unknown")
    assert not failed.value.retriable


async def test_a_ping_takes_time(client: AsyncFlyMQClient) -> None:
    assert await client.ping() > 0


@pytest.mark.parametrize("options", ["", "?idempotent=false"])
async def test_a_record_as_large_as_they_may_be_is_stored_beside_small_ones(
    penstock_broker: RunningBroker, options: str
) -> None:
    largest, small = bytes((32 << 20) - 2048), bytes(900)
    async with AsyncFlyMQClient(penstock_broker.url + options) as client:
        await client.create_topic("orders")
        stored = await client.send_many("orders", [*[small] * 1005, largest, *[small] * 1000])
        assert len(stored) == 2006
        together = await asyncio.gather(
            *(client.send("orders", small) for _ in range(50)),
            client.send("orders", largest),
            client.send("orders", small),
        )
        assert len(together) == 52


async def test_many_records_with_long_keys_go_in_requests_that_hold_them(penstock_broker: RunningBroker) -> None:
    async with AsyncFlyMQClient(penstock_broker.url) as client:
        stored = await client.send_many("orders", [(b"%d" % number + bytes(60_000), b"value") for number in range(700)])
        assert len(stored) == 700
