"""A record's headers as one cell of bytes, as the log stores them and as FlyMQ sends them.

For each header: the length of its name (u16) and of its value (i32, -1 for null), both little-endian, then name and value. Names are
UTF-8 and may repeat; the order is kept.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from penstock.errors import CorruptBlock, InvalidRequest

HEADERS_PER_RECORD_MAX: Final = 1000
HEADER_NAME_BYTES_MAX: Final = 0xFFFF
_PAIR = struct.Struct("<Hi")


def encode_headers(pairs: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return the cell. Raises InvalidRequest if a name is too long."""
    parts: list[bytes] = []
    for key, value in pairs:
        name = key.encode()
        if len(name) > HEADER_NAME_BYTES_MAX:
            raise InvalidRequest(
                f"the name of a header has {len(name)} bytes of UTF-8: at most {HEADER_NAME_BYTES_MAX} are allowed"
            )
        parts += (_PAIR.pack(len(name), -1 if value is None else len(value)), name, value or b"")
    return b"".join(parts)


def check_headers(cell: bytes, pairs_max: int = HEADERS_PER_RECORD_MAX) -> int:
    """Return the number of headers. Raises InvalidRequest unless the cell is what `encode_headers` makes of so many at most."""
    at = pairs = 0
    try:
        while at < len(cell):
            if pairs == pairs_max:
                raise InvalidRequest(f"a record has more than {HEADERS_PER_RECORD_MAX} headers")
            name_bytes, value_bytes = _PAIR.unpack_from(cell, at)
            name_at = at + _PAIR.size
            cell[name_at : name_at + name_bytes].decode()
            at = name_at + name_bytes + max(value_bytes, 0)
            pairs += 1
    except struct.error:
        at = len(cell) + 1
    except UnicodeDecodeError as error:
        raise InvalidRequest("a header's name is not UTF-8") from error
    if at > len(cell):
        raise InvalidRequest("a record's headers are cut short")
    return pairs


def decode_headers(cell: bytes) -> list[tuple[str, bytes | None]]:
    """Return names and values. Raises CorruptBlock."""
    pairs: list[tuple[str, bytes | None]] = []
    at = 0
    try:
        while at < len(cell):
            name_bytes, value_bytes = _PAIR.unpack_from(cell, at)
            at += _PAIR.size
            end = at + name_bytes + max(value_bytes, 0)
            if end > len(cell):
                raise CorruptBlock("a record's headers are cut short")
            name = cell[at : at + name_bytes].decode()
            pairs.append((name, None if value_bytes < 0 else cell[at + name_bytes : end]))
            at = end
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptBlock(f"a record's headers cannot be read: {error}") from error
    return pairs
