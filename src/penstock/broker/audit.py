"""The audit trail: who logged in, who was refused, who changed what; records of the internal topic `__audit`, oldest deleted first.

Noting an event never makes the operation wait. Events gather while an append is in flight and leave as one batch; above a bound the
newest are dropped and counted. A trail that cannot be written does not stop the broker: it is counted, and logged once until writing
works again.

Refusals can come as fast as a client can send, so equal ones are noted once in a while, with how many there were in between.

Values are JSON, so that the trail can be read by whatever reads topics. An event's id is its offset.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
import structlog

from penstock.broker.access import AccessPolicy, Operation, Principal, Resource, on_broker
from penstock.broker.throttle import source_of
from penstock.clock import Clock
from penstock.errors import InvalidRequest, PenstockError
from penstock.log.api import Appended, Batch, Engine, Partition, TopicConfig
from penstock.log.block import Block
from penstock.workers import Check, Worker, WorkerPool

AUDIT_TOPIC: Final = "__audit"
AUDIT_CONFIG: Final = TopicConfig(
    retention_ms=90 * 24 * 3600 * 1000, retention_bytes=64 << 20, segment_bytes=8 << 20, segment_ms=24 * 3600 * 1000
)
WAITING_EVENTS_MAX: Final = 10_000
FOLD_S: Final = 5.0
"""Equal refusals within this time are one event."""
FOLDED_MAX: Final = 1_000
LIMIT_DEFAULT: Final = 100
EVENTS_MAX: Final = 10_000
"""The most that one query or export returns."""
SKIP_MAX: Final = 1_000_000
TEXT_BYTES_MAX: Final = 1_024
EVENTS_PER_CHECK: Final = 64
"""Decoded and compared without a pause: less than a millisecond."""
"""Of each text that a client chose."""

log = structlog.get_logger("penstock.broker.audit")


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
    """What events are asked for. Times in milliseconds, 0 for open; empty texts and lists match everything."""

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
    """Refusals that were counted in an event of another."""
    dropped: int = 0
    """Events that were not written: too many waited, or the log refused them."""


class Audit:
    def __init__(
        self, engine: Engine, clock: Clock, access: AccessPolicy, workers: WorkerPool, *, node: str = ""
    ) -> None:
        self.access = access
        self.stats = AuditStats()
        self._engine = engine
        self._clock = clock
        self._workers = workers
        self._node = node
        self._partition: Partition | None = None
        self._waiting: list[AuditEvent] = []
        self._in_flight = 0
        self._noted = 0
        self._settled = 0
        self._came_back = asyncio.Event()
        self._failing = False
        self._closed = False
        self._folded: OrderedDict[tuple[str, ...], tuple[float, int]] = OrderedDict()
        self._querying = asyncio.Lock()

    async def start(self) -> None:
        if AUDIT_TOPIC not in self._engine.topics():
            await self._engine.create_topic(AUDIT_TOPIC, AUDIT_CONFIG)
        self._partition = self._engine.partition(AUDIT_TOPIC, 0)

    async def close(self) -> None:
        """Take no more events and wait for those in flight."""
        self._closed = True
        await self.written()

    async def written(self) -> None:
        """Done when everything noted so far is in the log, or could not be written."""
        noted = self._noted
        while self._settled < noted:
            self._came_back.clear()
            await self._came_back.wait()

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
        self._add(
            AuditEvent(
                self._clock.now_ms(),
                kind,
                _bounded(principal.name),
                source_of(principal.address),
                _bounded(resource),
                _bounded(action or kind.rpartition(".")[2]),
                result,
                self._node,
                {name: _bounded(text) for name, text in (details or {}).items()},
            )
        )

    def note_refusal(self, principal: Principal, kind: str, resource: str, action: str, result: str) -> None:
        """Something was refused; equal refusals within a few seconds become one event."""
        key = (kind, _bounded(principal.name), source_of(principal.address), _bounded(resource), action)
        now_s = self._clock.monotonic()
        noted_s, folded = self._folded.get(key, (now_s - FOLD_S, 0))
        if now_s - noted_s < FOLD_S:
            self._folded[key] = (noted_s, folded + 1)
            self.stats.folded += 1
            return
        self._folded[key] = (now_s, 0)
        self._folded.move_to_end(key)
        if len(self._folded) > FOLDED_MAX:
            self._folded.popitem(last=False)
        details = {"repeated": str(folded)} if folded else None
        self.note(principal, kind, resource, action=action, result=result, details=details)

    def note_denied(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        self.note_refusal(principal, "access.denied", resource.name or resource.kind.value, operation.value, "denied")

    def _add(self, event: AuditEvent) -> None:
        if self._partition is None or self._closed or len(self._waiting) >= WAITING_EVENTS_MAX:
            self.stats.dropped += 1
            return
        self._waiting.append(event)
        self._noted += 1
        if not self._in_flight:
            self._append()

    def _append(self) -> None:
        assert self._partition is not None
        events, self._waiting = self._waiting, []
        self._in_flight = len(events)
        self._partition.append(Batch([_ENCODER.encode(event) for event in events]), self._appended)

    def _appended(self, result: Appended | PenstockError) -> None:
        if isinstance(result, PenstockError):
            self.stats.dropped += self._in_flight
            if not self._failing:
                log.error("audit_not_written", events=self._in_flight, reason=str(result))
        else:
            self.stats.written += self._in_flight
        self._failing = isinstance(result, PenstockError)
        self._settled += self._in_flight
        self._in_flight = 0
        self._came_back.set()
        if self._waiting:
            self._append()

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
            return await self._scan(query, worker or self._workers.worker())

    async def _scan(self, query: AuditQuery, worker: Worker) -> AuditPage:
        partition = self._engine.partition(AUDIT_TOPIC, 0)
        offset = max(partition.start_offset, await partition.offset_at(query.start_ms) if query.start_ms > 0 else 0)
        newest: deque[AuditEvent] = deque(maxlen=query.limit + query.skip)
        total = 0
        while offset < partition.committed_end:
            blocks = await partition.read(offset)
            if not blocks:
                break
            # Decoding a megabyte of events takes longer than anyone should wait for the loop.
            found = await worker.run(partial(_matching, blocks, offset, query))
            newest += found
            total += len(found)
            offset = blocks[-1].next_offset
        newest.reverse()
        return AuditPage(list(newest)[query.skip :], total)


_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(AuditEvent)


def _matching(blocks: Sequence[Block], first: int, query: AuditQuery, check: Check) -> list[AuditEvent]:
    found = []
    for block in blocks:
        for row, (offset, value) in enumerate(zip(block.offsets(), block.values(), strict=True)):
            if row % EVENTS_PER_CHECK == 0:
                check()
            if offset >= first and value is not None:
                event = msgspec.structs.replace(_DECODER.decode(value), id=str(offset))
                if query.matches(event):
                    found.append(event)
    return found


def _bounded(text: str) -> str:
    return text if len(text) <= TEXT_BYTES_MAX else text[:TEXT_BYTES_MAX] + "..."
