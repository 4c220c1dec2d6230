from __future__ import annotations

import struct
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
import zstandard

from penstock.columns import UniformCells
from penstock.errors import CorruptBlock
from penstock.log.block import (
    BEGINS,
    BODY_BYTES_MAX,
    ENDS,
    EXPIRIES,
    HEADER_BYTES,
    KEYS,
    OFFSETS,
    SEAL_AT,
    SUMMED_AT,
    TIMESTAMPS,
    BinaryColumn,
    Block,
    BlockHeader,
    RawColumn,
    encode_block,
    encode_columns,
    encode_plain_block,
    place_block,
    seal_at,
    whole_checksum,
    wrap_blocks,
)
from penstock.record_headers import decode_headers, encode_headers

STAMP_MS = 1_700_000_000_000
HEADER_CELL = encode_headers([("a", b"1")])


def summed_again(data: bytes) -> bytes:
    """A block someone changed on purpose: its checksum is right again."""
    checksum: int = google_crc32c.value(data[SUMMED_AT:])
    return data[:4] + checksum.to_bytes(4, "little") + data[8:]


def patched(data: bytes, at: int, fmt: str, value: int | bytes) -> bytes:
    changed = bytearray(data)
    struct.pack_into(fmt, changed, at, value)
    return summed_again(bytes(changed))


# -- layout -------------------------------------------------------------------------------------------------------------


def test_the_layout_on_disk_is_pinned() -> None:
    block = encode_block(7, STAMP_MS, [b"abc", None], [b"k", None], seal=0x0102030405060708, commit=BEGINS | ENDS)
    body = (
        struct.pack("<ii", 3, -1)  # value lengths
        + struct.pack("<ii", 1, -1)  # key lengths
        + b"k"
        + b"abc"
    )
    head = b"".join(
        (
            struct.pack("<HH", 0, KEYS | BEGINS | ENDS),  # codec, flags
            struct.pack("<III", len(body), len(body), 2),
            struct.pack("<q", 7),
            struct.pack("<II", 1, 1),  # last offset less first, bytes of keys
            struct.pack("<qq", STAMP_MS, STAMP_MS),
            struct.pack("<II", 0, 3),  # bytes of headers, of values
        )
    )
    checksum = google_crc32c.value(head + body)
    assert block == b"PnB2" + struct.pack("<IQ", checksum, 0x0102030405060708) + head + body
    assert len(block) == HEADER_BYTES + len(body)


@pytest.mark.parametrize(
    "values", [[b"abc", None, b""], [None], [b"x" * n for n in range(100)], UniformCells(3, 40, b"abc" * 40)], ids=len
)
def test_a_block_of_values_alone_is_the_same_bytes_and_header(values: list[bytes | None] | UniformCells) -> None:
    header, data = encode_plain_block(7, STAMP_MS, values, seal=99, commit=BEGINS)
    assert data == encode_block(7, STAMP_MS, values, seal=99, commit=BEGINS)
    parsed = BlockHeader(data)
    assert {name: getattr(header, name) for name in BlockHeader.__slots__} == {
        name: getattr(parsed, name) for name in BlockHeader.__slots__
    }


def test_every_optional_column_has_its_place() -> None:
    block = encode_block(
        0, 0, [b"v", b"w"], [b"k", b"l"], [HEADER_CELL, None], [0, 9], timestamps=[5, 6], offsets=[10, 13]
    )
    body = b"".join(
        (
            struct.pack("<qq", 5, 6),
            struct.pack("<qq", 0, 9),
            struct.pack("<ii", 1, 1),
            struct.pack("<ii", 1, 1),
            struct.pack("<ii", len(HEADER_CELL), -1),
            struct.pack("<II", 0, 3),
            b"kl",
            b"vw",
            HEADER_CELL,
        )
    )
    assert block[HEADER_BYTES:] == body


