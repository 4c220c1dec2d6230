"""What goes wrong while files are opened and closed between commits: a failed flush stays final, anything else is not."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import threading
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.log.api import Batch, BatchFor, Durability, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.disk import AppendFile, Disk
from penstock.testing.clock import ManualClock
from penstock.testing.faults import HOLD_S_MAX, FaultyDisk
from penstock.testing.powercut import PowerCutDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import everything, partition_of, path_of, settled
from tests.log.embedded.test_write_files import open_for_writing
from tests.log.records import append, start_atomic_append

NONE = Durability.parse("none")


class NoneLeft(Disk):
    """Has no descriptor for files that exist while `gone`."""

    gone = False

    def open_append(self, path: Path, *, create: bool) -> int:
        if self.gone:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open_append(path, create=create)


async def test_a_flush_that_failed_when_a_file_was_closed_is_final_for_the_rest_of_that_commit(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    data_dir.mkdir()
    disk = PowerCutDisk(data_dir, None)
    engine = await open_engine(disk=disk, options=EngineOptions(write_files_max=2))
    for name in ("kept", "other"):
        await engine.create_topic(name, TopicConfig())
    for name in ("x", "y"):
        await engine.create_topic(name, TopicConfig(durability=NONE))
    kept, other = partition_of(engine, "kept"), partition_of(engine, "other")
    engine._committer._files.files_max = 4  # no checkpoint yet: only the journal holds these
    await start_atomic_append(engine, [BatchFor(kept, Batch([b"acknowledged"])), BatchFor(other, Batch([b"too"]))])
    engine._committer._files.files_max = 2
    disk.fail_next_flush()  # that of `kept`, whose file makes room for x
    results = await asyncio.gather(
        start_append(partition_of(engine, "x"), Batch([b"opens another"])),
        start_append(kept, Batch([b"later"])),
        return_exceptions=True,
    )
    assert kept.failure is not None
    assert isinstance(results[1], PenstockError)
    await engine.maintain()
    await settled(engine)
    # Begins another journal, by which the removal of the one before would be synced.
    await start_atomic_append(
        engine, [BatchFor(other, Batch([b"more"])), BatchFor(partition_of(engine, "x"), Batch([b"more"]))]
    )
    disk.cut()
    await engine.close()
    disk.image(tmp_path / "image", random.Random(1), 1.0)
    recovered = await open_engine(tmp_path / "image")
    assert [record.value for record in (await everything(recovered))["kept", 0]] == [b"acknowledged"]


async def test_an_atomic_append_does_not_stand_behind_what_failed_in_the_same_commit(open_engine: OpenEngine) -> None:
    disk = FaultyDisk()
    engine = await open_engine(disk=disk, options=EngineOptions(write_files_max=1))
    for name in ("lost", "x"):
        await engine.create_topic(name, TopicConfig(durability=NONE))
    lost, other = partition_of(engine, "lost"), partition_of(engine, "x")
    await append(lost, [b"not flushed"])
    disk.fail_next_fsync()
    with pytest.raises(PenstockError):
        await start_atomic_append(engine, [BatchFor(other, Batch([b"a"])), BatchFor(lost, Batch([b"b"]))])
    assert lost.failure is not None
    await append(other, [b"goes on"])


async def test_a_full_disk_keeps_an_idle_partition_from_no_later_write(open_engine: OpenEngine, data_dir: Path) -> None:
    disk = FaultyDisk()
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    await append(partition_of(engine), [b"first"])
    await engine.maintain()
    disk.disk_full()
    await engine.maintain()
    disk.disk_full_off()
    assert partition_of(engine).failure is None
    assert open_for_writing(data_dir) == 0
    await append(partition_of(engine), [b"second"])


async def test_without_a_descriptor_maintenance_fails_no_partition(open_engine: OpenEngine, clock: ManualClock) -> None:
    disk = NoneLeft()
    engine = await open_engine(disk=disk, options=EngineOptions(write_files_max=1))
    for name in ("orders", "x"):
        await engine.create_topic(name, TopicConfig(segment_ms=10_000))
        await append(partition_of(engine, name), [b"first"])
    await engine.maintain()
    disk.gone = True
    await engine.maintain()  # settles
    clock.advance(20_000)
    await maintain_as_far_as_it_goes(engine)  # rolls
    disk.gone = False
    assert partition_of(engine).failure is None
    assert partition_of(engine, "x").failure is None
    await append(partition_of(engine), [b"second"])


async def test_segments_that_cannot_be_rolled_stay_within_the_bound_of_open_files(
    open_engine: OpenEngine, data_dir: Path, clock: ManualClock
) -> None:
    disk = FaultyDisk()
    engine = await open_engine(disk=disk, options=EngineOptions(write_files_max=2))
    for number in range(6):
        await engine.create_topic(f"t{number}", TopicConfig(segment_ms=10_000))
        await append(partition_of(engine, f"t{number}"), [b"first"])
    clock.advance(20_000)
    disk.disk_full()
    await maintain_as_far_as_it_goes(engine)
    disk.disk_full_off()
    assert open_for_writing(data_dir) <= 2


async def test_what_a_checkpoint_could_not_open_is_synced_before_the_journal_goes(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    disk = NoneLeft()
    engine = await open_engine(disk=disk)
    for name in ("a", "b"):
        await engine.create_topic(name, TopicConfig())
    await start_atomic_append(engine, [BatchFor(partition_of(engine, name), Batch([b"both"])) for name in "ab"])
    disk.gone = True
    await engine._committer.run(engine._committer.checkpoints.begin_early)
    await settled(engine)
    disk.gone = False
    assert not list((data_dir / "journal").iterdir()), "their own files are open, and can be synced"
    assert partition_of(engine, "a").failure is None


async def maintain_as_far_as_it_goes(engine: EmbeddedEngine) -> None:
    try:
        await engine.maintain()
    except PenstockError:
        pass


class ToldOnce(PowerCutDisk):
    """Fails the checkpoint's flush of one segment, and lets others continue before the checkpoint hears of it. As on Linux, who opens the
    file after that is not told."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, None)
        self.failing = ""
        self.has_failed = threading.Event()
        self.is_told = threading.Event()

    def fdatasync(self, fd: int) -> None:
        is_beside = threading.current_thread().name.startswith("penstock-checkpoint")
        if not (is_beside and self.failing and self.failing in str(path_of(fd))):
            super().fdatasync(fd)
            return
        self.fail_next_flush()
        try:
            super().fdatasync(fd)
        finally:
            self.has_failed.set()
            self.is_told.wait(HOLD_S_MAX)


