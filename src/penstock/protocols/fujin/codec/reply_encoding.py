"""What the server says, as bytes. Replies to many requests are one buffer, made with one join."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.protocols.bytes import U32, blob32
from penstock.protocols.fujin.wire import ERROR_BYTES_MAX, ID, Reply

CONNECTED = bytes((Reply.CONNECT_READER, 0))
DISCONNECTED = bytes((Reply.DISCONNECT,))
STOP = bytes((Reply.STOP,))
_NUMBERS = tuple(bytes((number,)) for number in range(16))
_MSG = _NUMBERS[Reply.MSG]
_ID_LENGTH = U32.pack(ID.size)
_MSG_WITH_ID = _MSG + _ID_LENGTH
_WRITTEN = _NUMBERS[Reply.WRITE]
_BETWEEN_WRITTEN = b"\0" + _WRITTEN


def error_text(reason: str) -> bytes:
    """The bytes of an error behind their length: never empty, never more than a client reads at once."""
    text = (reason or "unknown error").encode(errors="replace")
    if len(text) > ERROR_BYTES_MAX:
        text = text[:ERROR_BYTES_MAX].decode(errors="ignore").encode()
    return blob32(text)


def refused_reader(reason: str) -> bytes:
    return bytes((Reply.CONNECT_READER, 1)) + error_text(reason)


def written(correlation_ids: Sequence[bytes]) -> bytes:
    """The replies to WRITEs that were all carried out."""
    return b"".join((_WRITTEN, _BETWEEN_WRITTEN.join(correlation_ids), b"\0"))


def done(reply: int, correlation_id: bytes) -> bytes:
    return b"".join((_NUMBERS[reply], correlation_id, b"\0"))


def failed(reply: int, correlation_id: bytes, reason: str) -> bytes:
    return b"".join((_NUMBERS[reply], correlation_id, b"\1", error_text(reason)))


def message(value: bytes, tag: int | None) -> tuple[bytes, ...]:
    """The parts of a MSG, with an id where a tag is given."""
    if tag is None:
        return _MSG, U32.pack(len(value)), value
    return _MSG_WITH_ID, ID.pack(tag), U32.pack(len(value)), value


def fetched(correlation_id: bytes, values: Sequence[bytes], tags: Sequence[int] | None) -> bytes:
    """The reply to a FETCH, with ids where tags are given."""
    parts = [_NUMBERS[Reply.FETCH], correlation_id, b"\0", U32.pack(len(values))]
    if tags is None:
        for value in values:
            parts += (U32.pack(len(value)), value)
    else:
        for value, tag in zip(values, tags, strict=True):
            parts += (_ID_LENGTH, ID.pack(tag), U32.pack(len(value)), value)
    return b"".join(parts)


def settled(reply: int, correlation_id: bytes, ids: Sequence[bytes], errors: Sequence[str | None]) -> bytes:
    """The reply to an ACK or a NACK: in the order of the ids, what became of each."""
    parts = [_NUMBERS[reply], correlation_id, b"\0", U32.pack(len(ids))]
    for each, error in zip(ids, errors, strict=True):
        parts += (blob32(each), b"\0" if error is None else b"\1" + error_text(error))
    return b"".join(parts)
