"""A column of headers as Spark has it (lists of names and values) to cells as blocks have them, with no Python for each record.

A cell is, for each header, the length of its name (u16) and of its value (i32, -1 for null), name, value (see `log.block.encode_headers`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.broker.records.keys import Int64s
from penstock.errors import InvalidRequest
from penstock.record_headers import HEADERS_PER_RECORD_MAX

_FIXED_BYTES: Final = 6
_NAME_BYTES_MAX: Final = 0xFFFF

Bytes = npt.NDArray[np.uint8]


def header_cells(column: pa.ListArray) -> pa.Array | None:
    """One byte string a record, null where it has no headers; None if no record has any."""
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not counts.any():
        return None
    if int(counts.max()) > HEADERS_PER_RECORD_MAX:
        raise InvalidRequest(f"a record has {counts.max()} headers: at most {HEADERS_PER_RECORD_MAX} are allowed")
    pairs = column.flatten()
    names, values = pairs.field(0).cast(pa.binary()), pairs.field(1).cast(pa.binary())
    if pairs.null_count or names.null_count:
        raise InvalidRequest("a header has no name: give each a key")
    name_at, name_bytes, name_data = _ragged(names)
    value_at, value_bytes, value_data = _ragged(values)
    if int(name_bytes.max()) > _NAME_BYTES_MAX:
        raise InvalidRequest(f"a header's key has {name_bytes.max()} bytes: at most {_NAME_BYTES_MAX} are allowed")
    sizes = _FIXED_BYTES + name_bytes + value_bytes
    ends = np.cumsum(sizes)
    starts = ends - sizes
    cells = np.zeros(int(ends[-1]), np.uint8)
    _put_number(cells, starts, name_bytes, 2)
    present = values.is_valid().to_numpy(zero_copy_only=False)
    _put_number(cells, starts + 2, np.where(present, value_bytes, -1) & 0xFFFFFFFF, 4)
    _copy(cells, starts + _FIXED_BYTES, name_data, name_at, name_bytes)
    _copy(cells, starts + _FIXED_BYTES + name_bytes, value_data, value_at, value_bytes)
    bounds = np.concatenate(([0], ends))[np.concatenate(([0], np.cumsum(counts)))]
    return _binary_array(cells, bounds, counts > 0)


def _ragged(array: pa.Array) -> tuple[Int64s, Int64s, Bytes]:
    """Where each cell begins, how long it is (nulls are empty), and the bytes of all."""
    if array.null_count:
        array = array.fill_null(b"")
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4).astype(np.int64)
    buffer: Any = array.buffers()[2]
    return offsets[:-1], offsets[1:] - offsets[:-1], np.frombuffer(b"" if buffer is None else buffer, np.uint8)


def _put_number(cells: Bytes, at: Int64s, numbers: Int64s, width: int) -> None:
    for byte in range(width):
        cells[at + byte] = (numbers >> (8 * byte)) & 0xFF


def _copy(cells: Bytes, to: Int64s, data: Bytes, at: Int64s, sizes: Int64s) -> None:
    inside = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    cells[np.repeat(to, sizes) + inside] = data[np.repeat(at, sizes) + inside]


def _binary_array(cells: Bytes, bounds: Int64s, valid: npt.NDArray[np.bool_]) -> pa.Array:
    validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    offsets = pa.py_buffer(bounds.astype(np.int32).tobytes())
    buffers = [validity, offsets, pa.py_buffer(cells.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(valid), buffers)
