"""Topics through the broker: creating, describing, deleting, and the bounds on them."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.topics.settings import PartitionDescription
from penstock.errors import (
    InvalidRequest,
    InvalidTopicName,
    LimitExceeded,
    PartitionNotFound,
    TopicExists,
    TopicNotFound,
)
from penstock.log.api import Engine, TopicConfig
from penstock.testing.clock import START_MS, ManualClock
from tests.broker.producing import produce
from tests.open_access import OpenAccess

WHO = ANONYMOUS


def bounded(engine: Engine, clock: ManualClock, limits: BrokerLimits) -> Broker:
    return Broker(engine, clock=clock, limits=limits, access=OpenAccess())


async def test_a_created_topic_is_listed_and_described(broker: Broker) -> None:
    info = await broker.topics.create(WHO, "site/hall", TopicConfig(partitions=2))
    await broker.topics.create(WHO, "a", TopicConfig())
    assert broker.topics.names(WHO) == ["a", "site/hall"]
    assert broker.topics.exists("a")
    assert not broker.topics.exists("b")
    await produce(broker, "site/hall", [b"x", b"y"], partition=1)
    described = broker.topics.describe(WHO, "site/hall")
    assert described.info == info
    assert (info.name, info.created_ms, info.config.partitions) == ("site/hall", START_MS, 2)
    empty, written = described.partitions
    assert empty == PartitionDescription(0, 0, 0, empty.size_bytes, None)
    assert (written.index, written.start_offset, written.failure) == (1, 0, None)
    assert written.committed_end >= 2
    assert written.size_bytes > empty.size_bytes


async def test_a_topic_that_exists_is_not_created_again(broker: Broker) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=2))
    with pytest.raises(TopicExists, match="topic t exists already"):
        await broker.topics.create(WHO, "t", TopicConfig())
    await broker.topics.ensure(WHO, "t")
    assert broker.topics.describe(WHO, "t").info.config.partitions == 2


async def test_several_writers_that_miss_a_topic_create_it_once(engine: Engine, clock: ManualClock) -> None:
    defaults = TopicConfig(partitions=5, retention_ms=1000)
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess(), topic_defaults=defaults)
    await asyncio.gather(*(broker.topics.ensure(WHO, "t") for _ in range(20)))
    assert broker.topics.describe(WHO, "t").info.config == TopicConfig(partitions=1, retention_ms=1000)


async def test_a_deleted_topic_is_gone(broker: Broker) -> None:
    first = await broker.topics.create(WHO, "t", TopicConfig())
    await produce(broker, "t", [b"x"])
    await broker.topics.delete(WHO, "t")
    assert broker.topics.names(WHO) == []
    for missing in (lambda: broker.topics.describe(WHO, "t"), lambda: broker.records.partition(WHO, "t", 0)):
        with pytest.raises(TopicNotFound, match="t"):
            missing()
    with pytest.raises(TopicNotFound, match="topic not found: t"):
        await broker.topics.delete(WHO, "t")
    second = await broker.topics.create(WHO, "t", TopicConfig())
    assert second.id != first.id
    assert broker.records.partition(WHO, "t", 0).committed_end == 0


@pytest.mark.parametrize("name", ["", "../evil", "a//b", "a\nb", "x" * 250])
async def test_a_bad_name_creates_nothing(broker: Broker, name: str) -> None:
    with pytest.raises(InvalidTopicName):
        await broker.topics.create(WHO, name, TopicConfig())
    with pytest.raises(InvalidTopicName):
        await broker.topics.ensure(WHO, name)
    assert broker.topics.names(WHO) == []


async def test_settings_out_of_bounds_create_nothing(broker: Broker) -> None:
    for partitions in (0, -1):
        with pytest.raises(InvalidRequest, match=f"partitions is {partitions}"):
            await broker.topics.create(WHO, "t", TopicConfig(partitions=partitions))
    assert broker.topics.names(WHO) == []


async def test_defaults_out_of_bounds_stop_the_start(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(
        engine, clock=clock, limits=BrokerLimits(), access=OpenAccess(), topic_defaults=TopicConfig(segment_ms=1)
    )
    with pytest.raises(InvalidRequest, match="segment_ms is 1"):
        await broker.start()


@pytest.mark.parametrize("index", [1, -1])
async def test_a_partition_out_of_range_is_not_found(broker: Broker, index: int) -> None:
    await broker.topics.ensure(WHO, "t")
    with pytest.raises(PartitionNotFound, match=f"partition {index}"):
        broker.records.partition(WHO, "t", index)


async def test_topics_are_bounded_and_internal_ones_do_not_count(engine: Engine, clock: ManualClock) -> None:
    broker = bounded(engine, clock, BrokerLimits(topics_max=2))
    await broker.start()
    results = await asyncio.gather(*(broker.topics.ensure(WHO, f"t{n}") for n in range(3)), return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [LimitExceeded]
    await broker.topics.delete(WHO, "t0")
    await broker.topics.ensure(WHO, "t9")
    await broker.close()


async def test_partitions_are_bounded_for_one_topic_and_for_all(engine: Engine, clock: ManualClock) -> None:
    broker = bounded(engine, clock, BrokerLimits(partitions_max=5, partitions_per_topic_max=3))
    with pytest.raises(LimitExceeded, match="4 partitions are too many for one topic: at most 3"):
        await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
    await broker.topics.create(WHO, "t", TopicConfig(partitions=3))
    with pytest.raises(LimitExceeded, match="3 more partitions do not fit next to the 3 there are"):
        await broker.topics.create(WHO, "u", TopicConfig(partitions=3))
    await broker.topics.create(WHO, "u", TopicConfig(partitions=2))


async def test_nobody_waits_for_a_delete_of_another_topic(
    engine: Engine, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("doomed", "hot"):
        await broker.topics.create(WHO, name, TopicConfig())
    begun, may_end = asyncio.Event(), asyncio.Event()
    delete = engine.delete_topic

    async def slow_delete(name: str) -> None:
        begun.set()
        await may_end.wait()
        await delete(name)

    monkeypatch.setattr(engine, "delete_topic", slow_delete)
    deleting = asyncio.create_task(broker.topics.delete(WHO, "doomed"))
    await begun.wait()
    try:
        async with asyncio.timeout(30):
            await broker.topics.ensure(WHO, "hot")
            await broker.topics.ensure(WHO, "doomed")
            await broker.topics.create(WHO, "new", TopicConfig())
            await broker.subscriptions.subscribe(WHO, "hot", 1)
        assert not deleting.done()
    finally:
        may_end.set()
        await deleting
    assert broker.topics.names(WHO) == ["hot", "new"]


async def test_a_topic_is_created_again_only_once_its_delete_is_over(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topics.create(WHO, "t", TopicConfig())
    begun, may_end = asyncio.Event(), asyncio.Event()
    forget_all = broker.topics.on_deleted

    async def wait(topic: str) -> None:
        begun.set()
        await may_end.wait()

    monkeypatch.setattr(broker.topics, "on_deleted", (wait, *forget_all))
    deleting = asyncio.create_task(broker.topics.delete(WHO, "t"))
    await begun.wait()
    creating = asyncio.create_task(broker.topics.ensure(WHO, "t"))
    try:
        for name in ("a", "b", "c"):  # the log creates topics in the order of the calls
            await broker.topics.create(WHO, name, TopicConfig())
        assert not broker.topics.exists("t")
    finally:
        may_end.set()
        await asyncio.gather(deleting, creating)
    assert broker.topics.exists("t")
