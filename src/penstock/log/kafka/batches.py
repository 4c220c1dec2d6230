"""Kafka's record batches: made of columns, and turned into blocks.

A record batch is a header and its records, each with its fields behind one another and every number of variable length. Records of one size
without keys and headers, which are frequent, are laid out and read as arrays; other records one by one.

Offsets of a log that was moved to Kafka and that hold no record there are taken by records that have the key and one header
`penstock-gap` and nothing else, because a batch of Kafka has no gaps. Readers never see them.

The time at which a record expires is its last header, `penstock-expires`, in decimal milliseconds. Headers of these two names that a
user set are kept apart by a further one after them, which is 0 if the record does not expire.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard

from penstock.columns import UniformCells, are_uniform, joined
from penstock.errors import CorruptBlock
from penstock.log.api import Batch, BlockBatch, PlacedBatch
from penstock.log.block import Block, encode_block
from penstock.log.kafka.client import ProducerId, decode_records
from penstock.record_headers import decode_headers, encode_headers

EXPIRES: Final = "penstock-expires"
GAP: Final = "penstock-gap"
_GAP_KEY: Final = GAP.encode()
_GAP_HEADERS: Final = [(GAP, None)]
NO_PRODUCER: Final = ProducerId(-1, -1)
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and last time, producer id and epoch, first
sequence number, count."""
_LENGTH_ENDS_AT: Final = 12
_MAGIC: Final = 2
_CHECKSUM_AT: Final = 17
_SUMMED_AT: Final = 21
_CODEC: Final = 0x07
_ZSTD: Final = 4
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_CONTROL_KEY: Final = struct.Struct(">hh")
_ABORT: Final = 0
_NULL: Final = b"\x01"
_EXPIRY_MAX: Final = (1 << 63) - 1
_ZSTD_LEVEL: Final = 1
_COMPRESS_BYTES_MIN: Final = 256
_FEW_RECORDS: Final = 8
"""Fewer records are laid out sooner one by one than as an array."""
# Numbers up to these take one byte more than those before (two bits of each are lost: one for continuation, one for the sign).
_WIDTHS: Final = tuple((width, 1 << (7 * width - 1)) for width in range(1, 6))

Bytes = npt.NDArray[np.uint8]


def _varint(number: int) -> bytes:
    """A number from 0 on, as Kafka writes signed ones: in zigzag, seven bits a byte, the low ones first."""
    rest = number << 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


_VARINTS: Final = [_varint(number) for number in range(1 << 13)]


def _number(number: int) -> bytes:
    return _VARINTS[number] if number < len(_VARINTS) else _varint(number)


# -- columns to record batch ---------------------------------------------------------------------------------------------------


def encode_batch(
    batch: Batch,
    timestamp_ms: int,
    producer: ProducerId = NO_PRODUCER,
    sequence: int = -1,
    *,
    transactional: bool = False,
    compress: bool = False,
) -> bytes:
    """One record batch. The broker sets its offset, and its time in a topic of ours."""
    attributes = _TRANSACTIONAL if transactional else 0
    records, codec = _encode_records(batch), 0
    if compress:
        records, codec = _compressed(records)
    return _assemble(
        records, attributes | codec, batch.count, (timestamp_ms, timestamp_ms), producer=producer, sequence=sequence
    )


class EncodedRecords(NamedTuple):
    """The records of a batch, without its header."""

    data: bytes
    codec: int
    offsets: int
    """How many it takes."""
    times: tuple[int, int]
    """Of the first record and of the last one."""

    def batch(self, producer: ProducerId, sequence: int) -> bytes:
        return _assemble(self.data, self.codec, self.offsets, self.times, producer=producer, sequence=sequence)


def encode_placed(records: PlacedBatch, start: int, *, compress: bool = False) -> EncodedRecords:
    """Encode records that keep their times and their offsets, of a batch that begins at `start`, with gaps before and between them."""
    first_ms, last_ms = records.timestamps[0], records.timestamps[-1]
    if first_ms == last_ms and records.offsets[0] == start and records.next_offset - start == records.count:
        data = _encode_records(records)
    else:
        data = b"".join(_placed_records(records, start))
    encoded, codec = _compressed(data) if compress else (data, 0)
    return EncodedRecords(encoded, codec, records.next_offset - start, (first_ms, last_ms))


def encode_gap(count: int, timestamp_ms: int) -> EncodedRecords:
    """Encode a batch that takes offsets and holds nothing."""
    encoded, codec = _compressed(b"".join(_gap_record(row, b"\0") for row in range(count)))
    return EncodedRecords(encoded, codec, count, (timestamp_ms, timestamp_ms))


