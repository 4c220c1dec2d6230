"""How often and how fast records are redelivered: the section `[subscriptions]`."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from penstock.settings import DurationMs, Section

# Unsettled deliveries are stored with every write. At 12 bytes each, if no two are adjacent, this many fit the 1 MiB of a table's entry.
IN_FLIGHT_CEILING: Final = 50_000
_BACKOFF_DOUBLINGS_MAX: Final = 20


class DeliveryPolicy(Section):
    """How often and how fast unacknowledged records are redelivered, and how much one subscription may have in flight."""

    # As deployed BlipMQ brokers have it.
    deliveries_max: int = Field(3, ge=1, le=1_000_000)
    """Deliveries of a record without an acknowledgement; then it becomes a dead letter."""
    backoff_ms: DurationMs = Field(100, ge=1)
    """Acknowledgement timeout of the first delivery; it doubles with each redelivery."""
    in_flight_max: int = Field(4096, ge=1, le=IN_FLIGHT_CEILING)
    """Unacknowledged deliveries of one subscription, and its records that wait to become dead letters. Above it delivery pauses."""
    # Protocols without a way to unsubscribe leave subscriptions behind.
    idle_ms_max: DurationMs = Field(7 * 24 * 3600 * 1000, ge=1000)
    """A subscription without a reader for this long is deleted."""

    def delay_ms(self, deliveries: int) -> int:
        return self.backoff_ms << min(deliveries - 1, _BACKOFF_DOUBLINGS_MAX)
