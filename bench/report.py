"""The report: a table on the terminal, the same as Markdown, and everything as JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.rounds import Row, amount

COLUMNS = ("case", "setting", "Penstock", "against", "ratio", "aim", "CPU each", "note")


def show(console: Console, machine: Mapping[str, str], rows: Sequence[Row]) -> None:
    for name, fact in machine.items():
        console.print(f"[dim]{name}:[/dim] {fact}", highlight=False)
    table = Table(*COLUMNS, show_lines=True)
    for row in rows:
        case, setting, value, against, ratio, aim, cpu, note = _cells(row)
        if row.met is not None:
            ratio_or_value = "green" if row.met else "red"
            aim = f"[{ratio_or_value}]{aim}[/{ratio_or_value}]"
        table.add_row(case, setting, value, against, ratio, aim, cpu, note)
    console.print(table)


def markdown(machine: Mapping[str, str], rows: Sequence[Row]) -> str:
    lines = [f"- {name}: {fact}" for name, fact in machine.items()]
    lines += ["", "| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in _cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write_json(path: Path, machine: Mapping[str, str], rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [{**msgspec.to_builtins(row), "ratio": row.ratio} for row in rows]
    path.write_text(json.dumps({"machine": dict(machine), "results": results}, indent=2) + "\n")


def _cells(row: Row) -> tuple[str, ...]:
    against = f"{row.against}: {amount(row.against_value)}" if row.against_value is not None else row.against
    aim = row.aim if row.met is None else f"{row.aim}: {'met' if row.met else 'missed'}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}x"
    low, high = min(row.rounds), max(row.rounds)
    value = f"{amount(row.value)} {row.unit}"
    if low != high:
        value += f" ({amount(low)} to {amount(high)})"
    return (row.case, row.setting, value, against, ratio, aim, _cpu(row), row.note)


def _cpu(row: Row) -> str:
    """The server's processor time for one record, in brackets that of the other side."""
    ours, theirs = (
        f"{amount(statistics.median(side))} us" if side else "" for side in (row.cpu_us, row.against_cpu_us)
    )
    return f"{ours} ({theirs})" if theirs else ours
