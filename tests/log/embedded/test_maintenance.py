from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import CorruptBlock, NotWritten, OffsetOutOfRange
from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.clock import ManualClock
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import (
    CountingDisk,
    crash_image,
    everything,
    partition_directory,
    partition_of,
    segment_files,
)
from tests.log.records import append, read_all, read_from, read_values

FROM_DISK = EngineOptions(tail_bytes_max=0)
HOUR_S = 3600


async def fill(engine: EmbeddedEngine, config: TopicConfig, appends: int = 20, value_bytes: int = 400) -> None:
    if "orders" not in engine.topics():
        await engine.create_topic("orders", config)
    for number in range(appends):
        await append(engine.partition("orders", 0), [b"%d" % number + bytes(value_bytes)])


# -- rolling ------------------------------------------------------------------------------------------------------------


async def test_segments_are_rolled_by_size(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine(options=FROM_DISK)
    await fill(engine, TopicConfig(segment_bytes=2000))
    records = await read_all(engine.partition("orders", 0))
    assert [record.offset for record in records] == list(range(20))
    sizes = [path.stat().st_size for path in segment_files(data_dir)]
    assert len(sizes) >= 4
    assert all(size <= 2200 for size in sizes[:-1]), "sealed ones have given back what they had reserved"
    for path in segment_files(data_dir)[:-1]:
        assert path.with_suffix(".index").exists()


async def test_segments_are_rolled_by_age_by_a_write_or_without_one(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(segment_ms=HOUR_S * 1000))
    partition = partition_of(engine)
    await append(partition, [b"a"])
    clock.advance(HOUR_S - 1)
    await engine.maintain()
    await append(partition, [b"b"])
    assert len(partition.segments) == 1
    clock.advance(1)
    await append(partition, [b"c"])
    assert len(partition.segments) == 2
    clock.advance(HOUR_S)
    await engine.maintain()
    assert len(partition.segments) == 3
    clock.advance(HOUR_S)
    await engine.maintain()
    assert len(partition.segments) == 3, "an empty one has no age"
    assert await read_values(partition) == [b"a", b"b", b"c"]


async def test_a_failed_flush_of_a_roll_by_age_is_told_once_and_final(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    class FailsOnce(CountingDisk):
        fails = False

        def fdatasync(self, fd: int) -> None:
            if self.fails:
                self.fails = False
                raise OSError(errno.EIO, "Input/output error")
            super().fdatasync(fd)

    disk = FailsOnce()
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig(segment_ms=1000))
    partition = engine.partition("orders", 0)
    await append(partition, [b"old"])
    clock.advance(2)
    disk.fails = True
    with capture_logs() as lines:
        await engine.maintain()
        await engine.maintain()
    assert not disk.fails
    assert [line["event"] for line in lines] == ["partition_failed"], "maintenance itself has not failed"
    with pytest.raises(NotWritten, match="the flush failed"):
        await append(partition, [b"new"])
    assert await read_values(partition) == [b"old"]


# -- retention ----------------------------------------------------------------------------------------------------------


async def test_old_segments_are_dropped_by_time_and_only_those(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", TopicConfig(retention_ms=10 * HOUR_S * 1000, segment_ms=HOUR_S * 1000))
    partition = engine.partition("orders", 0)
    for number in range(20):
        await append(partition, [b"%d" % number])
        clock.advance(HOUR_S)
    await engine.maintain()
    assert partition.start_offset == 10
    assert await read_values(partition) == [b"%d" % number for number in range(10, 20)]
    with pytest.raises(OffsetOutOfRange):
        await partition.read(9)
    assert len(segment_files(data_dir)) == 11
    await engine.close()
    engine = await open_engine()
    assert engine.partition("orders", 0).start_offset == 10
    clock.advance(100 * HOUR_S)
    await engine.maintain()
    partition = engine.partition("orders", 0)
    assert (partition.start_offset, partition.committed_end) == (20, 20), (
        "the last one is rolled for its age, then goes too"
    )
    assert (await append(partition, [b"next"])).base_offset == 20


async def test_a_segment_goes_when_its_last_record_is_old_not_its_first(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", TopicConfig(retention_ms=10 * HOUR_S * 1000, segment_bytes=600))
    partition = engine.partition("orders", 0)
    await append(partition, [b"old" + bytes(200)])
    clock.advance(5 * HOUR_S)
    await append(partition, [b"young" + bytes(200)])
    await append(partition, [b"of the next segment" + bytes(300)])
    assert len(partition_of(engine).segments) == 2
    clock.advance(6 * HOUR_S)
    await engine.maintain()
    assert partition.start_offset == 0
    clock.advance(5 * HOUR_S)
    await engine.maintain()
    assert partition.start_offset == 3


async def test_old_segments_are_dropped_by_size_and_no_more_than_needed(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await fill(engine, TopicConfig(retention_bytes=5000, segment_bytes=1000), appends=30)
    before = await read_all(engine.partition("orders", 0))
    await engine.maintain()
    partition = partition_of(engine)
    assert partition.size_bytes <= 5000
    assert partition.size_bytes > 3800, "one segment less would have been enough"
    assert await read_all(partition) == before[partition.start_offset :]
    assert {path.suffix for path in partition_directory(data_dir).iterdir()} <= {".log", ".index"}
    await engine.maintain()
    assert await read_all(partition) == before[partition.start_offset :]


async def test_the_segment_being_written_is_never_dropped(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await fill(engine, TopicConfig(retention_bytes=10))
    await engine.maintain()
    assert engine.partition("orders", 0).start_offset == 0
    assert len(await read_all(engine.partition("orders", 0))) == 20


async def test_without_bounds_everything_stays(open_engine: OpenEngine, clock: ManualClock) -> None:
    engine = await open_engine(options=FROM_DISK)
    await fill(engine, TopicConfig(segment_bytes=1000))
    clock.advance(10_000 * HOUR_S)
    await engine.maintain()
    assert len(await read_all(engine.partition("orders", 0))) == 20


async def test_a_reader_continues_over_segments_that_are_dropped_under_it(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=FROM_DISK)
    await fill(engine, TopicConfig(segment_bytes=1000))
    partition = partition_of(engine)
    view = partition._view()
    await partition.delete_before(15)
    assert partition.start_offset > 0
    values = [value for block in partition._read_view(view, 0, 1 << 30) for value in block.values()]
    assert len(values) == 20


async def test_a_crash_while_segments_are_dropped_leaves_no_hole(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    class Images(CountingDisk):
        def __init__(self) -> None:
            super().__init__()
            self.taken = 0

        def _image(self) -> None:
            crash_image(data_dir, tmp_path / f"image-{self.taken}")
            self.taken += 1

        def rename(self, old: Path, new: Path) -> None:
            super().rename(old, new)
            self._image()

        def unlink(self, path: Path) -> None:
            super().unlink(path)
            self._image()

    engine = await open_engine()
    await fill(engine, TopicConfig(segment_bytes=1000))
    records = await read_all(engine.partition("orders", 0))
    await engine.close()
    engine = await open_engine(disk=(disk := Images()))
    disk.taken = 0
    await engine.partition("orders", 0).delete_before(9)
    assert disk.taken >= 9
    starts = []
    for number in range(disk.taken):
        recovered = await open_engine(tmp_path / f"image-{number}")
        partition = recovered.partition("orders", 0)
        starts.append(partition.start_offset)
        assert await read_all(partition) == records[partition.start_offset :]
        await recovered.close()
    assert starts == sorted(starts)


async def test_deleting_waits_for_a_rewrite_of_the_same_segments(open_engine: OpenEngine, data_dir: Path) -> None:
    """Else the rewrite would put a segment back that was deleted meanwhile."""
    deleting: list[asyncio.Task[int]] = []

    class DeletesDuring(CountingDisk):
        def rename(self, old: Path, new: Path) -> None:
            if new.suffix == ".swap" and not deleting:
                started = asyncio.run_coroutine_threadsafe(begin_deleting(), loop)
                started.result(10)
            super().rename(old, new)

    async def begin_deleting() -> None:
        deleting.append(asyncio.ensure_future(engine.partition("orders", 0).delete_before(1 << 60)))
        for _ in range(10):
            await asyncio.sleep(0)

    loop = asyncio.get_running_loop()
    engine = await open_engine(disk=DeletesDuring())
    await fill(engine, TopicConfig(segment_bytes=1000))
    await engine.maintain()
    start = await deleting[0]
    assert start > 0
    records = await read_all(engine.partition("orders", 0))
    assert [record.offset for record in records] == list(range(start, 20))
    await engine.close()
    engine = await open_engine()
    assert await read_all(engine.partition("orders", 0)) == records
    assert len(segment_files(data_dir)) == 1


# -- merging ------------------------------------------------------------------------------------------------------------


async def test_small_blocks_of_sealed_segments_are_merged_and_nothing_else_changes(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", TopicConfig(segment_bytes=5000))
    partition = partition_of(engine)
    for number in range(200):
        clock.advance(0.001)
        key = [b"k%d" % number] if number % 3 else None
        await append(partition, [None if number % 5 == 0 else b"%d" % number], key, expiries=[number << 40])
    before = await read_all(partition)
    blocks_before = sum(segment.index.blocks for segment in partition.segments)
    bytes_before = partition.size_bytes
    await engine.maintain()
    assert await read_all(partition) == before
    assert sum(segment.index.blocks for segment in partition.segments) < blocks_before / 5
    assert partition.size_bytes < bytes_before
    assert all(segment.index.blocks == 1 for segment in partition.segments[:-1])
    for offset in range(0, 200, 17):
        assert await read_from(partition, offset) == before[offset:]
        assert await partition.offset_at(before[offset].timestamp_ms) == offset
    await engine.close()
    engine = await open_engine()
    assert await everything(engine) == {("orders", 0): before}
    segments = [path.stat().st_ino for path in segment_files(data_dir)]
    await engine.maintain()
    assert [path.stat().st_ino for path in segment_files(data_dir)] == segments, "what is merged is left alone"


async def test_blocks_that_are_small_although_they_were_merged_are_not_merged_again_after_a_restart(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    options = EngineOptions(block_bytes_target=4096, tail_bytes_max=0)
    engine = await open_engine(options=options)
    await engine.create_topic("orders", TopicConfig(segment_bytes=5000, compression="zstd"))
    partition = partition_of(engine)
    while len(partition.segments) < 3:
        await append(partition, [bytes(1000)])
    await engine.maintain()
    assert all(segment.index.blocks > 1 for segment in partition.segments[:-1]), "they do not fit into one block"
    await engine.close()
    engine = await open_engine(options=options)
    merged = [path.stat().st_ino for path in segment_files(data_dir)]
    await engine.maintain()
    assert [path.stat().st_ino for path in segment_files(data_dir)] == merged


async def test_large_blocks_are_left_alone(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine(options=EngineOptions(merge_block_bytes=300))
    await fill(engine, TopicConfig(segment_bytes=2000))
    files = [path.stat().st_ino for path in segment_files(data_dir)]
    await engine.maintain()
    assert [path.stat().st_ino for path in segment_files(data_dir)] == files


async def test_merged_blocks_are_compressed_where_the_topic_says_so(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=FROM_DISK)
    await fill(engine, TopicConfig(segment_bytes=5000, compression="zstd"), appends=60)
    before = await read_all(engine.partition("orders", 0))
    await engine.maintain()
    partition = partition_of(engine)
    assert await read_all(partition) == before
    [block, *_] = await partition.read(0)
    assert block.codec == 1
    assert block.count > 5


async def test_a_damaged_segment_is_left_as_it_is_and_the_others_are_merged(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await fill(engine, TopicConfig(segment_bytes=2000))
    path = segment_files(data_dir)[1]
    damaged = bytearray(path.read_bytes())
    damaged[700] ^= 1
    path.write_bytes(damaged)
    with capture_logs() as lines:
        for _ in range(3):
            await engine.maintain()
    assert len([line for line in lines if line["log_level"] == "error"]) == 1, "told once, not in every pass"
    assert path.read_bytes() == damaged
    assert not list(partition_directory(data_dir).glob("*.cleaned"))
    partition = partition_of(engine)
    merged = [segment for segment in partition.segments[:-1] if segment.path != path]
    assert merged
    assert all(segment.index.blocks == 1 for segment in merged)
    with pytest.raises(CorruptBlock):
        await partition.read(int(path.stem) + 1, 1)


async def test_a_full_disk_stops_no_merge_for_good_and_keeps_no_space(open_engine: OpenEngine, data_dir: Path) -> None:
    class FullForDrafts(CountingDisk):
        full = True
        written = 0

        def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
            if self.full and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".cleaned":
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().pwrite(fd, data, position)

    disk = FullForDrafts()
    engine = await open_engine(disk=disk, options=FROM_DISK)
    await fill(engine, TopicConfig(segment_bytes=2000))
    before = await read_all(engine.partition("orders", 0))
    await engine.maintain()
    assert await read_all(engine.partition("orders", 0)) == before
    assert not list(partition_directory(data_dir).glob("*.cleaned"))
    disk.full = False
    await engine.maintain()
    assert await read_all(engine.partition("orders", 0)) == before
    assert all(segment.index.blocks == 1 for segment in partition_of(engine).segments[:-1])


# -- time ---------------------------------------------------------------------------------------------------------------


async def test_timestamps_never_go_back_however_the_clock_jumps(open_engine: OpenEngine, clock: ManualClock) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", TopicConfig(segment_bytes=500, segment_ms=HOUR_S * 1000))
    partition = engine.partition("orders", 0)
    for number, jump_s in enumerate([0, -HOUR_S, 5, HOUR_S, 3, -3 * HOUR_S, 0, 1, 10 * HOUR_S, -1, -2 * HOUR_S] * 3):
        clock.jump(jump_s)
        clock.advance(1)
        await append(partition, [b"%d" % number + bytes(40)])
        if number == 15:
            await engine.maintain()
        if number == 20:
            await engine.close()
            engine = await open_engine(options=FROM_DISK)
            partition = engine.partition("orders", 0)
    records = await read_all(partition)
    assert [record.offset for record in records] == list(range(33))
    stamps = [record.timestamp_ms for record in records]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) > 5
    for stamp in {stamp + step for stamp in stamps for step in (-1, 0, 1)}:
        expected = next((record.offset for record in records if record.timestamp_ms >= stamp), 33)
        assert await partition.offset_at(stamp) == expected


async def test_a_clock_set_back_drops_nothing_early(open_engine: OpenEngine, clock: ManualClock) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", TopicConfig(retention_ms=10 * HOUR_S * 1000, segment_bytes=100))
    for _ in range(10):
        await append(engine.partition("orders", 0), [bytes(60)])
    clock.jump(-100 * HOUR_S)
    await engine.maintain()
    assert len(await read_all(engine.partition("orders", 0))) == 10


async def test_a_time_is_found_in_a_log_of_many_segments(open_engine: OpenEngine, clock: ManualClock) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", TopicConfig(segment_bytes=300))
    partition = engine.partition("orders", 0)
    stamps = []
    for number in range(50):
        clock.advance(0.01 * (number % 3))
        stamps.append((await append(partition, [bytes(50)])).timestamp_ms)
    for stamp in {stamp + step for stamp in stamps for step in (-1, 0, 1)}:
        expected = next((offset for offset, at in enumerate(stamps) if at >= stamp), 50)
        assert await partition.offset_at(stamp) == expected
