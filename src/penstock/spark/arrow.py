"""Blocks to Arrow record batches, by vector operations only.

A block stores lengths in arrays and cells back to back, which is nearly what Arrow wants: a batch of several blocks is their lengths
joined and added up, and their cells joined. Nothing here looks at a record, and columns that were not asked for are not touched.

Blocks are gathered until a batch has a good size, and very large ones are cut, so that no batch comes near the 2 GiB that an Arrow binary
column can address. Expired records are left out when a batch is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptBlock
from penstock.log.block import EXPIRIES, HEADERS, KEYS, OFFSETS, TIMESTAMPS, Block

ROWS_TARGET: Final = 10_000
"""A batch is made once it has this many rows: fewer cost Spark more for each, many more gain nothing."""
ROWS_MAX: Final = 4 * ROWS_TARGET
"""A block with more is cut."""
BYTES_TARGET: Final = 8 << 20
BYTES_MAX: Final = 4 * BYTES_TARGET
"""A block with more is cut, but a record never is."""

LOG_APPEND_TIME: Final = 1
"""What Kafka calls a timestamp that the broker gave."""
_VALUES: Final = 0
_LENGTH: Final = np.dtype("<i4")
_HEADER_FIXED_BYTES: Final = 6
_US_PER_MS: Final = 1000

HEADER_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
COLUMN_TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADER_TYPE,
}
"""As Spark's Kafka connector has them."""

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


_Piece = tuple[Block, int, int]
"""Rows of one block, on their way into a batch: from one index up to another."""


class _Gathered(NamedTuple):
    """What becomes one batch."""

    pieces: Sequence[_Piece]
    rows: int
    flags: int
    """For all the blocks together: which columns some of them have."""


class BatchMaker:
    """Makes record batches of the blocks of one partition, with the columns of a schema."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int, now_ms: int) -> None:
        self._schema = schema
        self._names = [name.lower() for name in schema.names]  # Spark's names have any case
        self._topic = topic
        self._partition = partition
        self._now_ms = now_ms
        self._pieces: list[_Piece] = []
        self._rows = 0
        self._bytes = 0
        self._flags = 0
        self._constants: dict[str, pa.Array] = {}

    def add(self, block: Block, offset: int, end_offset: int) -> Iterable[pa.RecordBatch]:
        """Take the rows of a block from one offset up to another, and give the batches that are full; all of them must be taken."""
        if offset <= block.base_offset and block.next_offset <= end_offset and _fits(block):
            return self._take(block, 0, block.count, block.raw_bytes)
        return self._add_cut(block, block.index_of(offset), block.index_of(end_offset))

    def _add_cut(self, block: Block, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """One batch after the other: those of a large block together may be many times its size."""
        for begin, end in _cuts(block, first, last):
            yield from self._take(block, begin, end, block.raw_bytes * (end - begin) // block.count)

    def _take(self, block: Block, first: int, last: int, size: int) -> Sequence[pa.RecordBatch]:
        rows = last - first
        full: Sequence[pa.RecordBatch] = ()
        if self._rows + rows > ROWS_MAX or self._bytes + size > BYTES_MAX:
            full = self.finish()
        self._pieces.append((block, first, last))
        self._flags |= block.flags
        self._rows += rows
        self._bytes += size
        if self._rows >= ROWS_TARGET or self._bytes >= BYTES_TARGET:
            full = (*full, *self.finish())
        return full

    def finish(self) -> Sequence[pa.RecordBatch]:
        """What is left, as a batch, unless nothing is."""
        gathered = _Gathered(self._pieces, self._rows, self._flags)
        self._pieces, self._rows, self._bytes, self._flags = [], 0, 0, 0
        if not gathered.rows:
            return ()
        columns = [self._column(name, gathered) for name in self._names]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        visible = _visible(gathered, self._now_ms)
        if visible is not None:
            batch = batch.filter(pa.array(visible))
        return (batch,) if batch.num_rows else ()

    # -- columns ---------------------------------------------------------------------------------------------------------

    def _column(self, name: str, gathered: _Gathered) -> pa.Array:
        match name:
            case "key":
                return _binary(gathered, KEYS)
            case "value":
                return _binary(gathered, _VALUES)
            case "offset":
                return _fixed(pa.int64(), _offsets(gathered), gathered.rows)
            case "timestamp":
                return _fixed(COLUMN_TYPES["timestamp"], _timestamps_us(gathered), gathered.rows)
            case "headers":
                return _headers(gathered)
            case _:
                return self._constant(name, gathered.rows)

    def _constant(self, name: str, rows: int) -> pa.Array:
        """A column with one value; made once, as long as the longest batch needs it."""
        column = self._constants.get(name)
        if column is None or len(column) < rows:
            column = self._constants[name] = self._repeated(name, max(rows, ROWS_TARGET + ROWS_TARGET // 4))
        return column.slice(0, rows)

    def _repeated(self, name: str, rows: int) -> pa.Array:
        if name == "topic":
            text = self._topic.encode()
            ends = np.arange(0, (rows + 1) * len(text), len(text), dtype=np.int32)
            return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)])
        number = self._partition if name == "partition" else LOG_APPEND_TIME
        return _fixed(pa.int32(), np.full(rows, number, np.int32), rows)


def _fits(block: Block) -> bool:
    return block.count <= ROWS_MAX and block.raw_bytes <= BYTES_MAX


def _cuts(block: Block, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Some rows of a block, in pieces that are not too large."""
    if _fits(block):
        if first < last:
            yield first, last
        return
    ends = np.zeros(block.count, np.int64)
    for column in (_VALUES, KEYS, HEADERS):
        cells = block.stored_cells(column)
        if cells is not None:
            ends += np.cumsum(_sizes(cells[0]), dtype=np.int64)
    while first < last:
        before = int(ends[first - 1]) if first else 0
        fitting = int(np.searchsorted(ends, before + BYTES_MAX, "right"))
        stop = min(max(fitting, first + 1), first + ROWS_MAX, last)
        yield first, stop
        first = stop


