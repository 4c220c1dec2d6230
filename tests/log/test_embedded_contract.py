from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.log.api import Batch
from penstock.log.embedded import EmbeddedEngine
from penstock.testing.clock import ManualClock
from tests.log.contract import EngineContract
from tests.log.contract_extents import ExtentContract
from tests.log.records import append, read_all
from tests.log.storage import StorageOf, make_partition


class Directory(StorageOf[EmbeddedEngine]):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._clock = ManualClock()

    async def start(self) -> EmbeddedEngine:
        engine = EmbeddedEngine(self._path, clock=self._clock)
        await engine.start()
        return engine

    async def pass_time(self) -> None:
        self._clock.advance(1)


class TestEmbeddedEngine(EngineContract, ExtentContract):
    @pytest.fixture
    async def storage(self, tmp_path: Path) -> AsyncIterator[Directory]:
        directory = Directory(tmp_path / "data")
        yield directory
        await directory.close()

    async def test_offsets_are_dense_from_zero(self, storage: Directory) -> None:
        partition = await make_partition(await storage.open())
        assert [(await append(partition, [b"x"] * count)).base_offset for count in (1, 2, 1)] == [0, 1, 3]
        assert partition.committed_end == 4
        assert [record.offset for record in await read_all(partition)] == [0, 1, 2, 3]

    async def test_appends_of_one_turn_are_answered_in_their_order(self, storage: Directory) -> None:
        partition = await make_partition(await storage.open())
        answered: list[int] = []
        for number in range(50):
            partition.append(Batch([b"x"]), lambda _, number=number: answered.append(number))  # type: ignore[misc]
        await append(partition, [b"last"])
        assert answered == list(range(50))
