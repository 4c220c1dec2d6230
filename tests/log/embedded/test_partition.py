from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import NotWritten
from penstock.log.api import TopicConfig
from penstock.log.embedded import EngineOptions
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.segment import Segment
from penstock.testing.clock import ManualClock
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import ReadCounter, partition_of, segment_files
from tests.log.records import append, read_all, read_values, records_of


async def test_a_log_read_a_few_records_at_a_time_is_read_from_disk_once(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for _ in range(4):
        await append(partition_of(engine), [b"v" * 1000] * 200)
    await engine.close()
    disk = ReadCounter()
    partition = partition_of(await open_engine(disk=disk))
    size_bytes, disk.read_bytes = partition.size_bytes, 0
    values: list[bytes | None] = []
    while len(values) < partition.committed_end:
        blocks = await partition.read(len(values), 1)
        values += [record.value for record in records_of(blocks[0], blocks[0].index_of(len(values)))[:10]]
    assert values == [b"v" * 1000] * 800
    assert disk.read_bytes < 3 * size_bytes


async def test_a_read_leaves_a_large_block_that_it_has_no_room_for_on_the_disk(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for count in (100, 900):
        await append(partition_of(engine), [b"v" * 1000] * count)
    await engine.close()
    disk = ReadCounter()
    partition = partition_of(await open_engine(disk=disk))
    disk.read_bytes = 0
    [block] = await partition.read(0, 256 << 10)
    assert (block.base_offset, block.next_offset) == (0, 100)
    assert disk.read_bytes < 500_000
    [block] = await partition.read(100, 256 << 10)
    assert (block.base_offset, block.next_offset) == (100, 1000)
    assert [block.base_offset for block in await partition.read(0, 2 << 20)] == [0, 100]


async def test_what_was_read_from_disk_continues_with_what_was_not(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    for number in range(6):
        await append(partition_of(engine), [b"%d" % number * 1000])
    await engine.close()
    partition = partition_of(await open_engine())
    assert [block.base_offset for block in await partition.read(1, 1)] == [1]
    assert [block.base_offset for block in await partition.read(1, 3500)] == [1, 2, 3]
    assert [block.base_offset for block in await partition.read(1)] == [1, 2, 3, 4, 5]
    assert [block.base_offset for block in partition.read_cached(2) or ()] == [2, 3, 4, 5]


class OnlyBisected(list[Segment]):
    """Segments that are looked up one by one: nobody may walk all of them, or copy them."""

    def __iter__(self) -> Iterator[Segment]:
        raise AssertionError("all segments were walked")

    def __getitem__(self, at: Any) -> Any:
        assert not isinstance(at, slice), "segments were copied"
        return super().__getitem__(at)


async def test_the_size_and_a_read_do_not_walk_all_segments(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=EngineOptions(tail_bytes_max=0))
    await engine.create_topic("orders", TopicConfig(segment_bytes=2000))
    partition = partition_of(engine)
    for number in range(12):
        await append(partition, [b"%02d" % number * 400])
    size_bytes = sum(segment.end for segment in partition.segments)
    assert len(partition.segments) > 4
    partition.segments = OnlyBisected(partition.segments)
    assert partition.size_bytes == size_bytes
    assert [block.base_offset for block in await partition.read(7, 1)] == [7]
    assert await partition.offset_at(0) == 0
    partition.segments = list.__getitem__(partition.segments, slice(None))  # stopping may walk them


async def test_the_size_follows_rolls_rewrites_retention_and_a_restart(open_engine: OpenEngine, data_dir: Path) -> None:
    options = EngineOptions(merge_block_bytes=1 << 20)
    engine = await open_engine(options=options)
    await engine.create_topic("orders", TopicConfig(segment_bytes=8000, retention_bytes=20_000))
    partition = partition_of(engine)

    def sealed_bytes() -> int:
        return sum(path.stat().st_size for path in segment_files(data_dir)[:-1])

    def active_bytes() -> int:
        return partition.segments[-1].end

    for number in range(100):
        await append(partition, [b"%d" % number * 100])
    assert len(partition.segments) > 2
    assert partition.size_bytes == sealed_bytes() + active_bytes()
    before_bytes, before = partition.size_bytes, partition.segments
    await engine.maintain()
    assert partition.segments[0] not in before, "rewritten"
    assert partition.size_bytes == sealed_bytes() + active_bytes() < before_bytes
    for number in range(100):
        await append(partition, [b"%d" % number * 100])
    await engine.maintain()
    assert partition.start_offset > 0, "retention has removed some"
    assert partition.size_bytes == sealed_bytes() + active_bytes()
    await partition.delete_before(partition.committed_end)
    assert partition.size_bytes == active_bytes() == partition.segments[0].end
    held, size_bytes = await read_values(partition), partition.size_bytes
    await engine.close()
    partition = partition_of(await open_engine(options=options))
    assert partition.size_bytes == size_bytes
    assert await read_values(partition) == held


class RemovalFails(Disk):
    """The next operation of this name on the way to removing a segment fails."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self._operation = operation
        self.armed = False

    def _fail(self, operation: str) -> None:
        if self.armed and operation == self._operation:
            self.armed = False
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def rename(self, old: Path, new: Path) -> None:
        if new.suffix == ".deleted":
            self._fail("rename")
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        if any(path.glob("*.deleted")):
            self._fail("sync")
        super().sync_directory(path)

    def unlink(self, path: Path) -> None:
        if path.suffix == ".deleted":
            self._fail("unlink")
        super().unlink(path)


@pytest.mark.parametrize("operation", ["rename", "sync", "unlink"])
async def test_a_segment_that_cannot_be_removed_stays_the_oldest_one(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path, operation: str
) -> None:
    disk = RemovalFails(operation)
    engine = await open_engine(disk=disk, options=EngineOptions(tail_bytes_max=0))
    await engine.create_topic("orders", TopicConfig(segment_bytes=400, retention_ms=10_000))
    partition = partition_of(engine)
    for _ in range(12):
        await append(partition, [b"v" * 100])
    before = await read_all(partition)
    clock.advance(10.5)
    disk.armed = True
    with pytest.raises(NotWritten, match=os.strerror(errno.EIO)):
        await engine.maintain()
    assert not disk.armed
    assert partition.start_offset == 0
    assert await read_all(partition) == before
    await engine.maintain()
    assert partition.start_offset == partition.segments[-1].base_offset > 0
    assert segment_files(data_dir) == [partition.segments[-1].path]
    left = await read_all(partition)
    await engine.close()
    engine = await open_engine()
    assert await read_all(partition_of(engine)) == left
