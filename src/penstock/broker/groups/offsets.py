"""Offsets of groups: named places in topics, committed through the log, and who is reading under that name.

A group is a pair of topic and name. It exists once an offset was committed in it or a session joined it. A committed offset is the
next one to read, one for each partition, in the table `__groups`. Sessions that joined are in memory only: they are gone after a
restart, and so are groups that had nothing else. Until then such a group stays listed when its last session has left, because
administrators of FlyMQ look for it there; it is idle, and the oldest idle groups make way for others.

An offset belongs to the topic that existed when it was committed, told by the topic's id. Deleting a topic deletes its offsets;
should a crash come in between, or a commit arrive late, the id no longer fits and the offset counts for nothing. So a topic created
again under an old name is read from its start, never from the middle. An offset committed before a topic exists ends the same way.

An offset is stored with the log epoch of its partition. If the log was cut below it since (see `truncation`), the group is moved back to
the cut when its offsets are loaded, so that it does not skip the records that are written there next.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import structlog

from penstock.background import Background
from penstock.broker.groups.truncation import position_of_client, valid_position
from penstock.broker.limits import INT64_MAX, BrokerLimits
from penstock.broker.table import PreparedChange, Table
from penstock.clock import Clock
from penstock.errors import (
    GroupNotFound,
    InvalidRequest,
    LimitExceeded,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
)
from penstock.futures import shield
from penstock.log.api import PARTITIONS_MAX, Engine, TopicInfo
from penstock.names import validate_group_name, validate_topic_name

GROUPS_TOPIC: Final = "__groups"
# An offset with its topic's id takes about 60 bytes.
OFFSET_BYTES_MAX: Final = 256
# Tombstones or offsets of one append: 3 MB at most.
CHANGES_PER_APPEND_MAX: Final = 4096
IDLE_GROUPS_MAX: Final = 1000
"""Groups without offsets that are remembered after their last session has left."""

log = structlog.get_logger(__name__)


class OffsetKey(NamedTuple):
    topic: str
    group: str
    partition: int


class CommittedOffset(msgspec.Struct, frozen=True, array_like=True, gc=False):
    offset: int
    committed_ms: int
    topic_id: str
    """Empty where the topic did not exist."""
    epoch: int | None = None
    """The partition's log epoch at the commit; None in entries of releases that did not store it."""


@dataclass(slots=True)
class GroupStats:
    """Plain numbers, exported on scrape."""

    truncated_offsets: int = 0
    """Moved back to where the log was cut."""
    rebalances: int = 0
    """New target assignments of consumer groups."""
    expired_sessions: int = 0
    """Members that sent no heartbeat within their session timeout."""
    fenced_commits: int = 0
    """Commits of members that did not own the partition any more."""


class GroupOffset(NamedTuple):
    partition: int
    offset: int
    committed_ms: int


class GroupInfo(NamedTuple):
    topic: str
    group: str
    members: tuple[str, ...]
    """Ids of the sessions that joined, sorted."""
    offsets: tuple[GroupOffset, ...]
    """By partition."""


class PreparedOffsets(NamedTuple):
    """Offsets to be committed as one part of a larger append."""

    change: PreparedChange[OffsetKey, CommittedOffset]
    settled: Callable[[], None]
    """To be called once, when the append has come back or could not be made."""


class _Group:
    __slots__ = ("arriving", "joined", "members", "offsets")

    def __init__(self) -> None:
        self.offsets: dict[int, CommittedOffset] = {}
        self.members: set[str] = set()
        self.joined = False
        """Whether a session has joined, be it gone by now."""
        self.arriving = 0
        """First commits in flight: they hold the group's place under the limit."""


_Pair = tuple[str, str]


