"""Blocks that a client laid out: everything that must be true of them before they are stored.

A block that is published is read by every protocol, so a client must not be able to store one that some reader stumbles over. All
checks are vector operations over the block's columns: no Python for each record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.broker.limits import BrokerLimits
from penstock.errors import CorruptBlock, InvalidRequest, PartitionNotFound, RecordTooLarge
from penstock.log.api import Batch, TopicInfo
from penstock.log.block import (
    CODEC_NONE,
    HEADER,
    HEADER_BYTES,
    HEADERS,
    KEYS,
    BinaryColumn,
    Block,
    Columns,
    Int64s,
    RawColumn,
    encode_columns,
)
from penstock.record_headers import HEADERS_PER_RECORD_MAX, check_headers

# What a reader from the middle of a block must decode; the log makes blocks of 1 MiB. One record may be larger.
BLOCK_BYTES_MAX: Final = 4 << 20
_PAIR_BYTES: Final = 6
_CELLS_MIN: Final = 128
"""Cells of headers that are worth vector operations: a step takes 30 us and more for all of them, and 0.3 us for one by itself."""
_COUNT_FIELD: Final = 7
"""In a block's header: the number of records."""


class StagedPart(NamedTuple):
    """Records for one partition of a topic."""

    partition: int
    block: Block


def record_count(block: bytes) -> int:
    """Return how many records a block has by its header, of which nothing is checked; 0 if it is too short for one."""
    return HEADER.unpack_from(block)[_COUNT_FIELD] if len(block) >= HEADER_BYTES else 0


def check_parts(info: TopicInfo, parts: Sequence[tuple[int, bytes]], limits: BrokerLimits) -> list[StagedPart]:
    """Raises InvalidRequest, PartitionNotFound or RecordTooLarge where something is wrong with them."""
    if not parts:
        raise InvalidRequest("no records to stage: send at least one block")
    checked: list[StagedPart] = []
    for partition, data in parts:
        if not 0 <= partition < info.config.partitions:
            raise PartitionNotFound(
                f"partition {partition} not found: topic {info.name} has partitions 0 to {info.config.partitions - 1}"
            )
        try:
            checked.append(StagedPart(partition, _checked(info, data, limits)))
        except CorruptBlock as error:
            raise InvalidRequest(f"the block for partition {partition} of {info.name} is not whole: {error}") from error
    return checked


def records_of(parts: Sequence[StagedPart]) -> Batch:
    """The records of all parts, one behind the other."""
    values: list[bytes | None] = []
    headers: list[bytes | None] = []
    for _, block in parts:
        values += block.values()
        headers += block.headers() or [None] * block.count
    return Batch(values, None, headers if any(headers) else None)


def with_headers(
    parts: Sequence[StagedPart], headers: Sequence[bytes | None] | None, limits: BrokerLimits
) -> list[StagedPart]:
    """The parts with these headers, which are of their records one behind the other. Raises RecordTooLarge."""
    if headers is None:
        return list(parts)
    made: list[StagedPart] = []
    start = 0
    for partition, block in parts:
        cells = headers[start : start + block.count]
        start += block.count
        lengths = np.fromiter((-1 if cell is None else len(cell) for cell in cells), "<i4", block.count)
        values, keys = block.stored_cells(0), block.stored_cells(KEYS)
        assert values is not None
        data = encode_columns(
            _raw(values), None if keys is None else _raw(keys), RawColumn(lengths, [b"".join(filter(None, cells))])
        )
        changed = Block(data)
        _check_sizes(changed.columns(), limits)
        made.append(StagedPart(partition, changed))
    return made


def _raw(cells: tuple[memoryview, memoryview]) -> RawColumn:
    return RawColumn(np.frombuffer(cells[0], "<i4"), [cells[1]])


