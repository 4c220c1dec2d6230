"""Altering topics, adding partitions and truncating through the broker: what is refused, who is told, what is on record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import InvalidRequest, LimitExceeded, OffsetOutOfRange, PartitionNotFound, TopicNotFound
from penstock.log.api import Durability, Engine, TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.producing import produce
from tests.open_access import OpenAccess


@pytest.fixture
async def small(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    limits = BrokerLimits(topics_max=3, partitions_max=6, partitions_per_topic_max=4)
    broker = Broker(engine, clock=clock, limits=limits, access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()


def starts(broker: Broker, topic: str = "orders") -> list[int]:
    return [each.start_offset for each in broker.topics.describe(ANONYMOUS, topic).partitions]


async def test_only_the_given_settings_change(broker: Broker) -> None:
    before = TopicConfig(partitions=2, durability=Durability("none"), segment_bytes=1 << 20)
    await broker.topics.create(ANONYMOUS, "orders", before)
    info = await broker.topics.alter(ANONYMOUS, "orders", [("retention_ms", "7d"), ("compression", "zstd")])
    assert info.config == TopicConfig(
        partitions=2,
        durability=Durability("none"),
        segment_bytes=1 << 20,
        retention_ms=604_800_000,
        compression="zstd",
    )
    assert broker.topics.describe(ANONYMOUS, "orders").info == info


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ([("partitions", "3")], "add partitions instead"),
        ([("colour", "red")], "topic setting 'colour' is not known"),
        ([("retention_ms", "0")], "retention_ms"),
        ([("cleanup", "compact"), ("cleanup", "delete")], "given twice"),
    ],
)
async def test_a_wrong_setting_changes_nothing(broker: Broker, settings: list[tuple[str, str]], error: str) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    with pytest.raises(InvalidRequest, match=error):
        await broker.topics.alter(ANONYMOUS, "orders", settings)
    assert broker.topics.describe(ANONYMOUS, "orders").info.config == TopicConfig()


async def test_a_topic_that_is_missing_cannot_be_changed(broker: Broker) -> None:
    with pytest.raises(TopicNotFound):
        await broker.topics.alter(ANONYMOUS, "orders", [])
    with pytest.raises(TopicNotFound):
        await broker.topics.add_partitions(ANONYMOUS, "orders", 2)
    with pytest.raises(TopicNotFound):
        await broker.topics.truncate(ANONYMOUS, "orders", "end")


async def test_a_topic_altered_to_be_compacted_wants_keys_from_then_on(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    await produce(broker, "orders", [b"without a key"])
    await broker.topics.alter(ANONYMOUS, "orders", [("cleanup", "compact")])
    [refused] = await produce(broker, "orders", [b"without a key"])
    assert isinstance(refused.result, InvalidRequest)
    assert "give every record a key" in str(refused.result)


async def test_partitions_cannot_be_removed(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=3))
    with pytest.raises(InvalidRequest, match="topic orders has 3 partitions, and partitions cannot be removed"):
        await broker.topics.add_partitions(ANONYMOUS, "orders", 2)
    assert (await broker.topics.add_partitions(ANONYMOUS, "orders", 3)).config.partitions == 3


@pytest.mark.dense
async def test_records_without_a_key_go_to_new_partitions_too(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=2))
    await produce(broker, "orders", [b"1", b"2", b"3"])
    await broker.topics.add_partitions(ANONYMOUS, "orders", 4)
    await produce(broker, "orders", [b"4", b"5", b"6", b"7"])
    described = broker.topics.describe(ANONYMOUS, "orders")
    assert sum(each.committed_end for each in described.partitions) == 7
    assert all(each.committed_end for each in described.partitions)


async def test_added_partitions_count_towards_the_limits(small: Broker) -> None:
    await small.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=2))
    await small.topics.create(ANONYMOUS, "clicks", TopicConfig(partitions=2))
    with pytest.raises(LimitExceeded, match="5 partitions are too many for one topic: at most 4"):
        await small.topics.add_partitions(ANONYMOUS, "orders", 5)
    results = await asyncio.gather(
        small.topics.add_partitions(ANONYMOUS, "orders", 4),
        small.topics.add_partitions(ANONYMOUS, "clicks", 4),
        return_exceptions=True,
    )
    assert [isinstance(result, LimitExceeded) for result in results] == [False, True]
    assert "2 more partitions do not fit next to the 6 there are" in str(results[1])
    await small.topics.alter(ANONYMOUS, "clicks", [("compression", "zstd")])  # settings need no room


@pytest.mark.dense
async def test_records_are_deleted_before_an_offset_of_one_partition(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=2))
    for partition in range(2):
        await produce(broker, "orders", [b"a", b"b", b"c"], partition=partition)
    await broker.topics.truncate(ANONYMOUS, "orders", "offset", 2, 1)
    assert starts(broker) == [0, 2]
    with pytest.raises(InvalidRequest, match="has 2 partitions, and an offset is a place in one of them"):
        await broker.topics.truncate(ANONYMOUS, "orders", "offset", 1)
    with pytest.raises(PartitionNotFound):
        await broker.topics.truncate(ANONYMOUS, "orders", "offset", 1, 2)
    with pytest.raises(OffsetOutOfRange, match="offset 4 is out of range"):
        await broker.topics.truncate(ANONYMOUS, "orders", "offset", 4, 0)
    with pytest.raises(InvalidRequest, match="unknown truncation mode: middle"):
        await broker.topics.truncate(ANONYMOUS, "orders", "middle")
    assert starts(broker) == [0, 2]


@pytest.mark.dense
async def test_records_are_deleted_before_a_time(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=3))
    await produce(broker, "orders", [b"old", b"old"], partition=0)
    await produce(broker, "orders", [b"old"], partition=1)
    clock.advance(60)
    await produce(broker, "orders", [b"new"], partition=0)
    await broker.topics.truncate(ANONYMOUS, "orders", "time", clock.now_ms())
    assert starts(broker) == [2, 1, 0]


@pytest.mark.dense
async def test_a_group_behind_a_truncation_begins_at_the_new_start(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    await produce(broker, "orders", [b"%d" % number for number in range(10)])
    await broker.groups.commit(ANONYMOUS, "orders", "billing", 0, 2)
    await broker.topics.truncate(ANONYMOUS, "orders", "offset", 6)
    assert await broker.groups.start_position(ANONYMOUS, "orders", "billing", 0, "committed") == 6
    assert (await broker.groups.lag(ANONYMOUS, "orders", "billing", 0)).records == 4


async def test_every_change_is_on_record(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
    await produce(broker, "orders", [b"a"])
    await broker.topics.alter(ANONYMOUS, "orders", [("retention_ms", "7d")])
    await broker.topics.alter(ANONYMOUS, "orders", [("retention_ms", "7d")])  # no change
    await broker.topics.add_partitions(ANONYMOUS, "orders", 2)
    await broker.topics.truncate(ANONYMOUS, "orders", "offset", 1, 0)
    await broker.audit.written()
    events = [
        event for event in (await broker.audit.query(ANONYMOUS, AuditQuery())).events if event.resource == "orders"
    ]
    assert [(event.type, event.details) for event in reversed(events)] == [
        ("topic.create", {"partitions": "1"}),
        ("topic.alter", {"retention_ms": "604800000"}),
        ("topic.alter", {"partitions": "2"}),
        ("topic.truncate", {"0": "1"}),
    ]