def _placed_records(records: PlacedBatch, start: int) -> Iterator[bytes]:
    following = start
    keys, headers, expiries = records.keys, records.headers, records.expiries
    first_ms = records.timestamps[0]
    columns = zip(records.offsets, records.timestamps, records.values, strict=True)
    for row, (offset, timestamp_ms, value) in enumerate(columns):
        time = _number(timestamp_ms - first_ms)
        while following < offset:
            yield _gap_record(following - start, time)
            following += 1
        cell = None if headers is None else headers[row]
        expiry = 0 if expiries is None else expiries[row]
        rest = _encode_headers(cell, expiry) if cell or expiry else b"\0"
        yield _record(offset - start, time, None if keys is None else keys[row], value, rest)
        following += 1


def _record(delta: int, time: bytes, key: bytes | None, value: bytes | None, headers: bytes) -> bytes:
    fields = (
        b"\0",
        time,
        _number(delta),
        _NULL if key is None else _number(len(key)),
        key or b"",
        _NULL if value is None else _number(len(value)),
        value or b"",
        headers,
    )
    return b"".join((_number(sum(map(len, fields))), *fields))


def _gap_record(delta: int, time: bytes) -> bytes:
    """A record without a value. It has a key, because it may lie in a compacted topic."""
    return _record(delta, time, _GAP_KEY, None, b"".join((_number(1), _number(len(_GAP_KEY)), _GAP_KEY, _NULL)))


def _compressed(records: bytes) -> tuple[bytes, int]:
    """The records and the codec that they are in: compressed if that makes them smaller."""
    if len(records) >= _COMPRESS_BYTES_MIN:
        smaller = zstandard.compress(records, _ZSTD_LEVEL)
        if len(smaller) < len(records):
            return smaller, _ZSTD
    return records, 0


def _assemble(
    records: bytes, attributes: int, count: int, times: tuple[int, int], *, producer: ProducerId, sequence: int
) -> bytes:
    length = HEADER.size - _LENGTH_ENDS_AT + len(records)
    head = bytearray(HEADER.pack(0, length, -1, _MAGIC, 0, attributes, count - 1, *times, *producer, sequence, count))
    checksum = google_crc32c.extend(google_crc32c.value(bytes(head[_SUMMED_AT:])), records)
    struct.pack_into(">I", head, _CHECKSUM_AT, checksum)
    return bytes(head) + records


def join_batches(batches: Sequence[Batch | BlockBatch]) -> Batch:
    """One batch of the records of several, in order."""
    parts = [part for batch in batches for part in _columns_of(batch)]
    if len(parts) == 1:
        return parts[0]
    values = [part.values for part in parts]
    return Batch(
        joined(values) if are_uniform(values) else [cell for part in values for cell in part],
        _join([part.keys for part in parts], parts),
        _join([part.headers for part in parts], parts),
        None
        if all(part.expiries is None for part in parts)
        else [expiry for part in parts for expiry in part.expiries or [0] * part.count],
        size_bytes=sum(part.size_bytes for part in parts),
    )


def _columns_of(batch: Batch | BlockBatch) -> Iterable[Batch]:
    if isinstance(batch, Batch):
        return (batch,)
    return [Batch(block.values(), block.keys(), block.headers(), block.expiries()) for block in batch.blocks]


def _join(columns: Sequence[Sequence[bytes | None] | None], parts: Sequence[Batch]) -> list[bytes | None] | None:
    if all(column is None for column in columns):
        return None
    joined_cells: list[bytes | None] = []
    for column, part in zip(columns, parts, strict=True):
        joined_cells += [None] * part.count if column is None else column
    return joined_cells


def _encode_records(batch: Batch) -> bytes:
    values = batch.values
    if batch.keys is None and batch.headers is None and batch.expiries is None and batch.count >= _FEW_RECORDS:
        uniform = values if isinstance(values, UniformCells) else _uniform(values)
        if uniform is not None:
            return _encode_uniform(uniform)
    records: list[bytes] = []
    keys, headers, expiries = batch.keys, batch.headers, batch.expiries
    for row, value in enumerate(values):
        key = None if keys is None else keys[row]
        cell = None if headers is None else headers[row]
        expiry = 0 if expiries is None else expiries[row]
        offset = _number(row)
        key_length = _NULL if key is None else _number(len(key))
        value_length = _NULL if value is None else _number(len(value))
        rest = _encode_headers(cell, expiry) if cell or expiry else b"\0"
        size = 2 + len(offset) + len(key_length) + len(key or b"") + len(value_length) + len(value or b"") + len(rest)
        records += (_number(size), b"\0\0", offset, key_length, key or b"", value_length, value or b"", rest)
    return b"".join(records)


