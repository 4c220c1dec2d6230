"""Which of many holders has the most, without looking at all of them.

A heap of what each was last seen to have. A holder that has grown is noted again at once, one that has shrunk when it comes up; so what
is noted is never too little, and one whose size equals its note has the most. Of several that have the same it is the one that was
noted first.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

OUTDATED_MAX: Final = 64
"""Notes besides two a holder: with more, those that are outdated are thrown away."""


class Largest:
    """Holders are called by their names."""

    def __init__(self, weight_of: Callable[[str], int]) -> None:
        self._weight_of = weight_of
        self._noted: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        """What was noted, negated; the number of the note; the holder."""
        self._numbers = count()

    def note(self, holder: str) -> None:
        """To be called when a holder may have grown."""
        weight = self._weight_of(holder)
        if weight > self._noted.get(holder, -1):
            self._push(holder, weight)

    def forget(self, holder: str) -> None:
        """To be called when a holder is gone."""
        self._noted.pop(holder, None)

    def find(self, besides: str | None = None) -> str | None:
        """Who it is; None if there is nobody, or nobody but the one that is left out."""
        left_out: list[tuple[int, int, str]] = []
        found = None
        while self._heap:
            negated, _, holder = note = self._heap[0]
            if self._noted.get(holder) != -negated:
                heappop(self._heap)  # outdated
                continue
            weight = self._weight_of(holder)
            if weight != -negated:
                heappop(self._heap)
                self._push(holder, weight)
            elif holder == besides:
                left_out.append(heappop(self._heap))
            else:
                found = holder
                break
        for note in left_out:
            heappush(self._heap, note)
        return found

    def _push(self, holder: str, weight: int) -> None:
        self._noted[holder] = weight
        heappush(self._heap, (-weight, next(self._numbers), holder))
        if len(self._heap) > 2 * len(self._noted) + OUTDATED_MAX:
            self._forget_outdated()

    def _forget_outdated(self) -> None:
        current: dict[str, tuple[int, int, str]] = {}
        for note in self._heap:
            negated, _, holder = note
            if self._noted.get(holder) == -negated:
                current[holder] = min(note, current.get(holder, note))
        self._heap = list(current.values())
        heapify(self._heap)
