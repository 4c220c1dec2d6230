"""A column of byte strings that all have one size, kept as they lie in memory.

Records of one kind often have one size. A read that brings a hundred of them is cut out of the socket's bytes as one piece, and stays one
piece through the batch, the block and the reply: no byte string is made for a record. As cells, it is a sequence of
byte strings as any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TypeGuard, final, overload


@final
class UniformCells(Sequence[bytes]):
    """`rows` cells of `cell_bytes` each, back to back in `data`."""

    __slots__ = ("cell_bytes", "data", "rows")

    def __init__(self, cell_bytes: int, rows: int, data: bytes) -> None:
        assert len(data) == cell_bytes * rows, "cells of one size do not fill their data"
        self.cell_bytes = cell_bytes
        self.rows = rows
        self.data = data

    def __len__(self) -> int:
        return self.rows

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        size = self.cell_bytes
        picked = range(self.rows)[at]
        if isinstance(picked, int):
            return self.data[picked * size : (picked + 1) * size]
        if picked.step == 1:
            return UniformCells(
                size, len(picked), self.data[picked.start * size : picked.stop * size] if picked else b""
            )
        return [self[row] for row in picked]

    def cut(self, bounds: Sequence[int]) -> list[UniformCells]:
        """Return the cells from each of these rows to the next."""
        size, data = self.cell_bytes, self.data
        pieces: list[UniformCells] = []
        for start, stop in itertools.pairwise(bounds):
            piece = UniformCells.__new__(UniformCells)  # as `__init__` does, without a call for each
            piece.cell_bytes, piece.rows, piece.data = size, stop - start, data[start * size : stop * size]
            pieces.append(piece)
        return pieces

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[bytes]:
        data, size = self.data, self.cell_bytes
        if not size:
            return iter([b""] * self.rows)
        return iter([data[at : at + size] for at in range(0, len(data), size)])


def are_uniform(columns: Sequence[object]) -> TypeGuard[Sequence[UniformCells]]:
    """Return whether columns hold cells of one size, the same for all of them; at least one column is given."""
    first = columns[0]
    return type(first) is UniformCells and all(
        type(column) is UniformCells and column.cell_bytes == first.cell_bytes for column in columns
    )


def concatenated(columns: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """Return the cells of all columns, one column after the other; as one piece, if they all have one size and lie so."""
    if len(columns) == 1:
        return columns[0]
    return joined(columns) if are_uniform(columns) else [cell for column in columns for cell in column]


def joined(columns: Sequence[UniformCells]) -> UniformCells:
    """Return the cells of all columns, one column after the other."""
    data = b"".join([column.data for column in columns])
    return UniformCells(columns[0].cell_bytes, sum([column.rows for column in columns]), data)
