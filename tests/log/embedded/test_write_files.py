"""How many segment files are open for writing, and that closing one loses nothing."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from penstock.errors import NotWritten
from penstock.log.api import Batch, BatchFor, Durability, TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.disk import Disk
from penstock.testing.faults import FaultyDisk
from tests.descriptors import open_files
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import CountingDisk, crash_image, everything, segment_files, settled
from tests.log.records import append, start_atomic_append

FILES_MAX = 4
TOPICS = 12
FEW = EngineOptions(write_files_max=FILES_MAX)


class NoDescriptors(Disk):
    """Has room for this many files that are open for writing."""

    def __init__(self, directory: Path, files_max: int) -> None:
        super().__init__()
        self._directory = directory
        self.files_max = files_max

    def open_append(self, path: Path, *, create: bool) -> int:
        if path.suffix == ".log" and not create and open_for_writing(self._directory) >= self.files_max:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open_append(path, create=create)


def open_for_writing(directory: Path) -> int:
    """How many segments this process has open for writing below a directory."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            flags = int(Path(f"/proc/self/fdinfo/{link.name}").read_text().split("flags:")[1].split()[0], 8)
            target = str(link.readlink())
        except OSError:
            continue  # that of the listing itself
        found += target.startswith(str(directory)) and target.endswith(".log") and bool(flags & os.O_RDWR)
    return found


async def make_topics(engine: EmbeddedEngine, durability: str = "fsync") -> None:
    for number in range(TOPICS):
        await engine.create_topic(f"t{number}", TopicConfig(durability=Durability.parse(durability)))


async def append_to_each(engine: EmbeddedEngine, value: bytes, *, at_once: bool) -> None:
    appends = [append(engine.partition(f"t{number}", 0), [value]) for number in range(TOPICS)]
    if at_once:
        await asyncio.gather(*appends)
    else:
        for each in appends:
            await each


@pytest.mark.parametrize("durability", ["fsync", "none", "interval:5"])
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "in one commit"])
async def test_no_more_files_are_open_than_may_be_and_every_record_is_there(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, *, durability: str, at_once: bool
) -> None:
    engine = await open_engine(options=FEW)
    await make_topics(engine, durability)
    assert open_for_writing(data_dir) == 0, "nothing was written yet"
    for value in (b"first", b"second", b"third"):
        await append_to_each(engine, value, at_once=at_once)
        await settled(engine)
        assert open_for_writing(data_dir) <= FILES_MAX
    expected = {(f"t{number}", 0): [b"first", b"second", b"third"] for number in range(TOPICS)}
    image = crash_image(data_dir, tmp_path / "image")
    assert await values(await open_engine(image)) == expected
    await engine.close()
    assert open_files(data_dir).total() == 0
    assert await values(await open_engine(options=FEW)) == expected
    assert open_for_writing(data_dir) == 0, "a start opens none"


async def test_a_file_that_is_not_synced_is_synced_before_it_is_closed(open_engine: OpenEngine) -> None:
    disk = FaultyDisk()
    engine = await open_engine(disk=disk, options=EngineOptions(write_files_max=1))
    await make_topics(engine, "none")
    await append(engine.partition("t0", 0), [b"a"])
    disk.fail_next_fsync()
    await append(engine.partition("t1", 0), [b"b"])
    with pytest.raises(NotWritten, match="flushing topic 't0' partition 0 to disk failed"):
        await append(engine.partition("t0", 0), [b"c"])
    await append(engine.partition("t1", 0), [b"d"])


async def test_what_only_the_journal_holds_of_a_failed_partition_stays_there(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    engine = await open_engine(disk=disk, options=FEW)
    await make_topics(engine)
    parts = [engine.partition(f"t{number}", 0) for number in range(2)]
    await start_atomic_append(engine, [BatchFor(part, Batch([b"both"])) for part in parts])
    for number in range(2, FILES_MAX):
        await append(engine.partition(f"t{number}", 0), [b"opens another"])
    disk.fail_next_fsync()
    await append(engine.partition(f"t{FILES_MAX}", 0), [b"closes t0"])
    assert engine.partition("t0", 0).failure is not None
    for number in range(2, TOPICS):
        await append(engine.partition(f"t{number}", 0), [b"closes more"])
    await engine.close()
    recovered = await open_engine(crash_image(data_dir, tmp_path / "image"))
    assert (await values(recovered))["t0", 0] == [b"both"]


async def test_a_partition_that_nobody_writes_to_closes_its_file_and_needs_no_scan(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await make_topics(engine)
    await append_to_each(engine, b"first", at_once=True)
    await engine.maintain()
    await settled(engine)
    assert open_for_writing(data_dir) == TOPICS, "written to since the last pass"
    await append(engine.partition("t0", 0), [b"second"])
    await engine.maintain()
    assert open_for_writing(data_dir) == 1, "the one that was written to"
    [path] = segment_files(data_dir, "t1")
    assert path.stat().st_size < 1000, "what was reserved is given back"
    await settled(engine)
    image = crash_image(data_dir, tmp_path / "image")
    disk = CountingDisk()
    recovered = await open_engine(image, disk=disk)
    assert disk.flushes["log"] == 1, "of the one that was written to"
    expected = {(f"t{number}", 0): [b"first"] for number in range(TOPICS)} | {("t0", 0): [b"first", b"second"]}
    assert await values(recovered) == expected
    await append_to_each(engine, b"later", at_once=True)
    assert (await values(engine))["t5", 0] == [b"first", b"later"]


async def test_without_a_descriptor_others_are_closed_and_without_any_the_append_is_refused(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    disk = NoDescriptors(data_dir, 2)
    engine = await open_engine(disk=disk)
    await make_topics(engine)
    await append_to_each(engine, b"first", at_once=False)
    await append_to_each(engine, b"second", at_once=True)
    disk.files_max = 0
    with pytest.raises(NotWritten, match="no file descriptor left"):
        await append(engine.partition("t0", 0), [b"third"])
    disk.files_max = 2
    await append(engine.partition("t0", 0), [b"fourth"])
    assert (await values(engine))["t0", 0] == [b"first", b"second", b"fourth"]


async def values(engine: EmbeddedEngine) -> dict[tuple[str, int], list[bytes | None]]:
    return {place: [record.value for record in records] for place, records in (await everything(engine)).items()}
