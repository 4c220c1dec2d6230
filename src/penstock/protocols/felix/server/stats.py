"""What the sessions of one Felix listener count: plain numbers, exported on scrape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.stats import PushStats


@dataclass(slots=True)
class FelixStats(PushStats):
    requests: Counter[str] = field(default_factory=Counter)
    """By message type; binary batches are `publish_binary`."""

    def requests_by_name(self) -> dict[str, int]:
        return dict(self.requests)
