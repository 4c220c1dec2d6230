"""How often one source may ask: a bucket of requests for each, which fills at a steady rate."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.clock import Clock
from penstock.units import network_of

BURST_S: Final = 5.0
"""A bucket holds as many requests as fill it in this time, and at least one."""
SOURCES_MAX: Final = 10_000
"""Sources whose requests are counted; the one that asked longest ago is forgotten first."""


class Rates:
    def __init__(self, clock: Clock, per_s: float) -> None:
        self._clock = clock
        self._per_s = per_s
        self._burst = max(1.0, per_s * BURST_S)
        self._sources: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """What is left in each bucket, and since when."""

    def wait_s(self, host: str) -> float:
        """Count a request; returns 0, or how long its sender has to wait before it may send another."""
        source, now_s = network_of(host), self._clock.monotonic()
        left, since_s = self._sources.get(source, (self._burst, now_s))
        left = min(self._burst, left + (now_s - since_s) * self._per_s)
        allowed = left >= 1
        self._sources[source] = (left - 1 if allowed else left), now_s
        self._sources.move_to_end(source)
        if len(self._sources) > SOURCES_MAX:
            self._sources.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._per_s
