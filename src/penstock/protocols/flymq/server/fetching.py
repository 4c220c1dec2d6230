"""Reading records for CONSUME, FETCH and FETCH_RECORDS: from memory where that is enough, from disk if it is not.

A fetch gathers parts of blocks until it has what was asked for or one of its bounds is reached; a reader asks again from the next
offset. Whatever is in the log's memory is gathered at once. Only when that runs out does the rest become a coroutine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from penstock.broker.groups.truncation import position_of_client
from penstock.broker.limits import BrokerLimits
from penstock.broker.records.filters import RecordFilter, select
from penstock.broker.records.visibility import is_visible, visible_rows
from penstock.broker.tracing import FetchTrace, Tracing
from penstock.clock import Clock
from penstock.errors import OffsetOutOfRange, PenstockError
from penstock.log.api import READ_BYTES_DEFAULT, Partition
from penstock.log.block import HEADERS, KEYS, BinaryColumn, Block
from penstock.protocols.flymq.codec.record_layouts import (
    RawCells,
    Rows,
    UniformRows,
    WholeRows,
    encode_consumed,
    encode_fetched,
    encode_fetched_records,
)
from penstock.protocols.flymq.wire import FETCH_RECORDS_DEFAULT
from penstock.protocols.values import uniform_values
from penstock.workers import Check, Worker

READ_BYTES_MIN = 64 << 10
OnRead = Callable[[int], None]
"""Takes how many records a reply has, when it is made."""


class Part(Protocol):
    """Some rows of a reply."""

    @property
    def offsets(self) -> Sequence[int]: ...
    @property
    def size_bytes(self) -> int:
        """What the rows take in a reply."""

    def fitting(self, bytes_max: int) -> int:
        """Return how many rows from the first on take no more than this in a reply."""

    def head(self, count: int) -> Self: ...


P = TypeVar("P", bound=Part)


class ReplyForm(Protocol[P]):
    """How rows of blocks become a reply."""

    def rows(self, block: Block, start: int, stop: int) -> P: ...
    def picked(self, block: Block, rows: Sequence[int]) -> P: ...
    def encode(self, parts: Sequence[P], next_offset: int) -> bytes: ...


class PlainForm:
    """Keys and values, as FETCH returns them; `native`: in the layout of deployed brokers."""

    __slots__ = ("_native", "_opcode")

    def __init__(self, opcode: int, *, native: bool) -> None:
        self._opcode = opcode
        self._native = native

    def rows(self, block: Block, start: int, stop: int) -> Rows | UniformRows:
        return _uniform_rows(block, start, stop) or Rows(
            block.offsets(start, stop), block.keys(start, stop), block.values(start, stop)
        )

    def picked(self, block: Block, rows: Sequence[int]) -> Rows:
        first, stop = _range_of(rows)
        offsets, keys, values = block.offsets(first, stop), block.keys(first, stop), block.values(first, stop)
        places = [row - first for row in rows]
        return Rows([offsets[at] for at in places], keys and [keys[at] for at in places], [values[at] for at in places])

    def encode(self, parts: Sequence[Rows | UniformRows], next_offset: int) -> bytes:
        return encode_fetched(self._opcode, parts, next_offset, native=self._native)


class WholeForm:
    """Records with everything they have, as FETCH_RECORDS returns them."""

    __slots__ = ()

    def rows(self, block: Block, start: int, stop: int) -> WholeRows:
        values = block.binary(0)
        assert values is not None, "every block has values"
        keys = block.binary(KEYS) if block.flags & KEYS else None
        headers = block.binary(HEADERS) if block.flags & HEADERS else None
        return WholeRows(
            block.offsets(start, stop),
            block.timestamps(start, stop),
            None if keys is None else _raw_cells(keys, start, stop),
            _raw_cells(values, start, stop),
            None if headers is None else _raw_cells(headers, start, stop),
        )

    def picked(self, block: Block, rows: Sequence[int]) -> WholeRows:
        first, stop = _range_of(rows)
        offsets, timestamps = block.offsets(first, stop), block.timestamps(first, stop)
        keys, values, headers = block.keys(first, stop), block.values(first, stop), block.headers(first, stop)
        places = [row - first for row in rows]
        return WholeRows(
            [offsets[at] for at in places],
            [timestamps[at] for at in places],
            None if keys is None else RawCells.of([keys[at] for at in places]),
            RawCells.of([values[at] for at in places]),
            None if headers is None else RawCells.of([headers[at] for at in places]),
        )

    def encode(self, parts: Sequence[WholeRows], next_offset: int) -> bytes:
        return encode_fetched_records(parts, next_offset)


class Gathering(Generic[P]):
    """The records of one reply to a fetch, as they are to be seen at a time."""

    __slots__ = (
        "_bytes_left",
        "_hidden_left",
        "_on_read",
        "_parts",
        "_records_max",
        "form",
        "next_offset",
        "now_ms",
        "records_left",
        "trace",
    )

    def __init__(
        self,
        form: ReplyForm[P],
        next_offset: int,
        records_max: int,
        bytes_max: int,
        hidden_max: int,
        now_ms: int,
        trace: FetchTrace | None,
        on_read: OnRead,
    ) -> None:
        self.form = form
        self.next_offset = next_offset
        self.records_left = self._records_max = records_max
        self.now_ms = now_ms
        self.trace = trace
        self._bytes_left = bytes_max
        self._hidden_left = hidden_max
        self._on_read = on_read
        self._parts: list[P] = []

    @property
    def open(self) -> bool:
        return self.records_left > 0 and self._bytes_left > 0 and self._hidden_left > 0

    @property
    def empty(self) -> bool:
        return not self._parts

    def add(self, rows: P, following: int) -> None:
        """Add rows as far as they fit, one at least; `following` is where the next FETCH continues if all of them do."""
        size = rows.size_bytes
        if size > self._bytes_left:
            taken = rows.fitting(self._bytes_left) or (1 if self.empty else 0)
            if taken < len(rows.offsets):
                following = rows.offsets[taken]
                rows = rows.head(taken)
        if rows.offsets:
            self._parts.append(rows)
            self.records_left -= len(rows.offsets)
        self._bytes_left -= size
        self.next_offset = following

    def pass_over(self, hidden: int) -> None:
        """Records that have expired are not shown, but looking at them has its bound too."""
        self._hidden_left -= hidden

    def encode(self) -> bytes:
        if self.trace is not None:
            self.trace.end(self.next_offset)
        self._on_read(self._records_max - self.records_left)
        return self.form.encode(self._parts, self.next_offset)


async def _after_following(partition: Partition, read: Callable[[], bytes | Coroutine[Any, Any, bytes]]) -> bytes:
    """Read once the end of the partition is known."""
    await partition.follow()
    reply = read()
    return reply if isinstance(reply, bytes) else await reply


class Fetcher:
    """Reads for the sessions of one listener."""

    def __init__(self, limits: BrokerLimits, clock: Clock, tracing: Tracing | None = None) -> None:
        self._limits = limits
        self._clock = clock
        self._tracing = tracing

    def consume(self, partition: Partition, offset: int, opcode: int) -> bytes | Coroutine[Any, Any, bytes]:
        """The reply to a CONSUME, or what will become it."""
        if not 0 <= offset < partition.committed_end:
            if partition.followed:
                raise _no_record(partition, offset)
            return _after_following(partition, partial(self.consume, partition, offset, opcode))
        blocks = partition.read_cached(offset, 1)
        if blocks is not None:
            return self._consumed(partition, blocks, offset, opcode)
        return self._consume_from_disk(partition, offset, opcode)

    async def _consume_from_disk(self, partition: Partition, offset: int, opcode: int) -> bytes:
        return self._consumed(partition, await partition.read(offset, 1), offset, opcode)

    def _consumed(self, partition: Partition, blocks: list[Block], offset: int, opcode: int) -> bytes:
        if blocks:
            block = blocks[0]
            row = block.index_of(offset)
            there = row < block.count and block.offsets(row, row + 1)[0] == offset
            if there and is_visible(block, row, self._clock.now_ms()):
                if self._tracing is not None:
                    trace = FetchTrace(self._tracing, partition)
                    trace.add(block, [row])
                    trace.end(offset + 1)
                keys = block.keys(row, row + 1)
                return encode_consumed(opcode, keys[0] if keys else None, block.values(row, row + 1)[0])
        raise _no_record(partition, offset)

    def fetch(
        self,
        partition: Partition,
        offset: int,
        max_records: int,
        wanted: str | None,
        form: ReplyForm[P],
        worker: Worker,
        on_read: OnRead,
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """Return the reply to a fetch, or a coroutine that will. `worker` compiles and evaluates a filter.

        Where retention has passed the offset, it continues with the first record that is left: a deployed reader would otherwise
        ask for the same offset forever. Beyond the end there is nothing, and the next offset is the one asked for, or the cut if the
        log lost records that the reader may have read.
        """
        records_max = min(max_records if max_records > 0 else FETCH_RECORDS_DEFAULT, self._limits.fetch_records_max)
        if not partition.followed:
            again = partial(self.fetch, partition, offset, max_records, wanted, form, worker, on_read)
            return _after_following(partition, again)
        gathering = Gathering(
            form,
            offset,
            records_max,
            self._limits.fetch_bytes_max,
            self._limits.fetch_scanned_max,
            self._clock.now_ms(),
            None if self._tracing is None else FetchTrace(self._tracing, partition),
            on_read,
        )
        if offset >= partition.committed_end:
            gathering.next_offset = position_of_client(partition, offset)
            return gathering.encode()
        gathering.next_offset = max(offset, partition.start_offset)
        if wanted:
            return self._fetch_filtered(partition, gathering, wanted, worker)
        while gathering.open and gathering.next_offset < partition.committed_end:
            blocks = partition.read_cached(
                gathering.next_offset, _read_bytes(partition, gathering.records_left, self._limits)
            )
            if blocks is None:
                return self._fetch_from_disk(partition, gathering)
            if not blocks:
                break
            _gather(gathering, blocks)
        return gathering.encode()

    async def _fetch_from_disk(self, partition: Partition, gathering: Gathering[P]) -> bytes:
        while gathering.open and gathering.next_offset < partition.committed_end:
            try:
                blocks = await _read_retained(
                    partition, gathering, _read_bytes(partition, gathering.records_left, self._limits)
                )
            except PenstockError:
                if gathering.empty:
                    raise
                break  # what was read before is good; who asks for the rest gets the error
            if not blocks:
                break
            _gather(gathering, blocks)
        return gathering.encode()

    async def _fetch_filtered(
        self, partition: Partition, gathering: Gathering[P], wanted: str, worker: Worker
    ) -> bytes:
        limits, clock = self._limits, self._clock
        record_filter = await worker.run(lambda _: RecordFilter(wanted))
        deadline_s = math.inf  # until the search has begun: waiting for a thread is not searching

        def out_of_time() -> bool:
            return clock.monotonic() >= deadline_s

        def scan(check: Check) -> int:
            nonlocal deadline_s
            deadline_s = min(deadline_s, clock.monotonic() + limits.fetch_scan_s_max)
            return _scan(gathering, blocks, record_filter, limits.fetch_scanned_max - scanned, out_of_time, check)

        scanned = 0
        while gathering.open and scanned < limits.fetch_scanned_max and gathering.next_offset < partition.committed_end:
            try:
                blocks = await _read_retained(partition, gathering, READ_BYTES_DEFAULT)
            except PenstockError:
                if scanned == 0:
                    raise
                break
            if not blocks:
                break
            scanned += await worker.run(scan)
            if out_of_time():
                break
        return gathering.encode()


async def _read_retained(partition: Partition, gathering: Gathering[P], max_bytes: int) -> list[Block]:
    """Read from the next offset on, or from the first record left if retention removes that one before the read begins."""
    while True:
        try:
            return await partition.read(gathering.next_offset, max_bytes)
        except OffsetOutOfRange:
            if gathering.next_offset >= partition.start_offset:
                raise
            gathering.next_offset = partition.start_offset


def _scan(
    gathering: Gathering[P],
    blocks: list[Block],
    wanted: RecordFilter,
    scanned_max: int,
    out_of_time: Callable[[], bool],
    check: Check,
) -> int:
    """Gather the rows that match; returns how many were examined, one at least. Runs in a thread, alone with its gathering."""
    scanned = 0
    for block in blocks:
        if not gathering.open or scanned == scanned_max or (scanned and out_of_time()):
            break
        start = block.index_of(gathering.next_offset)
        stop = min(block.count, start + scanned_max - scanned)
        offsets, keys, values = block.offsets(start, stop), block.keys(start, stop), block.values(start, stop)
        headers = block.headers(start, stop)
        rows, looked_at = select(wanted, keys, values, headers, gathering.records_left, out_of_time, check)
        scanned += looked_at
        visible = visible_rows(block, start, stop, gathering.now_ms)
        if visible is not None:
            shown = set(visible)
            rows = [row for row in rows if start + row in shown]
        picked = [start + row for row in rows]
        if gathering.trace is not None:
            gathering.trace.add(block, picked)
        gathering.add(
            gathering.form.picked(block, picked),
            block.next_offset if start + looked_at == block.count else offsets[looked_at - 1] + 1,
        )
    return scanned


def _gather(gathering: Gathering[P], blocks: list[Block]) -> None:
    for block in blocks:
        if not gathering.open:
            return
        start = block.index_of(gathering.next_offset)
        stop = min(block.count, start + gathering.records_left)
        following = block.next_offset if stop == block.count else block.offsets(stop - 1, stop)[0] + 1
        visible = visible_rows(block, start, stop, gathering.now_ms)
        if gathering.trace is not None:
            gathering.trace.add(block, range(start, stop) if visible is None else visible)
        if visible is not None:
            gathering.pass_over(stop - start - len(visible))
            gathering.add(gathering.form.picked(block, visible), following)
            continue
        gathering.add(gathering.form.rows(block, start, stop), following)


def _raw_cells(column: BinaryColumn, start: int, stop: int) -> RawCells:
    cuts = column.offsets[start : stop + 1].astype(np.int64)
    lengths = cuts[1:] - cuts[:-1]  # for a few records, `np.diff` takes four times as long
    if column.valid is not None:
        lengths[~column.valid[start:stop]] = -1
    return RawCells(lengths, column.data[cuts[0] : cuts[-1]])


def _range_of(rows: Sequence[int]) -> tuple[int, int]:
    """The smallest range that has all rows, which are in order."""
    return (rows[0], rows[-1] + 1) if rows else (0, 0)


def _uniform_rows(block: Block, start: int, stop: int) -> UniformRows | None:
    """Rows whose values need not be cut apart, because they have one size; None if there are keys between them."""
    uniform = None if block.flags & KEYS else uniform_values(block, start, stop)
    return None if uniform is None else UniformRows(block.offsets(start, stop), *uniform)


def _read_bytes(partition: Partition, records: int, limits: BrokerLimits) -> int:
    """How much to read for this many records, by what a record takes on average; reading too little only means reading again."""
    held = partition.committed_end - partition.start_offset
    return min(max(READ_BYTES_MIN, records * partition.size_bytes // held), limits.fetch_bytes_max)


def _no_record(partition: Partition, offset: int) -> OffsetOutOfRange:
    # Deployed brokers answer the bare word, so it comes first.
    return OffsetOutOfRange(
        f"EOF: no record at offset {offset} of topic {partition.topic} partition {partition.index}, "
        f"which holds {partition.start_offset} to {partition.committed_end} (exclusive)"
    )
