"""Checking a whole data directory, block by block, without changing anything.

A directory is judged as the next start will find it: the journal is applied in memory, an interrupted rewrite counts as finished, and a
torn tail that recovery will cut is a note. Everything that was written and is missing or different is damage. A snapshot or a backup has
a manifest, which says where each file ends; nothing in one is torn.

One segment is checked by `verify_segment.py`. What records mean is not known here: `check_records` is handed each block.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from penstock.errors import CorruptMetadata, InvalidRequest, PenstockError
from penstock.log.block import Block
from penstock.log.embedded.clean_stop import CLEAN_STOP_FILE, Ends, read_clean_stop
from penstock.log.embedded.findings import Finding, Kind, OnProgress, Report, Severity, TopicReport
from penstock.log.embedded.journal import journal_paths, read_records
from penstock.log.embedded.manifest import (
    BACKUPS_MARKER,
    MANIFEST_FILE,
    TOPICS_DIRECTORY,
    Manifest,
    holding,
    read_manifest,
)
from penstock.log.embedded.overlay import OverlayDisk
from penstock.log.embedded.recovery import TMP_SUFFIX, RedoTargets, is_unused
from penstock.log.embedded.rewrite import DRAFT_SUFFIX, SWAP_SUFFIX, is_superseded, swap_paths
from penstock.log.embedded.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    offset_range,
    read_head,
    segment_paths,
)
from penstock.log.embedded.topicfiles import StoredTopic, TopicFiles, decode_topic
from penstock.log.embedded.verify_segment import Progress, SegmentCheck, Where
from penstock.log.salts import METADATA_COPY, METADATA_FILE

CheckRecords = Callable[[str, Block], str | None]
"""Returns what is wrong with the records of a block of a topic, or None."""

_JOURNAL_DIRECTORY: Final = "journal"
_NOT_OURS: Final = "not a file of the log; it is ignored"
_TORN_SUFFIX: Final = re.compile(r"\.torn-at-[0-9]+")


def verify(
    data_dir: Path, *, check_records: CheckRecords | None = None, on_progress: OnProgress | None = None
) -> Report:
    """Check everything in a data directory, a snapshot or a backup.

    Raises DataDirectoryInUse if a broker runs there, InvalidRequest if it is no data directory, and UnsupportedFormat.
    """
    if not (data_dir / TOPICS_DIRECTORY).is_dir():
        hint = ": check one backup, with: penstock verify TARGET/ID" if (data_dir / BACKUPS_MARKER).exists() else ""
        raise InvalidRequest(f"{data_dir} is not a Penstock data directory (no {TOPICS_DIRECTORY}/ in it){hint}")
    with holding(data_dir, "check it through the broker, with: penstock verify --server URL"):
        TopicFiles(OverlayDisk(), data_dir / TOPICS_DIRECTORY).check_format()
        manifest, fault = _find_manifest(data_dir)
        return _Verification(data_dir, manifest, fault, check_records, on_progress).run()


def size_bytes(data_dir: Path) -> int:
    """Return how many bytes of segments a check is going to read, about."""
    manifest, _ = _find_manifest(data_dir)
    if manifest is not None:
        return sum(file.bytes for file in manifest.files if file.path.endswith(LOG_SUFFIX))
    return sum(path.stat().st_size for path in (data_dir / TOPICS_DIRECTORY).glob(f"*/*/*{LOG_SUFFIX}"))


def _find_manifest(directory: Path) -> tuple[Manifest | None, str | None]:
    """Return the manifest of a snapshot or a backup, or what is wrong with it; a data directory has neither."""
    try:
        manifest = read_manifest(directory)
    except CorruptMetadata as error:
        return None, str(error)
    if manifest is None and (directory.resolve().parent / BACKUPS_MARKER).exists():
        return None, "the manifest of the backup is missing: which files belong to it is unknown; choose another backup"
    return manifest, None


class _Verification:
    def __init__(
        self,
        data_dir: Path,
        manifest: Manifest | None,
        manifest_fault: str | None,
        check_records: CheckRecords | None,
        on_progress: OnProgress | None,
    ) -> None:
        self._root = data_dir
        self._manifest = manifest
        self._sizes = {} if manifest is None else {data_dir / file.path: file.bytes for file in manifest.files}
        self._late: defaultdict[tuple[bytes, int], dict[bytes, int]] = defaultdict(dict)
        """By partition and key: late records in the journal, and the offset that each comes before."""
        self._promised = {
            (topic.name, index): span
            for topic in (manifest.topics if manifest else ())
            for index, span in enumerate(zip(topic.starts, topic.ends, strict=True))
        }
        """First offset and end of each partition, as the manifest has them."""
        self._manifest_fault = manifest_fault
        self._whole = manifest is not None or manifest_fault is not None
        """Whether it is a snapshot or a backup, in which nothing is torn."""
        self._check_records = check_records
        self._progress = Progress(on_progress)
        self._disk = OverlayDisk()
        self._files = TopicFiles(self._disk, data_dir / TOPICS_DIRECTORY)
        self._report = Report(str(data_dir), None if manifest is None else manifest.moment_ms)
        ends = self._read_clean_stop()
        self._clean = self._whole or ends is not None
        self._ends_at_stop = ends or {}

    def run(self) -> Report:
        for path in sorted(self._root.iterdir()):
            if path.suffix == TMP_SUFFIX:  # other files next to the log, such as certificates, are none of its business
                self._leftover(path, None)
        if self._manifest_fault is not None:
            self._damage(Kind.FILE, self._root / MANIFEST_FILE, None, self._manifest_fault)
        if self._manifest is not None:
            self._check_files(self._manifest)
        topics = self._load_topics()
        if not self._clean:
            self._apply_journals(topics)
        for topic in topics:
            self._check_topic(topic)
        self._progress.flush()
        return self._report

    # -- the directory ----------------------------------------------------------------------------------------------------

    def _read_clean_stop(self) -> Ends | None:
        try:
            return read_clean_stop(self._root)
        except ValueError as error:
            text = f"the mark of a clean stop is damaged ({error}); the next start checks the log as after a crash"
            self._damage(Kind.METADATA, self._root / CLEAN_STOP_FILE, None, text)
            return None

    def _check_files(self, manifest: Manifest) -> None:
        """Check the files against the manifest: all there, long enough, and with the checksums that a backup has."""
        for file in manifest.files:
            path = self._root / file.path
            try:
                found = path.stat().st_size
                if found < file.bytes:
                    self._damage(Kind.FILE, path, found, f"the file has {found} of {file.bytes} bytes")
                elif file.sha256 and _sha256(path) != file.sha256:
                    self._damage(Kind.FILE, path, None, "checksum mismatch: the file has changed since the backup")
            except FileNotFoundError:
                self._damage(Kind.FILE, path, None, "the file is missing")
            except OSError as error:
                self._damage(Kind.FILE, path, None, f"the file cannot be read: {error.strerror or error}")

    def _load_topics(self) -> list[StoredTopic]:
        topics: list[StoredTopic] = []
        names: dict[str, Path] = {}
        for directory in sorted((self._root / TOPICS_DIRECTORY).iterdir()):
            if not directory.is_dir():
                self._note(Kind.FILE, directory, None, _NOT_OURS)
                continue
            if directory.name.endswith(DELETED_SUFFIX):
                self._leftover(directory, None)
                continue
            topic = self._load_topic(directory)
            if topic is None:
                continue
            expected = self._files.directory(topic.info)
            if expected != directory:
                text = f"the directory was renamed or copied: its metadata says {expected.name}"
                self._damage(Kind.METADATA, directory, None, text)
                continue
            twin = names.setdefault(topic.info.name, directory)
            if twin is not directory:
                text = f"topic {topic.info.name!r} is there twice, also in {twin.name}"
                self._damage(Kind.METADATA, directory, None, text)
            else:
                topics.append(topic)
        for entry in self._manifest.topics if self._manifest else ():
            if entry.name not in names:
                path = self._root / TOPICS_DIRECTORY
                self._damage(Kind.METADATA, path, None, f"topic {entry.name!r} of the manifest is missing")
        return topics

    def _load_topic(self, directory: Path) -> StoredTopic | None:
        found: list[StoredTopic] = []
        missing: list[Path] = []
        for name in (METADATA_FILE, METADATA_COPY):
            path = directory / name
            try:
                found.append(decode_topic(path.read_bytes()))
            except FileNotFoundError:
                missing.append(path)
            except (OSError, ValueError, KeyError, TypeError, msgspec.MsgspecError, PenstockError) as error:
                self._damage(Kind.METADATA, path, 0, f"the metadata cannot be read ({error})")
        if not found:
            if len(missing) < 2:
                self._damage(
                    Kind.METADATA, directory, None, "the topic has no good copy of its metadata and cannot be opened"
                )
            elif any(directory.glob("*/*")):
                self._damage(Kind.METADATA, directory, None, "the directory holds files but no metadata of a topic")
            else:
                self._note(
                    Kind.FILE, directory, None, "the creation of a topic was interrupted; the next start removes it"
                )
            return None
        for path in missing:
            self._note(Kind.METADATA, path, None, "one copy is missing; the next start writes it again")
        if found[0] != found[-1]:
            text = f"the copies differ, as after a crash between the two; {METADATA_FILE} counts"
            self._note(Kind.METADATA, directory / METADATA_COPY, None, text)
        for path in sorted(directory.iterdir()):
            number = int(path.name) if path.name.isascii() and path.name.isdigit() else -1
            if number >= found[0].info.config.partitions:
                text = "adding partitions was interrupted; the directory is used once they are added"
                self._note(Kind.FILE, path, None, text, found[0].info.name)
            elif path.name not in (METADATA_FILE, METADATA_COPY) and number < 0:
                self._leftover(path, found[0].info.name)
        return found[0]

    def _apply_journals(self, topics: Iterable[StoredTopic]) -> None:
        """Show the segments as they are once the next start has applied the journal."""
        infos = {bytes.fromhex(topic.info.id): topic.info for topic in topics}

        def partition_directory(topic_id: bytes, index: int) -> Path | None:
            info = infos.get(topic_id)
            directory = None if info is None else self._files.partition_directory(info, index)
            return directory if directory is not None and directory.is_dir() else None

        targets = RedoTargets(self._disk, partition_directory)
        directory = self._root / _JOURNAL_DIRECTORY
        for path in journal_paths(directory):
            damaged: list[int] = []
            torn: list[int] = []
            for entries in read_records(path.read_bytes(), damaged.append, torn.append):
                for entry in entries:
                    if entry.is_late:
                        self._late[entry.topic_id, entry.partition][entry.late_record()[0]] = entry.position
                        continue
                    target = targets.find(entry)
                    if target is not None:
                        self._disk.patch(target, entry.position, entry.data)
            for position in damaged:
                self._damage(
                    Kind.JOURNAL,
                    path,
                    position,
                    "a record or head is damaged; whole records are applied by the next start",
                )
            for position in torn:
                text = "a torn write of a commit that was not acknowledged; the next start applies it if its record is whole"
                self._note(Kind.JOURNAL, path, position, text)
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if path.suffix != ".journal":
                self._leftover(path, None)

    # -- topics -----------------------------------------------------------------------------------------------------------

    def _check_topic(self, topic: StoredTopic) -> None:
        info = topic.info
        report = TopicReport(info.name, info.config.partitions)
        self._report.topics.append(report)
        damage_before = self._report.damage
        for index in range(info.config.partitions):
            damage_before_this = self._report.damage
            directory = self._files.partition_directory(info, index)
            if directory.is_dir():
                start, end = self._check_partition(topic, index, directory, report)
            else:
                self._damage(Kind.FILE, directory, None, "the directory of a partition is missing", info.name)
                start = end = 0
            late = self._late[bytes.fromhex(info.id), index].values()
            report.ends.append(end + sum(position >= end for position in late))
            promised = self._promised.get((info.name, index), (start, end))
            if self._report.damage == damage_before and promised != (start, end):
                text = "holds offsets {} to {}, and the manifest says {} to {}".format(start, end, *promised)
                self._damage(Kind.SEGMENT, directory, None, text, info.name)
            stopped_at = dict(enumerate(self._ends_at_stop.get(info.id, ()))).get(index, 0)
            if self._report.damage == damage_before_this and end < stopped_at:
                text = f"ends at offset {end}, and ended at {stopped_at} at the clean stop: its last segment is missing or cut"
                self._damage(Kind.SEGMENT, directory, None, text, info.name)
            elif self._report.damage == damage_before_this and end < topic.start(index):
                text = f"ends at offset {end}, and was truncated to {topic.start(index)}: its last segment is missing or cut"
                self._damage(Kind.SEGMENT, directory, None, text, info.name)
        report.damage = self._report.damage - damage_before

    def _check_partition(self, topic: StoredTopic, index: int, directory: Path, report: TopicReport) -> tuple[int, int]:
        """Check the segments of a partition in order; returns its first offset and the one after its last record."""
        paths = self._segment_paths(topic, directory)
        with_segment = {path.with_suffix(INDEX_SUFFIX) for path in paths}
        start, end = self._check_segments(topic, index, directory, paths, report)
        start = max(start, topic.start(index))
        for orphan in sorted(set(directory.glob(f"*{INDEX_SUFFIX}")) - with_segment):
            head = read_head(orphan) if orphan in segment_paths(directory, INDEX_SUFFIX) else None
            if head is not None and head.next_offset > end:
                text = f"the segment of this index is missing: it held records up to offset {head.next_offset - 1}"
                self._damage(Kind.SEGMENT, orphan, None, text, topic.info.name)
            else:
                self._note(Kind.INDEX, orphan, None, "an index without a segment", topic.info.name)
        return start, end

    def _check_segments(
        self, topic: StoredTopic, index: int, directory: Path, paths: list[Path], report: TopicReport
    ) -> tuple[int, int]:
        if not paths:
            if not self._clean and not any(directory.iterdir()) and not self._was_written(topic):
                text = "the creation of the topic was interrupted; the next start finishes it"
                self._note(Kind.FILE, directory, None, text, topic.info.name)
            else:
                self._damage(Kind.SEGMENT, directory, None, "the partition has no segment", topic.info.name)
            return 0, 0
        # As in recovery: a last segment that nothing was written to may stem from a roll that failed.
        unused = paths.pop() if len(paths) > 1 and self._is_unused(paths[-1]) else None
        name = topic.info.name
        check_block = None if self._check_records is None else partial(self._check_records, name)
        where = Where(offset_range(paths[0])[0])
        for path in paths:
            begins = offset_range(path)[0]
            if begins != where.next_offset:
                self._gap(path, where, name)
            last = path is paths[-1] and offset_range(path)[1] is None
            check = SegmentCheck(
                self._disk,
                path,
                self._sizes[path] if path in self._sizes else self._disk.size_of(path),
                topic.salts(index),
                Where(begins, where.last_timestamp_ms),
                report=partial(self._add, topic=name),
                check_block=check_block,
                # A rewrite makes it last, and a snapshot leaves it out if the segment was replaced while it was taken.
                clean=self._clean,
                index_expected=path.suffix != SWAP_SUFFIX and self._manifest is None,
                progress=self._progress,
            )
            if last:
                flushed = topic.info.config.durability.mode == "fsync"
                where = check.run_last(flushed=flushed, whole=self._whole)
            else:
                where = check.run_sealed()
            report.segments += 1
            report.blocks += check.blocks
            report.records += check.records
            report.bytes += check.bytes
        if unused is not None and offset_range(unused)[0] > where.next_offset:
            self._gap(unused, where, name)
        end = where.next_offset if unused is None else max(where.next_offset, offset_range(unused)[0])
        return offset_range(paths[0])[0], end

    def _was_written(self, topic: StoredTopic) -> bool:
        """Whether a partition of a topic holds anything."""
        segments = self._files.directory(topic.info).glob(f"*/*{LOG_SUFFIX}")
        return not all(self._is_unused(path) for path in segments)

    def _is_unused(self, path: Path) -> bool:
        if path in self._sizes:
            return self._sizes[path] == 0
        return is_unused(self._disk, path)

    def _segment_paths(self, topic: StoredTopic, directory: Path) -> list[Path]:
        """The segments that a start would open; an interrupted rewrite counts as finished."""
        logs, swaps = segment_paths(directory), swap_paths(directory)
        for path in sorted(set(directory.iterdir()) - {*logs, *swaps}):
            if path.suffix != INDEX_SUFFIX:
                self._leftover(path, topic.info.name)
        for swap in list(swaps):
            if is_superseded(swap, logs):
                swaps.remove(swap)
                text = "left by a rewrite that a later one has superseded; the next start removes it"
            else:
                base, end = offset_range(swap)
                assert end is not None
                logs = [path for path in logs if not base <= offset_range(path)[0] < end]
                text = "a rewrite was interrupted; the next start finishes it"
            self._note(Kind.FILE, swap, None, text, topic.info.name)
        # In the order of recovery: a file that covers no offsets stands before the one that begins where it ends.
        return sorted([*logs, *swaps], key=lambda path: path.with_suffix(LOG_SUFFIX).name)

    def _gap(self, path: Path, where: Where, topic: str) -> None:
        begins = offset_range(path)[0]
        if begins > where.next_offset:
            text = f"begins at offset {begins}, but the segment before ends at {where.next_offset}: a file is missing or cut"
        else:
            text = f"begins at offset {begins}, but the segment before goes up to {where.next_offset}: they overlap"
        self._damage(Kind.SEGMENT, path, None, text, topic)

    # -- findings ---------------------------------------------------------------------------------------------------------

    def _leftover(self, path: Path, topic: str | None) -> None:
        if path.suffix in (TMP_SUFFIX, DRAFT_SUFFIX, DELETED_SUFFIX):
            text = "work in progress that a crash interrupted; the next start removes it"
        elif _TORN_SUFFIX.fullmatch(path.suffix):
            text = "the copy of a torn tail that a start has cut; it can be deleted"
        elif path.suffix == ".damaged":
            text = "a journal in which a start found damage; it can be deleted once nobody needs it"
        else:
            text = _NOT_OURS
        self._note(Kind.FILE, path, None, text, topic)

    def _damage(self, kind: Kind, path: Path, position: int | None, text: str, topic: str | None = None) -> None:
        self._add(Severity.DAMAGE, kind, path, position, text, topic)

    def _note(self, kind: Kind, path: Path, position: int | None, text: str, topic: str | None = None) -> None:
        self._add(Severity.NOTE, kind, path, position, text, topic)

    def _add(
        self, severity: Severity, kind: Kind, path: Path, position: int | None, text: str, topic: str | None
    ) -> None:
        self._report.add(Finding(severity, kind, str(path.relative_to(self._root)), position, text, topic))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
