"""Copies a log to another engine, in passes while its broker serves, and then for good.

Records keep their offsets and times, topics their ids, so whatever refers to them (groups, subscriptions, transactions) stays true, and the
broker's own state needs no translation: it is in topics, too. The end of a partition in the target tells how far it was copied, so a pass
that was killed continues there. What a pass has copied it reads back and compares by checksum.

The last pass (`finish`) is made over a log that nobody writes to. It leaves the target as it is to be served.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import structlog

from penstock.clock import Clock, SystemClock
from penstock.errors import CorruptBlock, InvalidRequest
from penstock.log.api import Engine, PlacedBatch, TopicInfo
from penstock.log.block import Block
from penstock.log.migration.comparing import compare
from penstock.log.migration.record_checksum import RecordChecksum
from penstock.log.migration.source import EngineSource, Source, blocks_between
from penstock.log.migration.state import PartitionState, StateFile, TopicState

PARTITIONS_AT_ONCE: Final = 8
JOINED_BYTES: Final = 64 << 10
"""Blocks that are smaller are placed together."""
JOINED_OFFSETS_MAX: Final = 1 << 20
"""Offsets that records which are placed together may span."""
SAVE_S: Final = 1.0

_T = TypeVar("_T")
log = structlog.get_logger(__name__)

OnProgress = Callable[[int, int], None]
"""Told how many records were copied or verified, and how many bytes they have."""


class PartitionResult(NamedTuple):
    """A partition that is the same in both logs."""

    topic: str
    partition: int
    start: int
    end: int
    records: int
    checksum: str


@dataclass(slots=True)
class Result:
    """What a pass did."""

    partitions: list[PartitionResult]
    copied_records: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition in a pass: what the source holds of it now, and how far it was copied."""

    source: Source

    info: TopicInfo
    index: int
    start: int
    end: int
    position: int
    state: PartitionState


class Migration:
    def __init__(
        self,
        target: Engine,
        state: StateFile,
        *,
        tombstone_ms: int,
        clock: Clock | None = None,
        on_total: Callable[[int], None] = lambda _: None,
        on_progress: OnProgress = lambda _records, _bytes: None,
    ) -> None:
        """`tombstone_ms` is how long the source keeps the record that deletes a key. `on_total` gets how many records are to be copied
        and verified."""
        state.check_unfinished()
        self._target = target
        self._import = target.importing()
        self._target_source = EngineSource(target)
        self._state = state
        self._tombstone_ms = tombstone_ms
        self._clock = clock or SystemClock()
        self._on_total = on_total
        self._on_progress = on_progress
        self._saved_at = 0.0
        self._copied_records = self._copied_bytes = 0

    # -- passes ------------------------------------------------------------------------------------------------------------

    async def copy(self, source: Source) -> Result:
        """Copy and verify what the source holds now. Raises CorruptBlock if the logs differ."""
        return await self._copy(source, dict(source.topics()))

    async def _copy(self, source: Source, infos: dict[str, TopicInfo]) -> Result:
        began_ms = self._clock.now_ms()
        await self._drop_deleted(infos)
        self._note_topics(infos)
        parts: list[_Part] = []
        for info in infos.values():
            parts += await self._begin(source, info)
        self._on_total(sum((part.end - part.position) + (part.end - part.state.verified) for part in parts))
        self._copied_records = self._copied_bytes = 0
        at_once = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def bring_up(part: _Part) -> PartitionResult:
            async with at_once:
                await self._copy_partition(part)
                return await self._verify_partition(part)

        partitions = await _all(bring_up(part) for part in parts)
        for info in infos.values():
            self._state.state.topics[info.id].copied_ms = began_ms
        self._state.save()
        return Result(partitions, self._copied_records, self._copied_bytes)

    async def finish(self, source: Source) -> Result:
        """The same for a log that nobody writes to any more; then make the target ready to be served."""
        infos = dict(source.topics())  # others may create topics in Kafka meanwhile
        result = await self._copy(source, infos)
        starts: dict[str, list[int]] = {}
        for each in sorted(result.partitions, key=lambda each: each.partition):
            starts.setdefault(each.topic, []).append(each.start)
        at_once = asyncio.Semaphore(PARTITIONS_AT_ONCE)

        async def finish(info: TopicInfo) -> None:
            async with at_once:
                await self._import.finish(info, starts[info.name])

        await _all(finish(info) for info in infos.values())
        for each in result.partitions:
            _, end = await self._target_source.bounds(each.topic, each.partition)
            if end != each.end:
                raise CorruptBlock(
                    f"topic {each.topic!r} partition {each.partition} ends at {end} in the target, and at {each.end} in the source"
                )
        self._state.state.finished = True
        self._state.save()
        return result

    async def _drop_deleted(self, infos: dict[str, TopicInfo]) -> None:
        """Delete from the target what was copied before and is not in the source any more, or must be copied again."""
        kept = {info.id: info for info in infos.values()}
        now_ms = self._clock.now_ms()
        for topic_id, topic in list(self._state.state.topics.items()):
            info = kept.get(topic_id)
            # A key that was deleted since may have lost the record that says so.
            outdated = (
                info is not None and info.config.cleanup == "compact" and now_ms - topic.copied_ms >= self._tombstone_ms
            )
            if info is None or outdated:
                existing = self._target.topics().get(topic.name)
                if existing is not None and existing.id == topic_id:
                    log.info("topic_deleted_in_target", topic=topic.name, copied_again=outdated)
                    await self._target.delete_topic(topic.name)
                del self._state.state.topics[topic_id]
                self._state.save()

    def _note_topics(self, infos: dict[str, TopicInfo]) -> None:
        """Before they are created: what the target then has of these ids is known to be ours."""
        for info in infos.values():
            state = self._state.state.topics.setdefault(info.id, TopicState(info.name, [], self._clock.now_ms()))
            state.partitions += [PartitionState() for _ in range(info.config.partitions - len(state.partitions))]
        self._state.save()

    async def _begin(self, source: Source, info: TopicInfo) -> list[_Part]:
        state = self._state.state.topics[info.id]
        await self._import.begin(info)
        parts: list[_Part] = []
        for index in range(info.config.partitions):
            start, end = await source.bounds(info.name, index)
            position = await self._import.position(info.name, index)
            if position > end:
                raise InvalidRequest(
                    f"topic {info.name!r} partition {index} ends at {position} in the target and at {end} in the source: something else"
                    " has written to the target, or this is another source"
                )
            partition = state.partitions[index]
            if partition.verified > position:
                partition.note(0, RecordChecksum())  # the target has lost something: verify all of it again
            parts.append(_Part(source, info, index, start, end, position, partition))
        return parts

    # -- one partition -----------------------------------------------------------------------------------------------------

    async def _copy_partition(self, part: _Part) -> None:
        topic, index = part.info.name, part.index
        first = max(part.position, part.start)
        latest_ms = await self._latest_ms(part)
        async for blocks in blocks_between(part.source, topic, index, first, part.end):
            for records in _placed(blocks, first, part.end, latest_ms):
                latest_ms = records.timestamps[-1]
                await self._import.place(topic, index, records)
                self._copied_records += records.count
                self._copied_bytes += records.size_bytes
                self._on_progress(records.count, records.size_bytes)
        if await self._import.position(topic, index) < part.end:
            await self._import.skip_to(topic, index, part.end)

    async def _latest_ms(self, part: _Part) -> int:
        """The time of the last record that was copied, which those after it do not fall behind."""
        latest_ms = part.state.latest_ms
        start = max(part.state.verified, part.start)
        if part.position > start:
            _, end = await self._target_source.bounds(part.info.name, part.index)
            async for blocks in blocks_between(self._target_source, part.info.name, part.index, start, end):
                latest_ms = max(latest_ms, blocks[-1].last_timestamp_ms)
        return latest_ms

    async def _verify_partition(self, part: _Part) -> PartitionResult:
        topic, index, state = part.info.name, part.index, part.state
        start = max(state.verified, part.start)
        ours = await self._checksum(part.source, part, start)
        theirs = await self._checksum(self._target_source, part, start)
        if ours.sums != theirs.sums:
            await compare(
                part.source,
                self._target_source,
                part.info,
                index,
                start,
                part.end,
                state.latest_ms,
                self._clock.now_ms(),
            )
        state.note(part.end, ours)
        now = asyncio.get_running_loop().time()
        if now - self._saved_at > SAVE_S:
            self._saved_at = now
            self._state.save()
        return PartitionResult(topic, index, part.start, part.end, ours.records, ours.text)

    async def _checksum(self, source: Source, part: _Part, start: int) -> RecordChecksum:
        checksum = part.state.checksum
        if source is self._target_source:
            # What was just placed is seen once the partition is followed, and where it starts is settled at the end.
            lowest, _ = await source.bounds(part.info.name, part.index)
            start = max(start, lowest)
        async for blocks in blocks_between(source, part.info.name, part.index, start, part.end):
            before = checksum.records
            for block in blocks:
                checksum.add(block, start, part.end)
            if source is part.source:
                self._on_progress(checksum.records - before, 0)
        return checksum


