"""Delivery tags: numbers that follow from the partition and the offset of a record, and from the number of partitions.

Partition p of n has the tags p + 1, p + 1 + n, p + 1 + 2n and so on. When partitions are added, new tags begin above all those given so
far; the tags of deliveries in flight keep their meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class _Scheme(NamedTuple):
    """What tags mean while the topic has the same number of partitions."""

    first: int
    """The lowest tag; those of earlier schemes are below it."""
    bases: tuple[int, ...]
    """Tags of each partition that are left out before the one of its first record, divided by the number of partitions."""


class Tags:
    __slots__ = ("_schemes",)

    def __init__(self, bases: Iterable[int]) -> None:
        self._schemes = [_Scheme(0, tuple(bases))]

    def tag(self, partition: int, number: int) -> int:
        """Return the tag of a record: the n-th of its partition, from 0 on."""
        bases = self._schemes[-1].bases
        return (number + bases[partition]) * len(bases) + partition + 1

    def place(self, tag: int) -> tuple[int, int]:
        """Return the partition of a tag, and which of its records it is. That there is such a record is not certain."""
        scheme = next((each for each in reversed(self._schemes) if each.first <= tag), self._schemes[0])
        number, partition = divmod(tag - 1, len(scheme.bases))
        return partition, number - scheme.bases[partition]

    def rebase(self, partition: int, base: int) -> None:
        """Give new tags for one partition, above those given so far. Those of the other partitions keep their meaning."""
        first, bases = self._schemes[-1]
        self._schemes[-1] = _Scheme(first, (*bases[:partition], base, *bases[partition + 1 :]))

    def extend(self, partitions: int, base: int, unsettled: int | None) -> None:
        """Give new tags for this many partitions, above those given so far, with one base for all.

        `unsettled` is the lowest tag that is still in use: what earlier schemes mean is kept for as long as that needs.
        """
        ends = [*(each.first for each in self._schemes[1:]), None]
        self._schemes = [
            scheme
            for scheme, end in zip(self._schemes, ends, strict=True)
            if unsettled is not None and (end is None or unsettled < end)
        ]
        self._schemes.append(_Scheme(base * partitions + 1, (base,) * partitions))
