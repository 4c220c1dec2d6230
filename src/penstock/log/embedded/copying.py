"""Copying files for backups and restores, so that a copy survives a power cut once it is named.

A copy is synced before its directory, and each directory before the one that it is in: whoever finds a name after a power cut finds all
that belongs to it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.errors import NoSpace, NotWritten
from penstock.log.embedded.disk import Disk, is_full

_COPY_STEP_BYTES: Final = 1 << 20

OnCopied = Callable[[int], None]
"""Called with the bytes that were copied, or found to be there already, since the last call."""


class Directories:
    """Directories for files to be copied to, synced once all files are there."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._made = {root}

    def make(self, directory: str) -> None:
        """Create a directory, named from the root with slashes, and those it is in."""
        path = self._root / directory
        self._disk.make_directory(path)
        while path not in self._made:
            self._made.add(path)
            path = path.parent

    def sync(self) -> None:
        for directory in sorted(self._made, reverse=True):
            self._disk.sync_directory(directory)


def make_directory(disk: Disk, path: Path) -> None:
    """Create a directory and those it is in, if they do not exist, so that they survive a power cut."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    disk.make_directory(path)
    for each in missing:
        disk.sync_directory(each.parent)


def copy_file(disk: Disk, source: Path, target: Path, size_bytes: int, on_copied: OnCopied | None) -> str:
    """Copy the first bytes of a file, as many as there are, and sync the copy; returns its SHA-256."""
    checksum = hashlib.sha256()
    position = 0
    with source.open("rb", buffering=0) as old:
        fd = disk.open_draft(target)
        try:
            while data := old.read(min(size_bytes - position, _COPY_STEP_BYTES)):
                checksum.update(data)
                disk.write_all(fd, data, position)
                position += len(data)
                if on_copied is not None:
                    on_copied(len(data))
            disk.fdatasync(fd)
        finally:
            os.close(fd)
    return checksum.hexdigest()


def sha256_of(path: Path, size_bytes: int) -> str:
    """Return the SHA-256 of the first bytes of a file, as many as there are."""
    checksum = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while data := file.read(min(size_bytes, _COPY_STEP_BYTES)):
            checksum.update(data)
            size_bytes -= len(data)
    return checksum.hexdigest()


def remove_quietly(disk: Disk, directory: Path) -> None:
    """Remove a directory that is not needed any more. If that fails, the next run removes it."""
    try:
        disk.remove_tree(directory)
    except OSError:
        pass


@contextmanager
def storage_errors(directory: Path, remedy: str) -> Iterator[None]:
    """Name the directory in errors of its disk, which the system does not, and say what to do if the disk is full."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise NoSpace(f"no space left on the disk of {directory}: {remedy}") from error
        if error.filename is None:
            raise NotWritten(f"copying to {directory} failed: {error.strerror or error}; check the disk") from error
        raise
