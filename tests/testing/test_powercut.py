"""The simulated power cut takes what POSIX lets it take, and nothing that was synced."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from penstock.testing.powercut import PowerCutDisk

SEEDS = range(40)


def found_after_cut(tmp_path: Path, seed: int, *, sync_file: bool, sync_directory: bool) -> bytes | None:
    """What is left of a file of 4 KiB that was created and written under an old name, renamed, and then the power went."""
    source, image = tmp_path / f"source-{seed}", tmp_path / f"image-{seed}"
    source.mkdir()
    disk = PowerCutDisk(source, cut_at=None)
    fd = disk.open_append(source / "draft", create=True)
    disk.write_all(fd, b"x" * 4096, 0)
    if sync_file:
        disk.fdatasync(fd)
    os.close(fd)
    disk.rename(source / "draft", source / "final")
    if sync_directory:
        disk.sync_directory(source)
    disk.cut()
    with pytest.raises(OSError, match="power is gone"):
        disk.unlink(source / "final")
    disk.image(image, random.Random(seed))
    path = image / "final"
    return path.read_bytes() if path.exists() else None


def test_what_is_synced_is_there(tmp_path: Path) -> None:
    found = [found_after_cut(tmp_path, seed, sync_file=True, sync_directory=True) for seed in SEEDS]
    assert found == [b"x" * 4096] * len(SEEDS)


def test_what_a_failed_flush_should_have_written_reads_right_and_no_later_flush_writes_it(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    disk = PowerCutDisk(source, cut_at=None)
    fd = disk.open_append(source / "0.log", create=True)
    disk.sync_directory(source)
    disk.fail_next_flush()
    disk.write_all(fd, b"lost", 0)
    with pytest.raises(OSError, match="Input/output error"):
        disk.fdatasync(fd)
    assert disk.pread(fd, 4, 0) == b"lost"
    disk.write_all(fd, b"kept", 4)
    disk.fdatasync(fd)
    os.close(fd)
    disk.cut()
    disk.image(tmp_path / "image", random.Random(1), 0.0)
    assert (tmp_path / "image" / "0.log").read_bytes() == bytes(4) + b"kept"


def test_a_file_that_is_not_synced_may_lose_any_of_its_sectors(tmp_path: Path) -> None:
    found = [found_after_cut(tmp_path, seed, sync_file=False, sync_directory=True) for seed in SEEDS]
    assert None not in found
    assert len(set(found)) > len(SEEDS) // 4
    assert all(set(content) <= set(b"x\0") for content in found if content)


def test_a_name_that_is_not_synced_may_be_missing(tmp_path: Path) -> None:
    found = [found_after_cut(tmp_path, seed, sync_file=True, sync_directory=False) for seed in SEEDS]
    assert set(found) == {None, b"x" * 4096}


def moved_directory(tmp_path: Path, seed: int, *, sync: bool) -> list[str]:
    """Where a directory with a synced file is found after it was made, synced, moved to another directory, and the power went."""
    source, image = tmp_path / f"source-{seed}", tmp_path / f"image-{seed}"
    source.mkdir()
    disk = PowerCutDisk(source, cut_at=None)
    disk.make_directory(source / "draft" / "log")
    disk.write_file(source / "draft" / "log" / "file", b"content")
    for directory in (source / "draft", source):
        disk.sync_directory(directory)
    disk.rename(source / "draft" / "log", source / "log")
    if sync:
        disk.sync_directory(source)
    disk.cut()
    disk.image(image, random.Random(seed))
    found = [path for path in image.rglob("file") if path.read_bytes() == b"content"]
    return [path.parent.relative_to(image).as_posix() for path in found]


def test_a_directory_that_was_moved_is_in_one_place_with_what_was_synced_in_it(tmp_path: Path) -> None:
    found = [moved_directory(tmp_path, seed, sync=False) for seed in SEEDS]
    assert {tuple(places) for places in found} == {("log",), ("draft/log",)}


def test_a_move_of_a_directory_that_was_synced_is_not_undone(tmp_path: Path) -> None:
    assert [moved_directory(tmp_path, seed, sync=True) for seed in SEEDS] == [["log"]] * len(SEEDS)


def test_a_directory_that_is_not_synced_in_the_one_above_may_be_missing(tmp_path: Path) -> None:
    found = set()
    for seed in SEEDS:
        source, image = tmp_path / f"source-{seed}", tmp_path / f"image-{seed}"
        source.mkdir()
        disk = PowerCutDisk(source, cut_at=None)
        disk.make_directory(source / "new")
        disk.write_file(source / "new" / "file", b"content")
        disk.cut()
        disk.image(image, random.Random(seed))
        found.add((image / "new" / "file").exists())
    assert found == {True, False}
