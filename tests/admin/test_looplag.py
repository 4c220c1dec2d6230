"""The lag of the event loop is how late a timer runs."""

from __future__ import annotations

import asyncio

import pytest

from penstock.admin import looplag
from penstock.admin.looplag import LoopLag


class LateClock:
    """Says at each reading that the interval of the probe and a further delay have passed."""

    def __init__(self, late_s: float) -> None:
        self._step_s = looplag.PROBE_EVERY_S + late_s
        self._now_s = 0.0
        self.read = asyncio.Event()

    def now_ms(self) -> int:
        raise AssertionError("lag is measured on the monotonic clock")

    def monotonic(self) -> float:
        now = self._now_s
        self._now_s += self._step_s
        if now:
            self.read.set()
        return now


@pytest.fixture(autouse=True)
def probe_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looplag, "PROBE_EVERY_S", 0.0)


async def test_a_late_timer_is_observed_with_its_delay() -> None:
    clock = LateClock(0.25)
    lag = LoopLag(clock)
    lag.start()
    await clock.read.wait()
    lag.stop()
    assert lag.histogram.count >= 1
    assert lag.histogram.total == pytest.approx(0.25 * lag.histogram.count)


async def test_a_clock_that_reads_early_counts_as_on_time() -> None:
    clock = LateClock(-0.001)
    lag = LoopLag(clock)
    lag.start()
    await clock.read.wait()
    lag.stop()
    assert lag.histogram.total == 0.0


async def test_nothing_is_observed_after_stop() -> None:
    clock = LateClock(0.25)
    lag = LoopLag(clock)
    lag.start()
    lag.stop()
    lag.stop()
    for _ in range(10):
        await asyncio.sleep(0)
    assert lag.histogram.count == 0
