"""What a client says, as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count

from penstock.errors import InvalidRequest
from penstock.protocols.bytes import U16, U32, blob32
from penstock.protocols.fujin.wire import (
    CORRELATED,
    HEADER_KEY_BYTES_MAX,
    HEADER_STRINGS_MAX,
    HEADERS_BYTES_MAX,
    ReaderKind,
    Request,
)

Headers = Mapping[str, bytes] | Iterable[tuple[str, bytes]] | None
"""Names and values of one record. Pairs keep names that repeat."""

CONNECT_WRITER = bytes((Request.CONNECT_WRITER,)) + U32.pack(0)
DISCONNECT = bytes((Request.DISCONNECT,))
FOLLOWS_CONTRACT = bytes((Request.CONNECT_WRITER,)) + U32.pack(1) + DISCONNECT
"""A writer that leaves at once: its number for an id, which no deployed client has, shows how its connection wants to be answered."""
NO_HEADERS = U16.pack(0)
AMBIGUOUS_BYTES = 64 << 10
"""A body from here on, behind an empty field of headers, could be the first of a client that sends none."""


@lru_cache(4096)
def _topic_field(topic: str) -> bytes:
    name = topic.encode()
    if not name:
        raise InvalidRequest("a topic name has at least one character")
    return blob32(name)


def encode_headers_field(headers: Headers) -> bytes:
    """Return the headers of one record as they stand in a WRITE. Raises InvalidRequest."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
    if not pairs:
        return NO_HEADERS
    if 2 * len(pairs) > HEADER_STRINGS_MAX:
        raise InvalidRequest(f"{len(pairs)} headers are too many: at most {HEADER_STRINGS_MAX // 2} fit")
    field = b"".join((U16.pack(2 * len(pairs)), *map(_header, pairs)))
    if len(field) > HEADERS_BYTES_MAX:
        raise InvalidRequest(f"headers of {len(field)} bytes are too long: at most {HEADERS_BYTES_MAX} fit")
    return field


def _header(pair: object) -> bytes:
    match pair:
        case (str(name), bytes(value)):
            key = name.encode()
        case _:
            raise InvalidRequest(f'{pair!r} is not a header: use a str with bytes, as in {{"trace": b"4711"}}')
    if not 1 <= len(key) <= HEADER_KEY_BYTES_MAX:
        raise InvalidRequest(f"the name of a header has {len(key)} bytes: use 1 to {HEADER_KEY_BYTES_MAX}")
    return blob32(key) + blob32(value)


def encode_writes(correlation_id: int, topic: str, values: Sequence[bytes], headers_fields: Iterable[bytes]) -> bytes:
    """WRITEs with correlation ids from this one on; `headers_fields` are empty for servers that know none."""
    name = _topic_field(topic)
    parts: list[bytes] = []
    pack, write = CORRELATED.pack, int(Request.WRITE)
    for number, value, field in zip(count(correlation_id), values, headers_fields, strict=False):
        parts += (pack(write, number & 0xFFFFFFFF), name, field, U32.pack(len(value)), value)
    return b"".join(parts)


def encode_request(request: Request, correlation_id: int) -> bytes:
    """BEGIN, COMMIT or ROLLBACK."""
    return CORRELATED.pack(request, correlation_id)


def encode_connect_reader(topic: str, *, pull: bool, auto_commit: bool) -> bytes:
    kind = ReaderKind.PULL if pull else ReaderKind.PUSH
    return bytes((Request.CONNECT_READER, kind, auto_commit)) + _topic_field(topic)


def encode_fetch(correlation_id: int, records_max: int) -> bytes:
    return CORRELATED.pack(Request.FETCH, correlation_id) + U32.pack(records_max)


def encode_settle(request: Request, correlation_id: int, ids: Iterable[bytes]) -> bytes:
    """ACK or NACK."""
    fields = list(map(blob32, ids))
    return b"".join((CORRELATED.pack(request, correlation_id), U32.pack(len(fields)), *fields))
