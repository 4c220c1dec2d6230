"""The engine contract on the engine that uses every freedom it leaves, with several seeds."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.errors import NotSupported, OutcomeUnknown
from penstock.testing.clock import ManualClock
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog
from tests.log.contract import EngineContract
from tests.log.records import append, read_values
from tests.log.storage import StorageOf, make_partition


class Cluster(StorageOf[SharedEngine]):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self._log = SharedLog()
        self._seed = seed
        self._clock = ManualClock()

    async def start(self) -> SharedEngine:
        return await self.join(self._seed)

    async def join(self, seed: int) -> SharedEngine:
        """Open another engine beside it."""
        engine = SharedEngine(self._log, clock=self._clock, seed=seed)
        await engine.start()
        return engine

    async def pass_time(self) -> None:
        self._clock.advance(1)


@pytest.mark.parametrize("seed", range(3))
class TestSharedEngine(EngineContract):
    @pytest.fixture
    async def storage(self, seed: int) -> AsyncIterator[Cluster]:
        cluster = Cluster(seed)
        yield cluster
        await cluster.close()

    async def test_what_one_engine_acknowledged_another_reads_once_it_follows(self, storage: Cluster) -> None:
        one, other = await storage.open(), await storage.join(100)
        partition = await make_partition(one)
        while "orders" not in other.topics():
            await one.pause()
        seen = other.partition("orders", 0)
        for number in range(20):
            appended = await append(partition, [b"%d" % number])
            await seen.follow()
            assert seen.committed_end > appended.base_offset
        assert await read_values(seen) == [b"%d" % number for number in range(20)]
        await other.close()

    async def test_a_topic_that_another_engine_deleted_is_told(self, storage: Cluster) -> None:
        one, other = await storage.open(), await storage.join(100)
        told: list[str] = []
        other.watch_topics(told.append)
        await make_partition(one)
        await one.delete_topic("orders")
        await make_partition(one, "last")
        while "last" not in other.topics():
            await one.pause()
        assert "orders" not in other.topics()
        assert told[-1] == "last"
        await other.close()

    @pytest.mark.parametrize("stored", [True, False])
    async def test_an_unknown_outcome_is_settled_without_a_restart(self, storage: Cluster, stored: bool) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        engine.lose_answer(stored=stored)
        with pytest.raises(OutcomeUnknown) as raised:
            await append(partition, [b"x"])
        assert raised.value.settle is not None
        assert await raised.value.settle() is stored
        assert await read_values(partition) == [b"x"] * stored
        assert partition.failure is None
        await append(partition, [b"y"])

    async def test_a_log_in_memory_is_not_in_files(self, storage: Cluster) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        assert engine.files is None
        with pytest.raises(NotSupported):
            await partition.extents(0, 1, 1, 1)
