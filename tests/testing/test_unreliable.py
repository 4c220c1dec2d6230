from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.unreliable import FlushErrorDisk, QuotaDisk, WriteBehindDisk


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "0.log", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_a_flush_that_fails_loses_what_was_written_since_the_last_one(segment: int) -> None:
    disk = FlushErrorDisk(frozenset({2}))
    disk.write_all(segment, b"flushed.", 0)
    disk.fdatasync(segment)
    disk.write_all(segment, b"F", 0)
    disk.write_all(segment, b"FL", 0)
    with pytest.raises(OSError, match="Input/output error"):
        disk.fdatasync(segment)
    assert os.pread(segment, 100, 0) == b"flushed."
    disk.write_all(segment, b"later", 0)
    disk.fdatasync(segment)
    assert os.pread(segment, 100, 0) == b"latered."


def test_a_silent_disk_loses_the_same_and_reports_success(segment: int) -> None:
    disk = FlushErrorDisk(frozenset({1}), silent=True)
    disk.allocate(segment, 0, 8)
    disk.write_all(segment, b"gone", 0)
    disk.fdatasync(segment)
    assert os.pread(segment, 100, 0) == bytes(8)


def test_only_flushes_of_segments_and_journals_fail(tmp_path: Path) -> None:
    FlushErrorDisk(frozenset({1})).write_file(tmp_path / "topic.json", b"{}")
    assert (tmp_path / "topic.json").read_bytes() == b"{}"


def test_a_quota_is_a_full_disk_until_files_are_removed(tmp_path: Path, segment: int) -> None:
    disk = QuotaDisk(tmp_path, 10_000)
    ballast = tmp_path / "ballast"
    ballast.write_bytes(bytes(8_000))
    disk.allocate(segment, 0, 1_000)
    assert disk.free_bytes(tmp_path) == 1_000
    disk.write_all(segment, bytes(1_000), 0)
    with pytest.raises(OSError, match="No space") as full:
        disk.allocate(segment, 1_000, 1_001)
    assert full.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space"):
        disk.write_all(segment, bytes(1_001), 1_000)
    assert os.fstat(segment).st_size == 1_000
    ballast.unlink()
    disk.allocate(segment, 1_000, 1_001)


def test_writes_behind_reach_the_file_later(segment: int) -> None:
    disk = WriteBehindDisk(delay_s=3600)
    disk.write_all(segment, b"one", 0)
    disk.fdatasync(segment)
    assert os.fstat(segment).st_size == 0, "a kill now would lose it"
    assert disk.pread(segment, 3, 0) == b"one", "whoever reads sees what was written"
    assert os.fstat(segment).st_size == 3


def test_only_segments_and_journals_are_written_behind(tmp_path: Path) -> None:
    WriteBehindDisk(delay_s=3600).write_file(tmp_path / "topic.json", b"{}")
    assert (tmp_path / "topic.json").read_bytes() == b"{}"
