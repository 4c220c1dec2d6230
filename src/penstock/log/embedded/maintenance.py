"""What the engine does when nobody asks: retention, rolling of old segments, merging of small blocks, compaction, the removal of records
whose time to live has ended, and closing the files of partitions that nobody writes to.

One pass looks at every partition in turn. Decisions are made on the loop; files are read and written in the maintenance thread; the
partition's list of segments is then replaced on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from weakref import WeakKeyDictionary

import structlog

from penstock.clock import Clock
from penstock.errors import CorruptBlock, NotWritten
from penstock.log.embedded.commit import Committer
from penstock.log.embedded.disk import Disk, is_full, is_out_of_descriptors, storage_error
from penstock.log.embedded.options import EngineOptions
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.rewrite import (
    Keep,
    LatestOffsets,
    Rewriter,
    UnfinishedRewriteError,
    half_expired_ms,
    keep_until,
)
from penstock.log.embedded.segment import Segment

log = structlog.get_logger(__name__)


class Maintenance:
    def __init__(self, disk: Disk, clock: Clock, committer: Committer, options: EngineOptions) -> None:
        self._clock = clock
        self._committer = committer
        self._options = options
        self._rewriter = Rewriter(disk, options.block_bytes_target)
        self._thread = ThreadPoolExecutor(1, "penstock-maintenance")
        self._loop = asyncio.get_running_loop()
        self._half_expired_ms: WeakKeyDictionary[Segment, int | None] = WeakKeyDictionary()
        """When half of a sealed segment's records with a time to live will have expired, of segments that were examined."""

    async def run(self, partition: EmbeddedPartition) -> None:
        """One pass over one partition. Raises NotWritten if the disk fails, but not if it is full: the log works without a rewrite."""
        if partition.failure is not None:
            return
        try:
            async with partition.replacing:
                if partition.deleted:
                    return
                await self._roll_if_due(partition)
                await self._retain(partition)
                if partition.config.cleanup == "compact":
                    await self._compact(partition)
                else:
                    await self._merge(partition)
                    await self._expire(partition)
                await self._settle_if_idle(partition)
        except UnfinishedRewriteError as error:
            if not partition.deleted:
                partition.fail(f"{error}; check the disk, then restart the broker, which finishes it")
        except (OSError, CorruptBlock) as error:
            if partition.deleted or partition.failure is not None:
                return  # a failure of the partition is told where it refuses writes
            # The log is as it was: a rewrite replaces nothing before it is whole. The next pass tries again.
            log.error("maintenance_failed", topic=partition.topic, partition=partition.index, error=str(error))
            if isinstance(error, OSError) and not is_full(error):
                raise NotWritten(
                    f"maintenance of {partition} failed: {error.strerror or error}; check the disk"
                ) from error

    async def reclaim(self, partition: EmbeddedPartition) -> None:
        """Remove the segments that a truncation left nothing of. What fails is done by the next pass."""
        try:
            async with partition.replacing:
                if not partition.deleted and partition.failure is None:
                    await self._roll_if_due(partition)
                    await partition.drop_oldest(partition.truncated_segments())
        except OSError as error:
            log.error("truncation_not_reclaimed", topic=partition.topic, partition=partition.index, error=str(error))

    def stop(self) -> None:
        self._thread.shutdown()

    async def _roll_if_due(self, partition: EmbeddedPartition) -> None:
        """Begin a new segment if the active one is old, or a truncation left nothing of it."""
        active = partition.segments[-1]
        age_max_ms = min(partition.config.segment_ms, partition.config.retention_ms or partition.config.segment_ms)
        old = self._clock.now_ms() - active.index.first_timestamp_ms >= age_max_ms
        if active.end and (old or partition.start_offset >= partition.committed_end):
            await self._committer.run(lambda: self._roll(partition, active))

    def _roll(self, partition: EmbeddedPartition, expected: Segment) -> None:
        """In the commit thread, unless a commit has rolled or failed meanwhile."""
        if partition.writer.segment is not expected or partition.failure is not None:
            return
        try:
            self._committer.roll(partition, self._clock.now_ms())
        except OSError as error:
            if not (is_full(error) or is_out_of_descriptors(error)):
                partition.fail(str(storage_error(error, f"beginning a new segment of {partition}")))
            raise
        # Told from here and not from who awaits this, because the loop may hear of the next commit before that one runs.
        self._loop.call_soon_threadsafe(partition.begin_segment, partition.writer.segment)

    async def _settle_if_idle(self, partition: EmbeddedPartition) -> None:
        """Close the file of a partition that nothing was written to since the last pass, and give back the space it has reserved."""
        idle = partition.committed_end == partition.end_at_last_pass
        partition.end_at_last_pass = partition.committed_end
        if idle and not partition.writer.is_settled:
            await self._committer.run(lambda: self._committer.settle(partition))

    async def _retain(self, partition: EmbeddedPartition) -> None:
        drop = self._expired_segments(partition)
        if drop:
            log.info("retention_applied", topic=partition.topic, partition=partition.index, segments=drop)
            await partition.drop_oldest(drop)

    def _expired_segments(self, partition: EmbeddedPartition) -> int:
        """Return how many of the oldest segments retention removes."""
        config = partition.config
        sealed = partition.segments[:-1]
        drop = partition.truncated_segments()
        if config.retention_ms is not None:
            oldest_ms = self._clock.now_ms() - config.retention_ms
            while drop < len(sealed) and sealed[drop].index.last_timestamp_ms < oldest_ms:
                drop += 1
        if config.retention_bytes is not None:
            kept_bytes = sum(segment.end for segment in partition.segments[drop:])
            while drop < len(sealed) and kept_bytes > config.retention_bytes:
                kept_bytes -= sealed[drop].end
                drop += 1
        return drop

    async def _merge(self, partition: EmbeddedPartition) -> None:
        for segment in partition.segments[:-1]:
            blocks = segment.index.blocks
            if (
                blocks > 1
                and segment.end / blocks < self._options.merge_block_bytes
                and not segment.is_rewritten
                and segment not in partition.damaged
            ):
                try:
                    await self._rewrite(partition, [segment], None)
                except CorruptBlock as error:
                    partition.damaged.add(segment)
                    log.error("segment_damaged", error=str(error))

    async def _expire(self, partition: EmbeddedPartition) -> None:
        """Rewrite sealed segments in which half of the records that expire have done so: each record is then copied a few times at
        most, and no more is left behind than is still alive."""
        now_ms = self._clock.now_ms()
        for segment in [each for each in partition.segments[:-1] if each.index.expires]:
            try:
                if segment not in self._half_expired_ms:
                    half_ms = await self._loop.run_in_executor(self._thread, half_expired_ms, segment)
                    self._half_expired_ms[segment] = half_ms
                half_ms = self._half_expired_ms[segment]
                if half_ms is not None and half_ms <= now_ms:
                    await self._rewrite(partition, [segment], keep_until(now_ms))
            except CorruptBlock as error:
                self._half_expired_ms[segment] = None
                log.error("segment_damaged", error=str(error))

    async def _compact(self, partition: EmbeddedPartition) -> None:
        sealed = partition.segments[:-1]
        dirty = [segment for segment in sealed if segment.base_offset >= partition.compacted_to]
        dirty_bytes = sum(segment.end for segment in dirty)
        if not dirty or dirty_bytes < self._options.compact_dirty_ratio * sum(segment.end for segment in sealed):
            return
        try:
            await self._compact_dirty(partition, sealed, dirty)
        except CorruptBlock:
            partition.compacted_to = dirty[-1].index.next_offset  # not again before there is as much new
            raise

    async def _compact_dirty(
        self, partition: EmbeddedPartition, sealed: Sequence[Segment], dirty: Sequence[Segment]
    ) -> None:
        latest = LatestOffsets(self._options.compact_keys_max)
        mapped = await self._loop.run_in_executor(self._thread, _map_keys, latest, dirty)
        done_to = dirty[mapped - 1].index.next_offset
        now_ms = self._clock.now_ms()
        oldest_tombstone_ms = now_ms - self._options.tombstone_ms
        keep = await self._loop.run_in_executor(self._thread, latest.keeps, oldest_tombstone_ms, now_ms)
        cleaned = [segment for segment in sealed if segment.base_offset < done_to]
        for run in _runs(cleaned, partition.config.segment_bytes):
            # Those that were empty before may have gone with what an earlier run has emptied.
            left = [segment for segment in run if segment in partition.segments]
            if left:
                await self._rewrite(partition, left, keep)
        partition.compacted_to = done_to

    async def _rewrite(self, partition: EmbeddedPartition, old: Sequence[Segment], keep: Keep | None) -> None:
        compress = partition.config.compression == "zstd"
        new = await self._loop.run_in_executor(
            self._thread,
            lambda: self._rewriter.replace(old, compress=compress, keep=keep),
        )
        partition.replace_segments(old, [new])
        empty = list(takewhile(lambda segment: not segment.end, partition.segments[:-1]))
        if not partition.retained:
            # An empty one says which offsets are gone on purpose; at the start of the log nobody needs to know.
            await partition.drop_oldest(len(empty))
        elif len(empty) > 1:
            # Here the start of the log is what retention has left, and readers below it have lost something: other nodes move no start.
            await self._rewrite(partition, empty, None)


def _map_keys(latest: LatestOffsets, segments: Sequence[Segment]) -> int:
    for count, segment in enumerate(segments, 1):
        if not latest.add(segment):
            return count
    return len(segments)


def _runs(segments: Sequence[Segment], bytes_max: int) -> list[list[Segment]]:
    """Adjacent segments that fit into one, so that compaction does not leave a trail of small files."""
    runs: list[list[Segment]] = []
    size = 0
    for segment in segments:
        if not runs or size + segment.end > bytes_max:
            runs.append([])
            size = 0
        runs[-1].append(segment)
        size += segment.end
    return runs
