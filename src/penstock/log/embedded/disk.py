"""The disk as the log sees it: every file operation of the engine goes through here.

One class, so that a test can make any of them fail, and so that the rules that keep data safe (complete writes, sync the directory
after naming a file in it) stand in one place. Methods block; only the log's own threads call them, start-up, and the event loop for a
small commit while flushes are quick (`Disk.flushes_quickly`).
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.errors import NoSpace, NotWritten
from penstock.log.embedded.read_files import ReadFiles

EASED_WRITE_BYTES_MAX: Final = 32 << 10
_CLOSED: Final = -1
RELEASED: Final = -2
"""In place of a descriptor: the file is opened when it is used."""
_ZEROED_STEP_BYTES: Final = 256 << 10
QUICK_FLUSH_S_MAX: Final = 0.001
"""A flush that takes less may be waited for on the event loop: to hand it to a thread and back costs some 50 us, more if that is busy."""
_FLUSH_DECAY: Final = 0.9
"""What is left of a flush's time with each flush after it: one of 5 ms counts as slow for 15 flushes."""


class Disk:
    """The real one. Tests subclass it and override the raw operations."""

    def __init__(self) -> None:
        self.read_files = ReadFiles()
        self.flush_s = QUICK_FLUSH_S_MAX
        """How long flushes take: the slowest of late, earlier ones counting for less."""
        self.now_s: Callable[[], float] = time.perf_counter
        """The clock that flushes are timed by."""

    def flushes_quickly(self) -> bool:
        """Return whether a small flush may be waited for on the event loop, by how long the last ones took."""
        return self.flush_s < QUICK_FLUSH_S_MAX

    # -- raw operations, the ones a fault is injected into ---------------------------------------------------------------

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        """May write less than it was given, as the system call may."""
        return os.pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        os.posix_fallocate(fd, position, size_bytes)

    def write_zeros(self, fd: int, position: int, size_bytes: int) -> None:
        """Over reserved space, which reads as zeros already; only how the file system keeps it changes."""
        os.pwrite(fd, bytes(size_bytes), position)

    def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
        return os.pread(fd, size_bytes, position)

    def next_data(self, fd: int, position: int) -> range:
        """Return the first positions, from this one on, where something was written; an empty range if that is nowhere.

        What lies before them reads as zeros, which need not be read to be known. Where the file system cannot tell, all was written."""
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
            return range(start, os.lseek(fd, start, os.SEEK_HOLE))
        except OSError as error:
            return range(0) if error.errno == errno.ENXIO else range(position, sys.maxsize)

    # -- built on them ---------------------------------------------------------------------------------------------------

    def write_all(self, fd: int, data: bytes | memoryview, position: int) -> None:
        rest = memoryview(data)
        while rest:
            written = self.pwrite(fd, rest, position)
            if written == 0:
                raise OSError(errno.EIO, "a write made no progress")
            rest = rest[written:]
            position += written

    def open_append(self, path: Path, *, create: bool) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def open_draft(self, path: Path) -> int:
        """Create a file, or empty the one that a crash has left under this name."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)

    def make_directory(self, path: Path) -> None:
        """Create a directory and those it is in, if they do not exist."""
        path.mkdir(parents=True, exist_ok=True)

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def truncate(self, fd: int, size_bytes: int) -> None:
        os.ftruncate(fd, size_bytes)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        old.replace(new)

    def link(self, old: Path, new: Path) -> None:
        os.link(old, new)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def write_file(self, path: Path, data: bytes, *, sync: bool = True) -> None:
        """Put a small file in place as a whole: never seen half written, and kept across a power cut when `sync`."""
        draft = path.with_name(path.name + ".tmp")
        fd = self.open_draft(draft)
        try:
            self.write_all(fd, data, 0)
            if sync:
                self.fdatasync(fd)
        finally:
            os.close(fd)
        self.rename(draft, path)
        if sync:
            self.sync_directory(path.parent)

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free


def is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_descriptors(error: OSError) -> bool:
    return error.errno in (errno.EMFILE, errno.ENFILE)


def storage_error(error: OSError, doing: str) -> NotWritten:
    """Turn an operating-system error that came before anything was written into one of the broker's."""
    if is_full(error):
        return NoSpace(f"no space left on the disk while {doing}; free some space and send again")
    if is_out_of_descriptors(error):
        return NotWritten(f"no file descriptor left while {doing}; raise the limit of open files, and send again")
    return NotWritten(f"{doing} failed: {error.strerror or error}; check the disk, then restart the broker")


