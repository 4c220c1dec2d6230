"""Columns of byte strings: whole records travel as columns, so that a thousand of them cost a few joins and slices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import pack, unpack
from typing import Any, Final

import numpy as np

from penstock.errors import InvalidRequest, ProtocolViolation
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.operations.layout import Layout, Pieces
from penstock.record_headers import check_headers

NULL: Final = -1
"""The length of a byte string that is null."""


class Cells(Layout):
    """A column of byte strings, any of which may be null. An empty column means that no record has one."""

    notation = "cells"
    bytes_min = 4

    def __init__(self, items_max: int) -> None:
        self.items_max = items_max

    def write(self, value: Any, pieces: Pieces) -> None:
        cells: Sequence[Any] = value
        try:
            lengths, data = list(map(len, cells)), b"".join(cells)
        except TypeError:  # there are nulls among them
            lengths, data = [NULL if cell is None else len(cell) for cell in cells], b"".join(filter(None, cells))
        pieces.add(pack(f">I{len(cells)}i", len(cells), *lengths))
        pieces.add(data)

    def read(self, reader: ByteReader, name: str) -> Any:
        count = reader.count32(name, 4, self.items_max)
        if not count:
            return []
        lengths = unpack(f">{count}i", reader.take(4 * count, f"lengths of {name}"))
        shortest, longest = min(lengths), max(lengths)
        if shortest < NULL:
            raise ProtocolViolation(f"invalid binary format: a length of {name} is {shortest}")
        if shortest == longest > 0:
            return np.frombuffer(reader.take(count * longest, name), f"V{longest}").tolist()
        has_nulls = shortest == NULL
        cuts = list(accumulate([max(length, 0) for length in lengths] if has_nulls else lengths, initial=0))
        data = reader.take(cuts[-1], name)
        cells: list[bytes | None] = [data[start:end] for start, end in pairwise(cuts)]
        if has_nulls:
            cells = [None if length < 0 else cell for length, cell in zip(lengths, cells, strict=True)]
        return cells


class HeaderCells(Cells):
    """The headers of records, as `record_headers` encodes them; what cannot be decoded is refused."""

    notation = "header cells"

    def __init__(self, items_max: int, headers_max: int) -> None:
        super().__init__(items_max)
        self.headers_max = headers_max

    def read(self, reader: ByteReader, name: str) -> Any:
        cells = super().read(reader, name)
        left = self.headers_max
        for cell in filter(None, cells):
            try:
                left -= check_headers(cell)
            except InvalidRequest as error:
                raise ProtocolViolation(f"invalid binary format: {error.message}") from None
            if left < 0:
                raise ProtocolViolation(
                    f"invalid binary format: more than {self.headers_max} headers in one request: send fewer records at a time"
                )
        return cells
