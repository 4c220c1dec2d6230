"""What the sessions of one Felix listener count: plain numbers, exported on scrape."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class FelixStats:
    requests: dict[str, int] = field(default_factory=dict)
    """By message type; binary batches are `publish_binary`."""
    errors: int = 0
    internal_errors: int = 0
    """Those of the errors that were our fault."""
    published_events: int = 0
    """Events whose publish was committed."""
    subscribers: int = 0
    """Open now."""
    delivered_events: int = 0
    delivered_bytes: int = 0
    """Frames handed to the network, over all subscribers."""
    encoded_events: int = 0
    """Events that were laid out for delivery; the fewer of them for the events delivered, the more subscribers shared a frame."""
    dropped_events: int = 0
    """Events that a slow subscriber did not get."""
    oversized_events: int = 0
    """Events that fit into no frame of this protocol."""
    closed_subscribers: int = 0
    """Subscribers that were ended for being slow."""

    def count(self, name: str) -> None:
        self.requests[name] = self.requests.get(name, 0) + 1

    def requests_by_name(self) -> dict[str, int]:
        return dict(self.requests)
