"""Disks that misbehave by themselves, for a broker process that no test can reach into.

`FlushErrorDisk` and `QuotaDisk` do what real disks do: a flush fails and takes the data with it, the space runs out. The broker must
cope with both. A `FlushErrorDisk` that is silent and a `WriteBehindDisk` lie: they acknowledge what they have not stored. No broker can
cope with that, so a check that is worth its name must find records missing.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import NamedTuple

from penstock.log.embedded.disk import Disk
from penstock.testing.crashing import LOGS, file_kind, path_of

QUEUE_WRITES_MAX = 100_000


class _Undo(NamedTuple):
    position: int
    before: bytes


class FlushErrorDisk(Disk):
    """Some flushes of segments and journals, given by their numbers, fail with EIO, and what they should have written is gone.

    That is what is left of it on Linux once the pages, which count as clean, are dropped from the cache; `PowerCutDisk.fail_next_flush`
    shows what is found before that. A `silent` disk reports success.
    """

    def __init__(self, failing: frozenset[int], *, silent: bool = False) -> None:
        super().__init__()
        self._failing = failing
        self._silent = silent
        self._lock = threading.RLock()
        self._flushes = 0
        self._unflushed: dict[int, list[_Undo]] = defaultdict(list)
        """By inode, what was there before each write since the last flush."""

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        with self._lock:
            if file_kind(path_of(fd)) in LOGS:
                self._unflushed[os.fstat(fd).st_ino].append(_Undo(position, os.pread(fd, len(data), position)))
            return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            if file_kind(path_of(fd)) not in LOGS:
                super().fdatasync(fd)
                return
            self._flushes += 1
            writes = self._unflushed.pop(os.fstat(fd).st_ino, [])
            if self._flushes not in self._failing:
                super().fdatasync(fd)
                return
            for position, before in reversed(writes):
                os.pwrite(fd, before, position)
        if not self._silent:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


class QuotaDisk(Disk):
    """Limit the total size of the files below `root`; ENOSPC for what exceeds it."""

    def __init__(self, root: Path, quota_bytes: int) -> None:
        super().__init__()
        self._root = root
        self._quota_bytes = quota_bytes

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        self._check(fd, position + len(data))
        return super().pwrite(fd, data, position)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        self._check(fd, position + size_bytes)
        super().allocate(fd, position, size_bytes)

    def free_bytes(self, path: Path) -> int:
        return max(0, self._quota_bytes - self._used_bytes())

    def _check(self, fd: int, end: int) -> None:
        growth = end - os.fstat(fd).st_size
        if growth > 0 and self._used_bytes() + growth > self._quota_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _used_bytes(self) -> int:
        used = 0
        for directory, _, names in os.walk(self._root):
            for name in names:
                try:
                    used += Path(directory, name).stat().st_size
                except FileNotFoundError:
                    pass  # removed since the directory was read
        return used


class _Write(NamedTuple):
    due_s: float
    fd: int
    data: bytes
    position: int

    def carry_out(self) -> None:
        try:
            os.pwrite(self.fd, self.data, self.position)
        finally:
            os.close(self.fd)


class WriteBehindDisk(Disk):
    """Writes to segments and journals reach the file a while after they are reported as done, and flushes of them do nothing: a kill
    loses what is under way."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._waiting: deque[_Write] = deque()
        self._more = threading.Event()
        threading.Thread(target=self._write_due, name="write-behind", daemon=True).start()

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if file_kind(path_of(fd)) not in LOGS:
            return super().pwrite(fd, data, position)
        with self._lock:
            if len(self._waiting) >= QUEUE_WRITES_MAX:
                self._waiting.popleft().carry_out()
            self._waiting.append(_Write(time.monotonic() + self._delay_s, os.dup(fd), bytes(data), position))
        self._more.set()
        return len(data)

    def fdatasync(self, fd: int) -> None:
        if file_kind(path_of(fd)) not in LOGS:
            super().fdatasync(fd)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        self._catch_up(fd)
        return super().pread(fd, size_bytes, position)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._catch_up(fd)
        super().truncate(fd, size_bytes)

    def _write_due(self) -> None:
        while True:
            self._more.wait()
            with self._lock:
                while self._waiting and self._waiting[0].due_s <= time.monotonic():
                    self._waiting.popleft().carry_out()
                if not self._waiting:
                    self._more.clear()
            time.sleep(self._delay_s / 10)

    def _catch_up(self, fd: int) -> None:
        """Carry out what waits for this file, so that a read or a cut finds what was written."""
        number = os.fstat(fd).st_ino
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
            for write in waiting:
                if os.fstat(write.fd).st_ino == number:
                    write.carry_out()
                else:
                    self._waiting.append(write)
