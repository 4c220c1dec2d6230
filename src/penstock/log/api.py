"""The engine contract: what the broker needs of a log, and nothing else.

An engine stores topics; a topic has partitions, of which more may be added; a partition is a sequence of records with rising offsets.
Engines live on one event loop: every method is called there and every callback arrives there. A log may be shared: other nodes, each with
an engine of its own, may create and delete topics in it and append to them.

What every engine keeps, checked by `tests/log/contract.py` against each of them:
- Offsets rise, but may skip: between two appends, and where compaction removed records. The records of one append have consecutive offsets.
- Appends to a partition, plain and atomic, get their offsets in the order in which they were made on this engine.
- `done` is called exactly once per append: with the error, or after the topic's durability mode is satisfied and the records can be read
  here. Appends may be answered in another order than they were made in, within a partition too.
- Nothing can be read before it is committed, what can be read never changes, and an append shows whole. Parts of an atomic append in
  several partitions may show one after the other.
- A failed append leaves no trace (`NotWritten`), or its outcome is unknown (`OutcomeUnknown`). Then `OutcomeUnknown.settle` tells which it
  was; an engine without it refuses writes to the partition (`Partition.failure`) until the log is opened again, which tells, too.

A log may be shared by nodes (`nodes`), of which one leads: an engine with one node always does.

The log in files (`Engine.files`, `Partition.extents`, `Engine.snapshot`) is a capability that an engine may lack.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import msgspec

from penstock.columns import UniformCells
from penstock.errors import InvalidRequest, NotSupported, PartitionNotFound, PenstockError, TopicNotFound
from penstock.log.block import PLACED_FLAGS, Block
from penstock.log.failed_partitions import FailedPartitions
from penstock.log.nodes import NodeOnLog
from penstock.stats import BATCH_BOUNDS, DURATION_BOUNDS_S, Histogram

INTERVAL_MS_MAX = 60_000
PARTITIONS_MAX = 10_000
READ_BYTES_DEFAULT = 1 << 20


@dataclass(frozen=True, slots=True)
class Durability:
    """What an acknowledgement means: on disk, on disk within an interval, or handed to the operating system."""

    mode: Literal["fsync", "interval", "none"] = "fsync"
    interval_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> Durability:
        if text == "fsync":
            return cls("fsync")
        if text == "none":
            return cls("none")
        mode, _, interval = text.partition(":")
        if mode == "interval" and interval.isascii() and interval.isdigit() and 1 <= int(interval) <= INTERVAL_MS_MAX:
            return cls("interval", int(interval))
        raise InvalidRequest(
            f"durability {text!r} is not known: use fsync, none, or interval:<ms> with 1 to {INTERVAL_MS_MAX} ms, as in interval:100"
        )

    def __str__(self) -> str:
        return f"interval:{self.interval_ms}" if self.mode == "interval" else self.mode


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """How one topic is stored. Retention bounds hold per partition; None keeps records forever."""

    partitions: int = 1
    durability: Durability = Durability()
    retention_ms: int | None = None
    retention_bytes: int | None = None
    cleanup: Literal["delete", "compact"] = "delete"
    compression: Literal["none", "zstd"] = "none"
    segment_bytes: int = 128 << 20
    segment_ms: int = 7 * 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as it exists. `id` differs when a deleted topic is created again under the same name."""

    name: str
    id: str
    config: TopicConfig
    created_ms: int


