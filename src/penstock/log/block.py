"""The block: the records one commit wrote to one partition, stored by column.

A fixed header (`HEADER`), then the body: optional arrays of timestamps, expiries, lengths and offset distances, each there only if some
record needs it, then all keys, all values and all header cells back to back. docs/format.md describes every byte.

Building one is a handful of joins, reading one into Arrow or NumPy a handful of vector operations; neither touches a record in
Python. The checksum covers the whole block because one call per block is what makes checksums cheap.

The seal ties a block to one position of one file: it is the salt of the file xor the position. A client never learns a file's salt, so
no bytes of a record can pass for a block, not even a copy of a real one; and a block that was moved, swapped or written to the wrong
place is noticed. The seal is not covered by the checksum: over the wire a block has a seal of 0 and is otherwise the same bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import zstandard

from penstock.columns import UniformCells
from penstock.errors import CorruptBlock
from penstock.log.checksums import COMBINED_BYTES_MIN, combined, split_off

MAGIC: Final = b"PnB2"
_START = struct.Struct("<4sIQ")
_REST = struct.Struct("<HHIIIqIIqqII")
HEADER = struct.Struct(_START.format + _REST.format[1:])
HEADER_BYTES: Final = HEADER.size
assert HEADER_BYTES == 72
SEAL_AT: Final = 8
SUMMED_AT: Final = _START.size
"""The checksum covers everything from this byte on."""

CODEC_NONE: Final = 0
CODEC_ZSTD: Final = 1

TIMESTAMPS: Final = 1
EXPIRIES: Final = 2
KEYS: Final = 4
HEADERS: Final = 8
OFFSETS: Final = 16
# The block is the first of its commit; the last.
BEGINS: Final = 32
ENDS: Final = 64
_KNOWN_FLAGS: Final = TIMESTAMPS | EXPIRIES | KEYS | HEADERS | OFFSETS | BEGINS | ENDS
_ARRAYS: Final = ((TIMESTAMPS, "<i8"), (EXPIRIES, "<i8"), (0, "<i4"), (KEYS, "<i4"), (HEADERS, "<i4"), (OFFSETS, "<u4"))
_DTYPES: Final = {column: np.dtype(kind) for column, kind in _ARRAYS}
"""Of the columns that are arrays, in the order in which they are stored."""
_END: Final = -1


def _vectors_at(flags: int) -> dict[int, int]:
    """Where each column that is there begins, and where all of them end, in bytes for each record."""
    places, at = {}, 0
    for column, dtype in _DTYPES.items():
        if not column or flags & column:
            places[column] = at
            at += dtype.itemsize
    return places | {_END: at}


_VECTORS_AT: Final = [_vectors_at(flags) for flags in range(_KNOWN_FLAGS + 1)]
PLACED_FLAGS: Final = TIMESTAMPS | OFFSETS | BEGINS | ENDS
"""Flags of a block that has its place in a log; one that is still to be placed has none of them."""

# No writer makes a larger body: a record is at most 32 MiB, and a block that already holds one takes no more.
BODY_BYTES_MAX: Final = 80 << 20
# Below this a compressed frame is rarely smaller than what it replaces.
COMPRESS_BYTES_MIN: Final = 256
_ZSTD_LEVEL: Final = 1
_LENGTH: Final = struct.Struct("<i")
_FEW_LENGTHS: Final = [struct.Struct(f"<{count}i") for count in range(33)]
"""Up to this many lengths, packing them is faster than making an array."""

Cells = Sequence[bytes | None]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """A column of byte strings as Arrow lays it out: cell i is `data[offsets[i]:offsets[i + 1]]`."""

    offsets: Int32s
    data: memoryview
    valid: npt.NDArray[np.bool_] | None
    """None if no cell is null."""


@dataclass(frozen=True, slots=True)
class Columns:
    """A block's columns as vectors; `keys` and `headers` are None if no record has one."""

    offsets: Int64s
    timestamps_ms: Int64s
    expiries_ms: Int64s | None
    keys: BinaryColumn | None
    values: BinaryColumn
    headers: BinaryColumn | None


