"""Snapshots: the files of every topic as they were at one moment, kept for a reader while the broker continues.

    snapshots/<id>/LOCK              held (shared `flock`) by the reader of the snapshot
    snapshots/<id>/manifest.json     see manifest.py
    snapshots/<id>/topics/...        hard links, laid out as in the data directory

A link costs no space and no time, and keeps a file that retention, compaction or the deletion of its topic removes. Bytes of a segment that
were committed never change in place, so also a link to the segment being written is a snapshot: of the bytes up to the committed
end, which the manifest tells. On a file system without hard links the files are copied.

A snapshot that nobody holds is removed: as soon as its reader releases it, by the maintenance of the engine some time after it was made,
and by the next start. The lock of a reader that dies is released by the system, so nothing has to be told to the broker.
"""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from penstock.clock import Clock
from penstock.errors import LimitExceeded
from penstock.log.api import Snapshot, TopicInfo
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.manifest import (
    LOCK_FILE,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    TOPICS_DIRECTORY,
    FileEntry,
    Manifest,
    TopicEntry,
    encode_manifest,
)
from penstock.log.embedded.segment import INDEX_SUFFIX, Segment
from penstock.log.salts import METADATA_COPY, METADATA_FILE

log = structlog.get_logger(__name__)

SNAPSHOTS_DIRECTORY: Final = "snapshots"
UNHELD_S_MAX: Final = 60.0
"""How long a new snapshot waits for its reader."""
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)
_COPY_STEP_BYTES: Final = 1 << 20


class SegmentLink(NamedTuple):
    segment: Segment
    end: int
    """How many bytes are committed."""


class TopicLinks(NamedTuple):
    """The files of one topic at the moment of a snapshot."""

    info: TopicInfo
    directory: Path
    starts: list[int]
    ends: list[int]
    partitions: list[list[SegmentLink]]


class Snapshots:
    """Makes and removes snapshots. Methods block."""

    def __init__(self, disk: Disk, clock: Clock, root: Path, snapshots_max: int) -> None:
        self._disk = disk
        self._clock = clock
        self._root = root
        self._snapshots_max = snapshots_max
        self._made_at: dict[str, float] = {}
        """When the snapshots of this run were made, by id."""

    def create(self, moment_ms: int, topics: Sequence[TopicLinks]) -> Snapshot:
        """Link the files. The caller sees to it that no topic is deleted meanwhile; segments may be removed and replaced."""
        self.remove_unheld()
        if len(self._directories()) >= self._snapshots_max:
            raise LimitExceeded(
                f"there are {self._snapshots_max} snapshots in {self._root} already, for backups and checks that are running or were "
                f"killed within the last {UNHELD_S_MAX:.0f} s: wait for one to end, or raise log.snapshots_max"
            )
        snapshot_id = uuid.uuid4().hex
        directory = self._root / snapshot_id
        self._made_at[snapshot_id] = self._clock.monotonic()
        try:
            directory.mkdir(parents=True)
            (directory / LOCK_FILE).touch()
            files: list[FileEntry] = []
            for topic in topics:
                files += self._link_topic(directory, topic)
            entries = [TopicEntry(topic.info.name, topic.info.id, topic.starts, topic.ends) for topic in topics]
            manifest = Manifest(MANIFEST_FORMAT, snapshot_id, moment_ms, entries, files)
            # Last: a directory with a manifest is a whole snapshot.
            self._disk.write_file(directory / MANIFEST_FILE, encode_manifest(manifest), sync=False)
        except BaseException:
            self._remove(directory)
            raise
        return Snapshot(snapshot_id, str(directory.resolve()))

    def _link_topic(self, directory: Path, topic: TopicLinks) -> list[FileEntry]:
        copy = directory / TOPICS_DIRECTORY / topic.directory.name
        copy.mkdir(parents=True)
        files = [
            self._link(directory, topic.directory / name, copy / name, None)
            for name in (METADATA_FILE, METADATA_COPY)
            if (topic.directory / name).exists()
        ]
        for index, segments in enumerate(topic.partitions):
            (copy / str(index)).mkdir()
            for segment, end in segments:
                target = copy / str(index) / segment.path.name
                files += self._link_segment(directory, target, segment, end, sealed=segment is not segments[-1].segment)
        return files

    def _link_segment(
        self, directory: Path, target: Path, segment: Segment, end: int, *, sealed: bool
    ) -> list[FileEntry]:
        """Link a segment and, once it is sealed, its index."""
        saved, target_index = segment.index_path, target.with_suffix(INDEX_SUFFIX)
        try:
            files = [self._link(directory, segment.path, target, end)]
            if sealed and saved.exists():
                files.append(self._link(directory, saved, target_index, None))
            if not segment.detached:
                return files
        except FileNotFoundError:
            if not segment.detached:
                raise
        # Removed or replaced meanwhile, and what was linked may be the other file. The one that was meant is still open.
        target.unlink(missing_ok=True)
        target_index.unlink(missing_ok=True)
        file = segment.open()
        _copy(file.fd, target, end)
        return [_entry(directory, target, end)]

    def _link(self, directory: Path, path: Path, target: Path, end: int | None) -> FileEntry:
        try:
            self._disk.link(path, target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            fd = self._disk.open_read(path)
            try:
                _copy(fd, target, end)
            finally:
                os.close(fd)
        return _entry(directory, target, end)

    def release(self, snapshot_id: str) -> None:
        """Stop waiting for a reader of a snapshot, and remove it unless one holds it."""
        self._made_at.pop(snapshot_id, None)
        self.remove_unheld()

    def remove_unheld(self) -> None:
        """Remove the snapshots that no reader holds, but those that were made a moment ago."""
        for directory in self._directories():
            made_at = self._made_at.get(directory.name)
            if made_at is not None and self._clock.monotonic() - made_at < UNHELD_S_MAX:
                continue
            if not _is_held(directory):
                self._remove(directory)

    def _directories(self) -> list[Path]:
        return [path for path in self._root.iterdir() if path.is_dir()] if self._root.exists() else []

    def _remove(self, directory: Path) -> None:
        try:
            self._disk.remove_tree(directory)
            self._made_at.pop(directory.name, None)
        except OSError as error:
            # It costs space, which a later pass gets back.
            log.warning("snapshot_not_removed", directory=str(directory), error=str(error))


def _is_held(directory: Path) -> bool:
    try:
        fd = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _entry(directory: Path, target: Path, end: int | None) -> FileEntry:
    found = target.stat()
    return FileEntry(target.relative_to(directory).as_posix(), found.st_size if end is None else end, found.st_mtime_ns)


def _copy(fd: int, target: Path, end: int | None) -> None:
    found = os.fstat(fd)
    size_bytes = found.st_size if end is None else end
    position = 0
    with target.open("xb") as copy:
        while data := os.pread(fd, min(size_bytes - position, _COPY_STEP_BYTES), position):
            copy.write(data)
            position += len(data)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
