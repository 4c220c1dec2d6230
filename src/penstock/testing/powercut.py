"""A disk that loses power: what was not synced may be gone, in any part and in any order.

The engine writes to real files through `PowerCutDisk`, which remembers what has been synced. At a chosen operation the power goes: from
then on every operation fails, and `image` lays out a directory as the machine could find it afterwards. The file system is assumed to
promise no more than POSIX does:
- of a file, what the last sync covered is there; of what was written since, each 512-byte sector may be or not, and the size may be
  anything in between;
- a name of a file or a directory that was created, renamed or removed since its directory was synced may be found in either state, each by
  itself; but what was renamed is there under one of its names, and a directory under one only.
Files that are there at the beginning count as synced, and so does what others than the engine write. A flush can be told to fail
(`fail_next_flush`).

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

from penstock.log.embedded.disk import Disk
from penstock.testing.crashing import LOGS, file_kind, path_of

SECTOR_BYTES: Final = 512


@dataclass(slots=True)
class _File:
    """One inode: its content when it was last synced, and now. Only the ranges in `dirty` can still reach the disk."""

    synced: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def containing(cls, content: bytes) -> _File:
        return cls(bytearray(content), bytearray(content))

    def write(self, data: bytes | memoryview, position: int) -> None:
        end = position + len(data)
        self.extend(end)
        self.current[position:end] = data
        self.dirty.append((position, end))

    def extend(self, size_bytes: int) -> None:
        self.current.extend(bytes(max(0, size_bytes - len(self.current))))

    def truncate(self, size_bytes: int) -> None:
        del self.current[size_bytes:]
        self.dirty.append((size_bytes, len(self.synced)))

    def sync(self) -> None:
        size = len(self.current)
        del self.synced[size:]
        self.synced.extend(bytes(size - len(self.synced)))
        for start, end in self.dirty:
            self.synced[start : min(end, size)] = self.current[start:end]
        self.dirty.clear()


class PowerCutDisk(Disk):
    """Power goes at the `cut_at`-th operation that changes something (never, while it is None).

    With `flushes_ignored` it is a drive that lies: it reports flushes of segments and journals as done and does nothing.
    """

    def __init__(self, root: Path, cut_at: int | None, *, flushes_ignored: bool = False) -> None:
        super().__init__()
        self._root = root
        self._left = cut_at
        self._flushes_ignored = flushes_ignored
        self._flushes_to_fail = 0
        self._lock = threading.RLock()
        self._files: dict[int, _File] = {}
        self._kept_open: list[int] = []
        self._synced_names: dict[int, dict[str, int]] = {}
        """By the inode of the directory: names and the inodes that they stood for when it was last synced."""
        self._directories: set[int] = set()
        """Inodes that are or were directories."""
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self._files[path.stat().st_ino] = _File.containing(path.read_bytes())
                self._kept_open.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        for directory in self._existing_directories():
            self._synced_names[self._note_directory(directory)] = _names(directory)
        self._final_names: dict[int, dict[str, int]] | None = None
        self._final_paths: dict[int, Path] = {}
        self.operations = 0

    @property
    def is_off(self) -> bool:
        return self._final_names is not None

    def cut_after(self, operations: int) -> None:
        """The power goes at the last of this many more operations."""
        with self._lock:
            self._left = operations

    def fail_next_flush(self) -> None:
        """The next flush of a segment or journal fails with EIO, as on Linux: the pages count as clean, so that no later flush writes
        them, and readers find them in the cache until the power goes."""
        with self._lock:
            self._flushes_to_fail += 1

    def cut(self) -> None:
        """The power goes now."""
        with self._lock:
            self._final_paths = {self._note_directory(path): path for path in self._existing_directories()}
            self._final_names = {number: _names(path) for number, path in self._final_paths.items()}

    def _existing_directories(self) -> list[Path]:
        return [self._root, *(path for path in sorted(self._root.rglob("*")) if path.is_dir())]

    def _note_directory(self, path: Path) -> int:
        """Return the inode of a directory, which is kept open so that its number is not given to another."""
        number = path.stat().st_ino
        if number not in self._directories:
            self._directories.add(number)
            self._kept_open.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        return number

    # -- operations ------------------------------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        with self._lock:
            self._step()
            written = super().pwrite(fd, data, position)
            self._file(fd).write(data[:written], position)
            return written

    def write_zeros(self, fd: int, position: int, size_bytes: int) -> None:
        with self._lock:
            self._step()
            super().write_zeros(fd, position, size_bytes)
            self._file(fd).write(bytes(size_bytes), position)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        with self._lock:
            self._step()
            super().allocate(fd, position, size_bytes)
            self._file(fd).extend(position + size_bytes)

    def truncate(self, fd: int, size_bytes: int) -> None:
        with self._lock:
            self._step()
            super().truncate(fd, size_bytes)
            self._file(fd).truncate(size_bytes)

    def fdatasync(self, fd: int) -> None:
        with self._lock:
            self._step()
            is_log = file_kind(path_of(fd)) in LOGS
            if is_log and self._flushes_to_fail:
                self._flushes_to_fail -= 1
                self._file(fd).dirty.clear()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            # Nothing is flushed for real: what is lost is decided here, and the image is made from memory.
            if not (self._flushes_ignored and is_log):
                self._file(fd).sync()

    def open_append(self, path: Path, *, create: bool) -> int:
        with self._lock:
            if create:
                self._step()
            return super().open_append(path, create=create)

    def open_draft(self, path: Path) -> int:
        with self._lock:
            self._step()
            fd = super().open_draft(path)
            self._file(fd).truncate(0)
            return fd

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._step()
            for child in path.iterdir():
                if child.is_dir():
                    self._note_directory(child)
            self._synced_names[self._note_directory(path)] = _names(path)

    def make_directory(self, path: Path) -> None:
        with self._lock:
            self._step()
            super().make_directory(path)
            self._note_directory(path)

    def link(self, old: Path, new: Path) -> None:
        with self._lock:
            self._step()
            super().link(old, new)

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
        """Lay out what is found when the power comes back; once.

        Each change that was not synced is lost with the probability `loss`. Small ones leave large writes nearly whole, large ones
        leave single sectors of them: they fail in different ways.
        """
        assert self._final_names is not None, "the power is still on"
        root = self._root.stat().st_ino
        names = self._names_found(root, self._final_names, chance, loss)
        target.mkdir(parents=True, exist_ok=True)
        pending = [(root, target)]
        while pending:
            number, place = pending.pop()
            for name, child in names[number].items():
                if child in self._directories:
                    (place / name).mkdir(exist_ok=True)
                    pending.append((child, place / name))
                else:
                    file = self._files.get(child) or _not_ours(self._final_paths.get(number), name, child)
                    (place / name).write_bytes(_after_cut(file, chance, loss))
        while self._kept_open:
            os.close(self._kept_open.pop())

    def _names_found(
        self, root: int, final: dict[int, dict[str, int]], chance: random.Random, loss: float
    ) -> dict[int, dict[str, int]]:
        """Return the names in each directory that can be reached from the root; each directory has one name."""
        found: dict[int, dict[str, int]] = {}
        reached = {root}
        pending = [root]
        while pending:
            number = pending.pop(chance.randrange(len(pending)))
            kept = _names_after_cut(self._synced_names.get(number, {}), final.get(number, {}), chance, loss)
            found[number] = {}
            for name, child in kept.items():
                if child in self._directories:
                    if child in reached:
                        continue  # renamed, and found under its other name
                    reached.add(child)
                    pending.append(child)
                found[number][name] = child
            if not pending:
                pending += self._lost_by_rename(reached, found, final)
        return found

    def _lost_by_rename(
        self, reached: set[int], found: dict[int, dict[str, int]], final: dict[int, dict[str, int]]
    ) -> list[int]:
        """Put directories that were moved from one directory to another, and were found in neither, to where they were moved."""
        synced = {child for names in self._synced_names.values() for child in names.values()}
        moved: list[int] = []
        for number in found.keys() & final.keys():
            for name, child in final[number].items():
                if child in self._directories & synced and child not in reached and name not in found[number]:
                    found[number][name] = child
                    reached.add(child)
                    moved.append(child)
        return moved


def _not_ours(directory: Path | None, name: str, number: int) -> _File:
    """A file that the engine has not written to: as it is, if it is still there."""
    path = None if directory is None else directory / name
    if path is not None and path.is_file() and path.stat().st_ino == number:
        return _File.containing(path.read_bytes())
    return _File()


def _names(directory: Path) -> dict[str, int]:
    return {entry.name: entry.inode() for entry in os.scandir(directory) if entry.is_file() or entry.is_dir()}


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
    current, synced = bytes(file.current), bytes(file.synced)
    if current == synced:
        return synced
    size = len(current)
    if chance.random() < loss:
        size = chance.choice((len(synced), chance.randint(*sorted((len(synced), len(current))))))
    content = bytearray(synced[:size].ljust(size, b"\0"))
    dirty = {sector for start, end in file.dirty for sector in range(start // SECTOR_BYTES, -(-end // SECTOR_BYTES))}
    for at in range(0, min(size, len(current)), SECTOR_BYTES):
        if chance.random() >= loss and at // SECTOR_BYTES in dirty:
            sector = current[at : min(at + SECTOR_BYTES, size)]
            content[at : at + len(sector)] = sector
    return bytes(content)
