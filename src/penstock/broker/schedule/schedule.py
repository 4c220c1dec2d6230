"""Delayed records: accepted now, readable at their time, exactly once, whatever crashes in between.

An entry is on disk before its writer hears of it (see `schedule_log`). Shortly before it is due it is read back, together with others
due about then, because entries that lie close to each other in the log cost one read. When it is due, one atomic append writes the
record to its partition and the end of its entry, so that after any crash it is either still waiting or delivered. All that is due goes
together, in order of due time.

Due times are wall-clock times, because they must mean the same after a restart. A clock that is set back delays what waits, one that is
set forward brings it early; nothing is lost or delivered twice, because the entry alone decides.

An entry belongs to the topic it was accepted for. When that topic is deleted, so are its delayed records, also where a topic of the
same name exists again.

At any moment an entry is in one of these places: waiting (in `DueTimes`), being read, ready (in memory), or claimed by the one who is
delivering or cancelling it.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import structlog

from penstock.background import Loop, run_to_completion
from penstock.broker.access.checks import Operation, Principal, on_broker, on_topic
from penstock.broker.limits import INT64_MAX
from penstock.broker.part import Context, Part
from penstock.broker.records.producer import Producer
from penstock.broker.schedule.due_times import Due, DueTimes
from penstock.broker.schedule.schedule_log import Delayed, Loaded, ScheduleLog
from penstock.broker.schemas.validation import Validation
from penstock.broker.table import appended_together
from penstock.broker.tracing import ending
from penstock.errors import (
    EntryNotFound,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    PenstockError,
    ShuttingDown,
    TopicNotFound,
)
from penstock.log.api import Appended, Batch, BatchFor, Partition
from penstock.stats import DURATION_BOUNDS_S, Histogram

# Entries are read so long before they are due: a read of the disk is then over in time, and many share it.
AHEAD_MS: Final = 250
READY_ENTRIES_MAX: Final = 8192
READY_BYTES_MAX: Final = 16 << 20
# Decoding this many takes some 5 ms of the event loop, which then serves others first.
READ_ENTRIES_MAX: Final = 1024
# One append: a commit of some 4 MB takes about as long as a smaller one, and nothing else waits long for it.
DELIVERY_RECORDS_MAX: Final = 2048
DELIVERY_BYTES_MAX: Final = 4 << 20
# How soon a jump of the wall clock is noticed.
LOOK_S_MAX: Final = 0.25
_NEVER_MS: Final = INT64_MAX
# Read and sent at once by a list of what waits.
LISTED_ENTRIES_MAX: Final = 512

log = structlog.get_logger(__name__)


class Scheduled(NamedTuple):
    """An entry that is on disk."""

    id: str
    """What `cancel` takes."""
    due_ms: int
    partition: int


class Pending(NamedTuple):
    """An entry that waits, with its record."""

    due_ms: int
    offset: int
    record: Delayed

    @property
    def id(self) -> str:
        return _id_of(self.due_ms, self.offset)


class PendingPage(NamedTuple):
    entries: list[Pending]
    after: str
    """The entry after which the next page begins; empty after the last."""


OnScheduled = Callable[[Scheduled | PenstockError], None]


@dataclass(slots=True)
class ScheduleStats:
    """Plain numbers, exported on scrape."""

    accepted: int = 0
    delivered: int = 0
    cancelled: int = 0
    dropped: int = 0
    """Ended because their topic was deleted."""
    lateness_s: Histogram = field(default_factory=lambda: Histogram(DURATION_BOUNDS_S))
    """How long after its time a record was readable."""


class Schedule(Part):
    def __init__(self, context: Context, producer: Producer, validation: Validation) -> None:
        super().__init__(context)
        self.stats = ScheduleStats()
        self._producer = producer
        self._validation = validation
        self._log = ScheduleLog(self._engine)
        self._waiting = DueTimes()
        self._reading: set[Due] = set()
        self._ready: dict[Due, Loaded] = {}
        self._ready_order: list[Due] = []
        """A heap; what is in it and not in `_ready` was cancelled."""
        self._ready_bytes = 0
        self._claimed = 0
        self._arriving = 0
        self._read_entries = READ_ENTRIES_MAX
        """How many are read at once: fewer while they are large."""
        self._look_at_ms = _NEVER_MS
        self._delivering: Loop | None = None

    async def start(self) -> None:
        """Load what waits. Raises where a part of it cannot be read."""
        self._waiting = await self._log.load()
        self._delivering = self.background.loop("delayed_records", self._deliver_due)

    async def close(self) -> None:
        """Deliver no more; what waits is in the log."""
        if self._delivering is not None:
            delivering, self._delivering = self._delivering, None
            await delivering.stop()

    @property
    def pending(self) -> int:
        """Entries accepted and neither delivered nor cancelled."""
        return len(self._waiting) + len(self._reading) + len(self._ready) + self._claimed

    def look(self) -> None:
        """Look at the clock now instead of when something is due by it."""
        if self._delivering is not None:
            self._delivering.wake()

    # -- operations -------------------------------------------------------------------------------------------------------

    @on_topic(Operation.WRITE)
    def add(
        self,
        principal: Principal,
        topic: str,
        partition: int,
        value: bytes | None,
        key: bytes | None = None,
        headers: bytes | None = None,
        *,
        delay_ms: int,
        ttl_ms: int = 0,
        done: OnScheduled,
    ) -> None:
        """Write a record after a delay; partition -1 goes by the key, or in turn without one, as of now. `ttl_ms` counts from delivery.

        Raises what is wrong with the request; whatever `Records.produce` would refuse is refused here, so that the delivery is not.
        Otherwise `done` is called once, on the loop, when the entry is on disk or could not be written.
        """
        if delay_ms <= 0:
            raise InvalidRequest(f"delay_ms must be positive, got {delay_ms}: produce the record without a delay")
        if delay_ms > self._limits.delay_ms_max:
            raise InvalidRequest(
                f"delay {go_duration(delay_ms)} exceeds maximum allowed delay {go_duration(self._limits.delay_ms_max)}"
            )
        if self._delivering is None:
            raise ShuttingDown("the broker is starting or stopping: try again")
        if self.pending + self._arriving >= self._limits.delayed_max:
            raise LimitExceeded(
                f"{self._limits.delayed_max} delayed records wait, the most allowed: try again when some are delivered, "
                "or raise limits.delayed_max"
            )
        expiry_of(self._clock.now_ms() + delay_ms, ttl_ms)
        batch = Batch([value], None if key is None else [key], None if headers is None else [headers])
        if self._tracing is not None:
            batch, end = self._tracing.produce(topic, batch)
            done = ending(end, done, lambda result: result if isinstance(result, PenstockError) else None)
        accept = partial(self._accept, topic, partition, delay_ms, ttl_ms, done)
        if self._validation.applies_to(topic):
            self._validation.admit(topic, None, batch, accept, done)
        else:
            accept(batch)

    def _accept(
        self,
        topic: str,
        partition: int,
        delay_ms: int,
        ttl_ms: int,
        done: OnScheduled,
        batch: Batch,
    ) -> None:
        topic_id, [index] = self._producer.place(topic, partition, batch)
        due_ms = self._clock.now_ms() + delay_ms
        [value] = batch.values
        key = None if batch.keys is None else batch.keys[0]
        headers = None if batch.headers is None else batch.headers[0]
        record = Delayed(topic, topic_id, index, value, key, headers, ttl_ms)
        self._arriving += 1
        self._log.append(due_ms, record, partial(self._added, due_ms, index, done))

    def _added(self, due_ms: int, partition: int, done: OnScheduled, result: Appended | PenstockError) -> None:
        self._arriving -= 1
        if isinstance(result, PenstockError):
            done(result)
            return
        self.stats.accepted += 1
        self._wait(due_ms, result.base_offset)
        done(Scheduled(_id_of(due_ms, result.base_offset), due_ms, partition))

    @on_topic(Operation.WRITE)
    @run_to_completion
    async def cancel(self, principal: Principal, topic: str, entry_id: str) -> None:
        """End an entry before its time. Raises EntryNotFound if none of this topic waits under that id: it may be delivered."""
        due = _parse_id(entry_id)
        if due is None or not self._claim(due):
            raise _not_waiting(topic, entry_id)
        try:
            entries = await self._log.read([due], READY_BYTES_MAX)
            if not entries or entries[0].record.topic != topic:
                raise _not_waiting(topic, entry_id)
            await appended_together(self._engine, [self._log.ends(entries)])
        except OutcomeUnknown:
            self._claimed -= 1  # only a restart can tell whether it has ended
            raise
        except BaseException:
            self._claimed -= 1
            self._wait(*due)
            raise
        self._claimed -= 1
        self.stats.cancelled += 1

    @on_broker(Operation.ADMIN)
    async def list_pending(self, principal: Principal, topic: str = "", after: str = "") -> PendingPage:
        """Return what waits by the time it is due, of all topics or of one, after an entry or from the first on.

        A page covers this many entries, those of other topics included: it may be empty and yet not the last.
        """
        last = _parse_id(after) if after else (0, -1)
        if last is None:
            raise InvalidRequest(f"{after} is not the id of a delayed record: leave it out to list from the beginning")
        in_memory = sorted(due for due in (*self._reading, *self._ready) if due > last)
        wanted = list(
            islice(heapq.merge(in_memory, self._waiting.following(last, LISTED_ENTRIES_MAX)), LISTED_ENTRIES_MAX)
        )
        while (entries := await self._log.read(wanted, READY_BYTES_MAX)) is None:
            wanted = wanted[: len(wanted) // 2]  # too large together; one alone never is
        listed = [
            Pending(each.due_ms, each.offset, each.record)
            for each in sorted(entries, key=lambda each: (each.due_ms, each.offset))
            if topic in ("", each.record.topic)
        ]
        return PendingPage(listed, _id_of(*wanted[-1]) if wanted else "")

    def _claim(self, due: Due) -> bool:
        entry = self._ready.pop(due, None)
        if entry is not None:
            self._ready_bytes -= entry.size_bytes
        elif due in self._reading:
            self._reading.remove(due)
        elif not self._waiting.remove(*due):
            return False
        self._claimed += 1
        return True

    def _wait(self, due_ms: int, offset: int) -> None:
        self._waiting.add(due_ms, offset)
        if due_ms - AHEAD_MS < self._look_at_ms:
            self.look()

    # -- delivering -------------------------------------------------------------------------------------------------------

    async def _deliver_due(self) -> float:
        """Deliver a batch of what is due; returns how long there is nothing more to do."""
        if self._log.partition.failure is not None:
            return LOOK_S_MAX  # entries can neither end nor begin until a restart; the log has said why
        await self._read_ahead()
        now_ms = self._clock.now_ms()
        entries = self._take_due(now_ms)
        if entries:
            await self._deliver(entries, now_ms)
            return 0
        waiting_ms, ready_ms = self._waiting.next_due_ms, self._next_ready_ms()
        self._look_at_ms = min(
            _NEVER_MS if waiting_ms is None else waiting_ms - AHEAD_MS, _NEVER_MS if ready_ms is None else ready_ms
        )
        return min(max(self._look_at_ms - now_ms, 1) / 1000, LOOK_S_MAX)

    async def _read_ahead(self) -> None:
        """Read what is due soon, as far as there is room, and what is due now in any case."""
        now_ms = self._clock.now_ms()
        while (next_ms := self._waiting.next_due_ms) is not None and next_ms <= now_ms + AHEAD_MS:
            full = len(self._ready) >= READY_ENTRIES_MAX or self._ready_bytes >= READY_BYTES_MAX
            if full and (next_ms > now_ms or (self._next_ready_ms() or _NEVER_MS) < next_ms):
                return
            taken = self._waiting.take_until(now_ms + AHEAD_MS, self._read_entries)
            self._reading = set(taken)
            try:
                entries = await self._log.read(taken, READY_BYTES_MAX)
            except BaseException:
                self._wait_again()
                raise
            if entries is None:
                self._read_entries = max(1, self._read_entries // 2)
                self._wait_again()
                continue
            if sum(entry.size_bytes for entry in entries) < READY_BYTES_MAX // 4:
                self._read_entries = min(READ_ENTRIES_MAX, self._read_entries * 2)
            for entry in entries:
                if (entry.due_ms, entry.offset) in self._reading:
                    self._make_ready(entry)
            self._reading.clear()
            await asyncio.sleep(0)

    def _wait_again(self) -> None:
        for due in self._reading:
            self._waiting.add(*due)
        self._reading.clear()

    def _make_ready(self, entry: Loaded) -> None:
        due = (entry.due_ms, entry.offset)
        self._ready[due] = entry
        self._ready_bytes += entry.size_bytes
        heapq.heappush(self._ready_order, due)

    def _next_ready_ms(self) -> int | None:
        while self._ready_order and self._ready_order[0] not in self._ready:
            heapq.heappop(self._ready_order)
        return self._ready_order[0][0] if self._ready_order else None

    def _take_due(self, now_ms: int) -> list[Loaded]:
        """Claim what is due, in order: nothing behind an entry that still waits."""
        waiting_ms = self._waiting.next_due_ms
        until_ms = now_ms if waiting_ms is None else min(now_ms, waiting_ms)
        taken: list[Loaded] = []
        size_bytes = 0
        while len(taken) < DELIVERY_RECORDS_MAX and size_bytes < DELIVERY_BYTES_MAX:
            next_ms = self._next_ready_ms()
            if next_ms is None or next_ms > until_ms:
                break
            due = heapq.heappop(self._ready_order)
            entry = self._ready[due]
            self._claim(due)
            taken.append(entry)
            size_bytes += entry.size_bytes
        return taken

    async def _deliver(self, entries: Sequence[Loaded], now_ms: int) -> None:
        deliverable: list[Loaded] = []
        gathered: dict[Partition, list[Delayed]] = {}
        for entry in entries:
            record = entry.record
            info = self._engine.topics().get(record.topic)
            if info is not None and info.id == record.topic_id:
                partition = self._engine.partition(record.topic, record.partition)
                if partition.failure is not None:
                    continue  # it takes no more writes until a restart, and the entry waits for that in the log
                gathered.setdefault(partition, []).append(record)
            deliverable.append(entry)
        self._claimed -= len(entries)
        if not deliverable:
            return
        parts = [BatchFor(partition, _batch(records, now_ms)) for partition, records in gathered.items()]
        try:
            await appended_together(self._engine, [*parts, self._log.ends(deliverable)])
        except OutcomeUnknown as error:
            # Whether they were delivered is unknown: to deliver them again now might be the second time. A restart will tell.
            log.error("delayed_records_not_delivered", records=len(deliverable), error=str(error))
            return
        except BaseException as error:
            for entry in deliverable:
                self._make_ready(entry)
            if isinstance(error, TopicNotFound):
                return  # a topic was deleted meanwhile, and nothing was written: the next look leaves its records out
            raise
        late_ms = self._clock.now_ms()
        delivered = sum(map(len, gathered.values()))
        self.stats.delivered += delivered
        self.stats.dropped += len(deliverable) - delivered
        for entry in deliverable:
            self.stats.lateness_s.observe(max(late_ms - entry.due_ms, 0) / 1000)


def _batch(records: Sequence[Delayed], now_ms: int) -> Batch:
    return Batch(
        [record.value for record in records],
        [record.key for record in records],
        [record.headers for record in records],
        [expiry_of(now_ms, record.ttl_ms) for record in records],
    )


def expiry_of(now_ms: int, ttl_ms: int) -> int:
    """The time at which a record with this time to live expires, 0 for never."""
    if ttl_ms < 0 or now_ms + ttl_ms > INT64_MAX:
        raise InvalidRequest(f"a time to live of {ttl_ms} ms is out of range: use 0 for none, or up to {INT64_MAX}")
    return now_ms + ttl_ms if ttl_ms else 0


def go_duration(duration_ms: int) -> str:
    """A duration as Go prints it, which is what deployed clients show and search."""
    if duration_ms < 1000:
        return f"{duration_ms}ms" if duration_ms else "0s"
    seconds, ms = divmod(duration_ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{ms:03d}".rstrip("0").rstrip(".") if ms else str(seconds)
    if hours:
        return f"{hours}h{minutes}m{text}s"
    return f"{minutes}m{text}s" if minutes else f"{text}s"


def _id_of(due_ms: int, offset: int) -> str:
    return f"{due_ms}-{offset}"


def _parse_id(entry_id: str) -> Due | None:
    due, dash, offset = entry_id.partition("-")
    if not dash or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in (due, offset)):
        return None
    return int(due), int(offset)


def _not_waiting(topic: str, entry_id: str) -> EntryNotFound:
    return EntryNotFound(
        f"delayed message not found: {entry_id} does not wait in topic {topic}; it may be delivered or cancelled"
    )
