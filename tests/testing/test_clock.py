from __future__ import annotations

import pytest

from penstock.testing.clock import START_MS, ManualClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock()
    assert (clock.now_ms(), clock.monotonic()) == (START_MS, 0.0)
    clock.advance(1.5)
    assert (clock.now_ms(), clock.monotonic()) == (START_MS + 1500, 1.5)


def test_a_jump_moves_the_wall_clock_alone() -> None:
    clock = ManualClock(now_ms=10_000)
    clock.jump(-3)
    assert (clock.now_ms(), clock.monotonic()) == (7_000, 0.0)


def test_time_cannot_be_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="use jump"):
        ManualClock().advance(-1)
