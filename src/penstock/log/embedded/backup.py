"""Backups: copies of snapshots in a directory of their own, and the way back to a data directory.

    <target>/.penstock-backups            marks a directory of backups; locked while one is written
    <target>/<id>/manifest.json           see manifest.py; with a checksum of every file
    <target>/<id>/topics/...              laid out as in a data directory
    <target>/<id>.partial/                a backup that is being written, or was interrupted

A backup is incremental: what the one before holds unchanged is not copied but linked to, so each backup is complete, and any of
them can be removed without harm to the others. Segments never change in place, so a file of the same name, length and time of its
last write is the same file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import CorruptMetadata, DataDirectoryInUse, EntryNotFound, InvalidRequest, NotWritten
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.findings import Finding, Kind, OnProgress, Report, Severity
from penstock.log.embedded.manifest import (
    LOCK_FILE,
    MANIFEST_FILE,
    TOPICS_DIRECTORY,
    FileEntry,
    Manifest,
    encode_manifest,
    holding,
    read_manifest,
)
from penstock.log.embedded.topicfiles import TopicFiles
from penstock.log.embedded.verify import CheckRecords, verify

_MARKER: Final = ".penstock-backups"
_PARTIAL_SUFFIX: Final = ".partial"
_CLEAN_FILE: Final = "clean-shutdown"
_RESTORING: Final = ".restoring"
_IN_EMPTY_DIRECTORIES: Final = {LOCK_FILE, _RESTORING, "lost+found"}
"""What a restore that was interrupted leaves, and what a new file system has."""
_COPY_STEP_BYTES: Final = 1 << 20

OnCopied = Callable[[int], None]
"""Called with the bytes that were copied, or found to be there already, since the last call."""


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


def back_up(
    snapshot: Path, snapshot_id: str, target: Path, on_copied: OnCopied | None = None, *, full: bool = False
) -> Backup:
    """Copy a snapshot to a directory of backups, which is made if it is missing; with `full`, also what the backup before holds.

    Raises InvalidRequest if that is something else or the snapshot is not to be found, NotWritten if another backup is being written there.
    """
    with holding(snapshot, "which is not expected of a snapshot"):
        manifest = read_snapshot(snapshot, snapshot_id)
        with _writing(target):
            return _Copying(snapshot, manifest, target, on_copied, full=full).run()


def backups(target: Path) -> list[Backup]:
    """Return the backups in a directory, oldest first; those whose manifest is damaged are left out. Raises InvalidRequest."""
    found = []
    for path in _backup_paths(target):
        try:
            manifest = read_manifest(path)
        except CorruptMetadata:
            continue
        if manifest is not None:
            found.append(Backup(path.name, path, manifest))
    return found


def find_backup(target: Path, backup_id: str | None) -> Backup:
    """Return a backup, the latest if none is named. Raises EntryNotFound, and CorruptMetadata if its manifest is damaged."""
    paths = _backup_paths(target)
    if backup_id is not None:
        paths = [path for path in paths if path.name == backup_id]
    manifest = read_manifest(paths[-1]) if paths else None
    if manifest is None:
        raise EntryNotFound(
            f"no backup {backup_id or ''} in {target} (see those there are with: penstock backup list {target})"
        )
    return Backup(paths[-1].name, paths[-1], manifest)


def restore(
    backup: Backup,
    data_dir: Path,
    *,
    accept_damage: bool = False,
    check_records: CheckRecords | None = None,
    on_copied: OnCopied | None = None,
    on_checked: OnProgress | None = None,
    clock: Clock | None = None,
) -> Report:
    """Copy a backup to a data directory that is missing or empty, and check all of it before it becomes the log of that directory.

    Every topic begins a new epoch: readers that have seen records which the backup does not hold continue at its end. If the report tells
    of damage, nothing is restored, unless that is accepted. Raises InvalidRequest.
    """
    data_dir = data_dir.resolve()
    with _restoring(data_dir) as draft:
        disk = Disk()
        changed = _copy_back(disk, backup, draft, on_copied)
        # The manifest tells the check where each file ends; a file that was copied with another checksum is reported here.
        unsummed = [msgspec.structs.replace(file, sha256="") for file in backup.manifest.files]
        manifest = msgspec.structs.replace(backup.manifest, files=unsummed)
        disk.write_file(draft / MANIFEST_FILE, encode_manifest(manifest), sync=False)
        report = verify(draft, check_records=check_records, on_progress=on_checked)
        for file in changed:
            text = "the file in the backup has another checksum than when it was written"
            report.add(Finding(Severity.DAMAGE, Kind.FILE, file.path, None, text))
        if report.damage and not accept_damage:
            return report
        _begin_epochs(disk, draft, report, (clock or SystemClock()).now_ms())
        # From here on it is the log of the directory. Without the mark of a clean stop, a start would only look at more of it.
        disk.rename(draft / TOPICS_DIRECTORY, data_dir / TOPICS_DIRECTORY)
        disk.sync_directory(data_dir)
        disk.write_file(data_dir / _CLEAN_FILE, b"")
        return report


@contextmanager
def _restoring(data_dir: Path) -> Iterator[Path]:
    """Make a data directory, keep brokers and others who restore away from it, and give a place in it to copy to.

    The place is in the directory itself, which may be a file system of its own.
    """
    made = not data_dir.exists()
    if not made and (not data_dir.is_dir() or {path.name for path in data_dir.iterdir()} - _IN_EMPTY_DIRECTORIES):
        raise InvalidRequest(f"{data_dir} is not empty: restore to a new directory, and nothing is overwritten")
    data_dir.mkdir(parents=True, exist_ok=True)
    draft = data_dir / _RESTORING
    fd = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataDirectoryInUse(f"{data_dir} is in use by a broker or another restore") from None
        shutil.rmtree(draft, ignore_errors=True)  # of one that was interrupted
        draft.mkdir()
        try:
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            if not (data_dir / TOPICS_DIRECTORY).exists():
                (data_dir / LOCK_FILE).unlink(missing_ok=True)
                if made:
                    data_dir.rmdir()
    finally:
        os.close(fd)


def _copy_back(disk: Disk, backup: Backup, draft: Path, on_copied: OnCopied | None) -> list[FileEntry]:
    """Copy the files of a backup that are there; returns those that are not as they were written."""
    directories = _Directories(disk, draft)
    directories.make(f"{TOPICS_DIRECTORY}/")
    changed = []
    for file in backup.manifest.files:
        directories.make(file.path)
        source = backup.path / file.path
        if source.exists() and _copy(disk, source, draft / file.path, file.bytes, on_copied) != file.sha256:
            changed.append(file)
    directories.sync()
    return changed


def _begin_epochs(disk: Disk, data_dir: Path, report: Report, now_ms: int) -> None:
    """Note in every topic that its log was cut where it ends now."""
    files = TopicFiles(disk, data_dir / TOPICS_DIRECTORY)
    ends = {topic.topic: topic.ends for topic in report.topics}
    for topic in files.load_all():
        files.save(topic._replace(epochs=topic.epochs.begun(ends[topic.info.name], now_ms)))


class _Copying:
    """The making of one backup."""

    def __init__(
        self, snapshot: Path, manifest: Manifest, target: Path, on_copied: OnCopied | None, *, full: bool
    ) -> None:
        self._snapshot = snapshot
        self._manifest = manifest
        self._target = target
        self._on_copied = on_copied
        self._disk = Disk()
        before = backups(target)
        self._before = before[-1] if before else None
        self._known = {file.path: file for file in before[-1].manifest.files} if before and not full else {}
        self._copied_bytes = 0

    def run(self) -> Backup:
        for leftover in self._target.glob(f"*{_PARTIAL_SUFFIX}"):
            shutil.rmtree(leftover)
        backup_id = self._id()
        draft = self._target / (backup_id + _PARTIAL_SUFFIX)
        draft.mkdir()
        try:
            return self._fill(draft, backup_id)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)  # if the disk is full, this is the space that is missing
            raise

    def _fill(self, draft: Path, backup_id: str) -> Backup:
        directories = _Directories(self._disk, draft)
        directories.make(f"{TOPICS_DIRECTORY}/")
        files = []
        for file in self._manifest.files:
            directories.make(file.path)
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
        if self._before is not None and backup_id <= self._before.id:
            raise NotWritten(
                f"the backup {self._before.id} in {self._target} is not older than this one: check the clock, or choose another directory"
            )
        return backup_id

    def _take(self, file: FileEntry, draft: Path) -> FileEntry:
        known = self._known.get(file.path)
        if known is not None and (known.bytes, known.mtime_ns) == (file.bytes, file.mtime_ns):
            assert self._before is not None
            if self._link(self._before.path / file.path, draft / file.path, file.bytes):
                if self._on_copied is not None:
                    self._on_copied(file.bytes)
                return known
        source, copy = self._snapshot / file.path, draft / file.path
        checksum = _copy(self._disk, source, copy, file.bytes, self._on_copied)
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


class _Directories:
    """Directories for files to be copied to, synced once all files are there."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self._made = {root}

    def make(self, path: str) -> None:
        """Make the directories of a file."""
        directory = (self._root / path).parent if not path.endswith("/") else self._root / path
        directory.mkdir(parents=True, exist_ok=True)
        while directory not in self._made:
            self._made.add(directory)
            directory = directory.parent

    def sync(self) -> None:
        for directory in sorted(self._made, reverse=True):
            self._disk.sync_directory(directory)


