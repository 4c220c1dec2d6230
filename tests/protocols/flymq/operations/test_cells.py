"""Columns of byte strings on the wire."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.operations.cells import Cells, HeaderCells
from penstock.protocols.flymq.operations.layout import Layout, Pieces
from penstock.record_headers import HEADERS_PER_RECORD_MAX, encode_headers

COLUMN = Cells(100)


def written(layout: Layout, cells: list[bytes | None]) -> bytes:
    pieces = Pieces(1 << 20)
    layout.write(cells, pieces)
    return pieces.join()


@given(
    st.lists(st.none() | st.binary(max_size=20), max_size=20) | st.lists(st.binary(min_size=3, max_size=3), max_size=9)
)
def test_cells_come_back_as_they_were(cells: list[bytes | None]) -> None:
    reader = ByteReader(written(COLUMN, cells))
    assert COLUMN.read(reader, "values") == cells
    assert not reader.remaining


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (struct.pack(">Ii", 1, 5) + b"four", "values needs 5 bytes, 4 are left"),
        (struct.pack(">Ii", 1, -2), "a length of values is -2"),
        (struct.pack(">Ii", 2, 0), "2 values are announced"),
        (struct.pack(">I", 101) + bytes(404), "too many values: 101, at most 100"),
    ],
)
def test_a_column_that_cannot_be_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(ProtocolViolation, match=fault):
        COLUMN.read(ByteReader(data), "values")


def test_headers_are_checked_and_bounded() -> None:
    layout = HeaderCells(100, headers_max=3)
    two = encode_headers([("a", b"1"), ("b", None)])
    assert layout.read(ByteReader(written(layout, [two, None, two[:8]])), "headers") == [two, None, two[:8]]
    with pytest.raises(ProtocolViolation, match="more than 3 headers in one request: send fewer records at a time"):
        layout.read(ByteReader(written(layout, [two, two])), "headers")
    for cell in (two[:-1], b"x", b"\x01\0\xff\xff\xff\xff\xff"):
        with pytest.raises(ProtocolViolation, match=r"a record's headers are cut short|a header's name is not UTF-8"):
            layout.read(ByteReader(written(layout, [cell])), "headers")
    many = encode_headers([("", None)] * (HEADERS_PER_RECORD_MAX + 1))
    with pytest.raises(ProtocolViolation, match="a record has more than 1000 headers"):
        HeaderCells(1, headers_max=2000).read(ByteReader(written(layout, [many])), "headers")


def test_headers_beyond_the_bound_are_not_walked() -> None:
    """What comes behind the bound is no header, and that is not found: a cell of 32 MiB has five million."""
    many = encode_headers([("", None)] * (HEADERS_PER_RECORD_MAX + 1)) + b"x"
    with pytest.raises(ProtocolViolation, match="a record has more than 1000 headers"):
        HeaderCells(1, headers_max=2000).read(ByteReader(written(COLUMN, [many])), "headers")
