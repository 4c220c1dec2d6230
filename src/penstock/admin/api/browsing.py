"""Reading a page of records for people: from a place in each partition, filtered, in bounded time and memory.

A page ends where one of its bounds is reached and says where the next one begins in each partition. A filter is evaluated by a worker
thread; how many records were looked at is told, so that a page without records does not look like the end of the topic.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.records.filters import RecordFilter
from penstock.broker.records.visibility import visible_rows
from penstock.errors import OffsetOutOfRange
from penstock.log.api import Partition
from penstock.log.block import Block
from penstock.workers import Check, Worker

PAGE_BYTES_MAX: Final = 4 << 20
"""Of the records of one page, unless the first is larger."""
SCANNED_MAX: Final = 50_000
"""Records that one page looks at, in all partitions together."""
SCAN_S_MAX: Final = 0.5
READ_BYTES: Final = 256 << 10
ROWS_PER_CHECK: Final = 64


class Row(NamedTuple):
    """One record as it is stored."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: bytes | None

    @property
    def size_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"") + len(self.headers or b"")


class Stretch(NamedTuple):
    """Which records of a partition are looked at."""

    partition: Partition
    offset: int
    end: int


@dataclass(slots=True)
class Page:
    rows: list[Row] = field(default_factory=list)
    """By time."""
    next: dict[int, int] = field(default_factory=dict)
    """By partition, where the next page begins."""
    scanned: int = 0


@dataclass(slots=True)
class _Gathering:
    """The records of one partition in a page: the first that are wanted, or the last."""

    offset: int
    records_max: int
    bytes_max: int
    newest: bool
    rows: deque[Row] = field(default_factory=deque)
    size_bytes: int = 0
    scanned: int = 0

    @property
    def full(self) -> bool:
        return not self.newest and (len(self.rows) >= self.records_max or self.size_bytes >= self.bytes_max)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self.size_bytes += row.size_bytes
        while len(self.rows) > 1 and (len(self.rows) > self.records_max or self.size_bytes > self.bytes_max):
            if not self.newest:
                # It does not fit any more, and the next page begins with it.
                self.offset = row.offset
                self.size_bytes = self.bytes_max
                self.rows.pop()
                return
            self.size_bytes -= self.rows.popleft().size_bytes


async def read_page(
    stretches: list[Stretch], records_max: int, wanted: str, worker: Worker, now_ms: int, *, newest: bool
) -> Page:
    """Return at most so many records of some stretches: the first ones of each, or the last if `newest`."""
    record_filter = await worker.run(lambda _: RecordFilter(wanted)) if wanted else None
    page = Page()
    deadline_s = time.monotonic() + SCAN_S_MAX
    shares = max(1, len(stretches))
    for stretch in stretches:
        gathering = _Gathering(
            stretch.offset,
            records_max if newest else max(1, records_max // shares),
            max(1, PAGE_BYTES_MAX // shares),
            newest,
        )
        await _gather(gathering, stretch, record_filter, SCANNED_MAX // shares, worker, now_ms, deadline_s)
        page.rows += gathering.rows
        page.next[stretch.partition.index] = gathering.offset
        page.scanned += gathering.scanned
    page.rows.sort(key=lambda row: (row.timestamp_ms, row.partition, row.offset))
    if newest:
        page.rows = page.rows[-records_max:]
    return page


async def _gather(
    gathering: _Gathering,
    stretch: Stretch,
    wanted: RecordFilter | None,
    scanned_max: int,
    worker: Worker,
    now_ms: int,
    deadline_s: float,
) -> None:
    partition = stretch.partition
    while gathering.offset < stretch.end and gathering.scanned < scanned_max and not gathering.full:
        try:
            blocks = await partition.read(max(gathering.offset, partition.start_offset), READ_BYTES)
        except OffsetOutOfRange:
            return  # retention or truncation took them away since
        if not blocks:
            return
        scan = partial(_scan, gathering, blocks, partition.index, stretch.end, wanted, now_ms)
        if wanted is None:
            scan(lambda: None)
        else:
            await worker.run(scan)
            if time.monotonic() > deadline_s:
                return


def _scan(
    gathering: _Gathering,
    blocks: list[Block],
    partition: int,
    end: int,
    wanted: RecordFilter | None,
    now_ms: int,
    check: Check,
) -> None:
    for block in blocks:
        start, stop = block.index_of(gathering.offset), block.index_of(end)
        if wanted is None:
            stop = min(stop, start + gathering.records_max)
        for row in _rows(block, partition, start, stop, now_ms):
            if gathering.scanned % ROWS_PER_CHECK == 0:
                check()
            gathering.scanned += 1
            gathering.offset = row.offset + 1
            if wanted is None or wanted.matches(row.key, row.value, check):
                gathering.add(row)
            if gathering.full:
                return
        following = block.next_offset if stop == block.count else block.offsets(stop, stop + 1)[0]
        gathering.offset = max(gathering.offset, min(following, end))


def _rows(block: Block, partition: int, start: int, stop: int, now_ms: int) -> Iterator[Row]:
    """Yield the records of some rows of a block that have not expired."""
    offsets, times, values = block.offsets(start, stop), block.timestamps(start, stop), block.values(start, stop)
    keys, headers = block.keys(start, stop), block.headers(start, stop)
    visible = visible_rows(block, start, stop, now_ms)
    for at in range(stop - start) if visible is None else [row - start for row in visible]:
        yield Row(
            partition,
            offsets[at],
            times[at],
            None if keys is None else keys[at],
            values[at],
            None if headers is None else headers[at],
        )
