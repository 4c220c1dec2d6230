"""Arrow batches to blocks for partitions, with no Python for each record.

Each row goes to the partition it asks for, else to the one that the hash of its key names (the same as for every other client), else, with
the other rows of its batch that have no key, to the partition whose turn it is. Rows are gathered by topic and partition until a request
is worth sending, and then become blocks of about the size that the log makes itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.records.keys import Int64s, hashes_of_column
from penstock.errors import InvalidRequest, PartitionNotFound
from penstock.log.block import RawColumn, encode_columns
from penstock.spark.sink_headers import header_cells
from penstock.spark.sink_options import SinkOptions

REQUEST_BYTES: Final = 4 << 20
"""Gathered before they are sent: enough that a request costs little, and little enough that several may be on their way."""
BLOCK_BYTES: Final = 1 << 20
"""What the log itself makes: a reader from the middle of a block decodes no more."""
_ROW_BYTES: Final = 12

Parts = list[tuple[int, bytes]]


class Request(NamedTuple):
    topic: str
    parts: Parts


class Rows(NamedTuple):
    """Some records, as columns of Arrow; keys and headers are None if no record has one."""

    values: pa.Array
    keys: pa.Array | None
    headers: pa.Array | None

    def __len__(self) -> int:
        return len(self.values)

    def slice(self, start: int, stop: int) -> Rows:
        return Rows(*(None if column is None else column.slice(start, stop - start) for column in self))

    def take(self, rows: pa.Array) -> Rows:
        return Rows(*(None if column is None else column.take(rows) for column in self))


class BlockMaker:
    """The records of one task. `partitions_of` tells how many partitions a topic has; `turn` is where rows without keys begin."""

    def __init__(self, options: SinkOptions, partitions_of: Callable[[str], int], turn: int) -> None:
        self._options = options
        self._partitions_of = partitions_of
        self._turn = turn
        self._counts: dict[str, int] = {}
        self._gathered: dict[tuple[str, int], list[Rows]] = {}
        self._gathered_bytes = 0
        self.records = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[Request]:
        """Take a batch; yields what has become large enough to send. Raises where a row cannot be written."""
        if not batch.num_rows:
            return
        columns = self._options.columns
        rows = Rows(
            _binary(batch.column(columns.value)),
            None if columns.key is None else _binary(batch.column(columns.key)),
            None if columns.headers is None else header_cells(batch.column(columns.headers)),
        )
        asked = None if columns.partition is None else batch.column(columns.partition)
        for topic, indexes in self._topics(batch):
            if indexes is None:
                self._spread(topic, rows, asked)
            else:
                self._spread(topic, rows.take(indexes), None if asked is None else asked.take(indexes))
        self._turn += 1
        self.records += batch.num_rows
        if self._gathered_bytes >= REQUEST_BYTES:
            yield from self.finish()

    def finish(self) -> Iterator[Request]:
        """What is left."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        parts: dict[str, Parts] = {}
        sizes: dict[str, int] = {}
        for (topic, partition), pieces in gathered.items():
            for block in _blocks(pieces):
                # A request that is full goes, so that a very large record travels alone.
                if topic in parts and sizes[topic] + len(block) > 2 * REQUEST_BYTES:
                    yield Request(topic, parts.pop(topic))
                    sizes.pop(topic)
                parts.setdefault(topic, []).append((partition, block))
                sizes[topic] = sizes.get(topic, 0) + len(block)
        for topic, ready in parts.items():
            yield Request(topic, ready)

    def _topics(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array | None]]:
        """Each topic with the rows for it; None stands for all of them."""
        column = self._options.columns.topic
        if self._options.topic is not None or column is None:
            assert self._options.topic is not None
            yield self._options.topic, None
            return
        names = batch.column(column).dictionary_encode()
        if names.null_count:
            raise InvalidRequest("a row has no topic: fill the column topic, or set the option topic for all rows")
        topics = names.dictionary.to_pylist()
        if len(topics) == 1:
            yield topics[0], None
            return
        indexes = names.indices.to_numpy()
        for number, topic in enumerate(topics):
            yield topic, pa.array(np.flatnonzero(indexes == number))

    def _spread(self, topic: str, rows: Rows, asked: pa.Array | None) -> None:
        count = self._counts.get(topic)
        if count is None:
            count = self._counts[topic] = self._partitions_of(topic)
        if asked is not None and asked.null_count == len(asked):
            asked = None
        if asked is None and (count == 1 or rows.keys is None or rows.keys.null_count == len(rows.keys)):
            self._gather(topic, self._turn % count, rows)
            return
        partitions = self._placed(topic, rows, asked, count)
        present = np.flatnonzero(np.bincount(partitions, minlength=count))
        if len(present) == 1:
            self._gather(topic, int(present[0]), rows)
            return
        # Of numbers this small the stable sort is by counting.
        order = np.argsort(partitions.astype(np.uint16), kind="stable")
        rows = rows.take(pa.array(order))
        bounds = np.searchsorted(partitions[order], present, side="left").tolist()
        for partition, start, stop in zip(present.tolist(), bounds, [*bounds[1:], len(rows)], strict=True):
            self._gather(topic, partition, rows.slice(start, stop))

    def _placed(self, topic: str, rows: Rows, asked: pa.Array | None, count: int) -> Int64s:
        partitions = np.full(len(rows), self._turn % count, np.int64)
        if rows.keys is not None and count > 1:
            offsets, data = _offsets(rows.keys), _data(rows.keys)
            hashes = hashes_of_column(np.frombuffer(data, np.uint8), offsets[:-1] - offsets[0], np.diff(offsets))
            keyed = _valid(rows.keys)
            partitions = np.where(keyed, hashes.astype(np.int64) % count, partitions)
        if asked is not None:
            wanted = asked.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
            given = _valid(asked)
            outside = given & ((wanted < 0) | (wanted >= count))
            if outside.any():
                raise PartitionNotFound(
                    f"partition {wanted[outside][0]} not found: topic {topic} has partitions 0 to {count - 1}; drop the column partition "
                    "to let the keys decide"
                )
            partitions = np.where(given, wanted, partitions)
        return partitions

    def _gather(self, topic: str, partition: int, rows: Rows) -> None:
        self._gathered.setdefault((topic, partition), []).append(rows)
        self._gathered_bytes += _ROW_BYTES * len(rows)
        self._gathered_bytes += sum(_data_bytes(column) for column in rows if column is not None)


