"""Reading a topic from start to end, or on and on: where to begin, what to fetch next, when to commit, how long to wait.

Each partition has a cursor. A few fetches are always on their way, one per cursor at most, so that the broker works while the program
does. FlyMQ has no push and no long poll: when nothing new came from any partition, the next round waits, twice as long each time up to
a bound.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from penstock.clients.records import FetchResult, PartitionDescription, Record
from penstock.clients.requests import Sleep
from penstock.errors import GroupNotFound, InvalidRequest, OffsetOutOfRange, PartitionNotFound

if TYPE_CHECKING:
    from penstock.protocols.flymq.client import AsyncFlyMQClient

Start = Literal["earliest", "latest"] | int | datetime

FETCHES_AHEAD_MAX = 4
"""Fetches under way at once; each may bring as much as a frame holds."""
POLL_S_MIN = 0.005
POLL_S_MAX = 0.25


def timestamp_ms_of(time: datetime | int) -> int:
    """Milliseconds since 1970; a datetime without a zone is local time, as everywhere in Python."""
    return time if isinstance(time, int) else round(time.timestamp() * 1000)


class _Cursor:
    """Where reading stands in one partition. `end` is where it stops, None for never."""

    __slots__ = ("committed", "end", "offset", "partition")

    def __init__(self, partition: int, offset: int, end: int | None) -> None:
        self.partition = partition
        self.offset = offset
        self.committed = offset
        self.end = end

    @property
    def finished(self) -> bool:
        return self.end is not None and self.offset >= self.end

    def advance(self, result: FetchResult) -> list[Record]:
        """Move past a fetch's result; returns its records, without those that came after reading began."""
        records, end = result.records, self.end
        if end is not None:
            if records and records[-1].offset >= end:
                records = [record for record in records if record.offset < end]
            if not records and result.next_offset <= self.offset:
                self.offset = end  # the broker has nothing more before the end: what was there is gone
                return records
        self.offset = result.next_offset
        return records


async def read_batches(
    client: AsyncFlyMQClient,
    topic: str,
    partition: int | None,
    start: Start | None,
    group: str | None,
    *,
    follow: bool,
    commit: bool,
    wanted: str | None,
    limit: int | None,
    sleep: Sleep,
) -> AsyncGenerator[list[Record], None]:
    """See `AsyncFlyMQClient.records`."""
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}: read at least one record, or leave it out to read all")
    cursors = await _cursors(client, topic, partition, start, group, follow=follow)
    ready = deque(cursor for cursor in cursors if not cursor.finished)
    under_way: deque[tuple[_Cursor, asyncio.Task[FetchResult]]] = deque()
    committing: asyncio.Task[None] | None = None
    empty_in_a_row = 0
    poll_s = POLL_S_MIN

    def fetch_ahead() -> None:
        while ready and len(under_way) < FETCHES_AHEAD_MAX:
            cursor = ready.popleft()
            under_way.append((cursor, asyncio.create_task(_fetch(client, topic, cursor, wanted))))

    try:
        fetch_ahead()
        while under_way:
            cursor, task = under_way.popleft()
            records = cursor.advance(await task)
            position = cursor.offset
            if limit is not None and len(records) >= limit:
                records = records[:limit]
                position = records[-1].offset + 1
                limit = 0
            elif limit is not None:
                limit -= len(records)
            if limit != 0:
                if not cursor.finished:
                    ready.append(cursor)
                if records:
                    empty_in_a_row, poll_s = 0, POLL_S_MIN
                else:
                    empty_in_a_row += 1
                    if follow and empty_in_a_row >= len(cursors):
                        await sleep(poll_s)
                        empty_in_a_row, poll_s = 0, min(poll_s * 2, POLL_S_MAX)
                fetch_ahead()
            if records:
                yield records
            if group is not None and commit and position != cursor.committed:
                if committing is not None:
                    await committing
                cursor.committed = position
                committing = asyncio.create_task(client.commit(topic, group, cursor.partition, position))
            if limit == 0:
                break
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
        if committing is not None:
            await committing


async def _fetch(client: AsyncFlyMQClient, topic: str, cursor: _Cursor, wanted: str | None) -> FetchResult:
    try:
        return await client.fetch(topic, cursor.partition, cursor.offset, filter=wanted)
    except OffsetOutOfRange:
        described = await _partition(client, topic, cursor.partition)
        if cursor.offset >= described.start_offset:
            raise
        return FetchResult([], described.start_offset)  # retention overtook the reader: go on with what is left


async def _cursors(
    client: AsyncFlyMQClient, topic: str, partition: int | None, start: Start | None, group: str | None, *, follow: bool
) -> list[_Cursor]:
    if partition is None:
        partitions = (await client.describe_topic(topic)).partitions
    else:
        partitions = [await _partition(client, topic, partition)]
    offsets = await asyncio.gather(*(_start_offset(client, topic, each, start) for each in partitions))
    if group is not None:
        committed = await _committed(client, topic, group)
        await asyncio.gather(*(client.subscribe(topic, group, each.partition) for each in partitions))
        offsets = [committed.get(each.partition, offset) for each, offset in zip(partitions, offsets, strict=True)]
    return [
        _Cursor(each.partition, max(offset, each.start_offset), None if follow else each.next_offset)
        for each, offset in zip(partitions, offsets, strict=True)
    ]


async def _partition(client: AsyncFlyMQClient, topic: str, index: int) -> PartitionDescription:
    partitions = (await client.describe_topic(topic)).partitions
    if not 0 <= index < len(partitions):
        raise PartitionNotFound(f"partition {index} not found: topic {topic} has partitions 0 to {len(partitions) - 1}")
    return partitions[index]


async def _start_offset(
    client: AsyncFlyMQClient, topic: str, partition: PartitionDescription, start: Start | None
) -> int:
    if start is None or start == "earliest":
        return partition.start_offset
    if start == "latest":
        return partition.next_offset
    if isinstance(start, datetime):
        return await client.seek_to_time(topic, None, partition.partition, start)
    if isinstance(start, int):
        return start
    raise InvalidRequest(f"start {start!r} is not known: use earliest, latest, an offset, or a datetime")


async def _committed(client: AsyncFlyMQClient, topic: str, group: str) -> dict[int, int]:
    try:
        (described,) = await client.describe_group(group, topic)
    except GroupNotFound:
        return {}
    return described.offsets
