"""Run mixed load for a long time and watch what the broker's process uses.

    python -m tests.crash.soak --minutes 60

Clients of all five protocols connect, write, read and disconnect over and over. Memory, open descriptors, threads and tasks are
sampled. After a warm-up none of them may grow. Ends with 1 if one does, or if the load or the broker fails.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.testing import BrokerProcess
from tests.crash.quic_peers import MIB, is_sound, metrics
from tests.crash.soak_load import SoakLoad, soak_broker

WARM_UP_S_MAX = 300.0
SAMPLES = 120
SAMPLE_S_MIN = 0.5
ROWS_SHOWN = 20
LAST_VISIT_S_MAX = 60.0
DISCONNECTED_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure of the process, and how much of a rise over the measured time is noise."""

    unit: str
    noise_share: float
    """Of its mean."""
    noise_units: float


GAUGES = {
    "memory": Gauge(
        "MiB", 0.05, 2.0
    ),  # the allocator fills its arenas in steps; an hour of a slow leak is more than this
    "descriptors": Gauge("", 0.0, 3.0),
    "threads": Gauge("", 0.0, 4.0),  # pools start theirs when they are first needed
    "tasks": Gauge("", 0.0, 3.0),
}


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    values: dict[str, float]
    """By gauge."""


@dataclass(frozen=True, slots=True)
class Trend:
    gauge: str
    mean: float
    per_hour: float
    """The slope of the line that fits the samples best."""
    grows: bool


def trend(gauge: str, samples: Sequence[Sample]) -> Trend:
    """Judge one gauge after the warm-up.

    It grows if all of the last third lies above all of the first third, and the fitted line rises by more than noise: a peak or a
    wave is not a leak, and a leak shows in both.
    """
    times = [sample.at_s for sample in samples]
    values = [sample.values[gauge] for sample in samples]
    mean = statistics.fmean(values)
    slope = statistics.linear_regression(times, values).slope
    third = max(1, len(values) // 3)
    noise = max(GAUGES[gauge].noise_units, GAUGES[gauge].noise_share * mean)
    rise = slope * (times[-1] - times[0])
    return Trend(gauge, mean, slope * 3600, min(values[-third:]) > max(values[:third]) and rise > noise)


async def sample(broker: BrokerProcess, at_s: float) -> Sample:
    figures = await metrics(broker)
    threads = re.search(r"^Threads:\s+(\d+)", Path(f"/proc/{broker.pid}/status").read_text(), re.MULTILINE)
    assert threads is not None
    return Sample(
        at_s,
        {
            "memory": figures["process_resident_memory_bytes"] / MIB,
            "descriptors": figures["process_open_fds"],
            "threads": float(threads[1]),
            "tasks": figures["penstock_event_loop_tasks"],
        },
    )


async def open_connections(broker: BrokerProcess) -> dict[str, float]:
    """Return how many connections each listener has that has any."""
    figures = await metrics(broker)
    return {series: value for series, value in figures.items() if series.startswith("penstock_connections{") and value}


async def soak(
    broker: BrokerProcess,
    load: SoakLoad,
    seconds: float,
    on_sample: Callable[[Sample], None] = lambda _: None,
) -> list[Sample]:
    """Put load on a running broker; returns the samples. Raises what the load raises, and AssertionError if clients leave a trace."""
    interval_s = max(SAMPLE_S_MIN, seconds / SAMPLES)
    samples: list[Sample] = []
    started_s = time.monotonic()
    working = asyncio.create_task(load.run())
    try:
        while not working.done() and time.monotonic() - started_s < seconds:
            await asyncio.wait([working], timeout=interval_s)
            samples.append(await sample(broker, time.monotonic() - started_s))
            on_sample(samples[-1])
        load.stop()
        async with asyncio.timeout(LAST_VISIT_S_MAX):
            await working
    finally:
        working.cancel()
    disconnected_by_s = time.monotonic() + DISCONNECTED_S_MAX
    while still_open := await open_connections(broker):
        assert time.monotonic() < disconnected_by_s, f"connections that clients have closed are open: {still_open}"
        await asyncio.sleep(0.2)
    assert is_sound(broker)
    return samples


def after_warm_up(samples: Sequence[Sample], seconds: float) -> list[Sample]:
    """Drop the first half, or the first five minutes if those are less."""
    return [each for each in samples if each.at_s > min(WARM_UP_S_MAX, seconds / 2)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None, help="of the values that are written (default: random)")
    options = parser.parse_args()
    seconds = options.minutes * 60
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    say = sys.stdout.write
    say(f"{options.minutes:g} minutes, seed {seed}\n")
    say(
        "minute  "
        + "  ".join(f"{f'{name}, {gauge.unit}' if gauge.unit else name:>11}" for name, gauge in GAUGES.items())
    )
    say("  acknowledged        read\n")
    shown = 0

    with tempfile.TemporaryDirectory(prefix="soak-") as directory, soak_broker(Path(directory)) as broker:
        load = SoakLoad(broker, seed)

        def show(latest: Sample) -> None:
            nonlocal shown
            if latest.at_s >= shown * seconds / ROWS_SHOWN:
                shown = int(latest.at_s * ROWS_SHOWN / seconds) + 1
                row = "  ".join(f"{latest.values[name]:>11.1f}" for name in GAUGES)
                say(f"{latest.at_s / 60:>6.1f}  {row}  {load.acknowledged.total():>12,}  {load.read.total():>10,}\n")
                sys.stdout.flush()

        async def run() -> list[Sample]:
            await load.fill_event_cache()
            return await soak(broker, load, seconds, show)

        samples = asyncio.run(run())
        code = broker.terminate()
    say("\nvisits: " + ", ".join(f"{name} {count:,}" for name, count in load.visits.items()) + "\n")
    trends = [trend(name, after_warm_up(samples, seconds)) for name in GAUGES]
    for each in trends:
        verdict = "GROWS" if each.grows else "steady"
        say(
            f"{each.gauge:<12} {each.mean:>8.1f} on average after the warm-up, {each.per_hour:+8.1f} an hour: {verdict}\n"
        )
    if code:
        say(f"the broker ended with {code} when it was asked to stop\n")
    sys.exit(os.EX_OK if not code and not any(each.grows for each in trends) else 1)


if __name__ == "__main__":
    main()