def _encode_headers(cell: bytes | None, expiry_ms: int) -> bytes:
    pairs = decode_headers(cell) if cell else []
    if expiry_ms or any(name in {EXPIRES, GAP} for name, _ in pairs):
        pairs.append((EXPIRES, b"%d" % expiry_ms))
    parts = [_number(len(pairs))]
    for name, value in pairs:
        encoded = name.encode()
        parts += (_number(len(encoded)), encoded, _NULL if value is None else _number(len(value)), value or b"")
    return b"".join(parts)


def _uniform(values: Sequence[bytes | None]) -> UniformCells | None:
    first = values[0]
    if first is None or None in values:
        return None
    size = len(first)
    if any(len(value) != size for value in values if value is not None):
        return None
    return UniformCells(size, len(values), b"".join(value for value in values if value is not None))


class _Layout(NamedTuple):
    """Records of one size whose offset deltas take equally many bytes: all are of `stride` bytes, and `record` is the first of them."""

    first: int
    rows: int
    width: int
    offset_at: int
    value_at: int
    stride: int
    record: bytes
    """Without its value and its offset."""


def _layouts(count: int, value_bytes: int) -> Iterator[_Layout]:
    first = 0
    value_length = _number(value_bytes)
    for width, above in _WIDTHS:
        if first >= count:
            return
        rows = min(above, count) - first
        size = 2 + width + 1 + len(value_length) + value_bytes + 1
        length = _number(size)
        offset_at = len(length) + 2
        value_at = offset_at + width + 1 + len(value_length)
        fixed = length + b"\0\0" + bytes(width) + _NULL + value_length + bytes(value_bytes + 1)
        yield _Layout(first, rows, width, offset_at, value_at, len(length) + size, fixed)
        first += rows


def _offset_bytes(layout: _Layout) -> Bytes:
    """The offset deltas of the records of a layout, a row each."""
    zigzag = np.arange(layout.first, layout.first + layout.rows, dtype=np.int64) << 1
    columns = [(zigzag >> (7 * place)) & 0x7F | 0x80 for place in range(layout.width)]
    columns[-1] = columns[-1] & 0x7F
    return np.stack(columns, axis=1).astype(np.uint8)


def _encode_uniform(values: UniformCells) -> bytes:
    cells = np.frombuffer(values.data, np.uint8).reshape(values.rows, values.cell_bytes)
    pieces: list[bytes] = []
    for layout in _layouts(values.rows, values.cell_bytes):
        rows = np.empty((layout.rows, layout.stride), np.uint8)
        rows[:] = np.frombuffer(layout.record, np.uint8)
        rows[:, layout.offset_at : layout.offset_at + layout.width] = _offset_bytes(layout)
        rows[:, layout.value_at : -1] = cells[layout.first : layout.first + layout.rows]
        pieces.append(rows.tobytes())
    return b"".join(pieces)


# -- record batch to block -----------------------------------------------------------------------------------------------------


