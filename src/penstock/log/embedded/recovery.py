"""Opening a partition, after a clean stop or a crash.

After a clean stop the saved indexes are trusted and nothing is scanned. Otherwise the last segment is scanned from where its index was
last saved, every block checked:
- reserved space (zeros) behind the last whole block is cut off silently;
- a torn tail, bytes that are no whole block with nothing whole behind them, is cut off once with a log line, after a copy of it was
  put aside (`<base>.torn-at-<position>`): nothing is ever deleted on a guess;
- damage with whole blocks behind it is not a torn tail. It stays where it is and is reported.

What the journal holds is put back first (`redo`), so that scanning sees the log as it was promised.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from penstock.errors import CorruptBlock, MissingSegment
from penstock.log.api import EngineStats, TopicInfo
from penstock.log.block import HEADER_BYTES
from penstock.log.embedded.crashpoints import Site
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.journal import journal_paths, read_records
from penstock.log.embedded.rewrite import DRAFT_SUFFIX, finish_interrupted_rewrites
from penstock.log.embedded.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    Segment,
    SegmentWriter,
    load_index,
    log_path,
    offset_range,
)

_log = structlog.get_logger(__name__)
_TMP_SUFFIX: Final = ".tmp"
_ZERO_STEP_BYTES: Final = 1 << 20


class PartitionRecovery:
    """Brings one partition directory into a state that can be read and written. Methods block; used before serving."""

    def __init__(self, disk: Disk, stats: EngineStats, *, clean: bool, accept_gaps: bool) -> None:
        self._disk = disk
        self._stats = stats
        self._clean = clean
        self._accept_gaps = accept_gaps

    def open(self, info: TopicInfo, directory: Path, now_ms: int) -> tuple[list[Segment], SegmentWriter]:
        self._tidy(directory)
        paths = sorted(directory.glob(f"*{LOG_SUFFIX}"))
        # A last segment that nothing was written to may stem from a roll that failed, after which the one before went on.
        unused = paths.pop() if len(paths) > 1 and self._is_unused(paths[-1]) else None
        segments: list[Segment] = []
        last_timestamp_ms = 0
        for path in paths:
            if path is paths[-1] and offset_range(path)[1] is None:
                flushed = info.config.durability.mode == "fsync"
                segments.append(self._open_last(path, last_timestamp_ms, flushed=flushed))
            else:
                segments.append(self._open_sealed(path, last_timestamp_ms))
            last_timestamp_ms = segments[-1].index.last_timestamp_ms
        self._check_sequence(info, segments, unused)
        least_offset = offset_range(unused)[0] if unused else 0
        if not segments or segments[-1].index.sealed or segments[-1].index.next_offset < least_offset:
            return self._begin_segment(directory, segments, unused, now_ms)
        if unused is not None:
            self._disk.unlink(unused)
        last = segments[-1]
        writer = SegmentWriter(
            self._disk,
            last,
            create=False,
            created_ms=last.index.first_timestamp_ms or now_ms,
            last_timestamp_ms=last.index.last_timestamp_ms,
        )
        return segments, writer

    def _is_unused(self, path: Path) -> bool:
        """Whether nothing was ever written to the file; it may hold reserved space."""
        if offset_range(path)[1] is not None:
            return False
        fd = self._disk.open_read(path)
        try:
            # A used one shows it at once, so that only an unused one is read to its end.
            begins_empty = not self._disk.pread(fd, HEADER_BYTES, 0).strip(b"\0")
            return begins_empty and self._data_end(fd, 0, path.stat().st_size) == 0
        finally:
            os.close(fd)

    def _begin_segment(
        self, directory: Path, segments: list[Segment], unused: Path | None, now_ms: int
    ) -> tuple[list[Segment], SegmentWriter]:
        before = segments[-1].index if segments else SegmentIndex(0)
        # Where the last records are lost, only the unused segment knows how far offsets were given out.
        base_offset = max(before.next_offset, offset_range(unused)[0] if unused else 0)
        path = log_path(directory, base_offset)
        if unused is not None and unused != path:
            self._disk.unlink(unused)
        index = SegmentIndex(base_offset, before.last_timestamp_ms)
        segment = Segment(self._disk, path, base_offset, index, 0)
        writer = SegmentWriter(
            self._disk, segment, create=True, created_ms=now_ms, last_timestamp_ms=before.last_timestamp_ms
        )
        self._disk.sync_directory(directory)
        return [*segments, segment], writer

    def _tidy(self, directory: Path) -> None:
        """Finish or undo what a crash interrupted; only files whose suffix says that they are ours to take away."""
        for path in sorted(directory.iterdir()):
            if path.suffix in (DRAFT_SUFFIX, DELETED_SUFFIX, _TMP_SUFFIX):
                self._disk.unlink(path)
        finish_interrupted_rewrites(self._disk, directory)

    def _open_sealed(self, path: Path, last_timestamp_ms: int) -> Segment:
        base_offset, end_offset = offset_range(path)
        size = path.stat().st_size
        index = load_index(path, base_offset, size, self._disk)
        segment = Segment(self._disk, path, base_offset, index or SegmentIndex(base_offset, last_timestamp_ms), size)
        if index is None or not index.sealed:
            segment.index.sealed = True
            segment.index.next_offset = base_offset if end_offset is None else end_offset
            segment.rebuild_index(size)
            try:
                segment.save_index(segment.index.encode(), sync=False)
            except OSError as error:
                # A full disk must not keep the log from opening; the next start makes the index again.
                _log.warning("index not saved", segment=str(path), error=str(error))
        return segment

    def _open_last(self, path: Path, last_timestamp_ms: int, *, flushed: bool) -> Segment:
        base_offset, _ = offset_range(path)
        size = path.stat().st_size
        index = load_index(path, base_offset, size, self._disk)
        segment = Segment(self._disk, path, base_offset, index or SegmentIndex(base_offset, last_timestamp_ms), size)
        if index is not None and index.sealed:
            return segment
        if index is None or not _load_entries(segment):
            segment.index = SegmentIndex(base_offset, last_timestamp_ms)
        elif self._clean and index.covers == size:
            return segment
        segment.end = self._scan(segment, segment.index.covers, size, flushed=flushed)
        self._cut(segment, size)
        return segment

    def _scan(self, segment: Segment, position: int, size: int, *, flushed: bool) -> int:
        """Check and index the blocks from `position` on; returns where the last whole one ends.

        Where each block was flushed before the next was written, a whole block behind a bad one proves damage. In a topic that does
        not wait for flushes, a power cut may keep a later block and lose an earlier one: what counts is the part before that.
        """
        while position < size:
            try:
                for block_at, block in segment.blocks_from(position, size):
                    segment.index.add(block, block_at)
                    position = block_at + block.size_bytes
            except CorruptBlock as error:
                behind = segment.next_whole_block(position, size, segment.index.next_offset) if flushed else None
                if behind is None:
                    return position
                self._stats.corrupt_blocks += 1
                _log.error("corrupt block; the blocks behind it stay readable", error=str(error), resumes_at=behind[0])
                position = behind[0]
        return position

    def _cut(self, segment: Segment, size: int) -> None:
        end = segment.end
        fd = self._disk.open_append(segment.path, create=False)
        try:
            if end < size:
                data_end = self._data_end(fd, end, size)
                if data_end > end:
                    self._stats.torn_tails += 1
                    kept = segment.path.with_suffix(f".torn-at-{end}")
                    self._disk.write_file(kept, self._disk.pread(fd, data_end - end, end))
                    _log.warning(
                        "torn tail cut",
                        file=str(segment.path),
                        position=end,
                        bytes=data_end - end,
                        kept_as=kept.name,
                        next_offset=segment.index.next_offset,
                    )
                    self._disk.crash_point(Site.RECOVERY_TAIL_KEPT)
                self._disk.truncate(fd, end)
            # What is readable from here on must not vanish in a power cut, so it is synced before anyone reads it.
            self._disk.fdatasync(fd)
            self._disk.crash_point(Site.RECOVERY_CUT)
        finally:
            os.close(fd)

    def _data_end(self, fd: int, position: int, size: int) -> int:
        """Where the last byte that is not zero ends; `position` where all are."""
        end = position
        while position < size:
            window = self._disk.pread(fd, min(_ZERO_STEP_BYTES, size - position), position)
            kept = window.rstrip(b"\0")
            if kept:
                end = position + len(kept)
            position += max(len(window), 1)
        return end

    def _check_sequence(self, info: TopicInfo, segments: list[Segment], unused: Path | None) -> None:
        following = [segment.path for segment in segments[1:]]
        if unused is not None:
            following.append(unused)
        for before, after in zip(segments, following, strict=False):
            begins, ends = offset_range(after)[0], before.index.next_offset
            if begins == ends or (after is unused and begins < ends):
                continue
            text = (
                f"topic {info.name!r}: {before.path} ends at offset {ends}, but the next segment, {after.name}, begins at "
                f"{begins}; a segment file is missing or damaged at its end"
            )
            if not self._accept_gaps:
                raise MissingSegment(
                    f"{text}; restore it from a backup, or start with --accept-gap to serve what is there"
                )
            _log.error("gap accepted", detail=text)


def _load_entries(segment: Segment) -> bool:
    try:
        return segment.index.load_entries(segment.index_path.read_bytes())
    except OSError:
        return False


def redo_journal(disk: Disk, directory: Path, last_segment_of: Callable[[bytes, int], Path | None]) -> int:
    """Put every block the journal holds where it belongs; returns how many.

    Only the last segment of a partition can miss any: beginning a new one syncs the one before, and segments before the last may
    have been rewritten since. Harmless to repeat.
    """
    applied = 0
    touched: set[Path] = set()
    for path in journal_paths(directory):
        for entries in read_records(path.read_bytes()):
            for entry in entries:
                target = last_segment_of(entry.topic_id, entry.partition)
                if target is None or target != log_path(target.parent, entry.segment_base):
                    continue
                fd = disk.open_append(target, create=False)
                try:
                    # Written even where it reads the same: after a failed flush the system may show what never reached the disk.
                    disk.write_all(fd, entry.data, entry.position)
                finally:
                    os.close(fd)
                touched.add(target)
                applied += 1
    for target in touched:
        fd = disk.open_append(target, create=False)
        try:
            disk.fdatasync(fd)
        finally:
            os.close(fd)
    disk.crash_point(Site.RECOVERY_REDONE)
    if applied:
        _log.info("journal applied", blocks=applied)
    return applied
