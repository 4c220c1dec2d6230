"""Restoring backups: checked on the way, and all or nothing unless damage is accepted."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from penstock.errors import CorruptMetadata, DataDirectoryInUse, InvalidRequest, NoSpace, NotWritten
from penstock.log.api import Durability, TopicConfig
from penstock.log.embedded.backup import find_backup
from penstock.log.embedded.findings import Kind
from penstock.log.embedded.manifest import MANIFEST_FILE
from penstock.log.embedded.restore import restore
from penstock.log.embedded.verify import verify
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.log.embedded.backing_up import SMALL, flip, take
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import crash_image, everything, files
from tests.log.records import append, read_all, read_values
from tests.log.storage import fill, make_partition


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
    assert other.committed_end == other.cut_since(0) == 15, "offsets that were given out are not given out again"
    assert len(await read_all(other)) == 12, "its last commit cannot be read"


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
    with pytest.raises(InvalidRequest, match="precious is not a directory"):
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
    (restored / "clean-shutdown").touch()
    restore(backup, restored)
    assert await read_values((await open_engine(restored)).partition("orders", 0)) == values


async def test_a_broker_does_not_start_on_a_restore_that_was_interrupted(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    (tmp_path / "restored" / ".restoring" / "topics" / "half").mkdir(parents=True)
    with pytest.raises(InvalidRequest, match="run penstock restore again"):
        await open_engine(tmp_path / "restored")
    assert (tmp_path / "restored" / ".restoring" / "topics" / "half").exists()
    assert not (tmp_path / "restored" / "topics").exists()


async def test_a_restore_that_was_interrupted_after_the_log_was_in_place_is_done(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    values = await fill(await make_partition(engine))
    restored = tmp_path / "restored"
    restore(await take(engine, clock, target), restored)
    (restored / ".restoring").mkdir()
    assert await read_values((await open_engine(restored)).partition("orders", 0)) == values
    assert not (restored / ".restoring").exists()


async def test_a_restore_that_fails_leaves_an_empty_directory_as_it_was(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    backup = await take(engine, clock, target)
    (tmp_path / "empty").mkdir()
    disk = FaultyDisk()
    disk.disk_full()
    for name in ("empty", "missing"):
        with pytest.raises(NoSpace, match=f"{name}: free some space or choose another DATA_DIR"):
            restore(backup, tmp_path / name, disk=disk)
    disk.disk_full_off()
    disk.fail_next_fsync()
    with pytest.raises(NotWritten, match=r"copying to .*empty failed: Input/output error"):
        restore(backup, tmp_path / "empty", disk=disk)
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "missing").exists()
