"""A table: keys and values that live in one compacted internal topic and, once committed, in memory.

The log is the only database. A table reads its topic once, at start, and from then on answers from memory; a change is a record
with the same key (no value: deleted), and shows in memory when its commit has come back, never before. So what a reader was told
survives a crash, and what a crash loses was told to no one.

Keys and values are msgspec types in MessagePack: compact, and equal keys have equal bytes, which is what compaction goes by.
Structs with `array_like=True` may gain fields at their end: older records then take the default.

A change does not wait for the one before it. The log gathers what arrives while a flush runs into one block, so many changes in
flight cost about as much as one; they take effect in the order in which they were made.

Where a change must not be seen without something else (the record it accounts for, an entry of another table), `prepare` it and
hand it to `append_together`: one atomic append of records and changes, of which a crash leaves all or nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, ItemsView, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog

from penstock.errors import CorruptBlock, CorruptMetadata, InvalidRequest, LimitExceeded, PenstockError, ShuttingDown
from penstock.log.api import Appended, Batch, BatchFor, Engine, OnAllAppended, Partition, TopicConfig
from penstock.log.block import Block
from penstock.names import is_internal

# Compaction works on sealed segments; small ones keep a busy table from growing far beyond what it holds. An acknowledged change
# is always on disk, whatever the default for user topics.
TABLE_CONFIG: Final = TopicConfig(partitions=1, cleanup="compact", segment_bytes=16 << 20)
KEY_BYTES_MAX: Final = 4 << 10
VALUE_BYTES_MAX: Final = 1 << 20

_log = structlog.get_logger(__name__)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_ENCODER: Final = msgspec.msgpack.Encoder()


async def read_state(engine: Engine, topic: str) -> AsyncIterator[Block]:
    """Yield the blocks of an internal topic.

    Raises CorruptBlock at damage, because the broker must not start with a part of its state unnoticed. If the operator has accepted
    gaps, what cannot be read is logged and left out.
    """
    partition = engine.partition(topic, 0)
    offset = partition.start_offset
    while offset < partition.committed_end:
        try:
            blocks = await partition.read(offset)
        except CorruptBlock as error:
            if not engine.accept_gaps:
                raise CorruptBlock(
                    f"internal topic {topic} cannot be loaded at offset {offset}: {error}; the broker does not start with a part of "
                    "its state: restore the file from a backup, or start with --set log.accept_gaps=true to load what can be read"
                ) from error
            following = partition.committed_end if error.next_offset is None else error.next_offset
            _log.error(
                "damaged part of an internal topic left out",
                topic=topic,
                offset=offset,
                resumes_at=following,
                error=str(error),
            )
            offset = max(following, offset + 1)
            continue
        if not blocks:
            break
        for block in blocks:
            yield block
        offset = blocks[-1].next_offset


class Table(Generic[_Key, _Value]):
    """`on_change(key, value or None)` is called for every record that is loaded or committed, in order."""

    def __init__(
        self,
        engine: Engine,
        topic: str,
        key_type: type[_Key],
        value_type: type[_Value],
        *,
        entries_max: int,
        value_bytes_max: int = VALUE_BYTES_MAX,
        on_change: Callable[[_Key, _Value | None], None] | None = None,
    ) -> None:
        assert is_internal(topic), f"table topic {topic} must be internal"
        self.topic = topic
        self._engine = engine
        self._partition: Partition | None = None
        self._key_decoder = msgspec.msgpack.Decoder(key_type)
        self._value_decoder = msgspec.msgpack.Decoder(value_type)
        self._entries: dict[_Key, _Value] = {}
        self._entries_max = entries_max
        self._value_bytes_max = value_bytes_max
        self._on_change = on_change
        self._applied_end = 0
        self._in_flight: deque[PreparedChange[_Key, _Value]] = deque()
        """In the order in which they were made, which is their order in the log."""
        self._in_flight_entries = 0
        self._drained: asyncio.Future[None] | None = None
        self._closed = False

    # -- reading ----------------------------------------------------------------------------------------------------------

    def get(self, key: _Key) -> _Value | None:
        return self._entries.get(key)

    def items(self) -> ItemsView[_Key, _Value]:
        return self._entries.items()

    def __len__(self) -> int:
        return len(self._entries)

    # -- writing ----------------------------------------------------------------------------------------------------------

    def put(self, key: _Key, value: _Value) -> asyncio.Future[None]:
        """Done when the entry is committed and in memory. Raises at once where the change cannot be made."""
        return self.change([(key, value)])

    def delete(self, key: _Key) -> asyncio.Future[None]:
        return self.change([(key, None)])

    def change(self, changes: Sequence[tuple[_Key, _Value | None]]) -> asyncio.Future[None]:
        """Several changes in one append."""
        prepared = self.prepare(changes)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def shown(error: PenstockError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        batch = prepared.part.batch
        assert isinstance(batch, Batch)
        prepared.part.partition.append(batch, lambda result: self.settle(prepared, result))
        self.begin(prepared, shown)
        return future

    def prepare(self, changes: Sequence[tuple[_Key, _Value | None]]) -> PreparedChange[_Key, _Value]:
        """Several changes as one part of an `append_together`. Raises at once where they cannot be made; until then nothing is held."""
        if self._partition is None or self._closed:
            raise ShuttingDown(f"table {self.topic} is not open: the broker is starting or stopping, try again")
        keys, values = [], []
        added = 0
        for key, value in changes:
            keys.append(_bounded(_ENCODER.encode(key), KEY_BYTES_MAX, "key", self.topic))
            values.append(
                None if value is None else _bounded(_ENCODER.encode(value), self._value_bytes_max, "value", self.topic)
            )
            added += value is not None and key not in self._entries
        # Changes in flight may add entries too; counting all of them keeps the bound at the price of refusing a little early.
        if added and len(self._entries) + self._in_flight_entries + added > self._entries_max:
            raise LimitExceeded(
                f"table {self.topic} is full with {self._entries_max} entries: delete some or raise its limit"
            )
        return PreparedChange(self, changes, BatchFor(self._partition, Batch(values, keys)))

    def begin(self, change: PreparedChange[_Key, _Value], shown: Callable[[PenstockError | None], None]) -> None:
        """The append was made. `shown` is called once the change is in memory, or with the error."""
        change.shown = shown
        change.result = None  # it may have been refused before, and be tried again
        self._in_flight.append(change)
        self._in_flight_entries += len(change.changes)

    def settle(self, change: PreparedChange[_Key, _Value], result: Appended | PenstockError) -> None:
        """The append has come back. Changes show in order: parts of larger appends may come back after changes made later."""
        change.result = result
        while self._in_flight and self._in_flight[0].result is not None:
            first = self._in_flight.popleft()
            self._in_flight_entries -= len(first.changes)
            if isinstance(first.result, Appended):
                assert first.result.base_offset >= self._applied_end, "the log put two appends in another order"
                self._applied_end = first.result.base_offset + len(first.changes)
                for key, value in first.changes:
                    self._apply(key, value)
                first.shown(None)
            else:
                first.shown(first.result)
        if not self._in_flight and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _apply(self, key: _Key, value: _Value | None) -> None:
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = value
        if self._on_change is not None:
            self._on_change(key, value)

    # -- opening and closing ----------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Create the topic where it is missing and read it. Raises CorruptBlock if a part of it cannot be read (`read_state`)."""
        if self.topic not in self._engine.topics():
            await self._engine.create_topic(self.topic, TABLE_CONFIG)
        partition = self._engine.partition(self.topic, 0)
        async for block in read_state(self._engine, self.topic):
            self._load_block(block)
        self._applied_end = partition.committed_end
        self._partition = partition

    def _load_block(self, block: Block) -> None:
        keys = block.keys() or [None] * block.count
        for offset, encoded_key, encoded_value in zip(block.offsets(), keys, block.values(), strict=True):
            try:
                key = self._key_decoder.decode(encoded_key or b"")
                value = None if encoded_value is None else self._value_decoder.decode(encoded_value)
            except msgspec.MsgspecError as error:
                raise CorruptMetadata(
                    f"table {self.topic} has a record at offset {offset} that this release cannot read ({error}): "
                    "start the release that wrote it, or a newer one"
                ) from error
            self._apply(key, value)

    async def close(self) -> None:
        """Take no more changes and wait for those in flight."""
        self._closed = True
        if self._in_flight:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained


class PreparedChange(Generic[_Key, _Value]):
    """Changes of one table, checked and encoded: one part of an append. `Table.change` and `append_together` see it through."""

    __slots__ = ("changes", "part", "result", "shown", "table")

    def __init__(
        self, table: Table[_Key, _Value], changes: Sequence[tuple[_Key, _Value | None]], part: BatchFor
    ) -> None:
        self.table = table
        self.changes = changes
        self.part = part
        self.result: Appended | PenstockError | None = None
        self.shown: Callable[[PenstockError | None], None]


def append_together(
    engine: Engine, batches: Sequence[BatchFor], changes: Sequence[PreparedChange[Any, Any]], done: OnAllAppended
) -> None:
    """Append records and changes of tables (each partition and each table named once), all or nothing, also across a crash.

    `done` is called when the append has come back and the tables show the changes. It gets where the batches landed, or the error;
    after OutcomeUnknown only a restart can tell whether it happened.
    """
    left = len(changes)
    outcome: Sequence[Appended] | PenstockError = []

    def shown(_: PenstockError | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            done(outcome)

    def appended(result: Sequence[Appended] | PenstockError) -> None:
        nonlocal outcome
        if isinstance(result, PenstockError):
            outcome = result
            for change in changes:
                change.table.settle(change, result)
        else:
            outcome = result[: len(batches)]
            for change, place in zip(changes, result[len(batches) :], strict=True):
                change.table.settle(change, place)

    # An engine answers later, never within the call; so what it refuses by raising leaves no change begun.
    engine.append_atomic([*batches, *(change.part for change in changes)], appended if changes else done)
    for change in changes:
        change.table.begin(change, shown)


async def appended_together(
    engine: Engine, batches: Sequence[BatchFor], changes: Sequence[PreparedChange[Any, Any]] = ()
) -> None:
    """Do the same, and return when it is done. Raises its error. To cancel the wait does not undo the append."""
    landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(result: Sequence[Appended] | PenstockError) -> None:
        if landed.cancelled():
            return
        if isinstance(result, PenstockError):
            landed.set_exception(result)
        else:
            landed.set_result(None)

    append_together(engine, batches, changes, done)
    await landed


def _bounded(encoded: bytes, bytes_max: int, what: str, topic: str) -> bytes:
    if len(encoded) > bytes_max:
        raise InvalidRequest(f"{what} of {len(encoded)} bytes does not fit table {topic}: at most {bytes_max}")
    return encoded