def _fixed(kind: pa.DataType, vector: npt.NDArray[Any], rows: int) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(np.ascontiguousarray(vector))])


def _joined(vectors: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def _offsets(gathered: _Gathered) -> Int64s:
    begin, end = gathered.pieces[0][0].base_offset, gathered.pieces[-1][0].next_offset
    # Whole blocks, one right behind the other. Pieces that are cut are fewer rows than their blocks have offsets.
    if not gathered.flags & OFFSETS and end - begin == gathered.rows:
        return np.arange(begin, end, dtype=np.int64)
    return _joined([block.offset_column()[first:last] for block, first, last in gathered.pieces])


def _timestamps_us(gathered: _Gathered) -> Int64s:
    pieces = gathered.pieces
    if not gathered.flags & TIMESTAMPS:
        stamps_us = [block.first_timestamp_ms * _US_PER_MS for block, _, _ in pieces]
        return np.repeat(np.array(stamps_us, np.int64), [last - first for _, first, last in pieces])
    vectors: list[Int64s] = []
    for block, first, last in pieces:
        column = block.timestamp_column()
        if column is None:
            vectors.append(np.full(last - first, block.first_timestamp_ms * _US_PER_MS, np.int64))
        else:
            vectors.append(column[first:last] * _US_PER_MS)
    return _joined(vectors)


def _cells(piece: _Piece, column: int) -> tuple[memoryview, memoryview]:
    """Lengths and bytes of the cells of a piece, as they are stored; null for each where the block has no such column."""
    block, first, last = piece
    cells = block.stored_cells(column)
    if cells is None:
        return memoryview(b"\xff\xff\xff\xff" * (last - first)), memoryview(b"")
    if last - first == block.count:
        return cells
    lengths, data = cells
    sizes = _sizes(lengths)
    start, size = (int(part.sum(dtype=np.int64)) for part in (sizes[:first], sizes[first:last]))
    return lengths[first * _LENGTH.itemsize : last * _LENGTH.itemsize], data[start : start + size]


def _sizes(lengths: memoryview) -> Int32s:
    """Of cells; a null has none."""
    return np.maximum(np.frombuffer(lengths, _LENGTH), 0)


def _joined_cells(pieces: Sequence[_Piece], column: int) -> tuple[Int32s, memoryview | pa.Buffer]:
    if len(pieces) == 1:
        lengths, data = _cells(pieces[0], column)
        return np.frombuffer(lengths, _LENGTH), data
    cells = [_cells(piece, column) for piece in pieces]
    # From Arrow's pool, which keeps what it has: fresh memory of this size would cost more than filling it.
    buffer = pa.allocate_buffer(sum([len(data) for _, data in cells]))
    into, at = memoryview(buffer).cast("B"), 0
    for _, data in cells:
        end = at + len(data)
        into[at:end] = data
        at = end
    return np.frombuffer(b"".join([lengths for lengths, _ in cells]), _LENGTH), buffer


def _binary(gathered: _Gathered, column: int) -> pa.Array:
    rows = gathered.rows
    if column and not gathered.flags & column:
        return pa.nulls(rows, pa.binary())
    lengths, data = _joined_cells(gathered.pieces, column)
    validity = None
    if lengths.min() < 0:
        valid = lengths >= 0
        validity = _bitmap(valid)
        lengths = np.where(valid, lengths, 0)
    ends = _ends(lengths, rows, len(data))
    return pa.Array.from_buffers(pa.binary(), rows, [validity, pa.py_buffer(ends), pa.py_buffer(data)])


def _ends(lengths: Int32s, rows: int, size: int) -> Int32s:
    """Where each cell ends, and before them where the first begins."""
    # Added up in 64 bits first: in 32 they could come to the right number by overflow.
    if int(lengths.sum(dtype=np.int64)) != size:
        raise CorruptBlock("block's lengths do not add up to its data")
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    np.cumsum(lengths, out=ends[1:])
    return ends


def _bitmap(valid: Bools) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _visible(gathered: _Gathered, now_ms: int) -> Bools | None:
    """Which rows have not expired; None if none has. Blocks without a single expiry, which are nearly all, cost one test of a flag."""
    if not gathered.flags & EXPIRIES:
        return None
    visible = np.ones(gathered.rows, np.bool_)
    at = 0
    for block, first, last in gathered.pieces:
        end = at + last - first
        column = block.expiry_column()
        if column is not None:
            part = column[first:last]
            visible[at:end] = (part == 0) | (part > now_ms)
        at = end
    return None if visible.all() else visible


# -- headers ----------------------------------------------------------------------------------------------------------------


def _headers(gathered: _Gathered) -> pa.Array:
    """The headers column: null where a record has none, as with Kafka.

    A cell is a chain of headers (key length, value length, key, value). All cells are walked at once, one header of each at a time, so
    the number of steps is that of the record with most headers. What lies between two cut points is then a key, a value or a pair of
    lengths, and Arrow picks keys and values out of them.
    """
    rows = gathered.rows
    if not gathered.flags & HEADERS:
        return pa.nulls(rows, HEADER_TYPE)
    lengths, data = _joined_cells(gathered.pieces, HEADERS)
    if not len(data):
        return pa.nulls(rows, HEADER_TYPE)  # those that have some were not asked for
    lengths = np.maximum(lengths, 0)
    ends = _ends(lengths, rows, len(data)).astype(np.int64)
    heads, key_bytes, value_bytes, counts = _walk(np.frombuffer(data, np.uint8), ends)
    null_values = value_bytes < 0
    cuts = np.empty((len(heads), 3), np.int32)
    cuts[:, 0] = heads
    cuts[:, 1] = heads + _HEADER_FIXED_BYTES
    cuts[:, 2] = cuts[:, 1] + key_bytes
    bounds = np.append(cuts.ravel(), np.int32(len(data)))
    pieces_of_data = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    at = np.arange(len(heads)) * 3
    keys = pieces_of_data.take(pa.array(at + 1)).cast(pa.string())
    values = pieces_of_data.take(pa.array(at + 2, mask=null_values))
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE.value_type))
    list_ends = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=list_ends[1:])
    validity = None if counts.all() else _bitmap(counts > 0)
    return pa.Array.from_buffers(HEADER_TYPE, rows, [validity, pa.py_buffer(list_ends)], children=[pairs])


