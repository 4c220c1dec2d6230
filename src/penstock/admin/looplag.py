"""How late the event loop is: the delay of a timer beyond its due time.

Everything in the broker waits for the loop, so a loop that runs late is the first sign of a callback that takes too long.
"""

from __future__ import annotations

import asyncio

from penstock.clock import Clock
from penstock.stats import DURATION_BOUNDS_S, Histogram

PROBE_EVERY_S = 0.5


class LoopLag:
    """Observes the lag of the running loop twice a second, from `start` to `stop`."""

    def __init__(self, clock: Clock) -> None:
        self.histogram = Histogram(DURATION_BOUNDS_S)
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        due = self._clock.monotonic() + PROBE_EVERY_S
        self._timer = asyncio.get_running_loop().call_later(PROBE_EVERY_S, self._observe, due)

    def _observe(self, due: float) -> None:
        self.histogram.observe(max(0.0, self._clock.monotonic() - due))
        self._schedule()
