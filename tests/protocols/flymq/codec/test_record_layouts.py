"""Replies with whole records that are encoded by hand: the same bytes as their declaration makes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.flymq.codec.record_layouts import (
    PACKED_ROWS_MAX,
    VECTOR_ROWS_MIN,
    RawCells,
    Rows,
    WholeRows,
    encode_fetched,
    encode_fetched_records,
)
from penstock.protocols.flymq.operations.operation import encode_reply
from penstock.protocols.flymq.operations.records import FetchedRecords, FetchRecords

Row = tuple[int, int, bytes | None, bytes | None, bytes | None]

cells = st.none() | st.binary(max_size=9)
numbers = st.integers(0, (1 << 63) - 1)
rows = st.lists(st.tuples(numbers, numbers, cells, cells, cells), min_size=1, max_size=5)


def part_of(rows: list[Row]) -> WholeRows:
    offsets, timestamps, keys, values, headers = (list(column) for column in zip(*rows, strict=True))
    return WholeRows(
        offsets,
        timestamps,
        _optional(keys),
        RawCells.of(values),
        _optional(headers),
    )


def _optional(cells: list[bytes | None]) -> RawCells | None:
    return RawCells.of(cells) if any(cell is not None for cell in cells) else None


def declared(rows: list[Row], next_offset: int) -> bytes:
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 5
    offsets, timestamps, keys, values, headers = columns
    present = [column if any(cell is not None for cell in column) else [] for column in (keys, headers)]
    return encode_reply(FetchRecords, FetchedRecords(next_offset, offsets, timestamps, present[0], values, present[1]))


@given(st.lists(rows, max_size=4), numbers)
def test_parts_of_blocks_are_encoded_as_the_operation_declares(parts: list[list[Row]], next_offset: int) -> None:
    assert encode_fetched_records([part_of(part) for part in parts], next_offset) == declared(
        [row for part in parts for row in part], next_offset
    )


@pytest.mark.parametrize("count", [PACKED_ROWS_MAX, PACKED_ROWS_MAX + 1])
def test_a_part_of_any_length_is_encoded_as_the_operation_declares(count: int) -> None:
    rows: list[Row] = [(7 + row, 1_800_000_000_000 + row, None, b"%d" % row, None) for row in range(count)]
    assert encode_fetched_records([part_of(rows)], 7 + count) == declared(rows, 7 + count)


@given(rows, st.integers(0, 300))
def test_as_many_rows_fit_as_take_no_more_bytes(rows: list[Row], bytes_max: int) -> None:
    whole = part_of(rows)
    count = whole.fitting(bytes_max)
    assert whole.head(count).size_bytes <= bytes_max
    assert count == len(rows) or whole.head(count + 1).size_bytes > bytes_max
    assert whole.head(len(rows)).size_bytes == whole.size_bytes


@pytest.mark.parametrize("native", [True, False], ids=["deployed", "contract"])
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "no keys"])
def test_many_rows_are_the_same_bytes_as_a_few_at_a_time(native: bool, keyed: bool) -> None:
    chance = random.Random(7)

    def column() -> list[bytes | None]:
        return [chance.choice((None, b"", chance.randbytes(chance.randint(1, 300)))) for _ in range(5 * few)]

    few = VECTOR_ROWS_MIN - 1
    offsets, keys, values = range(1 << 40, (1 << 40) + 5 * few), column() if keyed else None, column()
    parts = [
        Rows(offsets[start : start + few], keys and keys[start : start + few], values[start : start + few])
        for start in range(0, len(values), few)
    ]
    whole = encode_fetched(7, [Rows(offsets, keys, values)], 99, native=native)
    assert whole == encode_fetched(7, parts, 99, native=native)