def test_a_known_block_of_this_format_still_opens() -> None:
    stored = bytes.fromhex(
        "506e4232"
        "2d928551"
        "0807060504030201"
        "0000"
        "6400"
        "14000000"
        "14000000"
        "02000000"
        "0700000000000000"
        "01000000" + "01000000" + "0068e5cf8b010000" + "0068e5cf8b010000" + "00000000" + "03000000"
        "03000000ffffffff" + "01000000ffffffff" + "6b" + "616263"
    )
    block = Block(stored)
    assert (block.base_offset, block.next_offset, block.count) == (7, 9, 2)
    assert block.values() == [b"abc", None]
    assert block.keys() == [b"k", None]
    assert (block.seal, block.flags & (BEGINS | ENDS)) == (0x0102030405060708, BEGINS | ENDS)
    assert block.data == stored[:8] + bytes(8) + stored[16:], "what is sent does not tell the file's salt"


def test_a_block_of_the_format_before_is_refused_by_name() -> None:
    stored = bytearray(encode_block(7, STAMP_MS, [b"abc"]))
    stored[:4] = b"PnBk"
    with pytest.raises(CorruptBlock, match="another format"):
        Block(bytes(stored))


def test_a_seal_is_the_salt_of_the_file_and_the_position_and_no_part_of_the_checksum() -> None:
    plain, sealed = encode_block(7, STAMP_MS, [b"abc"]), encode_block(7, STAMP_MS, [b"abc"], seal=seal_at(1 << 63, 96))
    assert sealed == plain[:8] + struct.pack("<Q", (1 << 63) + 96) + plain[16:]
    assert Block(sealed).data == Block(plain).data == plain
    assert place_block(Block(plain), 7, STAMP_MS, seal=seal_at(1 << 63, 96), commit=BEGINS) == encode_block(
        7, STAMP_MS, [b"abc"], seal=seal_at(1 << 63, 96), commit=BEGINS
    )
    assert whole_checksum(Block(sealed), Block(sealed).seal) == google_crc32c.value(sealed)


# -- round trips --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True])
def test_every_column_round_trips(compress: bool) -> None:
    values = [b"v" * 500, None, b"", b"\x00"]
    keys = [None, b"key", b"", b"k" * 300]
    headers = [HEADER_CELL, None, b"", None]
    block = Block(encode_block(41, STAMP_MS, values, keys, headers, [0, 5, 0, -1], compress=compress))
    assert (block.base_offset, block.next_offset, block.count) == (41, 45, 4)
    assert (block.first_timestamp_ms, block.last_timestamp_ms) == (STAMP_MS, STAMP_MS)
    assert list(block.offsets()) == [41, 42, 43, 44]
    assert list(block.timestamps()) == [STAMP_MS] * 4
    assert block.values() == values
    assert block.keys() == keys
    assert block.headers() == headers
    assert block.expiries() == [0, 5, 0, -1]
    assert block.codec == compress
    assert block.size_bytes == len(block.data)


def test_columns_that_no_record_has_are_not_stored() -> None:
    block = Block(encode_block(0, 1, [b"v"], [None], [None], [0]))
    assert (block.flags, block.keys(), block.headers(), block.expiries()) == (0, None, None, None)
    assert len(block.data) == HEADER_BYTES + 4 + 1


def test_an_empty_key_is_a_key_and_not_a_missing_one() -> None:
    block = Block(encode_block(0, 1, [b"v", b"v"], [b"", None]))
    assert block.keys() == [b"", None]


@pytest.mark.parametrize("compress", [False, True])
def test_any_rows_can_be_asked_for(compress: bool) -> None:
    values = [None if n % 3 == 0 else b"%d" % n * 20 for n in range(40)]
    keys = [None if n % 4 == 0 else b"k%d" % n for n in range(40)]
    block = Block(
        encode_block(
            0,
            0,
            values,
            keys,
            expiries=list(range(40)),
            timestamps=list(range(100, 140)),
            offsets=list(range(10, 90, 2)),
            compress=compress,
        )
    )
    for start, stop in [(0, None), (0, 40), (7, 9), (39, 40), (40, 40), (12, 1000), (3, None), (0, 0)]:
        assert block.values(start, stop) == values[start:stop]
        assert block.keys(start, stop) == keys[start:stop]
        assert list(block.offsets(start, stop)) == list(range(10, 90, 2))[start:stop]
        assert list(block.timestamps(start, stop)) == list(range(100, 140))[start:stop]
        expiries = block.expiries(start, stop)
        assert expiries is not None
        assert list(expiries) == list(range(40))[start:stop]


