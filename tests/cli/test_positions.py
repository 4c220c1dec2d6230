"""Positions as people write them."""

from __future__ import annotations

import pytest

from penstock.cli.positions import Position, format_time, parse_position
from penstock.errors import InvalidRequest

NOW_MS = 1_738_310_400_000  # 2025-01-31T08:00:00Z


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("latest", Position("latest")),
        ("committed", Position("committed")),
        ("0", Position("offset", 0)),
        ("42", Position("offset", 42)),
        ("-10m", Position("time", NOW_MS - 600_000)),
        ("-1h30m", Position("time", NOW_MS - 5_400_000)),
        ("-9000000w", Position("time", 0)),
        ("2025-01-31T08:00:00Z", Position("time", NOW_MS)),
        ("2025-01-31T09:00+01:00", Position("time", NOW_MS)),
        ("2025-01-31 08:00:00.250+00:00", Position("time", NOW_MS + 250)),
    ],
)
def test_words_offsets_and_times_are_positions(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS) == position


@pytest.mark.parametrize("text", ["", "first", "-", "-3 fortnights", "10m", "1.5", "2025-13-01", "9" * 30, "-1e400d"])
def test_anything_else_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a position: use earliest, latest, an offset such as 42, a time such as"):
        parse_position(text, NOW_MS)


def test_the_message_names_the_flag() -> None:
    with pytest.raises(InvalidRequest, match="--to first is not a position"):
        parse_position("first", NOW_MS, flag="--to")


def test_times_are_shown_in_utc() -> None:
    assert format_time(NOW_MS + 7) == "2025-01-31T08:00:00.007Z"
