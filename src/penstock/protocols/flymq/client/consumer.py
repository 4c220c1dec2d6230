"""A consumer: a member of a group whose members share the partitions of its topics. `client.consumer(["orders"], group="billing")`.

A task sends heartbeats and notes what the broker assigns. `poll` applies that: it is the only place where partitions are taken up or given
up, so while the program works on records that `poll` has returned, they stay its own. A partition counts as held from the moment the broker
has named it until `poll` has given it up, and every heartbeat lists what is held: the broker gives to nobody else what is listed.

A record is processed when the next one, or the next batch, is asked for. What is processed is committed: with `auto_commit` from time to
time, before a partition is given up and when the consumer is closed; otherwise by `commit`.

If the broker has not answered a heartbeat within the session timeout, it may have given the partitions away: they are lost, and nothing
more of them is handed out. The broker refuses a commit of theirs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self
from uuid import uuid4

from penstock.clients.arguments import check_topic, offset_field
from penstock.clients.records import Record
from penstock.clock import Clock
from penstock.errors import (
    ConsumerFenced,
    InstanceFenced,
    InvalidRequest,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    TopicNotFound,
)
from penstock.frame_bounds import MEMBER_PARTITIONS_MAX
from penstock.protocols.flymq.client.exchanges import Channel
from penstock.protocols.flymq.operations.groups import (
    AssignedPartition,
    GroupAssignment,
    GroupCommit,
    GroupHeartbeat,
    GroupLeave,
    OwnedOffset,
    OwnedPartition,
)

if TYPE_CHECKING:
    from penstock.protocols.flymq.client.client import AsyncFlyMQClient

POLL_RECORDS = 500
FETCHES_AT_ONCE = 8
POLL_PAUSE_S_MIN = 0.005
POLL_PAUSE_S_MAX = 0.25
HEARTBEAT_RETRY_S = 0.2
AUTO_COMMIT_S = 1.0


class TopicPartition(NamedTuple):
    topic: str
    partition: int


OnRebalance = Callable[[Sequence[TopicPartition]], Awaitable[None] | None]
"""A callback that is told of partitions, sorted. It runs inside `poll` or `close`, and may be a coroutine function."""


def in_thread(callback: OnRebalance | None) -> OnRebalance | None:
    """Return a callback that runs in a thread of its own, so that it may use a sync client."""
    if callback is None:
        return None

    async def call(partitions: Sequence[TopicPartition]) -> None:
        await asyncio.to_thread(callback, partitions)

    return call


class ConsumerOptions(NamedTuple):
    """How a consumer reads; see `AsyncFlyMQClient.consumer`."""

    start: Literal["earliest", "latest"]
    auto_commit: bool
    session_timeout_s: float
    poll_interval_s_max: float
    instance_id: str


class Callbacks(NamedTuple):
    assigned: OnRebalance | None
    revoked: OnRebalance | None
    lost: OnRebalance | None


class _Held:
    """A partition that this consumer reads."""

    __slots__ = ("buffer", "committed", "delivered", "generation", "position", "processed")

    def __init__(self, assigned: AssignedPartition) -> None:
        self.generation = assigned.generation
        self.position = assigned.position
        """The next offset to fetch."""
        self.buffer: deque[Record] = deque()
        """Fetched and not handed out."""
        self.delivered = assigned.position
        """The offset after the last record that was handed out."""
        self.processed = assigned.position
        """The same when the program came back for more."""
        self.committed: int | None = assigned.position
        """The last offset that was committed, or where reading began."""

    def take(self, count: int) -> list[Record]:
        records = [self.buffer.popleft() for _ in range(min(count, len(self.buffer)))]
        if records:
            self.delivered = records[-1].offset + 1 if self.buffer else self.position
        return records


class AsyncConsumer:
    """A member of a consumer group.

    ```python
    async with client.consumer(["orders"], group="billing") as consumer:
        async for record in consumer:
            print(record.partition, record.offset, record.value)
    ```
    It joins with the first `poll`. One task at a time reads from it; `commit` may be called from any.
    """

    def __init__(
        self,
        client: AsyncFlyMQClient,
        channel: Channel,
        topics: Sequence[str],
        group: str,
        options: ConsumerOptions,
        callbacks: Callbacks,
        clock: Clock,
    ) -> None:
        if isinstance(topics, str) or not topics:
            raise InvalidRequest(f'topics must be a list of names, as in ["orders"], got {topics!r}')
        for topic in topics:
            check_topic(topic)
        self._client = client
        self._channel = channel
        self._topics = sorted(set(topics))
        self._group = group
        self._options = options
        self._callbacks = callbacks
        self._clock = clock
        self._member = uuid4().hex
        self._sequence = 0
        self._generation = 0
        self._assigned: dict[TopicPartition, AssignedPartition] = {}
        """What the broker has assigned, as of the last heartbeat."""
        self._held: dict[TopicPartition, _Held] = {}
        """What `poll` has taken up and not given up."""
        self._lost: set[TopicPartition] = set()
        """Partitions whose loss the program has not been told of."""
        self._turn: deque[TopicPartition] = deque()
        """Held partitions, the one to read from next first."""
        self._failure: PenstockError | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._beat_now = asyncio.Event()
        self._changed = asyncio.Event()
        """The assignment may have changed."""
        self._polled = asyncio.Event()
        self._polled_s = 0.0
        self._session_end_s = 0.0
        self._committing = asyncio.Lock()
        self._auto_commit: asyncio.Task[None] | None = None
        self._auto_commit_s = 0.0
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. If the block was left by an exception, the records that it had last are not committed."""
        await self._close(processed=kind is None)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        while not self._closed:
            if records := await self.poll(1):
                return records[0]
        raise StopAsyncIteration

    # -- reading ---------------------------------------------------------------------------------------------------------

    async def poll(self, max_records: int = POLL_RECORDS, timeout_s: float = 1.0) -> list[Record]:
        """Return the next records of the assigned partitions, an empty list if there are none within `timeout_s`.

        What was returned before counts as processed. Callbacks of a rebalance run here. Errors that time can mend, such as a broker that
        restarts, are retried; others are raised.
        """
        if max_records < 1:
            raise InvalidRequest(f"max_records is {max_records}: poll at least one record")
        self._begin_poll()
        until_s = self._clock.monotonic() + timeout_s
        pause_s = POLL_PAUSE_S_MIN
        while not self._closed:
            self._changed.clear()
            await self._rebalance()
            if self._options.auto_commit:
                self._commit_from_time_to_time()
            records = self._take(max_records)
            if not records and self._held:
                await self._fetch()
                records = self._take(max_records)
            self._check_failure()
            if records:
                return records
            left_s = until_s - self._clock.monotonic()
            if left_s <= 0:
                await asyncio.sleep(
                    0
                )  # a program that polls without a timeout must not keep heartbeats from being sent
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause_s, left_s)):
                    await self._changed.wait()
            pause_s = min(2 * pause_s, POLL_PAUSE_S_MAX)
        return []

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit the given offsets (the next to read of each partition), or those after all records that were handed out.

        Raises ConsumerFenced if a partition does not belong to this consumer any more: another member reads these records again.
        """
        if offsets is None:
            if self._lost:
                raise ConsumerFenced(
                    f"consumer fenced: the session of {self._member} has ended; {_names(self._lost)} were lost"
                )
            offsets = {each: held.delivered for each, held in self._held.items()}
        await self._commit({TopicPartition(*each): offset_field(offset) for each, offset in offsets.items()})

    async def close(self) -> None:
        """Commit what was handed out (with `auto_commit`), give up all partitions and leave the group. Closing again does nothing.

        A static member does not leave: if it joins again within its session timeout, it has its partitions back.
        """
        await self._close(processed=True)

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that this consumer reads, sorted."""
        return sorted(self._held)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def generation(self) -> int:
        """The generation of the group as of the last heartbeat, 0 before the first."""
        return self._generation

    @property
    def member_id(self) -> str:
        """The id under which the group knows this consumer; another one after its session has ended."""
        return self._member

    # -- polling ---------------------------------------------------------------------------------------------------------

    def _begin_poll(self) -> None:
        if self._closed:
            raise InvalidRequest("this consumer is closed; make another with client.consumer()")
        self._check_failure()
        self._polled_s = self._clock.monotonic()
        self._polled.set()
        for held in self._held.values():
            held.processed = held.delivered
        if self._heartbeats is None:
            self._heartbeats = asyncio.create_task(self._send_heartbeats())

    def _check_failure(self) -> None:
        """Raise what ended the consumer, errors of the heartbeat task that nobody expected included."""
        if self._failure is not None:
            raise self._failure
        if self._heartbeats is not None and self._heartbeats.done():
            self._heartbeats.result()

    def _take(self, max_records: int) -> list[Record]:
        """Return records that were fetched, from one partition after another."""
        self._lose_if_late()
        records: list[Record] = []
        for _ in range(len(self._turn)):
            if len(records) == max_records:
                break
            records += self._held[self._turn[0]].take(max_records - len(records))
            if not self._held[self._turn[0]].buffer:
                self._turn.rotate(-1)
        return records

    async def _fetch(self) -> None:
        """Fetch from some partitions at a time, until one has records.

        Those that were asked go behind the others, so that partitions that always have records keep none of them waiting.
        """
        left = len(self._turn)
        while left > 0 and self._turn:
            some = list(islice(self._turn, min(FETCHES_AT_ONCE, left)))
            self._turn.rotate(-len(some))
            left -= len(some)
            await asyncio.gather(*(self._fetch_from(each) for each in some))
            if self._failure is not None or any(self._held[each].buffer for each in some if each in self._held):
                return

    async def _fetch_from(self, partition: TopicPartition) -> None:
        held = self._held.get(partition)
        if held is None:
            return
        try:
            fetched = await self._client.fetch(*partition, held.position)
        except (TopicNotFound, PartitionNotFound):
            return  # deleted: the next heartbeat brings an assignment without it
        except PenstockError as error:
            if not error.retriable:
                self._failure = error
            return
        if self._held.get(partition) is held:
            held.buffer += fetched.records
            held.position = fetched.next_offset
            if not fetched.records:
                held.delivered = held.processed = fetched.next_offset

    # -- rebalancing -----------------------------------------------------------------------------------------------------

    async def _rebalance(self) -> None:
        """Take up and give up partitions as the broker has assigned them, and tell the program."""
        self._lose_if_late()
        if self._lost:
            lost, self._lost = self._lost, set()
            await _call(self._callbacks.lost, lost)
        revoked = [
            each
            for each, held in self._held.items()
            if each not in self._assigned or self._assigned[each].generation != held.generation
        ]
        if revoked:
            await self._give_up(revoked)
        added = [each for each in self._assigned if each not in self._held]
        if not added:
            return
        for each in added:
            self._held[each] = _Held(self._assigned[each])
            self._turn.append(each)
        if self._options.start == "latest":
            # Without an offset, a restart would begin at a later end, and skip what came in between.
            await self._commit_positions([each for each in added if not self._assigned[each].committed])
        await _call(self._callbacks.assigned, added)

    async def _commit_positions(self, partitions: Sequence[TopicPartition]) -> None:
        for each in partitions:
            self._held[each].committed = None
        await self._commit_quietly({each: self._held[each].position for each in partitions})

    async def _give_up(self, partitions: Sequence[TopicPartition]) -> None:
        if self._options.auto_commit:
            await self._commit_processed()
        await _call(self._callbacks.revoked, [each for each in partitions if each in self._held])
        for each in partitions:
            held = self._held.pop(each, None)
            assigned = self._assigned.get(each)
            if held is not None and assigned is not None and assigned.generation == held.generation:
                # It came back meanwhile. A heartbeat that does not list it brings the position to begin at.
                del self._assigned[each]
        self._turn = deque(each for each in self._turn if each in self._held)
        self._beat_now.set()

    def _lose(self) -> None:
        """The broker may have given the partitions to others."""
        self._lost |= self._held.keys()
        self._held.clear()
        self._turn.clear()
        self._assigned.clear()
        self._changed.set()

    def _lose_if_late(self) -> None:
        if self._held and self._clock.monotonic() >= self._session_end_s:
            self._lose()

    # -- heartbeats ------------------------------------------------------------------------------------------------------

    async def _send_heartbeats(self) -> None:
        while self._failure is None:
            if self._clock.monotonic() - self._polled_s > self._options.poll_interval_s_max:
                await self._pause_membership()
            pause_s = await self._beat()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._beat_now.wait()
            self._beat_now.clear()

    async def _pause_membership(self) -> None:
        """The program does not poll: leave the partitions to others until it does."""
        self._lose()
        with suppress(PenstockError):
            await self._leave()
        self._new_member()
        self._polled.clear()
        await self._polled.wait()

    async def _beat(self) -> float:
        """Send a heartbeat; returns the seconds until the next."""
        sent_s = self._clock.monotonic()
        generations = {each: assigned.generation for each, assigned in self._assigned.items()}
        generations |= {each: held.generation for each, held in self._held.items()}
        request = GroupHeartbeat(
            self._group,
            self._member,
            self._topics,
            self._sequence,
            self._options.start,
            self._options.instance_id,
            round(self._options.session_timeout_s * 1000),
            [OwnedPartition(*each, generation) for each, generation in generations.items()],
        )
        try:
            assignment = await self._channel.ask(request)
        except PenstockError as error:
            if error.retriable:
                return HEARTBEAT_RETRY_S
            self._lose()
            if isinstance(error, ConsumerFenced) and not isinstance(error, InstanceFenced):
                self._new_member()
            else:
                self._failure = error
            return 0.0
        self._sequence += 1
        self._session_end_s = sent_s + self._options.session_timeout_s
        self._note(assignment, generations)
        return assignment.heartbeat_ms / 1000

    def _note(self, assignment: GroupAssignment, listed: Mapping[TopicPartition, int]) -> None:
        assigned: dict[TopicPartition, AssignedPartition] = {}
        for each in assignment.partitions:
            place = TopicPartition(each.topic, each.partition)
            if listed.get(place) != each.generation:
                assigned[place] = each
            elif place in self._assigned or place in self._held:
                # The broker sends no position for what the heartbeat listed.
                assigned[place] = self._assigned.get(place, each)
            else:
                # Given up or lost while the heartbeat was on its way. One that does not list it brings the position to begin at.
                self._beat_now.set()
        if assigned.keys() != self._assigned.keys() or assigned != self._assigned:
            self._changed.set()
        self._assigned = assigned
        self._generation = assignment.generation

    def _new_member(self) -> None:
        self._member = uuid4().hex
        self._sequence = 0

    async def _leave(self) -> None:
        await self._channel.ask(GroupLeave(self._group, self._member, self._topics))

    # -- committing ------------------------------------------------------------------------------------------------------

    def _commit_from_time_to_time(self) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._auto_commit_s < AUTO_COMMIT_S or (self._auto_commit and not self._auto_commit.done()):
            return
        self._auto_commit_s = now_s
        self._auto_commit = asyncio.create_task(self._commit_processed())

    async def _commit_processed(self) -> None:
        await self._commit_quietly({each: held.processed for each, held in self._held.items()})

    async def _commit_quietly(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit, or leave it to a later commit. What a fenced member could not commit is read again by another."""
        try:
            await self._commit(offsets)
        except (ConsumerFenced, OffsetOutOfRange):
            pass
        except PenstockError as error:
            if not error.retriable:
                self._failure = error

    async def _commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        async with self._committing:
            moved = []
            for place, offset in offsets.items():
                held = self._held.get(place)
                if held is None:
                    raise ConsumerFenced(
                        f"consumer fenced: {place.topic}-{place.partition} is not assigned to this consumer"
                    )
                if held.committed != offset:
                    moved.append((place, held, offset))
            for some in _chunks(moved):
                await self._channel.ask(
                    GroupCommit(
                        self._group,
                        self._member,
                        [OwnedOffset(*place, held.generation, offset) for place, held, offset in some],
                    )
                )
                for _, held, offset in some:
                    held.committed = offset

    # -- closing ---------------------------------------------------------------------------------------------------------

    async def _close(self, *, processed: bool) -> None:
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        if self._heartbeats is None:
            return
        if processed:
            for held in self._held.values():
                held.processed = held.delivered
        try:
            if self._auto_commit is not None:
                await self._auto_commit
            if self._lost:
                await _call(self._callbacks.lost, self._lost)
            if self._held:
                await self._give_up(list(self._held))
        finally:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
            if not self._options.instance_id and self._failure is None:
                with suppress(PenstockError):
                    await self._leave()


async def _call(callback: OnRebalance | None, partitions: Iterable[TopicPartition]) -> None:
    told = sorted(partitions)
    if callback is not None and told:
        result = callback(told)
        if result is not None:
            await result


def _chunks(
    moved: Sequence[tuple[TopicPartition, _Held, int]],
) -> Iterable[list[tuple[TopicPartition, _Held, int]]]:
    rest = iter(moved)
    while some := list(islice(rest, MEMBER_PARTITIONS_MAX)):
        yield some


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}" for each in sorted(partitions))
