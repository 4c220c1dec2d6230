"""The audit trail: who logged in, who was refused, who changed what; records of two internal topics, oldest deleted first.

Changes are in `__audit`, logins and refusals in `__audit_access`. Each topic has its own retention, so refusals, which anyone can cause
without credentials, never push out changes.

Noting an event never makes the operation wait. Events gather while an append is in flight and leave as one batch; above a bound the
newest are dropped and counted. A trail that cannot be written does not stop the broker: it is counted, and logged once until writing
works again.

Logins and refusals can come as fast as a client can send. Equal ones are folded into one event, which the next one counts in
`repeated`; different refusals from one source are limited per minute, and the first of the next minute counts the rest in `suppressed`.

Values are JSON, so that the trail can be read by whatever reads topics. An event's id is its offset; that of a login or refusal has the
prefix `a`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import msgspec
import structlog

from penstock.broker.access.checks import AccessPolicy, Operation, Principal, Resource, on_broker
from penstock.broker.access.throttle import source_of
from penstock.broker.limits import BrokerLimits
from penstock.broker.table import ensure_internal_topic
from penstock.clock import Clock
from penstock.errors import InvalidRequest, PenstockError
from penstock.log.api import Appended, Batch, Engine, Partition, TopicConfig, follow_all
from penstock.log.block import Block
from penstock.workers import Check, Worker, WorkerPool

AUDIT_TOPIC: Final = "__audit"
ACCESS_AUDIT_TOPIC: Final = "__audit_access"
ACCESS_ID_PREFIX: Final = "a"
ACCESS_TYPES: Final = frozenset({"auth.success", "auth.failure", "access.denied"})
SEGMENT_BYTES: Final = 8 << 20
SEGMENT_MS: Final = 24 * 3600 * 1000
WAITING_EVENTS_MAX: Final = 10_000
"""For each topic."""
DEDUP_WINDOW_S: Final = 5.0
"""Equal logins or refusals within this time are one event."""
FOLDED_MAX: Final = 1_000
REFUSALS_PER_SOURCE_MAX: Final = 30
"""Different refusals from one source that become events within `REFUSALS_WINDOW_S`."""
REFUSALS_WINDOW_S: Final = 60.0
SOURCES_MAX: Final = 10_000
"""Sources whose refusals are counted; the one whose minute began first is forgotten first."""
LIMIT_DEFAULT: Final = 100
EVENTS_MAX: Final = 10_000
"""The most that one query or export returns."""
SKIP_MAX: Final = 1_000_000
EVENTS_PER_CHECK: Final = 64
"""Decoded and compared without a pause: less than a millisecond."""
NAME_BYTES_KEPT: Final = 256
"""For each name that a client chose: existing names are never longer."""
DETAIL_BYTES_MAX: Final = 1_024
TRUNCATED: Final = "..."

log = structlog.get_logger(__name__)


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    ts_ms: int
    type: str
    user: str = ""
    client_ip: str = ""
    resource: str = ""
    action: str = ""
    result: str = "success"
    node: str = ""
    details: dict[str, str] = {}
    id: str = ""


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Which events to return. Times in milliseconds, 0 for open; empty texts and lists match everything."""

    start_ms: int = 0
    end_ms: int = 0
    types: Sequence[str] = ()
    user: str = ""
    resource: str = ""
    result: str = ""
    search: str = ""
    limit: int = LIMIT_DEFAULT
    skip: int = 0

    def matches(self, event: AuditEvent) -> bool:
        return (
            event.ts_ms >= self.start_ms
            and (not self.end_ms or event.ts_ms <= self.end_ms)
            and (not self.types or event.type in self.types)
            and (not self.user or event.user == self.user)
            and (not self.resource or event.resource == self.resource)
            and (not self.result or event.result == self.result)
            and (not self.search or self._found_in(event))
        )

    def _found_in(self, event: AuditEvent) -> bool:
        texts = (event.type, event.user, event.client_ip, event.resource, event.action, *event.details.values())
        wanted = self.search.lower()
        return any(wanted in text.lower() for text in texts)


@dataclass(frozen=True, slots=True)
class AuditPage:
    events: list[AuditEvent]
    """Newest first."""
    total: int
    """How many match in all."""


@dataclass(slots=True)
class AuditStats:
    written: int = 0
    folded: int = 0
    """Logins and refusals that were not written but counted in another event."""
    dropped: int = 0
    """Events that were not written: too many waited, or the log refused them."""


