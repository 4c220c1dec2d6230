"""Rewriting sealed segments: merging small blocks, compaction, and the end of records that have expired.

A producer with one request in flight makes one-record blocks, which are slow to read; a sealed segment full of them is rewritten with
large ones. A compacted topic keeps the latest record of each key; its sealed segments are rewritten without the others. A segment in which
records have expired is rewritten without them. Offsets and timestamps never change. All use one crash-safe replacement:

    write <base>.cleaned, sync  ->  rename to <base>-<end>.swap (from here on it is the truth)  ->  remove the segments it replaces
    ->  rename to <base>-<end>.log

A crash before the rename leaves a draft, which is deleted; after it, a start finishes the rest. Runs in the maintenance thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import structlog

from penstock.log.block import BEGINS, ENDS, Block, BlockHeader, encode_block, seal_at
from penstock.log.embedded.disk import AppendFile, Disk
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    RESERVE_STEP_BYTES,
    Segment,
    offset_range,
    segment_paths,
)

_log = structlog.get_logger(__name__)

DRAFT_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
# The rewrite shares the interpreter with the data path: after each block it makes, it stands back for as long as that took.
_REST_S_MAX: Final = 0.05
# What a record may cost more than in the block it comes from: a timestamp and the distance of its offset.
_ADDED_BYTES: Final = 8 + 4
# Offsets of a block are stored as 32-bit distances from its first.
_DELTA_MAX: Final = (1 << 32) - 1

KeepRow = Callable[[bytes | None, int, bytes | None, int, int], bool]
"""Whether to keep a record, given key, offset, value, timestamp and expiry (0: never)."""


@dataclass(slots=True)
class _Rows:
    """Records on their way into one block."""

    offsets: list[int]
    timestamps: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[bytes | None]
    expiries: list[int]
    size_bytes: int
    """What they take in a block before compression, at most."""

    @classmethod
    def of(cls, block: Block, keep: KeepRow | None) -> _Rows:
        """The records of a block that are kept."""
        count = block.count
        offsets, timestamps, values = block.offsets(), block.timestamps(), block.values()
        keys = block.keys() or [None] * count
        headers = block.headers() or [None] * count
        expiries = block.expiries() or [0] * count
        size_bytes = block.raw_bytes
        if keep is not None:
            cells = zip(keys, offsets, values, timestamps, expiries, strict=True)
            rows = [row for row, record in enumerate(cells) if keep(*record)]
            if len(rows) < count:
                offsets, timestamps = [offsets[row] for row in rows], [timestamps[row] for row in rows]
                keys, values = [keys[row] for row in rows], [values[row] for row in rows]
                headers, expiries = [headers[row] for row in rows], [expiries[row] for row in rows]
                vector_bytes = (block.raw_bytes - block.key_bytes - block.value_bytes - block.header_bytes) // count
                size_bytes = vector_bytes * len(rows) + sum(
                    len(cell) for column in (keys, values, headers) for cell in column if cell is not None
                )
        size_bytes += _ADDED_BYTES * len(offsets)
        return cls(list(offsets), list(timestamps), keys, values, headers, list(expiries), size_bytes)

    def extend(self, more: _Rows) -> None:
        self.offsets += more.offsets
        self.timestamps += more.timestamps
        self.keys += more.keys
        self.values += more.values
        self.headers += more.headers
        self.expiries += more.expiries
        self.size_bytes += more.size_bytes

    def encode(self, *, compress: bool, seal: int) -> bytes:
        return encode_block(
            self.offsets[0],
            self.timestamps[0],
            self.values,
            self.keys,
            self.headers,
            self.expiries,
            compress=compress,
            timestamps=self.timestamps,
            offsets=self.offsets,
            seal=seal,
            commit=BEGINS | ENDS,
        )


class UnfinishedRewriteError(Exception):
    """A disk error left a swap file that replaces segments which are still in use: only a restart can finish it."""


class Rewriter:
    """Replaces runs of sealed segments of one partition directory."""

    def __init__(self, disk: Disk, block_bytes_target: int) -> None:
        self._disk = disk
        self._block_bytes_target = block_bytes_target

    def replace(self, segments: Sequence[Segment], *, compress: bool, keep: KeepRow | None = None) -> Segment:
        """Write these adjacent sealed segments as one, which is empty where no record is left. Raises CorruptBlock and changes nothing
        where one is damaged: a rewrite would hide it. Raises OSError if the segments stay as they are, and UnfinishedRewriteError if
        a swap file stays beside them."""
        first, last = segments[0], segments[-1]
        directory = first.path.parent
        end_offset = last.index.next_offset
        draft = first.path.with_suffix(DRAFT_SUFFIX)
        self._disk.unlink(draft)
        index = SegmentIndex(first.base_offset)
        swap = directory / f"{first.base_offset:020d}-{end_offset:020d}{SWAP_SUFFIX}"
        salt = first.salts.of(swap.stem)
        file = AppendFile(self._disk, draft, create=True, reserve_step_bytes=RESERVE_STEP_BYTES)
        try:
            for rows in self._blocks(segments, keep=keep):
                data = rows.encode(compress=compress, seal=seal_at(salt, file.end))
                index.add(BlockHeader(data), file.write(data))
            file.sync()
        except BaseException:
            self._disk.unlink(draft)  # where the disk is full, this is the space that is missing
            raise
        finally:
            file.close()
        index.next_offset = end_offset
        index.last_timestamp_ms = last.index.last_timestamp_ms
        index.sealed = True
        for segment in segments:
            segment.detach()
        self._publish(draft, swap, segments)
        try:
            path = _finish(self._disk, swap)
        except OSError as error:
            raise UnfinishedRewriteError(f"finishing the rewrite {swap} failed: {error}") from error
        replacement = Segment(self._disk, path, first.base_offset, index, index.covers, first.salts)
        try:
            replacement.save_index(index.encode(), sync=False)
        except OSError as error:
            # The segment is in place; only the next start is slower for it.
            _log.warning("index_not_saved", segment=str(path), error=str(error))
        return replacement

    def _publish(self, draft: Path, swap: Path, segments: Sequence[Segment]) -> None:
        """Make a draft the truth, or leave no trace of it: the next rewrite may cover other segments, and a swap file that is left
        from this one would undo that at the next start."""
        try:
            self._disk.rename(draft, swap)
            self._disk.sync_directory(swap.parent)
        except OSError as error:
            try:
                self._disk.unlink(draft)
                self._disk.unlink(swap)
                self._disk.sync_directory(swap.parent)
            except OSError as worse:
                raise UnfinishedRewriteError(f"removing the swap file {swap} failed: {worse}") from error
            for segment in segments:
                segment.detached = False
            raise

    def _blocks(self, segments: Sequence[Segment], *, keep: KeepRow | None) -> Iterator[_Rows]:
        """The records in portions for one block each: no larger than the target, unless one block of the source is."""
        started = time.monotonic()
        rows: _Rows | None = None
        for segment in segments:
            for _, block in segment.blocks_from(0, segment.end):
                more = _Rows.of(block, keep)
                if not more.offsets:
                    continue
                if rows is None:
                    rows = more
                elif (
                    rows.size_bytes + more.size_bytes <= self._block_bytes_target
                    and more.offsets[-1] - rows.offsets[0] <= _DELTA_MAX
                ):
                    rows.extend(more)
                else:
                    yield rows
                    rows = more
                    time.sleep(min(time.monotonic() - started, _REST_S_MAX))
                    started = time.monotonic()
        if rows is not None:
            yield rows


def _finish(disk: Disk, swap: Path) -> Path:
    """Put a swap file in the place of the segments whose offsets it covers; the last step of a replacement, safe to repeat."""
    directory = swap.parent
    base_offset, end_offset = offset_range(swap)
    assert end_offset is not None
    path = swap.with_suffix(LOG_SUFFIX)
    for replaced in segment_paths(directory):
        if base_offset <= offset_range(replaced)[0] < end_offset:
            disk.unlink(replaced.with_suffix(INDEX_SUFFIX))
            disk.unlink(replaced)
    # Before the swap file gives up its name, what it replaces must be gone for good: it is what says that they overlap.
    disk.sync_directory(directory)
    disk.rename(swap, path)
    disk.sync_directory(directory)
    return path


def finish_interrupted_rewrites(disk: Disk, directory: Path) -> None:
    for swap in swap_paths(directory):
        if is_superseded(swap, segment_paths(directory)):
            _log.warning("swap_file_removed", file=str(swap))
            disk.unlink(swap)
        else:
            _finish(disk, swap)


def swap_paths(directory: Path) -> list[Path]:
    return [path for path in segment_paths(directory, SWAP_SUFFIX) if offset_range(path)[1] is not None]


def is_superseded(swap: Path, logs: Sequence[Path]) -> bool:
    """Whether a later rewrite has replaced what a swap file covers. A rewrite takes whole segments, so one that a swap file covers in
    part is newer than that."""
    base_offset, end_offset = offset_range(swap)
    assert end_offset is not None
    for log in logs:
        begins, ends = offset_range(log)
        if ends is None or ends <= base_offset or end_offset <= begins:
            continue
        if begins < base_offset or end_offset < ends:
            return True
    return False


def keep_until(now_ms: int) -> KeepRow:
    """Keeps what has not expired."""

    def keep(key: bytes | None, offset: int, value: bytes | None, timestamp_ms: int, expiry_ms: int) -> bool:
        return not 0 < expiry_ms <= now_ms

    return keep


def half_expired_ms(segment: Segment) -> int | None:
    """When half of the records that expire will have done so; None where none does. Raises CorruptBlock."""
    expiries = [
        column[column > 0]
        for _, block in segment.blocks_from(0, segment.end)
        if (column := block.expiry_column()) is not None
    ]
    return int(np.median(np.concatenate(expiries))) if expiries else None


class LatestOffsets:
    """The latest offset of each key over some segments, as far as memory is allowed."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._latest: dict[bytes, int] = {}

    def add(self, segment: Segment) -> bool:
        """Take in a segment; False, with nothing more to be added, once there are too many keys."""
        for _, block in segment.blocks_from(0, segment.end):
            keys = block.keys()
            if keys is not None:
                for key, offset in zip(keys, block.offsets(), strict=True):
                    if key is not None:
                        self._latest[_digest(key)] = offset
        return len(self._latest) < self._keys_max

    def keeps(self, oldest_tombstone_ms: int, now_ms: int) -> KeepRow:
        latest = self._latest

        def keep(key: bytes | None, offset: int, value: bytes | None, timestamp_ms: int, expiry_ms: int) -> bool:
            if 0 < expiry_ms <= now_ms:
                return False  # those it superseded are removed by the same pass
            if key is None:
                return True  # nothing can supersede it
            if latest.get(_digest(key), offset) > offset:
                return False
            return value is not None or timestamp_ms >= oldest_tombstone_ms

        return keep


def _digest(key: bytes) -> bytes:
    # Keys may be long; 16 bytes of a strong hash stand for one.
    return key if len(key) <= 16 else b"#" + blake2b(key, digest_size=16).digest()
