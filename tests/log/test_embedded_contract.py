from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.log.embedded import EmbeddedEngine
from penstock.testing.clock import ManualClock
from tests.log.contract import EngineContract
from tests.log.storage import Storage


class Directory(Storage):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._clock = ManualClock()
        self._engine: EmbeddedEngine | None = None

    async def open(self) -> EmbeddedEngine:
        engine = EmbeddedEngine(self._path, clock=self._clock)
        await engine.start()
        self._engine = engine
        return engine

    async def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.close()

    async def pass_time(self) -> None:
        self._clock.advance(1)


class TestEmbeddedEngine(EngineContract):
    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Directory]:
        directory = Directory(tmp_path / "data")
        yield directory
        await directory.close()
