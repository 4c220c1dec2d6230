"""The hot path by hand: PRODUCE, CONSUME and FETCH, both ways, and the reply to FETCH_RECORDS.

Records travel as columns, so that a thousand rows cost a few vector operations. The layouts are those of `operations.records`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from penstock.columns import UniformCells
from penstock.errors import ProtocolViolation, RecordTooLarge
from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.bytes import I32, U32, U64, ByteReader, blob32, text16
from penstock.protocols.flymq.operations.records import FetchRecords, Produce
from penstock.protocols.flymq.wire import (
    PARTITION_AUTO,
    PAYLOAD_BYTES_MAX,
    PRODUCE_FIXED_BYTES,
    RECORD_METADATA,
    ROW_FIXED_BYTES,
    WHOLE_ROW_FIXED_BYTES,
    frame,
    header,
)

VECTOR_ROWS_MIN = 16
"""Below this many rows, going one by one is faster than setting up arrays."""

Int64s = npt.NDArray[np.int64]

# --- requests ---


@dataclass(slots=True)
class ProduceRun:
    """Consecutive PRODUCE frames with one topic; one reply each. `keys` is None if no record has one."""

    topic: str
    partition: int
    """The partition field of the first frame, and of all others unless `partitions` is there."""
    keys: list[bytes | None] | None
    values: list[bytes] | UniformCells
    request_bytes: int
    partitions: list[int] | None = None
    """The partition field of each frame, where they differ."""


def encode_produce(topic: str, value: bytes, key: bytes | None = None, partition: int = PARTITION_AUTO) -> bytes:
    topic_field, key = text16(topic), key or b""
    return b"".join(
        (
            _produce_head(topic_field, len(key) + len(value)),
            blob32(key),
            U32.pack(len(value)),
            value,
            I32.pack(partition),
        )
    )


def encode_produce_many(
    topic: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None = None, partition: int = PARTITION_AUTO
) -> bytes:
    """One PRODUCE frame a record, back to back."""
    topic_field, tail = text16(topic), I32.pack(partition)
    if keys is not None and any(keys):
        parts: list[bytes] = []
        for value, key in zip(values, keys, strict=True):
            key = key or b""
            parts += _produce_head(topic_field, len(key) + len(value)), blob32(key), U32.pack(len(value)), value, tail
        return b"".join(parts)
    heads = {size: _produce_head(topic_field, size) + bytes(4) + U32.pack(size) for size in set(map(len, values))}
    if len(heads) == 1:
        (head,) = heads.values()
        # Frames of equal size differ only in their values: what stands between two values is always the same bytes.
        return b"".join((head, (tail + head).join(values), tail))
    return b"".join([part for value in values for part in (heads[len(value)], value, tail)])


def check_record(topic: str, record_bytes: int) -> None:
    """Raises RecordTooLarge if a key and value of this size do not fit into one request."""
    _produce_head(text16(topic), record_bytes)


def _produce_head(topic_field: bytes, record_bytes: int) -> bytes:
    length = len(topic_field) + PRODUCE_FIXED_BYTES + record_bytes
    if length > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"a record of {record_bytes} bytes does not fit into a FlyMQ frame: "
            f"at most {PAYLOAD_BYTES_MAX - length + record_bytes} bytes of key and value for this topic"
        )
    return header(Produce.opcode, length) + topic_field


# --- what replies are made of ---


@dataclass(slots=True)
class Placed:
    """Records of a run that landed in one partition: record `rows[i]` has offset `base_offset + i`."""

    rows: slice | list[int]
    partition: int
    base_offset: int
    timestamp_ms: int


@dataclass(slots=True)
class Failed:
    """Records of a run that were not stored; `reply` is the ERROR frame each of them gets."""

    rows: slice | list[int]
    reply: bytes


@dataclass(slots=True)
class Rows:
    """Fetched records, as columns."""

    offsets: Sequence[int]
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]

    def fitting(self, bytes_max: int) -> int:
        """How many rows from the first on take no more than this in a reply."""
        size = 0
        for row, value in enumerate(self.values):
            size += ROW_FIXED_BYTES + len(value or b"")
            if self.keys is not None:
                size += len(self.keys[row] or b"")
            if size > bytes_max:
                return row
        return len(self.values)

    def head(self, count: int) -> Rows:
        return Rows(self.offsets[:count], self.keys and self.keys[:count], self.values[:count])

    @property
    def size_bytes(self) -> int:
        """What the rows take in a reply."""
        size = len(self.values) * ROW_FIXED_BYTES + sum(map(len, filter(None, self.values)))
        return size if self.keys is None else size + sum(map(len, filter(None, self.keys)))


@dataclass(slots=True)
class UniformRows:
    """Fetched records without keys whose values all take `value_bytes`, back to back in `data`."""

    offsets: Sequence[int]
    value_bytes: int
    data: bytes | memoryview

    def fitting(self, bytes_max: int) -> int:
        return min(len(self.offsets), bytes_max // (ROW_FIXED_BYTES + self.value_bytes))

    def head(self, count: int) -> UniformRows:
        return UniformRows(self.offsets[:count], self.value_bytes, self.data[: count * self.value_bytes])

    @property
    def size_bytes(self) -> int:
        return len(self.offsets) * (ROW_FIXED_BYTES + self.value_bytes)


@dataclass(slots=True)
class RawCells:
    """A column of byte strings as it is sent: their lengths, -1 for null, and their bytes back to back."""

    lengths: Int64s
    data: bytes | memoryview

    @classmethod
    def of(cls, cells: Sequence[bytes | None]) -> RawCells:
        lengths = np.array([-1 if cell is None else len(cell) for cell in cells], np.int64)
        return cls(lengths, b"".join(filter(None, cells)))

    @property
    def sizes(self) -> Int64s:
        """The length of each cell, 0 for null."""
        return np.maximum(self.lengths, 0)

    def head(self, count: int) -> RawCells:
        return RawCells(self.lengths[:count], self.data[: int(self.sizes[:count].sum())])


@dataclass(slots=True)
class WholeRows:
    """Fetched records with everything they have, as columns. `keys` and `headers` are None if no record has one."""

    offsets: Sequence[int]
    timestamps_ms: Sequence[int]
    keys: RawCells | None
    values: RawCells
    headers: RawCells | None

    @property
    def cells(self) -> tuple[RawCells | None, RawCells, RawCells | None]:
        return self.keys, self.values, self.headers

    def fitting(self, bytes_max: int) -> int:
        """How many rows from the first on take no more than this in a reply."""
        sizes = sum((column.sizes for column in self.cells if column is not None), np.int64(WHOLE_ROW_FIXED_BYTES))
        return int(np.searchsorted(np.cumsum(sizes), bytes_max, side="right"))

    def head(self, count: int) -> WholeRows:
        keys, values, headers = (column and column.head(count) for column in self.cells)
        assert values is not None
        return WholeRows(self.offsets[:count], self.timestamps_ms[:count], keys, values, headers)

    @property
    def size_bytes(self) -> int:
        """What the rows take in a reply."""
        size_bytes = len(self.offsets) * WHOLE_ROW_FIXED_BYTES
        for column in (self.keys, self.values, self.headers):
            if column is not None:
                size_bytes += len(column.data)
        return size_bytes


@dataclass(slots=True)
class Fetched:
    """A decoded FETCH reply. `keys` is None if no record has one."""

    offsets: list[int]
    keys: list[bytes | None] | None
    values: list[bytes]
    next_offset: int


@lru_cache(maxsize=64)
def uniform_dtype(value_bytes: int, native: bool) -> np.dtype[np.void]:
    offset, record = ("offset", ">u8"), [("key_size", ">u4"), ("value_size", ">u4"), ("value", f"V{value_bytes}")]
    return np.dtype([offset, *record] if native else [*record, offset])


# --- PRODUCE ---


@lru_cache(maxsize=256)
def _metadata_dtype(head_bytes: int) -> np.dtype[np.void]:
    return np.dtype(
        [
            ("head", f"V{head_bytes}"),
            ("partition", ">i4"),
            ("offset", ">u8"),
            ("timestamp", ">i8"),
            ("key_size", ">i4"),
            ("value_size", ">i4"),
        ]
    )


@lru_cache(maxsize=1024)
def _metadata_head(topic: str) -> bytes:
    field = text16(topic)
    return header(Produce.opcode, len(field) + RECORD_METADATA.size) + field


def encode_produced_one(run: ProduceRun, partition: int, offset: int, timestamp_ms: int) -> bytes:
    """The reply to a run of one record."""
    key = run.keys[0] if run.keys is not None else None
    metadata = RECORD_METADATA.pack(partition, offset, timestamp_ms, len(key) if key else -1, len(run.values[0]))
    return _metadata_head(run.topic) + metadata


def encode_produced(
    topic: str, keys: Sequence[bytes | None] | None, values: Sequence[bytes], parts: Sequence[Placed | Failed]
) -> bytes:
    """The replies to a run, in the order of its records. The parts cover every record once."""
    if len(parts) == 1:
        return _encode_part(topic, keys, values, parts[0])
    frames: list[bytes] = [b""] * len(values)
    for part in parts:
        rows = part.rows
        part_values = _pick(values, rows)
        replies = _encode_part(topic, None if keys is None else _pick(keys, rows), part_values, part)
        size = len(replies) // len(part_values)
        cut = [replies[at : at + size] for at in range(0, len(replies), size)]
        if isinstance(rows, slice):
            frames[rows] = cut
        else:
            for row, reply in zip(rows, cut, strict=True):
                frames[row] = reply
    return b"".join(frames)


def _pick(column: Sequence[Any], rows: slice | list[int]) -> Sequence[Any]:
    return column[rows] if isinstance(rows, slice) else [column[row] for row in rows]


def _encode_part(
    topic: str, keys: Sequence[bytes | None] | None, values: Sequence[bytes], part: Placed | Failed
) -> bytes:
    count = len(values)
    if isinstance(part, Failed):
        return part.reply * count
    head = _metadata_head(topic)
    if count < VECTOR_ROWS_MIN:
        pack, partition, timestamp = RECORD_METADATA.pack, part.partition, part.timestamp_ms
        return b"".join(
            [
                head + pack(partition, offset, timestamp, len(key) if key else -1, len(value))
                for offset, value, key in zip(
                    range(part.base_offset, part.base_offset + count), values, keys or (None,) * count, strict=True
                )
            ]
        )
    fields = RECORD_METADATA.pack(part.partition, 0, part.timestamp_ms, -1, 0)
    return _metadata_rows(head, fields, keys, values, np.arange(part.base_offset, part.base_offset + count)).tobytes()


def encode_scattered(
    topic: str,
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes],
    partitions: Int64s,
    offsets: Int64s,
    timestamps_ms: Int64s,
) -> bytes:
    """The replies to a run whose records all arrived, each in a place of its own."""
    rows = _metadata_rows(_metadata_head(topic), RECORD_METADATA.pack(0, 0, 0, -1, 0), keys, values, offsets)
    rows["partition"] = partitions
    rows["timestamp"] = timestamps_ms
    return rows.tobytes()


def _metadata_rows(
    head: bytes, fields: bytes, keys: Sequence[bytes | None] | None, values: Sequence[bytes], offsets: Int64s
) -> npt.NDArray[np.void]:
    """One reply for each record: head and fields, with offsets and sizes put in."""
    count = len(values)
    rows = np.frombuffer(bytearray((head + fields) * count), _metadata_dtype(len(head)))
    rows["offset"] = offsets
    if isinstance(values, UniformCells):
        rows["value_size"] = values.cell_bytes
    else:
        rows["value_size"] = np.fromiter(map(len, values), np.int32, count)
    if keys is not None:
        rows["key_size"] = np.fromiter((len(key) if key else -1 for key in keys), np.int32, count)
    return rows


# --- CONSUME ---


def encode_consumed(opcode: int, key: bytes | None, value: bytes | None) -> bytes:
    return frame(opcode, blob32(key or b"") + blob32(value or b""))


# --- FETCH ---

_KEYED_HEAD = np.dtype([("offset", ">u8"), ("key_size", ">u4")])
_HEAD = np.dtype([("offset", ">u8"), ("key_size", ">u4"), ("value_size", ">u4")])
"""For a record without a key."""


def encode_fetched(opcode: int, parts: Sequence[Rows | UniformRows], next_offset: int, *, native: bool) -> bytes:
    encoded = [
        _encode_uniform(part, native) if isinstance(part, UniformRows) else _encode_rows(part, native) for part in parts
    ]
    count = U32.pack(sum(len(part.offsets) for part in parts))
    following = U64.pack(next_offset)
    payload = (count, following, *encoded) if native else (count, *encoded, following)
    length = sum(map(len, payload))
    return b"".join((header(opcode, length), *payload))


def _encode_uniform(part: UniformRows, native: bool) -> memoryview:
    rows = np.empty(len(part.offsets), uniform_dtype(part.value_bytes, native))
    rows["offset"] = _offset_vector(part.offsets)
    rows["key_size"] = 0
    rows["value_size"] = part.value_bytes
    rows["value"] = np.frombuffer(part.data, f"V{part.value_bytes}")
    return rows.view(np.uint8).data


def _encode_rows(part: Rows, native: bool) -> bytes:
    count = len(part.offsets)
    values = [value or b"" for value in part.values] if None in part.values else part.values
    if count >= VECTOR_ROWS_MIN:
        keys = part.keys and ([key or b"" for key in part.keys] if None in part.keys else part.keys)
        return _encode_many_rows(part.offsets, keys, values, native)  # type: ignore[arg-type]
    keys = [key or b"" for key in part.keys] if part.keys is not None else [b""] * count
    key_sizes, value_sizes = map(U32.pack, map(len, keys)), map(U32.pack, map(len, values))  # type: ignore[arg-type]
    offsets = map(U64.pack, part.offsets)
    pieces: list[bytes] = [b""] * (5 * count)
    columns = (
        (offsets, key_sizes, keys, value_sizes, values) if native else (key_sizes, keys, value_sizes, values, offsets)
    )
    for place, column in enumerate(columns):
        pieces[place::5] = column  # type: ignore[assignment]
    return b"".join(pieces)


def _encode_many_rows(
    offsets: Sequence[int], keys: Sequence[bytes] | None, values: Sequence[bytes], native: bool
) -> bytes:
    """All that stands between two cells is one piece. An offset that follows its record is one with the sizes of the next."""
    count, shift = len(values), 0 if native else 1
    heads = np.zeros(count + shift, _HEAD if keys is None else _KEYED_HEAD)
    heads["offset"][shift:] = _offset_vector(offsets)
    value_sizes = np.fromiter(map(len, values), ">u4", count)
    stride = 2 if keys is None else 4
    pieces: list[bytes] = [b""] * (stride * count + shift)
    if keys is None:
        heads["value_size"][:count] = value_sizes
    else:
        heads["key_size"][:count] = np.fromiter(map(len, keys), np.uint32, count)
        pieces[1::4] = keys
        pieces[2::4] = value_sizes.view("V4").tolist()
    pieces[stride - 1 :: stride] = values
    pieces[::stride] = heads.view(f"V{heads.itemsize}").tolist()
    if shift:
        pieces[0], pieces[-1] = pieces[0][8:], pieces[-1][:8]
    return b"".join(pieces)


def _offset_vector(offsets: Sequence[int]) -> Int64s:
    if isinstance(offsets, range):
        return np.arange(offsets.start, offsets.stop, offsets.step)
    return np.array(offsets, np.int64)


# --- FETCH_RECORDS ---

PACKED_ROWS_MAX: Final = 32
"""Up to this many numbers, packing them is quicker than making an array."""
_INT64S: Final = [struct.Struct(f">{count}q") for count in range(PACKED_ROWS_MAX + 1)]


def encode_fetched_records(parts: Sequence[WholeRows], next_offset: int) -> bytes:
    """The reply as `FetchedRecords` declares it."""
    # Loops, no comprehensions: most replies have one part, and each comprehension costs a call.
    rows = 0
    offsets: list[bytes] = []
    timestamps: list[bytes] = []
    for part in parts:
        part_rows = len(part.offsets)
        rows += part_rows
        if part_rows <= PACKED_ROWS_MAX:
            pack = _INT64S[part_rows].pack
            offsets.append(pack(*part.offsets))
            timestamps.append(pack(*part.timestamps_ms))
        else:
            offsets.append(_offset_vector(part.offsets).astype(">i8").tobytes())
            timestamps.append(np.array(part.timestamps_ms, ">i8").tobytes())
    count = U32.pack(rows)
    pieces: list[bytes | memoryview] = [U64.pack(next_offset), count, *offsets, count, *timestamps]
    for column in range(3):
        lengths: list[bytes] = []
        data: list[bytes | memoryview] = []
        for part in parts:
            cells = (part.keys, part.values, part.headers)[column]
            if cells is None:
                lengths.append(I32.pack(-1) * len(part.offsets))
            else:
                lengths.append(cells.lengths.astype(">i4").tobytes())
                data.append(cells.data)
        pieces += (count, *lengths, *data) if data else (U32.pack(0),)
    return b"".join((header(FetchRecords.opcode, sum(map(len, pieces))), *pieces))


# --- replies as a client reads them ---


def decode_produced(payload: bytes) -> tuple[str, int, int, int]:
    """Topic, partition, offset and timestamp of one PRODUCE reply."""
    reader = ByteReader(payload)
    topic = reader.text16("topic")
    partition, offset, timestamp_ms, _, _ = RECORD_METADATA.unpack(reader.take(RECORD_METADATA.size, "record metadata"))
    return topic, partition, offset, timestamp_ms


def decode_consumed(payload: bytes) -> tuple[bytes | None, bytes]:
    reader = ByteReader(payload)
    key = reader.blob32("key")
    return key or None, reader.blob32("value")


def decode_fetched(payload: bytes, *, native: bool) -> Fetched:
    reader = ByteReader(payload)
    count = reader.count32("records", ROW_FIXED_BYTES, REPLY_ITEMS_MAX)
    next_offset = reader.u64("next offset") if native else 0
    fetched = _decode_uniform(payload, reader.position, count, native) if count >= VECTOR_ROWS_MIN else None
    if fetched is None:
        fetched, reader.position = _decode_rows(payload, reader.position, count, native)
    else:
        reader.position = len(payload) - (0 if native else 8)
    fetched.next_offset = next_offset if native else reader.u64("next offset")
    return fetched


def _decode_uniform(payload: bytes, start: int, count: int, native: bool) -> Fetched | None:
    """Records without keys and with values of one size, as one array; None if they are not."""
    records_bytes = len(payload) - start - (0 if native else 8)
    value_bytes, left_over = divmod(records_bytes, count)
    value_bytes -= ROW_FIXED_BYTES
    if left_over or value_bytes <= 0:
        return None
    rows = np.frombuffer(payload, uniform_dtype(value_bytes, native), count, start)
    if rows["key_size"].any() or (rows["value_size"] != value_bytes).any():
        return None
    return Fetched(rows["offset"].tolist(), None, rows["value"].tolist(), 0)


def _decode_rows(payload: bytes, position: int, count: int, native: bool) -> tuple[Fetched, int]:
    """Records of any shape, and where they end."""
    offsets: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes] = []
    unpack_size, unpack_offset = U32.unpack_from, U64.unpack_from
    end = len(payload)
    try:
        for _ in range(count):
            if native:
                offsets += unpack_offset(payload, position)
                position += 8
            key_at = position + 4
            key_end = key_at + unpack_size(payload, position)[0]
            value_at = key_end + 4
            position = value_at + unpack_size(payload, key_end)[0]
            keys.append(payload[key_at:key_end] or None)
            values.append(payload[value_at:position])
            if not native:
                offsets += unpack_offset(payload, position)
                position += 8
    except struct.error:
        position = end + 1
    if position > end:
        raise ProtocolViolation(f"buffer too small: record {len(values)} of {count} does not fit into the payload")
    return Fetched(offsets, keys if any(keys) else None, values, 0), position
