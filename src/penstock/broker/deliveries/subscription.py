"""One subscription: a cursor over every partition of a topic, with deliveries in flight. No protocol, no disk writes, no timers.

The backlog is the log. Memory holds where reading stands, the blocks being read, and a few numbers for each delivery that waits for
its acknowledgement; a record that has to be delivered again is read again. So a subscription that is a million records behind costs
what one at the end does, and nobody's records are dropped for it.

A record is settled when it was acknowledged, when it became a dead letter, or when it was delivered with QoS 0. What is stored
(`stored`) is how far reading has come and what of that is not settled. An older state is safe to begin with: it only delivers more.

Delivery tags follow from partition and offset, so a record keeps its tag across redeliveries and restarts, and a tag that a client
kept from before a crash can never acknowledge another record. With one partition they count from 1. They depend on the number of
partitions: when partitions are added, new tags begin above all earlier ones, and deliveries in flight keep theirs until a restart.

A log that lost its tail gives the same offsets to other records (see `truncation`). A stored cursor therefore has the log epoch of its
partition. If that is another one when the subscription is restored, reading continues at the cut if it was beyond it, what was
unsettled beyond it is forgotten, and all tags of the partition change, because nobody knows which of the lost records were delivered.

Redelivery: delivery number n is taken back after `backoff_ms * 2**(n-1)` (or `ack_ms`, where readers are given a time of their own)
without an acknowledgement and is then the next to be delivered, ahead of records that never were. After `deliveries_max` deliveries
the record is exhausted instead, and becomes a dead letter.

Readers that are pushed to do not ask again and again: they `watch`, and are told when there may be something to take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import structlog

from penstock.broker.deliveries.cursor import CHUNK_ROWS, NOT_IN_MEMORY, Cursor, NotInMemory, Row, cells_of
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.stored import StoredCursor, StoredSubscription, runs
from penstock.broker.deliveries.tags import Tags
from penstock.broker.records.visibility import is_visible
from penstock.log.api import Partition, follow_all
from penstock.record_headers import decode_headers, encode_headers

AT_MOST_ONCE: Final = 0
AT_LEAST_ONCE: Final = 1
ALWAYS_AT_LEAST_ONCE: Final = 2
"""For a subscription: also for records that were published with QoS 0."""
QOS_HEADER: Final = "penstock-qos"
QOS0_HEADERS: Final = encode_headers([(QOS_HEADER, b"0")])
"""The header cell of a record that was published with QoS 0. Records without the header, of any protocol, count as QoS 1."""

log = structlog.get_logger(__name__)


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One record on its way to a reader. `value` is None for a tombstone, `headers` is an encoded cell."""

    tag: int
    qos: int
    """The lower of the record's and the subscription's. With 0 it is settled already."""
    partition: int
    offset: int
    value: bytes | None
    headers: bytes | None
    deliveries: int = 1
    """This one included."""


class Exhausted(NamedTuple):
    """A delivery that will not be repeated: its record is to become a dead letter."""

    tag: int
    reason: str
    deliveries: int
    first_ms: int


class _InFlight:
    """A record that was delivered and is not settled. `due_ms` is None once it waits to be delivered again."""

    __slots__ = ("deliveries", "due_ms", "first_ms")

    def __init__(self, deliveries: int, due_ms: int | None, first_ms: int) -> None:
        self.deliveries = deliveries
        self.due_ms = due_ms
        self.first_ms = first_ms


