"""A log in memory that several engines share, as nodes share a cluster. It outlives them: an engine that is opened on it later finds it."""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from penstock.errors import InvalidRequest, OffsetOutOfRange, PartitionNotFound, TopicExists, TopicNotFound
from penstock.log.api import Appended, Batch, BlockBatch, TopicConfig, TopicInfo
from penstock.log.block import Block, encode_block, place_block
from penstock.log.sharing_out import share_out


class StoredPartition:
    """The records of one partition. Offsets may skip before each append."""

    __slots__ = ("blocks", "compress", "deleted", "end", "ends", "last_ms", "size_bytes", "start")

    def __init__(self, *, compress: bool) -> None:
        self.compress = compress
        self.blocks: list[Block] = []
        self.ends: list[int] = []
        """The offset after each append, rising."""
        self.start = self.end = self.last_ms = self.size_bytes = 0
        self.deleted = False

    def encoded(self, batch: Batch | BlockBatch, skip: int, now_ms: int) -> tuple[Appended, list[Block]]:
        """Return a batch as blocks after the end, skipping this many offsets. Raises InvalidRequest if it cannot be encoded."""
        place = Appended(self.end + skip, max(now_ms, self.last_ms))
        offset, blocks = place.base_offset, []
        if isinstance(batch, BlockBatch):
            for each in batch.blocks:
                blocks.append(Block(place_block(each, offset, place.timestamp_ms, compress=self.compress)))
                offset = blocks[-1].next_offset
            return place, blocks
        try:
            columns = batch.values, batch.keys, batch.headers, batch.expiries
            return place, [Block(encode_block(offset, place.timestamp_ms, *columns, compress=self.compress))]
        except Exception as error:
            raise InvalidRequest(f"the records cannot be stored: {error}") from error

    def add(self, place: Appended, blocks: list[Block]) -> None:
        self.blocks += blocks
        self.end = blocks[-1].next_offset
        self.ends.append(self.end)
        self.last_ms = place.timestamp_ms
        self.size_bytes += sum(block.size_bytes for block in blocks)

    def next_end(self, end: int) -> int:
        """Return where the append behind an end ends."""
        return self.ends[bisect_right(self.ends, end)]

    def read(self, offset: int, end: int, max_bytes: int) -> list[Block]:
        found: list[Block] = []
        size_bytes = 0
        for block in self.blocks[bisect_right(self.blocks, offset, key=lambda each: each.next_offset) :]:
            size_bytes += block.decoded_bytes
            if block.base_offset >= end or (found and size_bytes > max_bytes):
                break
            found.append(block)
        return found

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record at or after a time, None if there is none."""
        at = bisect_left(self.blocks, timestamp_ms, key=lambda each: each.last_timestamp_ms)
        return None if at == len(self.blocks) else max(self.blocks[at].base_offset, self.start)

    def drop_before(self, offset: int) -> None:
        """Delete appends that end at or below an offset. The last one stays, as the newest segment of a log does."""
        count = bisect_right(self.blocks[:-1], offset, key=lambda each: each.next_offset)
        if count:
            self.start = max(self.start, min(offset, self.blocks[count].base_offset))
            self.size_bytes -= sum(block.size_bytes for block in self.blocks[:count])
            del self.blocks[:count]


class SharedLog:
    """Topics and their partitions. `watchers` are told the name of each topic that changes, and the partition of each append.

    If it `elects`, the engine that has been there for longest leads, until it leaves or is deposed, and those that can be reached share
    out `shards`. Otherwise all lead.
    """

    def __init__(self, *, elects: bool = False, shards: int = 16) -> None:
        self.elects = elects
        self.shards = shards if elects else None
        self.given: dict[object, Collection[int]] = {}
        """The shards that each engine is to own."""
        self._held: dict[object, set[int]] = {}
        """Those that it was given and has not released."""
        self._owners: dict[int, object] = {}
        """By shard: who has claimed it last."""
        self.members: dict[object, Callable[[], None]] = {}
        """The engines that share the log, the one that leads first, and what tells each that this has changed."""
        self._deposed: set[object] = set()
        self.topics: dict[str, TopicInfo] = {}
        self.partitions: dict[str, list[StoredPartition]] = {}
        """By topic id."""
        self.topic_watchers: list[Callable[[str], None]] = []
        self.append_watchers: list[Callable[[StoredPartition], None]] = []

    # -- nodes ----------------------------------------------------------------------------------------------------------------

    def join(self, engine: object, changed: Callable[[], None]) -> None:
        self.members[engine] = changed
        self._tell_members()

    def leave(self, engine: object) -> None:
        if self.members.pop(engine, None) is not None:
            self._held.pop(engine, None)
            self._share_out()

    def reach(self, engine: object) -> None:
        """An engine can be reached by others: it is given shards from now on."""
        if self.shards is not None and engine in self.members:
            self._held.setdefault(engine, set())
            self._share_out()

    def release(self, engine: object, shard: int) -> None:
        if engine in self._held and shard not in self.given[engine]:
            self._held[engine].discard(shard)
            self._share_out()

    def claim(self, engine: object, shard: int) -> None:
        self._owners[shard] = engine

    def owns(self, engine: object, shard: int) -> bool:
        """Whether nobody has claimed a shard since this engine has."""
        return self._owners.get(shard) is engine

    def _share_out(self) -> None:
        given = share_out(self._held, self.shards or 0)
        for engine, shards in given.items():
            self._held[engine].update(shards)
        unheard = {engine: shards for engine, shards in self.given.items() if engine in self._deposed}
        self.given = {**unheard, **given}
        self._tell_members()

    def depose(self, engine: object) -> None:
        """Consider an engine dead. It is not notified, and finds out when it writes."""
        self._deposed.add(engine)
        self.leave(engine)

    def leads(self, engine: object) -> bool:
        return not self.elects or next(iter(self.members), None) is engine

    def was_deposed(self, engine: object) -> bool:
        return engine in self._deposed

    def _tell_members(self) -> None:
        for changed in self.members.values():
            changed()

    # -- topics ---------------------------------------------------------------------------------------------------------------

    def create(self, name: str, config: TopicConfig, now_ms: int) -> TopicInfo:
        if name in self.topics:
            raise TopicExists(f"topic already exists: {name}")
        info = self.topics[name] = TopicInfo(name, uuid.uuid4().hex, config, now_ms)
        self.partitions[info.id] = []
        self._changed(info)
        return info

    def alter(self, name: str, config: TopicConfig) -> TopicInfo:
        info = self.topic(name)
        if config.partitions < info.config.partitions:
            raise InvalidRequest(f"topic {name} has {info.config.partitions} partitions, and cannot have fewer")
        self.topics[name] = altered = replace(info, config=config)
        self._changed(altered)
        return altered

    def _changed(self, info: TopicInfo) -> None:
        parts = self.partitions[info.id]
        compress = info.config.compression == "zstd"
        parts += [StoredPartition(compress=compress) for _ in range(info.config.partitions - len(parts))]
        for part in parts:
            part.compress = compress
        self._tell(info.name)

    def delete(self, name: str) -> None:
        info = self.topic(name)
        del self.topics[name]
        for part in self.partitions.pop(info.id):
            part.deleted = True
        self._tell(name)

    def _tell(self, name: str) -> None:
        for watcher in self.topic_watchers:
            watcher(name)

    def topic(self, name: str) -> TopicInfo:
        if name not in self.topics:
            raise TopicNotFound(f"topic not found: {name}")
        return self.topics[name]

    def truncate(self, name: str, before: Mapping[int, int]) -> None:
        parts = self.partitions[self.topic(name).id]
        for index, offset in before.items():
            if not 0 <= index < len(parts):
                raise PartitionNotFound(
                    f"partition {index} not found: topic {name!r} has partitions 0 to {len(parts) - 1}"
                )
            if not 0 <= offset <= parts[index].end:
                raise OffsetOutOfRange(
                    f"offset {offset} is out of range: topic {name!r} partition {index} ends at {parts[index].end}; nothing was deleted"
                )
        for index, offset in before.items():
            parts[index].start = max(parts[index].start, offset)

    def appended(self, part: StoredPartition) -> None:
        """Tell who watches that a partition has a new end."""
        for watcher in self.append_watchers:
            watcher(part)
