"""Altering and truncating topics: what is on disk, and what happens if the disk fails."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.errors import MissingSegment, NoSpace, NotWritten, OutcomeUnknown, PenstockError
from penstock.log.api import Appended, Batch, Durability, TopicConfig
from penstock.log.embedded import EngineOptions
from penstock.log.embedded.restore import restore
from penstock.log.embedded.topicfiles import decode_topic
from penstock.log.embedded.verify import verify
from penstock.testing.clock import ManualClock
from tests.log.embedded.backing_up import take
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, crash_image, cut_log, partition_directory, segment_files
from tests.log.records import append, read_values

SMALL = TopicConfig(segment_bytes=1000)


class FailingDisk(CountingDisk):
    """Fails what is done to a topic's metadata, once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = ""
        self.error = errno.ENOSPC

    def rename(self, old: Path, new: Path) -> None:
        if self.failing == "rename" and new.name == "topic.json":
            raise OSError(self.error, os.strerror(self.error))
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        metadata = path / "topic.json"
        if (
            self.failing == "sync"
            and metadata.exists()
            and decode_topic(metadata.read_bytes()).info.config.partitions > 1
        ):
            raise OSError(self.error, os.strerror(self.error))
        super().sync_directory(path)


class WaitingDisk(CountingDisk):
    """Replaces a topic's metadata only once the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.changed_when = threading.Event()
        self.changed_when.set()

    def rename(self, old: Path, new: Path) -> None:
        if new.name == "topic.json":
            assert self.changed_when.wait(10)
        super().rename(old, new)


@pytest.fixture
def failing() -> FailingDisk:
    return FailingDisk()


@pytest.fixture
def waiting() -> WaitingDisk:
    return WaitingDisk()


async def turns() -> None:
    """Let what is to be done on the loop be done, up to where it waits for a thread."""
    for _ in range(10):
        await asyncio.sleep(0)


# -- settings ------------------------------------------------------------------------------------------------------------


async def test_a_topic_that_begins_to_wait_for_flushes_is_flushed_first(
    open_engine: OpenEngine, disk: CountingDisk
) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig(durability=Durability("none")))
    await append(engine.partition("orders", 0), [b"unflushed"])
    assert disk.flushes["log"] == 0
    await engine.alter_topic("orders", TopicConfig())
    assert disk.flushes["log"] == 1
    await append(engine.partition("orders", 0), [b"flushed"])
    assert disk.flushes["log"] == 2


async def test_a_commit_behind_the_change_to_fsync_is_flushed_before_it_is_answered(
    open_engine: OpenEngine, waiting: WaitingDisk
) -> None:
    engine = await open_engine(disk=waiting)
    await engine.create_topic("orders", TopicConfig(durability=Durability("none")))
    partition = engine.partition("orders", 0)
    busy, waiting.changed_when = threading.Event(), threading.Event()
    flushes: list[int] = []

    def answered(_: Appended | PenstockError) -> None:
        flushes.append(waiting.flushes["log"])
        waiting.changed_when.set()

    held = asyncio.create_task(engine._committer.run(lambda: busy.wait(10)))
    altering = asyncio.create_task(engine.alter_topic("orders", TopicConfig()))
    await turns()
    partition.append(Batch([b"behind the change"]), answered)
    await turns()
    busy.set()
    await asyncio.gather(held, altering)
    assert flushes == [1]


async def test_a_topic_that_no_longer_waits_for_flushes_is_not_flushed(
    open_engine: OpenEngine, disk: CountingDisk
) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("orders", 0), [b"flushed"])
    await engine.alter_topic("orders", TopicConfig(durability=Durability("none")))
    before = disk.flushes["log"]
    await append(engine.partition("orders", 0), [b"unflushed"])
    assert disk.flushes["log"] == before


async def test_a_shorter_retention_is_applied_by_the_next_pass_of_maintenance(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", SMALL)
    partition = engine.partition("orders", 0)
    for _ in range(5):
        await append(partition, [b"v" * 600])
    clock.advance(60)
    await engine.maintain()
    assert partition.start_offset == 0
    await engine.alter_topic("orders", replace(SMALL, retention_ms=1000))
    await append(partition, [b"young" * 120])
    await engine.maintain()
    assert await read_values(partition) == [b"young" * 120]


async def test_what_retention_deleted_stays_on_record_when_it_is_switched_off(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", replace(SMALL, retention_bytes=700))
    partition = engine.partition("orders", 0)
    for _ in range(5):
        await append(partition, [b"v" * 600])
    await engine.maintain()
    start = partition.start_offset
    assert start > 0
    await engine.alter_topic("orders", SMALL)
    assert (partition.start_offset, partition.retained) == (start, True)
    await engine.close()
    engine = await open_engine()
    partition = engine.partition("orders", 0)
    assert (partition.start_offset, partition.retained) == (start, True)


async def test_a_change_that_finds_no_space_is_not_made(open_engine: OpenEngine, failing: FailingDisk) -> None:
    engine = await open_engine(disk=failing)
    before = await engine.create_topic("orders", TopicConfig(durability=Durability("none")))
    partition = engine.partition("orders", 0)
    await append(partition, [b"a", b"b"])
    failing.failing = "rename"
    with pytest.raises(NoSpace, match="altering topic 'orders'"):
        await engine.alter_topic("orders", TopicConfig(partitions=2))
    with pytest.raises(NoSpace, match="truncating topic 'orders'"):
        await engine.truncate_topic("orders", {0: 1})
    assert engine.topics()["orders"] == before
    assert partition.start_offset == 0
    failing.failing = ""
    flushes = failing.flushes["log"]
    await append(partition, [b"c"])
    assert failing.flushes["log"] == flushes, "its durability is what it was"
    await engine.close()
    engine = await open_engine()
    assert engine.topics()["orders"] == before
    assert await read_values(engine.partition("orders", 0)) == [b"a", b"b", b"c"]
    await engine.alter_topic("orders", TopicConfig(partitions=2))
    await append(engine.partition("orders", 1), [b"d"])
    assert await read_values(engine.partition("orders", 1)) == [b"d"]


async def test_a_change_that_may_be_on_disk_is_reported_as_unknown(
    open_engine: OpenEngine, failing: FailingDisk
) -> None:
    engine = await open_engine(disk=failing)
    before = await engine.create_topic("orders", TopicConfig())
    failing.failing, failing.error = "sync", errno.EIO
    with pytest.raises(OutcomeUnknown, match="whether topic 'orders' was changed is unknown"):
        await engine.alter_topic("orders", TopicConfig(partitions=2))
    failing.failing = ""
    assert engine.topics()["orders"] == before
    await engine.close()
    engine = await open_engine()
    assert engine.topics()["orders"].config.partitions == 2


async def test_a_failed_partition_takes_no_change(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    await append(partition, [b"a"])
    partition.fail("the disk is gone")
    with pytest.raises(NotWritten, match="the disk is gone"):
        await engine.alter_topic("orders", ALTERED)
    with pytest.raises(NotWritten, match="the disk is gone"):
        await engine.truncate_topic("orders", {0: 1})


ALTERED = TopicConfig(compression="zstd")


async def test_the_copy_of_an_interrupted_change_is_written_again_by_the_next_start(
    open_engine: OpenEngine, data_dir: Path, failing: FailingDisk
) -> None:
    engine = await open_engine(disk=failing)
    await engine.create_topic("orders", TopicConfig())
    failing.failing = "rename"
    with pytest.raises(NoSpace):
        await engine.alter_topic("orders", ALTERED)
    failing.failing = ""
    await engine.close()
    topic = partition_directory(data_dir).parent
    assert (topic / "topic.json").read_bytes() != (topic / "topic.json.copy").read_bytes()
    engine = await open_engine()
    assert engine.topics()["orders"].config == TopicConfig()
    assert (topic / "topic.json").read_bytes() == (topic / "topic.json.copy").read_bytes()


async def test_a_directory_that_an_interrupted_change_left_is_no_damage(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    await engine.close()
    (partition_directory(data_dir).parent / "1").mkdir()
    report = verify(data_dir)
    assert report.damage == 0
    assert [finding.text for finding in report.findings if finding.path.endswith("/1")] == [
        "adding partitions was interrupted; the directory is used once they are added"
    ]


# -- truncation ----------------------------------------------------------------------------------------------------------


async def test_segments_before_the_start_are_removed(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", SMALL)
    partition = engine.partition("orders", 0)
    for _ in range(6):
        await append(partition, [b"v" * 600])
    assert len(segment_files(data_dir)) == 6
    await engine.truncate_topic("orders", {0: 4})
    assert [int(path.stem) for path in segment_files(data_dir)] == [4, 5]
    assert (
        partition.size_bytes
        == sum(path.stat().st_size for path in segment_files(data_dir)[:1]) + partition.segments[-1].end
    )


async def test_a_topic_truncated_to_its_end_takes_no_space(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", SMALL)
    partition = engine.partition("orders", 0)
    for _ in range(6):
        await append(partition, [b"v" * 600])
    await engine.truncate_topic("orders", {0: 6})
    assert partition.size_bytes == 0
    assert [int(path.stem) for path in segment_files(data_dir)] == [6]
    assert (await append(partition, [b"next"])).base_offset == 6


async def test_a_truncation_in_the_middle_of_a_segment_outlives_rewrites(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(options=EngineOptions.model_construct(block_bytes_target=4000))
    await engine.create_topic("orders", TopicConfig(segment_bytes=3000))
    partition = engine.partition("orders", 0)
    for number in range(20):
        await append(partition, [b"%d" % number * 300])
    await engine.truncate_topic("orders", {0: 3})
    clock.advance(60)
    await engine.maintain()
    assert partition.start_offset == 3
    assert await read_values(partition) == [b"%d" % number * 300 for number in range(3, 20)]


async def test_a_truncated_topic_does_not_end_before_its_start_after_a_power_cut(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, disk: CountingDisk
) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig(durability=Durability("none")))
    await append(engine.partition("orders", 0), [b"a"])
    await append(engine.partition("orders", 0), [b"b"])
    assert disk.flushes["log"] == 0
    await engine.truncate_topic("orders", {0: 1})
    assert disk.flushes["log"] == 1, "what the start offset promises is flushed"
    image = crash_image(data_dir, tmp_path / "image")
    await engine.close()
    engine = await open_engine(image)
    assert await read_values(engine.partition("orders", 0)) == [b"b"]


async def test_a_log_that_ends_before_its_start_has_lost_records(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for value in (b"a", b"b", b"c"):
        await append(engine.partition("orders", 0), [value])
    await engine.truncate_topic("orders", {0: 2})
    image = crash_image(data_dir, tmp_path / "image")
    cut_log(image, "orders", 1)
    assert verify(image).damage == 1
    with pytest.raises(MissingSegment, match="ends at offset 1, and ended at 2 or later"):
        await open_engine(image)


async def test_a_directory_without_start_offsets_is_read_as_never_truncated(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(partitions=2))
    metadata = partition_directory(data_dir).parent / "topic.json"
    assert b'"starts"' not in metadata.read_bytes()
    await append(engine.partition("orders", 1), [b"a"])
    await engine.truncate_topic("orders", {1: 1})
    assert decode_topic(metadata.read_bytes()).starts == (0, 1)


async def test_a_check_and_a_snapshot_know_the_start_of_a_truncated_partition(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("orders", 0), [b"a", b"b", b"c"])
    await engine.truncate_topic("orders", {0: 2})
    snapshot = await engine.snapshot()
    report = verify(Path(snapshot.directory))
    assert report.findings == []


async def test_a_restored_backup_keeps_start_offsets_and_added_partitions(
    open_engine: OpenEngine, tmp_path: Path, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("orders", 0), [b"a", b"b", b"c"])
    await engine.truncate_topic("orders", {0: 2})
    await engine.alter_topic("orders", TopicConfig(partitions=2))
    await append(engine.partition("orders", 1), [b"d"])
    backup = await take(engine, clock, target)
    assert restore(backup, tmp_path / "restored").findings == []
    restored = await open_engine(tmp_path / "restored")
    assert [await read_values(restored.partition("orders", index)) for index in range(2)] == [[b"c"], [b"d"]]
    assert restored.partition("orders", 0).start_offset == 2
    assert restored.partition("orders", 1).cut_since(0) == 1
