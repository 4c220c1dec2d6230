"""One segment: a run of blocks in a file named by the offset it begins at.

    <base>.log          written by commits
    <base>-<end>.log    made by a rewrite, which may have removed any of the records below <end>, even all of them

So the names of a partition's files alone tell whether one is missing, and how far offsets were given out.

Writing happens at the end of a partition's last segment only (`SegmentWriter`); every other segment is sealed and never changes, it
can only be replaced as a whole by a rewrite. Readers hold a `Segment`, which keeps its file open once it has lost its name, so a segment
that is replaced or deleted under a reader stays readable to it. Other files are opened when they are read (`read_files.py`).
"""

from __future__ import annotations

import errno
import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from penstock.errors import CorruptBlock
from penstock.log.api import Mark
from penstock.log.block import BEGINS, HEADER_BYTES, MAGIC, SEAL_AT, SUMMED_AT, Block, BlockHeader, seal_at
from penstock.log.embedded.disk import AppendFile, Disk
from penstock.log.embedded.index import HEAD_BYTES, STEP_BYTES, SegmentIndex
from penstock.log.embedded.read_files import ReadFile
from penstock.log.salts import PartitionSalts

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
DELETED_SUFFIX: Final = ".deleted"
# Space is reserved ahead in steps: large enough to be rare, small enough that an idle topic costs little disk.
RESERVE_STEP_BYTES: Final = 256 << 10
# Read at once where blocks are small; a block larger than this is read by itself.
_WINDOW_BYTES: Final = 4 * STEP_BYTES
# The first time, because many segments hold little besides the space reserved in them, and a start reads all of those.
_FIRST_WINDOW_BYTES: Final = 16 << 10
# What a disk that cannot read a place loses of it.
_SECTOR_BYTES: Final = 4096
# A seal that differs from the right one by so few bits is damaged; that of another file differs by about 32.
_FLIPPED_BITS_MAX: Final = 4
_NAME: Final = re.compile(r"[0-9]{20}(-[0-9]{20})?")


def log_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{LOG_SUFFIX}"


def segment_paths(directory: Path, suffix: str = LOG_SUFFIX) -> list[Path]:
    """Return the files of a partition that are named as its segments are, by offset. Others with the suffix are not ours."""
    try:
        return named_segments(directory, file_names(directory), suffix)
    except FileNotFoundError:
        return []


def file_names(directory: Path) -> list[str]:
    return os.listdir(directory)  # noqa: PTH208 - a start lists thousands of directories, and a Path for each name costs much more


def named_segments(directory: Path, names: Iterable[str], suffix: str = LOG_SUFFIX) -> list[Path]:
    """Return the same where the names in the directory are known."""
    return [directory / name for name in sorted(names) if is_segment_name(name, suffix)]


def is_segment_name(name: str, suffix: str = LOG_SUFFIX) -> bool:
    return name.endswith(suffix) and _NAME.fullmatch(name, 0, len(name) - len(suffix)) is not None


def offset_range(path: Path) -> tuple[int, int | None]:
    """The offset a file's segment begins at, and the one it ends before where a rewrite made it."""
    base, _, end = path.stem.partition("-")
    return int(base), int(end) if end else None


