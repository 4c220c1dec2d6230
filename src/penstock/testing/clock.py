"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

START_MS = 1_700_000_000_000


class ManualClock:
    """Time for a broker under test: `advance` moves wall clock and monotonic time together, `jump` moves the wall clock alone.

    Safe to move from the test's thread while a broker reads it in its own.
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._now_ms = now_ms
        self._monotonic_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"time passes forwards only, {seconds} s does not; use jump() to set the wall clock back")
        elapsed_ms = round(seconds * 1000)
        with self._lock:
            self._now_ms += elapsed_ms
            self._monotonic_ms += elapsed_ms

    def jump(self, seconds: float) -> None:
        """Set the wall clock forwards or back, as an operator or a time daemon would; no time passes."""
        with self._lock:
            self._now_ms += round(seconds * 1000)