@pytest.mark.parametrize("rolled_by", ["append", "maintenance"])
async def test_a_segment_is_not_sealed_before_a_checkpoint_of_it_has_told_how_its_flush_went(
    open_engine: OpenEngine,
    data_dir: Path,
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    rolled_by: str,
) -> None:
    data_dir.mkdir()
    disk = ToldOnce(data_dir)
    engine = await open_engine(disk=disk, options=EngineOptions(write_files_max=2))
    for name in ("kept", "other", "x", "y"):
        await engine.create_topic(name, TopicConfig(segment_ms=10_000))
    kept, other = partition_of(engine, "kept"), partition_of(engine, "other")
    disk.failing = "kept."
    await start_atomic_append(engine, [BatchFor(kept, Batch([b"acknowledged"])), BatchFor(other, Batch([b"too"]))])
    await asyncio.to_thread(disk.has_failed.wait, HOLD_S_MAX)
    for name in ("x", "y"):
        await append(partition_of(engine, name), [b"closes others"])
    clock.advance(20_000)
    checkpoint = engine._committer.checkpoints._running
    assert checkpoint is not None
    waited_for = checkpoint.result

    def told() -> None:
        disk.is_told.set()
        waited_for()

    monkeypatch.setattr(checkpoint, "result", told)
    if rolled_by == "maintenance":
        await maintain_as_far_as_it_goes(engine)
    [later] = await asyncio.gather(start_append(kept, Batch([b"later"])), return_exceptions=True)
    disk.is_told.set()
    await settled(engine)
    disk.cut()
    await engine.close()
    disk.image(tmp_path / "image", random.Random(1), 1.0)
    recovered = await open_engine(tmp_path / "image")
    found = [record.value for record in (await everything(recovered))["kept", 0]]
    assert found == [b"acknowledged"]
    assert isinstance(later, PenstockError)


async def test_a_commit_to_more_partitions_than_files_may_be_open_closes_none_that_is_not_synced(
    open_engine: OpenEngine, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir.mkdir()
    disk = PowerCutDisk(data_dir, None)
    engine = await open_engine(disk=disk, options=EngineOptions(write_files_max=2))
    for name in "abcd":
        await engine.create_topic(name, TopicConfig())
    closed_unsynced: list[Path] = []
    released = AppendFile.release

    def noted(file: AppendFile) -> None:
        if file.fd >= 0 and disk._file(file.fd).dirty:
            closed_unsynced.append(file.path)
        released(file)

    monkeypatch.setattr(AppendFile, "release", noted)
    await start_atomic_append(engine, [BatchFor(partition_of(engine, name), Batch([b"all"])) for name in "abcd"])
    assert not closed_unsynced


class LeftForOthers(Disk):
    """Has descriptors for this many more openings of segments that exist, as if connections took those that are closed."""

    left: int | None = None

    def open_append(self, path: Path, *, create: bool) -> int:
        if self.left is not None and path.suffix == ".log" and not create:
            if not self.left:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.left -= 1
        return super().open_append(path, create=create)


async def test_a_file_that_cannot_be_opened_again_for_the_write_fails_no_partition(open_engine: OpenEngine) -> None:
    disk = LeftForOthers()
    engine = await open_engine(disk=disk, options=EngineOptions(write_files_max=1))
    for name in "ab":
        await engine.create_topic(name, TopicConfig(durability=NONE))
    parts = [partition_of(engine, name) for name in "ab"]
    disk.left = 2  # to lay out one after the other, which closes the first
    results = await asyncio.gather(*(start_append(part, Batch([b"first"])) for part in parts), return_exceptions=True)
    assert all("no file descriptor left" in str(result) for result in results)
    disk.left = None
    for part in parts:
        assert part.failure is None
        await append(part, [b"second"])
    values = {place: [record.value for record in records] for place, records in (await everything(engine)).items()}
    assert values == {("a", 0): [b"second"], ("b", 0): [b"second"]}
