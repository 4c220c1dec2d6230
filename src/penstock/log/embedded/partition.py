"""One partition of the embedded engine: its segments, its committed end, and reading from both.

The loop owns everything here except `writer`, which belongs to the commit thread. The list of segments is never changed in place: it is
replaced, so a reader in another thread continues with the list it was given.
"""

from __future__ import annotations

import asyncio
import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog

from penstock.errors import CorruptBlock, NotWritten, OffsetOutOfRange, PenstockError, ShuttingDown, TopicNotFound
from penstock.log.api import (
    READ_BYTES_DEFAULT,
    Batch,
    BlockBatch,
    EngineStats,
    Extent,
    OnAppended,
    Partition,
    TopicConfig,
    TopicInfo,
)
from penstock.log.block import Block, BlockHeader
from penstock.log.embedded.atomic import LatePart, Waiting
from penstock.log.embedded.disk import storage_error
from penstock.log.embedded.epochs import Epochs
from penstock.log.embedded.journal import JournalEntry, late_entry
from penstock.log.embedded.layout import PartitionCommit
from penstock.log.embedded.segment import Segment, SegmentWriter
from penstock.log.failed_partitions import FailedPartitions
from penstock.log.tail import RecentReads, Tail
from penstock.log.watchers import Watchers

if TYPE_CHECKING:
    from penstock.log.embedded.commit import Committer

_T = TypeVar("_T")
log = structlog.get_logger(__name__)


class _ReadView(NamedTuple):
    """The segments of a partition and how far the last one may be read, fixed when the read began. Only the last one grows."""

    segments: Sequence[Segment]
    last_end: int

    def index_of(self, offset: int) -> int:
        """Return the index of the segment that holds an offset."""
        return max(bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1, 0)

    def starting_at(self, index: int) -> Iterator[tuple[Segment, int]]:
        """Yield the segments from an index on, each with the position up to which it may be read."""
        last = len(self.segments) - 1
        for at in range(index, last + 1):
            segment = self.segments[at]
            yield segment, self.last_end if at == last else segment.end


