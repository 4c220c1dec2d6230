"""Reading records for FETCH: from memory where that is enough, from disk if it is not.

Parts of blocks are gathered, and encoded as they are, until the bytes asked for are there or the frame is full. The first record is
always given. Replies never outgrow a frame: a record that fits into none is an error, so that its reader hears of it.

Binary replies carry no offsets, so they end where the offsets would have a gap; a gap in front of the first record is passed over.
In both dialects the next offset is the one after the last record, or where reading stopped if there is none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from penstock.broker.records.visibility import visible_rows
from penstock.broker.tracing import FetchTrace, Tracing
from penstock.clock import Clock
from penstock.errors import PenstockError, RecordTooLarge
from penstock.log.api import Partition
from penstock.log.block import Block
from penstock.protocols.rustlog.codec import binary_dialect, json_dialect
from penstock.protocols.rustlog.codec.byte_arrays import TEXT_BYTES_PER_BYTE_MIN, cuts_of, encode_byte_arrays
from penstock.protocols.rustlog.wire import (
    FETCH_RECORD_COST_BYTES,
    FETCH_REPLY_FIXED_BYTES,
    PAYLOAD_BYTES_MAX,
    Dialect,
)
from penstock.protocols.values import uniform_values

READ_BYTES_MIN = 64 << 10
ROWS_FIRST = 64
ROWS_GROWTH = 16
"""A block is taken in steps, each larger than the last: who asks for little should not pay for cutting all of it."""
HIDDEN_MAX = 10_000
"""Expired records that one FETCH passes over. The next one continues where it stopped."""


@dataclass(slots=True)
class Rows:
    """Records of one block; `data` holds their values back to back where all take `value_bytes`."""

    offsets: Sequence[int]
    values: Sequence[bytes] = ()
    value_bytes: int = 0
    data: bytes | memoryview = b""

    def __len__(self) -> int:
        return len(self.offsets)

    def head(self, count: int) -> Rows:
        return Rows(self.offsets[:count], self.values[:count], self.value_bytes, self.data[: count * self.value_bytes])

    def fitting(self, bytes_max: int, cost_bytes: int) -> int:
        """How many of the first rows fit, when each costs so much besides its value."""
        if self.value_bytes:
            return min(len(self), max(bytes_max, 0) // (self.value_bytes + cost_bytes))
        return bisect_right(list(accumulate(len(value) + cost_bytes for value in self.values)), bytes_max)

    @property
    def payload_bytes(self) -> int:
        return len(self.data) if self.value_bytes else sum(map(len, self.values))


class Gathering(ABC):
    """The records of one reply."""

    __slots__ = (
        "_bytes_left",
        "_frame_left",
        "_hidden_left",
        "_last",
        "_pieces",
        "count",
        "now_ms",
        "open",
        "position",
        "trace",
    )

    def __init__(self, offset: int, bytes_max: int, frame_bytes: int, now_ms: int) -> None:
        self.position = offset
        """Where reading continues."""
        self.now_ms = now_ms
        self.count = 0
        self.trace: FetchTrace | None = None
        self._last = -1
        self.open = True
        self._bytes_left = bytes_max
        self._frame_left = frame_bytes
        self._hidden_left = HIDDEN_MAX
        self._pieces: list[bytes] = []

    @property
    def next_offset(self) -> int:
        return self._last + 1 if self.count else self.position

    @property
    def bytes_left(self) -> int:
        """About how much more to read."""
        return min(self._bytes_left, self._frame_left)

    def add(self, rows: Rows) -> None:
        """Add rows as far as they fit and follow on; closes where one does not."""
        for limit in (self._following, self._asked_for, self._encode):
            fitting = limit(rows)
            if fitting < len(rows):
                self.open = False
                rows = rows.head(fitting)
            if not len(rows):
                return
        self.count += len(rows)
        self._last = rows.offsets[-1]
        self.position = self._last + 1

    def pass_over(self, hidden: int, following: int) -> None:
        """Records that have expired are not shown, but looking at them has its bound too."""
        self._hidden_left -= hidden
        if self._hidden_left <= 0:
            self.open = False
        self.position = following

    def _following(self, rows: Rows) -> int:
        return len(rows)

    @abstractmethod
    def _asked_for(self, rows: Rows) -> int:
        """How many of the rows are within what was asked for."""

    @abstractmethod
    def _encode(self, rows: Rows) -> int:
        """Encode as many of the rows as the frame has room for; returns how many."""

    @abstractmethod
    def encode(self) -> bytes:
        """The whole reply."""

    def _too_large(self, rows: Rows) -> RecordTooLarge:
        offset = rows.offsets[0]
        return RecordTooLarge(
            f"the record at offset {offset} does not fit into a reply of {PAYLOAD_BYTES_MAX} bytes: "
            f"go on at {offset + 1}, or read it in another dialect or protocol"
        )


class BinaryGathering(Gathering):
    __slots__ = ()

    def __init__(self, offset: int, bytes_max: int, now_ms: int) -> None:
        super().__init__(offset, bytes_max, PAYLOAD_BYTES_MAX - FETCH_REPLY_FIXED_BYTES, now_ms)

    def _following(self, rows: Rows) -> int:
        offsets = rows.offsets
        first = offsets[0]
        if self.count and first != self._last + 1:
            return 0
        if offsets[-1] - first == len(offsets) - 1:
            return len(offsets)
        # Offsets only grow, so from the first gap on each is further from the first than its place.
        return bisect_right(range(len(offsets)), 0, key=lambda place: offsets[place] - first - place)

    def _asked_for(self, rows: Rows) -> int:
        fitting = rows.fitting(self._bytes_left, FETCH_RECORD_COST_BYTES)
        if not fitting and not self.count:
            fitting = 1
        taken = rows.head(fitting)
        self._bytes_left -= taken.payload_bytes + FETCH_RECORD_COST_BYTES * fitting
        return fitting

    def _encode(self, rows: Rows) -> int:
        fitting = rows.fitting(self._frame_left, 4)
        if not fitting:
            if not self.count:
                raise self._too_large(rows)
            return 0
        rows = rows.head(fitting)
        if rows.value_bytes:
            piece = binary_dialect.encode_uniform_values(rows.data, rows.value_bytes, fitting)
        else:
            piece = binary_dialect.encode_values(rows.values)
        self._frame_left -= len(piece)
        self._pieces.append(piece)
        return fitting

    def encode(self) -> bytes:
        return binary_dialect.encode_fetched(self._pieces, self.count, self.next_offset)


class JsonGathering(Gathering):
    __slots__ = ()

    def __init__(self, offset: int, bytes_max: int, now_ms: int) -> None:
        super().__init__(offset, bytes_max, PAYLOAD_BYTES_MAX - json_dialect.FETCH_REPLY_FIXED_BYTES, now_ms)

    @property
    def bytes_left(self) -> int:
        return min(self._bytes_left, self._frame_left // TEXT_BYTES_PER_BYTE_MIN)

    def _asked_for(self, rows: Rows) -> int:
        fitting = rows.fitting(self._bytes_left, 0)
        if not fitting and not self.count:
            fitting = 1
        self._bytes_left -= rows.head(fitting).payload_bytes
        return fitting

    def _encode(self, rows: Rows) -> int:
        # What cannot fit however small its numbers are need not be turned into text.
        candidates = rows.head(rows.fitting(self._frame_left // TEXT_BYTES_PER_BYTE_MIN, 0))
        encoded = self._records(candidates) if len(candidates) else []
        sizes = list(accumulate(map(len, encoded)))
        fitting = bisect_right(sizes, self._frame_left)
        if not fitting:
            if not self.count:
                raise self._too_large(rows)
            return 0
        self._frame_left -= sizes[fitting - 1]
        self._pieces += encoded[:fitting]
        return fitting

    def _records(self, rows: Rows) -> list[bytes]:
        if rows.value_bytes:
            cuts, data = np.arange(len(rows) + 1) * rows.value_bytes, rows.data
        else:
            cuts, data = cuts_of(rows.values), b"".join(rows.values)
        return json_dialect.encode_records(rows.offsets, encode_byte_arrays(data, cuts), first=not self.count)

    def encode(self) -> bytes:
        return json_dialect.encode_fetched(self._pieces, self.next_offset)


class Fetcher:
    """Reads for the sessions of one listener."""

    def __init__(self, clock: Clock, tracing: Tracing | None = None) -> None:
        self._clock = clock
        self._tracing = tracing

    def fetch(
        self,
        partition: Partition,
        offset: int,
        max_bytes: int,
        dialect: Dialect,
        group: str,
        fetched: Callable[[Gathering], bytes],
    ) -> bytes | Coroutine[Any, Any, bytes]:
        """What `fetched` makes of the records from an offset within the log on, or what will become it."""
        kind = JsonGathering if dialect is Dialect.JSON else BinaryGathering
        gathering = kind(offset, max_bytes, self._clock.now_ms())
        if self._tracing is not None:
            gathering.trace = FetchTrace(self._tracing, partition, group)
        while gathering.open and gathering.position < partition.committed_end:
            blocks = partition.read_cached(gathering.position, _read_bytes(gathering))
            if blocks is None:
                return self._from_disk(partition, gathering, fetched)
            if not blocks:
                break
            _gather(gathering, blocks)
        return fetched(gathering)

    @staticmethod
    async def _from_disk(partition: Partition, gathering: Gathering, fetched: Callable[[Gathering], bytes]) -> bytes:
        while gathering.open and gathering.position < partition.committed_end:
            try:
                blocks = await partition.read(gathering.position, _read_bytes(gathering))
            except PenstockError:
                if not gathering.count:
                    raise
                break  # what was read before is good; who asks for the rest gets the error
            if not blocks:
                break
            _gather(gathering, blocks)
        return fetched(gathering)


def _read_bytes(gathering: Gathering) -> int:
    return min(max(READ_BYTES_MIN, gathering.bytes_left), PAYLOAD_BYTES_MAX)


def _gather(gathering: Gathering, blocks: list[Block]) -> None:
    for block in blocks:
        start = block.index_of(gathering.position)
        step = ROWS_FIRST
        while gathering.open and start < block.count:
            stop = min(start + step, block.count)
            if block.count - stop < step:
                stop = block.count
            _gather_rows(gathering, block, start, stop)
            start, step = stop, step * ROWS_GROWTH
        if not gathering.open:
            return
        gathering.position = block.next_offset


def _gather_rows(gathering: Gathering, block: Block, start: int, stop: int) -> None:
    visible = visible_rows(block, start, stop, gathering.now_ms)
    if gathering.trace is not None:
        gathering.trace.add(block, range(start, stop) if visible is None else visible)
    if visible is not None:
        offsets, values = block.offsets(), block.values()
        if visible:
            gathering.add(Rows([offsets[row] for row in visible], [values[row] or b"" for row in visible]))
        if gathering.open:
            gathering.pass_over(stop - start - len(visible), offsets[stop - 1] + 1)
        return
    uniform = uniform_values(block, start, stop)
    if uniform is not None:
        gathering.add(Rows(block.offsets(start, stop), (), *uniform))
    else:
        values = block.values(start, stop)
        gathering.add(Rows(block.offsets(start, stop), [value or b"" for value in values]))
