"""Restoring a backup to a data directory: copied aside, checked, and then named `topics` in one step.

    <data dir>/.restoring/topics/...      the copy, until it is checked

A directory with `.restoring` and without `topics` holds an unfinished restore. A broker does not start on it, and another restore begins
again. Once `topics` is there, the restore is done.

If damage is accepted, salvage.py makes what is left into a log that a broker starts on.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.errors import DataDirectoryInUse, InvalidRequest
from penstock.log.embedded.backup import Backup
from penstock.log.embedded.copying import (
    Directories,
    OnCopied,
    copy_file,
    make_directory,
    remove_quietly,
    storage_errors,
)
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.findings import Finding, Kind, OnProgress, Report, Severity
from penstock.log.embedded.manifest import (
    BACKUPS_MARKER,
    LOCK_FILE,
    MANIFEST_FILE,
    RESTORING_DIRECTORY,
    TOPICS_DIRECTORY,
    FileEntry,
    encode_manifest,
)
from penstock.log.embedded.recovery import TMP_SUFFIX
from penstock.log.embedded.salvage import salvage
from penstock.log.embedded.topicfiles import TopicFiles
from penstock.log.embedded.verify import CheckRecords, verify

_CLEAN_FILE: Final = "clean-shutdown"
_IN_EMPTY_DIRECTORIES: Final = {LOCK_FILE, RESTORING_DIRECTORY, "lost+found"}
"""What a restore that was interrupted leaves, and what a new file system has."""
_LEFT_AT_THE_END: Final = {_CLEAN_FILE, _CLEAN_FILE + TMP_SUFFIX}
"""What one that was interrupted just before its end leaves, too."""


def restore(
    backup: Backup,
    data_dir: Path,
    *,
    accept_damage: bool = False,
    check_records: CheckRecords | None = None,
    on_copied: OnCopied | None = None,
    on_checked: OnProgress | None = None,
    clock: Clock | None = None,
    disk: Disk | None = None,
) -> Report:
    """Copy a backup to a data directory that is missing or empty, and check all of it before it becomes the log of that directory.

    Every topic begins a new epoch: readers that have seen records which the backup does not hold continue at its end. If the report tells
    of damage, nothing is restored, unless that is accepted. Raises InvalidRequest, DataDirectoryInUse, NoSpace.
    """
    disk, clock = disk or Disk(), clock or SystemClock()
    data_dir = data_dir.resolve()
    remedy = "free some space or choose another DATA_DIR, then run the command again; nothing was restored"
    with storage_errors(data_dir, remedy), _restoring(disk, data_dir) as draft:
        changed = _copy_back(disk, backup, draft, on_copied)
        # The manifest tells the check where each file ends; a file whose checksum differs is reported here.
        unsummed = [msgspec.structs.replace(file, sha256="") for file in backup.manifest.files]
        manifest = msgspec.structs.replace(backup.manifest, files=unsummed)
        disk.write_file(draft / MANIFEST_FILE, encode_manifest(manifest), sync=False)
        report = verify(draft, check_records=check_records, on_progress=on_checked)
        for file in changed:
            text = "checksum mismatch: the file has changed since the backup"
            report.add(Finding(Severity.DAMAGE, Kind.FILE, file.path, None, text))
        if report.damage:
            if not accept_damage:
                return report
            salvage(disk, draft, backup.manifest, report)
        _begin_epochs(disk, draft, report, clock.now_ms())
        # The log is marked as cleanly stopped before it has its name: a start that scanned it might cut more than was reported.
        disk.write_file(data_dir / _CLEAN_FILE, b"")
        disk.rename(draft / TOPICS_DIRECTORY, data_dir / TOPICS_DIRECTORY)
        disk.sync_directory(data_dir)
        return report


@contextmanager
def _restoring(disk: Disk, data_dir: Path) -> Iterator[Path]:
    """Make a data directory, keep brokers and others who restore away from it, and give a place in it to copy to.

    The place is in the directory itself, which may be a file system of its own.
    """
    if (data_dir.parent / BACKUPS_MARKER).exists():
        raise InvalidRequest(f"{data_dir} is in a directory of backups: restore to a directory elsewhere")
    made = not data_dir.exists()
    if not made:
        _check_empty(data_dir)
    make_directory(disk, data_dir)
    draft = data_dir / RESTORING_DIRECTORY
    fd = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataDirectoryInUse(f"{data_dir} is in use by a broker or another restore") from None
        if draft.exists():
            disk.remove_tree(draft)  # of one that was interrupted
        disk.make_directory(draft)
        disk.sync_directory(data_dir)
        try:
            yield draft
        finally:
            _clean_up(disk, data_dir, made=made)
    finally:
        os.close(fd)


def _check_empty(data_dir: Path) -> None:
    if not data_dir.is_dir():
        raise InvalidRequest(f"{data_dir} is not a directory: restore to a new one")
    found = {path.name for path in data_dir.iterdir()}
    if RESTORING_DIRECTORY in found:
        found -= _LEFT_AT_THE_END
    if found - _IN_EMPTY_DIRECTORIES:
        raise InvalidRequest(f"{data_dir} is not empty: restore to a new directory, and nothing is overwritten")


def _clean_up(disk: Disk, data_dir: Path, *, made: bool) -> None:
    """Remove what is not needed any more and, unless the log is there, all that was made."""
    restored = (data_dir / TOPICS_DIRECTORY).exists()
    if not restored:
        for name in _LEFT_AT_THE_END:
            (data_dir / name).unlink(missing_ok=True)
    remove_quietly(disk, data_dir / RESTORING_DIRECTORY)
    if not restored:
        (data_dir / LOCK_FILE).unlink(missing_ok=True)
        if made and not any(data_dir.iterdir()):
            data_dir.rmdir()


def _copy_back(disk: Disk, backup: Backup, draft: Path, on_copied: OnCopied | None) -> list[FileEntry]:
    """Copy the files of a backup that are there; returns those that are not as they were written."""
    directories = Directories(disk, draft)
    directories.make(TOPICS_DIRECTORY)
    changed = []
    for file in backup.manifest.files:
        directories.make(str(PurePosixPath(file.path).parent))
        source = backup.path / file.path
        if source.exists() and copy_file(disk, source, draft / file.path, file.bytes, on_copied) != file.sha256:
            changed.append(file)
    directories.sync()
    return changed


def _begin_epochs(disk: Disk, data_dir: Path, report: Report, now_ms: int) -> None:
    """Note in every topic that its log was cut where it ends now."""
    files = TopicFiles(disk, data_dir / TOPICS_DIRECTORY)
    ends = {topic.topic: topic.ends for topic in report.topics}
    for topic in files.load_all():
        files.save(topic._replace(epochs=topic.epochs.begun(ends[topic.info.name], now_ms)))
