"""The files that segments are read from: opened when they are first read; a bounded number stays open.

A log may have more segments than a process may have files. So those read longest ago are closed when there are too many, and each of them
after a while without a reader; the next read opens it again. A reader holds the `ReadFile` while it reads, and the file is closed
when the last who holds it lets go: nobody reads from a descriptor that was closed, or given to another file, under them.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from typing import Final, NamedTuple, Protocol

READ_FILES_MAX: Final = 256
"""Kept open. Readers that are under way hold a few more, and so does each segment that lost its name while somebody reads it."""


class ReadFile:
    """An open file, closed when nobody holds this object any more."""

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd)


class Readable(Protocol):
    """What files are opened for: a segment."""

    read_file: ReadFile | None
    """None while it is not kept open. Changed by `ReadFiles` only."""
    detached: bool
    """Whether its file has lost its name, so that it could not be opened again."""

    def open_read(self) -> int: ...


class _Kept(NamedTuple):
    owner: weakref.ref[Readable]
    used_in: int
    """The period of its last use, see `close_idle`."""


class ReadFiles:
    """For one disk. Any thread may call any method."""

    def __init__(self, files_max: int = READ_FILES_MAX) -> None:
        self._files_max = files_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        """By the id of the owner, the one used longest ago first. An owner that is gone has closed its file."""
        self._period = 0

    def open(self, owner: Readable) -> ReadFile:
        """Return the owner's file, opened if need be."""
        with self._lock:
            file = self._opened(owner)
            if not owner.detached:
                self._kept[id(owner)] = _Kept(weakref.ref(owner), self._period)
                self._kept.move_to_end(id(owner))
                while len(self._kept) > self._files_max:
                    self._close_oldest()
        return file

    def detach(self, owner: Readable) -> None:
        """Open the owner's file before it loses its name, and keep it open for as long as somebody holds the owner."""
        with self._lock:
            self._opened(owner)
            owner.detached = True
            self._kept.pop(id(owner), None)

    def close_idle(self) -> None:
        """Close the files that were not used since the last but one call."""
        with self._lock:
            while self._kept and next(iter(self._kept.values())).used_in < self._period:
                self._close_oldest()
            self._period += 1

    def _opened(self, owner: Readable) -> ReadFile:
        if owner.read_file is None:
            owner.read_file = ReadFile(owner.open_read())
        return owner.read_file

    def _close_oldest(self) -> None:
        _, kept = self._kept.popitem(last=False)
        owner = kept.owner()
        if owner is not None:
            owner.read_file = None