class Segment:
    """A segment as readers see it. `end` is how far it may be read."""

    __slots__ = (
        "__weakref__",
        "_disk",
        "abandoned",
        "base_offset",
        "detached",
        "end",
        "index",
        "path",
        "read_file",
        "salt",
        "salts",
    )

    def __init__(
        self, disk: Disk, path: Path, base_offset: int, index: SegmentIndex, end: int, salts: PartitionSalts
    ) -> None:
        self._disk = disk
        self.read_file: ReadFile | None = None
        self.salts = salts
        self.salt = salts.of(path.stem)
        self.abandoned = False
        """Whether its topic is being deleted: who reads it at length stops."""
        self.detached = False
        """Whether its file has lost its name, or is about to, to another file or to none. It is open then, and stays readable."""
        self.path = path
        self.base_offset = base_offset
        self.index = index
        self.end = end

    @property
    def index_path(self) -> Path:
        return self.path.with_suffix(INDEX_SUFFIX)

    @property
    def is_rewritten(self) -> bool:
        """Whether a rewrite made it, in this run or before: its blocks are as large as they get, however small that is."""
        return offset_range(self.path)[1] is not None

    def open(self) -> ReadFile:
        """Return the file, which stays open for as long as the caller holds it."""
        return self._disk.read_files.open(self)

    def open_read(self) -> int:
        return self._disk.open_read(self.path)

    def close(self) -> None:
        """The engine stops: nobody reads any more."""
        self.read_file = None

    def blocks_from(
        self, position: int, end: int, wanted: Callable[[BlockHeader], bool] | None = None
    ) -> Iterator[tuple[int, Block]]:
        """Whole, checked blocks with their positions. Raises CorruptBlock if one is damaged, OSError once the segment is abandoned.

        Small blocks are read many at a time and cut out of what was read. A large one is read by itself, and so is the header of the
        block after it: blocks of a size are adjacent, and copying them costs more than reading them. Ends before a large one that is not
        `wanted`.
        """
        file = self.open()
        window, window_at = b"", position
        ahead_bytes = _FIRST_WINDOW_BYTES
        while position < end:
            if self.abandoned:
                raise OSError(errno.ESTALE, f"the topic of {self.path} was deleted")
            at = position - window_at
            needed = HEADER_BYTES
            if len(window) - at >= HEADER_BYTES:
                header = self._header(window, at, position)
                needed = header.size_bytes
                if needed > _WINDOW_BYTES and wanted is not None and not wanted(header):
                    return
            if position + needed > end:
                raise self.corrupt(position, f"a block of {needed} bytes would end beyond the segment")
            body: bytes | None = None
            if needed > _WINDOW_BYTES and len(window) - at < needed:
                body = self._read_ahead(file, position + HEADER_BYTES, needed - HEADER_BYTES, position + needed)
                ahead_bytes = HEADER_BYTES
            elif len(window) - at < needed:
                window, window_at = self._read_ahead(file, position, needed, min(end, position + ahead_bytes)), position
                if len(window) < needed:
                    raise self.corrupt(position, "the file ends inside a block")
                ahead_bytes = _WINDOW_BYTES
                continue
            try:
                block = Block(window, at, body)
            except CorruptBlock as error:
                raise self.corrupt(position, str(error)) from None
            yield position, block
            position += block.size_bytes

    def _read_ahead(self, file: ReadFile, position: int, needed: int, end: int) -> bytes:
        """The bytes at a position and, where they can be read, those up to `end`."""
        try:
            try:
                return self._disk.pread(file.fd, max(needed, end - position), position)
            except OSError:
                return self._disk.pread(file.fd, needed, position)  # the bad place may be further on
        except OSError as error:
            raise self.corrupt(position, f"the disk cannot read it ({error.strerror or error})") from None

    def _header(self, window: bytes, at: int, position: int) -> BlockHeader:
        try:
            header = BlockHeader(window, at)
        except CorruptBlock as error:
            raise self.corrupt(position, str(error)) from None
        if header.seal != self.salt ^ position:  # as `seal_at` says; this is done for every block that is read
            raise self.corrupt(position, "it belongs to another file or another place in this one")
        return header

    def corrupt(self, position: int, why: str) -> CorruptBlock:
        return CorruptBlock(f"corrupt block in {self.path} at byte {position}: {why}")

    def next_whole_block(
        self, position: int, end: int, least_offset: int, *, begins: bool = False
    ) -> tuple[int, Block] | None:
        """Find the first undamaged block that begins after `position`, or the first that begins a commit: where reading resumes.

        What is searched for is the seal. It differs at every position and holds the salt, so a client cannot have put it into a record.
        Offsets only grow along a segment, so nothing below `least_offset` is taken.
        """
        file = self.open()

        def wanted(at: int) -> Block | None:
            block = self._block_at(file, at, end)
            if block is None or block.base_offset < least_offset or (begins and not block.flags & BEGINS):
                return None
            return block

        while (header := self._sealed_header(file, position)) is not None:
            # The damaged block says where the next one is.
            following = position + header.size_bytes
            if self._sealed_header(file, following) is None:
                break
            position = following
            if (block := wanted(position)) is not None:
                return position, block
        at = position + 1
        while at < end:
            try:
                window = self._disk.pread(file.fd, min(STEP_BYTES * 4, end - at), at)
            except OSError:
                at += _SECTOR_BYTES - at % _SECTOR_BYTES
                continue
            found = window.find(MAGIC)
            while found >= 0:
                seal = int.from_bytes(window[found + SEAL_AT : found + SUMMED_AT], "little")
                if seal == seal_at(self.salt, at + found) and (block := wanted(at + found)) is not None:
                    return at + found, block
                found = window.find(MAGIC, found + 1)
            # Windows overlap so that what is split between two of them is still found.
            at += max(len(window) - SUMMED_AT + 1, 1)
        return None

    def _sealed_header(self, file: ReadFile, position: int) -> BlockHeader | None:
        """The header at a position, not checked against a checksum, if a block of this file was written there."""
        try:
            header = BlockHeader(self._disk.pread(file.fd, HEADER_BYTES, position))
        except (CorruptBlock, OSError):
            return None
        return header if header.seal == seal_at(self.salt, position) else None

    def _block_at(self, file: ReadFile, position: int, end: int) -> Block | None:
        try:
            size_bytes = BlockHeader(self._disk.pread(file.fd, HEADER_BYTES, position)).size_bytes
            return Block(self._disk.pread(file.fd, size_bytes, position)) if position + size_bytes <= end else None
        except (CorruptBlock, OSError):
            return None

    def holds_blocks_of_another_file(self) -> bool:
        """Whether the file begins with a whole block that was not written to this place: it was moved or swapped."""
        file = self.open()
        if self._sealed_header(file, 0) is not None:
            return False
        block = self._block_at(file, 0, self.end)
        return (
            block is not None
            and (block.seal ^ seal_at(self.salt, 0)).bit_count() > _FLIPPED_BITS_MAX
            and self.next_whole_block(0, self.end, 0) is None
        )

    def position_of(self, offset: int) -> int:
        self._ensure_entries()
        return self.index.position_of(offset)

    def position_at(self, timestamp_ms: int) -> int:
        self._ensure_entries()
        return self.index.position_at(timestamp_ms)

    def stretch(self, offset: int, end_offset: int, end: int, step_bytes: int) -> tuple[list[Mark], int]:
        """Marks for the blocks that hold `offset` up to `end_offset`, and the position where they end, which is `end` at most."""
        offsets, positions = self._entries()
        first = max(bisect_right(offsets, offset) - 1, 0)
        behind = bisect_left(positions, end)  # readers see committed blocks only
        stop = min(bisect_left(offsets, end_offset, first), behind)
        marks: list[Mark] = []
        for at in range(first, stop):
            if not marks or positions[at] - marks[-1].position >= step_bytes:
                marks.append(Mark(offsets[at], positions[at]))
        return marks, positions[stop] if stop < behind else end

    def _entries(self) -> tuple[Sequence[int], Sequence[int]]:
        """The index's entries. They do not stay in memory: who plans a read of a large log passes through all of its indexes."""
        if not self.index.loaded:
            try:
                saved = self.index_path.read_bytes()
            except OSError:
                saved = b""
            passing = SegmentIndex.decode_head(saved, self.base_offset)
            if passing is not None and passing.covers == self.index.covers and passing.load_entries(saved):
                return passing.entries()
        self._ensure_entries()
        return self.index.entries()

    def _ensure_entries(self) -> None:
        if not self.index.loaded:
            try:
                loaded = self.index.load_entries(self.index_path.read_bytes())
            except OSError:
                loaded = False
            if not loaded:
                self.rebuild_index(self.end)

    def rebuild_index(self, end: int) -> CorruptBlock | None:
        """Rebuild the index from the log, passing over damage; returns the first there was."""
        damage: CorruptBlock | None = None
        index = SegmentIndex(self.base_offset, self.index.last_timestamp_ms)
        index.sealed = self.index.sealed
        position = 0
        while position < end:
            try:
                for block_at, block in self.blocks_from(position, end):
                    index.add(block, block_at)
                    position = block_at + block.size_bytes
            except CorruptBlock as error:
                damage = damage or error
                behind = self.next_whole_block(position, end, index.next_offset)
                if behind is None:
                    break
                position = behind[0]
        index.covers = end
        index.next_offset = max(index.next_offset, self.index.next_offset)
        self.index = index
        return damage

    def detach(self) -> None:
        """Before the file is removed or replaced: keep it open for readers that hold this object."""
        self._disk.read_files.detach(self)

    def remove(self) -> None:
        """Remove the files. Renamed first, so that what a crash leaves is recognisable as meant to go. Can be repeated after an error."""
        self.detach()
        doomed = self.path.with_suffix(DELETED_SUFFIX)
        if self.path.exists():
            self._disk.rename(self.path, doomed)
        # One after the other for good: if a later one could vanish first, a power cut would leave a hole in the log.
        self._disk.sync_directory(self.path.parent)
        self._disk.unlink(self.index_path)
        self._disk.unlink(doomed)

    def save_index(self, encoded: bytes, *, sync: bool) -> None:
        self._disk.write_file(self.index_path, encoded, sync=sync)


