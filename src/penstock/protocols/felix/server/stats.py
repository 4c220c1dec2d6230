"""What the sessions of one Felix listener count: plain numbers, exported on scrape."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.stats import PushStats


@dataclass(slots=True)
class FelixStats(PushStats):
    requests: dict[str, int] = field(default_factory=dict)
    """By message type; binary batches are `publish_binary`."""

    def count(self, name: str) -> None:
        self.requests[name] = self.requests.get(name, 0) + 1

    def requests_by_name(self) -> dict[str, int]:
        return dict(self.requests)
