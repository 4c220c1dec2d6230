"""The whole broker under simulation: it keeps its promises, one seed is one run, and a broken engine is found out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from penstock.clients.records import RecordMetadata
from penstock.log.embedded import engine
from penstock.log.embedded.disk import AppendFile
from penstock.testing.checker import ReadRecord
from tests.simulation.disk import SimDisk
from tests.simulation.history import History
from tests.simulation.run import _Run, simulate
from tests.simulation.trace import first_difference

SEEDS = range(7)
SEARCHED = range(5)
"""Seeds that are tried until one finds what a mutation breaks."""
POWER = ("power-cut", "power-cut-at-operation")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_broker_keeps_its_promises(seed: int) -> None:
    outcome = simulate(seed)
    assert outcome.ok, f"make simulate SEED={seed}\n" + "\n".join(outcome.violations)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("acked_s", "expected"),
    [(5.0, ["loose/0 lost offset 3 and kept 4 over a power cut"]), (15.0, [])],
    ids=["stored before the cut", "maybe stored after it"],
)
def test_what_is_kept_behind_a_loss_is_a_hole_if_it_was_stored_before_the_power_went(
    acked_s: float, expected: list[str]
) -> None:
    now_s = 1.0
    history = History(lambda: now_s)
    lost, kept = (history.sending("p", "loose", [None], [value])[0] for value in (b"lost", b"kept"))
    history.answered([lost], [RecordMetadata("loose", 0, 3, 0)])
    now_s = acked_s
    history.answered([kept], [RecordMetadata("loose", 0, 4, 0)])
    history._forgive_lost_tails(
        {("loose", b"kept"): ReadRecord("loose", 0, 4, None, b"kept")}, [10.0], flushes_failed=False
    )
    assert history.violations == expected


def test_a_broker_that_has_ended_already_is_not_stopped() -> None:
    async def main(run: _Run, seconds: float) -> None:
        await run.world.start_broker()
        run.world.crash()
        await run.world.stop_broker()

    with mock.patch.object(_Run, "main", main):
        assert not simulate(0).violations


def test_a_seed_is_one_run() -> None:
    first, second = (simulate(3, seconds=3.0) for _ in range(2))
    assert not first_difference(first.trace, second.trace)
    assert first.trace.digest != simulate(4, seconds=3.0).trace.digest


def not_flushed(file: AppendFile) -> None:
    """Acknowledge what was only written."""


def not_synced(disk: SimDisk, path: Path) -> None:
    """Forget that a new name is not on disk before its directory is synced."""


def not_redone(*_: Any) -> list[Any]:
    """Forget what the journal holds."""
    return []


MUTATIONS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "flush skipped": (AppendFile, "sync", not_flushed),
    "directory not synced": (SimDisk, "sync_directory", not_synced),
    "journal not redone": (engine, "redo_journal", not_redone),
}
"""What is replaced by what."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_engine_is_found_out(name: str) -> None:
    target, attribute, broken = MUTATIONS[name]
    with mock.patch.object(target, attribute, broken):
        assert any(not simulate(seed, disturbances=POWER).ok for seed in SEARCHED), f"{name}: nobody noticed"