class EmbeddedPartition(Partition):
    followed = True
    """Nobody else writes to it."""
    # Kept as plain values, because every read and every write asks for them.
    start_offset = 0
    committed_end = 0
    size_bytes = 0
    failure: str | None = None
    closed = False
    """Whether it takes no appends and reads any more."""
    deleted = False

    def __init__(
        self,
        info: TopicInfo,
        index: int,
        epochs: Epochs,
        start: int,
        directory: Path,
        segments: list[Segment],
        writer: SegmentWriter,
        tail: Tail,
        recent: RecentReads,
        committer: Committer,
        readers: ThreadPoolExecutor,
        stats: EngineStats,
        failed: FailedPartitions,
    ) -> None:
        self.topic = info.name
        self.index = index
        self.topic_id = bytes.fromhex(info.id)
        self.config: TopicConfig = info.config
        # What need not survive a power cut is no state that must be written whatever happens.
        self.internal = info.name.startswith("__") and info.config.durability.mode == "fsync"
        self._epochs = epochs
        self._truncated_to = start
        self.start_offset = max(segments[0].base_offset, start)
        self.directory = directory
        self.writer = writer
        self.segments: Sequence[Segment] = segments
        self.size_bytes = sum(segment.end for segment in segments)
        self.tail = tail
        self.recent = recent
        self._recent_of: Sequence[Segment] = segments
        """The segments that what is in `recent` was read from; where they were replaced since, it is out of date."""
        self.compacted_to = 0
        """Offsets below were examined by a compaction in this run."""
        self.end_at_last_pass = -1
        """Where it ended when maintenance last looked."""
        self.damaged: weakref.WeakSet[Segment] = weakref.WeakSet()
        """Segments that were not merged because they are damaged. Each is logged once."""
        self.replacing = asyncio.Lock()
        """Held while segment files are removed or replaced: one that is rewritten must not be deleted meanwhile."""
        self._committer = committer
        self._readers = readers
        self._stats = stats
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self.committed_end = writer.next_offset
        self._waiting: list[Waiting] = []
        self.late: dict[bytes, bytes] = {}
        """Late records that are in the journal and not yet here, by key; they belong to the commit thread."""
        self.watchers: Watchers[[]] = Watchers(self)

    def __str__(self) -> str:
        return f"topic {self.topic!r} partition {self.index}"

    async def follow(self) -> None:
        if self.closed:
            raise self._gone()

    @property
    def retained(self) -> bool:
        config = self.config
        return config.retention_ms is not None or config.retention_bytes is not None or self._truncated_to > 0

    @property
    def epoch(self) -> int:
        return self._epochs.current

    def cut_since(self, epoch: int) -> int | None:
        return self._epochs.cut_since(epoch, self.index)

    # -- writing ---------------------------------------------------------------------------------------------------------

    def append(
        self,
        batch: Batch | BlockBatch,
        done: OnAppended,
        *,
        relaxed: bool = False,
    ) -> None:
        if self.closed or self.failure is not None:
            refusal = self.refusal()
            assert refusal is not None
            self._loop.call_soon(done, refusal)
            return
        _ = batch.size_bytes  # what has none is a bug of the caller, and must not reach the others
        self._committer.submit(self, relaxed)
        self._waiting.append(Waiting(batch, done, None))

    def append_part(self, part: Waiting) -> None:
        """Append a part of an atomic append, all partitions of which took appends a moment ago. If this one has failed since, which another
        thread may find, the commit refuses all parts."""
        self._committer.submit(self, relaxed=False)
        self._waiting.append(part)

    def refusal(self) -> PenstockError | None:
        """Why an append made now would not be taken."""
        if self.closed:
            return self._gone()
        return (
            None
            if self.failure is None
            else NotWritten(f"nothing was written, because the partition has failed: {self.failure}")
        )

    def refuse_waiting(self) -> None:
        """Before a commit is put together: where the topic was deleted or the partition failed meanwhile, what waits is not written,
        nor is what would have been written together with it elsewhere."""
        refusal = self.refusal()
        if refusal is not None and not isinstance(refusal, ShuttingDown):
            for waiting in self._waiting:
                if waiting.whole is not None:
                    waiting.whole.refusal = refusal
                self._loop.call_soon(waiting.done, refusal)
            self._waiting.clear()

    def take_late(self, late: Iterable[LatePart]) -> None:
        """Have the next commit write late parts here, behind what waits."""
        self._waiting += [part.as_append() for part in late]

    def take_part(self) -> PartitionCommit | None:
        """What the next commit writes here: late records that are in the journal only, and then what waits."""
        appends, self._waiting = self._waiting, []
        if self.late and self.failure is None and not self.deleted:
            late = Batch(list(self.late.values()), list(self.late))
            return PartitionCommit(self, [Waiting(late, _ignore, None), *appends], carries_late=True)
        return PartitionCommit(self, appends) if appends else None

    def late_entry(self, key: bytes, value: bytes) -> JournalEntry:
        """Return what the journal records of a late record."""
        return late_entry(self.topic_id, self.index, self.writer.segment.index.next_offset, key, value)

    def leave_out_refused(self) -> None:
        """Refuse what waits here of atomic appends that are refused elsewhere."""
        waiting, self._waiting = self._waiting, []
        for append in waiting:
            if append.whole is not None and append.whole.refusal is not None:
                self._loop.call_soon(append.done, append.whole.refusal)
            else:
                self._waiting.append(append)

    async def skip_to(self, offset: int) -> None:
        """Give the next record this offset: a new segment begins there, so that the names of the files tell. Raises NotWritten."""
        try:
            await self._committer.run(lambda: self._skip(offset))
        except OSError as error:
            raise storage_error(error, f"beginning a new segment of {self}") from error
        self.begin_segment(self.writer.segment)
        self.committed_end = offset

    def _skip(self, offset: int) -> None:
        self.writer.segment.index.next_offset = offset
        self._committer.roll(self, self.writer.created_ms)

    def apply(self, part: PartitionCommit) -> bool:
        """A commit is over: make what it wrote readable. False if there is nothing."""
        segment = part.segment
        if segment is None:
            return False
        if segment is not self.segments[-1]:
            self.begin_segment(segment)
        if part.error is not None or not part.written:
            return False
        end = part.end
        self.size_bytes += end - segment.end
        segment.end = end
        self.committed_end = part.next_offset
        for header, data in part.blocks:
            self.tail.add(header, data)
        return True

    def begin_segment(self, segment: Segment) -> None:
        """Commits go to this segment from now on. Called after a roll, or by the first commit that wrote to it."""
        if segment not in self.segments[-1:]:
            self.segments = [*self.segments, segment]
            self.size_bytes += segment.end

    def replace_segments(self, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        """Put `new` in the place of the adjacent sealed segments `old`, of which there is at least one."""
        at = self.segments.index(old[0])
        self.segments = [*self.segments[:at], *new, *self.segments[at + len(old) :]]
        self.size_bytes += sum(segment.end for segment in new) - sum(segment.end for segment in old)
        self.start_offset = max(self.segments[0].base_offset, self._truncated_to)
        self._forget_recent()

    def _forget_recent(self) -> None:
        self.recent.forget()
        self._recent_of = self.segments

    def fail(self, reason: str) -> None:
        """Refuse writes from now on. Any thread may call this; the first reason stays."""
        if self.failure is None:
            self.failure = reason
            self._failed.add(self)
            log.error("partition_failed", topic=self.topic, partition=self.index, reason=reason)

    def close(self, *, deleted: bool) -> None:
        """Take no more appends and reads. Appends that wait are still written, unless the topic is deleted."""
        self.closed, self.deleted = True, deleted
        if deleted:
            for segment in self.segments:
                segment.abandoned = True

    def reopen(self) -> None:
        """The topic could not be deleted."""
        self.closed = self.deleted = False
        for segment in self.segments:
            segment.abandoned = False

    def _gone(self) -> PenstockError:
        if self.deleted:
            return TopicNotFound(f"topic not found: {self.topic} (it was deleted)")
        return ShuttingDown("the broker is stopping; send again when it is back")

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self.watchers.add(callback)

    # -- reading ---------------------------------------------------------------------------------------------------------

    def read_cached(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Block] | None:
        self._check(offset)
        if offset == self.committed_end:
            return []
        blocks = self.tail.blocks_from(offset, max_bytes)
        if blocks is None and self._recent_of is self.segments:
            blocks = self.recent.blocks_from(offset, max_bytes)
        return blocks

    async def read(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Block]:
        blocks = self.read_cached(offset, max_bytes)
        if blocks is None:
            return await self._read_disk(offset, max_bytes)
        left_bytes = max_bytes - sum(block.decoded_bytes for block in blocks)
        if left_bytes <= 0 or not blocks or self._reaches_tail(blocks[-1].next_offset):
            return blocks
        try:
            more = await self._read_disk(blocks[-1].next_offset, left_bytes)
        except PenstockError:
            return blocks  # a read of what comes next gets the error
        return blocks + more if more and more[0].decoded_bytes <= left_bytes else blocks

    def _reaches_tail(self, offset: int) -> bool:
        start = self.tail.start_offset
        return offset == self.committed_end or (start is not None and start <= offset)

    async def _read_disk(self, offset: int, max_bytes: int) -> list[Block]:
        view = self._view()
        blocks = await self._in_reader(lambda: self._read_view(view, offset, max_bytes))
        if view.segments is self.segments:
            if self._recent_of is not view.segments:
                self._forget_recent()
            if blocks:
                self.recent.add(blocks)
        return blocks

    async def extents(self, offset: int, end_offset: int, step_bytes: int, bytes_max: int) -> list[Extent]:
        self._check(offset)
        end_offset = min(end_offset, self.committed_end)
        if end_offset <= offset:
            return []
        view = self._view()
        return await self._in_reader(lambda: self._stretches(view, offset, end_offset, step_bytes, bytes_max))

    async def offset_at(self, timestamp_ms: int) -> int:
        if self.closed:
            raise self._gone()
        end = self.committed_end
        view = self._view()
        found = await self._in_reader(lambda: self._find_time(view, timestamp_ms))
        return end if found is None else min(max(found, self.start_offset), end)

    async def timestamp_of(self, offset: int) -> int | None:
        blocks = await self.read(offset, 1)
        if not blocks:
            return None
        at = blocks[0].index_of(offset)
        return blocks[0].timestamps(at, at + 1)[0]

    async def _in_reader(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._loop.run_in_executor(self._readers, work)
        except OSError:
            if self.closed:
                raise self._gone() from None  # its files went away under the reader
            raise

    def _check(self, offset: int) -> None:
        if self.closed:
            raise self._gone()
        if not self.start_offset <= offset <= self.committed_end:
            raise OffsetOutOfRange(
                f"offset {offset} out of range: {self} holds {self.start_offset} to {self.committed_end} (exclusive)"
            )

    def _view(self) -> _ReadView:
        return _ReadView(self.segments, self.segments[-1].end)

    # -- reading, in a reader thread ---------------------------------------------------------------------------------------

    def _read_view(self, view: _ReadView, offset: int, max_bytes: int) -> list[Block]:
        blocks: list[Block] = []
        size = 0

        def is_wanted(header: BlockHeader) -> bool:
            return not blocks or size + header.decoded_bytes <= max_bytes

        first = view.index_of(offset)
        for number, (segment, end) in enumerate(view.starting_at(first), first + 1):
            position = segment.position_of(offset)
            next_offset = segment.base_offset
            try:
                while position < end:
                    try:
                        for _, block in segment.blocks_from(position, end, is_wanted):
                            position += block.size_bytes
                            next_offset = block.next_offset
                            if block.next_offset <= offset:
                                continue
                            if not is_wanted(block):
                                return blocks
                            blocks.append(block)
                            size += block.decoded_bytes
                            if size >= max_bytes:
                                return blocks
                        if position < end:
                            return blocks
                    except CorruptBlock as damage:
                        if blocks:
                            return blocks  # a read of what comes next gets the error
                        position = _behind(damage, segment, position, end, offset, next_offset)
            except CorruptBlock as error:
                if error.next_offset is None and number < len(view.segments):
                    error.next_offset = view.segments[number].base_offset
                self._stats.corrupt_blocks += 1
                log.error("block_corrupt", topic=self.topic, partition=self.index, error=str(error))
                raise
        return blocks

    def _stretches(
        self, view: _ReadView, offset: int, end_offset: int, step_bytes: int, bytes_max: int
    ) -> list[Extent]:
        root = self.directory.parents[2]
        found: list[Extent] = []
        left_bytes = bytes_max
        first = view.index_of(offset)
        behind = [segment.base_offset for segment in view.segments[first + 1 :]] + [end_offset]
        for (segment, committed), next_offset in zip(view.starting_at(first), behind, strict=True):
            if segment.base_offset >= end_offset or left_bytes <= 0:
                break
            marks, end = segment.stretch(offset, end_offset, committed, step_bytes)
            if not marks:
                continue
            stop = bisect_left(marks, marks[0].position + left_bytes, 1, key=lambda mark: mark.position)
            if stop < len(marks):
                end, next_offset = marks[stop].position, marks[stop].offset
            left_bytes -= end - marks[0].position
            path = str(segment.path.relative_to(root))
            file_bytes = committed if segment.index.sealed else 0
            found.append(Extent(path, marks[:stop], end, min(next_offset, end_offset), file_bytes))
        return found

    def _find_time(self, view: _ReadView, timestamp_ms: int) -> int | None:
        at = bisect_left(view.segments, timestamp_ms, key=lambda segment: segment.index.last_timestamp_ms)
        for segment, end in view.starting_at(at):
            for _, block in segment.blocks_from(segment.position_at(timestamp_ms), end):
                if block.last_timestamp_ms >= timestamp_ms:
                    return block.offsets()[block.index_at_time(timestamp_ms)]
        return None

    # -- retention and truncation ----------------------------------------------------------------------------------------

    def truncate(self, offset: int) -> None:
        """Hide the records before an offset; maintenance removes the segments that hold nothing else."""
        self._truncated_to = max(self._truncated_to, offset)
        self.start_offset = max(self.start_offset, offset)

    def truncated_segments(self) -> int:
        """Return how many of the oldest sealed segments end at or before the start offset."""
        return bisect_right([segment.base_offset for segment in self.segments[1:]], self.start_offset)

    async def delete_before(self, offset: int) -> int:
        if self.failure is not None:
            raise NotWritten(self.failure)
        async with self.replacing:
            sealed_after = [segment.base_offset for segment in self.segments[1:]]
            try:
                await self.drop_oldest(bisect_right(sealed_after, offset))
            except OSError as error:
                raise storage_error(error, f"removing the oldest segments of {self}") from error
        return self.start_offset

    async def drop_oldest(self, count: int) -> None:
        """Remove the oldest sealed segments; the one being written always stays. The caller holds `replacing`."""
        count = min(count, len(self.segments) - 1)
        if count <= 0:
            return
        # Oldest first, and each is in the list until it is gone: neither a crash nor an error in between leaves a log with a hole.
        # This holds one at a time, and so no more than one file of those that are gone.
        for _ in range(count):
            segment = self.segments[0]
            await self._in_reader(segment.remove)
            self.replace_segments([segment], [])


def _behind(damage: CorruptBlock, segment: Segment, position: int, end: int, offset: int, least_offset: int) -> int:
    """Where to continue when the wanted offset lies behind a damaged block; raises where it may lie inside."""
    behind = segment.next_whole_block(position, end, least_offset)
    if behind is None:
        raise CorruptBlock(f"{damage}; no whole block follows it in this segment") from None
    resumes_at, block = behind
    if block.base_offset > offset:
        error = CorruptBlock(f"{damage}; offset {block.base_offset} and later ones can be read")
        error.next_offset = block.base_offset
        raise error from None
    return resumes_at


def _ignore(_: object) -> None:
    """Nobody waits for late records: their appends were acknowledged when they were in the journal."""
