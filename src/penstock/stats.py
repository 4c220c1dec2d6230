"""Counters the data path can afford.

A Prometheus client call costs as much as decoding a frame, so hot code adds to plain ints and these histograms, and `admin`
reads them when it is scraped.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


class Histogram:
    """Counts of observations at or below each bound, and their sum; Prometheus' shape."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


DURATION_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


@dataclass(slots=True)
class SessionStats:
    """What the sessions of one listener count, whatever their protocol."""

    errors: int = 0
    """Requests that were refused."""
    internal_errors: int = 0
    """Those of them that failed because of a bug."""
    received_records: int = 0
    """Records that clients sent to be stored, refused ones included."""
    sent_records: int = 0
    """Records sent to readers; a record counts each time that it is sent."""

    @abstractmethod
    def requests_by_name(self) -> dict[str, int]:
        """Return how many requests of each operation came, without those that never did."""


@dataclass(slots=True)
class PushStats(SessionStats):
    """Statistics of a protocol that pushes records to subscribers."""

    subscribers: int = 0
    """Open now."""
    encoded_events: int = 0
    """Events that were laid out for delivery: the fewer of them for those sent, the more subscribers shared one."""
    dropped_events: int = 0
    """Events that a slow subscriber did not get."""
    oversized_events: int = 0
    """Events that fit into no frame of the protocol."""
    skipped_events: int = 0
    """Events with nothing in them, where the protocol's clients cannot take such."""
    closed_subscribers: int = 0
    """Subscribers that were ended for being slow."""
    ping_timeouts: int = 0
    """Connections that were closed because a ping was not answered."""
