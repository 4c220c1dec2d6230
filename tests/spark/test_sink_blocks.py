"""Arrow batches to blocks: every record in the place it belongs to, whatever the columns look like."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.records.keys import fnv1a
from penstock.errors import InvalidRequest, PartitionNotFound
from penstock.log.block import Block
from penstock.record_headers import decode_headers
from penstock.spark.sink_blocks import BLOCK_BYTES, REQUEST_BYTES, BlockMaker, Request
from penstock.spark.sink_headers import header_cells
from penstock.spark.sink_options import parse_sink_options
from tests.spark.sink_by_hand import schema_of

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TYPES = {
    "value": ("BINARY", pa.binary()),
    "key": ("BINARY", pa.binary()),
    "topic": ("STRING", pa.string()),
    "partition": ("INT", pa.int32()),
    "headers": ("HEADERS", HEADERS_TYPE),
}
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def batch_of(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(cells, TYPES[name][1]) for name, cells in columns.items()})


def maker(batch: pa.RecordBatch, topic: str | None = "t", partitions: int = 3, turn: int = 0) -> BlockMaker:
    schema = schema_of(", ".join(f"{name} {TYPES[name][0]}" for name in batch.schema.names))
    options = parse_sink_options({} if topic is None else {"topic": topic}, schema, streaming=False)
    return BlockMaker(options, lambda name: partitions, turn)


def rows_in(requests: Sequence[Request]) -> dict[tuple[str, int], list[Row]]:
    rows: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for topic, parts in requests:
        for partition, data in parts:
            block = Block(data)
            keys, headers = block.keys() or [None] * block.count, block.headers() or [None] * block.count
            for key, value, cell in zip(keys, block.values(), headers, strict=True):
                rows[topic, partition].append((key, value, decode_headers(cell) if cell else []))
    return dict(rows)


def written(*batches: pa.RecordBatch, **more: Any) -> dict[tuple[str, int], list[Row]]:
    blocks = maker(batches[0], **more)
    requests = [request for batch in batches for request in blocks.add(batch)]
    return rows_in([*requests, *blocks.finish()])


cells = st.none() | st.binary(max_size=12)
pairs = st.tuples(st.text(max_size=4), cells)
records = st.tuples(
    cells, cells, st.sampled_from(["a", "b", "ä"]), st.none() | st.integers(0, 3), st.lists(pairs, max_size=3)
)


@given(st.lists(records, min_size=1, max_size=30), st.integers(0, 5), st.integers(0, 2), st.integers(0, 3))
def test_any_rows_arrive_in_order_in_the_partition_asked_for_else_that_of_the_key_else_that_of_the_turn(
    rows: list[tuple[bytes | None, bytes | None, str, int | None, list[tuple[str, bytes | None]]]],
    turn: int,
    leading: int,
    missing: int,
) -> None:
    expected: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for key, value, topic, partition, headers in rows[min(leading, len(rows) - 1) :]:
        if partition is None:
            partition = turn % 4 if key is None else fnv1a(key) % 4
        expected[topic, partition].append((key, value, headers))
    headers_column = [
        None if not headers and missing else [{"key": name, "value": cell} for name, cell in headers]
        for *_, headers in rows
    ]
    batch = batch_of(
        key=[row[0] for row in rows],
        value=[row[1] for row in rows],
        topic=[row[2] for row in rows],
        partition=[row[3] for row in rows],
        headers=headers_column,
    ).slice(min(leading, len(rows) - 1))
    assert written(batch, topic=None, partitions=4, turn=turn) == dict(expected)


def test_rows_without_keys_stay_together_and_batches_take_turns() -> None:
    batches = [batch_of(value=[b"%d" % number] * 5) for number in range(7)]
    found = written(*batches, turn=1)
    assert {place: [value for _, value, _ in rows] for place, rows in found.items()} == {
        ("t", 1): [b"0"] * 5 + [b"3"] * 5 + [b"6"] * 5,
        ("t", 2): [b"1"] * 5 + [b"4"] * 5,
        ("t", 0): [b"2"] * 5 + [b"5"] * 5,
    }


def test_text_is_written_as_its_bytes() -> None:
    schema = schema_of("key STRING, value STRING")
    options = parse_sink_options({"topic": "t"}, schema, streaming=False)
    for kind in (pa.string(), pa.large_string()):
        blocks = BlockMaker(options, lambda name: 1, 0)
        batch = pa.record_batch({"key": pa.array(["ä", None], kind), "value": pa.array(["é" * 3, "v"], kind)})
        assert rows_in([*blocks.add(batch), *blocks.finish()]) == {
            ("t", 0): [("ä".encode(), ("é" * 3).encode(), []), (None, b"v", [])]
        }


def test_the_option_beats_the_column() -> None:
    batch = batch_of(value=[b"a", b"b"], topic=["x", None])
    assert list(written(batch, topic="t", partitions=1)) == [("t", 0)]


def test_requests_and_blocks_keep_their_size_and_a_large_record_travels_alone() -> None:
    chance = Random(5)
    sizes = [chance.randrange(1, 3000) for _ in range(3000)] + [7 << 20, 20 << 20, 30 << 20, 5, 5]
    batches = [
        batch_of(value=[bytes(size) for size in sizes[start : start + 500]]) for start in range(0, len(sizes), 500)
    ]
    blocks = maker(batches[0], partitions=1)
    requests = [request for batch in batches for request in blocks.add(batch)]
    requests += blocks.finish()
    for _, parts in requests:
        assert len(parts) == 1 or sum(len(data) for _, data in parts) <= 2 * REQUEST_BYTES
        for _, data in parts:
            assert len(data) <= BLOCK_BYTES + 64 or Block(data).count == 1
    assert [len(value or b"") for _, value, _ in rows_in(requests)["t", 0]] == sizes
    assert blocks.records == len(sizes)


def test_what_lies_under_a_null_is_not_written() -> None:
    # The second cell has three bytes, and is null.
    offsets = b"".join(offset.to_bytes(4, "little") for offset in (0, 1, 4, 5))
    buffers = [pa.py_buffer(data) for data in (b"\x05", offsets, b"axxxb")]
    values = pa.Array.from_buffers(pa.binary(), 3, buffers)
    batch = pa.record_batch({"value": values})
    assert [value for _, value, _ in written(batch, partitions=1)["t", 0]] == [b"a", None, b"b"]


def test_no_rows_make_no_requests() -> None:
    blocks = maker(batch_of(value=[]))
    assert list(blocks.add(batch_of(value=[]))) == list(blocks.finish()) == []


def test_a_partition_that_is_not_there_is_refused() -> None:
    for partition in (3, -1):
        with pytest.raises(
            PartitionNotFound, match=f"partition {partition} not found: topic t has partitions 0 to 2; drop"
        ):
            written(batch_of(value=[b"v", b"v"], partition=[0, partition]))


def test_a_row_without_a_topic_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="a row has no topic"):
        written(batch_of(value=[b"v", b"v"], topic=["t", None]), topic=None)


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        ([[{"key": None, "value": b"v"}]], "a header has no name"),
        ([[None]], "a header has no name"),
        ([[{"key": "k" * 65_536, "value": b""}]], "a header's key has 65536 bytes"),
        ([[{"key": "k", "value": b""}] * 1001], "a record has 1001 headers"),
    ],
)
def test_headers_that_cannot_be_written_are_refused(headers: list[Any], problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        header_cells(pa.array(headers, HEADERS_TYPE))


def test_records_without_headers_have_none() -> None:
    assert header_cells(pa.array([None, []], HEADERS_TYPE)) is None