class Batch:
    """Records for one partition, as columns. `keys`, `headers` and `expiries` are None if no record has one.

    A None value is a tombstone. A header cell is what `penstock.log.block.encode_headers` made. An expiry is a wall-clock time in
    milliseconds, 0 for never.
    """

    __slots__ = ("count", "expiries", "headers", "keys", "size_bytes", "values")

    def __init__(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes | None] | None = None,
        expiries: Sequence[int] | None = None,
        *,
        size_bytes: int | None = None,
    ) -> None:
        """`size_bytes` is given where it is known."""
        self.values = values
        self.keys = keys
        self.headers = headers
        self.expiries = expiries
        self.count = values.rows if type(values) is UniformCells else len(values)
        if size_bytes is None:
            if type(values) is UniformCells:
                size_bytes = len(values.data)
            else:
                size_bytes = sum(map(len, filter(None, values)))
            if keys is not None:
                size_bytes += sum(map(len, filter(None, keys)))
            if headers is not None:
                size_bytes += sum(map(len, filter(None, headers)))
        self.size_bytes = size_bytes
        """Keys, values and header cells together."""

    def __len__(self) -> int:
        return self.count

    def rows(self, start: int, stop: int) -> Batch:
        """Some of the records, in order."""
        return Batch(
            self.values[start:stop],
            self.keys and self.keys[start:stop],
            self.headers and self.headers[start:stop],
            self.expiries and self.expiries[start:stop],
        )


class BlockBatch:
    """Records for one partition that somebody has laid out already: they are stored as these blocks, at offsets and a time of the commit's.

    Nothing is done for each record, so this is the cheap way to append many. The columns of a block are taken as they are: callers that got
    them from elsewhere checks them first.
    """

    __slots__ = ("blocks", "count", "size_bytes")

    def __init__(self, blocks: Sequence[Block]) -> None:
        if any(block.flags & PLACED_FLAGS or block.next_offset - block.base_offset != block.count for block in blocks):
            raise InvalidRequest("a block that is to be appended has offsets or times of its own")
        self.blocks = blocks
        self.size_bytes = sum(block.key_bytes + block.value_bytes + block.header_bytes for block in blocks)
        self.count = sum(block.count for block in blocks)

    def __len__(self) -> int:
        return self.count