def encode_block(
    base_offset: int,
    timestamp_ms: int,
    values: Cells,
    keys: Cells | None = None,
    headers: Cells | None = None,
    expiries: Sequence[int] | None = None,
    *,
    compress: bool = False,
    timestamps: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    seal: int = 0,
    commit: int = 0,
) -> bytes:
    """Encode one block. `timestamps` and `offsets` are given only by a rewrite, where records of several commits meet.

    `seal` (see `seal_at`) and `commit` (`BEGINS`, `ENDS`) are those of a block that goes into a file.
    """
    count = len(values)
    first_timestamp = last_timestamp = timestamp_ms
    last_delta = count - 1
    flags = commit
    vectors: list[bytes] = []
    if timestamps is not None:
        first_timestamp, last_timestamp = timestamps[0], timestamps[-1]
        if first_timestamp != last_timestamp:
            flags |= TIMESTAMPS
            vectors.append(np.array(timestamps, "<i8").tobytes())
    if expiries is not None and any(expiries):
        flags |= EXPIRIES
        vectors.append(np.array(expiries, "<i8").tobytes())
    value_lengths, value_data = _encode_cells(values)
    vectors.append(value_lengths)
    key_data = header_data = b""
    if keys is not None:
        key_lengths, key_data = _encode_cells(keys)
        if key_data or any(key is not None for key in keys):
            flags |= KEYS
            vectors.append(key_lengths)
    if headers is not None:
        header_lengths, header_data = _encode_cells(headers)
        if header_data:
            flags |= HEADERS
            vectors.append(header_lengths)
    if offsets is not None:
        base_offset = offsets[0]
        last_delta = offsets[-1] - base_offset
        if last_delta != count - 1:
            flags |= OFFSETS
            vectors.append((np.array(offsets, "<i8") - base_offset).astype("<u4").tobytes())
    sizes = len(key_data), len(value_data), len(header_data)
    if key_data:
        vectors.append(key_data)
    vectors.append(value_data)
    if header_data:
        vectors.append(header_data)
    return _assemble(
        vectors,
        flags,
        count,
        (base_offset, last_delta),
        (first_timestamp, last_timestamp),
        sizes,
        compress=compress,
        seal=seal,
    )


def encode_plain_block(
    base_offset: int, timestamp_ms: int, values: Cells, seal: int, commit: int
) -> tuple[BlockHeader, bytes]:
    """Encode a block of values alone, uncompressed, as most are: the bytes of `encode_block` and their header, without parsing it."""
    lengths, data = _encode_cells(values)
    lengths_bytes, value_bytes = len(lengths), len(data)
    stored_bytes = lengths_bytes + value_bytes
    if stored_bytes > BODY_BYTES_MAX:
        raise CorruptBlock(f"a block holds at most {BODY_BYTES_MAX} bytes, and these are {stored_bytes}")
    header = BlockHeader.__new__(BlockHeader)
    header.seal, header.codec, header.flags = seal, CODEC_NONE, commit
    header.count = count = lengths_bytes // _LENGTH.size
    header.stored_bytes = header.raw_bytes = stored_bytes
    header.size_bytes = header.decoded_bytes = HEADER_BYTES + stored_bytes
    header.base_offset, header.next_offset = base_offset, base_offset + count
    header.first_timestamp_ms = header.last_timestamp_ms = timestamp_ms
    header.key_bytes = header.header_bytes = 0
    header.value_bytes = value_bytes
    rest = _REST.pack(
        CODEC_NONE, commit, stored_bytes, stored_bytes, count, base_offset, count - 1, 0, timestamp_ms, timestamp_ms, 0, value_bytes
    )  # fmt: skip
    header.checksum = checksum = google_crc32c.extend(google_crc32c.extend(google_crc32c.value(rest), lengths), data)
    return header, b"".join((_START.pack(MAGIC, checksum, seal), rest, lengths, data))


def seal_at(salt: int, position: int) -> int:
    """Return the seal of the block at a position of the file that has this salt."""
    return salt ^ position


class RawColumn(NamedTuple):
    """A column as a block stores it: lengths (-1 for null), and the bytes of all cells in any number of pieces."""

    lengths: Int32s
    data: Sequence[bytes | memoryview]


