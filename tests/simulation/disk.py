"""The disk of a simulated machine: real files, and the faults that the seed calls for.

`PowerCutDisk` knows what has been synced. Here the disk outlives a process that is killed, so that what the process wrote and did not
sync is still there for the next one, and can still be lost with the power.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

from penstock.testing.powercut import SECTOR_BYTES, PowerCutDisk
from tests.simulation.loop import ProcessEnded
from tests.simulation.trace import Trace

FLUSHES_PER_TURN = 8
HELD_UNDER_A_LOCK = {"reserve"}
"""Files that are changed while a lock is held: a thread that waited for it would keep the turn."""


class SimDisk(PowerCutDisk):
    """Made for one directory, which is all there is on it."""

    def __init__(self, root: Path, trace: Trace, pause: Callable[[], None]) -> None:
        """`pause` lets others run, before an operation."""
        super().__init__(root, None)
        self._pause = pause
        self._trace = trace
        self._full = False
        self._flushes = 0
        self._operations_left: int | None = None
        self._on_end: Callable[[], None] = lambda: None
        self._ended = False
        self._appending: dict[int, Path] = {}

    # -- faults ------------------------------------------------------------------------------------------------------------

    def set_full(self, full: bool) -> None:
        self._full = full

    def end_process_after(self, operations: int, on_end: Callable[[], None]) -> None:
        """End the process at the n-th operation from now; `on_end` does the rest."""
        self._operations_left, self._on_end = operations, on_end

    def attach(self) -> None:
        """A new process uses the disk."""
        self._ended = False
        self._operations_left = None
        self._full = False
        self._flushes_to_fail = 0

    def detach(self) -> None:
        """The process that used it is gone."""
        self._ended = True

    def remains(self, target: Path, chance: Random, loss: float) -> None:
        """Lay out in `target` what is found after the power went now."""
        self.cut()
        self.image(target, chance, loss)

    def close(self) -> None:
        """Close the files that killed processes have left open."""
        for fd in [*self._appending, *self._kept_open]:
            try:
                path = Path(f"/proc/self/fd/{fd}").readlink()
            except OSError:
                continue
            if path.is_relative_to(self._root):
                os.close(fd)

    def flushes_quickly(self) -> bool:
        """Commits are written on the loop and in their thread by turns; the time of the machine under the simulation decides nothing."""
        return self._flushes // FLUSHES_PER_TURN % 2 == 1

    # -- operations --------------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        if self._ended:
            raise ProcessEnded
        if self._operations_left is not None:
            self._operations_left -= 1
            if self._operations_left <= 0:
                self._operations_left = None
                self._on_end()
                raise ProcessEnded
        super()._step()

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        self._before("write", fd, position, len(data))
        if self._full and len(data) > SECTOR_BYTES:
            return super().pwrite(fd, data[:SECTOR_BYTES], position)  # what still fits; the rest does not
        self._check_space()
        return super().pwrite(fd, data, position)

    def write_zeros(self, fd: int, position: int, size_bytes: int) -> None:
        self._check_space()
        super().write_zeros(fd, position, size_bytes)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        self._check_space()
        super().allocate(fd, position, size_bytes)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._before("truncate", fd, size_bytes)
        super().truncate(fd, size_bytes)

    def fdatasync(self, fd: int) -> None:
        self._flushes += 1
        self._before("flush", fd)
        super().fdatasync(fd)

    def open_append(self, path: Path, *, create: bool) -> int:
        if create:
            self._check_space()
        fd = super().open_append(path, create=create)
        self._appending[fd] = path
        return fd

    def open_draft(self, path: Path) -> int:
        self._check_space()
        fd = super().open_draft(path)
        self._appending[fd] = path
        return fd

    def open_read(self, path: Path) -> int:
        fd = super().open_read(path)
        self._appending.pop(fd, None)  # its number was free, so it was closed
        return fd

    def sync_directory(self, path: Path) -> None:
        self._pause()
        super().sync_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        self._pause()
        self._trace.note("rename", old.relative_to(self._root), new.name)
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        if path.name not in HELD_UNDER_A_LOCK:
            self._pause()
        self._trace.note("unlink", path.relative_to(self._root))
        super().unlink(path)

    def free_bytes(self, path: Path) -> int:
        return 0 if self._full else 1 << 40

    def _check_space(self) -> None:
        if self._full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _before(self, what: str, fd: int, *details: object) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.name not in HELD_UNDER_A_LOCK:
            self._pause()
        name = path.relative_to(self._root) if path.is_relative_to(self._root) else path
        self._trace.note(what, name, *details)
