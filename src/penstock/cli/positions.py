"""Where to start reading, as people write it: earliest, latest, committed, an offset, or a time.

A time is ISO 8601 (`2025-01-31T08:00`, local time unless it says otherwise) or how long ago it was (`-10m`, `-1h30m`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal, NamedTuple

from penstock.errors import InvalidRequest
from penstock.units import NUMBER_MAX, parse_duration_ms


class Position(NamedTuple):
    """`number` is the offset or the time in milliseconds since the Unix epoch, 0 for the words."""

    kind: Literal["earliest", "latest", "committed", "offset", "time"]
    number: int = 0


def parse_position(text: str, now_ms: int, *, flag: str = "--from") -> Position:
    """Raises InvalidRequest that shows the forms there are."""
    match text:
        case "earliest" | "latest" | "committed":
            return Position(text)
    if text.isascii() and text.isdigit() and int(text) <= NUMBER_MAX:
        return Position("offset", int(text))
    try:
        if text.startswith("-"):
            return Position("time", max(0, now_ms - parse_duration_ms(text[1:])))
        return Position("time", max(0, round(datetime.fromisoformat(text).timestamp() * 1000)))
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"{flag} {text} is not a position: use earliest, latest, an offset such as 42, a time such as 2025-01-31T08:00, "
            "or how long ago, such as -10m"
        ) from None


def format_time(timestamp_ms: int) -> str:
    """A time in UTC, to the millisecond."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