def _checked(info: TopicInfo, data: bytes, limits: BrokerLimits) -> Block:
    block = Block(data)
    if len(data) != block.size_bytes:
        raise InvalidRequest(
            f"a block of {block.size_bytes} bytes came with {len(data)}: send one block, and nothing else"
        )
    if block.codec != CODEC_NONE or block.flags & ~(KEYS | HEADERS) or block.base_offset:
        raise InvalidRequest(
            "a block to stage is not compressed and has keys, values and headers only, from offset 0 on"
        )
    if block.next_offset != block.count:
        raise InvalidRequest("a block to stage has no gaps between its records")
    if block.raw_bytes > BLOCK_BYTES_MAX and block.count > 1:
        raise InvalidRequest(
            f"a block of {block.raw_bytes} bytes is too large for {block.count} records: at most {BLOCK_BYTES_MAX}; send several"
        )
    columns = block.columns()
    if info.config.cleanup == "compact" and (columns.keys is None or columns.keys.valid is not None):
        raise InvalidRequest(f"topic {info.name} keeps the latest record of each key: give every record a key")
    _check_sizes(columns, limits)
    if columns.headers is not None:
        _check_headers(columns.headers)
    return block


def _check_sizes(columns: Columns, limits: BrokerLimits) -> None:
    sizes = _lengths(columns.values)
    if columns.keys is not None:
        keys = _lengths(columns.keys)
        if int(keys.max()) > limits.key_bytes_max:
            raise RecordTooLarge(f"a key has {keys.max()} bytes: at most {limits.key_bytes_max} are allowed")
        sizes = sizes + keys
    if columns.headers is not None:
        sizes = sizes + _lengths(columns.headers)
    if int(sizes.max()) > limits.record_bytes_max:
        raise RecordTooLarge(
            f"record {sizes.argmax()} has {sizes.max()} bytes with its key and headers: at most {limits.record_bytes_max} are allowed"
        )


def _lengths(column: BinaryColumn) -> Int64s:
    offsets = column.offsets.astype(np.int64)
    return offsets[1:] - offsets[:-1]


def _check_headers(column: BinaryColumn) -> None:
    """Every cell must be pairs as `encode_headers` makes them: walked one pair of all cells at a time, while there are many."""
    data = np.frombuffer(column.data, np.uint8)
    at, ends = column.offsets[:-1].astype(np.int64), column.offsets[1:].astype(np.int64)
    for walked in range(HEADERS_PER_RECORD_MAX + 1):
        going_on = at < ends
        at, ends = at[going_on], ends[going_on]
        if len(at) < _CELLS_MIN or walked == HEADERS_PER_RECORD_MAX:
            for start, end in zip(at.tolist(), ends.tolist(), strict=True):
                check_headers(bytes(column.data[start:end]), HEADERS_PER_RECORD_MAX - walked)
            return
        if (ends - at < _PAIR_BYTES).any():
            raise InvalidRequest("a record's headers are cut short")
        name_bytes = _little(data, at, 2)
        value_bytes = _little(data, at + 2, 4).astype(np.uint32).astype(np.int32).astype(np.int64)
        names_at = at + _PAIR_BYTES
        at = names_at + name_bytes + np.maximum(value_bytes, 0)
        if (at > ends).any():
            raise InvalidRequest("a record's headers are cut short")
        _check_names(data, names_at, name_bytes)


def _little(data: np.ndarray[tuple[int], np.dtype[np.uint8]], at: Int64s, width: int) -> Int64s:
    number = np.zeros(len(at), np.int64)
    for byte in range(width):
        number |= data[at + byte].astype(np.int64) << (8 * byte)
    return number


def _check_names(data: np.ndarray[tuple[int], np.dtype[np.uint8]], at: Int64s, sizes: Int64s) -> None:
    """Names are UTF-8: all of them at once, with a byte between them that ends any character that is not whole."""
    ends = np.cumsum(sizes + 1)
    joined = np.zeros(int(ends[-1]), np.uint8)
    starts = ends - sizes - 1
    inside = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    joined[np.repeat(starts, sizes) + inside] = data[np.repeat(at, sizes) + inside]
    try:
        joined.tobytes().decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("a header's name is not UTF-8") from error
