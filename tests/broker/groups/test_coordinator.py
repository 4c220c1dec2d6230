"""Members of consumer groups: joining, hand-over, fencing, sessions, and what a restart leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.groups import coordinator as coordinator_module
from penstock.broker.groups.assignment import TopicPartition
from penstock.broker.groups.membership import Assigned, Heartbeat, MemberOffset, Session
from penstock.broker.limits import BrokerLimits
from penstock.errors import (
    AccessDenied,
    ConsumerFenced,
    InstanceFenced,
    InvalidRequest,
    LimitExceeded,
    NoSpace,
    TopicNotFound,
)
from penstock.log.api import Engine, TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce
from tests.engines import make_engine
from tests.open_access import OpenAccess

WHO = ANONYMOUS


class Member:
    """A member as a client would be: it lists what it was told of until it gives that up."""

    def __init__(
        self, broker: Broker, member_id: str, topics: Sequence[str] = ("t",), session: Session | None = None
    ) -> None:
        self.broker = broker
        self.id = member_id
        self.topics = list(topics)
        self.session = session or Session(timeout_ms=10_000)
        self.sequence = 0
        self.owned: dict[TopicPartition, int] = {}
        self.generation = 0
        self.last: list[Assigned] = []

    async def beat(self, *, release: bool = True) -> set[int]:
        """Send a heartbeat and take what it brings; returns the partitions it may read. What was revoked is given up by the next."""
        heartbeat = Heartbeat(self.id, self.sequence, self.session, self.owned)
        assignment = await self.broker.coordinator.heartbeat(WHO, "g", self.topics, heartbeat)
        self.sequence += 1
        self.generation = assignment.generation
        self.last = assignment.partitions
        granted = {TopicPartition(each.topic, each.partition): each.generation for each in assignment.partitions}
        self.owned = granted if release else {**self.owned, **granted}
        return {each.partition for each in granted}

    async def commit(self, partition: int, offset: int, topic: str = "t") -> None:
        generation = self.owned[TopicPartition(topic, partition)]
        await self.broker.coordinator.commit(WHO, "g", [MemberOffset(topic, partition, generation, offset)], self.id)

    async def leave(self) -> None:
        await self.broker.coordinator.leave(WHO, "g", self.topics, self.id)


@pytest.fixture
async def topic(broker: Broker) -> str:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
    return "t"


@asynccontextmanager
async def running(data_dir: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    engine = make_engine(data_dir, clock=clock)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
        await engine.close()


async def settle(*members: Member) -> list[set[int]]:
    for _ in range(2):
        for member in members:
            await member.beat()
    return [await member.beat() for member in members]


async def test_one_member_has_all_partitions_and_two_share_them(broker: Broker, topic: str) -> None:
    a, b = Member(broker, "a"), Member(broker, "b")
    assert await a.beat() == {0, 1, 2, 3}
    first, second = await settle(a, b)
    assert (len(first), len(second)) == (2, 2)
    assert first | second == {0, 1, 2, 3}


async def test_a_partition_is_given_to_its_new_owner_only_after_the_old_one_gave_it_up(
    broker: Broker, topic: str
) -> None:
    a, b = Member(broker, "a"), Member(broker, "b")
    await a.beat()
    assert await b.beat() == set()
    kept = await a.beat(release=False)  # told to give two up, and still at work on them
    assert len(kept) == 2
    for _ in range(3):
        assert await a.beat(release=False) == kept
        assert await b.beat() == set()
    revoked = next(each for each in a.owned if each.partition not in kept)
    await a.commit(revoked.partition, 7)  # it owns what it has not given up
    await a.beat()
    await a.beat()
    assert await b.beat() == {0, 1, 2, 3} - kept
    with pytest.raises(ConsumerFenced, match="does not own"):
        await broker.coordinator.commit(WHO, "g", [MemberOffset("t", revoked.partition, 1, 8)], "a")
    assert broker.groups.committed(WHO, "t", "g", revoked.partition) == 7


async def test_a_heartbeat_that_arrives_late_releases_nothing(broker: Broker, topic: str) -> None:
    a, b = Member(broker, "a"), Member(broker, "b")
    await a.beat()
    late = Heartbeat("a", 1, a.session, {})
    await a.beat()
    await a.beat(release=False)
    await b.beat()
    await broker.coordinator.heartbeat(WHO, "g", ["t"], late)
    assert await b.beat() == set()


async def test_partitions_that_do_not_move_keep_their_grant(broker: Broker, topic: str) -> None:
    a, b = Member(broker, "a"), Member(broker, "b")
    await a.beat()
    before = dict(a.owned)
    await settle(a, b)
    assert a.generation > 1
    assert a.owned.items() <= before.items()
    partition = next(iter(a.owned)).partition
    await a.commit(partition, 1)  # of the generation in which it was granted


async def test_a_member_that_leaves_hands_over_at_once(broker: Broker, topic: str) -> None:
    a, b = Member(broker, "a"), Member(broker, "b")
    await settle(a, b)
    await a.leave()
    await a.leave()
    assert await b.beat() == {0, 1, 2, 3}
    with pytest.raises(ConsumerFenced, match="a is not a member of group g"):
        await a.commit(next(iter(a.owned)).partition, 1)
    assert broker.groups.stats.fenced_commits == 1


async def test_a_session_without_heartbeats_ends_and_its_late_commit_is_fenced(
    broker: Broker, topic: str, clock: ManualClock
) -> None:
    a, b = Member(broker, "a"), Member(broker, "b")
    await settle(a, b)
    mine = next(iter(a.owned)).partition
    clock.advance(6)
    await b.beat()
    clock.advance(5)
    assert await b.beat() != {0, 1, 2, 3}
    await broker.coordinator.sweep()
    assert await b.beat() == {0, 1, 2, 3}
    with pytest.raises(ConsumerFenced):
        await a.commit(mine, 100)
    with pytest.raises(ConsumerFenced):
        await a.beat()
    assert broker.groups.stats.expired_sessions == 1
    assert broker.groups.committed(WHO, "t", "g", mine) is None


async def test_a_session_that_is_over_is_noticed_by_its_own_request_before_any_sweep(
    broker: Broker, topic: str, clock: ManualClock
) -> None:
    a = Member(broker, "a")
    await a.beat()
    clock.advance(10)
    with pytest.raises(ConsumerFenced):
        await a.commit(0, 1)
    assert broker.groups.committed(WHO, "t", "g", 0) is None


async def test_a_commit_of_an_earlier_grant_of_the_same_member_is_fenced(broker: Broker, topic: str) -> None:
    a, b = Member(broker, "a"), Member(broker, "b")
    await a.beat()
    granted = dict(a.owned)
    await settle(a, b)
    moved = next(each for each in granted if each not in a.owned)
    await b.leave()
    assert await a.beat() == {0, 1, 2, 3}
    assert a.owned[moved] > granted[moved]
    with pytest.raises(ConsumerFenced):
        await broker.coordinator.commit(WHO, "g", [MemberOffset(*moved, granted[moved], 5)], "a")
    await a.commit(moved.partition, 6)


async def test_a_commit_of_several_offsets_is_all_or_nothing(broker: Broker, topic: str) -> None:
    a = Member(broker, "a")
    await a.beat()
    generation = a.owned[TopicPartition("t", 0)]
    offsets = [MemberOffset("t", 0, generation, 5), MemberOffset("t", 1, generation + 1, 5)]
    with pytest.raises(ConsumerFenced):
        await broker.coordinator.commit(WHO, "g", offsets, "a")
    assert broker.groups.committed(WHO, "t", "g", 0) is None
    offsets[1] = offsets[1]._replace(generation=generation)
    await broker.coordinator.commit(WHO, "g", offsets, "a")
    assert [broker.groups.committed(WHO, "t", "g", each) for each in (0, 1)] == [5, 5]


async def test_a_static_member_that_comes_back_keeps_its_partitions_and_fences_its_predecessor(
    broker: Broker, topic: str
) -> None:
    static = Session(instance="worker-1", timeout_ms=10_000)
    a, b = Member(broker, "a", session=static), Member(broker, "b")
    first, second = await settle(a, b)
    generation = b.generation
    again = Member(broker, "a2", session=static)
    assert await again.beat() == first
    assert await b.beat() == second
    assert b.generation == generation
    with pytest.raises(ConsumerFenced):
        await a.commit(min(first), 1)
    with pytest.raises(InstanceFenced, match="instance id worker-1"):
        await a.beat()
    await again.commit(min(first), 1)


@pytest.mark.dense
async def test_positions_are_the_committed_offset_or_the_start_or_the_end(broker: Broker, topic: str) -> None:
    await produce(broker, "t", [b"x"] * 3, partition=0)
    await broker.groups.commit(WHO, "t", "g", 1, 2)
    a = Member(broker, "a")
    await a.beat()
    assert [(each.position, each.committed) for each in a.last] == [(0, False), (2, True), (0, False), (0, False)]
    assert [each.generation for each in a.last] == [1] * 4
    await a.beat()
    assert [each.position for each in a.last] == [0] * 4  # listed, so the member knows
    await a.leave()
    b = Member(broker, "b", session=Session("latest", timeout_ms=10_000))
    await b.beat()
    assert [each.position for each in b.last] == [3, 2, 0, 0]


async def test_a_topic_that_is_created_again_is_granted_again(broker: Broker, topic: str) -> None:
    a = Member(broker, "a")
    await a.beat()
    before = dict(a.owned)
    await broker.topics.delete(WHO, "t")
    assert await a.beat() == set()
    await broker.topics.create(WHO, "t", TopicConfig(partitions=6))
    await broker.coordinator.sweep()
    assert await a.beat() == {0, 1, 2, 3, 4, 5}
    assert a.owned[TopicPartition("t", 0)] > before[TopicPartition("t", 0)]
    with pytest.raises(ConsumerFenced):
        await broker.coordinator.commit(WHO, "g", [MemberOffset("t", 0, before[TopicPartition("t", 0)], 9)], "a")
    [info] = broker.groups.describe(WHO, "g")
    assert info.members == ("member/a",)


async def test_a_topic_that_is_created_again_while_a_session_ends_is_granted_again(
    broker: Broker, topic: str, clock: ManualClock
) -> None:
    a, b = Member(broker, "a"), Member(broker, "b")
    await settle(a, b)
    clock.advance(6)
    await a.beat()
    before = dict(a.owned)
    await broker.topics.delete(WHO, "t")
    await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
    clock.advance(5)
    await broker.coordinator.sweep()
    assert await a.beat() == {0, 1, 2, 3}
    assert all(a.owned[each] > generation for each, generation in before.items())
    [info] = broker.groups.describe(WHO, "g")
    assert info.members == ("member/a",)


async def test_a_topic_that_is_deleted_while_a_session_ends_is_taken_away(
    broker: Broker, topic: str, clock: ManualClock
) -> None:
    await broker.topics.create(WHO, "u", TopicConfig(partitions=2))
    a, b = Member(broker, "a", ["t", "u"]), Member(broker, "b", ["t", "u"])
    await settle(a, b)
    clock.advance(6)
    await a.beat()
    await broker.topics.delete(WHO, "t")
    clock.advance(5)
    await broker.coordinator.sweep()
    await a.beat()
    assert set(a.owned) == {TopicPartition("u", 0), TopicPartition("u", 1)}
    consumers = broker.coordinator.info("g")
    assert consumers is not None
    assert [each.owned for each in consumers.members] == [set(a.owned)]


async def test_a_topic_that_nobody_subscribes_to_any_more_is_kept_until_it_is_given_up(
    broker: Broker, topic: str
) -> None:
    await broker.topics.create(WHO, "u", TopicConfig(partitions=1))
    a = Member(broker, "a", ["t", "u"])
    await a.beat()
    a.topics = ["t"]
    assert await a.beat(release=False) == {0, 1, 2, 3}
    await a.commit(0, 7, topic="u")
    assert broker.groups.committed(WHO, "u", "g", 0) == 7
    del a.owned[TopicPartition("u", 0)]
    await a.beat()
    consumers = broker.coordinator.info("g")
    assert consumers is not None
    assert {each.topic for each in consumers.members[0].owned} == {"t"}


async def test_a_topic_that_grows_is_divided_again_and_nothing_moves(
    broker: Broker, engine: Engine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = engine.topics()["t"]
    smaller = replace(info, config=replace(info.config, partitions=2))
    a = Member(broker, "a")
    with monkeypatch.context() as before:
        before.setattr(engine, "topics", lambda: {"t": smaller})
        assert await a.beat() == {0, 1}
    owned = dict(a.owned)
    assert await a.beat() == {0, 1, 2, 3}
    assert owned.items() < a.owned.items()


async def test_members_read_different_topics(broker: Broker, topic: str) -> None:
    await broker.topics.create(WHO, "u", TopicConfig(partitions=2))
    a, b = Member(broker, "a", ["t"]), Member(broker, "b", ["t", "u"])
    await settle(a, b)
    assert {each.topic for each in a.owned} == {"t"}
    assert {each for each in b.owned if each.topic == "u"} == {TopicPartition("u", 0), TopicPartition("u", 1)}
    b.topics = ["u"]
    await settle(a, b)
    assert len(a.owned) == 4
    assert {each.topic for each in b.owned} == {"u"}
    assert [info.members for info in broker.groups.describe(WHO, "g")] == [("member/a",), ("member/b",)]


async def test_members_partitions_and_generation_survive_a_crash(tmp_path: Path, clock: ManualClock) -> None:
    async with running(tmp_path, clock) as broker:
        await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
        a, b = Member(broker, "a"), Member(broker, "b")
        first, second = await settle(a, b)
        generation = a.generation
    clock.advance(3600)
    async with running(tmp_path, clock) as broker:
        info = broker.coordinator.info("g")
        assert info is not None
        assert [(each.id, {owned.partition for owned in each.owned}) for each in info.members] == [
            ("a", first),
            ("b", second),
        ]
        assert info.generation > generation
        a.broker = b.broker = broker
        assert await a.beat() == first
        await a.commit(min(first), 3)
        clock.advance(9)
        await a.beat()
        clock.advance(2)  # b did not come back
        await broker.coordinator.sweep()
        assert await a.beat() == {0, 1, 2, 3}
        generation = a.generation
        with pytest.raises(ConsumerFenced):
            await b.commit(min(second), 9)
    async with running(tmp_path, clock) as broker:
        a.broker = b.broker = broker
        with pytest.raises(ConsumerFenced):
            await b.commit(min(second), 9)
        assert await a.beat() == {0, 1, 2, 3}
        assert a.generation > generation


@pytest.mark.dense
async def test_added_partitions_are_read_from_their_start_also_after_a_crash_and_by_a_member_that_joins_later(
    tmp_path: Path, clock: ManualClock
) -> None:
    latest = Session("latest", timeout_ms=10_000)
    async with running(tmp_path, clock) as broker:
        await broker.topics.create(WHO, "t", TopicConfig(partitions=1))
        await produce(broker, "t", [b"x"] * 3, partition=0)
        a = Member(broker, "a", session=latest)
        await a.beat()
        assert [each.position for each in a.last] == [3]
        await a.leave()
        await broker.topics.add_partitions(WHO, "t", 2)
        await produce(broker, "t", [b"x"] * 3, partition=1)
    async with running(tmp_path, clock) as broker:
        b = Member(broker, "b", session=latest)
        await b.beat()
        assert [each.position for each in b.last] == [3, 0]
        await broker.topics.delete(WHO, "t")
        await broker.topics.create(WHO, "t", TopicConfig(partitions=1))
        await produce(broker, "t", [b"x"] * 3, partition=0)
        await b.beat()
        assert [each.position for each in b.last] == [0]


async def test_a_generation_never_goes_back_even_if_all_members_have_left(tmp_path: Path, clock: ManualClock) -> None:
    generations = []
    for member_id in "abc":
        async with running(tmp_path, clock) as broker:
            if not broker.topics.exists("t"):
                await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
            member = Member(broker, member_id)
            await member.beat()
            generations.append(member.generation)
            await member.leave()
    assert generations == sorted(set(generations))


@pytest.mark.embedded
async def test_a_grant_that_cannot_be_stored_is_not_told(tmp_path: Path, clock: ManualClock) -> None:
    disk = FaultyDisk()
    engine = make_engine(tmp_path, clock=clock, disk=disk)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
    a = Member(broker, "a")
    disk.disk_full()
    with pytest.raises(NoSpace):
        await a.beat()
    with pytest.raises(NoSpace):
        await a.beat()
    disk.disk_full_off()
    assert await a.beat() == {0, 1, 2, 3}
    await broker.close()
    await engine.close()


async def test_a_group_with_members_is_neither_reset_nor_deleted(broker: Broker, topic: str) -> None:
    a = Member(broker, "a")
    await a.beat()
    await a.commit(0, 1)
    with pytest.raises(InvalidRequest, match=r"group g has members \(1\): stop them, .* to reset it"):
        await broker.groups.reset_offset(WHO, "t", "g", 0, "earliest")
    with pytest.raises(InvalidRequest, match="to delete it"):
        await broker.groups.delete(WHO, "g")
    await a.leave()
    await broker.groups.reset_offset(WHO, "t", "g", 0, "earliest")
    await broker.groups.delete(WHO, "g")
    assert broker.coordinator.info("g") is None


async def test_deployed_clients_commit_to_the_same_group_unfenced(broker: Broker, topic: str) -> None:
    a = Member(broker, "a")
    await a.beat()
    await a.commit(0, 5)
    await broker.groups.commit(WHO, "t", "g", 0, 2)
    assert broker.groups.committed(WHO, "t", "g", 0) == 2
    await a.commit(0, 6)
    assert broker.groups.committed(WHO, "t", "g", 0) == 6


async def test_a_member_belongs_to_the_principal_that_joined(broker: Broker, topic: str) -> None:
    static = Session(instance="i")
    mine, other = Principal("ann"), Principal("bob")
    beat = Heartbeat("a", 0, static, {})
    assignment = await broker.coordinator.heartbeat(mine, "g", ["t"], beat)
    with pytest.raises(AccessDenied):
        await broker.coordinator.heartbeat(other, "g", ["t"], beat._replace(sequence=1))
    with pytest.raises(AccessDenied):
        await broker.coordinator.heartbeat(other, "g", ["t"], beat)
    with pytest.raises(AccessDenied, match="instance id i of group g"):
        await broker.coordinator.heartbeat(other, "g", ["t"], beat._replace(member="b"))
    with pytest.raises(AccessDenied):
        await broker.coordinator.leave(other, "g", ["t"], "a")
    first = assignment.partitions[0]
    with pytest.raises(AccessDenied):
        await broker.coordinator.commit(other, "g", [MemberOffset("t", 0, first.generation, 1)], "a")


async def test_what_makes_no_sense_is_refused_and_leaves_no_member(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def joining(member: str = "a", group: str = "g", topics: Sequence[str] = ("t",), **session: object) -> object:
        beat = Heartbeat(member, 0, Session(**session), {})  # type: ignore[arg-type]
        return broker.coordinator.heartbeat(WHO, group, topics, beat)

    for refused, error in (
        (joining(member=""), InvalidRequest),
        (joining(member="a\n"), InvalidRequest),
        (joining(group=""), InvalidRequest),
        (joining(instance="i" * 250), InvalidRequest),
        (joining(start="middle"), InvalidRequest),
        (joining(timeout_ms=999), InvalidRequest),
        (joining(timeout_ms=600_001), InvalidRequest),
        (joining(topics=[]), InvalidRequest),
        (joining(topics=["t"] * 101), InvalidRequest),
        (joining(topics=["missing"]), TopicNotFound),
    ):
        with pytest.raises(error):
            await refused  # type: ignore[misc]
    monkeypatch.setattr(broker.coordinator, "_limits", BrokerLimits(members_per_group_max=1))
    await joining()  # type: ignore[misc]
    with pytest.raises(LimitExceeded, match="group g has 1 members"):
        await joining(member="b")  # type: ignore[misc]
    monkeypatch.setattr(broker.coordinator, "_limits", BrokerLimits(partitions_per_group_max=3))
    with pytest.raises(LimitExceeded, match="4 partitions"):
        await joining(group="h")  # type: ignore[misc]
    await broker.topics.create(WHO, "u", TopicConfig())
    monkeypatch.setattr(broker.coordinator, "_limits", BrokerLimits(topics_per_group_max=1))
    with pytest.raises(LimitExceeded, match=r"2 topics.*limits\.topics_per_group_max"):
        await joining(group="h", topics=["t", "u"])  # type: ignore[misc]
    assert broker.coordinator.member_count == 1


async def test_members_count_towards_the_limit_of_all_groups(tmp_path: Path, clock: ManualClock) -> None:
    engine = make_engine(tmp_path, clock=clock)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(group_members_max=1), access=OpenAccess())
    await broker.start()
    await broker.topics.create(WHO, "t", TopicConfig(partitions=4))
    a, b = Member(broker, "a"), Member(broker, "b")
    await a.beat()
    with pytest.raises(LimitExceeded, match="group_members_max"):
        await b.beat()
    await broker.topics.create(WHO, "u", TopicConfig(partitions=1))
    a.topics = ["t", "u"]
    with pytest.raises(LimitExceeded, match="group_members_max"):
        await a.beat()
    a.topics = ["t"]
    assert await a.beat() == {0, 1, 2, 3}  # it is what it was before
    await a.leave()
    assert await b.beat() == {0, 1, 2, 3}
    await broker.close()
    await engine.close()


async def test_empty_groups_beyond_the_bound_are_forgotten(
    broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_module, "EMPTY_GROUPS_MAX", 1)
    for group in ("g1", "g2", "g3"):
        await broker.coordinator.heartbeat(WHO, group, ["t"], Heartbeat("a", 0, Session(), {}))
        await broker.coordinator.leave(WHO, group, ["t"], "a")
    await broker.coordinator.sweep()
    assert [broker.coordinator.info(group) is None for group in ("g1", "g2", "g3")] == [True, True, False]


async def test_heartbeats_come_faster_while_partitions_wait_for_their_owner(broker: Broker, topic: str) -> None:
    async def pause_ms(member: str, sequence: int, owned: dict[TopicPartition, int]) -> int:
        beat = Heartbeat(member, sequence, Session(timeout_ms=10_000), owned)
        return (await broker.coordinator.heartbeat(WHO, "g", ["t"], beat)).heartbeat_ms

    assert await pause_ms("a", 0, {}) == 1000
    assert await pause_ms("b", 0, {}) == 100
    assert await pause_ms("a", 1, {}) == 100
    assert await pause_ms("b", 1, {}) == 1000
    info = broker.coordinator.info("g")
    assert info is not None
    assert info.state == "stable"
