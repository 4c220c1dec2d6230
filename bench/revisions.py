"""This tree against another revision of it: both run their own benchmarks, turn by turn, on the same machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.rounds import Plan, Row, compared

ROOT = Path(__file__).parent.parent


class _Results(msgspec.Struct):
    """What `python -m bench --json` writes, as far as it is compared."""

    results: list[Row]


def compare(plan: Plan, revision: str, cases: Sequence[str]) -> list[Row]:
    """Run the cases of both trees alternately, a round at a time, and set the medians of equal rows against each other."""
    other = plan.directory / "revision"
    name = _check_out(revision, other)
    rounds: dict[Path, list[list[Row]]] = {ROOT: [], other: []}
    for number in range(plan.rounds):
        for tree in (ROOT, other):
            plan.say(f"round {number + 1}: {'this tree' if tree is ROOT else name}")
            rounds[tree].append(_run(plan, tree, cases))
    theirs = _by_setting(rounds[other])
    rows = []
    for (case, setting), ours in _by_setting(rounds[ROOT]).items():
        before = theirs.get((case, setting))
        if before is not None:
            figures = [[row.value for row in side] for side in (ours, before)]
            note = _control(ours, before)
            cpu_us, cpu_us_before = ([each for row in side for each in row.cpu_us] for side in (ours, before))
            rows.append(
                compared(
                    case,
                    setting,
                    ours[0].unit,
                    figures[0],
                    name,
                    figures[1],
                    note=note,
                    cpu_us=cpu_us,
                    against_cpu_us=cpu_us_before,
                )
            )
    return rows


def _check_out(revision: str, directory: Path) -> str:
    """Unpack a revision; returns its abbreviated name."""
    archive = directory.with_suffix(".tar")
    subprocess.run(["git", "archive", "--output", str(archive), revision], cwd=ROOT, check=True)
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
    archive.unlink()
    short = subprocess.run(
        ["git", "rev-parse", "--short", revision], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return short.stdout.strip()


def _run(plan: Plan, tree: Path, cases: Sequence[str]) -> list[Row]:
    results = plan.directory / "results.json"
    command = [sys.executable, "-m", "bench", *cases, "--rounds", "1", "--seconds", str(plan.seconds)]
    command += ["--directory", str(plan.directory), "--json", str(results), *(["--quick"] if plan.quick else [])]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    if subprocess.run(command, cwd=tree, env=environment, check=False, stdout=subprocess.DEVNULL).returncode:
        raise RuntimeError("the benchmark of one side failed; its error is above")
    return msgspec.json.decode(results.read_bytes(), type=_Results).results


def _by_setting(rounds: Sequence[Sequence[Row]]) -> dict[tuple[str, str], list[Row]]:
    """The rows of all rounds by what they measure; those that some round lacks are left out."""
    found: dict[tuple[str, str], list[Row]] = {}
    for rows in rounds:
        for row in rows:
            found.setdefault((row.case, row.setting), []).append(row)
    return {key: rows for key, rows in found.items() if len(rows) == len(rounds)}


def _control(ours: Sequence[Row], before: Sequence[Row]) -> str:
    """How much the third party of both, which did not change, differed: the noise of the comparison."""
    sides = [[row.against_value for row in rows if row.against_value is not None] for rows in (ours, before)]
    if not all(sides):
        return ""
    medians = [sorted(side)[len(side) // 2] for side in sides]
    return f"{ours[0].against} in the same rounds: {medians[0] / medians[1]:.2f}x"
