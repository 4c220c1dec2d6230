"""The manifest of a snapshot or a backup: which files belong to it, and how many bytes of each.

A snapshot is a directory of hard links to segment files, some of which still grow; a backup is a directory of copies. Both have the
layout of a data directory and a manifest that says where each file ends, so whatever reads one can read the other. In a backup
every file has a checksum too.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from penstock.errors import CorruptMetadata, DataDirectoryInUse, UnsupportedFormat
from penstock.log.salts import decode_metadata, encode_metadata

MANIFEST_FILE: Final = "manifest.json"
MANIFEST_FORMAT: Final = 1
LOCK_FILE: Final = "LOCK"
TOPICS_DIRECTORY: Final = "topics"
RESTORING_DIRECTORY: Final = ".restoring"
"""In a data directory: what a restore has copied so far."""
BACKUPS_MARKER: Final = ".penstock-backups"
"""A file that marks a directory of backups."""


class FileEntry(msgspec.Struct, frozen=True):
    path: str
    """From the directory of the manifest, with slashes."""
    bytes: int
    """How much of the file belongs to it; the file of a snapshot may be longer."""
    mtime_ns: int = 0
    """When the broker last wrote to the file that this is a link to or a copy of."""
    sha256: str = ""
    """Of a file in a backup, in hexadecimal."""


class TopicEntry(msgspec.Struct, frozen=True):
    name: str
    id: str
    starts: list[int]
    """The lowest offset of each partition."""
    ends: list[int]
    """The offset after the last record of each partition."""


class Manifest(msgspec.Struct, frozen=True):
    format: int
    id: str
    moment_ms: int
    """When the snapshot was taken: everything acknowledged before is in it."""
    topics: list[TopicEntry]
    files: list[FileEntry]

    @property
    def size_bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    return encode_metadata(msgspec.to_builtins(manifest))


def read_manifest(directory: Path) -> Manifest | None:
    """Return the manifest of a directory, None if it has none.

    Raises CorruptMetadata if it is damaged or names files elsewhere, UnsupportedFormat if another release wrote it.
    """
    path = directory / MANIFEST_FILE
    try:
        found = decode_metadata(path.read_bytes())
        if found.get("format") != MANIFEST_FORMAT:
            raise UnsupportedFormat(
                f"{path} has format {found.get('format')}, and this release reads format {MANIFEST_FORMAT}: use the release that wrote it"
            )
        manifest = msgspec.convert(found, Manifest)
    except FileNotFoundError:
        return None
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptMetadata(f"{path} is damaged: {error}; choose another backup") from error
    for file in manifest.files:
        parts = PurePosixPath(file.path).parts
        if parts[:1] != (TOPICS_DIRECTORY,) or ".." in parts or "\0" in file.path or file.bytes < 0:
            raise CorruptMetadata(f"{path} names {file.path!r}, which is not a log file; choose another backup")
    return manifest


@contextmanager
def holding(directory: Path, remedy: str) -> Iterator[None]:
    """Keep a broker from starting in a data directory, or from removing a snapshot, while it is read. Changes nothing.

    Raises DataDirectoryInUse, with the remedy, if a broker runs there. A directory without a lock file, such as a backup, is not locked.
    """
    try:
        fd = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            raise DataDirectoryInUse(f"a broker is running on {directory}; {remedy}") from None
        yield
    finally:
        os.close(fd)