class _Trail:
    """One topic of events, with those that wait to be appended to it."""

    def __init__(
        self, engine: Engine, topic: str, limits: BrokerLimits, stats: AuditStats, id_prefix: str = ""
    ) -> None:
        self.topic = topic
        self._config = TopicConfig(
            retention_ms=limits.audit_retention_ms,
            retention_bytes=limits.audit_retention_bytes,
            segment_bytes=SEGMENT_BYTES,
            segment_ms=SEGMENT_MS,
        )
        self.id_prefix = id_prefix
        self.noted = 0
        self.settled = 0
        """Noted events that are in the log, or could not be written."""
        self._engine = engine
        self._stats = stats
        self._partition: Partition | None = None
        self._waiting: list[AuditEvent] = []
        self._in_flight = 0
        self._came_back = asyncio.Event()
        self._failing = False

    async def start(self) -> None:
        self._engine.share(self.topic)  # every node notes what it saw
        self._partition = await ensure_internal_topic(self._engine, self.topic, self._config)

    async def apply_retention(self) -> None:
        given = self._engine.topic(self.topic).config
        wanted = replace(given, retention_ms=self._config.retention_ms, retention_bytes=self._config.retention_bytes)
        if wanted == given:
            return
        try:
            await self._engine.alter_topic(self.topic, wanted)
        except (
            PenstockError
        ) as error:  # a full disk, say, must not keep the broker from starting; the next start tries again
            log.warning("audit_retention_not_changed", topic=self.topic, reason=str(error))
            return
        log.info(
            "audit_retention_changed",
            topic=self.topic,
            retention_ms=wanted.retention_ms,
            retention_bytes=wanted.retention_bytes,
        )

    async def written(self) -> None:
        noted = self.noted
        while self.settled < noted:
            self._came_back.clear()
            await self._came_back.wait()

    def add(self, event: AuditEvent) -> None:
        if self._partition is None or len(self._waiting) >= WAITING_EVENTS_MAX:
            self._stats.dropped += 1
            return
        self._waiting.append(event)
        self.noted += 1
        if not self._in_flight:
            self._append()

    def _append(self) -> None:
        assert self._partition is not None
        events, self._waiting = self._waiting, []
        self._in_flight = len(events)
        self._partition.append(Batch([_ENCODER.encode(event) for event in events]), self._appended)

    def _appended(self, result: Appended | PenstockError) -> None:
        if isinstance(result, PenstockError):
            self._stats.dropped += self._in_flight
            if not self._failing:
                log.error("audit_not_written", topic=self.topic, events=self._in_flight, reason=str(result))
        else:
            self._stats.written += self._in_flight
        self._failing = isinstance(result, PenstockError)
        self.settled += self._in_flight
        self._in_flight = 0
        self._came_back.set()
        if self._waiting:
            self._append()

    async def scan(self, query: AuditQuery, worker: Worker) -> tuple[Sequence[AuditEvent], int]:
        """Return the newest events that match, oldest first, and how many match in all."""
        partition = self._engine.partition(self.topic, 0)
        await follow_all([partition])
        offset = max(partition.start_offset, await partition.offset_at(query.start_ms) if query.start_ms > 0 else 0)
        newest: deque[AuditEvent] = deque(maxlen=query.limit + query.skip)
        total = 0
        async for blocks in partition.read_to_end(offset):
            # Decoding a megabyte of events takes longer than anyone should wait for the loop.
            found = await worker.run(partial(_matching, blocks, offset, query, self.id_prefix))
            newest += found
            total += len(found)
        return newest, total


class _Window(NamedTuple):
    """What was noted of one source since a time."""

    start_s: float
    events: int
    suppressed: int


