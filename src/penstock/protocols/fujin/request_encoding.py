"""What a client says, as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from penstock.errors import InvalidRequest
from penstock.protocols.bytes import U16, U32, blob32
from penstock.protocols.fujin.wire import CORRELATED, HEADER_STRINGS_MAX, ReaderKind, Request

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


def encode_headers_field(headers: Mapping[str, bytes] | None) -> bytes:
    if not headers:
        return NO_HEADERS
    if 2 * len(headers) > HEADER_STRINGS_MAX:
        raise InvalidRequest(f"{len(headers)} headers are too many: at most {HEADER_STRINGS_MAX // 2} fit")
    parts = [U16.pack(2 * len(headers))]
    for key, value in headers.items():
        if not key:
            raise InvalidRequest("the key of a header has at least one character")
        parts += (blob32(key.encode()), blob32(value))
    return b"".join(parts)


def encode_writes(correlation_id: int, topic: str, values: Sequence[bytes], headers_field: bytes) -> bytes:
    """WRITEs with correlation ids from this one on; `headers_field` is empty for servers that know none."""
    middle = _topic_field(topic) + headers_field
    parts: list[bytes] = []
    pack, write = CORRELATED.pack, int(Request.WRITE)
    for number, value in enumerate(values, correlation_id):
        parts += (pack(write, number & 0xFFFFFFFF), middle, U32.pack(len(value)), value)
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