class PlacedBatch(Batch):
    """Records for one partition that keep the offsets and times that they have in another log. Both rise along the batch, times not
    always."""

    __slots__ = ("offsets", "timestamps")

    def __init__(
        self,
        offsets: Sequence[int],
        timestamps: Sequence[int],
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[bytes | None] | None = None,
        expiries: Sequence[int] | None = None,
    ) -> None:
        super().__init__(values, keys, headers, expiries)
        self.offsets = offsets
        self.timestamps = timestamps

    @property
    def next_offset(self) -> int:
        return self.offsets[-1] + 1

    def rows(self, start: int, stop: int) -> PlacedBatch:
        return PlacedBatch(
            self.offsets[start:stop],
            self.timestamps[start:stop],
            self.values[start:stop],
            self.keys and self.keys[start:stop],
            self.headers and self.headers[start:stop],
            self.expiries and self.expiries[start:stop],
        )


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where a batch landed: its records have `base_offset` and the offsets after it, and one timestamp."""

    base_offset: int
    timestamp_ms: int


class LateBatch:
    """One record of an atomic append that tells where the other parts of it are stored, and so is made only when that is decided.

    `make` gets those places by partition and returns the value. It is called in another thread, perhaps several times before the commit is
    written, so it uses nothing that changes, and does not fail. What it returned last is what is stored.

    With a key, in a compacted topic, it is durable with the append, and may be readable later: in front of what is appended to its
    partition next, and when the log is opened again. What another with the same key has replaced by then need not be there.
    """

    __slots__ = ("key", "make", "size_bytes")
    count: ClassVar = 1

    def __init__(
        self, key: bytes | None, make: Callable[[Mapping[Partition, Appended]], bytes], size_bytes: int
    ) -> None:
        """`size_bytes` is about as large as the record will be, and not smaller."""
        self.key = key
        self.make = make
        self.size_bytes = size_bytes

    def __len__(self) -> int:
        return self.count

    def made(self, places: Mapping[Partition, Appended]) -> Batch:
        """Return the record."""
        return Batch([self.make(places)], None if self.key is None else [self.key])


class BatchFor(NamedTuple):
    """One part of an atomic append."""

    partition: Partition
    batch: Batch | BlockBatch | LateBatch


OnAllAppended = Callable[["Mapping[Partition, Appended] | PenstockError"], None]
"""Gets where the parts of an atomic append are; that of a LateBatch may be missing."""


class Mark(NamedTuple):
    """A block begins here: the offset of its first record, and its position in the file."""

    offset: int
    position: int


class Extent(NamedTuple):
    """A stretch of a partition in one file, for readers that share their work out by bytes."""

    path: str
    """Of the file, from `LogFiles.directory`; empty if no other process can read it."""
    marks: Sequence[Mark]
    """One at least, rising; the first is where reading begins."""
    end: int
    """The position after the last block of the stretch."""
    next_offset: int
    """The offset after it, where reading continues."""
    file_bytes: int
    """The size of the file where it is finished, 0 if it still grows. A file of another size is another file."""


class LogFiles(NamedTuple):
    """Where processes on the same machine find the files, and how they know that they are those of this engine."""

    directory: str
    proof: str
    """The name of a file in the directory that holds `token`."""
    token: str
    """A random token of this run, so that a copy of the directory that another engine has written to has another one."""


OnAppended = Callable[[Appended | PenstockError], None]


class Partition(ABC):
    """One partition of one topic. Obtained from `Engine.partition`; dead once its topic is deleted.

    `start_offset` and `committed_end` are known without waiting, but on a shared log only while the partition is followed. Who compares
    an offset with them, or begins at one of them, awaits `follow` first unless `followed`. Who only reads and watches need not.
    """

    topic: str
    index: int
    followed: bool
    """Whether the bounds are kept current, but for the time that news of other nodes takes. If not, they may be far behind, or 0.

    Becomes true with `follow`, with an append and with `watch`; an engine may stop following what nobody has watched or read for a while.
    """

    @abstractmethod
    async def follow(self) -> None:
        """Make the bounds current: what any node acknowledged before the call lies below `committed_end` when this returns.

        Raises TopicNotFound, ShuttingDown.
        """

    @property
    @abstractmethod
    def start_offset(self) -> int:
        """The lowest offset that retention and truncation have left."""

    @property
    @abstractmethod
    def retained(self) -> bool:
        """Whether records before `start_offset` may have been deleted that nobody has read, by retention or truncation."""

    @property
    @abstractmethod
    def committed_end(self) -> int:
        """The offset after the last record that can be read; the next one may get a higher one. Never falls while the engine runs."""

    @property
    @abstractmethod
    def epoch(self) -> int:
        """A number that rises each time records that readers may have seen could have been lost, as without `fsync` in a power cut.

        A reader stores it with the offset it has reached, and asks `cut_since` when it comes back.
        """

    @abstractmethod
    def cut_since(self, epoch: int) -> int | None:
        """Return the lowest offset at which the log was cut after an epoch, None if it was not.

        A reader that stands above it has read records that are gone, and others may have their offsets: it continues at the cut.
        """

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes this partition holds in storage; on a shared log an estimate."""

    @property
    @abstractmethod
    def failure(self) -> str | None:
        """Why the partition refuses writes, or None."""

    @abstractmethod
    def append(self, batch: Batch | BlockBatch, done: OnAppended, *, relaxed: bool = False) -> None:
        """Append a batch that is not empty. Calls `done` once, later, on the loop; errors of any kind arrive there too.

        When `done` is called with the place of the batch, `committed_end` lies after it. A `relaxed` append may take longer for the sake of
        others: nobody waits for it.
        """

    @abstractmethod
    def read_cached(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Block] | None:
        """What `read` would return, if that needs no I/O; otherwise None, as for a partition that is not followed."""

    @abstractmethod
    async def read(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Block]:
        """Consecutive blocks, the first of which holds `offset` (or the first record after it, where offsets skip).

        At least one block if there is one, then more while they fit into `max_bytes`. Empty at the end of the log. Follows the partition
        first if it is not followed.
        Raises OffsetOutOfRange below `start_offset` or above `committed_end`, CorruptBlock where the first block is damaged, with the
        `next_offset` to continue at.
        """

    async def read_to_end(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> AsyncIterator[list[Block]]:
        """Yield the blocks from one offset to the end of the log, as `read` returns them. Raises what that does."""
        while offset < self.committed_end:
            blocks = await self.read(offset, max_bytes)
            if not blocks:
                return
            yield blocks
            offset = blocks[-1].next_offset

    async def extents(self, offset: int, end_offset: int, step_bytes: int, bytes_max: int) -> list[Extent]:
        """Where the blocks from the one that holds `offset` up to `end_offset` lie, in order; empty if there are none.

        Marks stand at least `step_bytes` apart. Stops at a mark once `bytes_max` bytes are covered, but covers some. Blocks found there
        must be checked: files go away and are replaced by others, and `read` is what answers then.
        Raises NotSupported if the log is not in files.
        """
        raise NotSupported("this log is not in files: read by offset")

    @abstractmethod
    async def offset_at(self, timestamp_ms: int) -> int:
        """The offset of the first record at or after a time; `committed_end` if there is none."""

    @abstractmethod
    async def timestamp_of(self, offset: int) -> int | None:
        """The timestamp of the record at `offset` (or the next one), None if there is none."""

    @abstractmethod
    async def delete_before(self, offset: int) -> int:
        """Delete records below `offset`, as many as the storage can drop cheaply; returns the new start offset, at most `offset`."""

    @abstractmethod
    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after `committed_end` has moved, and perhaps at other times. Returns what stops it.

        Follows the partition: the callback is called once the end is current, if that is not the one known now.
        """


def missing_partition(topic: str, index: int, partitions: Sequence[Partition] | None) -> PenstockError:
    """Return the error for a partition that a topic does not have; `partitions` are those it has, None if there is no such topic."""
    if partitions is None:
        return TopicNotFound(f"topic not found: {topic}")
    return PartitionNotFound(f"partition {index} not found: topic {topic!r} has partitions 0 to {len(partitions) - 1}")


async def follow_all(partitions: Iterable[Partition]) -> None:
    """Follow partitions that are not followed yet, so that their bounds can be used. Raises what `Partition.follow` does."""
    following = [partition.follow() for partition in partitions if not partition.followed]
    if following:
        await asyncio.gather(*following)


@dataclass(slots=True)
class EngineStats:
    """What an engine counts; plain numbers, exported on scrape."""

    appended_records: int = 0
    appended_bytes: int = 0
    commits: int = 0
    commit_errors: int = 0
    corrupt_blocks: int = 0
    torn_tails: int = 0
    commit_records: Histogram = field(default_factory=lambda: Histogram(BATCH_BOUNDS))
    flush_seconds: Histogram = field(default_factory=lambda: Histogram(DURATION_BOUNDS_S))


class Snapshot(NamedTuple):
    """Every topic as it was at one moment, as files for a reader on the same machine."""

    id: str
    directory: str


class Import(ABC):
    """Fills a log with the topics of another one, which keep their ids, offsets and times. Nobody else may use the log meanwhile.

    How far it has come can be seen from the log itself, so an import that was cut short continues where it was.
    """

    @abstractmethod
    async def begin(self, info: TopicInfo) -> None:
        """Create a topic unless it is there, and keep everything that is placed in it, whatever its settings, until `finish`.

        Raises TopicExists if another topic has the name.
        """

    @abstractmethod
    async def position(self, topic: str, index: int) -> int:
        """The lowest offset of a partition that a record can be placed at."""

    @abstractmethod
    async def place(self, topic: str, index: int, records: PlacedBatch) -> None:
        """Store records at their offsets, the first of which is the position or lies after it. Offsets between them stay empty."""

    @abstractmethod
    async def skip_to(self, topic: str, index: int, offset: int) -> None:
        """Leave everything before an offset empty; the position is there then."""

    @abstractmethod
    async def finish(self, info: TopicInfo, starts: Sequence[int]) -> None:
        """Give a topic the settings it is to have, and delete what lies before these offsets of its partitions. Can be repeated."""


class Engine(NodeOnLog, ABC):
    """A log: topics, partitions, and an append that spans several of them."""

    stats: EngineStats
    failed: FailedPartitions
    """The partitions that refuse writes."""
    accept_gaps: bool = False
    """Whether the operator has chosen to serve what is left of a damaged log, internal topics included."""

    @abstractmethod
    async def start(self) -> None:
        """Open the log, recovering what a crash left. Raises if it cannot be trusted as it stands."""

    @abstractmethod
    async def close(self) -> None:
        """Commit what was appended, then release everything. Later appends fail with ShuttingDown."""

    async def catch_up(self) -> None:
        """Learn of every change of topics that was answered, on any node, before the call."""
        return

    @property
    def files(self) -> LogFiles | None:
        """Where the log lies, for readers on the same machine; None if it is not in files."""
        return None

    async def snapshot(self) -> Snapshot:
        """Keep every topic as it is between two commits, in files that nothing changes while a reader holds them.

        Raises NotSupported if the log is not in files, LimitExceeded if there are too many snapshots already.
        """
        raise NotSupported("this log is not in files: use the backup of the system that holds it")

    async def release_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot, as soon as no reader holds it; one that is gone already is no error."""
        raise NotSupported("this log is not in files: it has no snapshots")

    def importing(self) -> Import:
        """What fills this log with another one. Raises NotSupported if it cannot be filled so."""
        raise NotSupported("this log takes no records of another one")

    @abstractmethod
    def topics(self) -> Mapping[str, TopicInfo]:
        """The topics that exist as far as this engine knows, internal ones included, by name. `watch_topics` tells when that changes."""

    def topic(self, name: str) -> TopicInfo:
        """Return one of them by its name. Raises TopicNotFound."""
        info = self.topics().get(name)
        if info is None:
            raise TopicNotFound(f"topic not found: {name}")
        return info

    def partitions(self, topic: TopicInfo) -> list[Partition]:
        """Return the partitions of a topic, in order. Raises TopicNotFound."""
        return [self.partition(topic.name, index) for index in range(topic.config.partitions)]

    @abstractmethod
    def watch_topics(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call `callback` with the name of each topic that has appeared, changed or vanished, on any node. Returns what stops it.

        `topics` has the news by then. Several changes of a topic may be reported as one, including deletion and re-creation.
        """

    @abstractmethod
    def partition(self, topic: str, index: int) -> Partition:
        """Raises TopicNotFound or PartitionNotFound."""

    @abstractmethod
    async def create_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        """Raises TopicExists, also if another node has created it meanwhile, and `topics` has it then. The topic survives a crash once
        this returns."""

    @abstractmethod
    async def delete_topic(self, name: str) -> None:
        """Raises TopicNotFound. Pending appends fail with TopicNotFound."""

    @abstractmethod
    async def alter_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        """Replace the settings of a topic, and add the partitions that it has too few of. After a crash all of it is done or nothing.

        Raises TopicNotFound, InvalidRequest for fewer partitions than there are. Partitions that exist keep their records.
        """

    @abstractmethod
    async def truncate_topic(self, name: str, before: Mapping[int, int]) -> None:
        """Delete the records of partitions before the given offsets, by partition. After a crash all of it is done or nothing.

        Offsets below the start of a partition change nothing. Disk space is reclaimed by whole segments.
        Raises TopicNotFound, PartitionNotFound, OffsetOutOfRange above `committed_end`, which is made current first.
        """

    @abstractmethod
    def append_atomic(self, parts: Sequence[BatchFor], done: OnAllAppended) -> None:
        """Append to several partitions (each named once): after a crash all parts are there or none is.

        What these partitions held before is durable with it, whatever the durability of their topics. A LateBatch is told where the
        other parts are stored; if there are several, none of them is told of another. Where it is stored itself is not told if that is
        later.
        """
