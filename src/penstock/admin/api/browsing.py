"""Reading a page of records for people: from a place in each partition, filtered, in bounded time and memory.

A page ends where one of its bounds is reached and says where the next one begins in each partition. A filter is evaluated by a worker
thread; the reply has the number of records examined, so that a page without records does not look like the end of the topic.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.records.filters import RecordFilter
from penstock.broker.records.visibility import visible_rows
from penstock.broker.schemas.decoded import Decoded
from penstock.errors import OffsetOutOfRange
from penstock.log.api import Partition
from penstock.log.block import Block
from penstock.workers import Check, Worker

PAGE_BYTES_MAX: Final = 4 << 20
"""Of the records of one page, unless the first is larger."""
SCANNED_MAX: Final = 50_000
"""Records that one page scans, in all partitions together."""
SCAN_S_MAX: Final = 0.5
READ_BYTES: Final = 256 << 10
ROWS_PER_CHECK: Final = 64
ROWS_PER_STEP: Final = 512
"""Rows of a block that are taken apart at a time."""
DECODED_ROWS_PER_STEP: Final = 64
DECODED_BYTES_PER_STEP: Final = 1 << 20
"""Of values that are decoded at a time, for a filter that looks into them. No larger value is decoded."""

Decode = Callable[[Sequence[bytes | None], Sequence[bytes | None]], Awaitable[list[Decoded]]]
"""Reads values, with their headers, by the schema of their topic."""


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
    """Which records of a partition are scanned."""

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
    """Where the next page begins."""
    records_max: int
    bytes_max: int
    newest: bool
    rows: deque[Row] = field(default_factory=deque)
    size_bytes: int = 0
    scanned: int = 0
    """Records scanned, expired ones included."""

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
    stretches: list[Stretch],
    records_max: int,
    wanted: str,
    worker: Worker,
    now_ms: int,
    *,
    newest: bool,
    decode: Decode | None = None,
) -> Page:
    """Return up to `records_max` records of some stretches: the first of each, or the last if `newest`.

    With `decode`, paths of a filter are looked for in what values are decoded to.
    """
    record_filter = await worker.run(lambda _: RecordFilter(wanted)) if wanted else None
    page = Page()
    size_bytes = 0
    shares = max(1, len(stretches))
    scan = _Scan(
        record_filter,
        SCANNED_MAX // shares if wanted else max(SCANNED_MAX // shares, records_max),
        now_ms,
        decode if record_filter is not None and record_filter.has_paths else None,
    )
    for stretch in stretches:
        gathering = _Gathering(
            stretch.offset,
            records_max if newest else max(1, records_max // shares),
            max(1, PAGE_BYTES_MAX // shares),
            newest,
        )
        has_room = newest or size_bytes < PAGE_BYTES_MAX
        if not page.scanned or (has_room and time.monotonic() < scan.deadline_s):
            await _gather(gathering, stretch, scan, worker)
        page.rows += gathering.rows
        page.next[stretch.partition.index] = gathering.offset
        page.scanned += gathering.scanned
        size_bytes += gathering.size_bytes
        if newest:
            size_bytes -= _drop_oldest(page.rows, records_max, size_bytes)
        await asyncio.sleep(0)  # what is in memory is read without waiting: others have their turn between partitions
    page.rows.sort(key=_by_time)
    return page


def _by_time(row: Row) -> tuple[int, int, int]:
    return row.timestamp_ms, row.partition, row.offset


def _drop_oldest(rows: list[Row], records_max: int, size_bytes: int) -> int:
    """Keep the newest rows within the bounds of a page; returns how many bytes were dropped."""
    rows.sort(key=_by_time)
    dropped, dropped_bytes = max(0, len(rows) - records_max), 0
    for row in rows[:dropped]:
        dropped_bytes += row.size_bytes
    while dropped < len(rows) - 1 and size_bytes - dropped_bytes >= PAGE_BYTES_MAX:
        dropped_bytes += rows[dropped].size_bytes
        dropped += 1
    del rows[:dropped]
    return dropped_bytes


@dataclass(slots=True)
class _Scan:
    """How the partitions of a page are looked through."""

    wanted: RecordFilter | None
    rows_max: int
    """In one partition, with those that have expired."""
    now_ms: int
    decode: Decode | None
    deadline_s: float = math.inf
    """Set when the search begins: waiting for a thread is not searching."""

    def begin(self) -> None:
        if self.wanted is not None:
            self.deadline_s = min(self.deadline_s, time.monotonic() + SCAN_S_MAX)


async def _gather(gathering: _Gathering, stretch: Stretch, scan: _Scan, worker: Worker) -> None:
    partition = stretch.partition
    while (
        gathering.offset < stretch.end
        and gathering.scanned < scan.rows_max
        and not gathering.full
        and not (gathering.scanned and time.monotonic() >= scan.deadline_s)
    ):
        try:
            blocks = await partition.read(max(gathering.offset, partition.start_offset), READ_BYTES)
        except OffsetOutOfRange:
            return  # retention or truncation took them away since
        if not blocks:
            return
        work = partial(_scan_blocks, gathering, blocks, stretch, scan)
        if scan.wanted is None:
            work(lambda: None)
        elif scan.decode is not None:
            await _scan_decoded(gathering, blocks, stretch, scan, scan.decode, worker)
        else:
            await worker.run(work)


async def _scan_decoded(
    gathering: _Gathering, blocks: list[Block], stretch: Stretch, scan: _Scan, decode: Decode, worker: Worker
) -> None:
    for block in blocks:
        start, last = block.index_of(gathering.offset), block.index_of(stretch.end)
        while start < last:
            stop = min(last, start + DECODED_ROWS_PER_STEP, start + scan.rows_max - gathering.scanned)
            rows = list(_rows(block, stretch.partition.index, start, stop, scan.now_ms))
            stop = _cut(rows, stop)
            decoded = await decode([row.value for _, row in rows], [row.headers for _, row in rows])
            jsons = [each.json for each in decoded]
            if not await worker.run(partial(_scan_rows, gathering, rows, start, scan, jsons)):
                return
            _pass(gathering, block, start, stop, stretch.end)
            start = stop
            if gathering.scanned >= scan.rows_max:
                return


def _cut(rows: list[tuple[int, Row]], stop: int) -> int:
    """Leave out rows beyond the bytes of one step; returns where the next one begins."""
    size_bytes = 0
    for at, (number, row) in enumerate(rows):
        size_bytes += len(row.value or b"")
        if at and size_bytes > DECODED_BYTES_PER_STEP:
            del rows[at:]
            return number
    return stop


def _scan_blocks(
    gathering: _Gathering, blocks: list[Block], stretch: Stretch, scan: _Scan, check: Check = lambda: None
) -> None:
    for block in blocks:
        start, last = block.index_of(gathering.offset), block.index_of(stretch.end)
        while start < last:
            step = gathering.records_max if scan.wanted is None else ROWS_PER_STEP
            stop = min(last, start + step, start + scan.rows_max - gathering.scanned)
            rows = _rows(block, stretch.partition.index, start, stop, scan.now_ms)
            if not _scan_rows(gathering, rows, start, scan, None, check):
                return
            _pass(gathering, block, start, stop, stretch.end)
            start = stop
            if gathering.scanned >= scan.rows_max:
                return


def _pass(gathering: _Gathering, block: Block, start: int, stop: int, end: int) -> None:
    """Advance past the rows `start` to `stop` of a block, which were scanned."""
    following = block.next_offset if stop == block.count else block.offsets(stop, stop + 1)[0]
    gathering.offset = max(gathering.offset, min(following, end))
    gathering.scanned += stop - start


def _scan_rows(
    gathering: _Gathering,
    rows: Iterable[tuple[int, Row]],
    start: int,
    scan: _Scan,
    decoded: Sequence[bytes | None] | None,
    check: Check,
) -> bool:
    """Look through rows of a block from `start` on; returns whether the page wants more than these."""
    scan.begin()
    for at, (number, row) in enumerate(rows):
        if number % ROWS_PER_CHECK == 0:
            check()
        gathering.offset = row.offset + 1
        json = None if decoded is None else decoded[at]
        if scan.wanted is None or scan.wanted.matches(row.key, row.value, row.headers, check, json):
            gathering.add(row)
        if gathering.full or (scan.wanted is not None and time.monotonic() >= scan.deadline_s):
            gathering.scanned += number + 1 - start
            return False
    return True


def _rows(block: Block, partition: int, start: int, stop: int, now_ms: int) -> Iterator[tuple[int, Row]]:
    """Yield the records of some rows of a block that have not expired, each with its number in the block."""
    offsets, times, values = block.offsets(start, stop), block.timestamps(start, stop), block.values(start, stop)
    keys, headers = block.keys(start, stop), block.headers(start, stop)
    visible = visible_rows(block, start, stop, now_ms)
    for number in range(start, stop) if visible is None else visible:
        at = number - start
        yield (
            number,
            Row(
                partition,
                offsets[at],
                times[at],
                None if keys is None else keys[at],
                values[at],
                None if headers is None else headers[at],
            ),
        )
