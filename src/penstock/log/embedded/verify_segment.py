"""Checking one segment and its index.

Every block is read as readers read it (magic, seal, checksum) and looked into: offsets rise, time never goes back, commits are whole,
lengths add up. Damage is reported with its position, and the check continues at the next block that was written to its place.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from penstock.errors import CorruptBlock
from penstock.log.block import BEGINS, ENDS, EXPIRIES, HEADERS, KEYS, OFFSETS, TIMESTAMPS, Block
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.findings import Kind, OnProgress, Severity
from penstock.log.embedded.index import HEAD_BYTES, SegmentIndex
from penstock.log.embedded.recovery import end_of_data
from penstock.log.embedded.segment import INDEX_SUFFIX, Segment, offset_range
from penstock.log.salts import PartitionSalts

_PROGRESS_STEP_BYTES: Final = 4 << 20

ReportFinding = Callable[[Severity, Kind, Path, int | None, str], None]


class Where(NamedTuple):
    """How far along a partition the check is."""

    next_offset: int
    last_timestamp_ms: int = 0


class Progress:
    """Passes on what was checked, some megabytes at a time."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._bytes = self._records = 0

    def add(self, size_bytes: int, records: int) -> None:
        self._bytes += size_bytes
        self._records += records
        if self._bytes >= _PROGRESS_STEP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._bytes, self._records)
        self._bytes = self._records = 0


class _Segment(Segment):
    """Tells what is wrong without the place, which a finding has next to it."""

    __slots__ = ()

    def corrupt(self, position: int, why: str) -> CorruptBlock:
        return CorruptBlock(why)


