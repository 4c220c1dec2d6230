"""A table: keys and values that live in one partition of a compacted internal topic and, once committed, in memory.

The log is the only database. A table reads its topic at start, follows it from then on, and answers from memory. A change is a record with
the same key (no value: deleted). It shows in memory when its commit has come back, never before, and its writer is answered after that. So
what a reader has seen survives a crash, and what a crash loses was seen by no one.

Changes show in the order of the log, also those of other nodes. One of its own that comes next in that order is applied as it was made;
before others, the table reads what lies between.

Keys and values are msgspec types in MessagePack: compact, and equal keys have equal bytes, which is what compaction goes by.
Structs with `array_like=True` may gain fields at their end: older records then take the default.

A change does not wait for the one before it. The log gathers what arrives while a flush runs into one block, so many changes in
flight cost about as much as one. The log keeps those of one node in the order in which they were made.

Where a change must not be seen without something else (the record it accounts for, an entry of another table), `prepare` it and
hand it to `append_together`: one atomic append of records and changes, of which a crash leaves all or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, ItemsView, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count, islice
from typing import Any, Final, Generic, TypeVar

import msgspec
import structlog

from penstock.background import Background, Loop, Tasks
from penstock.errors import (
    CorruptBlock,
    CorruptMetadata,
    InvalidRequest,
    LimitExceeded,
    NotWritten,
    OutcomeUnknown,
    PenstockError,
    ShuttingDown,
    TopicExists,
)
from penstock.futures import set_outcome
from penstock.log.api import Appended, Batch, BatchFor, Engine, Partition, TopicConfig
from penstock.log.block import Block
from penstock.names import is_internal

# Compaction works on sealed segments; small ones keep a busy table from growing far beyond what it holds. An acknowledged change
# is always on disk, whatever the default for user topics.
TABLE_CONFIG: Final = TopicConfig(partitions=1, cleanup="compact", segment_bytes=16 << 20)
KEY_BYTES_MAX: Final = 4 << 10
FORGOTTEN_PER_APPEND_MAX: Final = 4096
AWAIT_LEADER_S: Final = 0.05
VALUE_BYTES_MAX: Final = 1 << 20

log = structlog.get_logger(__name__)

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_ENCODER: Final = msgspec.msgpack.Encoder()


async def ensure_internal_topic(engine: Engine, topic: str, config: TopicConfig, index: int = 0) -> Partition:
    """Return a partition of an internal topic. One that is missing is created by the node that leads, and awaited by the others."""
    while topic not in engine.topics():
        if engine.leads:
            with suppress(TopicExists):  # another node was quicker
                await engine.create_topic(topic, config)
        else:
            await asyncio.sleep(AWAIT_LEADER_S)
            await engine.catch_up()
    return engine.partition(topic, index)


async def read_state(engine: Engine, topic: str, index: int = 0) -> AsyncIterator[Block]:
    """Yield the blocks of a partition of an internal topic.

    Raises CorruptBlock at damage, because the broker must not start with a part of its state unnoticed. If the operator has accepted
    gaps, what cannot be read is logged and left out.
    """
    partition = engine.partition(topic, index)
    await partition.follow()
    offset = partition.start_offset
    while True:
        try:
            async for blocks in partition.read_to_end(offset):
                for block in blocks:
                    yield block
                offset = blocks[-1].next_offset
            return
        except CorruptBlock as error:
            if not engine.accept_gaps:
                raise CorruptBlock(
                    f"internal topic {topic} cannot be loaded at offset {offset}: {error}; the broker does not start with a part of "
                    "its state: restore the file from a backup, or start with --set log.accept_gaps=true to load what can be read"
                ) from error
            following = partition.committed_end if error.next_offset is None else error.next_offset
            log.error(
                "internal_topic_damaged",
                topic=topic,
                offset=offset,
                resumes_at=following,
                error=str(error),
            )
            offset = max(following, offset + 1)


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
        limit: str,
        value_bytes_max: int = VALUE_BYTES_MAX,
        on_change: Callable[[_Key, _Value | None], None] | None = None,
        shared: bool = False,
        partition: int = 0,
        background: Background | None = None,
    ) -> None:
        """`limit` names the setting that bounds the entries. A `shared` table is changed by every node, and of two changes of a key the
        last one in the log counts. Others are changed by the node that leads, or by the owner of a shard, which has the number of the
        partition."""
        assert is_internal(topic), f"table topic {topic} must be internal"
        if shared:
            engine.share(topic)
        self.topic = topic
        self._engine = engine
        self._index = partition
        self._partition: Partition | None = None
        self._key_decoder = msgspec.msgpack.Decoder(key_type)
        self._value_decoder = msgspec.msgpack.Decoder(value_type)
        self._entries: dict[_Key, _Value] = {}
        self._entries_max = entries_max
        self._limit = limit
        self._value_bytes_max = value_bytes_max
        self._on_change = on_change
        self._background = background or Background()
        self._applied_end = 0
        """The offset up to which memory shows the topic."""
        self._in_flight = 0
        self._in_flight_entries = 0
        self._ahead: list[tuple[int, int, PreparedChange[_Key, _Value]]] = []
        """Own changes that are committed, by offset, behind others that do not show yet: a heap. The number keeps those apart that wait
        for the same offset."""
        self._numbers = count()
        self._forgetting: asyncio.Future[None] | None = None
        self._reader: Loop | None = None
        """Reads what others have appended; there once somebody has."""
        self._stop_watching: Callable[[], None] | None = None
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

    def forget(self, keys: Iterable[_Key]) -> None:
        """Delete the first of these entries, a bounded number at a time. What is left, or cannot be deleted now, is for another call."""
        if self._forgetting is not None and not self._forgetting.done():
            return
        forgotten = [(key, None) for key in islice(keys, FORGOTTEN_PER_APPEND_MAX)]
        if forgotten:
            with suppress(PenstockError):
                self._forgetting = self.change(forgotten)
                self._forgetting.add_done_callback(lambda changed: changed.exception())

    def change(self, changes: Sequence[tuple[_Key, _Value | None]], *, relaxed: bool = False) -> asyncio.Future[None]:
        """Several changes in one append. If they are `relaxed`, nobody waits for them, and others go first."""
        prepared = self.prepare(changes)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        batch = prepared.part.batch
        assert isinstance(batch, Batch)
        known = partial(self.settle, prepared)
        prepared.part.partition.append(batch, lambda result: once_known(result, known), relaxed=relaxed)
        self.begin(prepared, partial(set_outcome, future))
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
                f"table {self.topic} is full with {self._entries_max} entries: delete some or raise {self._limit}"
            )
        return PreparedChange(self, changes, BatchFor(self._partition, Batch(values, keys)))

    def begin(self, change: PreparedChange[_Key, _Value], shown: Callable[[PenstockError | None], None]) -> None:
        """The append was made. `shown` is called once the change is in memory, or with the error."""
        change.shown = shown
        self._in_flight += 1
        self._in_flight_entries += len(change.changes)

    def settle(self, change: PreparedChange[_Key, _Value], result: Appended | PenstockError | None) -> None:
        """The append has come back, perhaps before others that lie in front of it in the log. None: it is stored, but where is unknown."""
        if isinstance(result, PenstockError):
            self._show(change, result)
            return
        if result is None:
            # It is read with everything up to the end, and shows then.
            self._in_flight_entries -= len(change.changes)
            change.changes = ()
            offset = change.part.partition.committed_end
        else:
            offset = result.base_offset
        heappush(self._ahead, (offset, next(self._numbers), change))
        self._show_ahead()

    def _show_ahead(self) -> None:
        """Apply own changes that come next in the log, and answer those that show."""
        while self._ahead:
            offset, _, change = self._ahead[0]
            if offset == self._applied_end:
                self._applied_end += len(change.changes)
                for key, value in change.changes:
                    self._apply(key, value)
            elif offset + len(change.changes) > self._applied_end:
                break  # behind others, or read in part
            heappop(self._ahead)
            self._show(change, None)

    def _show(self, change: PreparedChange[_Key, _Value], error: PenstockError | None) -> None:
        self._in_flight -= 1
        self._in_flight_entries -= len(change.changes)
        change.shown(error)
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
        """Create the topic where it is missing, read it, and follow it from now on.

        Raises CorruptBlock if a part of it cannot be read (`read_state`).
        """
        partition = await ensure_internal_topic(self._engine, self.topic, TABLE_CONFIG, self._index)
        async for block in read_state(self._engine, self.topic, self._index):
            self._load_block(block)
        self._applied_end = partition.committed_end
        self._partition = partition
        self._stop_watching = partition.watch(self._moved)

    async def catch_up(self) -> None:
        """Show every change that was answered, on any node, before the call. Raises what `Partition.follow` does."""
        partition = self._partition
        if partition is None:
            return
        await partition.follow()
        shown: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        nothing: PreparedChange[_Key, _Value] = PreparedChange(self, (), BatchFor(partition, Batch([])))
        self.begin(nothing, partial(set_outcome, shown))
        self.settle(nothing, None)
        self._moved()
        await shown

    def _moved(self) -> None:
        """The topic has grown: what was not applied when its answer came has to be read."""
        assert self._partition is not None
        if self._partition.committed_end <= self._applied_end:
            return
        if self._reader is None:
            self._reader = self._background.loop(f"table_{self.topic.lstrip('_')}", self._read_on)
        else:
            self._reader.wake()

    async def _read_on(self) -> None:
        partition = self._partition
        assert partition is not None
        while self._applied_end < partition.committed_end:
            offset = self._applied_end
            try:
                blocks = partition.read_cached(offset) or await partition.read(offset)
                for block in blocks:
                    self._load_block(block)
            except PenstockError as error:
                if self._closed:
                    self._give_up(error)
                raise
            if not blocks:
                return

    def _give_up(self, error: PenstockError) -> None:
        """Nobody waits longer for what will not show."""
        while self._ahead:
            self._show(heappop(self._ahead)[2], error)

    def _load_block(self, block: Block) -> None:
        """Apply the records of a block that do not show yet, and own changes after them."""
        first = block.index_of(self._applied_end)
        keys = block.keys(first) or [None] * (block.count - first)
        for offset, encoded_key, encoded_value in zip(block.offsets(first), keys, block.values(first), strict=True):
            try:
                key = self._key_decoder.decode(encoded_key or b"")
                value = None if encoded_value is None else self._value_decoder.decode(encoded_value)
            except msgspec.MsgspecError as error:
                raise CorruptMetadata(
                    f"table {self.topic} has a record at offset {offset} that this release cannot read ({error}): "
                    "start the release that wrote it, or a newer one"
                ) from error
            self._apply(key, value)
        self._applied_end = max(self._applied_end, block.next_offset)
        self._show_ahead()

    async def close(self) -> None:
        """Take no more changes and wait for those in flight."""
        self._closed = True
        if self._in_flight:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained
        if self._stop_watching is not None:
            self._stop_watching()
        if self._reader is not None:
            await self._reader.stop()


class PreparedChange(Generic[_Key, _Value]):
    """Changes of one table, checked and encoded: one part of an append. `Table.change` and `append_together` see it through."""

    __slots__ = ("changes", "part", "shown", "table")

    def __init__(
        self, table: Table[_Key, _Value], changes: Sequence[tuple[_Key, _Value | None]], part: BatchFor
    ) -> None:
        self.table = table
        self.changes = changes
        self.part = part
        self.shown: Callable[[PenstockError | None], None]


def append_together(
    engine: Engine,
    batches: Sequence[BatchFor],
    changes: Sequence[PreparedChange[Any, Any]],
    done: Callable[[PenstockError | None], None],
) -> None:
    """Append records and changes of tables (each partition and each table named once), all or nothing, also across a crash.

    `done` is called with the error or None, when the append has come back and the tables show the changes. After OutcomeUnknown only a
    restart can tell whether it happened.
    """
    left = len(changes)
    outcome: PenstockError | None = None

    def shown(_: PenstockError | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            done(outcome)

    def known(result: Mapping[Partition, Appended] | PenstockError | None) -> None:
        nonlocal outcome
        outcome = result if isinstance(result, PenstockError) else None
        if not changes:
            done(outcome)
            return
        for change in changes:
            if result is None or isinstance(result, PenstockError):
                change.table.settle(change, result)
            else:
                change.table.settle(change, result[change.part.partition])

    # An engine answers later, never within the call; so what it refuses by raising leaves no change begun.
    parts = [*batches, *(change.part for change in changes)]
    engine.append_atomic(parts, lambda result: once_known(result, known))
    for change in changes:
        change.table.begin(change, shown)


async def appended_together(
    engine: Engine, batches: Sequence[BatchFor], changes: Sequence[PreparedChange[Any, Any]] = ()
) -> None:
    """Do the same, and return when it is done. Raises its error. To cancel the wait does not undo the append."""
    landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    append_together(engine, batches, changes, partial(set_outcome, landed))
    await landed


_Result = TypeVar("_Result")
_asking: Final = Tasks()
"""For each append whose outcome is unknown, who waits for the log to tell."""


def once_known(result: _Result | PenstockError, known: Callable[[_Result | PenstockError | None], None]) -> None:
    """Call `known` with the result of an append. If its outcome is unknown but can be settled, that is done first: `known` gets None if it
    was stored after all."""
    if not isinstance(result, OutcomeUnknown) or result.settle is None:
        known(result)
        return
    _ = _asking.run(_ask(result, result.settle, known))


async def _ask(
    unknown: OutcomeUnknown,
    settle: Callable[[], Awaitable[bool]],
    known: Callable[[_Result | PenstockError | None], None],
) -> None:
    outcome: PenstockError | None
    try:
        outcome = None if await settle() else NotWritten(f"nothing was written: {unknown}")
    except PenstockError as error:
        log.error("outcome_not_settled", outcome=str(unknown), error=str(error))
        outcome = unknown
    except Exception:  # the callers are answered in any case
        log.exception("outcome_not_settled", outcome=str(unknown))
        outcome = unknown
    known(outcome)


def _bounded(encoded: bytes, bytes_max: int, what: str, topic: str) -> bytes:
    if len(encoded) > bytes_max:
        raise InvalidRequest(f"{what} of {len(encoded)} bytes does not fit table {topic}: at most {bytes_max}")
    return encoded
