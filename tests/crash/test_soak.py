"""The judgement of `make soak`, and a few seconds of its load."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.crash.soak import GAUGES, Sample, after_warm_up, soak, trend
from tests.crash.soak_load import TOPICS, SoakLoad, soak_broker

MINUTES = 10


def samples(
    of_gauge: float = 100.0, leak_per_minute: float = 0.0, wave: float = 0.0, step: float = 0.0
) -> list[Sample]:
    """Sixty samples of ten minutes in which every gauge does the same."""
    taken = []
    for number in range(60):
        minute = number * MINUTES / 60
        value = of_gauge + leak_per_minute * minute + wave * math.sin(number) + (step if number > 20 else 0)
        taken.append(Sample(minute * 60, dict.fromkeys(GAUGES, value)))
    return taken


@pytest.mark.parametrize("gauge", GAUGES)
def test_a_leak_is_found_under_noise(gauge: str) -> None:
    found = trend(gauge, samples(leak_per_minute=2.0, wave=1.5))
    assert found.grows
    assert found.per_hour == pytest.approx(120, rel=0.1)


@pytest.mark.parametrize("gauge", GAUGES)
def test_waves_and_shrinking_are_no_leak(gauge: str) -> None:
    assert not trend(gauge, samples(wave=30)).grows
    assert not trend(gauge, samples(leak_per_minute=-3)).grows


def test_what_happens_before_the_warm_up_is_over_does_not_count() -> None:
    taken = samples(step=500)
    assert trend("memory", taken).grows
    assert not trend("memory", after_warm_up(taken, MINUTES * 60)).grows
    assert after_warm_up(taken, 3600)[0].at_s == 310


@pytest.mark.timeout(120)
async def test_every_protocol_is_in_the_load_and_no_connection_is_left(tmp_path: Path) -> None:
    with soak_broker(tmp_path) as broker:
        load = SoakLoad(broker, seed=1)
        taken = await soak(broker, load, seconds=4)
        assert broker.terminate() == 0
    assert len(taken) > 1
    assert set(load.acknowledged) == set(load.read) == set(TOPICS)
    assert load.visits["hang-up"] > 0
