"""Rounds that take turns, and what becomes of them: one row of the report."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

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

    def volume(self, full: int, quick: int) -> int:
        return quick if self.quick else full


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
    ratio_max: float | None = None,
    note: str = "",
) -> Row:
    """A row that sets the medians of two sides against each other; the aim is a ratio of at least or at most as given."""
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
    )
    if ratio_min is not None and row.ratio is not None:
        row.aim = f"at least {ratio_min:g}x"
        row.met = row.ratio >= ratio_min
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
) -> Row:
    """A row that stands for itself; an aim is a lower or an upper bound."""
    row = Row(case=case, setting=setting, value=statistics.median(rounds), unit=unit, rounds=rounds, note=note)
    if at_least is not None:
        row.aim, row.met = f"at least {amount(at_least)} {unit}", row.value >= at_least
    if below is not None:
        row.aim, row.met = f"below {amount(below)} {unit}", row.value < below
    return row


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
