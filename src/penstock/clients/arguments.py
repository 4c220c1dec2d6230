"""What callers hand to a client, checked before anything is sent; and a batch cut into what is sent at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.errors import InvalidRequest, InvalidTopicName

CHUNK_RECORDS_MAX = 1024
CHUNK_BYTES = 256 << 10
"""About how much of a batch is encoded and written at a time: enough to fill a socket buffer, little enough to overlap with replies."""
TOPIC_BYTES_MAX = 249

Values = Iterable[bytes] | Iterable[tuple[bytes | None, bytes]]


def columns(records: Values) -> tuple[list[bytes | None] | None, list[bytes]]:
    rows = list(records)
    if rows and isinstance(rows[0], tuple):
        keys, values = zip(*rows, strict=True)
        return list(keys), list(values)
    return None, rows  # type: ignore[return-value]  # checked by check_bytes


def chunks(
    values: Sequence[bytes], first: int, keys: Sequence[bytes | None] | None = None
) -> Iterator[tuple[int, int]]:
    """Bounds of what is sent at a time, from row `first` on: twice CHUNK_BYTES at most, or one record."""
    while first < len(values):
        last = min(first + CHUNK_RECORDS_MAX, len(values))
        size_bytes = _size_bytes(values, keys, first, last)
        if size_bytes > CHUNK_BYTES:
            last = first + max(1, CHUNK_BYTES * (last - first) // size_bytes)
            while last > first + 1 and _size_bytes(values, keys, first, last) > 2 * CHUNK_BYTES:
                last = (first + last) // 2  # a record here is much larger than the others
        yield first, last
        first = last


def _size_bytes(values: Sequence[bytes], keys: Sequence[bytes | None] | None, first: int, last: int) -> int:
    size_bytes = sum(map(len, values[first:last]))
    return size_bytes if keys is None else size_bytes + sum(map(len, filter(None, keys[first:last])))


def check_topic(name: str) -> None:
    size = len(name.encode())
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise InvalidTopicName(f"topic name has {size} bytes: use 1 to {TOPIC_BYTES_MAX}")


def check_bytes(values: Iterable[bytes], keys: Iterable[bytes | None]) -> None:
    kinds = set(map(type, values)) - {bytes} | set(map(type, keys)) - {bytes, type(None)}
    if kinds:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidRequest(f"keys and values are bytes, not {names}; turn text into bytes with .encode()")


def values_of(records: Iterable[object], instead: str) -> list[bytes]:
    """Return records that are values alone. `instead` says what the protocol would lose of others, and what to send."""
    rows: list[Any] = list(records)
    kinds = set(map(type, rows))
    if tuple in kinds:
        raise InvalidRequest(instead)
    if type(None) in kinds:
        raise InvalidRequest("a value of None, a tombstone, cannot be sent over this protocol: send it over FlyMQ")
    check_bytes(rows, ())
    return rows


def milliseconds(seconds: float, what: str) -> int:
    if not 0 <= seconds < 1 << 53:
        raise InvalidRequest(f"{what} must be a number of seconds from 0, got {seconds}")
    return math.ceil(seconds * 1000)


def index_field(partition: int) -> int:
    if not 0 <= partition < 1 << 31:
        raise InvalidRequest(f"partition {partition} is out of range: partitions are numbered from 0")
    return partition


def offset_field(offset: int) -> int:
    if not 0 <= offset < 1 << 63:
        raise InvalidRequest(f"offset {offset} is out of range: offsets are numbered from 0")
    return offset