def encode_columns(values: RawColumn, keys: RawColumn | None = None, headers: RawColumn | None = None) -> bytes:
    """One block of columns that somebody has laid out, at no place in a log yet (see `place_block`)."""
    flags = 0
    vectors, sizes = [values.lengths], [0, 0, 0]
    data: list[list[bytes | memoryview]] = [[], [], []]
    for turn, (flag, column) in enumerate(((KEYS, keys), (0, values), (HEADERS, headers))):
        if column is None:
            continue
        data[turn] = [piece for piece in column.data if len(piece)]
        sizes[turn] = sum(map(len, data[turn]))
        if flag == KEYS and not (column.lengths >= 0).any():
            continue
        if flag == HEADERS and not sizes[turn]:
            continue
        if flag:
            flags |= flag
            vectors.append(column.lengths)
    lengths = [vector.astype("<i4", copy=False).tobytes() for vector in vectors]
    body = b"".join((*lengths, *data[0], *data[1], *data[2]))
    count = len(values.lengths)
    key_bytes, value_bytes, header_bytes = sizes
    return _assemble(
        [body], flags, count, (0, count - 1), (0, 0), (key_bytes, value_bytes, header_bytes), compress=False
    )


def place_block(
    block: Block, base_offset: int, timestamp_ms: int, *, compress: bool = False, seal: int = 0, commit: int = 0
) -> bytes:
    """Give a block that has no place in a log one, at these offsets and this time. The columns are not examined."""
    assert not block.flags & PLACED_FLAGS, "a block that is to be placed has a place already"
    return _assemble(
        [block.body()],
        block.flags | commit,
        block.count,
        (base_offset, block.count - 1),
        (timestamp_ms, timestamp_ms),
        (block.key_bytes, block.value_bytes, block.header_bytes),
        compress=compress,
        seal=seal,
        checksum=block.body_checksum() if block.codec == CODEC_NONE else None,
    )


def wrap_blocks(key: bytes, blocks: Sequence[Block]) -> Block:
    """A block of one record, at no place in a log yet. Its value is other blocks, back to back; they are not summed again."""
    lengths = np.array([sum(block.size_bytes for block in blocks), len(key)], "<i4").tobytes()
    checksum = google_crc32c.value(lengths + key)
    pieces = [lengths, key]
    for block in blocks:
        checksum = combined(checksum, whole_checksum(block), block.size_bytes)
        pieces += block.pieces
    body = b"".join(pieces)
    value_bytes = len(body) - len(lengths) - len(key)
    rest = _REST.pack(CODEC_NONE, KEYS, len(body), len(body), 1, 0, 0, len(key), 0, 0, 0, value_bytes)
    checksum = combined(google_crc32c.value(rest), checksum, len(body))
    return Block(_START.pack(MAGIC, checksum, 0) + rest, body=body, checked=True)


def _assemble(
    pieces: list[bytes],
    flags: int,
    count: int,
    place: tuple[int, int],
    timestamps: tuple[int, int],
    sizes: tuple[int, int, int],
    *,
    compress: bool,
    seal: int = 0,
    checksum: int | None = None,
) -> bytes:
    """Header and body. `place` is the first offset and how far the last one is from it, `sizes` are those of keys, values and headers.

    `checksum` is that of the pieces together, where it is known.
    """
    raw_bytes = stored_bytes = sum(map(len, pieces))
    codec = CODEC_NONE
    if compress and raw_bytes >= COMPRESS_BYTES_MIN:
        compressed = zstandard.compress(b"".join(pieces), _ZSTD_LEVEL)
        if len(compressed) < raw_bytes:
            pieces, stored_bytes, codec, checksum = [compressed], len(compressed), CODEC_ZSTD, None
    key_bytes, value_bytes, header_bytes = sizes
    sums = stored_bytes, raw_bytes, count
    rest = _REST.pack(codec, flags, *sums, *place, key_bytes, *timestamps, header_bytes, value_bytes)
    whole = google_crc32c.value(rest)
    if checksum is not None and stored_bytes >= COMBINED_BYTES_MIN:
        whole = combined(whole, checksum, stored_bytes)
    else:
        for piece in pieces:
            whole = google_crc32c.extend(whole, piece)
    return b"".join((_START.pack(MAGIC, whole, seal), rest, *pieces))