def read_head(path: Path) -> SegmentIndex | None:
    """Return the head of the index of a segment, whether or not that is there; None if there is no whole one."""
    try:
        with path.with_suffix(INDEX_SUFFIX).open("rb") as file:
            return SegmentIndex.decode_head(file.read(HEAD_BYTES), offset_range(path)[0])
    except OSError:
        return None


def _first_block(segment_path: Path, disk: Disk, salt: int, *, whole: bool) -> BlockHeader | None:
    """Return the header of a segment's first block, if it was written there and can be read; with `whole`, if all of the block is as it
    was."""
    fd = disk.open_read(segment_path)
    try:
        header = BlockHeader(disk.pread(fd, HEADER_BYTES, 0))
        if whole:
            header = Block(disk.pread(fd, header.size_bytes, 0))
    except (CorruptBlock, OSError):
        return None
    finally:
        os.close(fd)
    return header if header.seal == seal_at(salt, 0) else None


def saved_head(segment_path: Path, disk: Disk, salt: int) -> SegmentIndex | None:
    """Return the head of the saved index, unless it is damaged or the segment's first block shows that it was made from another file.

    An index is saved after its segment is synced: whatever the file holds now, what the head covers was on the disk.
    """
    index = read_head(segment_path)
    if index is not None and index.covers:
        first = _first_block(segment_path, disk, salt, whole=False)
        differs = first is not None and first.checksum != index.first_checksum
        if differs and _first_block(segment_path, disk, salt, whole=True) is not None:
            return None
    return index


