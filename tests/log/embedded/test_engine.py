from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import DataDirectoryInUse, PenstockError
from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.clock import ManualClock
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, everything, partition_of
from tests.log.records import append, read_values


async def test_a_data_directory_serves_one_engine_at_a_time(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for _ in range(2):
        with pytest.raises(DataDirectoryInUse, match=str(data_dir)):
            await open_engine()
    await append(engine.partition("orders", 0), [b"unharmed"])
    await engine.close()
    engine = await open_engine()
    assert await read_values(engine.partition("orders", 0)) == [b"unharmed"]


async def test_closing_twice_or_without_having_started_is_harmless(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await engine.close()
    await engine.close()
    await EmbeddedEngine(data_dir).close()


async def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path, open_engine: OpenEngine) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PenstockError, match=str(tmp_path / "file")):
        await open_engine(tmp_path / "file")


async def test_housekeeping_runs_by_itself_and_survives_a_pass_that_fails(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    class FailsTwice(CountingDisk):
        passes = 0

        def free_bytes(self, path: Path) -> int:
            self.passes += 1
            if self.passes in (2, 3):  # the first is the start's
                raise OSError(5, "Input/output error")
            return super().free_bytes(path)

    disk = FailsTwice()
    with capture_logs() as lines:
        engine = await open_engine(disk=disk, options=EngineOptions(maintenance_interval_s=0.001))
        await engine.create_topic("orders", TopicConfig(segment_ms=1000, retention_ms=2000))
        partition = engine.partition("orders", 0)
        await append(partition, [b"old"])
        while disk.passes < 5:
            await asyncio.sleep(0)
        clock.advance(10)
        while partition.start_offset == 0:
            await asyncio.sleep(0)
    assert await read_values(partition) == []
    assert [line["event"] for line in lines].count("maintenance pass failed") == 2


async def test_a_topic_can_be_deleted_and_made_again_while_housekeeping_runs(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(options=EngineOptions(maintenance_interval_s=0.001))
    for number in range(20):
        await engine.create_topic("orders", TopicConfig(segment_ms=1, segment_bytes=300))
        partition = partition_of(engine)
        for _ in range(5):
            clock.advance(0.01)
            await append(partition, [b"%d" % number + bytes(100)])
        maintaining = asyncio.ensure_future(engine.maintain())
        await asyncio.sleep(0)
        await engine.delete_topic("orders")
        await maintaining
    assert await everything(engine) == {}


async def test_the_id_in_a_file_name_is_the_id_of_the_topic(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    info = await engine.create_topic("orders", TopicConfig())
    assert [path.name for path in (data_dir / "topics").iterdir()] == [f"orders.{info.id}"]
