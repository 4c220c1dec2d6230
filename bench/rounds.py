"""Rounds that take turns, and what becomes of them: one row of the report."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, TypeVar

import msgspec

LOAD_CPU_BOUND: Final = 0.9
"""From here on the load generator, not the server, may be what was measured."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of each measurement to do, and where."""

    directory: Path
    rounds: int
    seconds: float
    quick: bool
    say: Callable[[str], None]
    large: bool = False
    """Whether a log may take 50 GB of disk."""

    def volume(self, full: int, quick: int) -> int:
        return quick if self.quick else full


class Load(Protocol):
    """What every load reports, whatever it sends."""

    @property
    def rate(self) -> float:
        """Records a second, or whatever it counts."""

    @property
    def server_cpu(self) -> float:
        """Processors in use by the server meanwhile."""

    @property
    def load_cpu(self) -> float:
        """Processors in use by the load itself."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A load that ran in the process of the benchmark."""

    rate: float
    server_cpu: float
    load_cpu: float


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Where a row lies in a plot."""

    axis: str
    """What grows, such as topics: a plot for each."""
    at: float
    panel: str
    """What stands beside each other in the plot, with its unit."""
    series: str
    """What was measured, the same at every point: a line of the panel."""


class Row(msgspec.Struct, kw_only=True):
    """One line of the report."""

    case: str
    setting: str
    """Durability, payload, connections and requests in flight."""
    value: float
    unit: str
    rounds: list[float]
    against: str = ""
    against_value: float | None = None
    against_rounds: list[float] = []
    aim: str = ""
    met: bool | None = None
    note: str = ""
    cpu_us: list[float] = []
    """Processor time of the server for one record, in microseconds, of each round: the cost beside the rate."""
    against_cpu_us: list[float] = []
    point: Point | None = None

    @property
    def ratio(self) -> float | None:
        return self.value / self.against_value if self.against_value else None


def compared(
    case: str,
    setting: str,
    unit: str,
    rounds: list[float],
    against: str,
    against_rounds: list[float],
    *,
    ratio_min: float | None = None,
    at_least: float | None = None,
    ratio_max: float | None = None,
    note: str = "",
    cpu_us: list[float] | None = None,
    against_cpu_us: list[float] | None = None,
) -> Row:
    """A row that sets the medians of two sides against each other.

    The aim is a ratio of at least or at most as given; with `ratio_min`, `at_least` asks for a figure of our own as well."""
    row = Row(
        case=case,
        setting=setting,
        value=statistics.median(rounds),
        unit=unit,
        rounds=rounds,
        against=against,
        against_value=statistics.median(against_rounds),
        against_rounds=against_rounds,
        note=note,
        cpu_us=cpu_us or [],
        against_cpu_us=against_cpu_us or [],
    )
    if ratio_min is not None and row.ratio is not None:
        row.aim = f"at least {ratio_min:g}x"
        row.met = row.ratio >= ratio_min
        if at_least is not None:
            row.aim += f" and {amount(at_least)} {unit}"
            row.met = row.met and row.value >= at_least
    if ratio_max is not None and row.ratio is not None:
        row.aim = f"at most {ratio_max:g}x"
        row.met = row.ratio <= ratio_max
    return row


def alone(
    case: str,
    setting: str,
    unit: str,
    rounds: list[float],
    *,
    at_least: float | None = None,
    below: float | None = None,
    note: str = "",
    cpu_us: list[float] | None = None,
    point: Point | None = None,
) -> Row:
    """A row that stands for itself; an aim is a lower or an upper bound."""
    row = Row(
        case=case,
        setting=setting,
        value=statistics.median(rounds),
        unit=unit,
        rounds=rounds,
        note=note,
        cpu_us=cpu_us or [],
        point=point,
    )
    if at_least is not None:
        row.aim, row.met = f"at least {amount(at_least)} {unit}", row.value >= at_least
    if below is not None:
        row.aim, row.met = f"below {amount(below)} {unit}", row.value < below
    return row


def cpu_us_each(results: Iterable[Load]) -> list[float]:
    """Processor time of the server for each record, in microseconds, of each round."""
    return [1e6 * result.server_cpu / result.rate for result in results]


def cpu_note(ours: Iterable[Load], theirs: Iterable[Load] = (), other: str = "") -> str:
    """Processors used by server and load generator, on both sides; says so if the load generator was the bottleneck."""
    parts, limited = [], []
    for name, results in (("broker", list(ours)), (other, list(theirs))):
        if results:
            server = statistics.median(result.server_cpu for result in results)
            load = statistics.median(result.load_cpu for result in results)
            parts.append(f"{name} {server:.2f} + load {load:.2f}")
            if load >= LOAD_CPU_BOUND:
                limited.append(f"; the load generator limits {name}")
    return f"cpu: {', '.join(parts)}{''.join(limited)}"


def interleave(sides: Mapping[str, Callable[[int], _T]], rounds: int) -> dict[str, list[_T]]:
    """Run every side once a round, in turn; each is handed the number of the round."""
    results: dict[str, list[_T]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            results[name].append(side(number))
    return results


def amount(value: float) -> str:
    """A figure with as many digits as mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
