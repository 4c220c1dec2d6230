"""One FlyMQ conversation: requests in, replies out in the same order, and nothing of sockets.

Writes are started one after another without waiting for each other's commit. Any other request waits until everything before it is
answered, so that a FETCH after a PRODUCE on one connection sees that record (`penstock.protocols.conversation`).

Refusals are answered with ERROR and the conversation continues; only broken framing ends it. An exception that is no refusal is a bug
of ours: it is logged once per session, answered with `internal error`, and the conversation continues too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.records.spreading import Placement, Scattered
from penstock.clock import Clock
from penstock.errors import PenstockError, TopicNotFound
from penstock.log.api import Appended
from penstock.net.session import Connection, Introduction
from penstock.protocols.conversation import INTERNAL_ERROR, REQUEST_BYTES_MIN, Conversation, ReplySlot
from penstock.protocols.flymq.codec.frames import (
    Call,
    CodecLimits,
    KeepingDecoder,
    Request,
    RequestDecoder,
    Undecoded,
    decode_undecoded,
)
from penstock.protocols.flymq.codec.record_layouts import (
    Failed,
    Placed,
    ProduceRun,
    encode_produced,
    encode_produced_one,
    encode_scattered,
)
from penstock.protocols.flymq.errors import encode_error
from penstock.protocols.flymq.operations.operation import OPERATIONS, BadRequest, Operation, encode_reply
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.operations.transactions import TxnProduce
from penstock.protocols.flymq.server.dispatch import (
    LARGE_READS,
    WRITERS,
    Caller,
    Dialect,
    Node,
    dispatch,
    encode_answer,
    records_in,
    refusal,
)
from penstock.protocols.flymq.server.fetching import Fetcher
from penstock.protocols.flymq.server.forwarding import (
    FORWARDED,
    NodeSession,
    is_forwarded,
    sent_again,
    topic_of,
)
from penstock.protocols.node_link import DialNode, introduced_principal
from penstock.stats import SessionStats

REQUESTS_PER_TURN_MAX = 64
"""Requests, or runs of PRODUCE, that one session decodes and starts before it lets others have their turn of the loop."""
"""About how large the reply of a request may be that reads."""
_PRODUCE = Produce.opcode
_TOPICS_SHOWN_MAX = 16
"""Topics of requests that were passed on, of which the end is asked for when another was."""


@dataclass(slots=True)
class FlyMQStats(SessionStats):
    """What the sessions of one listener count; plain numbers, exported on scrape. Errors are requests answered with ERROR."""

    requests: list[int] = field(default_factory=lambda: [0] * 256)
    """By opcode, unknown ones too."""

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
        dial_node: DialNode | None = None,
    ) -> None:
        """Where a login is required, clients that have not logged in may send small requests only. `dial_node` is for a node of
        several."""
        self.dial_node = dial_node
        self.broker = broker
        self.login_required = login_required
        self.clock = clock
        self.node = node
        self.principal = principal
        self.dialect = dialect
        self.codec_limits = codec_limits or CodecLimits()
        self.fetcher = Fetcher(broker.limits, clock, broker.tracing)
        self.stats = FlyMQStats()

    def __call__(self, connection: Connection) -> FlyMQSession:
        return FlyMQSession(self, connection, self.principal.seen_at(connection.peer, connection.principal_hint))

    def introduced(self, connection: Connection, introduction: Introduction) -> FlyMQSession:
        """Open a session for a client that another node speaks for."""
        principal = introduced_principal(introduction)
        asks_owner = introduction.shard is not None
        return FlyMQSession(
            self, connection, principal, native=introduction.native, is_introduced=True, forwards=not asks_owner
        )


class FlyMQSession(Conversation[Request]):
    """Implements `penstock.net.session.Session`."""

    __slots__ = ("_caller", "_id", "_is_introduced", "_leader", "_login_pending", "_topics_shown")

    _decoder: RequestDecoder
    _stats: FlyMQStats

    def __init__(
        self,
        shared: FlyMQ,
        connection: Connection,
        principal: Principal,
        *,
        native: bool | None = None,
        is_introduced: bool = False,
        forwards: bool = True,
    ) -> None:
        """`forwards`: whether another node is asked for what this one does not decide."""
        self._login_pending = shared.login_required and not principal.name and not is_introduced
        dial_node, limits, login_required = shared.dial_node, shared.codec_limits, self._login_pending
        if dial_node is None or not forwards:
            self._leader = None
            decoder = RequestDecoder(limits, login_required=login_required, frames_max=REQUESTS_PER_TURN_MAX)
        else:
            self._leader = NodeSession(dial_node)
            decoder = KeepingDecoder(FORWARDED, limits, login_required=login_required, frames_max=REQUESTS_PER_TURN_MAX)
        self._topics_shown: dict[str, None] = {}
        self._is_introduced = is_introduced
        super().__init__(shared.broker, connection, decoder, shared.stats)
        self._id = f"{connection.listener}/{connection.peer}"
        self._caller = Caller(
            shared.broker,
            shared.fetcher,
            shared.clock,
            shared.node,
            shared.dialect,
            principal,
            self._id,
            self._worker,
            self._error,
            shared.stats,
        )
        if native is not None:
            self._caller.note_dialect(native=native)
        connection.set_authenticated(not self._login_pending)

    @property
    def _principal(self) -> Principal:
        return self._caller.principal

    def closed(self) -> None:
        self._broker.groups.unsubscribe(self._id)
        if self._leader is not None:
            self._leader.close()
        super().closed()

    # --- the order of requests ---

    def _held_bytes(self, request: Request) -> int:
        return max(request.request_bytes, REQUEST_BYTES_MIN)

    def _must_wait(self, request: Request) -> bool:
        if isinstance(request, ProduceRun):
            return False
        if self._leader is not None and self._is_forwarded(request):
            return True
        return not isinstance(request.body, Undecoded) and type(request.body) not in WRITERS

    def _count(self, request: Request) -> None:
        if isinstance(request, ProduceRun):
            count = len(request.values)
            self._stats.requests[_PRODUCE] += count
            self._stats.received_records += count
        elif type(request.body) is not Undecoded:
            self._stats.requests[request.opcode] += _requests_in(request)
            if self._leader is None or not self._is_forwarded(request):  # those are counted where they are answered
                self._stats.received_records += records_in(request.body)

    def _start(self, request: Request) -> None:
        if isinstance(request, ProduceRun):
            self._write(request, self.reserve(self._held_bytes(request)))
        elif self._leader is not None and self._is_forwarded(request):
            self._answer_later(request, self.reserve(self._held_bytes(request)), self._forward(request))
        elif type(request.body) in WRITERS:
            self._start_write(request, request.body)
        elif isinstance(request.body, Undecoded):
            if request.body.gzip:
                self._caller.note_dialect(native=True)
            self._decode_in_thread(request, partial(decode_undecoded, request, self._decoder.limits))
        else:
            self._call(request)

    # --- what the node that leads answers ---

    def _is_forwarded(self, call: Call) -> bool:
        return call.frames is not None and not self._broker.leading.leads and is_forwarded(call.opcode, call.body)

    async def _forward(self, call: Call) -> bytes:
        """Have a request answered elsewhere, and show here what that has changed before the client is told."""
        assert self._leader is not None
        assert call.frames is not None
        topic = topic_of(call.body)
        if topic is not None:
            self._topics_shown[topic] = None
            if len(self._topics_shown) > _TOPICS_SHOWN_MAX:
                self._topics_shown.pop(next(iter(self._topics_shown)))
        reply = await self._leader.ask(
            self._principal,
            self._caller.native,
            call.frames,
            _requests_in(call),
            again=sent_again(call.body, call.frames),
        )
        if not isinstance(call.body, TxnProduce):
            await self._broker.leading.catch_up()
            await self._broker.leading.refresh_ends(self._topics_shown)
        return reply

    def _is_behind(self, body: object) -> bool:
        """Whether a request may be about something that another node has answered for and that does not show here yet: a topic that is
        not known, or what a client of another node has committed there before it asked here."""
        if self._broker.leading.leads:
            return self._is_introduced and hasattr(body, "group")
        topic = topic_of(body)
        return topic is not None and not self._broker.topics.exists(topic)

    async def _call_caught_up(self, body: Operation[Any]) -> bytes:
        """Answer a request once this node shows everything that was answered before."""
        await self._broker.leading.catch_up()
        reply = dispatch(self._caller, body)
        return reply if isinstance(reply, bytes) else encode_answer(type(body), await reply)

    # --- writes ---

    def _start_write(self, call: Call, body: Any) -> None:
        slot = self.reserve(self._held_bytes(call))
        if self._broker.topics.exists(body.topic):
            self._write_single(body, slot)
        else:
            creating = self._create_topic_and(partial(self._write_single, body, slot), self._principal, body.topic)
            self._answer_later(call, slot, creating)

    def _write(self, run: ProduceRun, slot: ReplySlot, *, creates: bool = True) -> None:
        """Start a write; if its topic is missing it is created first, unless that was done already."""
        self._writes_in_flight += 1
        try:
            self._broker.records.produce(
                self._caller.principal,
                run.topic,
                run.partition if run.partitions is None else run.partitions,
                run.values,
                run.keys,
                done=partial(self._written, run, slot),
            )
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._writes_in_flight -= 1
            if creates and isinstance(error, TopicNotFound):
                then = partial(self._write, run, slot, creates=False)
                self._answer_later(run, slot, self._create_topic_and(then, self._principal, run.topic))
            else:
                self.answer(slot, self._refusal(run, error))

    def _written(self, run: ProduceRun, slot: ReplySlot, placed: list[Placement] | Scattered) -> None:
        if isinstance(placed, list) and len(run.values) == len(placed) == 1:
            (placement,) = placed
            result = placement.result
            if isinstance(result, Appended):
                self._settle_write(
                    slot, encode_produced_one(run, placement.partition, result.base_offset, result.timestamp_ms)
                )
                return
        self._settle_write(slot, self._placed(run, placed))

    def _placed(self, run: ProduceRun, placed: list[Placement] | Scattered) -> bytes:
        if isinstance(placed, Scattered):
            return encode_scattered(run.topic, run.keys, run.values, *placed)
        return encode_produced(run.topic, run.keys, run.values, self._parts(run, placed))

    def _parts(self, run: ProduceRun, placements: list[Placement]) -> list[Placed | Failed]:
        parts: list[Placed | Failed] = []
        for placement in placements:
            rows, result = placement.rows, placement.result
            if isinstance(result, PenstockError):
                count = len(run.values[rows]) if isinstance(rows, slice) else len(rows)
                parts.append(Failed(rows, self._error(run, result, count)))
            else:
                parts.append(Placed(rows, placement.partition, result.base_offset, result.timestamp_ms))
        return parts

    def _write_single(self, body: Operation[Any], slot: ReplySlot) -> None:
        def written(reply: Any) -> None:
            if type(reply) is bytes:
                data = reply
            elif isinstance(reply, PenstockError):
                data = self._error(body, reply)
            else:
                data = encode_reply(type(body), reply)
            self._settle_write(slot, data)

        self._writes_in_flight += 1
        try:
            WRITERS[type(body)](self._caller, body, written)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._writes_in_flight -= 1
            self.answer(slot, self._error(body, error))

    # --- everything else ---

    def _call(self, call: Call) -> None:
        slot, body = self.reserve(self._held_bytes(call)), call.body
        if isinstance(body, BadRequest):
            self._stats.errors += 1
            self.answer(slot, self._encode_error(body.message))
            return
        assert isinstance(body, Operation), "undecoded requests are decoded before"
        if self._leader is not None and self._is_behind(body):
            self._answer_later(call, slot, self._call_caught_up(body))
            return
        try:
            answer = dispatch(self._caller, body)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            answer = self._refusal(call, error)
        if isinstance(answer, bytes):
            self._answer_read(call, slot, answer)
        else:
            self._answer_later(call, slot, answer, partial(self._encode_awaited, type(body)))

    def _encode_awaited(self, kind: type[Operation[Any]], reply: Any) -> bytes:
        """Encode a reply that was awaited. If it answers a login, the limits on requests before a login no longer apply."""
        if self._login_pending and self._principal.name:
            self._login_pending = False
            self._decoder.authenticated()
            self._connection.set_authenticated(True)
        return encode_answer(kind, reply)

    def _answer_read(self, request: Request, slot: ReplySlot, reply: bytes) -> bool:
        answered = super()._answer_read(request, slot, reply)
        self._caller.count_read(sent=answered)
        return answered

    def _reply_bytes_max(self, request: Request) -> int:
        return (
            self._broker.limits.fetch_bytes_max
            if isinstance(request, Call) and type(request.body) in LARGE_READS
            else 0
        )

    # --- refusals ---

    def _refusal(self, request: Request, error: Exception) -> bytes:
        self._caller.note_read(0)
        if isinstance(request, ProduceRun):
            count = len(request.values)
            return self._error(request, error, count) * count
        count = _requests_in(request)
        return self._error(request.body, error, count) * count

    def _error(self, body: object, error: Exception, count: int = 1) -> bytes:
        """Return the ERROR frame for `count` requests that ended this way."""
        self._stats.errors += count
        if isinstance(error, PenstockError):
            return self._encode_error(refusal(body, error))
        self._log_bug(error, count)
        return self._encode_error(INTERNAL_ERROR)

    def _encode_error(self, message: str) -> bytes:
        return encode_error(message, native=bool(self._caller.native))


def _requests_in(call: Call) -> int:
    return len(call.body.values) if type(call.body) is TxnProduce else 1
