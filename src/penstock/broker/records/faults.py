"""Refuse single requests of a run.

A run holds the records of many requests. A unit is the records of one request: if one of them cannot be appended, the whole unit is
refused, and no other unit is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from penstock.errors import PenstockError


class Units:
    """The rows of each unit of a run."""

    __slots__ = ("_ends",)

    def __init__(self, sizes: Sequence[int] | None) -> None:
        """`sizes` has the number of rows of each unit, in order. None makes each row a unit of its own."""
        self._ends = None if sizes is None else list(accumulate(sizes))

    def of(self, row: int) -> range:
        """Return the rows of the unit that `row` belongs to."""
        if self._ends is None:
            return range(row, row + 1)
        unit = bisect_right(self._ends, row)
        return range(self._ends[unit - 1] if unit else 0, self._ends[unit])


class Faults:
    """The rows of a run that are refused."""

    __slots__ = ("errors", "units")

    def __init__(self, sizes: Sequence[int] | None) -> None:
        self.units = Units(sizes)
        self.errors: dict[int, PenstockError] = {}
        """By row; the rows of one unit share an error."""

    def refuse(self, row: int, error: PenstockError) -> None:
        """Refuse the unit of `row`. The first error of a unit is kept."""
        if row not in self.errors:
            self.errors.update(dict.fromkeys(self.units.of(row), error))

    def accepted(self, count: int) -> list[int]:
        """Return those of the first `count` rows that are not refused."""
        return [row for row in range(count) if row not in self.errors]

    def rows_by_error(self) -> dict[PenstockError, list[int]]:
        rows: dict[PenstockError, list[int]] = {}
        for row, error in self.errors.items():
            rows.setdefault(error, []).append(row)
        return rows
