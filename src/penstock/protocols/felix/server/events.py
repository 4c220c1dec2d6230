"""Records laid out as event frames, once for all subscribers that read the same stream in the same form.

A frame holds at most 64 events and 256 KiB of them (one event that is larger has a frame of its own), and a chunk is the frames that one
look at the log brought. Nothing of a frame depends on who gets it, but for one form: batches with a subscription id, which oldest
clients want. Their chunks are kept in pieces between which each subscriber's id is put.

Events of one size, which are common, are taken out of a block and laid out in a frame as one piece.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

import numpy as np

from penstock.broker.records.visibility import visible_rows
from penstock.columns import UniformCells, concatenated
from penstock.log.block import OFFSETS, Block
from penstock.protocols.bytes import U32, U64
from penstock.protocols.felix.codec.binary import UNIFORM_PAYLOADS_MIN, lay_out
from penstock.protocols.felix.codec.frames import encode_message
from penstock.protocols.felix.codec.messages import Event, EventBatch
from penstock.protocols.felix.codec.scopes import Scope
from penstock.protocols.felix.wire import (
    BASE_OFFSET,
    EVENT_BATCH,
    HEADER,
    MAGIC,
    PAYLOAD_BYTES_MAX,
    SHARED_EVENT_BATCH,
    VERSION,
)

FRAME_EVENTS_MAX: Final = 64
FRAME_BYTES_MAX: Final = 256 << 10
CHUNK_BYTES_MAX: Final = 256 << 10
"""About how long the frames are that one look at the log brings: a chunk ends with the frame that reaches it. What counts is what is
sent, because a frame of tiny events may be a hundred times as long as they are."""
ID_BYTES: Final = 8
_ROOM_BYTES: Final = 4096
"""Left in a frame for what stands around the events: names (of topics that exist), counts, lengths."""


class Kind(Enum):
    EVENTS = "event"
    """JSON, an event a frame: what every deployed client reads."""
    BATCHES = "event_batch"
    """JSON, several events a frame, as in the contract."""
    ADDRESSED = "binary with the subscription id"
    SHARED = "binary"


class Form(NamedTuple):
    """How a subscriber wants its events."""

    kind: Kind
    scope: Scope | None = None
    """What the events say they belong to, in JSON."""
    offsets: bool = False
    """Whether batches carry the offset of their first event."""

    @property
    def event_bytes_max(self) -> int:
        """The largest event that fits into a frame."""
        room = PAYLOAD_BYTES_MAX - _ROOM_BYTES
        return room if self.scope is None else room // 4 * 3


class Chunk(NamedTuple):
    """Frames for the events from one offset to another."""

    pieces: Sequence[bytes]
    """One, unless the form has subscription ids: those belong between two pieces each."""
    events: int
    next_offset: int
    oversized: int
    """Events that were left out because they fit into no frame."""
    headers: Sequence[bytes] = ()
    """Header cells of the events, if they are traced."""

    def addressed_to(self, address: bytes) -> bytes:
        return self.pieces[0] if len(self.pieces) == 1 else address.join(self.pieces)


def encode_chunk(form: Form, blocks: Sequence[Block], offset: int, now_ms: int) -> Chunk:
    """Frames for the events from `offset` on that a reader may see, as many as a chunk takes."""
    frames: list[bytes | memoryview] = []
    events = oversized = size_bytes = 0
    next_offset = offset
    gathered = _Gathered(form)
    for base_offset, values, stop_offset in _batches(form, blocks, offset, now_ms):
        next_offset = stop_offset
        batch_bytes = _size_of(values)
        if len(values) == 1 and batch_bytes > form.event_bytes_max:
            oversized += 1
            continue
        if values:
            finished = gathered.add(base_offset, values, batch_bytes)
            frames += finished
            events += len(values)
            size_bytes += sum(map(len, finished))
        if size_bytes + gathered.size_bytes >= CHUNK_BYTES_MAX:
            break
    frames += gathered.flush()
    return Chunk(_join(form, frames), events, next_offset, oversized)


class _Gathered:
    """Events of blocks that are too small for a frame of their own."""

    __slots__ = ("_base_offset", "_columns", "_events", "_form", "size_bytes")

    def __init__(self, form: Form) -> None:
        self._form = form
        self._columns: list[Sequence[bytes]] = []
        self._events = 0
        self._base_offset = 0
        self.size_bytes = 0

    def add(self, base_offset: int, values: Sequence[bytes], size_bytes: int) -> list[bytes | memoryview]:
        """Returns the frame that had to be finished first, if any."""
        frames: list[bytes | memoryview] = []
        if (
            not self._events
            or self._events + len(values) > FRAME_EVENTS_MAX
            or self.size_bytes + size_bytes > FRAME_BYTES_MAX
            or (self._form.offsets and self._base_offset + self._events != base_offset)
        ):
            frames = self.flush()
            self._base_offset = base_offset
        self._columns.append(values)
        self._events += len(values)
        self.size_bytes += size_bytes
        return frames

    def flush(self) -> list[bytes | memoryview]:
        columns, self._columns, self._events, self.size_bytes = self._columns, [], 0, 0
        return _frame(self._form, concatenated(columns), self._base_offset) if columns else []


def _batches(
    form: Form, blocks: Sequence[Block], offset: int, now_ms: int
) -> Iterator[tuple[int, Sequence[bytes], int]]:
    """What may go into one frame each: the offset of the first event, the events, and the offset behind the last."""
    for block in blocks:
        yield from _batches_of(form, block, offset, now_ms)
        offset = block.next_offset


def _batches_of(form: Form, block: Block, offset: int, now_ms: int) -> Iterator[tuple[int, Sequence[bytes], int]]:
    """Batches that carry an offset have no gaps: the events behind the first are counted from it."""
    start, count = block.index_of(offset), block.count
    rows = visible_rows(block, start, count, now_ms)
    if rows is None and not block.flags & OFFSETS:
        base = block.base_offset
        while start < count:
            values = _values(block, start, min(start + FRAME_EVENTS_MAX, count))
            for first, stop in _cut(values):
                yield base + start + first, values[first:stop], base + start + stop
            start += len(values)
        return
    offsets = block.offsets()
    taken = range(start, count) if rows is None else rows
    position = 0
    while position < len(taken):
        row = taken[position]
        stop = position + 1
        while stop < len(taken) and stop - position < FRAME_EVENTS_MAX and taken[stop] == taken[stop - 1] + 1:
            if form.offsets and offsets[taken[stop]] != offsets[taken[stop - 1]] + 1:
                break
            stop += 1
        values = _values(block, row, row + stop - position)
        for first, last in _cut(values):
            yield offsets[row + first], values[first:last], offsets[row + last - 1] + 1
        position = stop
    yield block.next_offset, [], block.next_offset


def _values(block: Block, start: int, stop: int) -> Sequence[bytes]:
    """Values, of which one that is null is empty here."""
    if stop - start >= UNIFORM_PAYLOADS_MIN:
        column = block.binary(0)
        assert column is not None
        offsets = column.offsets[start : stop + 1]
        size_bytes = int(offsets[1] - offsets[0])
        if size_bytes and column.valid is None and (np.diff(offsets) == size_bytes).all():
            return UniformCells(size_bytes, stop - start, bytes(column.data[offsets[0] : offsets[-1]]))
    return [value or b"" for value in block.values(start, stop)]


def _size_of(values: Sequence[bytes]) -> int:
    return len(values.data) if type(values) is UniformCells else sum(map(len, values))


def _cut(values: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Bounds of what goes into one frame each; an event that is too large for its fellows or for any frame stands alone."""
    if _size_of(values) <= FRAME_BYTES_MAX:
        yield 0, len(values)
        return
    first, total_bytes = 0, 0
    for row, size_bytes in enumerate(map(len, values)):
        if row > first and total_bytes + size_bytes > FRAME_BYTES_MAX:
            yield first, row
            first, total_bytes = row, 0
        total_bytes += size_bytes
    yield first, len(values)