class Subscription:
    """Reading divides the records among all who read; one event loop, no locks but while a block is read from disk."""

    __slots__ = (
        "_cursors",
        "_exhausted",
        "_heap",
        "_in_flight",
        "_loading",
        "_tags",
        "_turn",
        "_waiting",
        "_watched",
        "_watchers",
        "ack_ms",
        "created_ms",
        "dead_letters",
        "deleted",
        "expired",
        "group",
        "id",
        "is_elsewhere",
        "is_moving",
        "name",
        "owner",
        "policy",
        "qos",
        "redeliveries",
        "shard",
        "topic",
        "topic_id",
        "used_s",
    )

    def __init__(
        self,
        subscription_id: int,
        stored: StoredSubscription,
        handles: Sequence[Partition],
        policy: DeliveryPolicy,
        *,
        shard: int = 0,
        restored_ms: int | None = None,
    ) -> None:
        """`restored_ms` is given where the broker has started again: records of QoS 0 from before are not delivered, because whether
        they were is not stored; unsettled ones are delivered again, at least once whatever their count."""
        self.id = subscription_id
        self.topic = stored.topic
        self.topic_id = stored.topic_id
        self.qos = stored.qos
        self.name = stored.name
        self.group = stored.group(subscription_id)
        self.created_ms = stored.created_ms
        self.owner = stored.owner
        self.used_s = 0.0
        self.deleted = False
        self.shard = shard
        self.is_elsewhere = False
        """Another node is to deliver its records, or does: here nothing is delivered or settled any more."""
        self.is_moving = False
        """A reset is being stored: until it is, nothing is delivered, because that would be forgotten."""
        self.expired = 0
        """Deliveries that expired or that a reset dropped, ever."""
        self.redeliveries = 0
        """Deliveries of records that were delivered before, ever."""
        self.dead_letters = 0
        """Records that became dead letters, ever."""
        self.policy = policy
        self.ack_ms = 0
        """How long a delivery waits for its acknowledgement; 0: as long as the backoff of its number. Nacked ones always wait for that."""
        self._cursors = [
            Cursor(
                handle,
                cursor.start,
                cursor.read_to,
                0 if restored_ms is None else handle.committed_end,
                cursor.tag_base,
            )
            for handle, cursor in zip(handles, stored.cursors, strict=True)
        ]
        self._tags = Tags(cursor.tag_base for cursor in stored.cursors)
        self._in_flight: dict[int, _InFlight] = {}
        self._waiting: deque[int] = deque()
        """Tags to be delivered again."""
        self._heap: list[tuple[int, int]] = []
        """When each delivery expires, and its tag. Entries of settled deliveries stay until their time or a tidying."""
        self._exhausted: dict[int, Exhausted] = {}
        self._turn = 0
        self._loading: asyncio.Lock | None = None
        self._watchers: list[Callable[[], None]] = []
        self._watched: list[Callable[[], None]] = []
        """What stops the partitions from telling of new records."""
        if restored_ms is not None:
            self._restore(stored, restored_ms)

    def _restore(self, stored: StoredSubscription, now_ms: int) -> None:
        for index, cursor in enumerate(stored.cursors):
            for run in cursor.unsettled:
                deliveries = min(run.deliveries, self.policy.deliveries_max - 1)
                for offset in range(run.first, run.first + run.count):
                    tag = self.tag(index, offset)
                    self._in_flight[tag] = _InFlight(deliveries, None, now_ms)
                    self._waiting.append(tag)

    # -- what a reader does -----------------------------------------------------------------------------------------------

    def take(self, now_ms: int) -> Delivery | NotInMemory | None:
        """The next record, None if there is none to deliver now. Raises CorruptBlock, and TopicNotFound once that is gone."""
        if self.is_moving or self.is_elsewhere:
            return None
        self.expire_deliveries(now_ms)
        while self._waiting:
            found = self._take_again(now_ms)
            if found is not None:
                return found
        if self._full:
            return None
        cursors = self._cursors
        not_in_memory = False
        for _ in range(len(cursors)):
            index = self._turn
            self._turn = (index + 1) % len(cursors)
            fresh = self._take_fresh(index, now_ms)
            if fresh is NOT_IN_MEMORY:
                not_in_memory = True
            elif fresh is not None:
                return fresh
        return NOT_IN_MEMORY if not_in_memory else None

    async def load(self) -> None:
        """Read from disk what `take` did not find in memory."""
        if self._loading is None:
            self._loading = asyncio.Lock()
        async with self._loading:
            if self._waiting:
                cursor, offset = self._place(self._waiting[0])
                await cursor.load_again(offset)
                return
            for cursor in self._cursors:
                await cursor.load()

    def acknowledge(self, tag: int, now_ms: int) -> bool:
        """Settle a delivery. False if the tag is not in flight: unknown, settled already, or expired."""
        entry = self._in_flight.get(tag)
        if entry is None or entry.due_ms is None or self.is_elsewhere:
            return False
        if entry.due_ms <= now_ms:
            self.expire_deliveries(now_ms)
            return False
        self._remove(tag)
        return True

    def refuse(self, tag: int, now_ms: int) -> bool:
        """Nack a delivery: requeue it after its backoff, or make it a dead letter if it was the last one."""
        entry = self._in_flight.get(tag)
        if entry is None or entry.due_ms is None or self.is_elsewhere:
            return False
        if entry.deliveries >= self.policy.deliveries_max:
            self._exhaust(tag, entry, "refused by its reader")
        else:
            entry.due_ms = now_ms + self.policy.delay_ms(entry.deliveries)
            heappush(self._heap, (entry.due_ms, tag))
        return True

    def is_with_reader(self, tag: int, deliveries: int) -> bool:
        """Whether this delivery of a record is still in flight: neither settled nor expired."""
        entry = self._in_flight.get(tag)
        return entry is not None and entry.due_ms is not None and entry.deliveries == deliveries

    def requeue(self, tag: int, deliveries: int, *, counts: bool) -> None:
        """Requeue a delivery whose reader has disconnected, ahead of new records. `counts`: whether it counts towards `deliveries_max`;
        a prefetched record does not.

        Nothing happens if it has expired, and was perhaps delivered to another reader.
        """
        if not self.is_with_reader(tag, deliveries):
            return
        entry = self._in_flight[tag]
        if counts and deliveries >= self.policy.deliveries_max:
            self._exhaust(tag, entry, f"its reader was gone after {deliveries} deliveries")
            return
        if not counts:
            entry.deliveries -= 1
        entry.due_ms = None
        self._waiting.appendleft(tag)

    def dead_letter(self, tag: int, reason: str) -> None:
        """Make the record of a delivery that can never arrive a dead letter."""
        entry = self._in_flight.get(tag)
        if entry is not None:
            self._exhaust(tag, entry, reason)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever there may be something to take that was not there before. Returns what stops it."""
        if not self._watchers:
            self._watched = [cursor.handle.watch(self.wake) for cursor in self._cursors]
        self._watchers.append(callback)

        def stop() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)
            if not self._watchers:
                for stop_partition in self._watched:
                    stop_partition()
                self._watched = []

        return stop

    def wake(self) -> None:
        for callback in list(self._watchers):
            try:
                callback()
            except Exception:
                log.exception("subscription_watcher_failed", topic=self.topic, subscription=self.id)

    async def follow(self) -> None:
        """Make the ends of its partitions current, where nobody reads."""
        await follow_all(cursor.handle for cursor in self._cursors)

    def leave(self) -> None:
        """Go to another node: what is settled after this is not stored here."""
        self.is_elsewhere = True
        self.wake()

    def may_have_more(self, now_ms: int) -> bool:
        """Whether there are, or may be, records that were not delivered yet, or are to be delivered again."""
        self.expire_deliveries(now_ms)
        return bool(self._waiting) or any(cursor.behind or not cursor.handle.followed for cursor in self._cursors)

    # -- what the keeper does ---------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Records delivered and not settled, those that wait to be delivered again included."""
        return len(self._in_flight)

    @property
    def lag(self) -> int:
        """Records that are not settled: those in flight, and those that were not delivered yet."""
        return len(self._in_flight) + len(self._exhausted) + sum(cursor.behind for cursor in self._cursors)

    @property
    def positions(self) -> list[int]:
        """The next offset to be delivered for the first time, by partition."""
        return [cursor.read_to for cursor in self._cursors]

    @property
    def progress(self) -> list[tuple[int, int]]:
        """The next offset to be delivered for the first time, and the high watermark, by partition."""
        return [(cursor.read_to, cursor.handle.committed_end) for cursor in self._cursors]

    def first_unsettled(self) -> list[tuple[Partition, int]]:
        """The places of records of which one is the oldest that is not settled: the first in flight, and the next of each partition."""
        places = [(cursor.handle, cursor.read_to) for cursor in self._cursors if cursor.behind]
        unsettled = next(iter(self._in_flight), next(iter(self._exhausted), None))
        if unsettled is not None:
            index, offset = self.place(unsettled)
            places.append((self._cursors[index].handle, offset))
        return places

    @property
    def with_readers(self) -> int:
        """Deliveries that wait for their acknowledgement."""
        return sum(entry.due_ms is not None for entry in self._in_flight.values())

    @property
    def watched(self) -> bool:
        return bool(self._watchers)

    @property
    def exhausted(self) -> int:
        """How many records are to become dead letters."""
        return len(self._exhausted)

    def first_exhausted(self, count_max: int) -> list[Exhausted]:
        """The oldest records that are to become dead letters. They stay exhausted until `dead_lettered`."""
        return list(islice(self._exhausted.values(), count_max))

    def expire_deliveries(self, now_ms: int) -> None:
        """Requeue deliveries whose time for an acknowledgement is over, or exhaust them."""
        heap = self._heap
        expired = 0
        while heap and heap[0][0] <= now_ms:
            due_ms, tag = heappop(heap)
            entry = self._in_flight.get(tag)
            if entry is None or entry.due_ms != due_ms:
                continue
            expired += 1
            if entry.deliveries >= self.policy.deliveries_max:
                self._exhaust(tag, entry, f"not acknowledged after {entry.deliveries} deliveries")
            else:
                entry.due_ms = None
                self._waiting.append(tag)
        if expired:
            self.expired += expired
            self.wake()

    def dead_lettered(self, tags: Sequence[int]) -> None:
        """These have become dead letters, or there was nothing left of them."""
        full = self._full
        for tag in tags:
            self.dead_letters += self._exhausted.pop(tag, None) is not None
        if full:
            self.wake()

    def add_partitions(self, handles: Sequence[Partition]) -> None:
        """Read these partitions too, from their start: they were added to the topic after the subscription began.

        Deliveries in flight keep their tags.
        """
        tag_base = 1 + max((each.tag_base + each.read_to - each.start for each in self._cursors), default=0)
        for cursor in self._cursors:
            cursor.tag_base = tag_base
        self._cursors += [Cursor(handle, 0, 0, 0, tag_base) for handle in handles]
        unsettled = min([*self._in_flight, *self._exhausted], default=None)
        self._tags.extend(len(self._cursors), tag_base, unsettled)
        if self._watchers:
            self._watched += [handle.watch(self.wake) for handle in handles]
        self.wake()

    def move(self, stored: StoredSubscription, partitions: Collection[int]) -> None:
        """Continue as stored in these partitions. What was delivered of them is forgotten: acknowledgements of it find nothing."""
        moved = {tag for tag in self._in_flight if self.place(tag)[0] in partitions}
        for tag in moved:
            del self._in_flight[tag]
        self.expired += len(moved)
        self._waiting = deque(tag for tag in self._waiting if tag not in moved)
        for index in partitions:
            cursor = stored.cursors[index]
            self._cursors[index] = Cursor(self._cursors[index].handle, cursor.start, cursor.read_to, 0, cursor.tag_base)
            self._tags.rebase(index, cursor.tag_base)

    def tag(self, index: int, offset: int) -> int:
        """The tag of a record, from its partition and offset."""
        return self._tags.tag(index, offset - self._cursors[index].start)

    def is_settled(self, tag: int) -> bool:
        """Whether a record was delivered, or passed over, and is owed to nobody any more."""
        if tag in self._in_flight or tag in self._exhausted:
            return False
        cursor, offset = self._place(tag)
        return cursor.start <= offset < cursor.read_to

    def is_reused(self, index: int, offset: int) -> bool:
        """Whether an offset may have been that of another record before its log lost its tail."""
        cut = self._cursors[index].handle.cut_since(0)
        return cut is not None and offset >= cut

    def place(self, tag: int) -> tuple[int, int]:
        """The partition and the offset of a tag."""
        index, number = self._tags.place(tag)
        return index, self._cursors[index].start + number

    async def record(self, tag: int) -> Row | None:
        """The record of a delivery, from disk where it must be; None if it is gone."""
        cursor, offset = self._place(tag)
        return await cursor.record(offset)

    def forget_blocks(self) -> None:
        """Nobody has asked for a while: hold no blocks for it."""
        for cursor in self._cursors:
            cursor.forget()

    def stored(self, *, without: frozenset[int] = frozenset()) -> StoredSubscription:
        """The state to store. `without`: tags that are settled by the same append."""
        unsettled: list[list[tuple[int, int]]] = [[] for _ in self._cursors]
        for tag, entry in self._in_flight.items():
            index, offset = self.place(tag)
            unsettled[index].append((offset, entry.deliveries))
        for tag, given_up in self._exhausted.items():
            if tag not in without:
                index, offset = self.place(tag)
                unsettled[index].append((offset, given_up.deliveries))
        cursors = tuple(
            StoredCursor(cursor.start, cursor.read_to, runs(offsets), cursor.handle.epoch, cursor.tag_base)
            for cursor, offsets in zip(self._cursors, unsettled, strict=True)
        )
        return StoredSubscription(self.topic, self.topic_id, self.qos, cursors, self.name, self.created_ms, self.owner)

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _place(self, tag: int) -> tuple[Cursor, int]:
        index, offset = self.place(tag)
        return self._cursors[index], offset

    def _take_fresh(self, index: int, now_ms: int) -> Delivery | NotInMemory | None:
        cursor = self._cursors[index]
        while True:
            taken = cursor.take(now_ms)
            if taken is None or isinstance(taken, NotInMemory):
                return taken
            offset, value, headers = taken
            tag = self._tags.tag(index, offset - cursor.start)
            if self.qos == ALWAYS_AT_LEAST_ONCE or (self.qos and (headers is None or _qos_of(headers))):
                self._deliver(tag, 1, now_ms, now_ms)
                return Delivery(tag, AT_LEAST_ONCE, index, offset, value, headers)
            if offset >= cursor.qos0_from:
                return Delivery(tag, AT_MOST_ONCE, index, offset, value, headers)

    def _take_again(self, now_ms: int) -> Delivery | NotInMemory | None:
        """The first that waits; None if it is settled, expired or gone."""
        tag = self._waiting[0]
        entry = self._in_flight.get(tag)
        if entry is None or entry.due_ms is not None:
            self._waiting.popleft()
            return None
        index, offset = self.place(tag)
        found = self._cursors[index].find(offset)
        if isinstance(found, NotInMemory):
            return NOT_IN_MEMORY
        self._waiting.popleft()
        if found is None or not is_visible(found.block, found.row, now_ms):
            self._remove(tag)
            return None
        value, headers = cells_of(found)
        self._deliver(tag, entry.deliveries + 1, now_ms, entry.first_ms)
        self.redeliveries += 1
        return Delivery(tag, AT_LEAST_ONCE, index, offset, value, headers, entry.deliveries + 1)

    def _deliver(self, tag: int, deliveries: int, now_ms: int, first_ms: int) -> None:
        due_ms = now_ms + (self.ack_ms or self.policy.delay_ms(deliveries))
        self._in_flight[tag] = _InFlight(deliveries, due_ms, first_ms)
        if len(self._heap) > 2 * len(self._in_flight) + CHUNK_ROWS:
            self._heap = [(entry.due_ms, each) for each, entry in self._in_flight.items() if entry.due_ms is not None]
            heapify(self._heap)
        else:
            heappush(self._heap, (due_ms, tag))

    @property
    def _full(self) -> bool:
        return len(self._in_flight) + len(self._exhausted) >= self.policy.in_flight_max

    def _remove(self, tag: int) -> None:
        may_wake = bool(self._watchers) and self._full
        del self._in_flight[tag]
        if may_wake:
            self.wake()

    def _exhaust(self, tag: int, entry: _InFlight, reason: str) -> None:
        del self._in_flight[tag]
        self._exhausted[tag] = Exhausted(tag, reason, entry.deliveries, entry.first_ms)


def _qos_of(headers: bytes) -> int:
    if headers == QOS0_HEADERS:
        return AT_MOST_ONCE
    return AT_MOST_ONCE if (QOS_HEADER, b"0") in decode_headers(headers) else AT_LEAST_ONCE
