"""Random appends to an engine without a broker, what was acknowledged, and what must hold when it is opened again.

What happens is told to a witness, a file of JSON lines, at once; so it outlives a process that ends at an operation of its disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.log.api import Appended, Batch, BatchFor, Durability, LateBatch, Partition, TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.disk import Disk

TOPICS = {
    "one": TopicConfig(segment_bytes=4096),
    "two": TopicConfig(partitions=2, segment_bytes=4096),
    "unflushed": TopicConfig(segment_bytes=4096, durability=Durability("none")),
    "squeezed": TopicConfig(segment_bytes=4096, compression="zstd"),
    "table": TopicConfig(segment_bytes=4096, cleanup="compact"),
}
TABLE_KEYS = 3
OPTIONS = EngineOptions.model_construct(
    journal_bytes=16 << 10,
    checkpoint_bytes=2048,
    reserve_bytes=0,
    maintenance_interval_s=3600,
    block_bytes_target=1500,  # so that many commits have several blocks
)
RETENTION = TopicConfig(segment_bytes=1024, retention_bytes=2048)

Found = dict[tuple[str, int], dict[int, bytes]]


class EngineLoad:
    """Appends at random, and what came of them."""

    def __init__(self, chance: random.Random, witness: Path | None = None, *, small: bool = False) -> None:
        """`small`: appends of few small records."""
        self._chance = chance
        self._counts = (1, 1, 2) if small else (1, 2, 4, 12)
        self._value_bytes_max = 100 if small else 900
        self._witness = None if witness is None else os.open(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.acked: Found = defaultdict(dict)
        self.sent: set[bytes] = set()
        self.atomic: list[set[bytes]] = []
        self.told: dict[int, tuple[int, set[bytes]]] = {}
        """By number: the key of a late record, and the values that it tells of."""
        self._number = 0

    @classmethod
    def as_told_by(cls, witness: Path) -> EngineLoad:
        """What a load had done when its process ended."""
        load = cls(random.Random())
        for line in witness.read_text().splitlines():
            load._apply(*json.loads(line))
        return load

    def _tell(self, what: str, *details: Any) -> None:
        if self._witness is not None:
            os.write(self._witness, json.dumps([what, *details]).encode() + b"\n")
        self._apply(what, *details)

    def _apply(self, what: str, *details: Any) -> None:
        if what == "sent":
            self.sent.update(value.encode() for value in details)
        elif what == "atomic":
            self.atomic.append({value.encode() for value in details})
        elif what == "told":
            number, key, *values = details
            self.told[number] = key, {value.encode() for value in values}
        else:
            topic, index, base_offset, values = details
            for at, value in enumerate(values):
                self.acked[topic, index][base_offset + at] = value.encode()

    def values(self) -> list[bytes]:
        values = []
        for _ in range(self._chance.choice(self._counts)):
            self._number += 1
            values.append(f"{self._number}:".encode().ljust(self._chance.randint(8, self._value_bytes_max), b"*"))
        self._tell("sent", *(value.decode() for value in values))
        return values

    def note(self, partition: Partition, values: list[bytes], result: Appended | PenstockError) -> None:
        if isinstance(result, Appended) and partition.topic != "unflushed":
            decoded = [value.decode() for value in values]
            self._tell("acked", partition.topic, partition.index, result.base_offset, decoded)

    async def turn(self, engine: EmbeddedEngine) -> None:
        """A few appends at once, sometimes an atomic one, sometimes housekeeping."""
        partitions = [
            engine.partition(name, index)
            for name in TOPICS
            for index in range(TOPICS[name].partitions)
            if name != "table"
        ]
        chosen = self._chance.sample(partitions, self._chance.randint(1, 3))
        futures = [self._append(partition, self.values()) for partition in chosen]
        if self._chance.random() < 0.3:
            futures.append(self._append_atomic(engine, self._chance.sample(partitions, 3)))
        futures += [
            self._append_told(engine, self._chance.sample(partitions, self._chance.choice((1, 1, 2))))
            for _ in range(self._chance.choice((0, 0, 1, 3)))
        ]
        if self._chance.random() < 0.1:
            futures.append(self._append_to_table(engine))
        await asyncio.gather(*futures)
        if self._chance.random() < 0.1:
            await engine.maintain()

    async def small_turn(self, engine: EmbeddedEngine) -> None:
        """One small append, to one partition or several: what the event loop writes itself if the disk is quick."""
        partitions = [engine.partition(topic, index) for topic, index in (("one", 0), ("two", 0), ("two", 1))]
        match self._chance.randrange(5):
            case 0:
                await self._append_atomic(engine, self._chance.sample(partitions, 2))
            case 1:
                await self._append_told(engine, self._chance.sample(partitions, self._chance.choice((1, 2))))
            case kind:
                chosen = self._chance.sample(partitions, 2 if kind == 2 else 1)
                await asyncio.gather(*(self._append(partition, self.values()) for partition in chosen))

    def _append(self, partition: Partition, values: list[bytes]) -> asyncio.Future[None]:
        future = asyncio.get_running_loop().create_future()

        def done(result: Appended | PenstockError) -> None:
            self.note(partition, values, result)
            future.set_result(None)

        partition.append(Batch(values), done)
        return future

    def _append_atomic(self, engine: EmbeddedEngine, partitions: list[Partition]) -> asyncio.Future[None]:
        parts = [(partition, self.values()) for partition in partitions]
        self._tell("atomic", *(value.decode() for _, values in parts for value in values))
        future = asyncio.get_running_loop().create_future()

        def done(result: Mapping[Partition, Appended] | PenstockError) -> None:
            if not isinstance(result, PenstockError):
                for partition, values in parts:
                    self.note(partition, values, result[partition])
            future.set_result(None)

        engine.append_atomic([BatchFor(partition, Batch(values)) for partition, values in parts], done)
        return future

    def _append_told(self, engine: EmbeddedEngine, partitions: list[Partition]) -> asyncio.Future[None]:
        """Append to partitions, and to the table where that is."""
        parts = [(partition, self.values()) for partition in partitions]
        values = [value.decode() for _, values in parts for value in values]
        self._number += 1
        number, key = self._number, self._number % TABLE_KEYS
        self._tell("atomic", *values)
        self._tell("told", number, key, *values)
        future = asyncio.get_running_loop().create_future()

        def make(places: Mapping[Partition, Appended]) -> bytes:
            told = [[part.topic, part.index, places[part].base_offset] for part in partitions]
            return json.dumps([number, told]).encode()

        def done(result: Mapping[Partition, Appended] | PenstockError) -> None:
            if not isinstance(result, PenstockError):
                for partition, values in parts:
                    self.note(partition, values, result[partition])
            future.set_result(None)

        late = BatchFor(engine.partition("table", 0), LateBatch(b"%d" % key, make, 400))
        engine.append_atomic([*(BatchFor(partition, Batch(values)) for partition, values in parts), late], done)
        return future

    def _append_to_table(self, engine: EmbeddedEngine) -> asyncio.Future[None]:
        """Append something to the table that tells of nothing."""
        future = asyncio.get_running_loop().create_future()
        batch = Batch([json.dumps([0, []]).encode()], [b"other"])
        engine.partition("table", 0).append(batch, lambda _: future.set_result(None))
        return future

    def _check_table(self, found: Found) -> None:
        """Of each key the table tells of the last append that is there, and where that is."""
        rows = [json.loads(value) for _, value in sorted(found.pop(("table", 0), {}).items())]
        last = {self.told[number][0]: (number, places) for number, places in rows if number}
        values = {value for records in found.values() for value in records.values()}
        for number, (key, told) in self.told.items():
            assert number <= last.get(key, (0, []))[0] or not told & values, (
                "an append is there, and the table does not tell"
            )
        for number, places in last.values():
            for topic, index, base_offset in places:
                assert found[topic, index].get(base_offset) in self.told[number][1], (
                    "what the table tells of is not there"
                )

    async def check(self, data_dir: Path) -> None:
        """Open a directory again: what was acknowledged is there, nothing else but what was sent, and of atomic appends all or nothing."""
        found = await self.check_whole(data_dir)
        for place, records in self.acked.items():
            for offset, value in records.items():
                assert found[place].get(offset) == value, f"{place} offset {offset} was acknowledged"

    async def check_whole(self, data_dir: Path) -> Found:
        """The same for a directory that may be of an earlier moment; returns what is there."""
        recovered = EmbeddedEngine(data_dir, options=OPTIONS)
        await recovered.start()
        try:
            found = await read_all(recovered)
            assert recovered.stats.corrupt_blocks == 0, "a crash tears what nobody was promised, and damages nothing"
        finally:
            await recovered.close()
        self._check_table(found)
        everything = {value for records in found.values() for value in records.values()}
        assert everything <= self.sent, "a record is readable that was never sent"
        for values in self.atomic:
            assert values <= everything or not values & everything, "an atomic append is there in part"
        return found


async def create_topics(engine: EmbeddedEngine, names: Iterable[str] = TOPICS) -> None:
    for name in names:
        if name not in engine.topics():
            await engine.create_topic(name, TOPICS[name])


async def read_all(engine: EmbeddedEngine) -> Found:
    found: Found = defaultdict(dict)
    for name, config in TOPICS.items():
        for index in range(config.partitions if name in engine.topics() else 0):
            partition = engine.partition(name, index)
            offset = partition.start_offset
            while blocks := await partition.read(offset):
                for block in blocks:
                    for at, value in zip(block.offsets(), block.values(), strict=True):
                        assert value is not None
                        found[name, index][at] = value
                offset = blocks[-1].next_offset
            assert offset == partition.committed_end
    return found


async def use_everything(data_dir: Path, disk: Disk, load: EngineLoad, turns: int) -> None:
    """One life of an engine with every kind of operation: topics made and deleted, appends, rolls, checkpoints, rewrites, retention."""
    engine = EmbeddedEngine(data_dir, disk=disk, options=OPTIONS)
    await engine.start()
    await create_topics(engine)
    for turn in range(turns):
        await load.turn(engine)
        if turn % 10 == 0:
            await _use_short_lived_topic(engine)
    await engine.close()


async def _use_short_lived_topic(engine: EmbeddedEngine) -> None:
    await engine.create_topic("retained", RETENTION)
    for _ in range(6):
        future = asyncio.get_running_loop().create_future()
        engine.partition("retained", 0).append(Batch([b"-" * 700]), future.set_result)
        await future
    await engine.maintain()
    await engine.delete_topic("retained")
