"""Backups: copies of snapshots in a directory of their own. The way back is in restore.py.

    <target>/.penstock-backups            marks a directory of backups; locked while one is written
    <target>/<id>/manifest.json           see manifest.py; with a checksum of every file
    <target>/<id>/topics/...              laid out as in a data directory
    <target>/<id>.partial/                a backup that is being written, or was interrupted

Other names in the target are left alone. A backup is incremental: what the one before holds unchanged is not copied but linked to, so
each backup is complete, and any of them can be removed without harm to the others. Segments never change in place, so a file of the same
name, length and time of its last write is the same file. A restart of the broker changes that time, so if it differs the SHA-256 decides.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import msgspec

from penstock.errors import CorruptMetadata, EntryNotFound, InvalidRequest, NotWritten, PenstockError
from penstock.log.embedded.copying import (
    Directories,
    OnCopied,
    copy_file,
    make_directory,
    remove_quietly,
    sha256_of,
    storage_errors,
)
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.manifest import (
    BACKUPS_MARKER,
    MANIFEST_FILE,
    TOPICS_DIRECTORY,
    FileEntry,
    Manifest,
    encode_manifest,
    holding,
    read_manifest,
)

_PARTIAL_SUFFIX: Final = ".partial"
_ID: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z")
_IN_NEW_FILE_SYSTEMS: Final = {"lost+found"}
SNAPSHOT_REMEDY: Final = "it has removed this snapshot, because nobody read it in time: run the command again"
"""What to do if a snapshot cannot be locked."""


class Backup(NamedTuple):
    """A backup that is there."""

    id: str
    path: Path
    manifest: Manifest
    copied_bytes: int = 0
    """By the call that wrote it; the rest was linked to the backup before."""

    @property
    def records(self) -> int:
        """Offsets from the first to the last record, of all topics; compaction may have removed some of the records."""
        topics = self.manifest.topics
        return sum(end - start for topic in topics for start, end in zip(topic.starts, topic.ends, strict=True))


class UnreadableBackup(NamedTuple):
    """A backup whose manifest is missing or damaged."""

    id: str
    path: Path
    reason: str


def read_snapshot(snapshot: Path, snapshot_id: str) -> Manifest:
    """Return the manifest of a snapshot that a broker made. Raises InvalidRequest if its files are not to be found here."""
    try:
        manifest = read_manifest(snapshot)
    except PermissionError as error:
        raise InvalidRequest(
            f"{snapshot} cannot be read: run this as the user that the broker runs as ({error.strerror})"
        ) from error
    if manifest is None or manifest.id != snapshot_id:
        raise InvalidRequest(
            f"the broker's files are not here ({snapshot}): run this on the machine of the broker, where it sees the same data directory"
        )
    return manifest


def check_target(target: Path) -> None:
    """Raise InvalidRequest if a directory cannot take backups, NotWritten if one is being written there. Changes nothing."""
    if target.exists() and not target.is_dir():
        raise InvalidRequest(f"{target} is not a directory: choose another TARGET")
    if (target / BACKUPS_MARKER).exists():
        fd = os.open(target / BACKUPS_MARKER, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _lock(fd, target)
        finally:
            os.close(fd)
    elif target.is_dir() and {path.name for path in target.iterdir()} - _IN_NEW_FILE_SYSTEMS:
        raise InvalidRequest(f"{target} is not empty and not a directory of backups: choose another TARGET")


def back_up(
    snapshot: Path,
    snapshot_id: str,
    target: Path,
    on_copied: OnCopied | None = None,
    *,
    full: bool = False,
    disk: Disk | None = None,
) -> Backup:
    """Copy a snapshot to a directory of backups, which is made if it is missing; with `full`, also what the backup before holds.

    Raises InvalidRequest if that is something else or the snapshot is not to be found, NotWritten if another backup is being written there,
    NoSpace if its disk is full.
    """
    disk = disk or Disk()
    with holding(snapshot, SNAPSHOT_REMEDY):
        manifest = read_snapshot(snapshot, snapshot_id)
        data_dir = snapshot.resolve().parents[1]
        if target.resolve().is_relative_to(data_dir):
            raise InvalidRequest(
                f"{target} is in the data directory of the broker, {data_dir}: choose another TARGET, best on another disk"
            )
        remedy = "free some space, such as that of old backups, or choose another TARGET, then run the command again"
        with storage_errors(target, remedy), _writing(disk, target):
            return _Copying(disk, snapshot, manifest, target, on_copied, full=full).run()


def list_backups(target: Path) -> list[Backup | UnreadableBackup]:
    """Return the backups in a directory, oldest first. Raises InvalidRequest if it is no directory of backups."""
    found: list[Backup | UnreadableBackup] = []
    for path in _backup_paths(target):
        try:
            found.append(_read_backup(path))
        except (PenstockError, OSError) as error:
            found.append(UnreadableBackup(path.name, path, str(error)))
    return found


def backups(target: Path) -> list[Backup]:
    """Return the backups in a directory whose manifest can be read, oldest first. Raises InvalidRequest."""
    return [each for each in list_backups(target) if isinstance(each, Backup)]


def find_backup(target: Path, backup_id: str | None) -> Backup:
    """Return a backup, the latest if none is named. Raises EntryNotFound, and CorruptMetadata if its manifest is missing or damaged."""
    paths = _backup_paths(target)
    if backup_id is not None:
        paths = [path for path in paths if path.name == backup_id]
    if not paths:
        named = "no backup" if backup_id is None else f"no backup {backup_id}"
        raise EntryNotFound(f"{named} in {target} (list the backups with: penstock backup list {target})")
    return _read_backup(paths[-1])


def _read_backup(path: Path) -> Backup:
    manifest = read_manifest(path)
    if manifest is None:
        raise CorruptMetadata(f"{path / MANIFEST_FILE} is missing; choose another backup")
    return Backup(path.name, path, manifest)


def _backup_paths(target: Path) -> list[Path]:
    if not target.is_dir():
        raise InvalidRequest(f"{target} is not a directory")
    if not (target / BACKUPS_MARKER).exists():
        if (target / MANIFEST_FILE).exists() and _ID.fullmatch(target.resolve().name):
            raise InvalidRequest(
                f"{target} is one backup: use the directory that it is in, {target.parent}, with --at {target.resolve().name}"
            )
        raise InvalidRequest(
            f"{target} is not a directory of backups: name the TARGET of penstock backup create (a copy of one needs its empty file "
            f"{BACKUPS_MARKER}, too)"
        )
    return sorted(path for path in target.iterdir() if _ID.fullmatch(path.name) and path.is_dir())


class _Copying:
    """The making of one backup."""

    def __init__(
        self,
        disk: Disk,
        snapshot: Path,
        manifest: Manifest,
        target: Path,
        on_copied: OnCopied | None,
        *,
        full: bool,
    ) -> None:
        self._disk = disk
        self._snapshot = snapshot
        self._manifest = manifest
        self._target = target
        self._on_copied = on_copied
        before = backups(target)
        self._before = before[-1] if before else None
        self._known = {file.path: file for file in before[-1].manifest.files} if before and not full else {}
        self._copied_bytes = 0

    def run(self) -> Backup:
        for path in self._target.iterdir():
            if path.suffix == _PARTIAL_SUFFIX and _ID.fullmatch(path.stem):
                self._disk.remove_tree(path)
        backup_id = self._id()
        draft = self._target / (backup_id + _PARTIAL_SUFFIX)
        self._disk.make_directory(draft)
        try:
            return self._fill(draft, backup_id)
        except BaseException:
            remove_quietly(self._disk, draft)  # if the disk is full, this is the space that is missing
            raise

    def _fill(self, draft: Path, backup_id: str) -> Backup:
        directories = Directories(self._disk, draft)
        directories.make(TOPICS_DIRECTORY)
        files = []
        for file in self._manifest.files:
            directories.make(str(PurePosixPath(file.path).parent))
            files.append(self._take(file, draft))
        directories.sync()
        manifest = msgspec.structs.replace(self._manifest, id=backup_id, files=files)
        self._disk.write_file(draft / MANIFEST_FILE, encode_manifest(manifest))
        path = self._target / backup_id
        self._disk.rename(draft, path)
        self._disk.sync_directory(self._target)
        return Backup(backup_id, path, manifest, self._copied_bytes)

    def _id(self) -> str:
        """The moment of the backup, which is what people look for; later than that of the backup before, whatever the clock says."""
        moment = datetime.fromtimestamp(self._manifest.moment_ms / 1000, UTC)
        backup_id = moment.strftime("%Y%m%dT%H%M%S.") + f"{self._manifest.moment_ms % 1000:03d}Z"
        latest = max((path.name for path in _backup_paths(self._target)), default="")
        if backup_id <= latest:
            raise NotWritten(
                f"the backup {latest} in {self._target} is not older than this one: check the clock, or choose another TARGET"
            )
        return backup_id

    def _take(self, file: FileEntry, draft: Path) -> FileEntry:
        source, copy = self._snapshot / file.path, draft / file.path
        known = self._known.get(file.path)
        if known is not None and _is_unchanged(source, file, known):
            assert self._before is not None
            if self._link(self._before.path / file.path, copy, file.bytes):
                if self._on_copied is not None:
                    self._on_copied(file.bytes)
                return msgspec.structs.replace(known, mtime_ns=file.mtime_ns)
        checksum = copy_file(self._disk, source, copy, file.bytes, self._on_copied)
        if copy.stat().st_size != file.bytes:
            raise CorruptMetadata(f"{source} is shorter than the {file.bytes} bytes of it that are committed")
        self._copied_bytes += file.bytes
        return msgspec.structs.replace(file, sha256=checksum)

    def _link(self, old: Path, new: Path, size_bytes: int) -> bool:
        try:
            if old.stat().st_size != size_bytes:
                return False
            self._disk.link(old, new)
        except OSError:
            return False  # copied instead
        return True


def _is_unchanged(source: Path, file: FileEntry, known: FileEntry) -> bool:
    """Whether a file is the one that the backup before holds."""
    if file.bytes != known.bytes:
        return False
    return file.mtime_ns == known.mtime_ns or sha256_of(source, file.bytes) == known.sha256


@contextmanager
def _writing(disk: Disk, target: Path) -> Iterator[None]:
    """Make the directory of backups if it is missing, and keep others from writing to it."""
    check_target(target)
    make_directory(disk, target)
    fd = os.open(target / BACKUPS_MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _lock(fd, target)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, target: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise NotWritten(f"another backup is being written to {target}: wait until it is done") from None