def _encode_cells(cells: Cells) -> tuple[bytes, bytes]:
    if type(cells) is UniformCells:  # quicker than `isinstance`, which asks what a sequence is
        return _LENGTH.pack(cells.cell_bytes) * cells.rows, cells.data
    count = len(cells)
    try:
        if count < len(_FEW_LENGTHS):
            return _FEW_LENGTHS[count].pack(*map(len, cells)), b"".join(cells)  # type: ignore[arg-type]
        lengths = np.fromiter(map(len, cells), "<i4", count)  # type: ignore[arg-type]
        return lengths.tobytes(), b"".join(cells)  # type: ignore[arg-type]
    except TypeError:  # a null among them
        lengths = np.fromiter((-1 if cell is None else len(cell) for cell in cells), "<i4", count)
        return lengths.tobytes(), b"".join(filter(None, cells))


class BlockHeader:
    """The fixed head of a block, checked for sense but not against the checksum (which needs the body)."""

    __slots__ = (
        "base_offset",
        "checksum",
        "codec",
        "count",
        "decoded_bytes",
        "first_timestamp_ms",
        "flags",
        "header_bytes",
        "key_bytes",
        "last_timestamp_ms",
        "next_offset",
        "raw_bytes",
        "seal",
        "size_bytes",
        "stored_bytes",
        "value_bytes",
    )

    checksum: int
    seal: int
    codec: int
    flags: int
    stored_bytes: int
    raw_bytes: int
    count: int
    base_offset: int
    key_bytes: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    header_bytes: int
    value_bytes: int
    next_offset: int
    size_bytes: int
    """Bytes on disk."""
    decoded_bytes: int
    """Bytes in memory once it is read, which compression may make many more than on disk."""

    def __init__(self, data: bytes | memoryview, at: int = 0) -> None:
        if len(data) - at < HEADER_BYTES:
            raise CorruptBlock(f"block header needs {HEADER_BYTES} bytes, {len(data) - at} are there")
        (
            magic,
            self.checksum,
            self.seal,
            self.codec,
            self.flags,
            self.stored_bytes,
            self.raw_bytes,
            self.count,
            self.base_offset,
            last_delta,
            self.key_bytes,
            self.first_timestamp_ms,
            self.last_timestamp_ms,
            self.header_bytes,
            self.value_bytes,
        ) = HEADER.unpack_from(data, at)
        if magic != MAGIC:
            of_another_format = magic[:3] == MAGIC[:3]
            raise CorruptBlock(
                "a block of another format" if of_another_format else "no block begins here (wrong magic)"
            )
        self.next_offset = self.base_offset + last_delta + 1
        self.size_bytes = HEADER_BYTES + self.stored_bytes
        self.decoded_bytes = HEADER_BYTES + self.raw_bytes
        if (
            self.count == 0
            or last_delta < self.count - 1
            or (last_delta != self.count - 1 and not self.flags & OFFSETS)
            or self.base_offset < 0
            or self.codec > CODEC_ZSTD
            or self.flags > _KNOWN_FLAGS
            or self.raw_bytes > BODY_BYTES_MAX
            or self.stored_bytes > BODY_BYTES_MAX
            or self.raw_bytes
            != self.count * _VECTORS_AT[self.flags][_END] + self.key_bytes + self.value_bytes + self.header_bytes
            or (self.codec == CODEC_NONE and self.stored_bytes != self.raw_bytes)
        ):
            raise CorruptBlock("block header contradicts itself")


def whole_checksum(header: BlockHeader, seal: int = 0) -> int:
    """Return the checksum of all bytes of a block with this seal, its magic and its own checksum included."""
    start = _START.pack(MAGIC, header.checksum, seal)
    return combined(google_crc32c.value(start), header.checksum, header.size_bytes - SUMMED_AT)