def test_gaps_in_offsets_are_kept_and_searched() -> None:
    block = Block(encode_block(0, 5, [b"a", b"b", b"c"], offsets=[10, 11, 20], timestamps=[5, 5, 5]))
    assert block.flags == OFFSETS
    assert (block.base_offset, block.next_offset) == (10, 21)
    assert list(block.offsets()) == [10, 11, 20]
    assert [block.index_of(offset) for offset in (0, 10, 11, 12, 19, 20, 21)] == [0, 0, 1, 2, 2, 2, 3]


def test_offsets_without_gaps_cost_nothing() -> None:
    block = Block(encode_block(0, 5, [b"a", b"b"], offsets=[10, 11]))
    assert block.flags == 0
    assert isinstance(block.offsets(), range)
    assert [block.index_of(offset) for offset in (0, 10, 11, 12, 99)] == [0, 0, 1, 2, 2]


def test_times_are_searched() -> None:
    block = Block(encode_block(0, 0, [b"a"] * 4, timestamps=[5, 5, 7, 9]))
    assert block.flags == TIMESTAMPS
    assert [block.index_at_time(time) for time in (0, 5, 6, 7, 9, 10)] == [0, 0, 2, 2, 3, 4]
    assert (block.first_timestamp_ms, block.last_timestamp_ms) == (5, 9)


def test_a_block_is_found_inside_other_bytes() -> None:
    block = encode_block(3, 4, [b"x"])
    assert Block(b"...." + block + b"....", 4).values() == [b"x"]


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_block_is_placed_without_looking_at_its_columns(size: int) -> None:
    values, keys = [b"v" * size, None, b""], [None, b"k", b""]
    headers = [HEADER_CELL, None, None]
    block = Block(encode_block(0, 0, values, keys, headers, [0, 7, 0]))
    assert place_block(block, 50, STAMP_MS) == encode_block(50, STAMP_MS, values, keys, headers, [0, 7, 0])
    squeezed = Block(place_block(block, 50, STAMP_MS, compress=True))
    assert (squeezed.values(), list(squeezed.offsets())) == (values, [50, 51, 52])
    unpacked = Block(place_block(Block(encode_block(0, 0, values, compress=True)), 9, STAMP_MS))
    assert (unpacked.codec, unpacked.values()) == (0, values)


def test_columns_that_are_laid_out_make_the_block_that_their_cells_do() -> None:
    def raw(cells: list[bytes | None]) -> RawColumn:
        lengths = np.array([-1 if cell is None else len(cell) for cell in cells], np.int32)
        return RawColumn(lengths, [memoryview(cell) for cell in cells if cell is not None])

    values: list[bytes | None] = [b"abc", None, b""]
    keys: list[bytes | None] = [None, b"", b"key"]
    nothing: list[bytes | None] = [None] * 3
    headers: list[bytes | None] = [HEADER_CELL, None, None]
    assert encode_columns(raw(values)) == encode_block(0, 0, values)
    assert encode_columns(raw(values), raw(keys)) == encode_block(0, 0, values, keys)
    assert encode_columns(raw(values), raw(nothing), raw(nothing)) == encode_block(0, 0, values, nothing, nothing)
    assert encode_columns(raw(values), None, raw(headers)) == encode_block(0, 0, values, None, headers)


def test_blocks_inside_a_record_are_summed_with_it_and_not_again() -> None:
    inner = [Block(encode_block(0, 0, [b"x" * size])) for size in (1, 50_000, 3)]
    wrapped = wrap_blocks(b"head", inner)
    assert Block(wrapped.data).keys() == [b"head"]
    assert Block(wrapped.data).values() == [b"".join(block.data for block in inner)]
    for block in inner:
        assert whole_checksum(block) == google_crc32c.value(block.data)
        assert block.body_checksum() == google_crc32c.value(block.data[HEADER_BYTES:])
        assert b"".join(block.pieces) == block.data
    damaged = inner[0].data[:-1] + b"y"
    assert Block(damaged, checked=True).values() == [b"y"]
    with pytest.raises(CorruptBlock):
        Block(damaged)


def test_compression_is_used_only_where_it_helps() -> None:
    small = encode_block(0, 0, [b"ab"], compress=True)
    incompressible = encode_block(0, 0, [np.random.default_rng(1).bytes(4000)], compress=True)
    large = encode_block(0, 0, [b"ab" * 4000], compress=True)
    assert [BlockHeader(block).codec for block in (small, incompressible, large)] == [0, 0, 1]
    assert len(large) < 200


