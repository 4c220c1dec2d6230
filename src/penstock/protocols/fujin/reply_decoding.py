"""What a server says, as a client reads it; without I/O. A read is taken whole, and what is not complete waits for the next."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import (
    EntryNotFound,
    InvalidRequest,
    PenstockError,
    ProtocolViolation,
    ServerError,
    ShuttingDown,
    TopicNotFound,
    TransactionNotActive,
)
from penstock.protocols.bytes import U32
from penstock.protocols.fujin import wire
from penstock.protocols.fujin.wire import CORRELATED, Reply

STRING_BYTES_MAX: Final = 32 << 20
"""The largest record a broker may be set to hold."""
COUNT_MAX: Final = 1 << 20


class Done(NamedTuple):
    """The answer to a WRITE, BEGIN, COMMIT or ROLLBACK."""

    reply: int
    correlation_id: int
    error: str | None


class Connected(NamedTuple):
    error: str | None


class Delivered(NamedTuple):
    """A MSG; `id` is None where auto commit is on."""

    id: bytes | None
    value: bytes


class Batch(NamedTuple):
    """The answer to a FETCH."""

    correlation_id: int
    error: str | None
    messages: list[Delivered]


class Settled(NamedTuple):
    """The answer to an ACK or NACK: what became of each id, in the order of the request."""

    reply: int
    correlation_id: int
    error: str | None
    results: list[tuple[bytes, str | None]]


class Goodbye(NamedTuple):
    """DISCONNECT: the server ends the stream."""


class StopRequested(NamedTuple):
    """STOP: the server asks to disconnect."""


Answer = Done | Connected | Delivered | Batch | Settled | Goodbye | StopRequested


class _Incomplete(Exception):
    pass


class ReplyDecoder:
    """One stream. `with_ids`: whether messages carry them, which is known from the CONNECT READER."""

    __slots__ = ("_at", "_data", "_kept", "_with_ids")

    def __init__(self, *, with_ids: bool = False) -> None:
        self._with_ids = with_ids
        self._kept = b""
        self._data = b""
        self._at = 0

    @property
    def partial(self) -> bool:
        """Whether an answer has begun that is not complete."""
        return bool(self._kept)

    def feed(self, data: bytes) -> list[Answer]:
        """Every answer that is complete. Raises ProtocolViolation."""
        self._data = self._kept + data if self._kept else data
        self._at = 0
        answers: list[Answer] = []
        begin = 0
        while self._at < len(self._data):
            begin = self._at
            try:
                answers.append(self._answer())
            except _Incomplete:
                self._kept = self._data[begin:]
                self._data = b""
                return answers
        self._kept = self._data = b""
        return answers

    def _answer(self) -> Answer:
        number = self._u8()
        if number == Reply.MSG:
            return self._message()
        if number == Reply.CONNECT_READER:
            return Connected(self._error())
        if number in (Reply.WRITE, Reply.BEGIN, Reply.COMMIT, Reply.ROLLBACK):
            return Done(number, self._u32(), self._error())
        if number == Reply.FETCH:
            correlation_id, error = self._u32(), self._error()
            count = 0 if error is not None else self._count()
            return Batch(correlation_id, error, [self._message() for _ in range(count)])
        if number in (Reply.ACK, Reply.NACK):
            correlation_id, error = self._u32(), self._error()
            count = 0 if error is not None else self._count()
            return Settled(number, correlation_id, error, [(self._string(), self._error()) for _ in range(count)])
        if number == Reply.DISCONNECT:
            return Goodbye()
        if number == Reply.STOP:
            return StopRequested()
        raise ProtocolViolation(f"{number} is no answer that a Fujin server gives")

    def _message(self) -> Delivered:
        return Delivered(self._string() if self._with_ids else None, self._string())

    def _error(self) -> str | None:
        flag = self._u8()
        if flag > 1:
            raise ProtocolViolation(f"an error begins with 0 or 1, not {flag}")
        return self._string().decode(errors="replace") if flag else None

    def _count(self) -> int:
        count = self._u32()
        if count > COUNT_MAX:
            raise ProtocolViolation(f"{count} rows in one answer are more than {COUNT_MAX}")
        if len(self._data) - self._at < 4 * count:
            raise _Incomplete
        return count

    def _string(self) -> bytes:
        size = self._u32()
        if size > STRING_BYTES_MAX:
            raise ProtocolViolation(f"a string of {size} bytes is longer than {STRING_BYTES_MAX}")
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise _Incomplete
        return self._data[start : self._at]

    def _u8(self) -> int:
        if self._at >= len(self._data):
            raise _Incomplete
        self._at += 1
        return self._data[self._at - 1]

    def _u32(self) -> int:
        start, self._at = self._at, self._at + 4
        if self._at > len(self._data):
            raise _Incomplete
        number: int = U32.unpack_from(self._data, start)[0]
        return number


def expected_replies(correlation_id: int, count: int) -> bytes:
    """What answers so many WRITEs from this one on, where all go well."""
    pack, reply = CORRELATED.pack, int(Reply.WRITE)
    parts: list[bytes] = []
    for number in range(correlation_id, correlation_id + count):
        parts += (pack(reply, number & 0xFFFFFFFF), b"\0")
    return b"".join(parts)


_ERRORS: dict[str, type[PenstockError]] = {
    wire.WRITER_NOT_FOUND: TopicNotFound,
    wire.READER_NOT_FOUND: TopicNotFound,
    wire.INVALID_TX_STATE: TransactionNotActive,
    wire.UNKNOWN_ID: EntryNotFound,
    wire.STOPPING: ShuttingDown,
    wire.INVALID_READER_TYPE: InvalidRequest,
    wire.EMPTY_BODY: InvalidRequest,
    wire.EMPTY_FETCH: InvalidRequest,
    wire.EMPTY_READER_TOPIC: InvalidRequest,
    wire.EMPTY_WRITER_TOPIC: InvalidRequest,
}


def error_of(reason: str) -> PenstockError:
    return _ERRORS.get(reason, ServerError)(reason)
