"""Backups: copied once, linked afterwards."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from penstock.errors import CorruptMetadata, EntryNotFound, InvalidRequest, NoSpace, NotWritten
from penstock.log.api import Durability, TopicConfig
from penstock.log.embedded.backup import UnreadableBackup, back_up, backups, find_backup, list_backups, read_snapshot
from penstock.log.embedded.restore import restore
from penstock.log.embedded.verify import verify
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.log.embedded.backing_up import SMALL, take
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import crash_image
from tests.log.records import append
from tests.log.storage import fill, make_partition


def inodes(directory: Path) -> dict[str, int]:
    return {path.relative_to(directory).as_posix(): path.stat().st_ino for path in directory.rglob("*.log")}


async def test_a_second_backup_copies_what_is_new_or_has_grown_and_links_the_rest(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, "quiet", SMALL), 12)
    await fill(await make_partition(engine, "busy", SMALL), 10)
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


async def test_a_directory_that_is_no_directory_of_backups_is_refused(
    open_engine: OpenEngine, clock: ManualClock, tmp_path: Path
) -> None:
    engine = await open_engine()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "one").touch()
    with pytest.raises(InvalidRequest, match="not empty and not a directory of backups"):
        await take(engine, clock, tmp_path / "photos")
    with pytest.raises(InvalidRequest, match="one is not a directory"):
        await take(engine, clock, tmp_path / "photos" / "one")
    with pytest.raises(InvalidRequest, match="not a directory of backups"):
        backups(tmp_path)
    with pytest.raises(InvalidRequest, match="gone is not a directory"):
        backups(tmp_path / "gone")
    taken = await take(engine, clock, tmp_path / "there")
    with pytest.raises(
        InvalidRequest, match=f"use the directory that it is in, {tmp_path / 'there'}, with --at {taken.id}"
    ):
        find_backup(taken.path, None)
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


async def test_a_backup_that_fails_leaves_nothing_behind(open_engine: OpenEngine, target: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    snapshot = await engine.snapshot()
    disk = FaultyDisk()
    disk.disk_full()
    with pytest.raises(NoSpace, match=f"disk of {target}: free some space, such as that of old backups"):
        back_up(Path(snapshot.directory), snapshot.id, target, disk=disk)
    disk.disk_full_off()
    disk.fail_next_write()
    with pytest.raises(NotWritten, match=f"copying to {target} failed: Input/output error"):
        back_up(Path(snapshot.directory), snapshot.id, target, disk=disk)
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


async def test_other_names_in_the_directory_are_left_alone(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    (target / "lost+found").mkdir(parents=True)
    first = await take(engine, clock, target)
    (target / "latest").symlink_to(first.path)
    shutil.copytree(first.path, target / "before-upgrade")
    (target / "zzz").mkdir()
    (target / "photos.partial").mkdir()
    second = await take(engine, clock, target)
    assert second.copied_bytes == 0
    assert [each.id for each in list_backups(target)] == [first.id, second.id]
    assert find_backup(target, None).id == second.id
    names = {"lost+found", "latest", "before-upgrade", "zzz", "photos.partial"}
    assert {path.name for path in target.iterdir()} == {".penstock-backups", first.id, second.id, *names}


async def test_backups_whose_manifest_cannot_be_read_are_listed_and_not_linked_to(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    sound, damaged, missing = [await take(engine, clock, target) for _ in range(3)]
    (damaged.path / "manifest.json").write_bytes(b"garbage")
    (missing.path / "manifest.json").unlink()
    first, second, third = list_backups(target)
    assert first.id == sound.id
    assert [each.id for each in backups(target)] == [sound.id]
    assert isinstance(second, UnreadableBackup)
    assert isinstance(third, UnreadableBackup)
    assert "manifest.json is damaged" in second.reason
    assert "manifest.json is missing" in third.reason
    with pytest.raises(CorruptMetadata, match="is missing; choose another backup"):
        find_backup(target, None)
    assert (await take(engine, clock, target)).copied_bytes == 0
    shutil.rmtree(sound.path)
    clock.jump(-3.5)
    with pytest.raises(NotWritten, match="check the clock"):
        await take(engine, clock, target)


async def test_a_file_that_was_cut_in_the_backup_before_is_copied_again(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    first = await take(engine, clock, target)
    path = next(first.path.rglob("*.log"))
    path.write_bytes(path.read_bytes()[:-1])
    second = await take(engine, clock, target)
    assert second.copied_bytes == next(second.path.rglob("*.log")).stat().st_size
    assert verify(second.path).findings == []


async def test_after_a_restart_what_has_not_changed_is_linked(
    open_engine: OpenEngine, clock: ManualClock, target: Path
) -> None:
    engine = await open_engine()
    partition = await make_partition(engine)
    await fill(partition)
    first = await take(engine, clock, target)
    await engine.close()
    engine = await open_engine()
    second = await take(engine, clock, target)
    assert second.copied_bytes == 0
    assert inodes(second.path) == inodes(first.path)
    assert verify(second.path).findings == []


async def test_another_content_of_the_same_length_is_copied(
    open_engine: OpenEngine, clock: ManualClock, target: Path, data_dir: Path, tmp_path: Path
) -> None:
    """As when a power cut took the end of a topic without `fsync`, and records of the same size were written in its place."""
    engine = await open_engine()
    partition = await make_partition(engine, config=TopicConfig(durability=Durability("none")))
    image = crash_image(data_dir, tmp_path / "image")
    await append(partition, [b"one"])
    await take(engine, clock, target)
    engine = await open_engine(image)
    await append(engine.partition("orders", 0), [b"two"])
    second = await take(engine, clock, target)
    [path] = second.path.rglob("*.log")
    assert b"two" in path.read_bytes()
    assert verify(second.path).findings == []


async def test_a_directory_in_the_data_directory_of_the_broker_is_refused(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    (tmp_path / "link").symlink_to(data_dir)
    for target in (data_dir, data_dir / "backups", data_dir / "topics" / "backups", tmp_path / "link" / "backups"):
        with pytest.raises(InvalidRequest, match="in the data directory of the broker"):
            await take(engine, clock, target)
    assert not list(data_dir.rglob(".penstock-backups"))
