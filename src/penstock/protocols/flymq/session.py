"""One FlyMQ conversation: requests in, replies out in the same order, and nothing of sockets.

Requests wait in a queue that the connection bounds (`hold`: above its bound the socket is not read). Writes are started one after
another without waiting for each other's commit. Any other request waits until everything before it is answered, so that a FETCH
behind a PRODUCE on one connection sees that record; and whatever comes behind it waits for it. While the peer does not take its
replies (`writable` is False), nothing is started.

Refusals are answered with ERROR and the conversation goes on; only broken framing ends it. An exception that is no refusal is a bug
of ours: it is logged once per session, answered with `internal error`, and the conversation goes on too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.records.spreading import Placement, Scattered
from penstock.clock import Clock
from penstock.errors import PenstockError, ShuttingDown
from penstock.net.session import Connection
from penstock.protocols.flymq.codec import Call, CodecLimits, Request, RequestDecoder, Undecoded, decode_undecoded
from penstock.protocols.flymq.errors import encode_error
from penstock.protocols.flymq.operations.operation import OPERATIONS, BadRequest, Operation
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.operations.transactions import TxnProduce
from penstock.protocols.flymq.record_layouts import Failed, Placed, ProduceRun, encode_produced, encode_scattered
from penstock.protocols.flymq.server.dispatch import Answer, Caller, Dialect, Node, dispatch, is_write, refusal, write
from penstock.protocols.flymq.server.fetching import Fetcher, FetchLimits
from penstock.protocols.replies import ReplyQueue, ReplySlot
from penstock.protocols.turns import InTurns

REQUEST_BYTES_MIN = 256
"""What a waiting request counts for at least: a header alone takes 8 bytes on the wire, its message some 200 in memory."""
CALLS_PER_TURN_MAX = 64
"""Requests other than writes that one session answers before it lets others have their turn of the loop."""
_PRODUCE = Produce.opcode
_INTERNAL_ERROR = "internal error: the server's log has the details"

log = structlog.get_logger("penstock.protocols.flymq")


@dataclass(slots=True)
class FlyMQStats:
    """What the sessions of one listener count; plain numbers, exported on scrape."""

    requests: list[int] = field(default_factory=lambda: [0] * 256)
    """By opcode, unknown ones too."""
    errors: int = 0
    """Requests answered with ERROR."""
    internal_errors: int = 0
    """Those of them that were our fault."""

    def requests_by_name(self) -> dict[str, int]:
        """Only what has been asked for; opcodes that are not in the contract together, as `unknown`."""
        known = {opcode: operation.opcode_name.lower() for opcode, operation in OPERATIONS.items()}
        named: dict[str, int] = {}
        for opcode, count in enumerate(self.requests):
            if count:
                name = known.get(opcode, "unknown")
                named[name] = named.get(name, 0) + count
        return named


class FlyMQ:
    """What all sessions of one listener share. Called with a connection, it opens a session: it is the listener's factory."""

    def __init__(
        self,
        broker: Broker,
        *,
        clock: Clock,
        node: Node,
        principal: Principal = ANONYMOUS,
        login_required: bool = False,
        dialect: Dialect = Dialect.AUTO,
        codec_limits: CodecLimits | None = None,
        fetch_limits: FetchLimits | None = None,
    ) -> None:
        """Where a login is required, clients that have not logged in may send small requests only."""
        self.broker = broker
        self.login_required = login_required
        self.clock = clock
        self.node = node
        self.principal = principal
        self.dialect = dialect
        self.codec_limits = codec_limits or CodecLimits()
        self.fetcher = Fetcher(fetch_limits or FetchLimits(), clock)
        self.stats = FlyMQStats()

    def __call__(self, connection: Connection) -> FlyMQSession:
        return FlyMQSession(self, connection)