class AppendFile:
    """A file that only grows at its end, with space reserved ahead so that an accepted write cannot run out of it.

    `end` is where the next write goes; what lies beyond it on disk is reserved space (zeros) or the leftover of a failed write,
    and is never read. A file that exists is opened when it is first used, and again after a `release`.
    """

    __slots__ = ("_disk", "_reserve_step_bytes", "_reserved_to", "_zeroed_to", "end", "fd", "path")

    def __init__(
        self, disk: Disk, path: Path, *, create: bool, end: int = 0, reserved_to: int = 0, reserve_step_bytes: int
    ) -> None:
        self._disk = disk
        self.path = path
        self.fd = disk.open_append(path, create=True) if create else RELEASED
        """Its descriptor; negative while it is not open."""
        self.end = end
        self._reserved_to = max(end, reserved_to)
        self._zeroed_to = end
        self._reserve_step_bytes = reserve_step_bytes

    def open(self) -> int:
        """Open it if it is released; returns its descriptor."""
        if self.fd == RELEASED:
            self.fd = self._disk.open_append(self.path, create=False)
        return self.fd

    @property
    def reserves(self) -> bool:
        """Whether the file on disk reaches beyond its end."""
        return self._reserved_to > self.end

    def reserve(self, size_bytes: int) -> None:
        """Make sure of space for this many more bytes, or raise ENOSPC having changed nothing that matters."""
        wanted = self.end + size_bytes
        if wanted <= self._reserved_to:
            return
        step = self._reserve_step_bytes
        ahead = -(-wanted // step) * step
        try:
            self._disk.allocate(self.open(), self._reserved_to, ahead - self._reserved_to)
        except OSError as error:
            if not is_full(error):
                raise
            ahead = wanted  # the disk is nearly full: take just what this write needs
            self._disk.allocate(self.open(), self._reserved_to, ahead - self._reserved_to)
        self._reserved_to = ahead

    def _ease_flush(self) -> None:
        """Before a small write that is to be flushed: write zeros to some of the reserved space.

        A flush of space that was only reserved has to record that it is in use now, which is a second write, elsewhere on the disk;
        of space that holds data already it has not. For a few KiB that is a third of the flush's time. A large write gains less than
        the zeros cost.
        """
        start = max(self.end, self._zeroed_to)
        self._zeroed_to = max(min(self._reserved_to, start + _ZEROED_STEP_BYTES), start)
        try:
            self._disk.write_zeros(self.open(), start, self._zeroed_to - start)
        except OSError:
            pass  # nothing depends on it; what is wrong with the disk, the write itself will tell

    def write(self, data: bytes, *, is_flushed: bool = False) -> int:
        """Write at the end, and then move it; `is_flushed`: a `sync` follows. Returns where the data begins."""
        begin = self.end
        end = begin + len(data)
        if is_flushed and end > self._zeroed_to and len(data) <= EASED_WRITE_BYTES_MAX:
            self._ease_flush()
        fd = self.fd if self.fd >= 0 else self.open()
        if (written := self._disk.pwrite(fd, data, begin)) < len(data):
            self._disk.write_all(fd, memoryview(data)[written:], begin + written)
        self.end = end
        if end > self._reserved_to:
            self._reserved_to = end
        return begin

    def cut(self, end: int) -> None:
        """Drop everything from `end` on, reserved space included."""
        self._disk.truncate(self.open(), end)
        self.end = self._reserved_to = self._zeroed_to = end

    def sync(self) -> None:
        disk = self._disk
        started_s = disk.now_s()
        try:
            disk.fdatasync(self.fd if self.fd >= 0 else self.open())
        except OSError as error:
            # Whatever the system says (a full disk, too), what was written may be gone, and trying again would not tell.
            raise OSError(errno.EIO, f"the flush failed: {error.strerror or error}") from error
        disk.flush_s = max(disk.now_s() - started_s, disk.flush_s * _FLUSH_DECAY)

    def release(self) -> None:
        """Close the file until it is used again. What was written must be synced by now: where nobody has a file open, the system may
        forget that writing it back has failed."""
        self._shut(RELEASED)

    def close(self) -> None:
        """Close the file for good."""
        self._shut(_CLOSED)

    def _shut(self, state: int) -> None:
        fd, self.fd = self.fd, state  # the number may soon name another file
        if fd >= 0:
            os.close(fd)


class SpaceReserve:
    """A placeholder file, deleted when the disk is full so that internal topics can still be written. Safe to use from any thread: the
    commit thread gives it up, the engine's maintenance takes it again."""

    def __init__(self, disk: Disk, path: Path, size_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._size_bytes = size_bytes
        self.given_up = False
        """Whether it was deleted, and has not been taken again."""
        self._given_up_bytes = 0
        self._lock = threading.Lock()

    def hold(self) -> None:
        """Take the space, never more than an eighth of what is free; once given up, only when there is plenty again."""
        with self._lock:
            self._hold()

    def _hold(self) -> None:
        free_bytes = self._disk.free_bytes(self._path.parent)
        if self.given_up and free_bytes < 2 * self._given_up_bytes:
            return
        size_bytes = min(self._size_bytes, free_bytes // 8)
        held_bytes = self._held_bytes()
        if held_bytes > self._size_bytes:  # an earlier run had a larger one
            self._disk.unlink(self._path)
            held_bytes = 0
        if held_bytes < size_bytes:
            fd = self._disk.open_append(self._path, create=True)
            try:
                self._disk.allocate(fd, 0, size_bytes)
            except OSError as error:
                if not is_full(error):
                    raise
                self._disk.truncate(fd, 0)
                return
            finally:
                os.close(fd)
        self.given_up = False

    def _held_bytes(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def release(self) -> bool:
        """Give the space back; False if there was none to give."""
        with self._lock:
            held_bytes = self._held_bytes()
            if held_bytes == 0:
                return False
            self._disk.unlink(self._path)
            self.given_up, self._given_up_bytes = True, held_bytes
            return True

    def is_in_use(self) -> bool:
        """Whether what is free now is what was held back for internal topics: nobody else may take it."""
        if not self.given_up:
            return False
        self.hold()
        return self.given_up
