"""Reading a topic from start to end, or on and on: where to begin, what to fetch next, when to commit, how long to wait.

Each partition has a cursor. A few fetches are always on their way, one per cursor at most, and the next one leaves before the last
one's records are decoded and handed out, so that the broker works while the program does. FlyMQ has no push and no long poll: when
nothing new came from any partition, the next round waits, twice as long each time up to a bound.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from penstock.clients.records import PartitionDescription, Record
from penstock.clients.requests import Sleep
from penstock.errors import GroupNotFound, InvalidRequest, PartitionNotFound
from penstock.protocols.flymq.fetched import EncodedFetch

if TYPE_CHECKING:
    from penstock.protocols.flymq.client import AsyncFlyMQClient

Start = Literal["earliest", "latest"] | int | datetime

READ_RECORDS = 5000
"""Records that one fetch asks for. A broker may give fewer; deployed ones stop at 1 000."""
FETCHES_AHEAD_MAX = 4
"""Fetches under way at once; each may bring as much as a frame holds."""
TURNS_UNTIL_WRITTEN = 2
"""Turns of the loop until a new task's request is on the wire: one to run the task, one to write."""
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

    def advance(self, fetched: EncodedFetch) -> bool:
        """Move past a fetch; returns whether that was a step forward."""
        moved = fetched.next_offset > self.offset
        if moved:
            self.offset = fetched.next_offset
        elif self.end is not None:
            self.offset = self.end  # the broker has nothing more before the end: what was there is gone
        return moved

    def records(self, fetched: EncodedFetch) -> list[Record]:
        """The records of a fetch, without those that came after reading began."""
        records, end = fetched.decode().records, self.end
        if end is not None and records and records[-1].offset >= end:
            return [record for record in records if record.offset < end]
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
    under_way: deque[tuple[_Cursor, asyncio.Task[EncodedFetch]]] = deque()
    committing: asyncio.Task[None] | None = None
    left = sys.maxsize if limit is None else limit
    idle_cursors = 0
    poll_s = POLL_S_MIN

    def fetch_ahead() -> None:
        while ready and len(under_way) < FETCHES_AHEAD_MAX:
            cursor = ready.popleft()
            fetch = client.fetch_encoded(topic, cursor.partition, cursor.offset, min(left, READ_RECORDS), wanted)
            under_way.append((cursor, asyncio.create_task(fetch)))

    try:
        fetch_ahead()
        while under_way:
            cursor, task = under_way.popleft()
            fetched = await task
            if cursor.advance(fetched):
                idle_cursors, poll_s = 0, POLL_S_MIN
            else:
                idle_cursors += 1
            if not cursor.finished:
                ready.append(cursor)
            if follow and idle_cursors >= len(cursors):
                await sleep(poll_s)
                idle_cursors, poll_s = 0, min(poll_s * 2, POLL_S_MAX)
            if limit is None:
                fetch_ahead()
                for _ in range(TURNS_UNTIL_WRITTEN):
                    await asyncio.sleep(0)
            records = cursor.records(fetched)
            position = cursor.offset
            if len(records) >= left:
                records = records[:left]
                position = records[-1].offset + 1
            left -= len(records)
            if left:
                fetch_ahead()
            if records:
                yield records
            if group is not None and commit and position != cursor.committed:
                if committing is not None:
                    await committing
                cursor.committed = position
                committing = asyncio.create_task(client.commit(topic, group, cursor.partition, position))
            if not left:
                break
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
        if committing is not None:
            await committing


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
