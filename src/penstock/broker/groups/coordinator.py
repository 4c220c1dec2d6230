"""The group coordinator: members of consumer groups, and which of them reads which partition.

A member heartbeats. Its first heartbeat (sequence 0) joins the group; each reply tells it which partitions it has. If a session ends
without a heartbeat, or a member leaves, its partitions go to others. The target assignment is made here, not by a client.

**Hand-over is cooperative.** A change of the target revokes a partition from its owner first: the owner's next reply does not contain it
any more. The owner keeps it until it sends a heartbeat that does not list it, and only then is it granted to its new owner. Partitions that
do not move are read without interruption.

**Generations fence commits.** The generation of a group rises with each change of its target assignment, and each grant of a partition
has the generation in which it was made. A commit names both the member and that generation. It is refused if the partition does not
belong to the member any more, or if that was an earlier grant.

**State survives a crash.** Members, their partitions and the generation are entries of the table `__members`. A grant is on disk before
the member learns of it, so a broker that starts again knows every possible owner; members get a full session to come back. What a
crash can undo is a release or the end of a session, and then the partition is given to nobody until that happens again.

A static member has an instance id. A new member with the same instance id takes its place and its partitions at once, and fences it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog

from penstock.background import Loop
from penstock.broker.access.checks import Operation, Principal, on_group_topics
from penstock.broker.groups.assignment import TopicPartition, assign
from penstock.broker.groups.membership import (
    Assigned,
    Assignment,
    ConsumerGroupInfo,
    Group,
    Heartbeat,
    Member,
    MemberInfo,
    MemberKey,
    MemberOffset,
    Session,
    StoredMember,
    Topic,
    drop_older_grants,
    known_topic,
    stored,
)
from penstock.broker.groups.offsets import OffsetKey, Offsets
from penstock.broker.part import Context, Part
from penstock.broker.table import Table
from penstock.errors import (
    AccessDenied,
    ConsumerFenced,
    GroupNotFound,
    InstanceFenced,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
)
from penstock.futures import shield
from penstock.log.api import follow_all
from penstock.names import NAME_BYTES_MAX, validate_group_name, validate_name

MEMBERS_TOPIC: Final = "__members"
HEARTBEATS_PER_SESSION: Final = 5
HEARTBEAT_MS_MAX: Final = 1_000
REBALANCING_HEARTBEAT_MS: Final = 100
"""While partitions wait to be handed over, so that a rebalance takes tenths of a second."""
EMPTY_GROUPS_MAX: Final = 10_000
"""Groups without members whose generation is remembered; those that have been empty for longest are forgotten first."""
SWEEP_S: Final = 0.5
STARTS: Final = ("earliest", "latest")
CHANGES_PER_APPEND_MAX: Final = 64
"""Each entry takes up to 1 MiB."""

_GROUP: Final = ""
"""Instead of a member: the key of the entry that holds the generation of the group."""

log = structlog.get_logger(__name__)


class Coordinator(Part):
    def __init__(self, context: Context, offsets: Offsets) -> None:
        super().__init__(context)
        self.stats = offsets.stats
        self._offsets = offsets
        self._groups: dict[str, Group] = {}
        self._empty: OrderedDict[str, None] = OrderedDict()
        """Groups without members, the one that has been empty for longest first."""
        self._table = Table(
            self._engine,
            MEMBERS_TOPIC,
            MemberKey,
            StoredMember,
            entries_max=self._limits.group_members_max + self._limits.groups_max,
            limit="limits.group_members_max",
            background=self.background,
        )
        self._sweeping: Loop | None = None

    async def start(self) -> None:
        """Load every group. Members get a full session to come back."""
        await self._table.load()
        now_s = self._clock.monotonic()
        for key, entry in self._table.items():
            group = self._groups.setdefault(key.group, Group(key.group))
            group.generation = max(group.generation, entry.generation)
            if key.member == _GROUP:
                group.initial = dict(entry.initial)
            else:
                self._restore(group, key.member, entry, now_s)
        for group in self._groups.values():
            if group.members:
                drop_older_grants(group)
                self._rebalance(group)
            else:
                self._empty[group.name] = None
        self._sweeping = self.background.loop("group_sessions", self._sweep_step, first_s=SWEEP_S)

    async def close(self) -> None:
        if self._sweeping is not None:
            await self._sweeping.stop()
        await self._table.close()

    # -- operations -------------------------------------------------------------------------------------------------------

    @on_group_topics(Operation.COMMIT)
    async def heartbeat(self, principal: Principal, group: str, topics: Sequence[str], beat: Heartbeat) -> Assignment:
        """Join the group with sequence 0, keep the session alive, release partitions that are not listed, and get new ones.

        Raises ConsumerFenced if the session has ended: the member has lost its partitions, and joins again under another id. Raises
        InstanceFenced if another member with the same instance id has joined.
        """
        if beat.sequence == 0:
            state, member = self._joined(principal, group, topics, beat)
        else:
            self._check_instance(group, beat)
            state, member = self._member(principal, group, beat.member)
        member.deadline_s = self._clock.monotonic() + member.session_ms / 1000
        if beat.sequence >= member.sequence:  # an older one may arrive late on a connection that was lost
            member.sequence = beat.sequence
            if member.topics != frozenset(topics):
                self._check_topics(state, topics)
                self._subscribe(state, member, topics)
            for partition in [each for each in member.owned if each not in member.target and each not in beat.owned]:
                del member.owned[partition]
                member.stored = False
        self._grant(state, member)
        news = [each for each in member.target if each in member.owned and beat.owned.get(each) != member.owned[each]]
        await follow_all(self._engine.partition(*each) for each in news)
        assigned = [self._assigned(state, member, each, beat) for each in sorted(member.owned) if each in member.target]
        heartbeat_ms = min(HEARTBEAT_MS_MAX, member.session_ms // HEARTBEATS_PER_SESSION)
        if not state.is_balanced():
            heartbeat_ms = min(heartbeat_ms, REBALANCING_HEARTBEAT_MS)
        assignment = Assignment(state.generation, heartbeat_ms, assigned)
        await self._store(state)
        if state.members.get(member.id) is not member:
            raise _fenced(member.id, group)
        return assignment

    @on_group_topics(Operation.COMMIT)
    async def leave(self, principal: Principal, group: str, topics: Sequence[str], member_id: str) -> None:
        """End the session of a member now. One that is gone already is no error."""
        try:
            state, member = self._member(principal, group, member_id)
        except ConsumerFenced:
            return
        self._remove(state, member)
        self._rebalance(state)
        await self._store(state)

    @on_group_topics(Operation.COMMIT, "offsets", lambda offsets: [each.topic for each in offsets])
    def commit(
        self, principal: Principal, group: str, offsets: Sequence[MemberOffset], member_id: str
    ) -> asyncio.Future[None]:
        """Commit offsets of partitions that the member owns, all or none. Raises ConsumerFenced if it does not own one of them."""
        try:
            _, member = self._member(principal, group, member_id)
            for each in offsets:
                granted = member.owned.get(TopicPartition(each.topic, each.partition))
                if granted != each.generation:
                    raise ConsumerFenced(
                        f"consumer fenced: member {member_id} of group {group} does not own {each.topic}-{each.partition} in generation "
                        f"{each.generation}: its records are read by another member, discard them"
                    )
        except ConsumerFenced:
            self.stats.fenced_commits += 1
            raise
        return self._offsets.commit_all({OffsetKey(each.topic, group, each.partition): each.offset for each in offsets})

    # -- for the broker ---------------------------------------------------------------------------------------------------

    def info(self, group: str) -> ConsumerGroupInfo | None:
        """Return the members of a group, None if it never had any."""
        state = self._groups.get(group)
        if state is None:
            return None
        now_s = self._clock.monotonic()
        members = [
            MemberInfo(
                each.id,
                each.instance,
                each.principal,
                each.topics,
                each.session_ms,
                max(0, each.session_ms - round((each.deadline_s - now_s) * 1000)),
                frozenset(each.owned),
            )
            for each in sorted(state.members.values(), key=lambda each: each.id)
        ]
        label = "empty" if not members else "stable" if state.is_balanced() else "rebalancing"
        return ConsumerGroupInfo(state.generation, label, members)

    @property
    def member_count(self) -> int:
        return sum(len(state.members) for state in self._groups.values())

    def check_unused(self, group: str, topic: str | None, action: str) -> None:
        """Raises InvalidRequest if members read the group's partitions: they would overwrite what is changed under them."""
        state = self._groups.get(group)
        if state is not None:
            self._expire(state)
            count = sum(topic is None or topic in member.topics for member in state.members.values())
            if count:
                raise InvalidRequest(
                    f"group {group} has members ({count}): stop them, or wait until their sessions end, to {action} it"
                )

    async def forget(self, group: str) -> bool:
        """Delete what is stored of a group without members; return whether there was anything."""
        state = self._groups.get(group)
        if state is None or state.members:
            return False
        del self._groups[group]
        self._empty.pop(group, None)
        async with state.storing:
            members = [*sorted(state.removed), _GROUP]
            for at in range(0, len(members), CHANGES_PER_APPEND_MAX):
                await self._table.change(
                    [(MemberKey(group, each), None) for each in members[at : at + CHANGES_PER_APPEND_MAX]]
                )
        return True

    async def sweep(self) -> None:
        """End sessions without heartbeats, and divide topics again whose partitions have changed."""
        for state in [each for each in self._groups.values() if each.members or each.removed or not each.stored]:
            self._expire(state)
            self._refresh_topics(state)
            await self._store(state)
        while len(self._empty) > EMPTY_GROUPS_MAX:
            await self.forget(next(iter(self._empty)))

    async def _sweep_step(self) -> float:
        await self.sweep()
        return SWEEP_S

    # -- members ----------------------------------------------------------------------------------------------------------

    def _member(self, principal: Principal, group: str, member_id: str) -> tuple[Group, Member]:
        """Return a member whose session lasts. Raises ConsumerFenced, AccessDenied for a member of someone else."""
        state = self._groups.get(group)
        member = None if state is None else state.members.get(member_id)
        if state is None or member is None:
            raise _fenced(member_id, group)
        if member.deadline_s <= self._clock.monotonic():
            self._expire(state)
            raise _fenced(member_id, group)
        if member.principal != principal.name:
            raise AccessDenied(f"unauthorized: member {member_id} of group {group} is owned by another user")
        self._refresh_topics(state)
        return state, member

    def _check_instance(self, group: str, beat: Heartbeat) -> None:
        instance = beat.session.instance
        state = self._groups.get(group)
        if not instance or state is None or beat.member in state.members:
            return
        if any(each.instance == instance for each in state.members.values()):
            raise InstanceFenced(
                f"instance fenced: another member of group {group} has joined with instance id {instance}: "
                "give each instance an id of its own"
            )

    def _joined(self, principal: Principal, group: str, topics: Sequence[str], beat: Heartbeat) -> tuple[Group, Member]:
        """Return the member that a first heartbeat is of. Sent again after a lost connection, it finds the member there."""
        validate_group_name(group, self._limits.group_name_bytes_max)
        validate_name(beat.member, "member id", NAME_BYTES_MAX)
        if beat.session.instance:
            validate_name(beat.session.instance, "instance id", NAME_BYTES_MAX)
        if beat.session.start not in STARTS:
            raise InvalidRequest(f"start {beat.session.start!r} is not known: use {' or '.join(STARTS)}")
        limits = self._limits
        if not limits.group_session_ms_min <= beat.session.timeout_ms <= limits.group_session_ms_max:
            raise InvalidRequest(
                f"session timeout {beat.session.timeout_ms} ms is out of range: use {limits.group_session_ms_min} to "
                f"{limits.group_session_ms_max}, or change limits.group_session_ms_min or limits.group_session_ms_max"
            )
        state = self._groups.get(group) or Group(group)
        self._expire(state)
        if beat.member in state.members:
            return self._member(principal, group, beat.member)
        self._refresh_topics(state)
        self._check_topics(state, topics)
        return state, self._admit(state, principal, topics, beat)

    def _check_topics(self, state: Group, topics: Sequence[str]) -> None:
        """Raises TopicNotFound for a topic that does not exist, InvalidRequest, LimitExceeded."""
        limits = self._limits
        if not 1 <= len(topics) <= limits.topics_per_member_max:
            raise InvalidRequest(
                f"a member subscribes to {len(topics)} topics: use 1 to {limits.topics_per_member_max}, or raise "
                "limits.topics_per_member_max"
            )
        existing = self._engine.topics()
        for topic in topics:
            self._engine.topic(topic)
        group_topics = state.subscribed.union(topics)
        if len(group_topics) > limits.topics_per_group_max:
            raise LimitExceeded(
                f"group {state.name} would read {len(group_topics)} topics: subscribe to fewer, or raise limits.topics_per_group_max "
                f"from {limits.topics_per_group_max}"
            )
        partitions = sum(existing[topic].config.partitions for topic in group_topics if topic in existing)
        if partitions > limits.partitions_per_group_max:
            raise LimitExceeded(
                f"group {state.name} would read {partitions} partitions: subscribe to fewer topics, or raise "
                f"limits.partitions_per_group_max from {limits.partitions_per_group_max}"
            )

    def _admit(self, state: Group, principal: Principal, topics: Sequence[str], beat: Heartbeat) -> Member:
        instance = beat.session.instance
        replaced = next((each for each in state.members.values() if instance and each.instance == instance), None)
        if replaced is None and len(state.members) >= self._limits.members_per_group_max:
            raise LimitExceeded(
                f"group {state.name} has {len(state.members)} members, the most allowed: stop some or raise limits.members_per_group_max"
            )
        if replaced is not None and replaced.principal != principal.name:
            raise AccessDenied(f"unauthorized: instance id {instance} of group {state.name} is owned by another user")
        member = Member(beat.member, principal.name, topics, beat.session, self._clock.monotonic())
        self._announce(state, member)
        self._groups[state.name] = state
        self._empty.pop(state.name, None)
        state.members[member.id] = member
        if replaced is not None:
            member.owned, member.target = replaced.owned, replaced.target
            self._remove(state, replaced)
        if replaced is None or replaced.topics != member.topics:
            self._rebalance(state)
        return member

    def _announce(self, state: Group, member: Member) -> None:
        """Count the member among the readers of its topics. Raises LimitExceeded."""
        session_id = _session_id(member.id)
        try:
            for topic in sorted(member.topics):
                self._offsets.join(topic, state.name, session_id)
        except PenstockError:
            self._offsets.leave(session_id)
            raise

    def _subscribe(self, state: Group, member: Member, topics: Sequence[str]) -> None:
        before, member.topics = member.topics, frozenset(topics)
        self._offsets.leave(_session_id(member.id))
        try:
            self._announce(state, member)
        except PenstockError:
            member.topics = before
            with suppress(PenstockError):
                self._announce(state, member)
            raise
        member.stored = False
        self._rebalance(state)

    def _remove(self, state: Group, member: Member) -> None:
        del state.members[member.id]
        state.removed.add(member.id)
        self._offsets.leave(_session_id(member.id))
        if not state.members:
            self._empty[state.name] = None

    def _expire(self, state: Group) -> None:
        now_s = self._clock.monotonic()
        expired = [member for member in state.members.values() if member.deadline_s <= now_s]
        for member in expired:
            log.info("group_session_expired", group=state.name, member=member.id, session_ms=member.session_ms)
            self._remove(state, member)
        if expired:
            self.stats.expired_sessions += len(expired)
            self._rebalance(state)

    def _restore(self, group: Group, member_id: str, entry: StoredMember, now_s: float) -> None:
        session = Session(entry.start, entry.instance, entry.session_ms)
        member = Member(member_id, entry.principal, entry.topics, session, now_s)
        topics = self._engine.topics()
        for name, (topic_id, generations) in entry.owned.items():
            info = topics.get(name)
            if info is not None and info.id == topic_id:
                member.owned |= {TopicPartition(name, each): number for each, number in generations.items()}
        member.stored = True
        group.members[member_id] = member
        with suppress(LimitExceeded):
            self._announce(group, member)

    # -- partitions -------------------------------------------------------------------------------------------------------

    def _refresh_topics(self, state: Group) -> None:
        """Divide the topics again if their partitions have changed, or if one of them was deleted or created."""
        if state.members and self._existing_topics(state) != state.topics:
            self._rebalance(state)

    def _existing_topics(self, state: Group) -> dict[str, Topic]:
        existing = self._engine.topics()
        return {
            name: Topic(info.id, info.config.partitions)
            for name in state.subscribed
            if (info := existing.get(name)) is not None
        }

    def _rebalance(self, state: Group) -> None:
        """Make a new target assignment, in a new generation. What was granted in topics that are deleted by now ends."""
        before = state.topics
        state.subscribed = frozenset().union(
            *(member.topics for member in state.members.values()),
            *((partition.topic for partition in member.owned) for member in state.members.values()),
        )
        state.topics = self._existing_topics(state)
        self._follow_topics(state, before)
        current = {partition: member.id for member in state.members.values() for partition in member.target}
        target = assign(
            {name: topic.partitions for name, topic in state.topics.items()},
            {member.id: member.topics for member in state.members.values()},
            current,
        )
        for member in state.members.values():
            member.target = set()
        for partition, member_id in target.items():
            state.members[member_id].target.add(partition)
        state.generation += 1
        state.stored = state.balanced = False
        self.stats.rebalances += 1

    def _follow_topics(self, state: Group, before: Mapping[str, Topic]) -> None:
        """Take away partitions of topics that were deleted, and count members among the readers of those that were created."""
        gone = {name for name, topic in before.items() if name not in state.topics or state.topics[name].id != topic.id}
        created = {name for name in state.topics if name in gone or name not in before}
        if state.members:
            state.initial = {
                name: known_topic(state.initial.get(name), state.topics.get(name))
                for name in state.subscribed
                if name in state.initial or name in state.topics
            }
        for member in state.members.values():
            for partition in [each for each in member.owned if each.topic in gone]:
                del member.owned[partition]
                member.stored = False
            member.target = {each for each in member.target if each.topic not in gone}
            for name in created & member.topics:
                with suppress(LimitExceeded):
                    self._offsets.join(name, state.name, _session_id(member.id))

    def _grant(self, state: Group, member: Member) -> None:
        missing = [partition for partition in member.target if partition not in member.owned]
        if not missing:
            return
        taken = set().union(*(each.owned for each in state.members.values()))
        for partition in missing:
            if partition not in taken:
                member.owned[partition] = state.generation
                member.stored = False

    def _assigned(self, state: Group, member: Member, partition: TopicPartition, beat: Heartbeat) -> Assigned:
        generation = member.owned[partition]
        if beat.owned.get(partition) == generation:
            return Assigned(*partition, generation, 0, committed=True)
        handle = self._engine.partition(*partition)
        try:
            committed = self._offsets.committed(partition.topic, state.name, partition.partition)
        except GroupNotFound:
            committed = None
        if committed is not None:
            return Assigned(*partition, generation, max(committed, handle.start_offset), committed=True)
        is_added = partition.partition >= state.initial[partition.topic].partitions
        position = handle.start_offset if member.start == "earliest" or is_added else handle.committed_end
        return Assigned(*partition, generation, position, committed=False)

    # -- storing ----------------------------------------------------------------------------------------------------------

    async def _store(self, state: Group) -> None:
        """Return once everything that has changed is on disk. What fails is written with the next heartbeat, whose reply waits for it."""
        async with state.storing:
            changed = [member for member in state.members.values() if not member.stored]
            removed, state.removed = state.removed, set()
            changes: list[tuple[MemberKey, StoredMember | None]] = [
                (MemberKey(state.name, member_id), None) for member_id in removed
            ]
            changes += [(MemberKey(state.name, member.id), stored(state, member)) for member in changed]
            if not state.stored:
                changes.append((MemberKey(state.name, _GROUP), StoredMember(state.generation, initial=state.initial)))
            state.stored = True
            for member in changed:
                member.stored = True
            try:
                for at in range(0, len(changes), CHANGES_PER_APPEND_MAX):
                    await shield(self._table.change(changes[at : at + CHANGES_PER_APPEND_MAX]))
            except BaseException:
                state.stored = False
                state.removed |= removed
                for member in changed:
                    member.stored = False
                raise


def _session_id(member_id: str) -> str:
    """Return the id under which a member is counted among the sessions that read a topic. Those of connections begin differently."""
    return f"member/{member_id}"


def _fenced(member_id: str, group: str) -> ConsumerFenced:
    return ConsumerFenced(
        f"consumer fenced: {member_id} is not a member of group {group}: its session has ended; join again under another id"
    )