class Block(BlockHeader):
    """A whole block whose checksum has been checked; columns are decoded when asked for."""

    __slots__ = ("_binaries", "_body", "_cuts", "_head", "_stored")

    def __init__(self, data: bytes, at: int = 0, body: bytes | None = None, *, checked: bool = False) -> None:
        """`body` is what follows the header, where it was read by itself and need not be cut out of `data`.

        With `checked`, the block is a part of something whose checksum was just checked, and is not summed again.
        """
        super().__init__(data, at)
        body_at = at + HEADER_BYTES
        self._head = data[at:body_at]
        self._stored = data[body_at : body_at + self.stored_bytes] if body is None else body
        if len(self._stored) != self.stored_bytes:
            raise CorruptBlock(
                f"block is cut short: {self.size_bytes} bytes expected, {HEADER_BYTES + len(self._stored)} are there"
            )
        if (
            not checked
            and google_crc32c.extend(google_crc32c.value(self._head[SUMMED_AT:]), self._stored) != self.checksum
        ):
            raise CorruptBlock("block fails its checksum")
        self._body: bytes | None = None
        self._cuts: dict[int, list[int]] = {}
        self._binaries: dict[int, BinaryColumn | None] = {}

    @property
    def data(self) -> bytes:
        """The block as it is sent: stored bytes with a seal of 0, since a file's salt must not leave the disk."""
        return b"".join(self.pieces)

    @property
    def pieces(self) -> tuple[bytes, bytes]:
        """The same in two parts, which need not be joined."""
        return _START.pack(MAGIC, self.checksum, 0) + self._head[SUMMED_AT:], self._stored

    def body_checksum(self) -> int:
        """Return the checksum of what is stored after the header."""
        return split_off(self.checksum, google_crc32c.value(self._head[SUMMED_AT:]), self.stored_bytes)

    # -- vectors ------------------------------------------------------------------------------------------------------

    def body(self) -> bytes:
        """The columns, decompressed."""
        if self._body is None:
            self._body = self._stored if self.codec == CODEC_NONE else self._decompress()
        return self._body

    def _decompress(self) -> bytes:
        try:
            # The frame's own claim decides what is allocated, so it is held against the header first.
            if zstandard.frame_content_size(self._stored) != self.raw_bytes:
                raise CorruptBlock("block decompresses to another size than its header says")
            return zstandard.ZstdDecompressor().decompress(self._stored)
        except zstandard.ZstdError as error:
            raise CorruptBlock(f"block does not decompress: {error}") from error

    def _vector(self, column: int) -> npt.NDArray[Any] | None:
        """The array of a column, named by its flag; 0 names the value lengths, which are always there."""
        at = _VECTORS_AT[self.flags].get(column)
        return None if at is None else np.frombuffer(self.body(), _DTYPES[column], self.count, at * self.count)

    def _data_at(self, column: int) -> tuple[int, int]:
        """Where the bytes of a column begin in the body, and how many they are."""
        end = self.raw_bytes
        if column == HEADERS:
            return end - self.header_bytes, self.header_bytes
        end -= self.header_bytes + self.value_bytes
        return (end, self.value_bytes) if column == 0 else (end - self.key_bytes, self.key_bytes)

    def binary(self, column: int) -> BinaryColumn | None:
        """The cells of a column (0: values), None if no record has one. Kept: readers come back for the next rows."""
        try:
            return self._binaries[column]
        except KeyError:
            binary = self._binaries[column] = self._binary(column)
            return binary

    def _binary(self, column: int) -> BinaryColumn | None:
        cells = self.stored_cells(column)
        if cells is None:
            return None
        lengths, data = np.frombuffer(cells[0], _DTYPES[column]), cells[1]
        nulls = lengths < 0
        valid = None
        if nulls.any():
            valid = ~nulls
            lengths = np.where(nulls, 0, lengths)
        # Added up in 64 bits: in 32 they could come to the right number by overflow.
        if int(lengths.sum(dtype=np.int64)) != len(data):
            raise CorruptBlock("block's lengths do not add up to its data")
        offsets = np.zeros(self.count + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return BinaryColumn(offsets, data, valid)

    def stored_cells(self, column: int) -> tuple[memoryview, memoryview] | None:
        """Lengths of a column's cells (0: values) and their bytes, for who joins those of many blocks and checks that they add up."""
        place = _VECTORS_AT[self.flags].get(column)
        if place is None:
            return None
        body, count = memoryview(self.body()), self.count
        at, size = self._data_at(column)
        return body[place * count : (place + 4) * count], body[at : at + size]

    def offset_column(self) -> Int64s:
        deltas = self._vector(OFFSETS)
        offsets = np.arange(self.count, dtype=np.int64) if deltas is None else deltas.astype(np.int64)
        return self.base_offset + offsets

    def timestamp_column(self) -> Int64s | None:
        return self._vector(TIMESTAMPS)  # None if all have the block's first one

    def columns(self) -> Columns:
        values = self._binary(0)  # first: a count is believed, and room made for it, once the body is there
        assert values is not None
        timestamps = self.timestamp_column()
        if timestamps is None:
            timestamps = np.full(self.count, self.first_timestamp_ms, np.int64)
        return Columns(
            self.offset_column(),
            timestamps,
            self._vector(EXPIRIES),
            self._binary(KEYS),
            values,
            self._binary(HEADERS),
        )

    # -- rows ---------------------------------------------------------------------------------------------------------

    def index_of(self, offset: int) -> int:
        """The index of the first record at or after `offset`; `count` if there is none."""
        if not self.flags & OFFSETS:
            return min(max(offset - self.base_offset, 0), self.count)
        return bisect_left(self.offsets(), offset)

    def index_at_time(self, timestamp_ms: int) -> int:
        """The index of the first record at or after a time; `count` if there is none."""
        return bisect_left(self.timestamps(), timestamp_ms)

    def offsets(self, start: int = 0, stop: int | None = None) -> Sequence[int]:
        deltas = self._vector(OFFSETS) if self.flags & OFFSETS else None
        if deltas is None:
            return range(self.base_offset, self.next_offset)[start:stop]
        return (deltas[start:stop].astype(np.int64) + self.base_offset).tolist()  # type: ignore[no-any-return]

    def timestamps(self, start: int = 0, stop: int | None = None) -> Sequence[int]:
        vector = self._vector(TIMESTAMPS) if self.flags & TIMESTAMPS else None
        if vector is None:
            return [self.first_timestamp_ms] * len(range(self.count)[start:stop])
        return vector[start:stop].tolist()  # type: ignore[no-any-return]

    def expiries(self, start: int = 0, stop: int | None = None) -> Sequence[int] | None:
        vector = self.expiry_column()
        return None if vector is None else vector[start:stop].tolist()

    def expiry_column(self) -> Int64s | None:
        return self._vector(EXPIRIES) if self.flags & EXPIRIES else None

    def values(self, start: int = 0, stop: int | None = None) -> list[bytes | None]:
        cells = self._cells(0, start, stop)
        assert cells is not None
        return cells

    def keys(self, start: int = 0, stop: int | None = None) -> list[bytes | None] | None:
        return self._cells(KEYS, start, stop)

    def headers(self, start: int = 0, stop: int | None = None) -> list[bytes | None] | None:
        return self._cells(HEADERS, start, stop)

    def _cells(self, column: int, start: int, stop: int | None) -> list[bytes | None] | None:
        """Cells as byte strings. The cut points are kept: readers come back for the next rows of the same block."""
        stop = self.count if stop is None else min(stop, self.count)
        cuts = self._cuts.get(column)
        if cuts is None:
            binary = self._binary(column)
            if binary is None:
                return None
            cuts = self._cuts[column] = (binary.offsets.astype(np.int64) + self._data_at(column)[0]).tolist()
        body = self.body()
        cells: list[bytes | None] = [
            body[a:b] for a, b in zip(cuts[start:stop], cuts[start + 1 : stop + 1], strict=True)
        ]
        if b"" in cells:
            lengths = self._vector(column)
            assert lengths is not None
            for index in np.flatnonzero(lengths[start:stop] < 0).tolist():
                cells[index] = None
        return cells
