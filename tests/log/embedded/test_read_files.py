"""How many files are open for readers, and that none is closed under one."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.read_files import READ_FILES_MAX, ReadFiles
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, partition_of, segment_files
from tests.log.records import append, read_values

SEGMENTS = 20
VALUES = [b"%03d" % number * 300 for number in range(SEGMENTS + 1)]
FROM_DISK = EngineOptions(tail_bytes_max=0)


class FewFiles(CountingDisk):
    """Keeps four files open, and notes how many segments were when one was opened."""

    def __init__(self) -> None:
        super().__init__()
        self.read_files = ReadFiles(4)
        self.open_most = 0

    def open_read(self, path: Path) -> int:
        fd = super().open_read(path)
        self.open_most = max(self.open_most, len(open_segments(path.parent)))
        return fd


def open_segments(directory: Path) -> list[str]:
    """The segment files below a directory that this process has open, removed ones too."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue  # that of the listing itself
        if target.startswith(str(directory)) and (".log" in target or ".deleted" in target):
            found.append(target)
    return found


async def filled(open_engine: OpenEngine, disk: CountingDisk, **config: int) -> EmbeddedEngine:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", TopicConfig(segment_bytes=1000, **config))  # type: ignore[arg-type]
    for value in VALUES:
        await append(partition_of(engine), [value])
    await engine.close()
    return await open_engine(disk=disk, options=FROM_DISK)


async def test_no_more_files_are_open_than_allowed(open_engine: OpenEngine, data_dir: Path) -> None:
    disk = FewFiles()
    partition = partition_of(await filled(open_engine, disk))
    assert len(partition.segments) >= SEGMENTS
    for _ in range(2):
        assert await read_values(partition) == VALUES
    readers, writers = 4, 1
    assert len(open_segments(data_dir)) <= readers + writers
    assert disk.open_most <= readers + writers + 1, "the one that is being opened"
    assert ReadFiles()._files_max == READ_FILES_MAX


async def test_files_that_nobody_reads_are_closed(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await filled(open_engine, FewFiles())
    partition = partition_of(engine)
    assert await read_values(partition) == VALUES
    await engine.maintain()
    assert len(open_segments(data_dir)) > 1, "read since the last time"
    await partition.read(0, 1)
    await engine.maintain()
    assert len(open_segments(data_dir)) == 1, "the one that was read"
    await engine.maintain()
    assert len(open_segments(data_dir)) == 0
    assert await read_values(partition) == VALUES


async def test_a_file_is_not_closed_under_its_reader(open_engine: OpenEngine, data_dir: Path) -> None:
    partition = partition_of(await filled(open_engine, FewFiles()))
    first = partition.segments[0]
    path, blocks = str(first.path), first.blocks_from(0, first.end)
    _, block = next(blocks)
    assert block.values() == [VALUES[0]]
    file = first.open()
    for segment in partition.segments[1:]:
        segment.open()
    assert first.read_file is None, "no longer kept"
    assert os.fstat(file.fd).st_size == first.end
    del file
    assert path in open_segments(data_dir), "a read is under way"
    assert list(blocks) == []
    del blocks
    assert path not in open_segments(data_dir)


async def test_many_readers_at_once_read_what_is_there(open_engine: OpenEngine) -> None:
    disk = FewFiles()
    disk.read_files = ReadFiles(1)
    partition = partition_of(await filled(open_engine, disk))

    def read(start: int) -> list[bytes | None]:
        order = [*partition.segments[start:], *partition.segments[:start]]
        return [
            value
            for _ in range(5)
            for each in order
            for _, block in each.blocks_from(0, each.end)
            for value in block.values()
        ]

    with ThreadPoolExecutor(8) as threads:
        for start, values in enumerate(threads.map(read, range(8))):
            assert values == [*VALUES[start:], *VALUES[:start]] * 5


@pytest.mark.parametrize("was_read", [False, True])
async def test_files_that_retention_removes_are_closed(
    open_engine: OpenEngine, data_dir: Path, *, was_read: bool
) -> None:
    disk = FewFiles()
    engine = await filled(open_engine, disk, retention_bytes=1000)
    partition = partition_of(engine)
    if was_read:
        assert await read_values(partition) == VALUES
    disk.open_most = 0
    await engine.maintain()
    assert len(segment_files(data_dir)) <= 2
    assert [name for name in open_segments(data_dir) if "deleted" in name] == []
    assert disk.open_most <= 7, "one after the other"


async def test_a_segment_that_lost_its_name_stays_open_for_who_holds_it(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await filled(open_engine, FewFiles())
    partition = partition_of(engine)
    first = partition.segments[0]
    await partition.delete_before(partition.committed_end)
    await engine.maintain()
    await engine.maintain()
    [(_, block)] = first.blocks_from(0, first.end)
    assert block.values() == [VALUES[0]]
    assert len(open_segments(data_dir)) == 1
    del first, block
    assert len(open_segments(data_dir)) == 0
