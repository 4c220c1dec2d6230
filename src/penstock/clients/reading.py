"""Reading a topic from start to end, or following it, over any protocol: what to fetch next, when to commit, how long to wait.

Each partition has a cursor. A few fetches are always on their way, one per cursor at most, and the next one leaves before the last
one's records are decoded and handed out, so that the broker works while the program does. Where a protocol has no push and no long
poll, and nothing new came from any partition, the next round waits, twice as long each time up to a bound.

A reader that follows all partitions of a topic checks now and then for added partitions, and reads those from their start.

If the broker answers a fetch with an earlier offset than what was read already, the log has lost its tail in a crash: the cursor of a
reader that follows the topic continues there, with the records that are written next. A topic that ends before what was read and has lost
nothing is another one of the same name: its reader gets an error, rather than waiting for offsets that it has read.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from penstock.clients.records import FetchResult, PartitionDescription, Record
from penstock.clients.retry import Sleep
from penstock.errors import InvalidRequest, OffsetOutOfRange

READ_RECORDS = 5000
"""Records that one fetch asks for. A broker may give fewer; deployed ones stop at 1 000."""
FETCHES_AHEAD_MAX = 4
"""Fetches under way at once; each may bring as much as a frame holds."""
TURNS_UNTIL_WRITTEN = 2
"""Turns of the loop until a new task's request is on the wire: one to run the task, one to write."""
FETCHES_PER_LOOK = 256
"""Fetches after which a reader that follows a topic asks whether it has new partitions."""
IDLE_ROUNDS_PER_LOOK = 4
"""Rounds without a record after which it asks, too: about a second, once it waits as long as it ever does."""
POLL_S_MIN = 0.005
POLL_S_MAX = 0.25


class Fetched(Protocol):
    """The result of one fetch. The next offset is known before the records are decoded, so the next fetch can start meanwhile."""

    @property
    def next_offset(self) -> int: ...
    def decode(self) -> FetchResult: ...


class Cursor:
    """The position in one partition. Reading stops at `end`; None for never."""

    __slots__ = ("committed", "end", "has_read", "offset", "partition", "topic")

    def __init__(self, topic: str, partition: int, offset: int, end: int | None) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.committed = offset
        self.end = end
        self.has_read = False

    @property
    def finished(self) -> bool:
        return self.end is not None and self.offset >= self.end

    def advance(self, fetched: Fetched) -> bool:
        """Move past a fetch; returns whether that was a step forward."""
        moved = fetched.next_offset > self.offset
        if moved:
            self.offset = fetched.next_offset
            self.has_read = True
        elif self.end is not None:
            self.offset = self.end  # the broker has nothing more before the end: what was there is gone
        elif self.has_read:
            self.offset = fetched.next_offset
        return moved

    def records(self, fetched: Fetched) -> list[Record]:
        """Return the records of a fetch, without those after `end`."""
        records, end = fetched.decode().records, self.end
        if end is not None and records and records[-1].offset >= end:
            return [record for record in records if record.offset < end]
        return records


Fetch = Callable[[Cursor, int], Coroutine[Any, Any, Fetched]]
"""Fetches from a cursor, up to a number of records."""
Commit = Callable[[Cursor, int], Coroutine[Any, Any, None]]
"""Of the partition of a cursor, the next offset to read."""
AddedCursors = Callable[[], Coroutine[Any, Any, Sequence[Cursor]]]
"""Of partitions that were added since reading began, or since it was last called."""


async def check_same_topic(cursors: Iterable[Cursor], partitions: Sequence[PartitionDescription], fetch: Fetch) -> None:
    """Raises OffsetOutOfRange if the cursors of a topic are beyond the end of its partitions, because it was created again.

    If the end was cut off in a crash, a fetch from there says so, and its cursor continues at the cut.
    """
    for cursor, partition in zip(cursors, partitions, strict=False):
        is_beyond = cursor.has_read and partition.next_offset < cursor.offset
        if is_beyond and (await fetch(cursor, 1)).next_offset == cursor.offset:
            raise OffsetOutOfRange(
                f"offset out of range: {cursor.topic}-{cursor.partition} was read up to offset {cursor.offset}, and ends at "
                f"{partition.next_offset}: the topic was deleted and created again; start again to read the new one"
            )


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InvalidRequest(f"limit is {limit}: read at least one record, or leave it out to read all")


async def records_of(batches: AsyncGenerator[list[Record], None]) -> AsyncGenerator[Record, None]:
    """Yield the records of the batches one by one."""
    async with aclosing(batches):
        async for batch in batches:
            for record in batch:
                yield record


async def read_batches(
    cursors: Sequence[Cursor],
    fetch: Fetch,
    commit: Commit | None,
    *,
    follow: bool,
    limit: int | None,
    sleep: Sleep,
    added: AddedCursors | None = None,
) -> AsyncGenerator[list[Record], None]:
    """The records of all cursors, a list of one partition at a time. `commit` stores the offsets of what was handed out.

    `added` returns more cursors while topics are followed, if the cursors are all of their partitions.
    """
    count = len(cursors)
    fetches = idle_rounds = 0
    ready = deque(cursor for cursor in cursors if not cursor.finished)
    under_way: deque[tuple[Cursor, asyncio.Task[Fetched]]] = deque()
    committing: asyncio.Task[None] | None = None
    left = sys.maxsize if limit is None else limit
    idle_cursors = 0
    poll_s = POLL_S_MIN

    def fetch_ahead() -> None:
        while ready and len(under_way) < FETCHES_AHEAD_MAX:
            cursor = ready.popleft()
            work = fetch(cursor, min(left, READ_RECORDS))
            under_way.append((cursor, asyncio.create_task(work)))

    try:
        fetch_ahead()
        while under_way:
            cursor, task = under_way.popleft()
            fetched = await task
            fetches += 1
            if cursor.advance(fetched):
                idle_cursors, poll_s = 0, POLL_S_MIN
            else:
                idle_cursors += 1
            if not cursor.finished:
                ready.append(cursor)
            if follow and idle_cursors >= count:
                await sleep(poll_s)
                idle_cursors, poll_s = 0, min(poll_s * 2, POLL_S_MAX)
                idle_rounds += 1
            if follow and added is not None and (fetches >= FETCHES_PER_LOOK or idle_rounds >= IDLE_ROUNDS_PER_LOOK):
                fetches = idle_rounds = 0
                more = await added()
                count += len(more)
                ready.extendleft(more)
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
            if commit is not None and position != cursor.committed:
                if committing is not None:
                    await committing
                cursor.committed = position
                committing = asyncio.create_task(commit(cursor, position))
            if not left:
                break
    finally:
        for _, task in under_way:
            task.cancel()
        await asyncio.gather(*(task for _, task in under_way), return_exceptions=True)
        if committing is not None:
            await committing