def load_index(segment_path: Path, size_bytes: int, disk: Disk, salt: int) -> SegmentIndex | None:
    """The head of the saved index, if it is whole and belongs to this log file."""
    index = read_head(segment_path)
    if index is None or index.covers > size_bytes or (index.sealed and index.covers != size_bytes):
        return None
    if index.covers:
        first = _first_block(segment_path, disk, salt, whole=False)
        if first is None or first.checksum != index.first_checksum:
            return None
    return index


class SegmentWriter:
    """The end of a partition: the segment that takes new blocks. Used by the commit thread only, or while its queue is held."""

    __slots__ = ("_disk", "created_ms", "file", "segment")

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        *,
        create: bool,
        created_ms: int,
        reserved_to: int = 0,
    ) -> None:
        """`reserved_to` is where the file ends, if that is behind the segment's end."""
        self._disk = disk
        self.segment = segment
        self.file = AppendFile(
            disk,
            segment.path,
            create=create,
            end=segment.end,
            reserved_to=reserved_to,
            reserve_step_bytes=RESERVE_STEP_BYTES,
        )
        self.created_ms = created_ms

    @property
    def next_offset(self) -> int:
        return self.segment.index.next_offset

    def save_index(self, encoded: bytes, covers: int) -> None:
        """Save the index of a moment. What it covers is not scanned after a crash, so it must be synced by now."""
        self.segment.save_index(encoded, sync=False)
        self.segment.index.saved_covers = covers

    @property
    def is_settled(self) -> bool:
        index = self.segment.index
        return not (self.file.fd >= 0 or self.file.reserves) and index.saved_covers == index.covers

    def cut_and_sync(self) -> None:
        """Give back reserved space, and sync the file."""
        self.file.cut(self.file.end)
        self.file.sync()

    def seal(self) -> None:
        """Finish this segment for good: nothing after this changes its file."""
        self.cut_and_sync()
        self.segment.index.sealed = True
        try:
            self.segment.save_index(self.segment.index.encode(), sync=True)
        except OSError:
            self.segment.index.sealed = False
            raise

    def roll(self, now_ms: int) -> SegmentWriter:
        """Seal this segment and begin the next. If that fails, this one continues as it was."""
        self.seal()
        directory = self.segment.path.parent
        base_offset = self.next_offset
        index = SegmentIndex(base_offset, self.segment.index.last_timestamp_ms)
        segment = Segment(self._disk, log_path(directory, base_offset), base_offset, index, 0, self.segment.salts)
        try:
            writer = SegmentWriter(self._disk, segment, create=True, created_ms=now_ms)
            try:
                self._disk.sync_directory(directory)
            except OSError:
                writer.file.close()
                self._disk.unlink(segment.path)
                raise
        except OSError:
            self.segment.index.sealed = False
            raise
        self.file.close()
        writer.file.release()
        return writer
