"""Groups: committed offsets, members, what ends a group, and what a topic's end does to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.groups import offsets as offsets_module
from penstock.broker.groups.offsets import GROUPS_TOPIC, GroupInfo, GroupOffset, Offsets
from penstock.broker.limits import BrokerLimits
from penstock.errors import (
    GroupNotFound,
    InvalidRequest,
    InvalidTopicName,
    LimitExceeded,
    NotWritten,
    PartitionNotFound,
    TopicNotFound,
)
from penstock.log.api import Durability, Engine, TopicConfig
from penstock.testing.clock import START_MS, ManualClock
from tests.broker.producing import produce
from tests.engines import embedded, make_engine
from tests.open_access import OpenAccess

WHO = ANONYMOUS


@asynccontextmanager
async def running(data_dir: Path, limits: BrokerLimits | None = None) -> AsyncIterator[Broker]:
    clock = ManualClock()
    engine = make_engine(data_dir, clock=clock)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=limits or BrokerLimits(), access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()
    await engine.close()


def offsets_of(info: GroupInfo) -> dict[int, int]:
    return {offset.partition: offset.offset for offset in info.offsets}


async def test_a_committed_offset_is_read_back_with_the_time_it_was_committed(
    broker: Broker, clock: ManualClock
) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=2))
    await broker.groups.commit(WHO, "t", "g", 1, 43)
    clock.advance(5)
    await broker.groups.commit(WHO, "t", "g", 0, 7)
    assert broker.groups.committed(WHO, "t", "g", 1) == 43
    assert broker.groups.describe(WHO, "g", "t") == [
        GroupInfo("t", "g", (), (GroupOffset(0, 7, START_MS + 5000), GroupOffset(1, 43, START_MS)))
    ]


async def test_a_commit_shows_when_it_is_on_disk_and_not_before(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    committing = broker.groups.commit(WHO, "t", "g", 0, 1)
    with pytest.raises(GroupNotFound):
        broker.groups.committed(WHO, "t", "g", 0)
    assert list(broker.groups.all(WHO)) == []
    await committing
    assert broker.groups.committed(WHO, "t", "g", 0) == 1


async def test_a_group_that_is_unknown_is_an_error_and_one_without_an_offset_is_not(broker: Broker) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=2))
    with pytest.raises(GroupNotFound, match="consumer group not found: t:g"):
        broker.groups.committed(WHO, "t", "g", 0)
    await broker.groups.commit(WHO, "t", "g", 0, 1)
    assert broker.groups.committed(WHO, "t", "g", 1) is None
    broker.groups.subscribe(WHO, "t", "watchers", "s1")
    assert broker.groups.committed(WHO, "t", "watchers", 0) is None


async def test_a_commit_needs_no_topic(broker: Broker) -> None:
    await broker.groups.commit(WHO, "later", "g", 9_999, 5)
    assert broker.groups.committed(WHO, "later", "g", 9_999) == 5


@pytest.mark.parametrize("offset", [-1, 2**63, 2**64 - 1])
async def test_an_offset_that_no_partition_can_have_is_refused(broker: Broker, offset: int) -> None:
    with pytest.raises(InvalidRequest, match=f"offset {offset} is out of range"):
        await broker.groups.commit(WHO, "t", "g", 0, offset)
    assert list(broker.groups.all(WHO)) == []


async def test_the_highest_offset_is_kept_exactly(broker: Broker) -> None:
    await broker.groups.commit(WHO, "t", "g", 0, 2**63 - 1)
    assert broker.groups.committed(WHO, "t", "g", 0) == 2**63 - 1


@pytest.mark.parametrize(("topic", "partition"), [("t", 1), ("t", -1), ("missing", -1), ("missing", 10_000)])
async def test_a_partition_that_cannot_be_is_refused(broker: Broker, topic: str, partition: int) -> None:
    await broker.topics.ensure(WHO, "t")
    with pytest.raises(PartitionNotFound, match=f"partition {partition} not found"):
        await broker.groups.commit(WHO, topic, "g", partition, 0)
    assert list(broker.groups.all(WHO)) == []


async def test_names_are_checked_before_a_group_is_made(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    with pytest.raises(InvalidTopicName):
        await broker.groups.commit(WHO, "../t", "g", 0, 0)
    for group in ("", "g" * 250, "g\n"):
        with pytest.raises(InvalidRequest, match="group name"):
            await broker.groups.commit(WHO, "t", group, 0, 0)
        with pytest.raises(InvalidRequest, match="group name"):
            broker.groups.subscribe(WHO, "t", group, "s1")
    assert list(broker.groups.all(WHO)) == []


async def test_offsets_survive_a_restart_and_members_do_not(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.create(WHO, "t", TopicConfig(partitions=3))
        await asyncio.gather(*(broker.groups.commit(WHO, "t", "g", n % 3, n) for n in range(30)))
        broker.groups.subscribe(WHO, "t", "g", "s1")
        broker.groups.subscribe(WHO, "t", "only-members", "s1")
    async with running(tmp_path) as broker:
        [info] = broker.groups.all(WHO)
        assert (info.topic, info.group, info.members, offsets_of(info)) == ("t", "g", (), {0: 27, 1: 28, 2: 29})


async def test_commits_are_on_disk_even_where_topics_are_not(engine: Engine, clock: ManualClock) -> None:
    defaults = TopicConfig(durability=Durability("none"))
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess(), topic_defaults=defaults)
    await broker.start()
    assert engine.topics()[GROUPS_TOPIC].config.durability == Durability("fsync")
    assert engine.topics()[GROUPS_TOPIC].config.cleanup == "compact"
    await broker.close()


@pytest.mark.embedded
async def test_commits_of_one_turn_share_their_flushes(engine: Engine, broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    commits = engine.stats.commits
    await asyncio.gather(*(broker.groups.commit(WHO, "t", f"g{n}", 0, n) for n in range(300)))
    assert engine.stats.commits - commits <= 3
    assert len(list(broker.groups.all(WHO))) == 300


# -- the end of a topic ---------------------------------------------------------------------------------------------------


async def test_a_topic_created_again_is_read_from_its_start(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    await produce(broker, "t", [b"a", b"b"])
    await broker.groups.commit(WHO, "t", "g", 0, 2)
    broker.groups.subscribe(WHO, "t", "g", "s1")
    await broker.topics.delete(WHO, "t")
    assert list(broker.groups.all(WHO)) == []
    await broker.topics.ensure(WHO, "t")
    assert await broker.groups.start_position(WHO, "t", "g", 0, "committed") == 0
    with pytest.raises(GroupNotFound):
        broker.groups.committed(WHO, "t", "g", 0)
    broker.groups.unsubscribe("s1")


async def test_offsets_of_other_topics_stay_when_one_is_deleted(broker: Broker) -> None:
    for topic in ("t", "u"):
        await broker.topics.ensure(WHO, topic)
        await broker.groups.commit(WHO, topic, "g", 0, 1)
    await broker.topics.delete(WHO, "t")
    assert [(info.topic, info.group) for info in broker.groups.all(WHO)] == [("u", "g")]


async def test_offsets_left_by_a_crash_in_the_middle_of_a_deletion_count_for_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.ensure(WHO, "t")
        await broker.groups.commit(WHO, "t", "g", 0, 5)
        # As if the process had ended after the engine's part of delete_topic, and the topic had been created again since.
        await broker._engine.delete_topic("t")
        await broker._engine.create_topic("t", TopicConfig())
        with pytest.raises(GroupNotFound):
            broker.groups.committed(WHO, "t", "g", 0)
        assert list(broker.groups.all(WHO)) == []
    async with running(tmp_path) as broker:
        assert list(broker.groups.all(WHO)) == []
        assert len(broker._offsets._table) == 0
        assert broker._offsets._groups == {}


async def test_an_offset_committed_before_its_topic_existed_does_not_apply_to_it(broker: Broker) -> None:
    await broker.groups.commit(WHO, "t", "g", 0, 5)
    await broker.topics.ensure(WHO, "t")
    assert await broker.groups.start_position(WHO, "t", "g", 0, "committed") == 0
    await broker.groups.commit(WHO, "t", "g", 0, 3)
    assert broker.groups.committed(WHO, "t", "g", 0) == 3


# -- start, reset, seek ---------------------------------------------------------------------------------------------------


@pytest.mark.dense
async def test_a_reader_starts_at_the_earliest_the_latest_or_where_its_group_is(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    assert await broker.groups.start_position(WHO, "t", "g", 0, "latest") == 0
    await produce(broker, "t", [b"a", b"b", b"c"])
    assert await broker.groups.start_position(WHO, "t", "g", 0, "earliest") == 0
    assert await broker.groups.start_position(WHO, "t", "g", 0, "latest") == 3
    assert await broker.groups.start_position(WHO, "t", "g", 0, "committed") == 0
    await broker.groups.commit(WHO, "t", "g", 0, 2)
    assert await broker.groups.start_position(WHO, "t", "g", 0, "committed") == 2
    with pytest.raises(InvalidRequest, match="unknown subscribe mode: foo"):
        await broker.groups.start_position(WHO, "t", "g", 0, "foo")
    with pytest.raises(TopicNotFound):
        await broker.groups.start_position(WHO, "u", "g", 0, "earliest")
    for partition in (1, -1):
        with pytest.raises(PartitionNotFound):
            await broker.groups.start_position(WHO, "t", "g", partition, "earliest")


@pytest.mark.dense
async def test_a_group_that_retention_has_passed_starts_at_the_earliest_record_left(broker: Broker) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(segment_bytes=1 << 16))
    await broker.groups.commit(WHO, "t", "g", 0, 1)
    for _ in range(4):
        await produce(broker, "t", [b"x" * (40 << 10)])
    start = await broker.records.partition(WHO, "t", 0).delete_before(3)
    assert start > 1
    assert await broker.groups.start_position(WHO, "t", "g", 0, "committed") == start
    assert await broker.groups.start_position(WHO, "t", "g", 0, "earliest") == start
    assert await broker.groups.reset_offset(WHO, "t", "h", 0, "earliest") == start
    assert (await broker.groups.lag(WHO, "t", "g", 0)).records == 4 - start


@pytest.mark.dense
async def test_a_reset_sets_the_group_and_creates_it(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    assert await broker.groups.reset_offset(WHO, "t", "g", 0, "latest") == 0
    await produce(broker, "t", [b"a", b"b", b"c"])
    assert await broker.groups.reset_offset(WHO, "t", "g", 0, "latest") == 3
    assert broker.groups.committed(WHO, "t", "g", 0) == 3
    assert await broker.groups.reset_offset(WHO, "t", "g", 0, "offset", 1) == 1
    assert await broker.groups.reset_offset(WHO, "t", "g", 0, "earliest") == 0
    for mode in ("foo", "offset"):
        with pytest.raises(InvalidRequest, match=f"unknown reset mode: {mode}"):
            await broker.groups.reset_offset(WHO, "t", "g", 0, mode)
    with pytest.raises(InvalidRequest, match="out of range"):
        await broker.groups.reset_offset(WHO, "t", "g", 0, "offset", -1)
    with pytest.raises(PartitionNotFound):
        await broker.groups.reset_offset(WHO, "t", "g", 1, "earliest")
    with pytest.raises(TopicNotFound):
        await broker.groups.reset_offset(WHO, "u", "g", 0, "earliest")
    assert broker.groups.committed(WHO, "t", "g", 0) == 0


@pytest.mark.dense
async def test_seeking_to_a_time_finds_the_first_record_since_and_commits_it_for_a_named_group(
    broker: Broker, clock: ManualClock
) -> None:
    await broker.topics.ensure(WHO, "t")
    await produce(broker, "t", [b"a", b"b"])
    clock.advance(10)
    await produce(broker, "t", [b"c"])
    assert await broker.groups.seek_to_time(WHO, "t", "", 0, START_MS + 1) == 2
    assert list(broker.groups.all(WHO)) == []
    assert await broker.groups.seek_to_time(WHO, "t", "g", 0, START_MS + 10_000) == 2
    assert broker.groups.committed(WHO, "t", "g", 0) == 2
    assert await broker.groups.seek_to_time(WHO, "t", "g", 0, START_MS + 10_001) == 3
    assert await broker.groups.seek_to_time(WHO, "t", "g", 0, -5) == 0


# -- members, listing, deleting -------------------------------------------------------------------------------------------


async def test_members_are_counted_while_their_sessions_last(broker: Broker) -> None:
    for topic in ("t", "u"):
        await broker.topics.ensure(WHO, topic)
    broker.groups.subscribe(WHO, "t", "g", "s2")
    broker.groups.subscribe(WHO, "t", "g", "s1")
    broker.groups.subscribe(WHO, "t", "g", "s1")
    broker.groups.subscribe(WHO, "u", "g", "s1")
    assert [(info.topic, info.members) for info in broker.groups.all(WHO)] == [("t", ("s1", "s2")), ("u", ("s1",))]
    broker.groups.unsubscribe("s1")
    broker.groups.unsubscribe("s1")
    broker.groups.unsubscribe("never-subscribed")
    assert [(info.topic, info.members) for info in broker.groups.all(WHO)] == [("t", ("s2",)), ("u", ())]
    with pytest.raises(TopicNotFound):
        broker.groups.subscribe(WHO, "missing", "g", "s2")


async def test_groups_are_listed_and_described_by_topic_and_name(broker: Broker) -> None:
    for topic, group in (("u", "a"), ("t", "b"), ("t", "a")):
        await broker.groups.commit(WHO, topic, group, 0, 1)
    assert [(info.topic, info.group) for info in broker.groups.all(WHO)] == [("t", "a"), ("t", "b"), ("u", "a")]
    assert [info.topic for info in broker.groups.describe(WHO, "a")] == ["t", "u"]
    assert [info.topic for info in broker.groups.describe(WHO, "a", "u")] == ["u"]
    with pytest.raises(GroupNotFound, match="consumer group not found: u:b"):
        broker.groups.describe(WHO, "b", "u")
    with pytest.raises(GroupNotFound, match="consumer group not found: c"):
        broker.groups.describe(WHO, "c")


async def test_a_deleted_group_is_gone_also_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        for topic in ("t", "u"):
            await broker.topics.create(WHO, topic, TopicConfig(partitions=2))
            for partition in range(2):
                await broker.groups.commit(WHO, topic, "g", partition, 1)
        await broker.groups.commit(WHO, "t", "h", 0, 1)
        broker.groups.subscribe(WHO, "t", "g", "s1")
        await broker.groups.delete(WHO, "g", "t")
        assert [(info.topic, info.group) for info in broker.groups.all(WHO)] == [("t", "h"), ("u", "g")]
        with pytest.raises(GroupNotFound):
            await broker.groups.delete(WHO, "g", "t")
        broker.groups.unsubscribe("s1")
        await broker.groups.delete(WHO, "g")
    async with running(tmp_path) as broker:
        assert [(info.topic, info.group) for info in broker.groups.all(WHO)] == [("t", "h")]
        with pytest.raises(GroupNotFound):
            await broker.groups.delete(WHO, "g")


async def test_a_group_of_members_only_can_be_deleted(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    broker.groups.subscribe(WHO, "t", "g", "s1")
    await broker.groups.delete(WHO, "g", "t")
    assert list(broker.groups.all(WHO)) == []
    broker.groups.subscribe(WHO, "t", "g", "s1")
    assert [info.members for info in broker.groups.all(WHO)] == [("s1",)]


async def test_a_group_that_only_subscribed_is_kept_until_it_is_deleted_or_its_topic_is(broker: Broker) -> None:
    for topic in ("t", "u"):
        await broker.topics.ensure(WHO, topic)
        broker.groups.subscribe(WHO, topic, "g", "s1")
    broker.groups.unsubscribe("s1")
    assert [(info.topic, info.members, info.offsets) for info in broker.groups.all(WHO)] == [
        ("t", (), ()),
        ("u", (), ()),
    ]
    assert broker.groups.committed(WHO, "t", "g", 0) is None
    await broker.groups.delete(WHO, "g", "t")
    assert [info.topic for info in broker.groups.all(WHO)] == ["u"]
    await broker.topics.delete(WHO, "u")
    await broker.topics.ensure(WHO, "u")
    assert list(broker.groups.all(WHO)) == []


async def test_a_group_that_only_subscribed_does_not_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topics.ensure(WHO, "t")
        broker.groups.subscribe(WHO, "t", "g", "s1")
        broker.groups.unsubscribe("s1")
        assert [info.group for info in broker.groups.all(WHO)] == ["g"]
    async with running(tmp_path) as broker:
        assert list(broker.groups.all(WHO)) == []


# -- limits ---------------------------------------------------------------------------------------------------------------


async def test_the_oldest_idle_groups_are_forgotten_first(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offsets_module, "IDLE_GROUPS_MAX", 2)
    offsets = Offsets(engine, clock, BrokerLimits())
    await offsets.start()
    for name in ("a", "b"):
        offsets.join("t", name, name)
        offsets.leave(name)
    offsets.join("t", "a", "again")
    offsets.leave("again")
    for name in ("c", "d"):
        offsets.join("t", name, name)
    offsets.leave("c")
    assert [info.group for info in offsets.infos()] == ["a", "c", "d"]
    await offsets.commit("t", "a", 0, 1)
    offsets.leave("d")
    offsets.join("t", "e", "e")
    offsets.leave("e")
    assert [info.group for info in offsets.infos()] == ["a", "d", "e"], "a has an offset by now"
    await offsets.close()


async def test_idle_groups_take_no_room_from_others(engine: Engine, clock: ManualClock) -> None:
    offsets = Offsets(engine, clock, BrokerLimits(groups_max=2))
    await offsets.start()
    for name in ("a", "b"):
        offsets.join("t", name, name)
        offsets.leave(name)
    await offsets.commit("t", "c", 0, 1)
    offsets.join("t", "d", "d")
    assert [info.group for info in offsets.infos()] == ["c", "d"]
    with pytest.raises(LimitExceeded, match="there are 2 groups"):
        offsets.join("t", "e", "e")
    await offsets.close()


async def test_a_first_commit_that_is_refused_leaves_an_idle_group_idle(engine: Engine, clock: ManualClock) -> None:
    offsets = Offsets(engine, clock, BrokerLimits(groups_max=2, group_offsets_max=1))
    await offsets.start()
    await offsets.commit("t", "a", 0, 1)
    offsets.join("t", "b", "s1")
    offsets.leave("s1")
    with pytest.raises(LimitExceeded, match="table __groups is full"):
        await offsets.commit("t", "b", 0, 1)
    assert [info.group for info in offsets.infos()] == ["a", "b"]
    offsets.join("t", "c", "s1")
    assert [info.group for info in offsets.infos()] == ["a", "c"]
    await offsets.close()


async def test_groups_are_bounded_also_while_their_first_commits_are_in_flight(
    engine: Engine, clock: ManualClock
) -> None:
    offsets = Offsets(engine, clock, BrokerLimits(groups_max=2))
    await offsets.start()
    committing = [offsets.commit("t", "a", 0, 1), offsets.commit("t", "b", 0, 1), offsets.commit("t", "a", 1, 1)]
    with pytest.raises(LimitExceeded, match="there are 2 groups, the most allowed"):
        await offsets.commit("t", "c", 0, 1)
    with pytest.raises(LimitExceeded, match=r"limits\.groups_max"):
        offsets.join("t", "c", "s1")
    await asyncio.gather(*committing)
    await offsets.delete("a", "t")
    await offsets.commit("t", "c", 0, 1)
    assert [info.group for info in offsets.infos()] == ["b", "c"]
    await offsets.close()


async def test_a_first_commit_that_is_refused_leaves_no_group_behind(engine: Engine, clock: ManualClock) -> None:
    offsets = Offsets(engine, clock, BrokerLimits(groups_max=2, group_offsets_max=1))
    await offsets.start()
    await offsets.commit("t", "a", 0, 1)
    for _ in range(3):
        with pytest.raises(LimitExceeded, match="table __groups is full"):
            await offsets.commit("t", "b", 0, 1)
    offsets.join("t", "b", "s1")
    assert [info.group for info in offsets.infos()] == ["a", "b"]
    await offsets.close()


async def test_members_are_bounded(engine: Engine, clock: ManualClock) -> None:
    offsets = Offsets(engine, clock, BrokerLimits(group_members_max=2))
    offsets.join("t", "a", "s1")
    offsets.join("t", "a", "s2")
    with pytest.raises(LimitExceeded, match="2 subscriptions are open"):
        offsets.join("t", "b", "s3")
    offsets.leave("s1")
    offsets.join("t", "b", "s3")
    assert [(info.group, info.members) for info in offsets.infos()] == [("a", ("s2",)), ("b", ("s3",))]


# -- a disk that fails ----------------------------------------------------------------------------------------------------


@pytest.mark.embedded
async def test_a_commit_that_fails_is_told_and_changes_nothing(engine: Engine, broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    await broker.groups.commit(WHO, "t", "g", 0, 1)
    embedded(engine).partition(GROUPS_TOPIC, 0).fail("the disk is gone")
    for group in ("g", "new"):
        with pytest.raises(NotWritten, match="the disk is gone"):
            await broker.groups.commit(WHO, "t", group, 0, 2)
    with pytest.raises(NotWritten):
        await broker.groups.delete(WHO, "g")
    assert [(info.group, offsets_of(info)) for info in broker.groups.all(WHO)] == [("g", {0: 1})]


@pytest.mark.embedded
async def test_a_topic_can_be_deleted_although_its_offsets_cannot(engine: Engine, broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    await broker.groups.commit(WHO, "t", "g", 0, 1)
    embedded(engine).partition(GROUPS_TOPIC, 0).fail("the disk is gone")
    await broker.topics.delete(WHO, "t")
    await broker.topics.ensure(WHO, "t")
    assert list(broker.groups.all(WHO)) == []
    assert await broker.groups.start_position(WHO, "t", "g", 0, "committed") == 0