class Offsets:
    def __init__(
        self, engine: Engine, clock: Clock, limits: BrokerLimits, background: Background | None = None
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._limits = limits
        self._groups: dict[_Pair, _Group] = {}
        self._idle: OrderedDict[_Pair, None] = OrderedDict()
        """Groups with neither offsets nor members, the one that has been so for longest first."""
        self._sessions: dict[str, set[_Pair]] = {}
        self._member_count = 0
        self.stats = GroupStats()
        self._table = Table(
            engine,
            GROUPS_TOPIC,
            OffsetKey,
            CommittedOffset,
            entries_max=limits.group_offsets_max,
            limit="limits.group_offsets_max",
            background=background,
            value_bytes_max=OFFSET_BYTES_MAX,
            on_change=self._changed,
            shared=True,
        )

    async def start(self) -> None:
        await self._table.load()

    async def catch_up(self) -> None:
        await self._table.catch_up()

    async def lead(self) -> None:
        """Delete and move back what a crash or another node has left."""
        await self._delete_leftovers([key for key, entry in self._table.items() if not self._counts(key.topic, entry)])
        await self._move_back_to_cuts()

    async def close(self) -> None:
        await self._table.close()

    # -- offsets ----------------------------------------------------------------------------------------------------------

    def commit(self, topic: str, group: str, partition: int, offset: int) -> asyncio.Future[None]:
        """Done when the offset is committed. Creates the group; the topic need not exist."""
        return self.commit_all({OffsetKey(topic, group, partition): offset})

    def commit_all(self, offsets: Mapping[OffsetKey, int]) -> asyncio.Future[None]:
        """Commit several offsets, all or none."""
        arriving: list[_Pair] = []
        try:
            future = self._table.change([(key, self._entry(key, offset, arriving)) for key, offset in offsets.items()])
        except PenstockError:
            self._settle(arriving)
            raise
        if not arriving:
            return future
        future.add_done_callback(lambda _: self._settle(arriving))
        # Who cancels the wait does not cancel the commit: the group keeps its place under the limit until that has come back.
        return shield(future)

    def prepare(self, offsets: Mapping[OffsetKey, int]) -> PreparedOffsets:
        """The commit of several offsets as one part of a larger append. Raises where `commit` of one of them would."""
        arriving: list[_Pair] = []
        try:
            change = self._table.prepare([(key, self._entry(key, offset, arriving)) for key, offset in offsets.items()])
        except PenstockError:
            self._settle(arriving)
            raise
        return PreparedOffsets(change, lambda: self._settle(arriving))

    def check(self, key: OffsetKey, offset: int) -> None:
        """Raises where the offset could not be committed whatever the state of the broker."""
        if not 0 <= offset <= INT64_MAX:
            raise InvalidRequest(
                f"offset {offset} is out of range: an offset is the next one to read, 0 to {INT64_MAX}"
            )
        info = self._engine.topics().get(key.topic)
        partitions = PARTITIONS_MAX if info is None else info.config.partitions
        if not 0 <= key.partition < partitions:
            raise PartitionNotFound(
                f"partition {key.partition} not found: {key.topic} has partitions 0 to {partitions - 1}"
            )
        if (key.topic, key.group) not in self._groups:
            validate_topic_name(key.topic)
            validate_group_name(key.group, self._limits.group_name_bytes_max)

    def _entry(self, key: OffsetKey, offset: int, arriving: list[_Pair]) -> CommittedOffset:
        """What is stored for the offset; a group without any is admitted and noted in `arriving`, to be settled after the append."""
        self.check(key, offset)
        pair = key.topic, key.group
        state = self._wake(pair)
        if not state.offsets:
            state.arriving += 1
            arriving.append(pair)
        info = self._engine.topics().get(key.topic)
        if info is None:
            return CommittedOffset(offset, self._clock.now_ms(), "")
        return CommittedOffset(offset, self._clock.now_ms(), info.id, self._checked_epoch(info, key, offset))

    def _checked_epoch(self, info: TopicInfo, key: OffsetKey, offset: int) -> int:
        """Return the partition's epoch. Raises OffsetOutOfRange for an offset beyond the end of a log that was cut.

        A reader that commits it has read records that are lost, and would skip those that get their offsets.
        """
        partition = self._engine.partition(info.name, key.partition)
        cut = position_of_client(partition, offset)
        if cut < offset:
            raise OffsetOutOfRange(
                f"offset out of range: {offset} is beyond the end of {key.topic}-{key.partition}, which is {partition.committed_end}; "
                f"the log lost records in a crash, or is a backup that was restored, and was cut at offset {cut}: continue there"
            )
        return partition.epoch

    def committed(self, topic: str, group: str, partition: int) -> int | None:
        """The next offset to read, None if none was committed. Raises GroupNotFound if there is no such group."""
        state = self._groups.get((topic, group))
        if state is not None:
            entry = state.offsets.get(partition)
            if entry is not None and self._counts(topic, entry):
                return entry.offset
            if self._known(topic, state):
                return None
        raise _not_found(group, topic)

    async def delete(self, group: str, topic: str | None) -> None:
        """Delete the group's offsets and forget its members, in one topic or in all. Raises GroupNotFound if there is none."""
        pairs = [pair for pair, state in self._named(group, topic) if self._known(pair[0], state)]
        if not pairs:
            raise _not_found(group, topic)
        keys = [OffsetKey(*pair, partition) for pair in pairs for partition in self._groups[pair].offsets]
        for at in range(0, len(keys), CHANGES_PER_APPEND_MAX):
            await self._table.change([(key, None) for key in keys[at : at + CHANGES_PER_APPEND_MAX]])
        self._forget_members(pairs)

    async def forget_topic(self, topic: str) -> None:
        """The topic was deleted: so are its offsets, and nobody reads it any more."""
        pairs = [pair for pair in self._groups if pair[0] == topic]
        keys = [OffsetKey(*pair, partition) for pair in pairs for partition in self._groups[pair].offsets]
        self._forget_members(pairs)
        await self._delete_leftovers(keys)

    async def _delete_leftovers(self, keys: Sequence[OffsetKey]) -> None:
        # Their topic ids fit no topic, so they count for nothing already; where the disk is full they may stay until the next start.
        with suppress(PenstockError):
            for at in range(0, len(keys), CHANGES_PER_APPEND_MAX):
                await self._table.change([(key, None) for key in keys[at : at + CHANGES_PER_APPEND_MAX]])

    async def _move_back_to_cuts(self) -> None:
        moved: list[tuple[OffsetKey, CommittedOffset]] = []
        for pair, state in self._groups.items():
            for index, entry in state.offsets.items():
                if not entry.topic_id or not self._counts(pair[0], entry):
                    continue
                partition = self._engine.partition(pair[0], index)
                offset = valid_position(partition, entry.offset, entry.epoch)
                if offset < entry.offset:
                    log.warning(
                        "group_offset_truncated",
                        topic=pair[0],
                        partition=index,
                        group=pair[1],
                        committed=entry.offset,
                        cut=offset,
                        reason="the log lost its tail after this offset was committed; the group continues at the cut",
                    )
                    entry = msgspec.structs.replace(entry, offset=offset, epoch=partition.epoch)
                    moved.append((OffsetKey(*pair, index), entry))
        for key, entry in moved:
            self._groups[key.topic, key.group].offsets[key.partition] = entry
        self.stats.truncated_offsets += len(moved)
        try:
            for at in range(0, len(moved), CHANGES_PER_APPEND_MAX):
                await self._table.change(moved[at : at + CHANGES_PER_APPEND_MAX])
        except PenstockError as error:
            # In memory they are right, and the entries on disk are moved back again at the next start.
            log.warning("group_offsets_not_stored", offsets=len(moved), error=str(error))

    # -- members ----------------------------------------------------------------------------------------------------------

    def join(self, topic: str, group: str, session_id: str) -> None:
        """A session reads the topic under the group's name, until it leaves. Joining twice is joining once."""
        pair = (topic, group)
        joined = self._sessions.setdefault(session_id, set())
        if pair in joined:
            return
        try:
            if self._member_count >= self._limits.group_members_max:
                raise LimitExceeded(
                    f"{self._member_count} subscriptions are open, the most allowed: close some sessions or raise limits.group_members_max"
                )
            validate_topic_name(topic)
            validate_group_name(group, self._limits.group_name_bytes_max)
            state = self._wake(pair)
        except PenstockError:
            if not joined:
                del self._sessions[session_id]
            raise
        state.members.add(session_id)
        state.joined = True
        joined.add(pair)
        self._member_count += 1

    def leave(self, session_id: str) -> None:
        """The session is gone; so are its subscriptions, if it had any."""
        for pair in self._sessions.pop(session_id, ()):
            state = self._groups[pair]
            state.members.remove(session_id)
            self._member_count -= 1
            self._drop_if_empty(state, pair)

    def _forget_members(self, pairs: Sequence[_Pair]) -> None:
        for pair in pairs:
            state = self._groups.get(pair)
            if state is not None:
                for session_id in state.members:
                    self._sessions[session_id].remove(pair)
                self._member_count -= len(state.members)
                state.members.clear()
                state.joined = False
                self._idle.pop(pair, None)
                self._drop_if_empty(state, pair)

    # -- looking ----------------------------------------------------------------------------------------------------------

    def infos(self) -> Iterator[GroupInfo]:
        """Iterate over every group, by topic and name. To be taken without waiting in between."""
        return (
            self._info(pair, self._groups[pair])
            for pair in sorted(self._groups)
            if self._known(pair[0], self._groups[pair])
        )

    def unsorted_infos(self) -> Iterator[GroupInfo]:
        """Iterate over every group, in no order. To be taken without waiting in between."""
        return (self._info(pair, state) for pair, state in self._groups.items() if self._known(pair[0], state))

    def __len__(self) -> int:
        return len(self._groups)

    def describe(self, group: str, topic: str | None) -> list[GroupInfo]:
        """The group in one topic or in each topic it reads. Raises GroupNotFound if there is none."""
        found = [self._info(pair, state) for pair, state in self._named(group, topic) if self._known(pair[0], state)]
        if not found:
            raise _not_found(group, topic)
        return found

    def _named(self, group: str, topic: str | None) -> list[tuple[_Pair, _Group]]:
        if topic is not None:
            state = self._groups.get((topic, group))
            return [] if state is None else [((topic, group), state)]
        return sorted(
            ((pair, state) for pair, state in self._groups.items() if pair[1] == group), key=lambda item: item[0]
        )

    def _info(self, pair: _Pair, state: _Group) -> GroupInfo:
        offsets = (
            GroupOffset(partition, entry.offset, entry.committed_ms)
            for partition, entry in sorted(state.offsets.items())
            if self._counts(pair[0], entry)
        )
        return GroupInfo(*pair, tuple(sorted(state.members)), tuple(offsets))

    def _known(self, topic: str, state: _Group) -> bool:
        return state.joined or any(self._counts(topic, entry) for entry in state.offsets.values())

    def _counts(self, topic: str, entry: CommittedOffset) -> bool:
        """Whether the offset was committed for the topic that bears the name now."""
        info = self._engine.topics().get(topic)
        return entry.topic_id == ("" if info is None else info.id)

    # -- keeping ----------------------------------------------------------------------------------------------------------

    def _wake(self, pair: _Pair) -> _Group:
        """Return the group to be used, created if it does not exist."""
        self._idle.pop(pair, None)
        return self._groups.get(pair) or self._admit(pair)

    def _admit(self, pair: _Pair) -> _Group:
        if len(self._groups) >= self._limits.groups_max and self._idle:
            self._forget_idle()
        if len(self._groups) >= self._limits.groups_max:
            raise LimitExceeded(
                f"there are {len(self._groups)} groups, the most allowed: delete some or raise limits.groups_max"
            )
        state = self._groups[pair] = _Group()
        return state

    def _changed(self, key: OffsetKey, entry: CommittedOffset | None) -> None:
        pair = key.topic, key.group
        state = self._groups.get(pair)
        if entry is not None:
            if state is None:
                state = self._groups[pair] = _Group()
            self._idle.pop(pair, None)
            state.offsets[key.partition] = entry
        elif state is not None:
            state.offsets.pop(key.partition, None)
            self._drop_if_empty(state, pair)

    def _settle(self, arriving: Sequence[_Pair]) -> None:
        for pair in arriving:
            state = self._groups[pair]
            state.arriving -= 1
            self._drop_if_empty(state, pair)

    def _drop_if_empty(self, state: _Group, pair: _Pair) -> None:
        """Forget a group that nothing is left of, or keep it as idle if a session has been in it."""
        if state.offsets or state.members or state.arriving or self._groups.get(pair) is not state:
            return
        if not state.joined:
            del self._groups[pair]
            return
        self._idle[pair] = None
        if len(self._idle) > IDLE_GROUPS_MAX:
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Forget the group that has been idle for longest."""
        pair, _ = self._idle.popitem(last=False)
        del self._groups[pair]


def _not_found(group: str, topic: str | None) -> GroupNotFound:
    return GroupNotFound(f"consumer group not found: {group if topic is None else f'{topic}:{group}'}")
