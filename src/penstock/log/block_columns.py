"""The columns of a block as vectors, for readers that take whole columns: Arrow, Spark and the checks of staged blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """A column of byte strings as Arrow lays it out: cell i is `data[offsets[i]:offsets[i + 1]]`."""

    offsets: Int32s
    data: memoryview
    valid: npt.NDArray[np.bool_] | None
    """None where no cell is null."""

    def validity_bitmap(self) -> bytes | None:
        return None if self.valid is None else np.packbits(self.valid, bitorder="little").tobytes()


@dataclass(frozen=True, slots=True)
class Columns:
    """A block's columns as vectors; `keys` and `headers` are None where no record has one."""

    offsets: Int64s
    timestamps_ms: Int64s
    expiries_ms: Int64s | None
    keys: BinaryColumn | None
    values: BinaryColumn
    headers: BinaryColumn | None
