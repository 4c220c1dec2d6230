"""Cells of one size: a sequence as any other, and the same bytes in a block, whichever way records come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.columns import UniformCells, are_uniform, concatenated, joined
from penstock.log.api import Batch
from penstock.log.block import encode_block
from penstock.log.embedded.layout import gather


def uniform(cells: list[bytes]) -> UniformCells:
    return UniformCells(len(cells[0]) if cells else 0, len(cells), b"".join(cells))


CELLS = st.integers(0, 5).flatmap(lambda size: st.lists(st.binary(min_size=size, max_size=size), max_size=40))
BOUND = st.one_of(st.none(), st.integers(-45, 45))


@given(CELLS, BOUND, BOUND, st.sampled_from([None, 1, 2, -1]))
def test_cells_of_one_size_are_a_sequence_as_a_list_is(
    cells: list[bytes], start: int | None, stop: int | None, step: int | None
) -> None:
    column = uniform(cells)
    assert list(column) == cells
    assert len(column) == len(cells)
    assert list(column[start:stop:step]) == cells[start:stop:step]
    assert [column[at] for at in range(-len(cells), len(cells))] == cells * 2
    assert column == cells
    for at in (len(cells), -len(cells) - 1):
        with pytest.raises(IndexError):
            column[at]


@given(CELLS)
def test_a_batch_and_a_block_are_the_same(cells: list[bytes]) -> None:
    column = uniform(cells)
    assert Batch(column).size_bytes == Batch(cells).size_bytes
    if cells:
        assert encode_block(7, 5, column) == encode_block(7, 5, cells)
        keys: list[bytes | None] = [b"k", *[None] * (len(cells) - 1)]
        assert encode_block(7, 5, column, keys) == encode_block(7, 5, cells, keys)


def test_columns_of_one_size_stay_one_column_when_they_are_joined() -> None:
    first, second, other = uniform([b"ab", b"cd"]), uniform([b"ef"]), uniform([b"g"])
    assert are_uniform([first, second])
    assert joined([first, second]) == [b"ab", b"cd", b"ef"]
    assert not are_uniform([first, other])
    assert not are_uniform([first, [b"ef"]])
    [batch] = gather([Batch(first), Batch(second)], 1 << 20)
    assert isinstance(batch.values, UniformCells)
    assert batch.size_bytes == 6
    [mixed] = gather([Batch(first), Batch(other), Batch([None])], 1 << 20)
    assert mixed.values == [b"ab", b"cd", b"g", None]


def test_cells_of_one_size_are_cut_at_rows() -> None:
    cells = UniformCells(2, 4, b"aabbccdd")
    assert [list(piece) for piece in cells.cut([0, 1, 1, 4])] == [[b"aa"], [], [b"bb", b"cc", b"dd"]]
    assert all(type(piece) is UniformCells for piece in cells.cut([0, 4]))


def test_columns_are_concatenated_as_one_piece_if_their_cells_have_one_size() -> None:
    first, second, other = uniform([b"ab", b"cd"]), uniform([b"ef"]), uniform([b"g"])
    assert concatenated([first]) is first
    assert isinstance(concatenated([first, second]), UniformCells)
    assert concatenated([first, second]) == [b"ab", b"cd", b"ef"]
    assert concatenated([first, other, [b"hi"]]) == [b"ab", b"cd", b"g", b"hi"]


def test_a_large_batch_is_cut_into_columns_of_one_size() -> None:
    cells = [b"%04d" % number for number in range(100)]
    pieces = gather([Batch(uniform(cells))], 256)
    assert len(pieces) > 3
    assert all(isinstance(piece.values, UniformCells) for piece in pieces)
    assert [cell for piece in pieces for cell in piece.values] == cells
