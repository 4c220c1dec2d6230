from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.background import Background
from penstock.errors import DataDirectoryInUse, NotWritten, PenstockError
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

    disk, background = FailsTwice(), Background()
    with capture_logs() as lines:
        engine = await open_engine(
            disk=disk, options=EngineOptions.model_construct(maintenance_interval_s=0.001), background=background
        )
        await engine.create_topic("orders", TopicConfig(segment_ms=1000, retention_ms=2000))
        partition = engine.partition("orders", 0)
        await append(partition, [b"old"])
        while not background.failing:
            await asyncio.sleep(0)
        assert background.failing == {"log_maintenance": "OSError: [Errno 5] Input/output error"}
        while disk.passes < 5:
            await asyncio.sleep(0)
        clock.advance(10)
        while partition.start_offset == 0:
            await asyncio.sleep(0)
    assert await read_values(partition) == []
    assert background.failing == {}
    assert background.failures == {"log_maintenance": 2}
    events = [line["event"] for line in lines if line.get("task") == "log_maintenance"]
    assert events == ["background_task_failed", "background_task_recovered"]


async def test_an_error_in_one_partition_keeps_no_other_from_its_turn(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    class Unremovable(CountingDisk):
        fails = True

        def rename(self, old: Path, new: Path) -> None:
            if self.fails and new.suffix == ".deleted" and "broken." in str(new):
                raise OSError(5, "Input/output error")
            super().rename(old, new)

    disk = Unremovable()
    engine = await open_engine(disk=disk)
    for name in ("broken", "orders"):
        await engine.create_topic(name, TopicConfig(segment_ms=1000, retention_ms=2000))
        await append(engine.partition(name, 0), [b"old"])
    clock.advance(10)
    with pytest.raises(NotWritten, match="maintenance of topic 'broken' partition 0 failed: Input/output error"):
        await engine.maintain()
    clock.advance(10)
    assert [engine.partition(name, 0).start_offset for name in ("broken", "orders")] == [0, 1]
    disk.fails = False
    await engine.maintain()
    assert engine.partition("broken", 0).start_offset == 1


async def test_a_stop_does_not_wait_for_a_pass_over_all_partitions(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=EngineOptions.model_construct(maintenance_interval_s=0.001))
    await engine.create_topic("orders", TopicConfig())
    async with partition_of(engine).replacing:  # a pass waits here for as long as this is held
        while not partition_of(engine).replacing._waiters:
            await asyncio.sleep(0)
        await engine.close()


async def test_a_topic_can_be_deleted_and_made_again_while_housekeeping_runs(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(options=EngineOptions.model_construct(maintenance_interval_s=0.001))
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
