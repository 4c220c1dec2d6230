"""Opening a partition, after a clean stop or a crash.

After a clean stop the saved indexes are trusted and nothing is scanned. Otherwise the last segment is scanned from where its index was
last saved, every block checked:
- reserved space (zeros) after the last whole commit stays reserved;
- a torn tail is cut off once with a log line, after a copy of it was put aside (`<base>.torn-at-<position>`): nothing is deleted on a
  guess. A tail is torn if a block is not whole, or the last one of its commit is missing, and no later commit follows. It is cut where
  its commit begins, so a commit of several blocks is there as a whole or not at all;
- damage that a later commit follows is no torn tail, since a commit is flushed before the next is written. It stays where it is and is
  reported; the blocks around it stay readable.

A log that ends before its saved indexes or the mark of a clean stop say has lost records that were synced: that is refused.

What the journal holds is put back first (`redo`), so that scanning sees the log as it was promised.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from penstock.errors import CorruptBlock, MissingSegment
from penstock.log.api import EngineStats, TopicInfo
from penstock.log.block import BEGINS, ENDS, HEADER_BYTES, Block
from penstock.log.embedded.disk import Disk, SpaceReserve, is_full
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.journal import JournalEntry, journal_paths, read_records
from penstock.log.embedded.rewrite import DRAFT_SUFFIX, finish_interrupted_rewrites
from penstock.log.embedded.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    Segment,
    SegmentWriter,
    file_names,
    is_segment_name,
    load_index,
    log_path,
    named_segments,
    offset_range,
    read_head,
    saved_head,
    segment_paths,
)
from penstock.log.embedded.syncs import Syncs
from penstock.log.salts import PartitionSalts

log = structlog.get_logger(__name__)
TMP_SUFFIX: Final = ".tmp"
ACCEPT_GAPS: Final = "--set log.accept_gaps=true"
_STEP_BYTES: Final = 1 << 20


class PartitionRecovery:
    """Brings one partition directory into a state that can be read and written. Methods block; used before serving."""

    def __init__(self, disk: Disk, stats: EngineStats, reserve: SpaceReserve, *, accept_gaps: bool) -> None:
        self._disk = disk
        self._stats = stats
        self._reserve = reserve
        self._accept_gaps = accept_gaps

    def open(
        self,
        info: TopicInfo,
        directory: Path,
        salts: PartitionSalts,
        now_ms: int,
        end_at_stop: int = 0,
        syncs: Syncs | None = None,
    ) -> tuple[list[Segment], SegmentWriter]:
        """Open a partition, which ended at `end_at_stop` or later. Raises MissingSegment if segments are missing, cut or misplaced.

        What it writes is synced once `syncs` is finished; without one, when it returns.
        """
        names = self._tidied(directory)
        paths = named_segments(directory, names)
        # A last segment that nothing was written to may stem from a roll that failed, after which the one before continued.
        unused = paths.pop() if len(paths) > 1 and is_unused(self._disk, paths[-1]) else None
        segments: list[Segment] = []
        last_timestamp_ms = reserved_to = 0
        there = set(names)
        for path in paths:
            indexed = path.stem + INDEX_SUFFIX in there
            segment = self._load(path, salts, last_timestamp_ms, indexed=indexed)
            if path is paths[-1] and offset_range(path)[1] is None:
                flushed = info.config.durability.mode == "fsync"
                reserved_to = self._open_last(segment, syncs or Syncs(self._disk), indexed=indexed, flushed=flushed)
            else:
                self._open_sealed(segment)
            segments.append(segment)
            last_timestamp_ms = segments[-1].index.last_timestamp_ms
        self._check_sequence(info, segments, unused)
        least_offset = self._check_end(info, directory, names, salts, segments, unused, end_at_stop)
        if not segments or segments[-1].index.sealed or segments[-1].index.next_offset < least_offset:
            return self._begin_segment(directory, salts, segments, unused, least_offset, now_ms)
        if unused is not None:
            self._disk.unlink(unused)
        last = segments[-1]
        writer = SegmentWriter(
            self._disk,
            last,
            create=False,
            created_ms=last.index.first_timestamp_ms or now_ms,
            reserved_to=reserved_to,
        )
        return segments, writer

    def _begin_segment(
        self,
        directory: Path,
        salts: PartitionSalts,
        segments: list[Segment],
        unused: Path | None,
        least_offset: int,
        now_ms: int,
    ) -> tuple[list[Segment], SegmentWriter]:
        before = segments[-1].index if segments else SegmentIndex(0)
        if segments and not before.sealed:
            self._seal(segments[-1])
        base_offset = max(before.next_offset, least_offset)
        path = log_path(directory, base_offset)
        if unused is not None and unused != path:
            self._disk.unlink(unused)
        index = SegmentIndex(base_offset, before.last_timestamp_ms)
        segment = Segment(self._disk, path, base_offset, index, 0, salts)
        writer = SegmentWriter(self._disk, segment, create=True, created_ms=now_ms)
        try:
            self._disk.sync_directory(directory)
        finally:
            writer.file.release()
        return [*segments, segment], writer

    def _seal(self, segment: Segment) -> None:
        fd = self._disk.open_append(segment.path, create=False)
        try:
            self._disk.truncate(fd, segment.end)
            self._disk.fdatasync(fd)
        finally:
            os.close(fd)
        segment.index.sealed = True
        self._save_index(segment)

    def _tidied(self, directory: Path) -> list[str]:
        """Finish or undo what a crash interrupted; only files whose suffix says that they are ours to take away. Returns what is there."""
        names = file_names(directory)
        if all(is_segment_name(name) or is_segment_name(name, INDEX_SUFFIX) for name in names):
            return names
        for name in sorted(names):
            if name.endswith((DRAFT_SUFFIX, DELETED_SUFFIX, TMP_SUFFIX)):
                self._disk.unlink(directory / name)
            elif name.endswith(LOG_SUFFIX) and not is_segment_name(name):
                log.warning("segment_name_invalid", file=str(directory / name))
        finish_interrupted_rewrites(self._disk, directory)
        return file_names(directory)

    def _open_sealed(self, segment: Segment) -> None:
        if not segment.index.sealed:
            base_offset, end_offset = offset_range(segment.path)
            segment.index.sealed = True
            segment.index.next_offset = base_offset if end_offset is None else end_offset
            segment.rebuild_index(segment.end)
            self._save_index(segment)

    def _save_index(self, segment: Segment) -> None:
        try:
            segment.save_index(segment.index.encode(), sync=False)
        except OSError as error:
            # A full disk must not keep the log from opening; the next start makes the index again.
            log.warning("index_not_saved", segment=str(segment.path), error=str(error))

    def _open_last(self, segment: Segment, syncs: Syncs, *, indexed: bool, flushed: bool) -> int:
        """Returns where its file ends, with the space that is reserved in it."""
        index, size = segment.index, segment.end
        if index.sealed:
            return size
        if indexed and (index.loaded or not _load_entries(segment)):
            self._rebuild_saved(segment)
        if segment.index.covers == size:
            return size  # an index is saved after its segment is synced, so all of it is on the disk
        segment.end, whole, reserved = self._scan(segment, segment.index.covers, size, flushed=flushed)
        fd = self._disk.open_append(segment.path, create=False)
        try:
            torn = not reserved and self._cut(segment, fd, size)
            self._write_again(segment, fd, whole)
        except BaseException:
            os.close(fd)
            raise
        syncs.put(segment.path, fd)
        return segment.end if torn else size

    def _rebuild_saved(self, segment: Segment) -> None:
        """Rebuild the index, as far as the saved one covered the segment. What is wrong there is no torn tail, since it was synced."""
        saved = saved_head(segment.path, self._disk, segment.salt)
        if saved is None or saved.covers > segment.end:
            return
        saved.sealed = False
        segment.index = saved
        damage = segment.rebuild_index(saved.covers)
        if damage is not None:
            self._stats.corrupt_blocks += 1
            log.error("block_corrupt", error=str(damage))

    def _load(self, path: Path, salts: PartitionSalts, last_timestamp_ms: int, *, indexed: bool) -> Segment:
        """A segment with its saved index, or an empty one if there is none that fits. `indexed`: whether an index file is there."""
        base_offset, _ = offset_range(path)
        size = path.stat().st_size
        index = load_index(path, size, self._disk, salts.of(path.stem)) if indexed else None
        if index is not None:
            return Segment(self._disk, path, base_offset, index, size, salts)
        segment = Segment(self._disk, path, base_offset, SegmentIndex(base_offset, last_timestamp_ms), size, salts)
        if size and segment.holds_blocks_of_another_file():
            segment.close()
            raise MissingSegment(
                f"{path} holds the blocks of another file: it was moved, renamed or swapped; put the right file back, or move this "
                f"one away and start with {ACCEPT_GAPS} (nothing was changed)"
            )
        saved = saved_head(path, self._disk, segment.salt) if indexed else None
        if saved is not None and saved.covers > size:
            segment.close()
            self._refuse_gap(
                f"{path} has {size} bytes, and had {saved.covers} when its index was saved: its end is missing"
            )
        return segment

    def _scan(
        self, segment: Segment, position: int, size: int, *, flushed: bool
    ) -> tuple[int, list[tuple[int, int]], bool]:
        """Check and index the blocks from `position` on; returns where the last whole commit ends, the ranges of whole blocks, and whether
        nothing but reserved space is known to follow that commit.

        In a topic that does not wait for flushes, a power cut may keep a later commit and lose an earlier one: what counts there is the
        part before that.
        """
        end = position
        whole: list[tuple[int, int]] = []
        commit: list[tuple[Block, int]] = []  # read so far of the commit that `end` is the beginning of
        while position < size:
            try:
                whole.append((position, position))
                for block_at, block in segment.blocks_from(position, size):
                    position = block_at + block.size_bytes
                    whole[-1] = (whole[-1][0], position)
                    if block.flags & BEGINS:
                        # What lies before was flushed, whole or not: it stays, and its offsets are not given out again.
                        _index(segment, commit)
                        end = segment.index.covers = block_at
                        segment.index.next_offset = block.base_offset
                    commit.append((block, block_at))
                    if block.flags & ENDS:
                        _index(segment, commit)
                        end = position
            except CorruptBlock as error:
                following = commit[-1][0].next_offset if commit else segment.index.next_offset
                if self._is_reserved(segment, position, size):
                    return end, whole, end == position
                if not flushed or segment.next_whole_block(position, size, following, begins=True) is None:
                    return end, whole, False
                behind = segment.next_whole_block(position, size, following)
                assert behind is not None, "the one that begins a commit is whole"
                self._stats.corrupt_blocks += 1
                log.error("block_corrupt", error=str(error), resumes_at=behind[0])
                position = behind[0]
        return end, whole, end == size

    def _is_reserved(self, segment: Segment, position: int, size: int) -> bool:
        """Whether nothing was written from a position on. Most segments end so, and one look at the file tells."""
        try:
            return end_of_data(self._disk, segment.open().fd, position, size) == position
        except OSError:
            return False  # the disk cannot read some of it

    def _cut(self, segment: Segment, fd: int, size: int) -> bool:
        """Cut a torn tail; False if there is none. Space that is reserved stays: to give it back and take it again costs more."""
        end = segment.end
        data_end = end_of_data(self._disk, fd, end, size)
        if data_end == end:
            return False
        self._stats.torn_tails += 1
        kept = segment.path.with_suffix(f".torn-at-{end}")
        copied = self._keep_aside(kept, fd, end, data_end)
        log.warning(
            "torn_tail_cut",
            file=str(segment.path),
            position=end,
            bytes=data_end - end,
            kept_as=kept.name if copied else None,
            next_offset=segment.index.next_offset,
        )
        self._disk.truncate(fd, end)
        return True

    def _write_again(self, segment: Segment, fd: int, ranges: list[tuple[int, int]]) -> None:
        """Write what is readable from here on once more, before it is synced, so that no power cut can take it back.

        It reads right already. But after a failed flush the system counts the pages as clean and keeps showing them, and a sync alone
        would not bring them to the disk.
        """
        try:
            for start, stop in ranges:
                end = min(stop, segment.end)
                for at in range(start, end, _STEP_BYTES):
                    self._disk.write_all(fd, self._disk.pread(fd, min(_STEP_BYTES, end - at), at), at)
        except OSError as error:
            if not is_full(error):
                raise
            # A full disk must not keep the log from opening; only file systems that copy on write need space for this.
            log.error("tail_not_rewritten", file=str(segment.path), error=str(error))

    def _keep_aside(self, kept: Path, fd: int, position: int, end: int) -> bool:
        """Copy a torn tail to a file of its own; False if even the reserve and the tail itself do not make enough room."""
        tail = self._disk.pread(fd, end - position, position)
        try:
            self._disk.write_file(kept, tail)
            return True
        except OSError as error:
            if not is_full(error):
                raise
        self._reserve.release()
        self._disk.truncate(fd, position)
        try:
            self._disk.write_file(kept, tail)
        except OSError as error:
            # A full disk must not keep the log from opening, and of these records nobody was told that they are stored.
            log.error("torn_tail_not_copied", file=str(kept), bytes=len(tail), error=str(error))
            return False
        return True

    def _check_sequence(self, info: TopicInfo, segments: list[Segment], unused: Path | None) -> None:
        following = [segment.path for segment in segments[1:]]
        if unused is not None:
            following.append(unused)
        for before, after in zip(segments, following, strict=False):
            begins, ends = offset_range(after)[0], before.index.next_offset
            if begins == ends or (after is unused and begins < ends):
                continue
            self._refuse_gap(
                f"topic {info.name!r}: {before.path} ends at offset {ends}, but the next segment, {after.name}, begins at "
                f"{begins}; a segment file is missing or damaged at its end"
            )

    def _check_end(
        self,
        info: TopicInfo,
        directory: Path,
        names: list[str],
        salts: PartitionSalts,
        segments: list[Segment],
        unused: Path | None,
        end_at_stop: int,
    ) -> int:
        """Compare the end of the log with what is known of it from elsewhere; returns the offset that new records begin at or after."""
        found = max(segments[-1].index.next_offset if segments else 0, offset_range(unused)[0] if unused else 0)
        known = max([end_at_stop, *self._saved_ends(directory, names, salts)])
        if found < known:
            self._refuse_gap(
                f"topic {info.name!r}: the log in {directory} ends at offset {found}, and ended at {known} or later before; its last "
                "segment file is missing or damaged at its end"
            )
        return max(found, known)

    def _saved_ends(self, directory: Path, names: list[str], salts: PartitionSalts) -> list[int]:
        """Return where the log ended at least, by the indexes of its last segment and of segments that are not there."""
        indexes = named_segments(directory, names, INDEX_SUFFIX)
        if not indexes:
            return []
        paths = named_segments(directory, names)
        known = {path.stem for path in paths}
        heads = [read_head(path) for path in indexes if path.stem not in known]
        if paths:
            heads.append(saved_head(paths[-1], self._disk, salts.of(paths[-1].stem)))
        return [head.next_offset for head in heads if head is not None]

    def _refuse_gap(self, text: str) -> None:
        if not self._accept_gaps:
            raise MissingSegment(
                f"{text}; restore it from a backup, or start with {ACCEPT_GAPS} to serve what is there"
            )
        log.error("gap_accepted", detail=text)


def _index(segment: Segment, commit: list[tuple[Block, int]]) -> None:
    """Take the blocks of a commit into the index."""
    for block, block_at in commit:
        segment.index.add(block, block_at)
    commit.clear()


def is_unused(disk: Disk, path: Path) -> bool:
    """Whether nothing was ever written to a segment file; it may hold reserved space. What the disk cannot read counts as written."""
    head = read_head(path)
    if offset_range(path)[1] is not None or (head is not None and head.covers):
        return False
    fd = disk.open_read(path)
    try:
        # A used one shows it at once, so that only an unused one is read to its end.
        begins_empty = not disk.pread(fd, HEADER_BYTES, 0).strip(b"\0")
        return begins_empty and end_of_data(disk, fd, 0, path.stat().st_size) == 0
    except OSError:
        return False
    finally:
        os.close(fd)


def end_of_data(disk: Disk, fd: int, position: int, size: int) -> int:
    """Where the last byte that is not zero ends; `position` if all are."""
    end = position
    while (written := disk.next_data(fd, position)) and written.start < size:
        position = written.start
        window = disk.pread(fd, min(_STEP_BYTES, len(written), size - position), position)
        if window != bytes(len(window)):  # far quicker than to strip them off one by one
            end = position + len(window.rstrip(b"\0"))
        position += max(len(window), 1)
    return end


def _load_entries(segment: Segment) -> bool:
    try:
        return segment.index.load_entries(segment.index_path.read_bytes())
    except OSError:
        return False


class Redone(NamedTuple):
    damaged: list[Path]
    """Journals that somebody may want to look at."""
    late: list[JournalEntry]
    """Late records, in order, whether or not their partitions have them."""


def redo_journal(
    disk: Disk, directory: Path, partition_directory: Callable[[bytes, int], Path | None], syncs: Syncs
) -> Redone:
    """Put every block the journal holds where it belongs.

    Only the last segment of a partition can miss any: beginning a new one syncs the one before. One that nothing was written to yet may
    follow it, if a roll failed. Harmless to repeat. What it writes is synced once `syncs` is finished.
    """
    applied = 0
    redone = Redone([], [])
    targets = RedoTargets(disk, partition_directory)
    for path in journal_paths(directory):
        positions: list[int] = []
        torn: list[int] = []
        blocks: dict[Path, list[JournalEntry]] = {}
        for entries in read_records(path.read_bytes(), positions.append, torn.append):
            for entry in entries:
                if entry.is_late:
                    redone.late.append(entry)
                    continue
                target = targets.find(entry)
                if target is not None:
                    blocks.setdefault(target, []).append(entry)
        for target, entries in blocks.items():
            fd = disk.open_append(target, create=False)
            try:
                # Written even where it reads the same: after a failed flush the system may show what never reached the disk.
                for entry in entries:
                    disk.write_all(fd, entry.data, entry.position)
            finally:
                os.close(fd)
            syncs.owe(target)
            applied += len(entries)
        if torn:
            log.warning("journal_torn", journal=str(path), position=torn[0])
        if positions:
            redone.damaged.append(path)
            log.error("journal_damaged", journal=str(path), positions=positions)
    if applied:
        log.info("journal_applied", blocks=applied)
    return redone


class RedoTargets:
    """Finds the files that journal entries are written to."""

    def __init__(self, disk: Disk, partition_directory: Callable[[bytes, int], Path | None]) -> None:
        self._disk = disk
        self._partition_directory = partition_directory
        self._open: dict[tuple[bytes, int], dict[int, Path]] = {}

    def find(self, entry: JournalEntry) -> Path | None:
        """The segment of an entry; None if its topic is gone, or the segment was sealed since."""
        key = entry.topic_id, entry.partition
        segments = self._open.get(key)
        if segments is None:
            directory = self._partition_directory(*key)
            segments = self._open[key] = {} if directory is None else self._not_sealed(directory)
        return segments.get(entry.segment_base)

    def _not_sealed(self, directory: Path) -> dict[int, Path]:
        """The last segment that was written to, and those after it, by base offset. A rewritten one takes no blocks any more."""
        found: dict[int, Path] = {}
        for path in reversed(segment_paths(directory)):
            base_offset, end_offset = offset_range(path)
            if end_offset is None:
                found[base_offset] = path
            if not is_unused(self._disk, path):
                break
        return found