def _frame(form: Form, values: Sequence[bytes], base_offset: int) -> list[bytes | memoryview]:
    """One frame, in pieces; or several, one an event. With subscription ids there are two, between which the id belongs."""
    if form.scope is not None:
        tenant_id, namespace, stream = form.scope
        if form.kind is Kind.BATCHES and len(values) > 1:
            batch = EventBatch(tenant_id=tenant_id, namespace=namespace, stream=stream, payloads=list(values))
            return [encode_message(batch)]
        return [
            encode_message(Event(tenant_id=tenant_id, namespace=namespace, stream=stream, payload=value))
            for value in values
        ]
    flags = SHARED_EVENT_BATCH if form.kind is Kind.SHARED else EVENT_BATCH
    head_bytes = 0 if form.kind is Kind.SHARED else ID_BYTES
    start = U32.pack(len(values))
    if form.offsets:
        flags |= BASE_OFFSET
        start = U64.pack(base_offset) + start
    body = [start, *lay_out(values)]
    header = HEADER.pack(MAGIC, VERSION, flags, head_bytes + sum(map(len, body)))
    return [header, *body] if form.kind is Kind.SHARED else [header, b"".join(body)]


def _join(form: Form, frames: list[bytes | memoryview]) -> Sequence[bytes]:
    """As few pieces as the form allows: with ids, from behind one id to before the next."""
    if form.kind is not Kind.ADDRESSED:
        return (b"".join(frames),)
    if not frames:
        return (b"",)
    # header | body header | body header | ... | body: an id belongs at each bar.
    middles = [b"".join(pair) for pair in zip(frames[1:-1:2], frames[2::2], strict=True)]
    return (bytes(frames[0]), *middles, bytes(frames[-1]))
