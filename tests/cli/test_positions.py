"""Positions as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import typer

from penstock.cli.positions import Position, parse_position, parse_time

NOW = datetime(2025, 1, 31, 8, 0, tzinfo=UTC)
NOW_MS = 1_738_310_400_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("42", 42),
        ("-10m", NOW - timedelta(minutes=10)),
        ("-1h30m", NOW - timedelta(minutes=90)),
        ("-9000000w", datetime(1970, 1, 1, tzinfo=UTC)),
        ("2025-01-31T08:00:00Z", NOW),
        ("2025-01-31T09:00+01:00", NOW),
        ("2025-01-31 08:00:00.250+00:00", NOW + timedelta(milliseconds=250)),
    ],
)
def test_words_offsets_and_times_are_positions(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS, flag="--from") == position


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2025, 1, 31, 8, 0).astimezone()
    assert parse_position("2025-01-31T08:00", NOW_MS, flag="--from") == local


@pytest.mark.parametrize(
    "text",
    [
        "",
        "first",
        "-",
        "-3 fortnights",
        "-100",
        "-1.5",
        "10m",
        "1.5",
        "2025-13-01",
        "9" * 30,
        "9" * 5000,
        "-1e400d",
    ],
)
def test_anything_else_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(
        typer.BadParameter, match=r"is not a position: use earliest, latest, an offset such as 42, a time"
    ) as refused:
        parse_position(text, NOW_MS, flag="--to")
    assert refused.value.param_hint == "--to"


def test_a_time_is_no_offset() -> None:
    assert parse_time("-10m", NOW_MS, flag="--since") == NOW - timedelta(minutes=10)
    for text in ("42", "earliest", "yesterday", "-100"):
        with pytest.raises(typer.BadParameter, match=r"is not a time: use one such as .*, or how long ago") as refused:
            parse_time(text, NOW_MS, flag="--since")
        assert refused.value.param_hint == "--since"
