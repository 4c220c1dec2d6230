"""Which entries of a log are due when: a priority queue of (due time, offset) that takes 16 bytes an entry.

A heap of tuples takes some 150 bytes an entry, too much for millions that wait for hours. So new entries gather in a small heap, and
each time it is full it becomes a sorted run of two arrays. Taking the earliest looks at the heads of the runs, of which there are few;
removing one is a binary search in each. A run goes when its last entry is taken.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

# Sorting this many takes about a millisecond; a million entries are then 61 runs.
RUN_ENTRIES: Final = 1 << 14
_REMOVED: Final = -1

Int64s = npt.NDArray[np.int64]
Due = tuple[int, int]
"""When, in milliseconds, and the offset of what."""


class _Run:
    """Entries in order of due time and offset, those before `head` taken."""

    __slots__ = ("dues", "head", "offsets")

    def __init__(self, dues: Int64s, offsets: Int64s) -> None:
        order = np.lexsort((offsets, dues))
        self.dues = dues[order]
        self.offsets = offsets[order]
        self.head = 0

    def peek(self) -> Due | None:
        """The first entry that was neither taken nor removed."""
        head, end = self.head, len(self.dues)
        while head < end and self.offsets[head] == _REMOVED:
            head += 1
        self.head = head
        return (int(self.dues[head]), int(self.offsets[head])) if head < end else None

    def following(self, after: Due) -> Iterator[Due]:
        """Iterate over the entries after one that were neither taken nor removed, in order."""
        first = max(self.head, int(np.searchsorted(self.dues, after[0])))
        for at in range(first, len(self.dues)):
            due = (int(self.dues[at]), int(self.offsets[at]))
            if due[1] != _REMOVED and due > after:
                yield due

    def remove(self, due_ms: int, offset: int) -> bool:
        first, last = np.searchsorted(self.dues, (due_ms, due_ms + 1)).tolist()
        first = max(first, self.head)
        found = np.flatnonzero(self.offsets[first:last] == offset)
        if not len(found):
            return False
        self.offsets[first + int(found[0])] = _REMOVED
        return True


class DueTimes:
    """Entries are identified by their offsets; each is added once."""

    def __init__(self) -> None:
        self._count = 0
        self._fresh: list[Due] = []
        self._fresh_live: set[Due] = set()
        self._runs: list[_Run] = []

    def __len__(self) -> int:
        return self._count

    @property
    def next_due_ms(self) -> int | None:
        """The earliest due time, None if nothing waits."""
        heads = [head for run in self._runs if (head := run.peek()) is not None]
        fresh = self._peek_fresh()
        if fresh is not None:
            heads.append(fresh)
        return min(heads)[0] if heads else None

    def add(self, due_ms: int, offset: int) -> None:
        due = (due_ms, offset)
        heapq.heappush(self._fresh, due)
        self._fresh_live.add(due)
        self._count += 1
        if len(self._fresh) >= RUN_ENTRIES:
            fresh, self._fresh_live, self._fresh = self._fresh_live, set(), []
            if fresh:
                columns = np.array(list(fresh), np.int64)
                self._runs.append(_Run(columns[:, 0], columns[:, 1]))

    def add_many(self, dues: Int64s, offsets: Int64s) -> None:
        if len(dues):
            self._runs.append(_Run(dues, offsets))
            self._count += len(dues)

    def remove(self, due_ms: int, offset: int) -> bool:
        """Whether it was there."""
        due = (due_ms, offset)
        if due in self._fresh_live:
            self._fresh_live.remove(due)
        elif not any(run.remove(due_ms, offset) for run in self._runs):
            return False
        self._count -= 1
        return True

    def following(self, after: Due, count_max: int) -> list[Due]:
        """Return the earliest entries after one, in order, at most this many; they stay."""
        fresh = heapq.nsmallest(count_max, (due for due in self._fresh_live if due > after))
        return list(islice(heapq.merge(fresh, *(run.following(after) for run in self._runs)), count_max))

    def take_until(self, due_ms: int, count_max: int) -> list[Due]:
        """Remove and return the earliest entries that are due by a time, in order, at most this many."""
        self._runs = [run for run in self._runs if run.peek() is not None]
        heads = [(head, at) for at, run in enumerate(self._runs) if (head := run.peek()) is not None]
        heapq.heapify(heads)
        taken: list[Due] = []
        while len(taken) < count_max:
            fresh = self._peek_fresh()
            if fresh is not None and (not heads or fresh < heads[0][0]):
                if fresh[0] > due_ms:
                    break
                self._fresh_live.remove(heapq.heappop(self._fresh))
                taken.append(fresh)
                continue
            if not heads or heads[0][0][0] > due_ms:
                break
            due, at = heads[0]
            taken.append(due)
            run = self._runs[at]
            run.head += 1
            following = run.peek()
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, at))
        self._count -= len(taken)
        return taken

    def _peek_fresh(self) -> Due | None:
        while self._fresh and self._fresh[0] not in self._fresh_live:
            heapq.heappop(self._fresh)
        return self._fresh[0] if self._fresh else None
