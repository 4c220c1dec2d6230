"""The engine that tests of the broker and of sessions run on.

That is the embedded one, unless `--engine` names another: `shared` is `penstock.testing.shared_engine`, with offsets as dense as those of
the embedded engine, because many tests have them as constants; `skipping` is the same with all its freedom. What needs the embedded engine
(its files, its disk and the faults of that) is marked `embedded`, what has offsets as constants and cannot go by what it was answered
`dense`; they are left out where they cannot pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NoReturn

import pytest

from penstock.clock import Clock
from penstock.log.api import Engine
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.faults import FaultyDisk
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog

ENGINES: Final = ("embedded", "shared", "skipping")


class Choice:
    """What the command line says (`--engine`, `--engine-seed`)."""

    engine = "embedded"
    seed = 0


_logs: dict[Path, SharedLog] = {}
"""By the directory where the embedded engine would have its own; of the test that runs."""


class NoDisk(FaultyDisk):
    """What stands for the disk of an engine without one: a test that comes to it is to be marked."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError(f"this engine has no disk, and the test needs one for {name}: mark it `embedded`")


def make_engine(
    directory: Path, *, clock: Clock, disk: FaultyDisk | None = None, options: EngineOptions | None = None
) -> Engine:
    """Return an engine that is not started yet. One on the same directory finds what another left there."""
    if Choice.engine == "embedded":
        return EmbeddedEngine(directory, clock=clock, disk=disk, options=options)
    if disk is not None:
        disk.__class__ = NoDisk
    log = _logs.setdefault(directory, SharedLog())
    return SharedEngine(log, clock=clock, seed=Choice.seed, skips=Choice.engine == "skipping")


def embedded(engine: Engine) -> EmbeddedEngine:
    """Return an engine that has files; a test that wants them is marked `embedded`."""
    assert isinstance(engine, EmbeddedEngine), "this engine has no files, and the test needs them: mark it `embedded`"
    return engine


def forget_logs() -> None:
    """Let each test begin with directories of its own."""
    _logs.clear()


def can_run(item: pytest.Item) -> bool:
    """Whether a test has marks that keep it from the chosen engine."""
    if Choice.engine != "embedded" and item.get_closest_marker("embedded"):
        return False
    return not (Choice.engine == "skipping" and item.get_closest_marker("dense"))
