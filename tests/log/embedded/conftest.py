from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from penstock.background import Background
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.disk import Disk
from penstock.testing.clock import ManualClock
from tests.log.embedded.faults import SuffixFaults
from tests.log.embedded.storage import CountingDisk

OpenEngine = Callable[..., Awaitable[EmbeddedEngine]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def faults() -> SuffixFaults:
    return SuffixFaults()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A directory of backups, which is not there yet."""
    return tmp_path / "backups"


@pytest.fixture
async def open_engine(data_dir: Path, clock: ManualClock) -> AsyncIterator[OpenEngine]:
    """Opens engines, on the test's data directory unless told otherwise, and closes what the test leaves open."""
    opened: list[EmbeddedEngine] = []

    async def open_one(
        path: Path = data_dir,
        *,
        disk: Disk | None = None,
        options: EngineOptions | None = None,
        background: Background | None = None,
    ) -> EmbeddedEngine:
        engine = EmbeddedEngine(path, clock=clock, disk=disk, options=options, background=background)
        await engine.start()
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        await engine.close()  # closing twice is harmless
