"""Decode what a server sends, as a client reads it; without I/O.

`feed` takes a whole read and returns the answers that are complete. An answer with rows is decoded row by row: the rows that have come
are kept decoded, the bytes of the first incomplete one as they came (`receive_buffer.py`). So the work is linear in the bytes, in however
many pieces they come, and a count that is only announced allocates nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import (
    ProtocolViolation,
)
from penstock.protocols.bytes import U32
from penstock.protocols.fujin.wire import CORRELATED, Reply
from penstock.protocols.receive_buffer import ReceiveBuffer

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
    """A MSG; `id` is None if auto commit is on."""

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
    """What is being decoded ends at this position of the data, or later."""

    def __init__(self, position_min: int) -> None:
        self.position_min = position_min


class ReplyDecoder:
    """One stream. `with_ids`: whether messages carry them, which is known from the CONNECT READER."""

    __slots__ = ("_at", "_buffer", "_data", "_open", "_rows_left", "_with_ids")

    def __init__(self, *, with_ids: bool = False) -> None:
        self._with_ids = with_ids
        self._buffer = ReceiveBuffer()
        self._open: Batch | Settled | None = None
        """An answer whose rows have not all come."""
        self._rows_left = 0
        self._data = b""
        self._at = 0

    @property
    def partial(self) -> bool:
        """Whether an answer has begun that is not complete."""
        return self._open is not None or self._buffer.kept_bytes > 0

    def feed(self, data: bytes) -> list[Answer]:
        """Return every answer that is complete. Raises ProtocolViolation."""
        whole = self._buffer.join(data)
        if whole is None:
            return []
        self._data, self._at = whole, 0
        answers: list[Answer] = []
        while self._at < len(whole):
            begin = self._at
            try:
                answer = self._answer() if self._open is None else self._row(self._open)
            except _Incomplete as incomplete:
                self._buffer.needed_bytes = incomplete.position_min - begin
                self._buffer.keep(whole, begin)
                break
            if answer is not None:
                answers.append(answer)
        self._data = b""
        return answers

    def _answer(self) -> Answer | None:
        """Decode the next answer; of one with rows only what precedes them, and None."""
        number = self._u8()
        if number == Reply.MSG:
            return self._message()
        if number == Reply.CONNECT_READER:
            return Connected(self._error())
        if number in (Reply.WRITE, Reply.BEGIN, Reply.COMMIT, Reply.ROLLBACK):
            return Done(number, self._u32(), self._error())
        if number == Reply.FETCH:
            return self._with_rows(Batch(self._u32(), self._error(), []))
        if number in (Reply.ACK, Reply.NACK):
            return self._with_rows(Settled(number, self._u32(), self._error(), []))
        if number == Reply.DISCONNECT:
            return Goodbye()
        if number == Reply.STOP:
            return StopRequested()
        raise ProtocolViolation(f"unknown reply code {number}")

    def _with_rows(self, answer: Batch | Settled) -> Answer | None:
        count = 0 if answer.error is not None else self._u32()
        if count > COUNT_MAX:
            raise ProtocolViolation(f"{count} rows in one answer are more than {COUNT_MAX}")
        if not count:
            return answer
        self._open, self._rows_left = answer, count
        return None

    def _row(self, answer: Batch | Settled) -> Answer | None:
        """Decode the next row of an answer, and return the answer with its last one."""
        if isinstance(answer, Batch):
            answer.messages.append(self._message())
        else:
            answer.results.append((self._string(), self._error()))
        self._rows_left -= 1
        if self._rows_left:
            return None
        self._open = None
        return answer

    def _message(self) -> Delivered:
        return Delivered(self._string() if self._with_ids else None, self._string())

    def _error(self) -> str | None:
        flag = self._u8()
        if flag > 1:
            raise ProtocolViolation(f"an error begins with 0 or 1, not {flag}")
        return self._string().decode(errors="replace") if flag else None

    def _string(self) -> bytes:
        size = self._u32()
        if size > STRING_BYTES_MAX:
            raise ProtocolViolation(f"a string of {size} bytes is longer than {STRING_BYTES_MAX}")
        start = self._advance(size)
        return self._data[start : self._at]

    def _u8(self) -> int:
        return self._data[self._advance(1)]

    def _u32(self) -> int:
        number: int = U32.unpack_from(self._data, self._advance(4))[0]
        return number

    def _advance(self, size: int) -> int:
        """Return the position, and move it on by `size`. Raises _Incomplete."""
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise _Incomplete(self._at)
        return start


def expected_replies(correlation_id: int, count: int) -> bytes:
    """The replies to this many WRITEs from this one on, if all succeed."""
    pack, reply = CORRELATED.pack, int(Reply.WRITE)
    parts: list[bytes] = []
    for number in range(correlation_id, correlation_id + count):
        parts += (pack(reply, number & 0xFFFFFFFF), b"\0")
    return b"".join(parts)
