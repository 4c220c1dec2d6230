"""Each knob on the disk itself; what a broker makes of them is in `test_broker.py` and `tests/crash`."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.faults import FaultyDisk


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    return os.pread(fd, 1000, 0)


def test_without_a_fault_it_is_a_disk(disk: FaultyDisk, fd: int, tmp_path: Path) -> None:
    disk.write_all(fd, b"hello", 0)
    disk.fdatasync(fd)
    assert disk.pread(fd, 5, 0) == b"hello"
    disk.write_file(tmp_path / "small", b"whole")
    disk.rename(tmp_path / "small", tmp_path / "renamed")
    assert (tmp_path / "renamed").read_bytes() == b"whole"
    disk.unlink(tmp_path / "renamed")
    assert disk.free_bytes(tmp_path) > 0


def test_so_many_flushes_fail_and_the_next_works(disk: FaultyDisk, fd: int) -> None:
    disk.fail_next_fsync(times=2)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error"):
            disk.fdatasync(fd)
    disk.fdatasync(fd)


def test_a_failed_write_writes_nothing(disk: FaultyDisk, fd: int) -> None:
    disk.fail_next_write(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.write_all(fd, b"hello", 0)
    assert content(fd) == b""
    disk.write_all(fd, b"hello", 0)
    assert content(fd) == b"hello"


def test_short_writes_are_short_and_still_completed(disk: FaultyDisk, fd: int) -> None:
    disk.short_writes()
    assert disk.pwrite(fd, b"12345678", 0) == 4
    disk.write_all(fd, b"12345678", 0)
    assert content(fd) == b"12345678"
    disk.short_writes(on=False)
    assert disk.pwrite(fd, b"12345678", 0) == 8


def test_a_full_disk_takes_nothing_until_there_is_space_again(disk: FaultyDisk, fd: int, tmp_path: Path) -> None:
    disk.disk_full()
    assert disk.free_bytes(tmp_path) == 0
    for use in (lambda: disk.pwrite(fd, b"a", 0), lambda: disk.allocate(fd, 0, 10)):
        with pytest.raises(OSError, match="No space left") as caught:
            use()
        assert caught.value.errno == errno.ENOSPC
    disk.disk_full_off()
    disk.allocate(fd, 0, 10)
    disk.write_all(fd, b"a", 0)


def test_a_slow_flush_takes_longer(disk: FaultyDisk, fd: int) -> None:
    disk.slow_fsync(0.05)
    started_s = time.monotonic()
    disk.fdatasync(fd)
    assert time.monotonic() - started_s >= 0.05


def test_a_held_flush_waits_for_the_end_of_the_block(disk: FaultyDisk, fd: int) -> None:
    done = threading.Event()

    def flush() -> None:
        disk.fdatasync(fd)
        done.set()

    thread = threading.Thread(target=flush)
    with disk.fsync_held() as waiting:
        thread.start()
        assert waiting.wait(5)
        assert not done.is_set()
    thread.join(5)
    assert done.is_set()


def test_after_power_off_nothing_changes_and_reading_still_works(disk: FaultyDisk, fd: int, tmp_path: Path) -> None:
    disk.write_all(fd, b"hello", 0)
    disk.power_off()
    file = tmp_path / "file"
    for use in (
        lambda: disk.pwrite(fd, b"x", 0),
        lambda: disk.fdatasync(fd),
        lambda: disk.allocate(fd, 0, 10),
        lambda: disk.truncate(fd, 0),
        lambda: disk.open_append(tmp_path / "new", create=True),
        lambda: disk.rename(file, tmp_path / "other"),
        lambda: disk.unlink(file),
        lambda: disk.remove_tree(tmp_path),
        lambda: disk.write_file(tmp_path / "new", b""),
        lambda: disk.sync_directory(tmp_path),
    ):
        with pytest.raises(OSError, match="switched off"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert disk.pread(fd, 5, 0) == b"hello"


def test_power_off_ends_a_held_flush_with_an_error(disk: FaultyDisk, fd: int) -> None:
    failed = threading.Event()

    def flush() -> None:
        try:
            disk.fdatasync(fd)
        except OSError:
            failed.set()

    thread = threading.Thread(target=flush)
    with disk.fsync_held() as waiting:
        thread.start()
        assert waiting.wait(5)
        disk.power_off()
        thread.join(5)
    assert failed.is_set()
