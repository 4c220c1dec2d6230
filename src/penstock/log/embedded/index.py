"""The sparse index of a segment: where in the file to begin looking for an offset or a time.

One entry per `STEP_BYTES` of log (offset, first timestamp, position of a block). It is kept in memory while the segment is written
and saved next to the log as `<base>.index`. It names the log it was made from (first checksum and how far
it covers), and whatever does not fit is thrown away and built again from the log. It is saved after the log was synced, so a log that
is shorter than its index covers has lost something.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

import google_crc32c

from penstock.log.block import EXPIRIES, BlockHeader

STEP_BYTES: Final = 64 << 10
_MAGIC: Final = b"PnIx"
_VERSION: Final = 2
_SEALED: Final = 1
_EXPIRES: Final = 2
# magic, checksum of the rest of the head, version, marks, entries, covers, next offset, first and last timestamp, blocks, checksum of
# the log's first block, checksum of the entries
_HEAD = struct.Struct("<4sIHHIqqqqQII")
HEAD_BYTES: Final = _HEAD.size


class SegmentIndex:
    """Entries, and what is known of the log they cover."""

    __slots__ = (
        "_offsets",
        "_positions",
        "_timestamps",
        "blocks",
        "covers",
        "expires",
        "first_checksum",
        "first_timestamp_ms",
        "last_timestamp_ms",
        "loaded",
        "next_offset",
        "saved_covers",
        "sealed",
    )

    def __init__(self, base_offset: int, last_timestamp_ms: int = 0) -> None:
        """`last_timestamp_ms` is that of the segment before: time never goes back along a partition."""
        self._offsets = array("q")
        self._timestamps = array("q")
        self._positions = array("q")
        self.covers = 0
        self.saved_covers = 0
        """How far the saved one covers the log."""
        self.blocks = 0
        self.next_offset = base_offset
        self.first_timestamp_ms = 0
        self.last_timestamp_ms = last_timestamp_ms
        self.first_checksum = 0
        self.sealed = False
        self.expires = False
        """Whether some record has a time to live."""
        self.loaded = True
        """False while the entries are still in the file only: most sealed segments are never read."""

    def add(self, header: BlockHeader, position: int) -> None:
        """Take note of the block at `position`, the next one of the log."""
        positions = self._positions
        if not positions or position - positions[-1] >= STEP_BYTES:
            if not positions:
                self.first_timestamp_ms = header.first_timestamp_ms
                self.first_checksum = header.checksum
            self._offsets.append(header.base_offset)
            self._timestamps.append(header.first_timestamp_ms)
            # Last, because readers in other threads take its length as the number of whole entries.
            positions.append(position)
        self.blocks += 1
        if header.flags & EXPIRIES:
            self.expires = True
        self.covers = position + header.size_bytes
        self.next_offset = header.next_offset
        self.last_timestamp_ms = header.last_timestamp_ms

    def position_of(self, offset: int) -> int:
        """The position of a block at or before the one that holds `offset`."""
        entry = bisect_right(self._offsets, offset, 0, len(self._positions)) - 1
        return self._positions[entry] if entry >= 0 else 0

    def position_at(self, timestamp_ms: int) -> int:
        """The position of a block at or before the first one that ends at or after a time."""
        entry = bisect_left(self._timestamps, timestamp_ms, 0, len(self._positions)) - 1
        return self._positions[entry] if entry >= 0 else 0

    def entries(self) -> tuple[Sequence[int], Sequence[int]]:
        """Offsets and positions, as they are now."""
        count = len(self._positions)
        return self._offsets[:count], self._positions[:count]

    def rows(self) -> list[tuple[int, int, int]]:
        """Offset, first timestamp and position of each entry."""
        return list(zip(self._offsets, self._timestamps, self._positions, strict=True))

    def encode(self) -> bytes:
        count = len(self._positions)
        entries = b"".join(column[:count].tobytes() for column in (self._offsets, self._timestamps, self._positions))
        head = _HEAD.pack(
            _MAGIC,
            0,
            _VERSION,
            _SEALED * self.sealed | _EXPIRES * self.expires,
            count,
            self.covers,
            self.next_offset,
            self.first_timestamp_ms,
            self.last_timestamp_ms,
            self.blocks,
            self.first_checksum,
            google_crc32c.value(entries),
        )[8:]
        return b"".join((_MAGIC, google_crc32c.value(head).to_bytes(4, "little"), head, entries))

    @classmethod
    def decode_head(cls, data: bytes, base_offset: int) -> SegmentIndex | None:
        """An index without its entries, or None if the bytes are not a whole head of this format."""
        if len(data) < HEAD_BYTES:
            return None
        (magic, checksum, version, marks, _, covers, next_offset, first_ms, last_ms, blocks, first_checksum, _) = (
            _HEAD.unpack_from(data)
        )
        if magic != _MAGIC or version != _VERSION or google_crc32c.value(data[8:HEAD_BYTES]) != checksum:
            return None
        if next_offset < base_offset:
            return None
        index = cls(base_offset)
        index.sealed = bool(marks & _SEALED)
        index.expires = bool(marks & _EXPIRES)
        index.covers = index.saved_covers = covers
        index.next_offset = next_offset
        index.first_timestamp_ms, index.last_timestamp_ms = first_ms, last_ms
        index.blocks, index.first_checksum = blocks, first_checksum
        index.loaded = False
        return index

    def load_entries(self, data: bytes) -> bool:
        """Take the entries from a whole index file; False if it does not fit this head."""
        *_, count, covers, next_offset, _, _, _, first_checksum, checksum = _HEAD.unpack_from(
            data.ljust(HEAD_BYTES, b"\0")
        )
        entries = data[HEAD_BYTES:]
        if len(entries) != 24 * count or google_crc32c.value(entries) != checksum:
            return False
        if (covers, next_offset, first_checksum) != (self.covers, self.next_offset, self.first_checksum):
            return False
        column = 8 * count
        loaded = [array("q"), array("q"), array("q")]
        for at, target in enumerate(loaded):
            target.frombytes(entries[at * column : (at + 1) * column])
        self._offsets, self._timestamps, self._positions = loaded
        self.loaded = True
        return True
