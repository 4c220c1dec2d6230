"""The topic `__schedule`: what waits for its time, kept in the log and not in memory.

Each entry is a record whose key is its due time and a number of its own, 16 bytes together, and whose value is what to write where. A
record with the same key and no value ends it, and compaction then removes both. A start reads the keys only, as arrays, so that
millions of entries load in seconds; the records themselves are read again shortly before they are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec
import numpy as np
import structlog

from penstock.broker.schedule.due_times import Due, DueTimes, Int64s
from penstock.broker.table import TABLE_CONFIG, ensure_internal_topic, read_state
from penstock.errors import CorruptBlock, CorruptMetadata
from penstock.log.api import Batch, BatchFor, Engine, OnAppended, Partition
from penstock.log.block import Block

SCHEDULE_TOPIC: Final = "__schedule"
_KEY: Final = Struct(">QQ")
_ENCODER: Final = msgspec.msgpack.Encoder()

log = structlog.get_logger(__name__)


class Delayed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A record on its way, and the topic it was accepted for."""

    topic: str
    topic_id: str
    partition: int
    value: bytes | None
    key: bytes | None = None
    headers: bytes | None = None
    ttl_ms: int = 0
    """Counts from delivery; 0 for never."""


class Loaded(msgspec.Struct, frozen=True, gc=False):
    """An entry read back from the log."""

    due_ms: int
    offset: int
    log_key: bytes
    record: Delayed
    size_bytes: int


_DECODER: Final = msgspec.msgpack.Decoder(Delayed)


class ScheduleLog:
    """Reads and writes the entries of one broker."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._partition: Partition | None = None
        self._next_number = 0

    @property
    def partition(self) -> Partition:
        assert self._partition is not None, "the schedule is used before it was started"
        return self._partition

    async def load(self) -> DueTimes:
        """Create the topic where it is missing, else read it: what waits in it. Raises where a part of it cannot be read."""
        self._partition = await ensure_internal_topic(self._engine, SCHEDULE_TOPIC, TABLE_CONFIG)
        columns = [_keys_of(block) async for block in read_state(self._engine, SCHEDULE_TOPIC)]
        return self._still_waiting(columns)

    def _still_waiting(self, columns: Sequence[tuple[Int64s, Int64s, Int64s]]) -> DueTimes:
        waiting = DueTimes()
        if not columns:
            return waiting
        numbers, dues, offsets = (np.concatenate(column) for column in zip(*columns, strict=True))
        self._next_number = int(numbers.max()) + 1
        # Of each number the last record counts; `unique` finds the first, so it is shown them backwards.
        _, last = np.unique(numbers[::-1], return_index=True)
        dues, offsets = dues[::-1][last], offsets[::-1][last]
        live = dues >= 0
        waiting.add_many(dues[live], offsets[live])
        return waiting

    def append(self, due_ms: int, record: Delayed, done: OnAppended) -> None:
        key = _KEY.pack(due_ms, self._next_number)
        self._next_number += 1
        self.partition.append(Batch([_ENCODER.encode(record)], [key]), done)

    def ends(self, entries: Sequence[Loaded]) -> BatchFor:
        """What ends these entries, as one part of an append."""
        return BatchFor(self.partition, Batch([None] * len(entries), [entry.log_key for entry in entries]))

    async def read(self, wanted: Sequence[Due], bytes_max: int) -> list[Loaded] | None:
        """The entries, or None if they are larger than allowed together. One that cannot be read is left out, with a line in the
        log: a broker that delivers the others is better than one that stands still."""
        found: list[Loaded] = []
        size_bytes = 0
        block: Block | None = None
        for due_ms, offset in sorted(wanted, key=lambda due: due[1]):
            if block is None or offset >= block.next_offset:
                try:
                    block = next(iter(await self.partition.read(offset, 1)), None)
                except CorruptBlock as error:
                    block = None
                    log.error("delayed_record_unreadable", offset=offset, due_ms=due_ms, error=str(error))
            if block is None:
                continue
            try:
                entry = _entry_at(block, due_ms, offset)
            except CorruptMetadata as error:
                log.error("delayed_record_unreadable", offset=offset, due_ms=due_ms, error=str(error))
                continue
            found.append(entry)
            size_bytes += entry.size_bytes
            if size_bytes > bytes_max and len(wanted) > 1:
                return None
        return found


def _keys_of(block: Block) -> tuple[Int64s, Int64s, Int64s]:
    """Numbers, due times (-1 if the record ends an entry) and offsets."""
    columns = block.columns()
    keys = columns.keys
    if keys is None or len(keys.data) != _KEY.size * block.count or (np.diff(keys.offsets) != _KEY.size).any():
        raise CorruptMetadata(
            f"{SCHEDULE_TOPIC} has records at offset {block.base_offset} and after that this release cannot read: "
            "start the release that wrote them, or a newer one"
        )
    pairs = np.frombuffer(keys.data, ">u8").reshape(-1, 2).astype(np.int64)
    dues = pairs[:, 0]
    if columns.values.valid is not None:
        dues = np.where(columns.values.valid, dues, -1)
    return pairs[:, 1], dues, columns.offsets


def _entry_at(block: Block, due_ms: int, offset: int) -> Loaded:
    row = block.index_of(offset)
    found = list(block.offsets(row, row + 1)) == [offset]
    keys = block.keys(row, row + 1) if found else None
    value = block.values(row, row + 1)[0] if found else None
    log_key = keys and keys[0]
    if not log_key or value is None:
        raise CorruptMetadata(
            f"{SCHEDULE_TOPIC} has no entry at offset {offset}: it has ended, or its segment is damaged"
        )
    try:
        record = _DECODER.decode(value)
    except msgspec.MsgspecError as error:
        raise CorruptMetadata(
            f"{SCHEDULE_TOPIC} has a record at offset {offset} that this release cannot read ({error}): "
            "start the release that wrote it, or a newer one"
        ) from error
    return Loaded(due_ms, offset, log_key, record, len(value))
