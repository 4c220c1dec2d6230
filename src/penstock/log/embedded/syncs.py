"""Syncing many files at a start, a few at a time: the file system puts those that wait at once into one write of its journal."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Final

from penstock.log.embedded.disk import Disk

SYNC_THREADS: Final = 4
_UNDER_WAY_MAX: Final = 64
"""Files that wait for their turn, and are open for as long."""


class Syncs:
    """Files that were written and must be synced before the log is served. Used by one thread."""

    def __init__(self, disk: Disk, pool: Executor | None = None) -> None:
        """Without a pool each file is synced at once."""
        self._disk = disk
        self._pool = pool
        self._under_way: deque[Future[None]] = deque()
        self._owed: dict[Path, None] = {}

    def owe(self, path: Path) -> None:
        """This file was written, and may be written again before it is synced: by `put`, or by `finish` at the latest."""
        self._owed[path] = None

    def put(self, path: Path, fd: int) -> None:
        """Sync a file and close the descriptor. What goes wrong is raised here or by `finish`."""
        self._owed.pop(path, None)
        if self._pool is None:
            self._sync(fd)
            return
        self._under_way.append(self._pool.submit(self._sync, fd))
        if len(self._under_way) > _UNDER_WAY_MAX:
            self._under_way.popleft().result()

    def finish(self) -> None:
        """Sync what is left; returns once everything is synced."""
        while self._owed:
            path = next(iter(self._owed))
            try:
                fd = self._disk.open_append(path, create=False)
            except FileNotFoundError:
                del self._owed[path]  # a rewrite that the start has finished took its place, synced before it was named
            else:
                self.put(path, fd)
        while self._under_way:
            self._under_way.popleft().result()

    def _sync(self, fd: int) -> None:
        try:
            self._disk.fdatasync(fd)
        finally:
            os.close(fd)
