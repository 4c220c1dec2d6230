"""What clients of either form send, as bytes; made here from the layouts, not with the code under test."""

from __future__ import annotations

from collections.abc import Sequence

CONNECT_WRITER = bytes((1, 0, 0, 0, 0))
DISCONNECT = bytes((10,))


def u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def text(data: bytes) -> bytes:
    return u32(len(data)) + data


def write(correlation_id: int, topic: bytes, body: bytes) -> bytes:
    """As deployed clients send it."""
    return b"\3" + u32(correlation_id) + text(topic) + text(body)


def write_table(correlation_id: int, topic: bytes, body: bytes, *strings: bytes) -> bytes:
    """As the contract's table has it, with headers."""
    headers = len(strings).to_bytes(2, "big") + b"".join(map(text, strings))
    return b"\3" + u32(correlation_id) + text(topic) + headers + text(body)


def begin(correlation_id: int) -> bytes:
    return b"\4" + u32(correlation_id)


def commit(correlation_id: int) -> bytes:
    return b"\5" + u32(correlation_id)


def rollback(correlation_id: int) -> bytes:
    return b"\6" + u32(correlation_id)


def connect_reader(topic: bytes, *, kind: int = 1, auto_commit: int = 0) -> bytes:
    return bytes((2, kind, auto_commit)) + text(topic)


def fetch(correlation_id: int, records_max: int) -> bytes:
    return b"\7" + u32(correlation_id) + u32(records_max)


def ack(correlation_id: int, ids: Sequence[bytes]) -> bytes:
    return b"\x08" + u32(correlation_id) + u32(len(ids)) + b"".join(map(text, ids))


def nack(correlation_id: int, ids: Sequence[bytes]) -> bytes:
    return b"\x09" + ack(correlation_id, ids)[1:]


# -- replies -----------------------------------------------------------------------------------------------------------------


def done(reply: int, correlation_id: int) -> bytes:
    return bytes((reply,)) + u32(correlation_id) + b"\0"


def failed(reply: int, correlation_id: int, reason: bytes) -> bytes:
    return bytes((reply,)) + u32(correlation_id) + b"\1" + text(reason)


def written(*correlation_ids: int) -> bytes:
    return b"".join(done(2, each) for each in correlation_ids)


def tag(number: int) -> bytes:
    return number.to_bytes(8, "big")


def message(value: bytes, number: int | None = None) -> bytes:
    return b"\6" + (b"" if number is None else text(tag(number))) + text(value)


def settled(reply: int, correlation_id: int, *results: tuple[bytes, bytes | None]) -> bytes:
    parts = [text(each) + (b"\0" if error is None else b"\1" + text(error)) for each, error in results]
    return done(reply, correlation_id) + u32(len(results)) + b"".join(parts)


def fetched(correlation_id: int, *values: bytes, first: int | None = None) -> bytes:
    rows = [(b"" if first is None else text(tag(first + at))) + text(value) for at, value in enumerate(values)]
    return done(7, correlation_id) + u32(len(values)) + b"".join(rows)
