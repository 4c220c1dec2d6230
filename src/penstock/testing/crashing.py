"""A disk that ends the process at a chosen operation, as `kill -9` at that instant would.

Every operation that changes something on disk has a kind: the thread, what it does, and to which sort of file, as in
`commit write segment`, `checkpoint unlink journal` or `maintenance rename swap`. What start-up, creating and deleting topics do is
`other`, and what start-up flushes besides that `sync`; so recovery is distinguished from commits. `CrashDisk` counts operations by kind,
and at the chosen one calls `os._exit`: before the operation, after it, or, for a write, with half of the bytes written. Run a
workload once without a crash to learn which operations it has, then once for each of them.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, NamedTuple, Self, get_args

from penstock.log.embedded.disk import Disk

CRASHED: Final = 9
"""The exit code of a process that a `CrashDisk` ended."""

LOGS: Final = ("segment", "journal")
"""The kinds of file that hold records."""

Moment = Literal["before", "half", "after"]

_FILES_BY_SUFFIX: Final = {
    ".log": "segment",
    ".index": "index",
    ".cleaned": "draft",
    ".swap": "swap",
    ".deleted": "deleted",
    ".json": "metadata",
    ".copy": "metadata",
}
_FILES_BY_NAME: Final = {"clean-shutdown": "marker", "reserve": "reserve"}


class CrashAt(NamedTuple):
    """The n-th operation whose kind matches a pattern (`commit write segment`, `* journal`, `*`), and the moment in it."""

    kind: str
    nth: int = 1
    moment: Moment = "before"

    def __str__(self) -> str:
        return f"{self.kind}:{self.nth}:{self.moment}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form, `kind[:nth[:moment]]`."""
        kind, _, rest = text.partition(":")
        nth, _, moment = rest.partition(":")
        if (
            not kind
            or not (nth or "1").isdecimal()
            or int(nth or "1") < 1
            or (moment or "before") not in get_args(Moment)
        ):
            raise ValueError(
                f"{text!r} names no operation: write kind:nth:moment, as in 'commit write segment:3:half'; moments are "
                f"{', '.join(get_args(Moment))}"
            )
        return cls(kind, int(nth or "1"), moment or "before")  # type: ignore[arg-type]


class CrashDisk(Disk):
    """Count operations, and end the process at one of them. With `at=None` it only counts."""

    def __init__(self, at: CrashAt | None = None, end_process: Callable[[int], object] = os._exit) -> None:
        super().__init__()
        self._at = at
        self._end_process = end_process
        self._left = at.nth if at else 0
        self._lock = threading.Lock()
        self.operations: Counter[str] = Counter()

    def flushes_quickly(self) -> bool:
        """Operations are counted by their threads, so commits stay in theirs."""
        return False

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        moment = self._reach("write", path_of(fd))
        if moment == "half":
            super().pwrite(fd, data[: len(data) // 2], position)
            self._crash()
        with self._around(moment):
            return super().pwrite(fd, data, position)

    def write_zeros(self, fd: int, position: int, size_bytes: int) -> None:
        with self._operation("zero", path_of(fd)):
            super().write_zeros(fd, position, size_bytes)

    def fdatasync(self, fd: int) -> None:
        with self._operation("flush", path_of(fd)):
            super().fdatasync(fd)

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        with self._operation("allocate", path_of(fd)):
            super().allocate(fd, position, size_bytes)

    def truncate(self, fd: int, size_bytes: int) -> None:
        with self._operation("truncate", path_of(fd)):
            super().truncate(fd, size_bytes)

    def open_append(self, path: Path, *, create: bool) -> int:
        if not create:
            return super().open_append(path, create=False)
        with self._operation("create", path):
            return super().open_append(path, create=True)

    def open_draft(self, path: Path) -> int:
        with self._operation("create", path):
            return super().open_draft(path)

    def make_directory(self, path: Path) -> None:
        with self._operation("make", path):
            super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        with self._operation("sync", path):
            super().sync_directory(path)

    def rename(self, old: Path, new: Path) -> None:
        with self._operation("rename", old):
            super().rename(old, new)

    def unlink(self, path: Path) -> None:
        with self._operation("unlink", path):
            super().unlink(path)

    def remove_tree(self, path: Path) -> None:
        moment = self._reach("remove", path)
        if moment == "half":
            for child in [child for child in sorted(path.rglob("*")) if child.is_file()][::2]:
                child.unlink()
            self._crash()
        with self._around(moment):
            super().remove_tree(path)

    # -- counting --------------------------------------------------------------------------------------------------------

    def reached(self, kind: str) -> None:
        """Called before each operation; for subclasses that watch."""

    def _reach(self, what: str, path: Path) -> Moment | None:
        """Count an operation; returns the moment of the crash if it is the chosen one."""
        kind = f"{_thread_kind()} {what} {file_kind(path)}"
        self.reached(kind)
        at = self._at
        with self._lock:
            self.operations[kind] += 1
            if at is None or self._left == 0 or not fnmatchcase(kind, at.kind):
                return None
            self._left -= 1
            if self._left:
                return None
        if at.moment == "before":
            self._crash()
        return at.moment

    @contextmanager
    def _operation(self, what: str, path: Path) -> Iterator[None]:
        with self._around(self._reach(what, path)):
            yield

    @contextmanager
    def _around(self, moment: Moment | None) -> Iterator[None]:
        yield
        if moment is not None:
            self._crash()

    def _crash(self) -> None:
        self._end_process(CRASHED)


def file_kind(path: Path) -> str:
    """Return the sort of file or directory of a data directory that a path names; a draft of a file is of the file's sort."""
    name = path.name.removesuffix(" (deleted)").removesuffix(".tmp")
    if path.parent.name == "journal":
        return "journal"
    if ".torn-at-" in name:
        return "torn"
    if path.parent.name == "topics":
        return "topic"
    if name in _FILES_BY_NAME:
        return _FILES_BY_NAME[name]
    return _FILES_BY_SUFFIX.get(Path(name).suffix, "file" if path.is_file() else "directory")


def _thread_kind() -> str:
    room, _, name = threading.current_thread().name.partition("-")
    return name.partition("_")[0] if room == "penstock" else "other"


def path_of(fd: int) -> Path:
    """Return the path of an open file; ` (deleted)` ends that of one without a name."""
    return Path(f"/proc/self/fd/{fd}").readlink()
