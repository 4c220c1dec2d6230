"""A disk that fails on demand.

The broker under test writes through it to real files; a test turns faults on and off from its own thread. What is not told to fail
works as the real disk does.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.log.embedded.disk import Disk

HOLD_S_MAX = 60.0
"""A flush that a test forgot to release continues after this long, so that a broken test ends."""


class FaultyDisk(Disk):
    """The knobs: `broker.disk.fail_next_fsync()` and so on."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._fsync_failures = 0
        self._write_failures: list[int] = []
        self._short_writes = False
        self._full = False
        self._fsync_delay_s = 0.0
        self._fsync_gate = threading.Event()
        self._fsync_gate.set()
        self._fsync_waiting = threading.Event()
        self._off = False

    # -- knobs -----------------------------------------------------------------------------------------------------------

    def fail_next_fsync(self, times: int = 1) -> None:
        """The next flushes fail with EIO, after which nobody knows what is on disk."""
        with self._lock:
            self._fsync_failures += times

    def fail_next_write(self, error: int = errno.EIO, times: int = 1) -> None:
        """The next writes fail with this errno and write nothing."""
        with self._lock:
            self._write_failures += [error] * times

    def short_writes(self, on: bool = True) -> None:
        """Each write takes half of what it is given, as the system call may."""
        self._short_writes = on

    def disk_full(self) -> None:
        """Nothing can be written or reserved (ENOSPC) until `disk_full_off`."""
        self._full = True

    def disk_full_off(self) -> None:
        self._full = False

    def slow_fsync(self, seconds: float) -> None:
        """Each flush takes this much longer; 0 ends it."""
        self._fsync_delay_s = seconds

    @contextmanager
    def fsync_held(self) -> Iterator[threading.Event]:
        """No flush finishes inside this block. Gives an event that is set once a flush waits, so that a test needs no sleep."""
        self._fsync_waiting.clear()
        self._fsync_gate.clear()
        try:
            yield self._fsync_waiting
        finally:
            self._fsync_gate.set()

    def power_off(self) -> None:
        """From here on nothing changes on disk, for good: what the broker does now is lost, as if its machine had stopped."""
        self._off = True
        self._fsync_gate.set()

    def flushes_quickly(self) -> bool:
        """False while flushes are held or slowed down: they wait in the commit thread, and the event loop continues."""
        return self._fsync_gate.is_set() and not self._fsync_delay_s and super().flushes_quickly()

    # -- the operations they act on --------------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        self._check_power()
        with self._lock:
            if self._write_failures:
                number = self._write_failures.pop(0)
                raise OSError(number, os.strerror(number))
        self._check_space()
        if self._short_writes and len(data) > 1:
            data = data[: len(data) // 2]
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        self._check_power()
        with self._lock:
            fails = self._fsync_failures > 0
            self._fsync_failures -= fails
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._fsync_delay_s:
            time.sleep(self._fsync_delay_s)
        if not self._fsync_gate.is_set():
            self._fsync_waiting.set()
            self._fsync_gate.wait(HOLD_S_MAX)
            self._check_power()
        super().fdatasync(fd)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        self._check_power()
        self._check_space()
        super().allocate(fd, position, size_bytes)

    def open_append(self, path: Path, *, create: bool) -> int:
        if create:
            self._check_power()
        return super().open_append(path, create=create)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._check_power()
        super().truncate(fd, size_bytes)

    def sync_directory(self, path: Path) -> None:
        self._check_power()
        super().sync_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        self._check_power()
        super().rename(old, new)

    def link(self, old: Path, new: Path) -> None:
        self._check_power()
        super().link(old, new)

    def unlink(self, path: Path) -> None:
        self._check_power()
        super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        self._check_power()
        super().remove_tree(path)

    def open_draft(self, path: Path) -> int:
        self._check_power()
        return super().open_draft(path)

    def make_directory(self, path: Path) -> None:
        self._check_power()
        super().make_directory(path)

    def free_bytes(self, path: Path) -> int:
        return 0 if self._full else super().free_bytes(path)

    def _check_power(self) -> None:
        if self._off:
            raise OSError(errno.EIO, "the disk was switched off")

    def _check_space(self) -> None:
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