# -- Arrow --------------------------------------------------------------------------------------------------------------


def arrow_binary(column: BinaryColumn, count: int) -> Any:
    bitmap = None if column.valid is None else np.packbits(column.valid, bitorder="little").tobytes()
    return pa.Array.from_buffers(
        pa.binary(),
        count,
        [None if bitmap is None else pa.py_buffer(bitmap), pa.py_buffer(column.offsets), pa.py_buffer(column.data)],
    )


@pytest.mark.parametrize("compress", [False, True])
def test_columns_become_arrow_arrays_without_copying_records(compress: bool) -> None:
    values = [b"v%d" % n * (n % 5) if n % 7 else None for n in range(100)]
    keys = [b"key%d" % n if n % 2 else None for n in range(100)]
    headers = [HEADER_CELL if n % 10 == 0 else None for n in range(100)]
    offsets = list(range(1000, 1200, 2))
    stamps = list(range(STAMP_MS, STAMP_MS + 100))
    data = encode_block(
        0, 0, values, keys, headers, list(range(100)), timestamps=stamps, offsets=offsets, compress=compress
    )
    columns = Block(data).columns()
    for array in (columns.offsets, columns.timestamps_ms, columns.expiries_ms):
        assert array is not None
        assert array.dtype == np.int64
    assert pa.array(columns.offsets).to_pylist() == offsets
    assert pa.Array.from_buffers(pa.int64(), 100, [None, pa.py_buffer(columns.timestamps_ms)]).to_pylist() == stamps
    assert columns.expiries_ms is not None
    assert columns.expiries_ms.tolist() == list(range(100))
    assert columns.keys is not None
    assert columns.headers is not None
    for column, expected in ((columns.values, values), (columns.keys, keys), (columns.headers, headers)):
        array = arrow_binary(column, 100)
        array.validate(full=True)
        assert array.to_pylist() == expected


def test_arrow_columns_of_a_plain_block_have_no_nulls_and_no_optional_columns() -> None:
    columns = Block(encode_block(5, STAMP_MS, [b"a", b"", b"ccc"])).columns()
    assert columns.values.valid is None
    assert (columns.keys, columns.headers, columns.expiries_ms) == (None, None, None)
    assert arrow_binary(columns.values, 3).to_pylist() == [b"a", b"", b"ccc"]
    assert columns.offsets.tolist() == [5, 6, 7]
    assert columns.timestamps_ms.tolist() == [STAMP_MS] * 3


# -- damage and lies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compress", [False, True])
def test_a_flip_of_any_bit_is_found(compress: bool) -> None:
    data = encode_block(
        3, STAMP_MS, [b"value " * 60, None], [b"k", b"l"], [HEADER_CELL, None], [0, 7], compress=compress
    )
    for bit in [*range(8 * SEAL_AT), *range(8 * SUMMED_AT, 8 * len(data))]:  # the seal is checked by who knows the file
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBlock):
            Block(bytes(flipped))


def test_a_block_cut_anywhere_is_refused() -> None:
    data = encode_block(3, STAMP_MS, [b"value", b"w"], [b"k", None])
    for size in range(len(data)):
        with pytest.raises(CorruptBlock):
            Block(data[:size])


LIES = [
    pytest.param(0, "4s", b"PnB3", id="a later version"),
    pytest.param(16, "<H", 2, id="an unknown codec"),
    pytest.param(16, "<H", 1, id="zstd that is not"),
    pytest.param(18, "<H", 1 << 7, id="an unknown flag"),
    pytest.param(18, "<H", EXPIRIES, id="a column that is not there"),
    pytest.param(20, "<I", 0xFFFFFFFF, id="stored bytes"),
    pytest.param(20, "<I", 3, id="too few stored bytes"),
    pytest.param(24, "<I", 0xFFFFFFFF, id="body bytes"),
    pytest.param(28, "<I", 0, id="no records"),
    pytest.param(28, "<I", 0xFFFFFFFF, id="four billion records"),
    pytest.param(32, "<q", -1, id="a negative offset"),
    pytest.param(40, "<I", 0, id="fewer offsets than records"),
    pytest.param(44, "<I", 0xFFFFFFFF, id="key bytes"),
    pytest.param(64, "<I", 0xFFFFFFFF, id="header bytes"),
    pytest.param(68, "<I", 0xFFFFFFFF, id="value bytes"),
    pytest.param(72, "<i", 0x7FFFFFFF, id="a value longer than the block"),
    pytest.param(72, "<i", 2, id="values shorter than the block says"),
    pytest.param(72, "<i", -1, id="a null where the block has bytes"),
]