class RecordBatch:
    """A record batch as it came from a broker: its header, decoded, and its bytes."""

    __slots__ = (
        "_checksum",
        "attributes",
        "base_offset",
        "count",
        "data",
        "first_ms",
        "last_ms",
        "next_offset",
        "producer_id",
    )

    def __init__(self, data: bytes) -> None:
        """Raises CorruptBlock if the header makes no sense."""
        if len(data) < HEADER.size:
            raise CorruptBlock(f"a record batch of Kafka has {len(data)} bytes, and its header needs {HEADER.size}")
        (
            self.base_offset,
            _,
            _,
            magic,
            self._checksum,
            self.attributes,
            last_delta,
            self.first_ms,
            self.last_ms,
            self.producer_id,
            _,
            _,
            self.count,
        ) = HEADER.unpack_from(data)
        self.data = data
        self.next_offset = self.base_offset + last_delta + 1
        if magic != _MAGIC or last_delta < 0 or self.count < 0:
            raise CorruptBlock(f"a record batch of Kafka at offset {self.base_offset} is of a format that is not known")

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_abort(self) -> bool:
        """Whether this ends a transaction whose records nobody may see."""
        [record] = decode_records(self.data)
        return record.key is not None and _CONTROL_KEY.unpack_from(record.key)[1] == _ABORT

    def block(self) -> Block | None:
        """The records; None if compaction left none, or only gaps. Raises CorruptBlock, with the offset to continue at."""
        try:
            if google_crc32c.value(self.data[_SUMMED_AT:]) != self._checksum:
                raise CorruptBlock(f"the record batch of Kafka at offset {self.base_offset} fails its checksum")
            if not self.count:
                return None
            return self._uniform_block() or self._any_block()
        except CorruptBlock as error:
            error.next_offset = self.next_offset
            raise
        except Exception as error:  # anybody may write to a topic in Kafka: what he wrote must not stop who follows it
            corrupt = CorruptBlock(
                f"the record batch of Kafka at offset {self.base_offset} cannot be stored as a block: {error}"
            )
            corrupt.next_offset = self.next_offset
            raise corrupt from error

    def _uniform_block(self) -> Block | None:
        """The fast path; None if the records are not all of one size, or have more than a value."""
        count, data = self.count, self.data
        if self.attributes & _CODEC or self.next_offset - self.base_offset != count or count < _FEW_RECORDS:
            return None
        value_bytes = _first_value_bytes(data)
        if value_bytes is None or count * (value_bytes + 1) > len(data):
            return None
        at = HEADER.size
        values: list[bytes] = []
        for layout in _layouts(count, value_bytes):
            end = at + layout.rows * layout.stride
            if end > len(data):
                return None
            rows = np.frombuffer(data, np.uint8, layout.rows * layout.stride, at).reshape(layout.rows, layout.stride)
            at = end
            expected = np.frombuffer(layout.record, np.uint8)
            offset_end = layout.offset_at + layout.width
            if (
                (rows[:, : layout.offset_at] != expected[: layout.offset_at]).any()
                or (rows[:, layout.offset_at : offset_end] != _offset_bytes(layout)).any()
                or (rows[:, offset_end : layout.value_at] != expected[offset_end : layout.value_at]).any()
                or rows[:, -1].any()
            ):
                return None
            values.append(rows[:, layout.value_at : -1].tobytes())
        if at != len(data):
            return None
        timestamp_ms = self.last_ms if self.attributes & _LOG_APPEND_TIME else self.first_ms
        cells = UniformCells(value_bytes, count, b"".join(values))
        return Block(encode_block(self.base_offset, timestamp_ms, cells), checked=True)

    def _any_block(self) -> Block | None:
        offsets: list[int] = []
        times: list[int] = []
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        cells: list[bytes | None] = []
        expiries: list[int] = []
        latest = 0
        for offset, timestamp_ms, key, value, headers in decode_records(self.data):
            if value is None and headers and key == _GAP_KEY and headers == _GAP_HEADERS:
                continue
            offsets.append(offset)
            latest = max(latest, timestamp_ms)  # times of a partition do not fall
            times.append(latest)
            keys.append(key)
            values.append(value)
            expiry_ms = _expiry(headers) if headers else None
            if expiry_ms is not None:
                headers = headers[:-1]
            expiries.append(expiry_ms or 0)
            cells.append(encode_headers(headers) if headers else None)
        if not offsets:
            return None
        data = encode_block(offsets[0], times[0], values, keys, cells, expiries, timestamps=times, offsets=offsets)
        return Block(data, checked=True)


def _first_value_bytes(data: bytes) -> int | None:
    """The size of the first record's value, where it has no key and the usual layout."""
    at = HEADER.size
    for _ in range(len(_WIDTHS)):  # its length
        at += 1
        if at > len(data) or data[at - 1] < 0x80:
            break
    at += 3  # attributes, time, offset
    if data[at : at + 1] != _NULL:
        return None
    at += 1
    zigzag = shift = 0
    for byte in data[at : at + len(_WIDTHS)]:
        zigzag |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return None if zigzag & 1 else zigzag >> 1
    return None


def _expiry(headers: Sequence[tuple[str, bytes | None]]) -> int | None:
    """When a record expires, 0 for never; None if its last header does not say."""
    name, value = headers[-1]
    if name != EXPIRES or value is None or not value.isdigit() or len(value) > len(str(_EXPIRY_MAX)):
        return None
    expiry_ms = int(value)
    return None if expiry_ms > _EXPIRY_MAX else expiry_ms


def split(data: bytes) -> Iterator[RecordBatch]:
    """The record batches of what was fetched; an incomplete last one is left out."""
    at = 0
    while at + HEADER.size <= len(data):
        (length,) = struct.unpack_from(">i", data, at + 8)
        end = at + _LENGTH_ENDS_AT + length
        if length < 0 or end > len(data):
            return
        yield RecordBatch(data[at:end])
        at = end


def visible(batches: Iterable[RecordBatch], aborted: Sequence[tuple[int, int]]) -> Iterator[RecordBatch]:
    """The batches that a reader may see: neither the marks that end transactions, nor records of aborted ones."""
    begun = sorted(aborted, key=lambda each: each[1])
    inside: set[int] = set()
    for batch in batches:
        while begun and begun[0][1] < batch.next_offset:
            inside.add(begun.pop(0)[0])
        if batch.is_control:
            if batch.is_abort:
                inside.discard(batch.producer_id)
        elif not (batch.is_transactional and batch.producer_id in inside):
            yield batch
