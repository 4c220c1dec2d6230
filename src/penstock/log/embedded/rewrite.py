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

from penstock.log.block import Block, encode_block
from penstock.log.embedded.crashpoints import Site
from penstock.log.embedded.disk import AppendFile, Disk
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.segment import INDEX_SUFFIX, LOG_SUFFIX, RESERVE_STEP_BYTES, Segment, offset_range

_log = structlog.get_logger(__name__)

DRAFT_SUFFIX: Final = ".cleaned"
SWAP_SUFFIX: Final = ".swap"
# The rewrite shares the interpreter with the data path: after each block it makes, it stands back for as long as that took.
_REST_S_MAX: Final = 0.05

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
    size_bytes: int = 0

    @classmethod
    def empty(cls) -> _Rows:
        return cls([], [], [], [], [], [])

    def add(self, block: Block, keep: KeepRow | None) -> None:
        count = block.count
        offsets, timestamps, values = block.offsets(), block.timestamps(), block.values()
        keys = block.keys() or [None] * count
        headers = block.headers() or [None] * count
        expiries = block.expiries() or [0] * count
        if keep is not None:
            cells = zip(keys, offsets, values, timestamps, expiries, strict=True)
            rows = [row for row, record in enumerate(cells) if keep(*record)]
            if len(rows) < count:
                offsets, timestamps = [offsets[row] for row in rows], [timestamps[row] for row in rows]
                keys, values = [keys[row] for row in rows], [values[row] for row in rows]
                headers, expiries = [headers[row] for row in rows], [expiries[row] for row in rows]
        self.offsets += offsets
        self.timestamps += timestamps
        self.keys += keys
        self.values += values
        self.headers += headers
        self.expiries += expiries
        self.size_bytes += block.raw_bytes if len(offsets) == count else sum(map(len, filter(None, values)))

    def encode(self, *, compress: bool) -> bytes:
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
        )


class Rewriter:
    """Replaces runs of sealed segments of one partition directory."""

    def __init__(self, disk: Disk, block_bytes_target: int) -> None:
        self._disk = disk
        self._block_bytes_target = block_bytes_target

    def replace(self, segments: Sequence[Segment], *, compress: bool, keep: KeepRow | None = None) -> Segment:
        """Write these adjacent sealed segments as one, which is empty where no record is left. Raises CorruptBlock and changes nothing
        where one is damaged: a rewrite would hide it."""
        first, last = segments[0], segments[-1]
        directory = first.path.parent
        end_offset = last.index.next_offset
        draft = first.path.with_suffix(DRAFT_SUFFIX)
        self._disk.unlink(draft)
        index = SegmentIndex(first.base_offset)
        file = AppendFile(self._disk, draft, create=True, reserve_step_bytes=RESERVE_STEP_BYTES)
        try:
            for data in self._blocks(segments, compress=compress, keep=keep):
                index.add(Block(data), file.write(data))
            file.sync()
        except BaseException:
            self._disk.unlink(draft)  # where the disk is full, this is the space that is missing
            raise
        finally:
            file.close()
        self._disk.crash_point(Site.REWRITE_WRITTEN)
        index.next_offset = end_offset
        index.last_timestamp_ms = last.index.last_timestamp_ms
        index.sealed = True
        for segment in segments:
            segment.open()  # readers that hold the old ones go on reading them
        swap = directory / f"{first.base_offset:020d}-{end_offset:020d}{SWAP_SUFFIX}"
        self._disk.rename(draft, swap)
        self._disk.sync_directory(directory)
        self._disk.crash_point(Site.REWRITE_SWAPPED)
        path = _finish(self._disk, swap)
        replacement = Segment(self._disk, path, first.base_offset, index, index.covers)
        try:
            replacement.save_index(index.encode(), sync=False)
        except OSError as error:
            # The segment is in place; only the next start is slower for it.
            _log.warning("index not saved", segment=str(path), error=str(error))
        self._disk.crash_point(Site.REWRITE_DONE)
        return replacement

    def _blocks(self, segments: Sequence[Segment], *, compress: bool, keep: KeepRow | None) -> Iterator[bytes]:
        started = time.monotonic()
        rows = _Rows.empty()
        for segment in segments:
            for _, block in segment.blocks_from(0, segment.end):
                rows.add(block, keep)
                if rows.size_bytes >= self._block_bytes_target:
                    yield rows.encode(compress=compress)
                    rows = _Rows.empty()
                    time.sleep(min(time.monotonic() - started, _REST_S_MAX))
                    started = time.monotonic()
        if rows.offsets:
            yield rows.encode(compress=compress)


def _finish(disk: Disk, swap: Path) -> Path:
    """Put a swap file in the place of the segments whose offsets it covers; the last step of a replacement, safe to repeat."""
    directory = swap.parent
    base_offset, end_offset = offset_range(swap)
    assert end_offset is not None
    path = swap.with_suffix(LOG_SUFFIX)
    for replaced in sorted(directory.glob(f"*{LOG_SUFFIX}")):
        if base_offset <= offset_range(replaced)[0] < end_offset:
            disk.unlink(replaced.with_suffix(INDEX_SUFFIX))
            disk.unlink(replaced)
    # Before the swap file gives up its name, what it replaces must be gone for good: it is what says that they overlap.
    disk.sync_directory(directory)
    disk.crash_point(Site.REWRITE_REMOVED)
    disk.rename(swap, path)
    disk.sync_directory(directory)
    return path


def finish_interrupted_rewrites(disk: Disk, directory: Path) -> None:
    for swap in sorted(directory.glob(f"*{SWAP_SUFFIX}")):
        _finish(disk, swap)


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
