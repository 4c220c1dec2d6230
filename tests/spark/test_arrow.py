"""Blocks to Arrow: every shape of block, compared with what the block itself says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import CorruptBlock
from penstock.log.block import KEYS, Block, encode_block
from penstock.record_headers import decode_headers, encode_headers
from penstock.spark import arrow
from penstock.spark.arrow import COLUMN_TYPES, BatchMaker
from penstock.spark.reading import whole_blocks

ALL = pa.schema(list(COLUMN_TYPES.items()))
NOW_MS = 1_700_000_000_000
FAR = 1 << 60


def batches(
    blocks: Sequence[bytes], offset: int = 0, end_offset: int = FAR, schema: pa.Schema = ALL
) -> list[pa.RecordBatch]:
    maker = BatchMaker(schema, "orders", 3, NOW_MS)
    made = [batch for data in blocks for block in whole_blocks(data) for batch in maker.add(block, offset, end_offset)]
    return [*made, *maker.finish()]


def rows(made: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    for batch in made:
        batch.validate(full=True)
    return [row for batch in made for row in batch.to_pylist()]


def expected(blocks: Sequence[bytes], offset: int = 0, end_offset: int = FAR) -> list[tuple[Any, ...]]:
    """By rows, the slow way."""
    found: list[tuple[Any, ...]] = []
    for data in blocks:
        block = Block(data)
        keys = block.keys() or [None] * block.count
        headers = block.headers() or [None] * block.count
        expiries = block.expiries() or [0] * block.count
        for cells in zip(block.offsets(), block.timestamps(), keys, block.values(), headers, expiries, strict=True):
            at, timestamp_ms, key, value, header, expiry_ms = cells
            if offset <= at < end_offset and not 0 < expiry_ms <= NOW_MS:
                pairs = [{"key": name, "value": cell} for name, cell in decode_headers(header)] if header else None
                found.append((at, timestamp_ms, key, value, pairs))
    return found


def short(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"], row["value"], row["headers"])
        for row in found
    ]


def test_a_block_becomes_a_batch_with_the_columns_of_kafkas_connector() -> None:
    [batch] = batches([encode_block(7, NOW_MS, [b"one", None, b""], [b"k", None, b""])])
    assert batch.schema.equals(ALL)
    assert batch.schema.names == [
        "key",
        "value",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        "headers",
    ]
    assert rows([batch])[1] == {
        "key": None,
        "value": None,
        "topic": "orders",
        "partition": 3,
        "offset": 8,
        "timestamp": batch["timestamp"][1].as_py(),
        "timestampType": 1,
        "headers": None,
    }
    assert batch["key"].to_pylist() == [b"k", None, b""]
    assert batch["value"].to_pylist() == [b"one", None, b""]
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [NOW_MS * 1000] * 3


def test_small_blocks_are_gathered_into_one_batch() -> None:
    blocks = [encode_block(10 * at, NOW_MS + at, [b"v%d" % at] * 10) for at in range(100)]
    [batch] = batches(blocks)
    assert batch.num_rows == 1000
    assert short(rows([batch])) == expected(blocks)


def test_a_batch_is_made_once_it_is_large_enough() -> None:
    blocks = [encode_block(1000 * at, NOW_MS, [b"x"] * 1000) for at in range(25)]
    assert [batch.num_rows for batch in batches(blocks)] == [10_000, 10_000, 5000]


def test_only_the_columns_that_were_asked_for_are_made() -> None:
    schema = pa.schema([("value", pa.binary()), ("offset", pa.int64())])
    [batch] = batches([encode_block(0, NOW_MS, [b"x"], [b"k"])], schema=schema)
    assert batch.schema.equals(schema)
    assert batch.to_pylist() == [{"value": b"x", "offset": 0}]


def test_columns_that_were_not_asked_for_are_not_even_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    block = encode_block(0, NOW_MS, [b"abc" * 100] * 50, [b"k"] * 50, compress=True)
    monkeypatch.setattr(Block, "body", lambda _: pytest.fail("nothing in it was asked for"))
    schema = pa.schema([(name, COLUMN_TYPES[name]) for name in ("offset", "timestamp", "topic", "partition")])
    [batch] = batches([block], 10, 20, schema)
    assert batch["offset"].to_pylist() == list(range(10, 20))


def test_values_are_not_touched_where_keys_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = Block.stored_cells

    def noted(block: Block, column: int) -> tuple[memoryview, memoryview] | None:
        asked.append(column)
        return real(block, column)

    monkeypatch.setattr(Block, "stored_cells", noted)
    [batch] = batches([encode_block(0, NOW_MS, [b"x"], [b"k"])], schema=pa.schema([("key", pa.binary())]))
    assert batch.to_pylist() == [{"key": b"k"}]
    assert asked == [KEYS]


def test_a_block_is_cut_at_the_offsets_that_were_asked_for() -> None:
    blocks = [encode_block(0, NOW_MS, [b"%d" % at * at for at in range(50)], [b"k%d" % at for at in range(50)])]
    for first, last in ((0, 50), (10, 20), (49, 50), (0, 1), (20, 20), (60, 70)):
        assert short(rows(batches(blocks, first, last))) == expected(blocks, first, last)


def test_blocks_that_compaction_has_thinned_out_keep_their_offsets() -> None:
    sparse = encode_block(0, 0, [b"a", b"b", b"c"], offsets=[5, 9, 12], timestamps=[NOW_MS, NOW_MS + 1, NOW_MS + 5])
    dense = encode_block(20, NOW_MS, [b"d"])
    assert [row["offset"] for row in rows(batches([sparse, dense]))] == [5, 9, 12, 20]
    assert [row["offset"] for row in rows(batches([sparse, dense], 6, 13))] == [9, 12]
    assert [row["offset"] for row in rows(batches([dense, encode_block(30, NOW_MS, [b"e"])]))] == [20, 30]


def test_expired_records_are_left_out() -> None:
    blocks = [
        encode_block(0, NOW_MS, [b"a", b"b", b"c"], expiries=[NOW_MS, 0, NOW_MS + 1]),
        encode_block(3, NOW_MS, [b"d"]),
        encode_block(4, NOW_MS, [b"e"], expiries=[1]),
    ]
    assert [row["value"] for row in rows(batches(blocks))] == [b"b", b"c", b"d"]
    assert batches([blocks[2]]) == []


def test_compressed_blocks_are_read_too() -> None:
    blocks = [encode_block(0, NOW_MS, [b"abc" * 100] * 50, compress=True)]
    assert len(blocks[0]) < 1000
    assert short(rows(batches(blocks))) == expected(blocks)


def test_headers_become_lists_and_records_without_any_have_null() -> None:
    cells = [
        encode_headers([("a", b"1"), ("b", None), ("a", b"")]),
        None,
        encode_headers([("", b"x" * 300)]),
        b"",
        encode_headers([("größe", b"\0\xff")]),
    ]
    blocks = [encode_block(0, NOW_MS, [b"v"] * 5, headers=cells), encode_block(5, NOW_MS, [b"no headers"])]
    found = [row["headers"] for row in rows(batches(blocks))]
    assert found == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "a", "value": b""}],
        None,
        [{"key": "", "value": b"x" * 300}],
        None,
        [{"key": "größe", "value": b"\0\xff"}],
        None,
    ]
    assert [row["headers"] for row in rows(batches(blocks, 2, 3))] == [[{"key": "", "value": b"x" * 300}]]


@pytest.mark.parametrize("cell", [b"\x01", b"\x05\0\x01\0\0\0ab", b"\0\0\x09\0\0\0a"])
def test_headers_that_are_cut_short_are_a_fault(cell: bytes) -> None:
    with pytest.raises(CorruptBlock, match="cut short"):
        batches([encode_block(0, NOW_MS, [b"v"], headers=[cell])])


def test_a_record_of_thirty_megabytes_is_a_batch_of_its_own() -> None:
    large = b"\xab" * (30 << 20)
    blocks = [encode_block(0, NOW_MS, [b"small"]), encode_block(1, NOW_MS, [large]), encode_block(2, NOW_MS, [b"x"])]
    made = batches(blocks)
    assert [batch.num_rows for batch in made] == [2, 1]
    assert made[0]["value"][1].as_py() == large


def test_a_block_with_very_many_or_very_large_rows_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [encode_block(0, NOW_MS, [b"x%d" % at for at in range(100_000)], [b"k"] * 100_000)]
    made = batches(blocks)
    assert [batch.num_rows for batch in made] == [arrow.ROWS_MAX, arrow.ROWS_MAX, 20_000]
    maker = BatchMaker(ALL, "orders", 0, NOW_MS)
    assert next(iter(maker.add(Block(blocks[0]), 0, FAR))).num_rows == arrow.ROWS_MAX, "one after the other"
    assert sum(batch.num_rows for batch in maker.finish()) == 0, "the next are not made before they are asked for"
    assert made[1]["value"][0].as_py() == b"x40000"
    monkeypatch.setattr(arrow, "BYTES_MAX", 1000)
    values = [b"a" * 900, b"b" * 300, b"c" * 5000, b"d", b"e"]
    blocks = [encode_block(0, NOW_MS, values, headers=[encode_headers([("h", value)]) for value in values])]
    made = batches(blocks)
    assert short(rows(made)) == expected(blocks)
    assert len(made) >= 3


def test_lengths_that_do_not_add_up_are_a_fault() -> None:
    block = Block(encode_block(0, NOW_MS, [b"one", b"two"]))
    block._body = np.array([3, 2], "<i4").tobytes() + block.body()[8:]
    maker = BatchMaker(ALL, "orders", 0, NOW_MS)
    assert list(maker.add(block, 0, FAR)) == []
    with pytest.raises(CorruptBlock, match="do not add up"):
        list(maker.finish())


def test_timestamps_at_the_edges_keep_their_milliseconds() -> None:
    edges = [0, 1, NOW_MS, (1 << 53) // 1000]
    blocks = [encode_block(0, 0, [b"v"] * 4, timestamps=edges), encode_block(4, 0, [b"v"])]
    [batch] = batches(blocks)
    assert batch["timestamp"].cast(pa.int64()).to_pylist() == [edge * 1000 for edge in [*edges, 0]]


cells = st.none() | st.binary(max_size=20)
headers = st.none() | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=4)
records = st.lists(
    st.tuples(cells, cells, headers, st.sampled_from([0, 1, NOW_MS, NOW_MS + 1])), min_size=1, max_size=20
)


@given(st.lists(records, min_size=1, max_size=5), st.integers(0, 30), st.integers(0, 110), st.booleans())
def test_whatever_a_block_holds_is_what_comes_out(
    groups: list[list[Any]], offset: int, end_offset: int, compress: bool
) -> None:
    blocks: list[bytes] = []
    at = 0
    for group in groups:
        keys, values, pairs, expiries = zip(*group, strict=True)
        encoded = [None if pair is None else encode_headers(pair) for pair in pairs]
        blocks.append(encode_block(at, NOW_MS + at, values, keys, encoded, expiries, compress=compress))
        at += len(group)
    assert short(rows(batches(blocks, offset, end_offset))) == expected(blocks, offset, end_offset)
