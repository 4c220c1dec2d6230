"""Changing a topic that exists: its settings, the number of its partitions, where its partitions start.

Each change is one replacement of the topic's metadata, so after a crash it is done or not. What must be on disk before that is put there
first: the directories of new partitions, and records that were written without a flush, where the metadata promises that they are synced.

- With `durability = "fsync"` recovery takes what is not whole in the middle of a log for damage. So a topic that begins to wait for
  flushes is flushed before its metadata says so; one that no longer waits has metadata that says so first.
- A partition never ends before the offset it was truncated to: what lies before that offset is flushed first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from penstock.errors import InvalidRequest, NotWritten, OffsetOutOfRange, PartitionNotFound
from penstock.log.api import TopicConfig
from penstock.log.embedded.commit import Committer
from penstock.log.embedded.disk import storage_error
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.log.embedded.segment import Segment, SegmentWriter
from penstock.log.embedded.topicfiles import StoredTopic, TopicFiles

OpenedParts = list[tuple[list[Segment], SegmentWriter]]
"""Partitions of a topic as recovery returns them."""


class TopicChanges:
    """Changes topics, one at a time. The caller holds the lock of all changes of topics."""

    def __init__(
        self,
        files: TopicFiles,
        committer: Committer,
        open_partitions: Callable[[StoredTopic, int], OpenedParts],
    ) -> None:
        """`open_partitions` opens the partitions of a topic from an index on; it blocks."""
        self._files = files
        self._committer = committer
        self._open_partitions = open_partitions
        self._loop = asyncio.get_running_loop()

    async def alter(
        self, topic: StoredTopic, partitions: Sequence[EmbeddedPartition], config: TopicConfig
    ) -> tuple[StoredTopic, OpenedParts]:
        """Give a topic another configuration. Returns the topic as it is now, and the partitions that were added."""
        name, before = topic.info.name, topic.info.config
        if config.partitions < before.partitions:
            raise InvalidRequest(
                f"topic {name} has {before.partitions} partitions, and cannot have fewer: {config.partitions} would lose records; "
                "create another topic"
            )
        _check_writable(partitions)
        starts = topic.starts
        if _has_retention(before) and not _has_retention(config):
            # What retention has deleted stays deleted: readers at lower offsets must still get an error.
            starts = _normalized(partition.start_offset for partition in partitions)
        altered = StoredTopic(
            replace(topic.info, config=config),
            topic.salt,
            topic.epochs.with_partitions(config.partitions),
            starts,
        )
        added: OpenedParts = []
        try:
            if config.partitions > before.partitions:
                added = await self._loop.run_in_executor(None, self._add_files, altered, before.partitions)
            if config.durability.mode == "fsync" and before.durability.mode != "fsync":
                await self._committer.run(lambda: self._begin_flushing(partitions, config))
            await self._loop.run_in_executor(None, self._files.replace, topic, altered)
        except BaseException as error:
            if isinstance(error, OSError | NotWritten):
                for partition in partitions:
                    partition.config = before
            if isinstance(error, OSError):
                raise storage_error(error, f"altering topic {name!r}") from error
            raise
        for index, partition in enumerate(partitions):
            partition.config = config
            partition.truncate(altered.start(index))
        if config.durability != before.durability:
            with suppress(NotWritten):  # the partition refuses writes then; the topic is altered all the same
                await self._committer.run(lambda: self._committer.flush_unflushed(partitions))
        return altered, added

    def _add_files(self, topic: StoredTopic, first: int) -> OpenedParts:
        self._files.make_partitions(topic.info)
        return self._open_partitions(topic, first)

    def _begin_flushing(self, partitions: Sequence[EmbeddedPartition], config: TopicConfig) -> None:
        """In the commit thread: wait for a flush from the next commit on, and flush what was written before."""
        for partition in partitions:
            partition.config = replace(partition.config, durability=config.durability)
        self._committer.flush_unflushed(partitions)

    async def truncate(
        self, topic: StoredTopic, partitions: Sequence[EmbeddedPartition], before: Mapping[int, int]
    ) -> StoredTopic:
        """Delete what lies before the given offsets. Returns the topic as it is now."""
        for index, offset in before.items():
            if not 0 <= index < len(partitions):
                raise PartitionNotFound(
                    f"partition {index} not found: topic {topic.info.name!r} has partitions 0 to {len(partitions) - 1}"
                )
            end = partitions[index].committed_end
            if not 0 <= offset <= end:
                raise OffsetOutOfRange(
                    f"offset {offset} is out of range: {partitions[index]} ends at {end}; nothing was deleted"
                )
        moved = {index: offset for index, offset in before.items() if offset > partitions[index].start_offset}
        if not moved:
            return topic
        affected = [partitions[index] for index in moved]
        _check_writable(affected)
        truncated = topic._replace(
            starts=_normalized(max(topic.start(index), moved.get(index, 0)) for index in range(len(partitions)))
        )
        await self._committer.run(lambda: self._committer.flush_unflushed(affected))
        try:
            await self._loop.run_in_executor(None, self._files.replace, topic, truncated)
        except OSError as error:
            raise storage_error(error, f"truncating topic {topic.info.name!r}") from error
        for index, offset in moved.items():
            partitions[index].truncate(offset)
        return truncated


def _check_writable(partitions: Sequence[EmbeddedPartition]) -> None:
    for partition in partitions:
        if partition.failure is not None:
            raise NotWritten(f"nothing was changed, because the partition has failed: {partition.failure}")


def _has_retention(config: TopicConfig) -> bool:
    return config.retention_ms is not None or config.retention_bytes is not None


def _normalized(starts: Iterable[int]) -> tuple[int, ...]:
    """Return starts as they are stored: none if no partition was truncated."""
    listed = tuple(starts)
    return listed if any(listed) else ()
