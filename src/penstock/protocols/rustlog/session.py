"""One RustLog conversation: requests in, replies out in the same order, and nothing of sockets.

Requests wait in a queue that the connection bounds (`hold`: above its bound the socket is not read). PRODUCE requests are started one
after another without waiting for each other's commit. Any other request waits until everything before it is answered, so that a FETCH
behind a PRODUCE sees its records; and whatever comes behind it waits for it. While the peer does not take its replies (`writable` is
False), nothing is started.

Refusals are answered with an error in the dialect of the request and the conversation goes on. A frame of impossible length is
answered too, after everything before it, and ends it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.records.spreading import Placement, Scattered, offsets_by_unit
from penstock.clock import Clock
from penstock.errors import InvalidRequest, PenstockError, ShuttingDown
from penstock.net.session import Connection
from penstock.protocols.replies import ReplyQueue, ReplySlot
from penstock.protocols.rustlog import binary_dialect, json_dialect
from penstock.protocols.rustlog.codec import RequestDecoder
from penstock.protocols.rustlog.fetching import Fetcher
from penstock.protocols.rustlog.messages import BadRequest, BrokenFrame, Call, ProduceRun, Request, Undecoded
from penstock.protocols.rustlog.metrics import RustLogStats
from penstock.protocols.rustlog.operations import Operations
from penstock.protocols.rustlog.refusals import encode_error, internal_error, malformed, refusal
from penstock.protocols.rustlog.wire import (
    LENGTH_BYTES,
    LOGIN_PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    Code,
    Dialect,
    Opcode,
)
from penstock.protocols.turns import InTurns

REQUEST_BYTES_MIN = 256
"""What a waiting request counts for at least: a frame may take 5 bytes on the wire, its message takes some 200 in memory."""
CALLS_PER_TURN_MAX = 64
"""Requests other than PRODUCE that one session answers before it lets others have their turn of the loop."""
_PRODUCE = int(Opcode.PRODUCE)

log = structlog.get_logger("penstock.protocols.rustlog")


class RustLog:
    """What all sessions of one listener share. Called with a connection, it opens a session: it is the listener's factory."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        principal: Principal = ANONYMOUS,
        login_required: bool = False,
    ) -> None:
        """Where `login_required`, requests of clients that nothing identifies have at most `LOGIN_PAYLOAD_BYTES_MAX`."""
        self.broker = broker
        self.clock = clock
        self.principal = principal
        self.login_required = login_required
        self.fetcher = Fetcher(clock)
        self.stats = RustLogStats()

    def __call__(self, connection: Connection) -> RustLogSession:
        return RustLogSession(self, connection)