def read_everything(data: bytes) -> None:
    block = Block(data)
    block.columns()
    block.values()
    block.keys()
    block.headers()
    list(block.offsets())
    list(block.timestamps())
    block.expiries()


@pytest.mark.parametrize(("at", "fmt", "value"), LIES)
def test_a_block_that_lies_with_a_right_checksum_is_refused(at: int, fmt: str, value: int | bytes) -> None:
    with pytest.raises(CorruptBlock):
        read_everything(patched(encode_block(3, STAMP_MS, [b"value", b"w"], [b"k", None]), at, fmt, value))


def test_a_block_stored_as_it_is_has_all_the_bytes_its_columns_need() -> None:
    data = encode_block(3, STAMP_MS, [b"value", b"w"])
    short = bytearray(data[:-1])
    struct.pack_into("<I", short, 20, len(data) - HEADER_BYTES - 1)
    with pytest.raises(CorruptBlock):
        read_everything(summed_again(bytes(short)))


def test_lengths_that_add_up_only_by_overflow_are_refused() -> None:
    data = bytearray(encode_block(0, 0, [b"abc", b"", b""]))
    struct.pack_into("<iii", data, HEADER_BYTES, 0x7FFFFFFF, 0x7FFFFFFF, 5)  # 3, modulo 2 to the 32nd
    with pytest.raises(CorruptBlock):
        read_everything(summed_again(bytes(data)))


def with_stored(data: bytes, stored: bytes) -> bytes:
    changed = bytearray(data[:HEADER_BYTES] + stored)
    struct.pack_into("<I", changed, 20, len(stored))
    return summed_again(bytes(changed))


def test_a_frame_that_inflates_to_another_size_is_refused_before_it_is_inflated() -> None:
    data = encode_block(0, 0, [b"a" * 1000], compress=True)
    bomb = zstandard.compress(bytes(BODY_BYTES_MAX * 4))
    assert len(bomb) < 64 << 10
    with pytest.raises(CorruptBlock, match="size"):
        read_everything(with_stored(data, bomb))


def test_a_frame_that_does_not_say_its_size_is_refused() -> None:
    data = encode_block(0, 0, [b"a" * 1000], compress=True)
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(b"b" * 1004)
    with pytest.raises(CorruptBlock):
        read_everything(with_stored(data, silent))


def test_a_frame_cut_short_is_refused() -> None:
    data = encode_block(0, 0, [np.random.default_rng(1).bytes(1000) + bytes(1000)], compress=True)
    assert BlockHeader(data).codec == 1
    with pytest.raises(CorruptBlock):
        read_everything(with_stored(data, data[HEADER_BYTES:-5]))


# -- header cells -------------------------------------------------------------------------------------------------------


def test_headers_round_trip_and_their_layout_is_pinned() -> None:
    pairs = [("trace", b"\x01\x02"), ("", b""), ("größe", None), ("trace", b"again")]
    cell = encode_headers(pairs)
    assert decode_headers(cell) == pairs
    assert encode_headers([("k", b"vw"), ("n", None)]) == b"\x01\x00\x02\x00\x00\x00kvw" + b"\x01\x00\xff\xff\xff\xffn"
    assert decode_headers(encode_headers([])) == []


@pytest.mark.parametrize(
    "cell",
    [
        b"\x01",
        b"\x01\x00\x02\x00\x00\x00kv",
        b"\xff\xff\x00\x00\x00\x00k",
        b"\x01\x00\xff\xff\xff\x7fk",
        b"\x01\x00\x00\x00\x00\x00\xff",
    ],
    ids=["half a length", "half a value", "a lying name length", "a lying value length", "a name that is not UTF-8"],
)
def test_header_cells_that_cannot_be_read_are_refused(cell: bytes) -> None:
    with pytest.raises(CorruptBlock):
        decode_headers(cell)
