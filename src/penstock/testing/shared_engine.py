"""An engine that uses every freedom the engine contract leaves, to find who relies on more.

It keeps its log in memory, shares it with other engines on the same event loop, and takes its time: what is appended is stored some turns
of the loop later, can be read some turns after that, one partition before another, and is answered in any order. Offsets skip. A partition
that nobody follows looks empty, however many records it has. A read may need I/O although the records are at hand. All of that is drawn
from a seed, so that a program that does the same again meets the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog

from penstock.clock import Clock, SystemClock
from penstock.errors import (
    InvalidRequest,
    NotLeading,
    NotWritten,
    OffsetOutOfRange,
    OutcomeUnknown,
    PenstockError,
    ShuttingDown,
    TopicNotFound,
)
from penstock.log.api import (
    READ_BYTES_DEFAULT,
    Appended,
    Batch,
    BatchFor,
    BlockBatch,
    Engine,
    EngineStats,
    LateBatch,
    OnAllAppended,
    OnAppended,
    Partition,
    TopicConfig,
    TopicInfo,
    missing_partition,
)
from penstock.log.block import Block
from penstock.log.failed_partitions import FailedPartitions
from penstock.log.nodes import NodeInfo
from penstock.log.watchers import Watchers
from penstock.names import is_internal
from penstock.testing.shared_log import SharedLog, StoredPartition

TURNS_MAX: Final = 3
"""The maximum of turns of the loop that a step takes."""
SKIP_MAX: Final = 5

log = structlog.get_logger(__name__)


class _Append:
    """An append under way: queued, then stored, then shown part by part, then answered."""

    __slots__ = ("done", "error", "parts", "places", "turns")

    def __init__(self, parts: Sequence[BatchFor], done: OnAllAppended, turns: int) -> None:
        self.parts = parts
        self.done = done
        self.turns = turns
        self.places: list[Appended] = []
        self.error: PenstockError | None = None

    @property
    def readable(self) -> bool:
        return all(
            _ours(part.partition).shows(place.base_offset + part.batch.count)
            for part, place in zip(self.parts, self.places, strict=True)
        )

    def answer(self) -> None:
        try:
            partitions = [part.partition for part in self.parts]
            self.done(self.error or dict(zip(partitions, self.places, strict=True)))
        except Exception:  # as in every engine: a bug of one caller must not leave others unanswered
            log.exception("append_callback_failed")


class SharedPartition(Partition):
    def __init__(self, engine: SharedEngine, info: TopicInfo, index: int, stored: StoredPartition) -> None:
        self.topic = info.name
        self.index = index
        self.followed = False
        self._engine = engine
        self.stored = stored
        self.watchers: Watchers[[]] = Watchers(self)
        self._start = self._end = 0

    def __str__(self) -> str:
        return f"topic {self.topic!r} partition {self.index}"

    # -- bounds ---------------------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        self._check_open()
        await self._engine.pause()
        self._check_open()
        self.show_all()

    def show_all(self) -> None:
        self.followed = True
        self._show(self.stored.end)

    def show_next(self) -> bool:
        """Show the next append; returns whether there are more."""
        if self._end < self.stored.end:
            self._show(self.stored.next_end(self._end))
        return self._end < self.stored.end

    def shows(self, end: int) -> bool:
        return self._end >= end or self.stored.deleted

    def _show(self, end: int) -> None:
        if end > self._end:
            self._end = end
            self.watchers.notify()

    @property
    def start_offset(self) -> int:
        if self.followed:
            self._start = self.stored.start
        return self._start

    @property
    def retained(self) -> bool:
        config = self._engine.config_of(self)
        return config.retention_ms is not None or config.retention_bytes is not None or self.stored.start > 0

    @property
    def committed_end(self) -> int:
        return self._end

    @property
    def epoch(self) -> int:
        return 0

    def cut_since(self, epoch: int) -> int | None:
        return None

    @property
    def size_bytes(self) -> int:
        return self.stored.size_bytes

    @property
    def failure(self) -> str | None:
        return None

    # -- writing --------------------------------------------------------------------------------------------------------------

    def append(self, batch: Batch | BlockBatch, done: OnAppended, *, relaxed: bool = False) -> None:
        def answered(result: Mapping[Partition, Appended] | PenstockError) -> None:
            done(result if isinstance(result, PenstockError) else result[self])

        self._engine.enqueue([BatchFor(self, batch)], answered)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        if not self.followed:
            self._engine.follow_soon(self)
        return self.watchers.add(callback)

    # -- reading --------------------------------------------------------------------------------------------------------------

    def read_cached(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Block] | None:
        self._check_open()
        if not self.followed:
            return None
        self._check(offset)
        if offset == self._end:
            return []
        return self._read(offset, max_bytes) if self._engine.chance() else None

    async def read(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Block]:
        await self._make_current()
        self._check(offset)
        await self._engine.pause()
        self._check_open()
        return self._read(offset, max_bytes)

    def _read(self, offset: int, max_bytes: int) -> list[Block]:
        return self.stored.read(offset, self._end, max_bytes)

    async def offset_at(self, timestamp_ms: int) -> int:
        await self._make_current()
        found = self.stored.offset_at(timestamp_ms)
        return self._end if found is None else min(found, self._end)

    async def timestamp_of(self, offset: int) -> int | None:
        blocks = await self.read(offset, 1)
        return blocks[0].first_timestamp_ms if blocks else None

    async def delete_before(self, offset: int) -> int:
        await self._make_current()
        self.stored.drop_before(offset)
        return self.start_offset

    async def _make_current(self) -> None:
        self._check_open()
        if not self.followed:
            await self.follow()

    def _check(self, offset: int) -> None:
        if not self.start_offset <= offset <= self._end:
            raise OffsetOutOfRange(
                f"offset {offset} out of range: {self} holds {self.start_offset} to {self._end} (exclusive)"
            )

    def _check_open(self) -> None:
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def refusal(self) -> PenstockError | None:
        """Why nothing can be read or written any more."""
        if self.stored.deleted:
            return TopicNotFound(f"topic not found: {self.topic} (it was deleted)")
        return ShuttingDown("the broker is stopping; send again when it is back") if self._engine.closing else None


class SharedEngine(Engine):
    """One node on a shared log. With `skips` off, offsets are dense: for who has them as constants."""

    def __init__(
        self, log: SharedLog, *, clock: Clock | None = None, seed: int = 0, skips: bool = True, node: str = ""
    ) -> None:
        self.log = log
        self.node = node or f"node {id(self)}"
        self.stats = EngineStats()
        self.addresses: dict[str, str] = {}
        self.failed = FailedPartitions()
        self.closing = False
        self._clock = clock or SystemClock()
        self._random = random.Random(seed)  # noqa: S311 - not for secrets
        self._skips = skips
        self._topics: dict[str, TopicInfo] = {}
        self._partitions: dict[str, list[SharedPartition]] = {}
        self._watchers: Watchers[[str]] = Watchers("topics")
        self._handles: dict[StoredPartition, SharedPartition] = {}
        self._queued: deque[_Append] = deque()
        self._stored: list[_Append] = []
        self._behind: dict[SharedPartition, None] = {}
        """Followed, or to be followed, and with news to show."""
        self._heard: dict[str, None] = {}
        """Topics that changed, and that this engine has not seen yet."""
        self._lost: deque[bool] = deque()
        self._node_watchers: Watchers[[]] = Watchers("nodes")
        self._shared: set[str] = set()
        self._divided: set[str] = set()
        self._claimed: set[int] = set()
        self._turning = False
        self._idle: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self.pause()
        for name in self.log.topics:
            self._learn(name)
        self.log.join(self, self._nodes_changed)
        self.log.topic_watchers.append(self._hear)
        self.log.append_watchers.append(self._appended)

    async def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        self.log.leave(self)
        if self._turning:
            self._idle = self._loop.create_future()
            await self._idle
        self.log.topic_watchers.remove(self._hear)
        self.log.append_watchers.remove(self._appended)

    # -- nodes ----------------------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self.log.leads(self)

    @property
    def deposed(self) -> str | None:
        return "another node leads now" if self.log.was_deposed(self) else None

    def nodes(self) -> Sequence[NodeInfo]:
        engines = [each for each in self.log.members if isinstance(each, SharedEngine)]
        return [
            NodeInfo(each.node, each.addresses, self.log.leads(each), tuple(self.log.given.get(each, ())))
            for each in engines
        ]

    def announce(self, addresses: Mapping[str, str]) -> None:
        self.addresses = dict(addresses)
        self.log.reach(self)

    def watch_nodes(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._node_watchers.add(callback)

    def _nodes_changed(self) -> None:
        self._loop.call_soon(self._node_watchers.notify)

    def share(self, topic: str) -> None:
        self._shared.add(topic)

    @property
    def shards(self) -> int | None:
        return self.log.shards

    @property
    def given_shards(self) -> Collection[int]:
        return self.log.given.get(self, ())

    def divide(self, topic: str) -> None:
        self._divided.add(topic)

    async def claim_shard(self, shard: int) -> None:
        await self.pause()
        self.log.claim(self, shard)
        self._claimed.add(shard)

    async def release_shard(self, shard: int) -> None:
        self._claimed.discard(shard)
        await self.pause()
        self.log.release(self, shard)

    async def catch_up(self) -> None:
        await self.pause()
        for name in list(self._heard):
            self._learn(name)

    def _why_not_ours(self, parts: Sequence[BatchFor]) -> PenstockError | None:
        """Why this node may not append to these partitions."""
        if self.deposed is not None:
            return NotWritten(f"nothing was written: {self.deposed}")
        shards = {part.partition.index for part in parts if part.partition.topic in self._divided}
        if not shards <= self._claimed:
            return NotLeading("this node does not own the shard")
        lost = next((shard for shard in shards if not self.log.owns(self, shard)), None)
        if lost is not None:
            self.log.depose(self)
            self._nodes_changed()
            return NotWritten(f"nothing was written: another node has claimed shard {lost}")
        led = [part for part in parts if self._is_led(part.partition.topic)]
        if not self.leads and (led or (len(parts) > 1 and not shards)):
            return NotLeading("this node does not lead")
        return None

    def _is_led(self, topic: str) -> bool:
        return is_internal(topic) and topic not in self._shared and topic not in self._divided

    # -- chance ---------------------------------------------------------------------------------------------------------------

    def chance(self) -> bool:
        return self._random.random() < 0.5

    async def pause(self) -> None:
        for _ in range(self._random.randint(1, TURNS_MAX)):
            await asyncio.sleep(0)

    def lose_answer(self, *, stored: bool) -> None:
        """Answer the next append with OutcomeUnknown, stored or not; `settle` then tells which."""
        self._lost.append(stored)

    # -- topics ---------------------------------------------------------------------------------------------------------------

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._topics

    def config_of(self, partition: SharedPartition) -> TopicConfig:
        return self._topics[partition.topic].config

    def watch_topics(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._watchers.add(callback)

    def partition(self, topic: str, index: int) -> SharedPartition:
        parts = self._partitions.get(topic)
        if parts is None or not 0 <= index < len(parts):
            raise missing_partition(topic, index, parts)
        return parts[index]

    def _hear(self, name: str) -> None:
        """Somebody has changed a topic: learn of it some turns later, unless it was this engine, which knows at once."""
        self._heard[name] = None
        self._turn_soon()

    def _learn(self, name: str) -> None:
        known, info = self._topics.get(name), self.log.topics.get(name)
        self._heard.pop(name, None)
        if info == known or self.closing:
            return
        if known is not None and (info is None or info.id != known.id):
            for part in self._partitions.pop(name):
                del self._handles[part.stored]
                self._behind.pop(part, None)
            del self._topics[name]
        if info is not None:
            parts = self._partitions.setdefault(name, [])
            for index, stored in list(enumerate(self.log.partitions[info.id]))[len(parts) :]:
                parts.append(SharedPartition(self, info, index, stored))
                self._handles[stored] = parts[-1]
            self._topics[name] = info
        self._watchers.notify(name)

    async def create_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        await self._before_change()
        try:
            return self.log.create(name, config, self._clock.now_ms())
        finally:
            self._learn(name)

    async def alter_topic(self, name: str, config: TopicConfig) -> TopicInfo:
        await self._before_change()
        altered = self.log.alter(name, config)
        self._learn(name)
        return altered

    async def delete_topic(self, name: str) -> None:
        await self._before_change()
        self.log.delete(name)
        self._learn(name)

    async def truncate_topic(self, name: str, before: Mapping[int, int]) -> None:
        await self._before_change()
        self.log.truncate(name, before)
        for index in before:
            self._partitions[name][index].show_all()

    async def _before_change(self) -> None:
        if self.closing:
            raise ShuttingDown("the broker is stopping; send again when it is back")
        await self.pause()
        if self.deposed is not None:
            raise NotWritten(f"nothing was written: {self.deposed}")
        if not self.leads:
            raise NotLeading("this node does not lead")

    # -- appending ------------------------------------------------------------------------------------------------------------

    def append_atomic(self, parts: Sequence[BatchFor], done: OnAllAppended) -> None:
        if len({part.partition for part in parts}) != len(parts) or not parts:
            raise InvalidRequest("an atomic append names each partition once, and at least one")
        self.enqueue(parts, done)

    def enqueue(self, parts: Sequence[BatchFor], done: OnAllAppended) -> None:
        for part in parts:
            _ = part.batch.size_bytes  # raises for a bug of the caller
        refusal = next((refusal for part in parts if (refusal := _ours(part.partition).refusal())), None)
        refusal = refusal or self._why_not_ours(parts)
        if refusal is not None:
            self._loop.call_soon(done, refusal)
            return
        self._queued.append(_Append(parts, done, self._random.randint(0, TURNS_MAX)))
        self._turn_soon()

    def follow_soon(self, partition: SharedPartition) -> None:
        self._behind[partition] = None
        self._turn_soon()

    def _appended(self, stored: StoredPartition) -> None:
        partition = self._handles.get(stored)
        if partition is not None and partition.followed:
            self.follow_soon(partition)

    def _turn_soon(self) -> None:
        if not self._turning:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Move everything under way a little."""
        for name in [each for each in self._heard if self.chance()]:
            self._learn(name)
        while self._queued and self._queued[0].turns <= 0:
            self._store(self._queued.popleft())
        if self._queued:
            self._queued[0].turns -= 1
        for partition in [each for each in self._behind if self.chance()]:
            if not partition.followed:
                partition.show_all()
            if not partition.show_next():
                self._behind.pop(partition, None)
        readable = [append for append in self._stored if append.error is not None or append.readable]
        self._random.shuffle(readable)
        for append in readable[: self._random.randint(0, len(readable))]:
            self._stored.remove(append)
            append.answer()
        if self._queued or self._stored or self._behind or self._heard:
            self._loop.call_soon(self._turn)
            return
        self._turning = False
        if self._idle is not None:
            self._idle.set_result(None)

    def _store(self, append: _Append) -> None:
        lost = None if not self._lost else self._lost.popleft()
        if lost is not None:
            append.error = self._unknown(append.parts, stored=lost)
        self._stored.append(append)
        if lost is False:
            return
        append.error = append.error or self._why_not_ours(append.parts)
        if isinstance(append.error, NotWritten | NotLeading):
            return
        try:
            encoded = self._encoded(append.parts)
        except PenstockError as error:
            append.error = error
            return
        for part, (place, blocks) in zip(append.parts, encoded, strict=True):
            partition = _ours(part.partition)
            if not partition.followed:
                partition.show_all()
            partition.stored.add(place, blocks)
            append.places.append(place)
            self.stats.appended_records += part.batch.count
            self.stats.appended_bytes += part.batch.size_bytes
            self.log.appended(partition.stored)
        self.stats.commits += 1

    def _encoded(self, parts: Sequence[BatchFor]) -> list[tuple[Appended, list[Block]]]:
        places: dict[Partition, Appended] = {}
        encoded: dict[Partition, tuple[Appended, list[Block]]] = {}
        for part in sorted(parts, key=lambda each: isinstance(each.batch, LateBatch)):  # those that tell of others last
            partition = _ours(part.partition)
            if partition.stored.deleted:
                raise TopicNotFound(f"topic not found: {partition.topic} (it was deleted)")
            batch = part.batch.made(places) if isinstance(part.batch, LateBatch) else part.batch
            skip = self._random.randint(1, SKIP_MAX) if self._skips and self.chance() else 0
            encoded[partition] = partition.stored.encoded(batch, skip, self._clock.now_ms())
            if not isinstance(part.batch, LateBatch):
                places[partition] = encoded[partition][0]
        return [encoded[part.partition] for part in parts]

    def _unknown(self, parts: Sequence[BatchFor], *, stored: bool) -> OutcomeUnknown:
        async def settle() -> bool:
            for part in parts:
                await part.partition.follow()
            return stored

        error = OutcomeUnknown("whether the records are stored is unknown: the answer was lost")
        error.settle = settle
        return error


def _ours(partition: Partition) -> SharedPartition:
    assert isinstance(partition, SharedPartition), "an atomic append stays within one engine"
    return partition