def _copy(disk: Disk, source: Path, target: Path, size_bytes: int, on_copied: OnCopied | None) -> str:
    """Copy the beginning of a file, as much as there is, and sync the copy; returns its SHA-256."""
    checksum = hashlib.sha256()
    position = 0
    with source.open("rb", buffering=0) as old, target.open("xb", buffering=0) as new:
        while data := old.read(min(size_bytes - position, _COPY_STEP_BYTES)):
            checksum.update(data)
            disk.write_all(new.fileno(), data, position)
            position += len(data)
            if on_copied is not None:
                on_copied(len(data))
        disk.fdatasync(new.fileno())
    return checksum.hexdigest()


def _backup_paths(target: Path) -> list[Path]:
    if not (target / _MARKER).exists():
        raise InvalidRequest(f"{target} is no directory of backups: make one with: penstock backup create {target}")
    return sorted(path for path in target.iterdir() if path.is_dir() and path.suffix != _PARTIAL_SUFFIX)


@contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Make the directory of backups if it is missing, and keep others from writing to it."""
    if target.is_dir() and any(target.iterdir()) and not (target / _MARKER).exists():
        raise InvalidRequest(f"{target} is not empty and no directory of backups: choose another")
    target.mkdir(parents=True, exist_ok=True)
    fd = os.open(target / _MARKER, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise NotWritten(f"another backup is being written to {target}: wait until it is done") from None
        yield
    finally:
        os.close(fd)
