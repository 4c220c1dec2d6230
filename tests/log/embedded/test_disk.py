from __future__ import annotations

import errno
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.log.embedded.disk import EASED_WRITE_BYTES_MAX, AppendFile, Disk, SpaceReserve
from penstock.log.embedded.recovery import end_of_data
from tests.log.embedded.storage import ReadCounter


class ZeroCounter(Disk):
    def __init__(self) -> None:
        super().__init__()
        self.zeroed: list[tuple[int, int]] = []
        self.fails = False

    def write_zeros(self, fd: int, position: int, size_bytes: int) -> None:
        if self.fails:
            raise OSError(errno.EIO, "broken")
        self.zeroed.append((position, size_bytes))
        super().write_zeros(fd, position, size_bytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.log"


def opened(disk: Disk, path: Path) -> AppendFile:
    return AppendFile(disk, path, create=True, reserve_step_bytes=1 << 20)


def append(file: AppendFile, data: bytes) -> None:
    file.reserve(len(data))
    file.write(data, is_flushed=True)


def test_zeros_go_ahead_of_small_writes_and_never_over_them(path: Path) -> None:
    disk = ZeroCounter()
    file = opened(disk, path)
    written = b""
    for number in range(1000):
        data = bytes([number % 255 + 1]) * 1000
        append(file, data)
        written += data
    file.close()
    assert path.read_bytes()[: len(written)] == written
    assert not any(path.read_bytes()[len(written) :])
    ends = [position + size for position, size in disk.zeroed]
    assert [position for position, _ in disk.zeroed] == [0, *ends[:-1]], "each place once"
    assert len(disk.zeroed) < 10
    assert ends[-1] >= len(written)


def test_a_large_write_is_not_eased_and_a_small_one_after_it_is(path: Path) -> None:
    disk = ZeroCounter()
    file = opened(disk, path)
    append(file, b"x" * (EASED_WRITE_BYTES_MAX + 1))
    assert disk.zeroed == []
    append(file, b"y")
    assert disk.zeroed[0][0] == EASED_WRITE_BYTES_MAX + 1
    file.close()
    assert path.read_bytes().rstrip(b"\0") == b"x" * (EASED_WRITE_BYTES_MAX + 1) + b"y"


def test_zeros_stay_within_the_space_that_is_reserved(path: Path) -> None:
    disk = ZeroCounter()
    file = AppendFile(disk, path, create=True, reserve_step_bytes=4096)
    append(file, b"x" * 100)
    assert disk.zeroed == [(0, 4096)]
    file.cut(50)
    append(file, b"y" * 100)
    assert disk.zeroed == [(0, 4096), (50, 4046)]
    file.close()
    assert path.stat().st_size == 4096


def test_a_disk_that_takes_no_zeros_still_takes_the_write(path: Path) -> None:
    disk = ZeroCounter()
    disk.fails = True
    file = opened(disk, path)
    append(file, b"x")
    file.close()
    assert path.read_bytes()[:1] == b"x"


def test_the_reserve_is_taken_and_given_up_by_one_thread_at_a_time(tmp_path: Path) -> None:
    taking, given_up = threading.Event(), threading.Event()

    class SlowToTake(Disk):
        def allocate(self, fd: int, position: int, size_bytes: int) -> None:
            super().allocate(fd, position, size_bytes)
            taking.set()
            assert not given_up.wait(0.1), "it must not be given up while it is being taken"

    reserve = SpaceReserve(SlowToTake(), tmp_path / "reserve", 4096)

    def give_up() -> bool:
        taking.wait(10)
        released = reserve.release()
        given_up.set()
        return released

    with ThreadPoolExecutor(1) as thread:
        giving_up = thread.submit(give_up)
        reserve.hold()
        assert giving_up.result(10)
    assert not (tmp_path / "reserve").exists()


@pytest.mark.parametrize("written_at", [None, 0, 5000, (1 << 20) - 1])
def test_the_end_of_data_is_found_whether_zeros_were_written_or_never_written(
    path: Path, written_at: int | None
) -> None:
    size = 2 << 20
    end = 0 if written_at is None else written_at + 1
    with path.open("wb") as file:
        file.truncate(size)  # never written
        if written_at is not None:
            file.seek(written_at)
            file.write(b"x")
    for _ in range(2):
        with path.open("rb") as file:
            for start in (0, end // 2, end):
                assert end_of_data(Disk(), file.fileno(), start, size) == end
        path.write_bytes(path.read_bytes())  # the same bytes, all of them written


def test_space_that_was_never_written_is_not_read(path: Path) -> None:
    disk = ReadCounter()
    path.write_bytes(b"written")
    with path.open("r+b") as file:
        file.truncate(64 << 20)
        assert end_of_data(disk, file.fileno(), 0, 64 << 20) == len(b"written")
    assert disk.read_bytes < 1 << 20


def test_all_is_data_where_the_file_system_cannot_tell(path: Path) -> None:
    path.write_bytes(b"")
    with path.open("rb") as file:
        assert not Disk().next_data(file.fileno(), 0)
    read_end, write_end = os.pipe()
    assert Disk().next_data(read_end, 7) == range(7, sys.maxsize)
    os.close(read_end)
    os.close(write_end)