def _walk(data: npt.NDArray[np.uint8], ends: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Where each header begins, the lengths of its key and value (-1: null), in order; and how many each row has."""
    rows = np.flatnonzero(ends[1:] > ends[:-1])
    counts = np.zeros(len(ends) - 1, np.int64)
    at, stops = ends[:-1][rows], ends[1:][rows]
    found: list[tuple[Int64s, Int64s, Int64s]] = []
    window = np.arange(_HEADER_FIXED_BYTES)
    while len(rows):
        if (at + _HEADER_FIXED_BYTES > stops).any():
            raise CorruptBlock("a record's headers are cut short")
        fixed = data[at[:, None] + window]
        key_bytes = fixed[:, :2].copy().view("<u2")[:, 0].astype(np.int64)
        value_bytes = fixed[:, 2:].copy().view("<i4")[:, 0].astype(np.int64)
        found.append((at, key_bytes, value_bytes))
        counts[rows] += 1
        at = at + _HEADER_FIXED_BYTES + key_bytes + np.maximum(value_bytes, 0)
        if (at > stops).any():
            raise CorruptBlock("a record's headers are cut short")
        more = at < stops
        rows, at, stops = rows[more], at[more], stops[more]
    heads = np.concatenate([part[0] for part in found])
    order = np.argsort(heads, kind="stable")
    key_lengths = np.concatenate([part[1] for part in found])
    value_lengths = np.concatenate([part[2] for part in found])
    return heads[order], key_lengths[order], value_lengths[order], counts
