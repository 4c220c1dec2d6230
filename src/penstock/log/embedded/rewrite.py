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
from array import array
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

log = structlog.get_logger(__name__)

DRAFT_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
# The rewrite shares the interpreter with the data path: after each block it makes, it stands back for as long as that took.
_REST_S_MAX: Final = 0.05
# What a record may cost more than in the block it comes from: a timestamp and the distance of its offset.
_ADDED_BYTES: Final = 8 + 4
_DIGESTS: Final = np.dtype("S16")
_PADDING: Final = [bytes(15 - size) + bytes([size + 1]) for size in range(16)]
"""What makes 16 bytes of a key of 0 to 15."""
_MERGED_MIN: Final = 1 << 16
"""Fewer keys than this wait for more before they are merged."""
# Offsets of a block are stored as 32-bit distances from its first.
_DELTA_MAX: Final = (1 << 32) - 1

Keep = Callable[
    [Sequence[bytes | None], Sequence[int], Sequence[bytes | None], Sequence[int], Sequence[int]], Sequence[bool]
]
"""Which records of a block to keep, given their keys, offsets, values, timestamps and expiries (0: never)."""


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
    def of(cls, block: Block, keep: Keep | None) -> _Rows:
        """The records of a block that are kept."""
        count = block.count
        offsets, timestamps, values = block.offsets(), block.timestamps(), block.values()
        keys = block.keys() or [None] * count
        headers = block.headers() or [None] * count
        expiries = block.expiries() or [0] * count
        size_bytes = block.raw_bytes
        if keep is not None:
            kept = keep(keys, offsets, values, timestamps, expiries)
            rows = [row for row in range(count) if kept[row]]
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

    def replace(self, segments: Sequence[Segment], *, compress: bool, keep: Keep | None = None) -> Segment:
        """Write these adjacent sealed segments as one, which is empty if no record is left. Raises CorruptBlock and changes nothing
        where one is damaged: a rewrite would hide it. Raises OSError if the segments stay as they are, and UnfinishedRewriteError if
        a swap file stays next to them."""
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
            log.warning("index_not_saved", segment=str(path), error=str(error))
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

    def _blocks(self, segments: Sequence[Segment], *, keep: Keep | None) -> Iterator[_Rows]:
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
            log.warning("swap_file_removed", file=str(swap))
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


def keep_until(now_ms: int) -> Keep:
    """Keeps what has not expired."""

    def keep(
        keys: Sequence[bytes | None],
        offsets: Sequence[int],
        values: Sequence[bytes | None],
        timestamps: Sequence[int],
        expiries: Sequence[int],
    ) -> Sequence[bool]:
        return [not 0 < expiry_ms <= now_ms for expiry_ms in expiries]

    return keep


def half_expired_ms(segment: Segment) -> int | None:
    """When half of the records that expire will have done so; None if none does. Raises CorruptBlock."""
    expiries = [
        column[column > 0]
        for _, block in segment.blocks_from(0, segment.end)
        if (column := block.expiry_column()) is not None
    ]
    return int(np.median(np.concatenate(expiries))) if expiries else None


class LatestOffsets:
    """The latest offset of each key over some segments, as far as memory is allowed.

    Two arrays, sorted by digest: 24 bytes a key, and three times that while what was added is merged into them. A dictionary takes 120
    to 140, in small pieces that the process keeps some of.
    """

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._digests = np.empty(0, _DIGESTS)
        self._offsets = np.empty(0, np.int64)
        self._added_digests = bytearray()
        self._added_offsets = array("q")
        """What was added and is not merged yet, with keys more than once, in order of offsets."""

    def add(self, segment: Segment) -> bool:
        """Take in a segment; False, with nothing more to be added, once there are too many keys."""
        for _, block in segment.blocks_from(0, segment.end):
            keys = block.keys()
            if keys is not None:
                self._added_digests += b"".join([_digest(key) for key in keys if key is not None])
                self._added_offsets.extend(
                    [offset for key, offset in zip(keys, block.offsets(), strict=True) if key is not None]
                )
                if len(self._added_offsets) > max(_MERGED_MIN, len(self._offsets) // 4):
                    self._merge()
        if len(self._offsets) + len(self._added_offsets) >= self._keys_max:
            self._merge()
        return len(self._offsets) + len(self._added_offsets) < self._keys_max

    def keeps(self, oldest_tombstone_ms: int, now_ms: int) -> Keep:
        self._merge()

        def keep(
            keys: Sequence[bytes | None],
            offsets: Sequence[int],
            values: Sequence[bytes | None],
            timestamps: Sequence[int],
            expiries: Sequence[int],
        ) -> Sequence[bool]:
            # What has expired goes with what it superseded; nothing can supersede a record without a key.
            return [
                not 0 < expiry_ms <= now_ms
                and (key is None or (latest <= offset and (value is not None or timestamp_ms >= oldest_tombstone_ms)))
                for key, offset, latest, value, timestamp_ms, expiry_ms in zip(
                    keys, offsets, self._latest(keys), values, timestamps, expiries, strict=True
                )
            ]

        return keep

    def _latest(self, keys: Sequence[bytes | None]) -> Sequence[int]:
        """Return the latest offset of each key; -1 for those that were not added."""
        if not len(self._digests):
            return [-1] * len(keys)
        digests = np.frombuffer(b"".join([_digest(key or b"") for key in keys]), _DIGESTS)
        places = self._digests.searchsorted(digests)
        found = self._digests.take(places, mode="clip") == digests
        latest: list[int] = np.where(found, self._offsets.take(places, mode="clip"), -1).tolist()
        return latest

    def _merge(self) -> None:
        """Merge what was added."""
        if not self._added_offsets:
            return
        digests = np.concatenate((self._digests, np.frombuffer(self._added_digests, _DIGESTS)))
        self._added_digests = bytearray()
        # Sorting is stable, so the last of equal ones was added last.
        order = digests.argsort(kind="stable")
        self._digests = digests[order]
        last = np.append(self._digests[1:] != self._digests[:-1], True)
        self._digests = self._digests[last]
        del digests
        offsets = np.concatenate((self._offsets, np.frombuffer(self._added_offsets, np.int64)))
        self._added_offsets = array("q")
        self._offsets = offsets[order[last]]


def _digest(key: bytes) -> bytes:
    """Return 16 bytes that stand for a key: a short one itself, or a strong hash. The last byte tells which, and is never 0."""
    if len(key) < len(_PADDING):
        return key + _PADDING[len(key)]
    return blake2b(key, digest_size=15).digest() + b"\xff"
