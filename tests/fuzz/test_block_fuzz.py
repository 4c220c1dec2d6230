"""The block against any records and any bytes: what goes in comes out, and nothing but CorruptBlock is raised for what did not go in."""

from __future__ import annotations

import struct
import tracemalloc
from typing import NamedTuple

import google_crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptBlock
from penstock.log.block import HEADER, MAGIC, SEAL_AT, SUMMED_AT, Block, encode_block
from penstock.record_headers import decode_headers, encode_headers

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
CELL = st.none() | st.binary(max_size=40) | st.sampled_from([b"", b"abc" * 100, MAGIC * 20])
STAMP = st.integers(0, 1 << 50)


class Row(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: bytes | None
    expiry_ms: int
    offset_step: int
    timestamp_step: int


ROWS = st.lists(
    st.builds(Row, CELL, CELL, CELL, st.sampled_from([0, 1]) | INT64, st.integers(1, 1 << 20), st.integers(0, 1000)),
    min_size=1,
    max_size=30,
)


def read_everything(block: Block) -> list[tuple[object, ...]]:
    """Every record by rows, having read it by columns too."""
    columns = block.columns()
    assert len(columns.offsets) == len(columns.timestamps_ms) == block.count
    none: list[bytes | None] = [None] * block.count
    return list(
        zip(
            block.offsets(),
            block.timestamps(),
            block.keys() or none,
            block.values(),
            block.headers() or none,
            block.expiries() or [0] * block.count,
            strict=True,
        )
    )


@given(ROWS, STAMP, st.integers(0, 1 << 40), st.booleans(), st.booleans(), st.booleans())
def test_any_records_round_trip(
    rows: list[Row], stamp_ms: int, base_offset: int, compress: bool, gaps: bool, spread: bool
) -> None:
    offsets = [base_offset + sum(row.offset_step if gaps else 1 for row in rows[:at]) for at in range(len(rows))]
    stamps = [
        stamp_ms + sum(row.timestamp_step for row in rows[:at]) if spread else stamp_ms for at in range(len(rows))
    ]
    data = encode_block(
        base_offset,
        stamp_ms,
        [row.value for row in rows],
        [row.key for row in rows],
        [row.headers for row in rows],
        [row.expiry_ms for row in rows],
        compress=compress,
        timestamps=stamps if spread else None,
        offsets=offsets if gaps else None,
    )
    block = Block(data)
    assert block.data == data
    assert (block.base_offset, block.next_offset, block.count) == (offsets[0], offsets[-1] + 1, len(rows))
    # A column is stored when some record has something in it; headers of no bytes are no headers.
    some_headers = any(row.headers for row in rows)
    assert read_everything(block) == [
        (offset, stamp, row.key, row.value, row.headers if some_headers else None, row.expiry_ms)
        for offset, stamp, row in zip(offsets, stamps, rows, strict=True)
    ]
    for at, offset in enumerate(offsets):
        assert block.index_of(offset) == at


@given(st.binary(max_size=300))
@example(b"")
@example(MAGIC)
def test_any_bytes_raise_only_corrupt_block(data: bytes) -> None:
    for candidate in (data, MAGIC + data):
        try:
            read_everything(Block(candidate))
        except CorruptBlock:
            pass


FIELD = st.sampled_from([0, 1, 2, 3, 64, 255, 1 << 20, 0x7FFFFFFF, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF)


@st.composite
def lying_blocks(draw: st.DrawFn) -> bytes:
    """A head of any numbers over any body, under a right checksum; often with the sums made to agree."""
    body = draw(st.binary(max_size=200))
    count, flags, codec = draw(st.integers(0, 12) | FIELD), draw(st.integers(0, 127)), draw(st.integers(0, 2))
    key_bytes, header_bytes, value_bytes = (draw(st.integers(0, 20) | FIELD) for _ in range(3))
    stored_bytes = draw(st.just(len(body)) | FIELD)
    raw_bytes = draw(FIELD)
    if draw(st.booleans()):
        wide = (flags & 1) + (flags >> 1 & 1)
        narrow = 1 + (flags >> 2 & 1) + (flags >> 3 & 1) + (flags >> 4 & 1)
        raw_bytes = (count * (8 * wide + 4 * narrow) + key_bytes + header_bytes + value_bytes) & 0xFFFFFFFF
        if codec == 0:
            body = draw(st.binary(min_size=min(raw_bytes, 400), max_size=min(raw_bytes, 400)))
            stored_bytes = len(body)
    head = HEADER.pack(
        MAGIC,
        0,
        0,
        codec,
        draw(st.just(flags) | st.integers(0, 0xFFFF)),
        stored_bytes,
        raw_bytes,
        count,
        draw(INT64),
        draw(st.just(max(count - 1, 0)) | FIELD),
        key_bytes,
        draw(INT64),
        draw(INT64),
        header_bytes,
        value_bytes,
    )
    checksum: int = google_crc32c.value(head[SUMMED_AT:] + body)
    return MAGIC + checksum.to_bytes(4, "little") + head[SEAL_AT:] + body


GAP_WITHOUT_OFFSETS = encode_block(0, 0, [b"one", b"two"], offsets=[0, 1])[SUMMED_AT:]
GAP_WITHOUT_OFFSETS = GAP_WITHOUT_OFFSETS[:24] + b"\2" + GAP_WITHOUT_OFFSETS[25:]
"""From the summed bytes on: two records at offsets 0 to 2, and no column that says which."""


@given(lying_blocks())
@settings(max_examples=400)
@example(MAGIC + google_crc32c.value(GAP_WITHOUT_OFFSETS).to_bytes(4, "little") + bytes(8) + GAP_WITHOUT_OFFSETS)
def test_a_block_of_any_numbers_raises_only_corrupt_block_and_allocates_little(data: bytes) -> None:
    tracemalloc.start()
    try:
        try:
            read_everything(Block(data))
        except CorruptBlock:
            pass
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@given(ROWS, st.booleans(), st.data())
def test_a_flip_of_any_bit_of_any_block_is_found(rows: list[Row], compress: bool, data: st.DataObject) -> None:
    block = encode_block(
        1, 2, [row.value for row in rows], [row.key for row in rows], [row.headers for row in rows], compress=compress
    )
    bit = data.draw(st.integers(0, 8 * SEAL_AT - 1) | st.integers(8 * SUMMED_AT, 8 * len(block) - 1))
    flipped = bytearray(block)
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        Block(bytes(flipped))
    except CorruptBlock:
        return
    raise AssertionError(f"a flip of bit {bit} went unnoticed")


@given(st.lists(st.tuples(st.text(max_size=20), st.none() | st.binary(max_size=20)), max_size=8))
def test_any_headers_round_trip(pairs: list[tuple[str, bytes | None]]) -> None:
    assert decode_headers(encode_headers(pairs)) == pairs


@given(st.binary(max_size=60), st.integers(0, 0xFFFF), st.integers(-(1 << 31), (1 << 31) - 1))
def test_any_header_cell_raises_only_corrupt_block(data: bytes, name_bytes: int, value_bytes: int) -> None:
    for cell in (data, struct.pack("<Hi", name_bytes, value_bytes) + data):
        try:
            decode_headers(cell)
        except CorruptBlock:
            pass
