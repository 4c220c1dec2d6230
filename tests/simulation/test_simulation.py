"""The whole broker under simulation: it keeps its promises, one seed is one run, and a broken engine is found out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from penstock.log.embedded import engine
from penstock.log.embedded.disk import AppendFile
from penstock.log.embedded.recovery import PartitionRecovery
from tests.simulation.run import simulate
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
def test_a_seed_is_one_run() -> None:
    first, second = (simulate(3, seconds=3.0) for _ in range(2))
    assert not first_difference(first.trace, second.trace)
    assert first.trace.digest != simulate(4, seconds=3.0).trace.digest


def not_flushed(file: AppendFile) -> None:
    """Acknowledge what was only written."""


def not_redone(*_: Any) -> list[Any]:
    """Forget what the journal holds."""
    return []


def not_written_again(recovery: PartitionRecovery, fd: int, position: int, end: int) -> None:
    """Trust what can be read after a failed flush."""


MUTATIONS: dict[str, tuple[Any, str, Callable[..., Any], tuple[str, ...]]] = {
    "flush skipped": (AppendFile, "sync", not_flushed, POWER),
    "journal not redone": (engine, "redo_journal", not_redone, POWER),
    "failed flush trusted": (PartitionRecovery, "_write_again", not_written_again, ("flush-error", "power-cut")),
}
"""What is replaced by what, and the disturbances under which it matters."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_engine_is_found_out(name: str) -> None:
    target, attribute, broken, disturbances = MUTATIONS[name]
    with mock.patch.object(target, attribute, broken):
        assert any(not simulate(seed, disturbances=disturbances).ok for seed in SEARCHED), f"{name}: nobody noticed"
