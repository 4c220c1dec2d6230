"""One RustLog conversation: requests in, replies out in the same order, and nothing of sockets.

PRODUCE requests are started one after another without waiting for each other's commit. Any other request waits until everything before
it is answered, so that a FETCH after a PRODUCE sees its records (`penstock.protocols.conversation`).

Refusals are answered with an error in the dialect of the request and the conversation continues. A frame of impossible length is
answered too, after everything before it, and ends it.
"""

from __future__ import annotations

from functools import partial

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.records.spreading import Placement, Scattered, offsets_by_unit
from penstock.clock import Clock
from penstock.errors import InvalidRequest, PenstockError
from penstock.net.session import Connection
from penstock.protocols.conversation import REQUEST_BYTES_MIN, Conversation, ReplySlot
from penstock.protocols.rustlog.codec import binary_dialect, json_dialect
from penstock.protocols.rustlog.codec.frames import RequestDecoder
from penstock.protocols.rustlog.codec.messages import (
    BadRequest,
    Call,
    CreateTopic,
    Fetch,
    MalformedFrame,
    OffsetCommit,
    ProduceRun,
    Request,
    Undecoded,
)
from penstock.protocols.rustlog.errors import encode_error, internal_error, malformed, refusal
from penstock.protocols.rustlog.server.fetching import Fetcher
from penstock.protocols.rustlog.server.metrics import RustLogStats
from penstock.protocols.rustlog.server.operations import Operations
from penstock.protocols.rustlog.wire import (
    LENGTH_BYTES,
    LOGIN_PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    Code,
    Dialect,
    Opcode,
)

REQUESTS_PER_TURN_MAX = 64
"""Requests, or runs of PRODUCE, that one session decodes and starts before it lets others have their turn of the loop."""
FRAMES_PER_TURN_MAX = 1024
"""Frames that those may come in: the frames of a run are decoded one by one, at some microseconds each."""
READ_BYTES_MAX = 1 << 20
"""About how large the reply of a request other than FETCH may be."""
_PRODUCE = int(Opcode.PRODUCE)


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
        self.fetcher = Fetcher(clock, broker.tracing)
        self.stats = RustLogStats()

    def __call__(self, connection: Connection) -> RustLogSession:
        return RustLogSession(self, connection)


class RustLogSession(Conversation[Request]):
    """Implements `penstock.net.session.Session`."""

    __slots__ = ("_clock", "_operations", "_principal")

    _stats: RustLogStats

    def __init__(self, shared: RustLog, connection: Connection) -> None:
        self._clock = shared.clock
        self._principal = shared.principal.seen_at(connection.peer, connection.principal_hint)
        self._operations = Operations(shared.broker, shared.fetcher, shared.clock, self._principal, shared.stats)
        anonymous = shared.login_required and not self._principal.name
        decoder = RequestDecoder(
            LOGIN_PAYLOAD_BYTES_MAX if anonymous else PAYLOAD_BYTES_MAX,
            requests_max=REQUESTS_PER_TURN_MAX,
            frames_max=FRAMES_PER_TURN_MAX,
        )
        super().__init__(shared.broker, connection, decoder, shared.stats)
        self._stats.sessions_open += 1
        connection.set_authenticated(bool(self._principal.name))

    def closed(self) -> None:
        self._stats.sessions_open -= 1
        super().closed()

    # --- the order of requests ---

    def _held_bytes(self, request: Request) -> int:
        return max(request.request_bytes, REQUEST_BYTES_MIN)

    def _must_wait(self, request: Request) -> bool:
        return not isinstance(request, ProduceRun | Undecoded)

    def _count(self, request: Request) -> None:
        if isinstance(request, ProduceRun):
            self._stats.requests[_PRODUCE] += len(request.counts)
            self._stats.received_records += len(request.values)
        elif isinstance(request, Call):
            self._stats.requests[request.opcode] += 1

    def _start(self, request: Request) -> None:
        if isinstance(request, Undecoded):
            self._decode_in_thread(request, partial(json_dialect.decode_request, request.payload))
            return
        slot = self.reserve(self._held_bytes(request))
        if isinstance(request, ProduceRun):
            if request.values:
                self._write(request, slot)
            else:
                self._write_nothing(request, slot)
        elif isinstance(request, MalformedFrame):
            self._end(request, slot)
        else:
            self._call(request, slot)

    def _end(self, broken: MalformedFrame, slot: ReplySlot) -> None:
        """Answer a frame that cannot be; everything before it is answered by now."""
        self._stats.errors += 1
        self.answer(slot, encode_error(broken.dialect, Code.FRAME, broken.message))
        self.flush()
        self._connection.close()

    # --- writes ---

    def _write(self, run: ProduceRun, slot: ReplySlot) -> None:
        self._writes_in_flight += 1
        done = partial(self._written, run, slot, self._clock.monotonic())
        try:
            self._broker.records.produce(
                self._principal, run.topic, run.partition, run.values, units=run.counts, done=done
            )
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._writes_in_flight -= 1
            self.answer(slot, self._refusal(run, error))

    def _written(self, run: ProduceRun, slot: ReplySlot, started_s: float, placed: list[Placement] | Scattered) -> None:
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
        self._settle_write(slot, b"".join(replies))

    def _write_nothing(self, run: ProduceRun, slot: ReplySlot) -> None:
        """No records are no write; deployed brokers answer offset 0 whatever is there."""
        try:
            self._operations.check_partition(run.topic, run.partition)
            encode = json_dialect.encode_produced if run.dialect is Dialect.JSON else binary_dialect.encode_produced
            reply = encode(0, 0)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._refusal(run, error)
        self.answer(slot, reply)

    # --- everything else ---

    def _call(self, call: Call, slot: ReplySlot) -> None:
        if isinstance(call.body, BadRequest):
            self._stats.errors += 1
            self.answer(slot, malformed(call, call.body))
            return
        try:
            answer = self._operations.answer(call)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            answer = self._refusal(call, error)
        if isinstance(answer, bytes):
            self._answer_read(call, slot, answer)
        else:
            self._answer_later(call, slot, answer)

    def _reply_bytes_max(self, request: Request) -> int:
        if not isinstance(request, Call) or isinstance(request.body, OffsetCommit | CreateTopic):
            return 0
        return min(request.body.max_bytes, PAYLOAD_BYTES_MAX) + 1 if isinstance(request.body, Fetch) else READ_BYTES_MAX

    def _answer_read(self, request: Request, slot: ReplySlot, reply: bytes) -> bool:
        if len(reply) - LENGTH_BYTES > PAYLOAD_BYTES_MAX:  # a list of very many topics
            error = InvalidRequest(f"the reply would take more than {PAYLOAD_BYTES_MAX} bytes")
            reply = self._refusal(request, error)
        answered = super()._answer_read(request, slot, reply)
        self._operations.count_fetched(sent=answered)
        return answered

    # --- refusals ---

    def _refusal(self, request: Request, error: Exception) -> bytes:
        """Return an ERROR frame for each request of a run, or one for any other."""
        count = len(request.counts) if isinstance(request, ProduceRun) else 1
        return self._error(request, error, count) * count

    def _error(self, request: Request, error: Exception, count: int = 1) -> bytes:
        """Return the ERROR frame for `count` requests that ended this way."""
        self._stats.errors += count
        if not isinstance(error, PenstockError):
            self._log_bug(error, count)
            return internal_error(Dialect.JSON if isinstance(request, Undecoded) else request.dialect)
        if isinstance(request, Undecoded | MalformedFrame):
            return encode_error(Dialect.JSON, Code.SERVER, str(error))
        return refusal(request, error)
