"""A disk that loses power: what was not synced may be gone, in any part and in any order.

The engine writes to real files through `PowerCutDisk`, which remembers what has been synced. At a chosen operation the power goes: from
then on every operation fails, and `image` lays out a directory as the machine could find it afterwards. The file system is assumed to
promise no more than POSIX does:
- of a file, what the last sync covered is there; of what was written since, each 512-byte sector may be or not, and the size may be
  anything in between;
- a name that was created, renamed or removed since its directory was synced may be found in either state, each by itself; but a file
  that was renamed is there under one of its names.

A failure is reproduced by its seed.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from penstock.log.embedded.crashpoints import CrashPoints
from penstock.log.embedded.disk import Disk

SECTOR_BYTES: Final = 512


@dataclass(slots=True)
class _File:
    """One inode: its content when it was last synced, and now."""

    synced: bytes = b""
    current: bytearray = field(default_factory=bytearray)


class PowerCutDisk(Disk):
    """Power goes at the `cut_at`-th operation that changes something (never, while it is None)."""

    def __init__(self, root: Path, cut_at: int | None) -> None:
        super().__init__(CrashPoints({}))
        self._root = root
        self._left = cut_at
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._kept_open: list[int] = []
        self._synced_names: dict[Path, dict[str, int]] = {}
        self._final_names: dict[Path, dict[str, int]] | None = None
        self.operations = 0

    @property
    def is_off(self) -> bool:
        return self._final_names is not None

    def cut(self) -> None:
        """The power goes now."""
        with self._lock:
            directories = [self._root, *(path for path in self._root.rglob("*") if path.is_dir())]
            self._final_names = {directory: _names(directory) for directory in directories}

    # -- operations ------------------------------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        with self._lock:
            self._step()
            written = super().pwrite(fd, data, position)
            content = self._file(fd).current
            content.extend(bytes(max(0, position + written - len(content))))
            content[position : position + written] = data[:written]
            return written

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        with self._lock:
            self._step()
            super().allocate(fd, position, size_bytes)
            content = self._file(fd).current
            content.extend(bytes(max(0, position + size_bytes - len(content))))

    def truncate(self, fd: int, size_bytes: int) -> None:
        with self._lock:
            self._step()
            super().truncate(fd, size_bytes)
            del self._file(fd).current[size_bytes:]

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            self._step()
            super().fdatasync(fd)
            file = self._file(fd)
            file.synced = bytes(file.current)

    def open_append(self, path: Path, *, create: bool) -> int:
        with self._lock:
            if create:
                self._step()
            return super().open_append(path, create=create)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._step()
            super().sync_directory(path)
            self._synced_names[path] = _names(path)

    def rename(self, old: Path, new: Path) -> None:
        with self._lock:
            self._step()
            super().rename(old, new)

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._step()
            super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        for child in sorted(path.rglob("*"), reverse=True):
            if child.is_file():
                self.unlink(child)
        with self._lock:
            self._step()
            super().remove_tree(path)

    def _step(self) -> None:
        """Count an operation that changes something, and cut the power when its time has come."""
        self.operations += 1
        if self._left is not None and not self.is_off:
            self._left -= 1
            if self._left <= 0:
                self.cut()
        if self.is_off:
            raise OSError(errno.EIO, "the power is gone")

    def _file(self, fd: int) -> _File:
        number = os.fstat(fd).st_ino
        if number not in self._files:
            self._files[number] = _File()
            # Kept open, so that its number is not given to another file once this one is removed: it may come back.
            self._kept_open.append(os.dup(fd))
        return self._files[number]

    # -- afterwards ------------------------------------------------------------------------------------------------------

    def image(self, target: Path, chance: random.Random, loss: float = 0.5) -> None:
        """Lay out what is found when the power comes back; once. Directories are always there: making one is not what is tested.

        Each change that was not synced is lost with the probability `loss`. Small ones leave large writes nearly whole, large ones
        leave single sectors of them: they fail in different ways.
        """
        assert self._final_names is not None, "the power is still on"
        for directory, names in self._final_names.items():
            place = target / directory.relative_to(self._root)
            place.mkdir(parents=True, exist_ok=True)
            for name, number in _names_after_cut(self._synced_names.get(directory, {}), names, chance, loss).items():
                (place / name).write_bytes(_after_cut(self._files.get(number, _File()), chance, loss))
        while self._kept_open:
            os.close(self._kept_open.pop())


def _names(directory: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(directory) if entry.is_file()}


def _names_after_cut(
    synced: dict[str, int], current: dict[str, int], chance: random.Random, loss: float
) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in sorted(synced.keys() | current.keys()):
        number = (synced if chance.random() < loss else current).get(name)
        if number is not None:
            found[name] = number
    for name, number in synced.items():
        if number in current.values() and number not in found.values():
            found[name] = number
    return found


def _after_cut(file: _File, chance: random.Random, loss: float) -> bytes:
    current, synced = bytes(file.current), file.synced
    if current == synced:
        return synced
    size = len(current)
    if chance.random() < loss:
        size = chance.choice((len(synced), chance.randint(*sorted((len(synced), len(current))))))
    content = bytearray(synced[:size].ljust(size, b"\0"))
    for at in range(0, min(size, len(current)), SECTOR_BYTES):
        if chance.random() >= loss:
            sector = current[at : min(at + SECTOR_BYTES, size)]
            content[at : at + len(sector)] = sector
    return bytes(content)
