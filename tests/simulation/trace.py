"""What happened in a run, line by line: two runs of one seed must agree on every line."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import zip_longest


class Trace:
    """Lines with the virtual time in front. `now_s` is set once there is a loop."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.lines: list[str] = []
        self._closed = False

    def close(self) -> None:
        """Note nothing more: what comes after a run depends on the garbage collector."""
        self._closed = True

    def note(self, kind: str, *details: object) -> None:
        if self._closed:
            return
        self.lines.append(f"{self._now_s():.6f} {kind} {' '.join(map(str, details))}")

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()[:16]


def first_difference(one: Trace, other: Trace) -> str:
    """Return the first lines at which two traces differ; empty if they agree."""
    for number, (left, right) in enumerate(zip_longest(one.lines, other.lines)):
        if left != right:
            before = "\n".join(one.lines[max(0, number - 5) : number])
            return f"{before}\nline {number}:\n  first run:  {left}\n  second run: {right}"
    return ""
