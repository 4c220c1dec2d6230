"""Backups: copied once, linked afterwards, checked on the way back."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from penstock.errors import CorruptMetadata, DataDirectoryInUse, EntryNotFound, InvalidRequest, NotWritten
from penstock.log.api import Durability, TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.backup import Backup, back_up, backups, find_backup, read_snapshot, restore
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.findings import Kind
from penstock.log.embedded.manifest import MANIFEST_FILE
from penstock.log.embedded.verify import verify
from penstock.testing.clock import ManualClock
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import crash_image, everything, files
from tests.log.records import append, read_values
from tests.log.storage import fill, make_partition

SMALL = TopicConfig(segment_bytes=400)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backups"


async def take(engine: EmbeddedEngine, clock: ManualClock, target: Path, *, full: bool = False) -> Backup:
    clock.advance(1)
    snapshot = await engine.snapshot()
    return back_up(Path(snapshot.directory), snapshot.id, target, full=full)


def inodes(directory: Path) -> dict[str, int]:
    return {path.relative_to(directory).as_posix(): path.stat().st_ino for path in directory.rglob("*.log")}


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


async def test_a_restored_backup_starts_as_after_a_clean_stop_and_takes_records(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=SMALL), 12)
    before = await everything(engine)
    backup = await take(engine, clock, target)
    restored = tmp_path / "restored"
    steps: list[int] = []
    assert restore(backup, restored, on_copied=steps.append).findings == []
    assert sum(steps) == backup.manifest.size_bytes
    assert {path.name for path in restored.iterdir()} == {"LOCK", "clean-shutdown", "topics"}
    again = await open_engine(restored)
    assert await everything(again) == before
    assert (again.stats.corrupt_blocks, again.stats.torn_tails) == (0, 0)
    assert (await append(again.partition("orders", 0), [b"more"])).base_offset == 36
    await again.close()
    assert verify(restored).findings == []


async def test_a_second_backup_copies_what_is_new_or_has_grown_and_links_the_rest(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, "quiet", SMALL), 12)
    await fill(await make_partition(engine, "busy", SMALL), 12)
    first = await take(engine, clock, target)
    await fill(engine.partition("busy", 0), 5)
    second = await take(engine, clock, target)
    before, after = inodes(first.path), inodes(second.path)
    shared = {path for path in after if before.get(path) == after[path]}
    grown = max(path for path in before if "busy" in path)
    assert shared == before.keys() - {grown}
    new = [
        file.bytes for file in second.manifest.files if file.path not in {each.path for each in first.manifest.files}
    ]
    assert 0 < second.copied_bytes < second.manifest.size_bytes / 2
    assert second.copied_bytes >= sum(new)
    assert (await take(engine, clock, target)).copied_bytes == 0
    assert verify(second.path).findings == []


async def test_a_full_backup_links_nothing(open_engine: OpenEngine, clock: ManualClock, target: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    first = await take(engine, clock, target)
    second = await take(engine, clock, target, full=True)
    assert second.copied_bytes == second.manifest.size_bytes
    assert not set(inodes(first.path).values()) & set(inodes(second.path).values())


async def test_any_backup_can_be_removed_and_the_others_stay_whole(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    partition = await make_partition(engine, config=SMALL)
    taken = []
    for _ in range(3):
        await fill(partition)
        taken.append(await take(engine, clock, target))
    shutil.rmtree(taken[0].path)
    assert [each.id for each in backups(target)] == [each.id for each in taken[1:]]
    restore(find_backup(target, taken[1].id), tmp_path / "restored")
    restored = await open_engine(tmp_path / "restored")
    assert restored.partition("orders", 0).committed_end == 30
    await fill(partition)
    assert (await take(engine, clock, target)).copied_bytes < taken[-1].manifest.size_bytes


async def test_a_file_that_is_gone_from_the_backup_before_is_copied_again(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    first = await take(engine, clock, target)
    next(first.path.rglob("*.log")).unlink()
    second = await take(engine, clock, target)
    assert second.copied_bytes == next(second.path.rglob("*.log")).stat().st_size
    assert verify(second.path).findings == []


async def test_rewritten_segments_are_copied(open_engine: OpenEngine, clock: ManualClock, target: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=SMALL), 12)
    await take(engine, clock, target)
    await engine.maintain()
    second = await take(engine, clock, target)
    assert any("-" in Path(path).name for path in inodes(second.path))
    assert verify(second.path).findings == []


async def test_a_flipped_bit_in_any_file_of_a_backup_is_found_and_nothing_is_restored(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=SMALL), 6)
    backup = await take(engine, clock, target)
    restored = tmp_path / "restored"
    for name in files(backup.path):
        path = backup.path / name
        flip(path, path.stat().st_size // 2)
        if name == MANIFEST_FILE:
            with pytest.raises(CorruptMetadata, match=r"manifest\.json is damaged"):
                find_backup(target, backup.id)
        else:
            assert name in {finding.path for finding in restore(backup, restored).findings if finding.kind is Kind.FILE}
            assert name in {finding.path for finding in verify(backup.path).findings}
        assert {path.name for path in tmp_path.iterdir()} == {"data", "backups"}, "something is left"
        flip(path, path.stat().st_size // 2)
    assert restore(backup, restored).findings == []


async def test_missing_and_cut_files_of_a_backup_are_found(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=SMALL), 6)
    backup = await take(engine, clock, target)
    first, second, *_ = sorted(backup.path.rglob("*.log"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    texts = {finding.text for finding in restore(backup, tmp_path / "restored").findings}
    assert "the file is missing" in texts
    assert any("bytes" in text for text in texts)
    assert not (tmp_path / "restored").exists()


async def test_damage_is_restored_when_that_is_accepted_and_the_rest_can_be_read(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    values = await fill(await make_partition(engine), 6)
    await fill(await make_partition(engine, "other"))
    backup = await take(engine, clock, target)
    [path] = backup.path.glob("topics/other.*/0/*.log")
    flip(path, path.stat().st_size - 1)
    report = restore(backup, tmp_path / "restored", accept_damage=True)
    assert report.damage
    restored = await open_engine(tmp_path / "restored")
    assert await read_values(restored.partition("orders", 0)) == values
    other = restored.partition("other", 0)
    assert other.committed_end == other.cut_since(0) == 12, "its last commit cannot be read"


async def test_damage_in_the_log_itself_is_found_on_restore(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path, data_dir: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    [path] = data_dir.glob("topics/*/0/*.log")
    end = len(path.read_bytes().rstrip(b"\0"))
    flip(path, end - 1)  # the last commit: in a data directory, that may be a torn tail
    backup = await take(engine, clock, target)
    for report in (verify(backup.path), restore(backup, tmp_path / "restored")):
        [found] = report.findings
        assert (found.kind, found.position) == (Kind.SEGMENT, end // 5 * 4)
    assert not (tmp_path / "restored").exists()


async def test_every_topic_begins_an_epoch_where_the_backup_ends(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    partition = await make_partition(engine)
    await fill(partition)
    backup = await take(engine, clock, target)
    epoch = partition.epoch
    await fill(partition)  # and somebody reads it
    restore(backup, tmp_path / "restored")
    restored = await open_engine(tmp_path / "restored")
    assert restored.partition("orders", 0).epoch > epoch
    assert restored.partition("orders", 0).cut_since(epoch) == 15


async def test_a_reader_of_one_restored_log_is_told_of_the_cut_in_the_next(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    backup = await take(engine, clock, target)
    restore(backup, tmp_path / "first", clock=clock)
    first = (await open_engine(tmp_path / "first")).partition("orders", 0)
    await fill(first)  # and somebody reads it, and stores the epoch
    clock.advance(1)
    restore(backup, tmp_path / "second", clock=clock)
    second = (await open_engine(tmp_path / "second")).partition("orders", 0)
    assert second.epoch > first.epoch
    assert second.cut_since(first.epoch) == 15


async def test_a_reader_of_a_log_that_crashed_after_the_backup_is_told_of_the_cut(
    open_engine: OpenEngine, clock: ManualClock, target: Path, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=TopicConfig(durability=Durability("none"))))
    backup = await take(engine, clock, target)
    crashed = (await open_engine(crash_image(data_dir, tmp_path / "crashed"))).partition("orders", 0)
    await fill(crashed)
    clock.advance(1)
    restore(backup, tmp_path / "restored", clock=clock)
    restored = (await open_engine(tmp_path / "restored")).partition("orders", 0)
    assert restored.cut_since(crashed.epoch) == 15


async def test_a_directory_with_something_in_it_is_not_restored_to(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await make_partition(engine)
    backup = await take(engine, clock, target)
    used, empty = tmp_path / "used", tmp_path / "empty"
    used.mkdir()
    (used / "precious").write_text("x")
    with pytest.raises(InvalidRequest, match="not empty"):
        restore(backup, used)
    with pytest.raises(InvalidRequest, match="not empty"):
        restore(backup, used / "precious")
    (empty / "lost+found").mkdir(parents=True)
    (tmp_path / "link").symlink_to(empty)
    restore(backup, tmp_path / "link")
    assert (empty / "topics").exists()
    with pytest.raises(InvalidRequest, match="not empty"):
        restore(backup, empty)
    engine = await open_engine(tmp_path / "running")
    with pytest.raises(InvalidRequest, match="not empty"):
        restore(backup, tmp_path / "running")


async def test_a_restore_that_was_interrupted_can_be_repeated_and_one_at_a_time_runs(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    values = await fill(await make_partition(engine))
    backup = await take(engine, clock, target)
    restored = tmp_path / "restored"
    (restored / ".restoring" / "topics" / "half").mkdir(parents=True)
    (restored / "LOCK").touch()
    fd = os.open(restored / "LOCK", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(DataDirectoryInUse, match="another restore"):
        restore(backup, restored)
    assert (restored / ".restoring" / "topics" / "half").exists()
    os.close(fd)
    restore(backup, restored)
    assert await read_values((await open_engine(restored)).partition("orders", 0)) == values


async def test_a_restore_that_fails_leaves_an_empty_directory_as_it_was(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    backup = await take(engine, clock, target)
    (tmp_path / "empty").mkdir()

    def fail(self: Disk, fd: int, data: bytes, position: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Disk, "write_all", fail)
    for name in ("empty", "missing"):
        with pytest.raises(OSError, match="No space"):
            restore(backup, tmp_path / name)
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "missing").exists()


async def test_a_directory_that_is_no_directory_of_backups_is_refused(
    open_engine: OpenEngine, clock: ManualClock, tmp_path: Path, data_dir: Path
) -> None:
    engine = await open_engine()
    with pytest.raises(InvalidRequest, match="no directory of backups"):
        await take(engine, clock, data_dir)
    with pytest.raises(InvalidRequest, match="no directory of backups"):
        backups(tmp_path)
    await take(engine, clock, tmp_path / "there")
    with pytest.raises(EntryNotFound, match="no backup then in"):
        find_backup(tmp_path / "there", "then")


async def test_only_one_backup_at_a_time_is_written_to_a_directory(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await take(engine, clock, target)
    fd = os.open(target / ".penstock-backups", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(NotWritten, match="another backup is being written"):
            await take(engine, clock, target)
    finally:
        os.close(fd)


async def test_what_an_interrupted_backup_left_is_no_backup_and_is_removed(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await take(engine, clock, target)
    (target / "20991231T000000.000Z.partial").mkdir()
    assert len(backups(target)) == 1
    await take(engine, clock, target)
    assert not list(target.glob("*.partial"))


async def test_a_backup_that_fails_leaves_nothing_behind(
    open_engine: OpenEngine, clock: ManualClock, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))

    def fail(self: Disk, fd: int, data: bytes, position: int) -> None:
        raise OSError(28, "No space left on device")

    snapshot = await engine.snapshot()
    monkeypatch.setattr(Disk, "write_all", fail)
    with pytest.raises(OSError, match="No space"):
        back_up(Path(snapshot.directory), snapshot.id, target)
    assert [path.name for path in target.iterdir()] == [".penstock-backups"]


async def test_a_clock_that_goes_back_makes_no_backup_that_looks_older(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await take(engine, clock, target)
    clock.jump(-3600)
    with pytest.raises(NotWritten, match="check the clock"):
        await take(engine, clock, target)


async def test_a_snapshot_that_is_not_on_this_machine_is_refused(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = await open_engine()
    snapshot = await engine.snapshot()
    for directory, snapshot_id in ((tmp_path / "elsewhere", snapshot.id), (Path(snapshot.directory), "another")):
        with pytest.raises(InvalidRequest, match="on the machine of the broker"):
            read_snapshot(directory, snapshot_id)