class Audit:
    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        limits: BrokerLimits,
        access: AccessPolicy,
        workers: WorkerPool,
        *,
        node: str = "",
    ) -> None:
        self.access = access
        self.stats = AuditStats()
        self._clock = clock
        self._workers = workers
        self._node = node
        self._changes = _Trail(engine, AUDIT_TOPIC, limits, self.stats)
        self._accesses = _Trail(engine, ACCESS_AUDIT_TOPIC, limits, self.stats, ACCESS_ID_PREFIX)
        self._closed = False
        self._folded: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()
        """By what is equal: when it was noted, and how often it came since."""
        self._sources: OrderedDict[str, _Window] = OrderedDict()
        self._querying = asyncio.Lock()

    async def start(self) -> None:
        for trail in (self._changes, self._accesses):
            await trail.start()

    async def apply_retention(self) -> None:
        """Give topics that an earlier configuration has created the retention of this one. For the node that leads."""
        for trail in (self._changes, self._accesses):
            await trail.apply_retention()

    async def close(self) -> None:
        """Take no more events and wait for those in flight."""
        self._closed = True
        await self.written()

    async def written(self) -> None:
        """Done when everything noted so far is in the log, or could not be written."""
        await asyncio.gather(self._changes.written(), self._accesses.written())

    # -- noting -----------------------------------------------------------------------------------------------------------

    def note(
        self,
        principal: Principal,
        kind: str,
        resource: str = "",
        *,
        action: str = "",
        result: str = "success",
        details: Mapping[str, str] | None = None,
    ) -> None:
        """Something was done."""
        if self._closed:
            self.stats.dropped += 1
            return
        event = AuditEvent(
            self._clock.now_ms(),
            kind,
            _bounded(principal.name),
            source_of(principal.address),
            _bounded(resource),
            _bounded(action or kind.rpartition(".")[2]),
            result,
            self._node,
            {name: _bounded(text, DETAIL_BYTES_MAX) for name, text in (details or {}).items()},
        )
        (self._accesses if kind in ACCESS_TYPES else self._changes).add(event)

    def note_login(self, principal: Principal) -> None:
        """A login succeeded; equal ones within a few seconds become one event."""
        key = ("auth.success", _bounded(principal.name), source_of(principal.address))
        if (details := self._unfolded(key)) is not None:
            self.note(principal, "auth.success", principal.name, action="login", details=details)

    def note_refusal(self, principal: Principal, kind: str, resource: str, action: str, result: str) -> None:
        """Something was refused; equal refusals within a few seconds become one event, and each source has few per minute."""
        source = source_of(principal.address)
        key = (kind, _bounded(principal.name), source, _bounded(resource), action, result)
        details = self._unfolded(key, source)
        if details is not None:
            self.note(principal, kind, resource, action=action, result=result, details=details)

    def note_throttled(self, address: str) -> None:
        """A login was refused without a look at its credentials: such attempts are counted by address, whatever they say."""
        self.note_refusal(Principal("", address=address), "auth.failure", "", "login", "throttled")

    def _unfolded(self, key: tuple[str, ...], source: str | None = None) -> dict[str, str] | None:
        """Return the details of an event to note, or None if it is only counted. A source is limited if it is given."""
        now_s = self._clock.monotonic()
        noted_s, folded = self._folded.get(key, (now_s - DEDUP_WINDOW_S, 0))
        if now_s - noted_s < DEDUP_WINDOW_S:
            self._folded[key] = (noted_s, folded + 1)
            self.stats.folded += 1
            return None
        suppressed = 0 if source is None else self._admitted(source, now_s)
        if suppressed is None:
            self.stats.folded += 1
            return None
        self._folded[key] = (now_s, 0)
        self._folded.move_to_end(key)
        if len(self._folded) > FOLDED_MAX:
            self._folded.popitem(last=False)
        counts = {"repeated": folded, "suppressed": suppressed}
        return {name: str(count) for name, count in counts.items() if count}

    def _admitted(self, source: str, now_s: float) -> int | None:
        """Return how many refusals were suppressed before this one, or None if this one is."""
        window = self._sources.get(source, _Window(now_s, 0, 0))
        suppressed = 0
        if now_s - window.start_s >= REFUSALS_WINDOW_S:
            suppressed = window.suppressed
            self._sources.pop(source)
            window = _Window(now_s, 0, 0)
        if window.events >= REFUSALS_PER_SOURCE_MAX:
            self._sources[source] = window._replace(suppressed=window.suppressed + 1)
            return None
        self._sources[source] = window._replace(events=window.events + 1)
        if len(self._sources) > SOURCES_MAX:
            self._sources.popitem(last=False)
        return suppressed

    def note_denied(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        self.note_refusal(principal, "access.denied", resource.name or resource.kind.value, operation.value, "denied")

    # -- asking -----------------------------------------------------------------------------------------------------------

    @on_broker(Operation.ADMIN)
    async def query(self, principal: Principal, query: AuditQuery, worker: Worker | None = None) -> AuditPage:
        """Return the events that match, newest first, with all that was noted before.

        Reads from the query's start on, one query at a time, and ends with `worker` or the broker. Raises ShuttingDown then.
        """
        if not 0 <= query.limit <= EVENTS_MAX or not 0 <= query.skip <= SKIP_MAX:
            raise InvalidRequest(
                f"limit {query.limit}, offset {query.skip}: at most {EVENTS_MAX} events at a time, after at most {SKIP_MAX}"
            )
        async with self._querying:
            await self.written()
            (changes, changes_total), (accesses, accesses_total) = [
                await trail.scan(query, worker or self._workers.worker()) for trail in (self._changes, self._accesses)
            ]
        # Of equal times the login comes before what it allows.
        events = sorted((*accesses, *changes), key=lambda event: event.ts_ms)[::-1]
        return AuditPage(events[query.skip : query.skip + query.limit], changes_total + accesses_total)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(AuditEvent)


def _matching(blocks: Sequence[Block], first: int, query: AuditQuery, id_prefix: str, check: Check) -> list[AuditEvent]:
    found = []
    for block in blocks:
        for row, (offset, value) in enumerate(zip(block.offsets(), block.values(), strict=True)):
            if row % EVENTS_PER_CHECK == 0:
                check()
            if offset >= first and value is not None:
                event = msgspec.structs.replace(_DECODER.decode(value), id=f"{id_prefix}{offset}")
                if query.matches(event):
                    found.append(event)
    return found


def _bounded(text: str, bytes_max: int = NAME_BYTES_KEPT) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= bytes_max else data[:bytes_max].decode(errors="ignore") + TRUNCATED
