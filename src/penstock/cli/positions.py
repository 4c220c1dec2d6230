"""Where to start reading, as people write it: earliest, latest, an offset, or a time.

A time is ISO 8601 (`2025-01-31T08:00`, local time unless it says otherwise) or how long ago it was (`-10m`, `-1h30m`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from string import digits
from typing import Literal

import typer

from penstock.units import NUMBER_MAX, parse_duration_ms

Position = Literal["earliest", "latest"] | int | datetime


def parse_position(text: str, now_ms: int, *, flag: str) -> Position:
    """Raises BadParameter that names the flag and shows the forms there are."""
    match text:
        case "earliest" | "latest":
            return text
    try:
        if text.isascii() and text.isdigit() and int(text) <= NUMBER_MAX:
            return int(text)
        return _time(text, now_ms)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text} is not a position: use earliest, latest, an offset such as 42, a time such as 2025-01-31T08:00, "
            "or how long ago, such as -10m",
            param_hint=flag,
        ) from None


def parse_time(text: str, now_ms: int, *, flag: str) -> datetime:
    """Raises BadParameter that names the flag and shows the forms there are."""
    try:
        return _time(text, now_ms)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{text} is not a time: use one such as 2025-01-31T08:00, or how long ago, such as -10m", param_hint=flag
        ) from None


def _time(text: str, now_ms: int) -> datetime:
    if text.startswith("-") and not text.endswith(tuple(digits)):  # without a unit it may be meant as records
        return datetime.fromtimestamp(max(0, now_ms - parse_duration_ms(text[1:])) / 1000, UTC)
    return datetime.fromisoformat(text).astimezone(UTC)