def _blocks(pieces: Sequence[Rows]) -> Iterator[bytes]:
    values = _raw([piece.values for piece in pieces])
    keys = _raw_or_none(pieces, 1)
    headers = _raw_or_none(pieces, 2)
    columns = [column for column in (values, keys, headers) if column is not None]
    sizes = _ROW_BYTES + sum(np.maximum(column.lengths, 0).astype(np.int64) for column in columns)
    ends = np.cumsum(sizes)
    if int(ends[-1]) <= BLOCK_BYTES:
        yield encode_columns(values, keys, headers)
        return
    joined = [RawColumn(column.lengths, [b"".join(column.data)]) for column in columns]
    cuts = [np.concatenate(([0], np.cumsum(np.maximum(column.lengths, 0), dtype=np.int64))) for column in columns]
    start = 0
    while start < len(ends):
        base = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, base + BLOCK_BYTES, side="right")), start + 1)
        block = iter([_cut(column, cut, start, stop) for column, cut in zip(joined, cuts, strict=True)])
        yield encode_columns(
            next(block), None if keys is None else next(block), None if headers is None else next(block)
        )
        start = stop


def _cut(column: RawColumn, cuts: Int64s, start: int, stop: int) -> RawColumn:
    data = memoryview(column.data[0])[int(cuts[start]) : int(cuts[stop])]
    return RawColumn(column.lengths[start:stop], [data])


def _raw_or_none(pieces: Sequence[Rows], column: int) -> RawColumn | None:
    cells = [piece[column] for piece in pieces]
    if all(each is None or each.null_count == len(each) for each in cells):
        return None
    return _raw(
        [pa.nulls(len(piece), pa.binary()) if each is None else each for piece, each in zip(pieces, cells, strict=True)]
    )


def _raw(arrays: Sequence[pa.Array]) -> RawColumn:
    lengths, data = [], []
    for array in arrays:
        valid = None
        if array.null_count:
            # What lies under a null is nobody's: it may have a length.
            valid, array = _valid(array), pc.fill_null(array, b"")
        each = np.diff(_offsets(array)).astype(np.int32)
        if valid is not None:
            each[~valid] = -1
        lengths.append(each)
        data.append(_data(array))
    return RawColumn(lengths[0] if len(lengths) == 1 else np.concatenate(lengths), data)


# -- Arrow arrays of byte strings ---------------------------------------------------------------------------------------------


def _binary(array: pa.Array) -> pa.Array:
    return array if array.type == pa.binary() else array.cast(pa.binary())


def _offsets(array: pa.Array) -> Int64s:
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4).astype(np.int64)


def _data_bytes(array: pa.Array) -> int:
    first, last = itertools.islice(
        np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)[[0, -1]], 2
    )
    return int(last) - int(first)


def _data(array: pa.Array) -> memoryview:
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    buffer: Any = array.buffers()[2]
    return memoryview(b"" if buffer is None else buffer)[int(offsets[0]) : int(offsets[-1])]


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    return array.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