class SegmentCheck:
    """The check of one segment, of which `size` bytes count."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        size: int,
        salts: PartitionSalts,
        where: Where,
        *,
        report: ReportFinding,
        check_block: Callable[[Block], str | None] | None,
        index_expected: bool,
        clean: bool,
        progress: Progress,
    ) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self.bytes = size
        """Of the segment, without reserved space and a torn tail."""
        base_offset, self._end_offset = offset_range(path)
        self._segment = _Segment(disk, path, base_offset, SegmentIndex(base_offset), size, salts)
        self._report = report
        self._check_block = check_block
        self._index_expected = index_expected
        self._clean = clean
        self._progress = progress
        self.blocks = 0
        self.records = 0
        self._next_offset, self._last_timestamp_ms = where
        self._first: Block | None = None
        self._expires = False
        self._commit_at: int | None = None
        """Where the commit begins whose last block has not come yet."""
        self._before_commit = (where, 0, 0)
        """How far the check was then, with the numbers of blocks and records."""
        self._pairing = True
        """False after damage, until the next commit begins: blocks of the one before may be missing."""

    # -- kinds of segments --------------------------------------------------------------------------------------------------

    def run_sealed(self) -> Where:
        """Check a segment that does not change any more: all of it counts."""
        index = self._load_index(sealed=True)
        entries = _Entries(index)
        whole = self._walk(entries, trusted_to=self._size, flushed=True)
        self._check_sealed_index(index, entries, whole=whole)
        if self._end_offset is not None:
            if self._next_offset > self._end_offset:
                text = f"holds offset {self._next_offset - 1}, which lies beyond the end in its name"
                self._report(Severity.DAMAGE, Kind.SEGMENT, self._path, None, text)
            self._next_offset = self._end_offset
        elif index is not None:
            self._next_offset = max(self._next_offset, index.next_offset)
        return self._finish()

    def run_last(self, *, flushed: bool, whole: bool) -> Where:
        """Check the segment that takes new blocks.

        As a start does, this trusts what the saved index covers; after that, a commit that is not whole may be a torn tail. With
        `whole`, all of it counts.
        """
        index = self._load_index(sealed=False)
        if index is not None and index.sealed:
            return self._run_sealed_last(index)
        covers = index.covers if index is not None else 0
        trusted_to = self._size if whole or (self._clean and covers == self._size) else covers
        entries = _Entries(index)
        sound = self._walk(entries, trusted_to=trusted_to, flushed=flushed)
        if sound and index is not None:
            self._check_entries(entries)
        return self._finish()

    def _run_sealed_last(self, index: SegmentIndex) -> Where:
        entries = _Entries(index)
        whole = self._walk(entries, trusted_to=self._size, flushed=True)
        self._check_sealed_index(index, entries, whole=whole)
        self._next_offset = max(self._next_offset, index.next_offset)
        return self._finish()

    def _finish(self) -> Where:
        self._segment.close()
        return Where(self._next_offset, self._last_timestamp_ms)

    # -- blocks -------------------------------------------------------------------------------------------------------------

    def _walk(self, entries: _Entries, *, trusted_to: int, flushed: bool) -> bool:
        """Check the blocks in order; returns whether no damage was found."""
        segment, size = self._segment, self._size
        segment.open()  # if that fails, nothing is known of the segment, and the check ends with the error
        position = 0
        sound = True
        while position < size:
            try:
                for at, block in segment.blocks_from(position, size):
                    sound = self._look_into(at, block) and sound
                    entries.see(at, block)
                    position = at + block.size_bytes
                    self._progress.add(block.size_bytes, block.count)
            except CorruptBlock as error:
                if position >= trusted_to and self._is_torn(position, flushed=flushed):
                    self._note_torn(position)
                    return sound
                sound = False
                position = self._pass_damage(position, error)
        if self._commit_at is not None:
            if self._commit_at >= trusted_to:
                self._note_torn(size)
            else:
                sound = False
                self._damage(self._commit_at, "a commit begins here and its last block is missing")
        return sound

    def _is_torn(self, position: int, *, flushed: bool) -> bool:
        if not flushed:
            return True
        return self._segment.next_whole_block(position, self._size, self._next_offset, begins=True) is None

    def _note_torn(self, position: int) -> None:
        """Report what the next start cuts, if that is more than reserved space."""
        start = position
        if self._commit_at is not None:
            start = self._commit_at
            (self._next_offset, self._last_timestamp_ms), self.blocks, self.records = self._before_commit
        self.bytes = start
        file = self._segment.open()
        end = end_of_data(self._disk, file.fd, start, self._size)
        if end > start:
            text = f"torn tail of {end - start} bytes, of a commit that is not whole; the next start cuts it and keeps a copy"
            self._report(Severity.NOTE, Kind.SEGMENT, self._path, start, text)

    def _pass_damage(self, position: int, error: CorruptBlock) -> int:
        """Report a damaged block; returns where the check continues."""
        behind = self._segment.next_whole_block(position, self._size, self._next_offset)
        if behind is None:
            self._damage(
                position, f"{error}; no whole block follows, offsets from {self._next_offset} on cannot be read"
            )
            self._progress.add(self._size - position, 0)
            self._commit_at = None
            return self._size
        resumes_at, block = behind
        lost = f"offsets {self._next_offset} to {block.base_offset - 1}"
        self._damage(position, f"{error}; {resumes_at - position} bytes, {lost} cannot be read")
        self._progress.add(resumes_at - position, 0)
        self._pairing, self._commit_at = False, None
        return resumes_at

    def _look_into(self, at: int, block: Block) -> bool:
        fault = self._order_fault(at, block) or _contents_fault(block)
        self._next_offset = max(block.next_offset, self._next_offset)
        self._last_timestamp_ms = max(block.last_timestamp_ms, self._last_timestamp_ms)
        self.blocks += 1
        self.records += block.count
        if self._first is None:
            self._first = block
        if block.flags & EXPIRIES:
            self._expires = True
        if fault is not None:
            self._damage(at, fault)
            return False
        if self._check_block is None:
            return True
        if (fault := self._check_block(block)) is not None:
            self._report(Severity.DAMAGE, Kind.TABLE, self._path, at, fault)
        return True

    def _order_fault(self, at: int, block: Block) -> str | None:
        fault: str | None = None
        begins, ends = block.flags & BEGINS, block.flags & ENDS
        if begins:
            if self._commit_at is not None:
                fault = f"a commit begins before the one at byte {self._commit_at} has ended"
            self._commit_at = at
            here = Where(self._next_offset, self._last_timestamp_ms)
            self._before_commit = (here, self.blocks, self.records)
        elif self._pairing and self._commit_at is None:
            fault = "the block belongs to a commit that has not begun"
        if ends:
            self._commit_at = None
        self._pairing = self._pairing or bool(begins)
        if block.base_offset < self._next_offset:
            fault = f"the block begins at offset {block.base_offset}, after one that ends at {self._next_offset - 1}"
        elif block.first_timestamp_ms < self._last_timestamp_ms:
            fault = f"time goes back, from {self._last_timestamp_ms} to {block.first_timestamp_ms}"
        return fault

    def _damage(self, position: int, text: str) -> None:
        self._report(Severity.DAMAGE, Kind.SEGMENT, self._path, position, text)

    # -- index --------------------------------------------------------------------------------------------------------------

    def _load_index(self, *, sealed: bool) -> SegmentIndex | None:
        """The saved index, None if there is none that can be used; says why."""
        path = self._path.with_suffix(INDEX_SUFFIX)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            if sealed and self._index_expected:
                self._report(Severity.NOTE, Kind.INDEX, path, None, "the index is missing; the next start rebuilds it")
            return None
        except OSError as error:
            self._report(Severity.DAMAGE, Kind.INDEX, path, None, f"cannot be read: {error.strerror or error}")
            return None
        index = SegmentIndex.decode_head(data, self._segment.base_offset)
        if index is None:
            self._index_unreadable(path, 0, "its head is damaged")
        elif not index.load_entries(data):
            self._index_unreadable(path, HEAD_BYTES, "its entries are damaged")
        elif index.covers > self._size:
            text = f"its index covers {index.covers} bytes, and the segment has {self._size}: the segment was cut or replaced"
            self._report(Severity.DAMAGE, Kind.SEGMENT, self._path, self._size, text)
        elif (sealed and not index.sealed) or (index.sealed and index.covers < self._size):
            self._report(Severity.NOTE, Kind.INDEX, path, None, "the index is out of date; the next start rebuilds it")
        else:
            return index
        return None

    def _check_sealed_index(self, index: SegmentIndex | None, entries: _Entries, *, whole: bool) -> None:
        if index is None or not whole:
            return
        first = self._first
        facts = {
            "blocks": (index.blocks, self.blocks),
            "first timestamp": (index.first_timestamp_ms, first.first_timestamp_ms if first else 0),
            "first checksum": (index.first_checksum, first.checksum if first else 0),
            "expiring records": (index.expires, self._expires),
        }
        for what, (said, found) in facts.items():
            if said != found:
                self._index_damage(0, f"{what}: it says {said}, the segment has {found}")
                return
        ends_early = index.next_offset < self._next_offset or index.last_timestamp_ms < self._last_timestamp_ms
        if ends_early and first is not None:
            self._index_damage(0, "it ends before the last record of the segment")
            return
        self._check_entries(entries)

    def _check_entries(self, entries: _Entries) -> None:
        wrong = entries.wrong()
        if wrong is not None:
            self._index_damage(HEAD_BYTES, f"entry {wrong} does not fit a block of the segment")

    def _index_unreadable(self, path: Path, position: int, text: str) -> None:
        # Indexes are saved without a sync, so a power cut may leave anything of one.
        severity = Severity.DAMAGE if self._clean else Severity.NOTE
        self._report(severity, Kind.INDEX, path, position, f"{text}; it is rebuilt from the segment when it is needed")

    def _index_damage(self, position: int, text: str) -> None:
        path = self._path.with_suffix(INDEX_SUFFIX)
        self._report(Severity.DAMAGE, Kind.INDEX, path, position, f"{text}; delete it while no broker runs")


class _Entries:
    """The entries of an index, each to be seen once as a block of its segment."""

    def __init__(self, index: SegmentIndex | None) -> None:
        self._expected = [] if index is None else index.rows()
        self._seen = 0

    def see(self, position: int, block: Block) -> None:
        row = (block.base_offset, block.first_timestamp_ms, position)
        if self._seen < len(self._expected) and self._expected[self._seen] == row:
            self._seen += 1

    def wrong(self) -> int | None:
        """Return the number of the first entry that no block fits, counted from 0."""
        return self._seen if self._seen < len(self._expected) else None


def _lengths_add_up(block: Block, column: int) -> bool:
    cells = block.stored_cells(column)
    assert cells is not None
    stored, data = cells
    if block.count == 1:  # a log of single records is mostly this
        length = int.from_bytes(stored, "little", signed=True)
        return length == len(data) or (length == -1 and not len(data))
    lengths = np.frombuffer(stored, "<i4")
    # Added up in 64 bits: in 32 they could come to the right number by overflow.
    nulls = np.count_nonzero(lengths == -1)
    return int(lengths.min()) >= -1 and int(lengths.sum(dtype=np.int64)) + nulls == len(data)


def _contents_fault(block: Block) -> str | None:
    """What is wrong inside a block whose checksum is right: a fault of its writer."""
    try:
        for column in (0, KEYS, HEADERS):
            if (not column or block.flags & column) and not _lengths_add_up(block, column):
                return "the lengths of cells do not add up to their bytes"
        if block.flags & OFFSETS:
            offsets = block.offset_column()
            if int(offsets[0]) != block.base_offset or int(offsets[-1]) + 1 != block.next_offset:
                return "the offsets are not those of the header"
            if not (np.diff(offsets) > 0).all():
                return "the offsets do not rise"
        if block.flags & TIMESTAMPS:
            timestamps = block.timestamp_column()
            assert timestamps is not None
            if (int(timestamps[0]), int(timestamps[-1])) != (block.first_timestamp_ms, block.last_timestamp_ms):
                return "the timestamps are not those of the header"
            if not (np.diff(timestamps) >= 0).all():
                return "time goes back"
        elif block.first_timestamp_ms != block.last_timestamp_ms:
            return "the header has two timestamps and the body none"
    except CorruptBlock as error:
        return str(error)
    return None
