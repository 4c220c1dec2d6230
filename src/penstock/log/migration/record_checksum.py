"""A checksum of the records of a partition: offsets, times, keys, values, headers and expiries.

Each column is summed by itself, as one string of bytes over all records. So it does not matter how the records are cut into blocks, and
summing a block takes a few calls, not some for each record.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptBlock
from penstock.log.block import HEADERS, KEYS, Block

_COLUMNS: Final = 9
_SUMS: Final = struct.Struct(f"<q{_COLUMNS}I")
_DIGEST_BYTES: Final = 16


class RecordChecksum:
    """The sums of the records so far. Times count as they are served: they do not fall along a partition."""

    __slots__ = ("latest_ms", "records", "sums")

    def __init__(self, records: int = 0, latest_ms: int = 0, sums: Sequence[int] = (0,) * _COLUMNS) -> None:
        self.records = records
        self.latest_ms = latest_ms
        self.sums = list(sums)

    def copy(self) -> RecordChecksum:
        return RecordChecksum(self.records, self.latest_ms, self.sums)

    def add(self, block: Block, start: int, end: int) -> None:
        """Add the records of a block from one offset up to another."""
        first, stop = block.index_of(start), block.index_of(end)
        if first >= stop:
            return
        count = stop - first
        times = block.timestamp_column()
        if times is None:
            times = np.full(block.count, block.first_timestamp_ms, np.int64)
        times = np.maximum.accumulate(np.maximum(times[first:stop], self.latest_ms))
        expiries = block.expiry_column()
        self._add(0, block.offset_column()[first:stop].astype("<i8").tobytes())
        self._add(1, times.astype("<i8").tobytes())
        self._add(2, bytes(8 * count) if expiries is None else expiries[first:stop].astype("<i8").tobytes())
        self._add_cells(3, block, KEYS, first, stop)
        self._add_cells(5, block, 0, first, stop)
        self._add_cells(7, block, HEADERS, first, stop)
        self.latest_ms = int(times[-1])
        self.records += count

    def _add_cells(self, at: int, block: Block, column: int, first: int, stop: int) -> None:
        cells = block.stored_cells(column)
        lengths: npt.NDArray[np.int32]
        if cells is None:
            lengths, data = np.full(stop - first, -1, "<i4"), b""
        else:
            lengths = np.frombuffer(cells[0], "<i4")
            ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
            if int(ends[-1]) != len(cells[1]):
                raise CorruptBlock("block's lengths do not add up to its data")
            data = bytes(cells[1][int(ends[first - 1]) if first else 0 : int(ends[stop - 1])])
            lengths = lengths[first:stop]
        if column == HEADERS:
            lengths = np.where(lengths == 0, -1, lengths).astype("<i4")  # no headers, however that is stored
        self._add(at, lengths.tobytes())
        self._add(at + 1, data)

    def _add(self, at: int, data: bytes) -> None:
        self.sums[at] = google_crc32c.extend(self.sums[at], data)

    @property
    def text(self) -> str:
        """The checksum as it is shown, in hexadecimal."""
        return hashlib.sha256(_SUMS.pack(self.records, *self.sums)).hexdigest()[: 2 * _DIGEST_BYTES]
