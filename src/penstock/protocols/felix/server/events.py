"""Records laid out as event frames, once for all subscribers that read the same stream in the same form.

A frame holds at most 64 events and 256 KiB of them (one event that is larger has a frame of its own), and a chunk is the frames that one
look at the log brought. Nothing of a frame depends on who gets it, but for one form: batches with a subscription id, which oldest
clients want. Their chunks are kept in pieces between which each subscriber's id is put.

Events of one size, which are common, are laid out by one join.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

from penstock.broker.records.visibility import visible_rows
from penstock.log.block import OFFSETS, Block
from penstock.protocols.bytes import U32, U64
from penstock.protocols.felix.codec.binary import lay_out
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
    frames: list[bytes] = []
    events = oversized = size_bytes = 0
    next_offset = offset
    gathered = _Gathered(form)
    for base_offset, values, stop_offset in _batches(form, blocks, offset, now_ms):
        next_offset = stop_offset
        batch_bytes = sum(map(len, values))
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

    __slots__ = ("_base_offset", "_form", "_values", "size_bytes")

    def __init__(self, form: Form) -> None:
        self._form = form
        self._values: list[bytes] = []
        self._base_offset = 0
        self.size_bytes = 0

    def add(self, base_offset: int, values: list[bytes], size_bytes: int) -> list[bytes]:
        """Returns the frame that had to be finished first, if any."""
        before = self._values
        if (
            before
            and len(before) + len(values) <= FRAME_EVENTS_MAX
            and self.size_bytes + size_bytes <= FRAME_BYTES_MAX
            and (not self._form.offsets or self._base_offset + len(before) == base_offset)
        ):
            before += values
            self.size_bytes += size_bytes
            return []
        frames = self.flush()
        self._values, self._base_offset, self.size_bytes = values, base_offset, size_bytes
        return frames

    def flush(self) -> list[bytes]:
        values, self._values, self.size_bytes = self._values, [], 0
        return _frame(self._form, values, self._base_offset) if values else []


def _batches(form: Form, blocks: Sequence[Block], offset: int, now_ms: int) -> Iterator[tuple[int, list[bytes], int]]:
    """What may go into one frame each: the offset of the first event, the events, and the offset behind the last."""
    for block in blocks:
        yield from _batches_of(form, block, offset, now_ms)
        offset = block.next_offset


def _batches_of(form: Form, block: Block, offset: int, now_ms: int) -> Iterator[tuple[int, list[bytes], int]]:
    """Batches that carry an offset have no gaps: the events behind the first are counted from it."""
    start, count = block.index_of(offset), block.count
    rows = visible_rows(block, start, count, now_ms)
    if rows is None and not block.flags & OFFSETS:
        base = block.base_offset
        while start < count:
            values, sizes_bytes = _cells(block, start, min(start + FRAME_EVENTS_MAX, count))
            for first, stop in _cut(sizes_bytes, form.event_bytes_max):
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
        values, sizes_bytes = _cells(block, row, row + stop - position)
        for first, last in _cut(sizes_bytes, form.event_bytes_max):
            yield offsets[row + first], values[first:last], offsets[row + last - 1] + 1
        position = stop
    yield block.next_offset, [], block.next_offset


def _cells(block: Block, start: int, stop: int) -> tuple[list[bytes], list[int]]:
    """Values, of which one that is null is empty here, and the size of each."""
    values = [value or b"" for value in block.values(start, stop)]
    return values, list(map(len, values))


def _cut(sizes_bytes: list[int], event_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Bounds of what goes into one frame each; an event that is too large for its fellows or for any frame stands alone."""
    if sum(sizes_bytes) <= FRAME_BYTES_MAX:
        yield 0, len(sizes_bytes)
        return
    first, total_bytes = 0, 0
    for row, size_bytes in enumerate(sizes_bytes):
        if row > first and total_bytes + size_bytes > FRAME_BYTES_MAX:
            yield first, row
            first, total_bytes = row, 0
        total_bytes += size_bytes
    yield first, len(sizes_bytes)


def _frame(form: Form, values: list[bytes], base_offset: int) -> list[bytes]:
    """One frame, in the pieces between which a subscription id belongs; or several, one an event."""
    if form.scope is not None:
        tenant_id, namespace, stream = form.scope
        if form.kind is Kind.BATCHES and len(values) > 1:
            batch = EventBatch(tenant_id=tenant_id, namespace=namespace, stream=stream, payloads=values)
            return [encode_message(batch)]
        return [
            encode_message(Event(tenant_id=tenant_id, namespace=namespace, stream=stream, payload=value))
            for value in values
        ]
    flags = SHARED_EVENT_BATCH if form.kind is Kind.SHARED else EVENT_BATCH
    head_bytes = 0 if form.kind is Kind.SHARED else ID_BYTES
    parts = [b"", U32.pack(len(values))]
    if form.offsets:
        flags |= BASE_OFFSET
        parts[0] = U64.pack(base_offset)
    parts += lay_out(values)
    body = b"".join(parts)
    header = HEADER.pack(MAGIC, VERSION, flags, head_bytes + len(body))
    return [header + body] if form.kind is Kind.SHARED else [header, body]


def _join(form: Form, frames: list[bytes]) -> Sequence[bytes]:
    """As few pieces as the form allows: with ids, from behind one id to before the next."""
    if form.kind is not Kind.ADDRESSED:
        return (b"".join(frames),)
    if not frames:
        return (b"",)
    # header | body header | body header | ... | body: an id belongs at each bar.
    middles = [body + header for body, header in zip(frames[1:-1:2], frames[2::2], strict=True)]
    return (frames[0], *middles, frames[-1])