class RustLogSession(InTurns):
    """Implements `penstock.net.session.Session`."""

    __slots__ = (
        "_broker",
        "_bug_logged",
        "_clock",
        "_connection",
        "_decoder",
        "_operations",
        "_principal",
        "_replies",
        "_stats",
        "_waiting",
        "_worker",
        "_writes_in_flight",
    )

    def __init__(self, shared: RustLog, connection: Connection) -> None:
        super().__init__()
        self._broker = shared.broker
        self._clock = shared.clock
        self._stats = shared.stats
        self._worker = shared.broker.workers.worker()
        self._connection = connection
        self._principal = shared.principal.seen_at(connection.peer, connection.principal_hint)
        self._operations = Operations(shared.broker, shared.fetcher, shared.clock, self._principal, shared.stats)
        stranger = shared.login_required and not self._principal.name
        self._decoder = RequestDecoder(LOGIN_PAYLOAD_BYTES_MAX if stranger else PAYLOAD_BYTES_MAX)
        self._replies = ReplyQueue(connection.send, self._loop.call_soon)
        self._waiting: deque[Request] = deque()
        self._writes_in_flight = 0
        self._bug_logged = False
        self._stats.sessions_open += 1
        connection.set_authenticated(bool(self._principal.name))

    # --- what the network calls ---

    def receive(self, data: bytes) -> None:
        requests = self._decoder.feed(data)
        if requests:
            self._connection.hold(sum(map(_held_bytes, requests)))
            self._waiting += requests
            self._advance()
        self._connection.frame_pending(self._decoder.partial)

    def resume(self) -> None:
        self._advance()

    def closed(self) -> None:
        self._stats.sessions_open -= 1
        self._worker.stop()
        waiting, self._waiting = self._waiting, deque()
        if waiting:
            self._connection.release(sum(map(_held_bytes, waiting)))

    # --- the order of things ---

    def _advance(self) -> None:
        """Start what may be started."""
        calls = 0
        while self._waiting and not self._busy and self._connection.writable:
            request = self._waiting[0]
            if isinstance(request, ProduceRun) and request.values:
                self._waiting.popleft()
                self._stats.requests[_PRODUCE] += len(request.counts)
                self._write(request, self._replies.reserve(), _held_bytes(request))
                continue
            if isinstance(request, Undecoded):
                self._waiting.popleft()
                self._in_background(self._decode(request), partial(self._decoding_failed, request))
                break
            if self._writes_in_flight:
                break
            if calls == CALLS_PER_TURN_MAX:
                self._advance_later()
                break
            calls += 1
            self._waiting.popleft()
            if isinstance(request, BrokenFrame):
                self._end(request)
            elif isinstance(request, ProduceRun):
                self._write_nothing(request)
            else:
                self._call(request)
        self._replies.flush()

    def _end(self, broken: BrokenFrame) -> None:
        """Answer a frame that cannot be; everything before it is answered by now."""
        self._stats.errors += 1
        self._answer(
            self._replies.reserve(), encode_error(broken.dialect, Code.FRAME, broken.message), _held_bytes(broken)
        )
        self._replies.flush()
        self._connection.close()

    # --- requests that are decoded in a thread ---

    async def _decode(self, undecoded: Undecoded) -> None:
        """Put what a payload holds in its place at the head of the queue. Writes before it may still be in flight."""
        try:
            request = await self._worker.run(partial(json_dialect.decode_request, undecoded.payload))
        except ShuttingDown as error:
            self._decoding_failed(undecoded, error)
            return
        if self._worker.stopped:
            self._connection.release(_held_bytes(undecoded))
            return
        # Held before the other is released, so that the connection never seems to owe nothing.
        self._connection.hold(_held_bytes(request))
        self._connection.release(_held_bytes(undecoded))
        self._waiting.appendleft(request)

    def _decoding_failed(self, undecoded: Undecoded, error: Exception) -> None:
        call = Call(Dialect.JSON, 0, BadRequest("not decoded"), undecoded.request_bytes)
        self._answer(self._replies.reserve(), self._error(call, error), _held_bytes(undecoded))

    # --- writes ---

    def _write(self, run: ProduceRun, slot: ReplySlot, held_bytes: int) -> None:
        self._writes_in_flight += 1
        done = partial(self._written, run, slot, held_bytes, self._clock.monotonic())
        try:
            self._broker.produce(self._principal, run.topic, run.partition, run.values, units=run.counts, done=done)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._writes_in_flight -= 1
            self._answer(slot, self._error(run, error, len(run.counts)) * len(run.counts), held_bytes)

    def _written(
        self,
        run: ProduceRun,
        slot: ReplySlot,
        held_bytes: int,
        started_s: float,
        placed: list[Placement] | Scattered,
    ) -> None:
        assert isinstance(placed, list)  # one partition was asked for
        encode = json_dialect.encode_produced if run.dialect is Dialect.JSON else binary_dialect.encode_produced
        records, size_bytes = len(run.values), sum(map(len, run.values))
        replies: list[bytes] = []
        first = 0
        for count, offset in zip(run.counts, offsets_by_unit(placed, run.counts), strict=True):
            if isinstance(offset, int):
                replies.append(encode(offset, count))
            else:
                replies.append(self._error(run, offset))
                records -= count
                size_bytes -= sum(map(len, run.values[first : first + count]))
            first += count
        if records:
            self._stats.produced_records += records
            self._stats.produced_bytes += size_bytes
            self._stats.produce_seconds.observe(self._clock.monotonic() - started_s)
        self._writes_in_flight -= 1
        self._answer(slot, b"".join(replies), held_bytes)
        if self._writes_in_flight:
            self._replies.flush_soon()
        else:
            self._advance()

    def _write_nothing(self, run: ProduceRun) -> None:
        """No records are no write; deployed brokers answer offset 0 whatever is there."""
        self._stats.requests[_PRODUCE] += 1
        try:
            self._operations.check_partition(run.topic, run.partition)
            encode = json_dialect.encode_produced if run.dialect is Dialect.JSON else binary_dialect.encode_produced
            reply = encode(0, 0)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._error(run, error)
        self._answer(self._replies.reserve(), reply, _held_bytes(run))

    # --- everything else ---

    def _call(self, call: Call) -> None:
        slot = self._replies.reserve()
        self._stats.requests[call.opcode] += 1
        if isinstance(call.body, BadRequest):
            self._stats.errors += 1
            self._answer(slot, malformed(call, call.body), _held_bytes(call))
            return
        try:
            answer = self._operations.answer(call)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            answer = self._error(call, error)
        if isinstance(answer, bytes):
            self._answer(slot, self._within_frame(call, answer), _held_bytes(call))
        else:
            self._in_background(self._finish(call, answer, slot), partial(self._work_failed, call, slot))

    async def _finish(self, call: Call, answer: Coroutine[Any, Any, bytes], slot: ReplySlot) -> None:
        try:
            reply = self._within_frame(call, await answer)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._error(call, error)
        self._answer(slot, reply, _held_bytes(call))

    def _work_failed(self, call: Call, slot: ReplySlot, error: Exception) -> None:
        """Answer what background work left unanswered when it raised."""
        if slot.data is None:
            self._answer(slot, self._error(call, error), _held_bytes(call))

    def _within_frame(self, call: Call, reply: bytes) -> bytes:
        """Lists of very many topics fit into no frame."""
        if len(reply) - LENGTH_BYTES <= PAYLOAD_BYTES_MAX:
            return reply
        return self._error(call, InvalidRequest(f"the reply would take more than {PAYLOAD_BYTES_MAX} bytes"))

    def _answer(self, slot: ReplySlot, reply: bytes, held_bytes: int) -> None:
        self._replies.fill(slot, reply)
        self._connection.release(held_bytes)

    def _error(self, request: ProduceRun | Call, error: Exception, count: int = 1) -> bytes:
        """The ERROR frame for `count` requests that ended this way."""
        self._stats.errors += count
        if isinstance(error, PenstockError):
            return refusal(request, error)
        self._stats.internal_errors += count
        if not self._bug_logged:
            self._bug_logged = True
            connection = self._connection
            log.error("request_failed", listener=connection.listener, peer=connection.peer, exc_info=error)
        return internal_error(request.dialect)


def _held_bytes(request: Request) -> int:
    return REQUEST_BYTES_MIN if isinstance(request, BrokenFrame) else max(request.request_bytes, REQUEST_BYTES_MIN)