async def _all(work: Iterable[Awaitable[_T]]) -> list[_T]:
    """Await everything; the first error ends what is under way."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _placed(blocks: Sequence[Block], start: int, end: int, latest_ms: int) -> Iterator[PlacedBatch]:
    """The records of blocks from one offset up to another, small blocks joined."""
    joining: list[Block] = []
    size = 0
    for block in blocks:
        if joining and (
            size + block.raw_bytes > JOINED_BYTES or block.next_offset - joining[0].base_offset > JOINED_OFFSETS_MAX
        ):
            records = _records(joining, start, end, latest_ms)
            latest_ms = records.timestamps[-1]
            yield records
            joining, size = [], 0
        joining.append(block)
        size += block.raw_bytes
    yield _records(joining, start, end, latest_ms)


def _records(blocks: Sequence[Block], start: int, end: int, latest_ms: int) -> PlacedBatch:
    offsets: list[int] = []
    times: list[int] = []
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    headers: list[bytes | None] = []
    expiries: list[int] = []
    keyed = headed = expiring = False
    for block in blocks:
        first, stop = block.index_of(start), block.index_of(end)
        count = stop - first
        offsets += block.offsets(first, stop)
        times += block.timestamps(first, stop)
        values += block.values(first, stop)
        found, cells, ends = block.keys(first, stop), block.headers(first, stop), block.expiries(first, stop)
        keyed, headed, expiring = keyed or found is not None, headed or cells is not None, expiring or ends is not None
        keys += [None] * count if found is None else found
        headers += [None] * count if cells is None else cells
        expiries += [0] * count if ends is None else ends
    if times[0] < latest_ms or any(one > other for one, other in itertools.pairwise(times)):
        for row, timestamp_ms in enumerate(times):
            latest_ms = times[row] = max(latest_ms, timestamp_ms)
    return PlacedBatch(
        offsets,
        times,
        values,
        keys if keyed else None,
        headers if headed else None,
        expiries if expiring else None,
    )