class FlyMQSession(InTurns):
    """Implements `penstock.net.session.Session`."""

    __slots__ = (
        "_broker",
        "_bug_logged",
        "_caller",
        "_connection",
        "_decoder",
        "_id",
        "_login_pending",
        "_replies",
        "_stats",
        "_waiting",
        "_worker",
        "_writes_in_flight",
    )

    def __init__(self, shared: FlyMQ, connection: Connection) -> None:
        super().__init__()
        self._broker = shared.broker
        self._worker = shared.broker.workers.worker()
        self._stats = shared.stats
        self._connection = connection
        self._id = f"{connection.listener}/{connection.peer}"
        self._caller = Caller(
            shared.broker,
            shared.fetcher,
            shared.clock,
            shared.node,
            shared.dialect,
            shared.principal.seen_at(connection.peer, connection.principal_hint),
            self._id,
            self._worker,
            partial(self._error, TxnProduce.opcode),
        )
        self._login_pending = shared.login_required and not self._principal.name
        self._decoder = RequestDecoder(shared.codec_limits, login_required=self._login_pending)
        self._replies = ReplyQueue(connection.send, self._loop.call_soon)
        self._waiting: deque[Request] = deque()
        self._writes_in_flight = 0
        self._bug_logged = False
        connection.set_authenticated(not self._login_pending)

    @property
    def _principal(self) -> Principal:
        return self._caller.principal

    # --- what the network calls ---

    def receive(self, data: bytes) -> None:
        self._note_login()
        requests = self._decoder.feed(data)
        if requests:
            self._connection.hold(sum(map(_held_bytes, requests)))
            self._waiting += requests
            self._advance()
        self._connection.frame_pending(self._decoder.partial)
        if self._decoder.violation is not None:
            raise self._decoder.violation

    def resume(self) -> None:
        self._advance()

    def closed(self) -> None:
        self._worker.stop()
        self._broker.unsubscribe(self._id)
        waiting, self._waiting = self._waiting, deque()
        if waiting:
            self._connection.release(sum(map(_held_bytes, waiting)))

    # --- the order of things ---

    def _advance(self) -> None:
        """Start what may be started."""
        calls = 0
        while self._waiting and not self._busy and self._connection.writable:
            request = self._waiting[0]
            if isinstance(request, ProduceRun):
                self._waiting.popleft()
                self._produce(request)
                continue
            if isinstance(request.body, Undecoded):
                self._waiting.popleft()
                self._decode(request)
                break
            single_write = is_write(request.body)
            if self._writes_in_flight and not single_write:
                break
            if calls == CALLS_PER_TURN_MAX:
                self._advance_later()
                break
            calls += 1
            self._waiting.popleft()
            if single_write:
                self._start_write(request, self._replies.reserve(), _held_bytes(request))
            else:
                self._call(request)
        self._replies.flush()

    def _note_login(self) -> None:
        """Lift the bounds that hold before a login once there was one."""
        if self._login_pending and self._principal.name:
            self._login_pending = False
            self._decoder.authenticated()
            self._connection.set_authenticated(True)

    # --- requests that are decoded in a thread ---

    def _decode(self, call: Call) -> None:
        """Put what a payload holds in its place at the head of the queue. Writes before it may still be in flight."""
        assert isinstance(call.body, Undecoded)
        if call.body.gzip:
            self._caller.note_dialect(native=True)

        def failed(error: Exception) -> None:
            self._answer(self._replies.reserve(), self._error(call.opcode, call.body, error), _held_bytes(call))

        self._in_background(self._decode_in_thread(call), failed)

    async def _decode_in_thread(self, call: Call) -> None:
        self._note_login()
        try:
            request = await self._worker.run(partial(decode_undecoded, call, self._decoder.limits))
        except ShuttingDown as error:
            self._answer(self._replies.reserve(), self._error(call.opcode, call.body, error), _held_bytes(call))
            return
        if self._worker.stopped:
            self._connection.release(_held_bytes(call))
            return
        # Held before the other is released, so that the connection never seems to owe nothing.
        self._connection.hold(_held_bytes(request))
        self._connection.release(_held_bytes(call))
        self._waiting.appendleft(request)

    # --- writes ---

    def _produce(self, run: ProduceRun) -> None:
        self._stats.requests[_PRODUCE] += len(run.values)
        if self._broker.has_topic(run.topic):
            self._write(run, self._replies.reserve(), _held_bytes(run))
        else:
            slot, held_bytes = self._replies.reserve(), _held_bytes(run)
            self._in_background(
                self._create_and_write(run, slot, held_bytes), partial(self._work_failed, run, slot, held_bytes)
            )

    async def _create_and_write(self, run: ProduceRun, slot: ReplySlot, held_bytes: int) -> None:
        try:
            await self._broker.ensure_topic(self._principal, run.topic)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._refuse(run, slot, held_bytes, error)
        else:
            self._write(run, slot, held_bytes)

    def _write(self, run: ProduceRun, slot: ReplySlot, held_bytes: int) -> None:
        self._writes_in_flight += 1
        try:
            self._broker.produce(
                self._principal,
                run.topic,
                run.partition if run.partitions is None else run.partitions,
                run.values,
                run.keys,
                done=partial(self._written, run, slot, held_bytes),
            )
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._writes_in_flight -= 1
            self._refuse(run, slot, held_bytes, error)

    def _written(self, run: ProduceRun, slot: ReplySlot, held_bytes: int, placed: list[Placement] | Scattered) -> None:
        self._settle(slot, self._placed(run, placed), held_bytes)

    def _settle(self, slot: ReplySlot, reply: bytes, held_bytes: int) -> None:
        """A write has its reply."""
        self._writes_in_flight -= 1
        self._answer(slot, reply, held_bytes)
        if self._writes_in_flight:
            self._replies.flush_soon()
        else:
            self._advance()

    def _placed(self, run: ProduceRun, placed: list[Placement] | Scattered) -> bytes:
        if isinstance(placed, Scattered):
            return encode_scattered(run.topic, run.keys, run.values, *placed)
        return encode_produced(run.topic, run.keys, run.values, self._parts(run, placed))

    def _parts(self, run: ProduceRun, placements: list[Placement]) -> list[Placed | Failed]:
        parts: list[Placed | Failed] = []
        for partition, rows, result in placements:
            if isinstance(result, PenstockError):
                count = len(run.values[rows]) if isinstance(rows, slice) else len(rows)
                parts.append(Failed(rows, self._error(_PRODUCE, run, result, count)))
            else:
                parts.append(Placed(rows, partition, result.base_offset, result.timestamp_ms))
        return parts

    def _refuse(self, run: ProduceRun, slot: ReplySlot, held_bytes: int, error: Exception) -> None:
        count = len(run.values)
        self._answer(slot, self._error(_PRODUCE, run, error, count) * count, held_bytes)

    # --- writes of a single record ---

    def _start_write(self, call: Call, slot: ReplySlot, held_bytes: int) -> None:
        self._stats.requests[call.opcode] += 1
        if self._broker.has_topic(call.body.topic):  # type: ignore[union-attr]  # a write names a topic
            self._write_single(call, slot, held_bytes)
        else:
            self._in_background(
                self._create_and_write_single(call, slot, held_bytes),
                partial(self._work_failed, call, slot, held_bytes),
            )

    async def _create_and_write_single(self, call: Call, slot: ReplySlot, held_bytes: int) -> None:
        try:
            await self._broker.ensure_topic(self._principal, call.body.topic)  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._answer(slot, self._error(call.opcode, call.body, error), held_bytes)
        else:
            self._write_single(call, slot, held_bytes)

    def _write_single(self, call: Call, slot: ReplySlot, held_bytes: int) -> None:
        def written(reply: bytes | PenstockError) -> None:
            if isinstance(reply, PenstockError):
                reply = self._error(call.opcode, call.body, reply)
            self._settle(slot, reply, held_bytes)

        self._writes_in_flight += 1
        try:
            write(self._caller, _operation(call.body), written)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._writes_in_flight -= 1
            self._answer(slot, self._error(call.opcode, call.body, error), held_bytes)

    # --- everything else ---

    def _call(self, call: Call) -> None:
        slot, held_bytes = self._replies.reserve(), _held_bytes(call)
        answer = self._start(call)
        if isinstance(answer, bytes):
            self._answer(slot, answer, held_bytes)
        else:
            self._in_background(
                self._finish(call, answer, slot, held_bytes), partial(self._work_failed, call, slot, held_bytes)
            )

    def _start(self, call: Call) -> Answer:
        self._stats.requests[call.opcode] += _requests_in(call)
        body = call.body
        if isinstance(body, BadRequest):
            self._stats.errors += 1
            return self._encode_error(body.message)
        try:
            return dispatch(self._caller, _operation(body))
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            return self._failed(call, error)

    async def _finish(self, call: Call, answer: Coroutine[Any, Any, bytes], slot: ReplySlot, held_bytes: int) -> None:
        try:
            reply = await answer
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._failed(call, error)
        self._answer(slot, reply, held_bytes)

    def _answer(self, slot: ReplySlot, reply: bytes, held_bytes: int) -> None:
        self._replies.fill(slot, reply)
        self._connection.release(held_bytes)

    def _work_failed(self, request: Request, slot: ReplySlot, held_bytes: int, error: Exception) -> None:
        """Answer what background work left unanswered when it raised."""
        if slot.data is not None:
            return
        if isinstance(request, ProduceRun):
            self._refuse(request, slot, held_bytes, error)
        else:
            self._answer(slot, self._failed(request, error), held_bytes)

    def _failed(self, call: Call, error: Exception) -> bytes:
        count = _requests_in(call)
        return self._error(call.opcode, call.body, error, count) * count

    def _error(self, opcode: int, body: object, error: Exception, count: int = 1) -> bytes:
        """The ERROR frame for `count` requests that ended this way."""
        self._stats.errors += count
        if isinstance(error, PenstockError):
            return self._encode_error(refusal(body, error))
        self._stats.internal_errors += count
        if not self._bug_logged:
            self._bug_logged = True
            connection = self._connection
            log.error(
                "request_failed", opcode=opcode, listener=connection.listener, peer=connection.peer, exc_info=error
            )
        return self._encode_error(_INTERNAL_ERROR)

    def _encode_error(self, message: str) -> bytes:
        return encode_error(message, native=bool(self._caller.native))


def _operation(body: object) -> Operation[Any]:
    assert isinstance(body, Operation), "bad requests are answered and undecoded ones decoded before"
    return body


def _requests_in(call: Call) -> int:
    return len(call.body.values) if isinstance(call.body, TxnProduce) else 1


def _held_bytes(request: Request) -> int:
    return max(request.request_bytes, REQUEST_BYTES_MIN)
