"""Power cuts at every kind of moment, with unsynced sectors and names lost at random: acknowledged records are there, garbage is not."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.log.api import Appended, Batch, BatchFor, Durability, Partition, TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.verify import verify
from penstock.testing.powercut import PowerCutDisk

SEEDS = 60
SMALL = TopicConfig(partitions=2, segment_bytes=4096)
TOPICS = {
    "one": TopicConfig(segment_bytes=4096),
    "two": SMALL,
    "unflushed": TopicConfig(segment_bytes=4096, durability=Durability("none")),
    "squeezed": TopicConfig(segment_bytes=4096, compression="zstd"),
}
OPTIONS = EngineOptions(
    journal_bytes=16 << 10,
    checkpoint_bytes=2048,
    reserve_bytes=0,
    maintenance_interval_s=3600,
    block_bytes_target=1500,  # so that many commits have several blocks
)
LOSSES = (0.01, 0.05, 0.3, 0.5, 0.9, 0.99)
"""How much of what was not synced is lost: nearly nothing leaves large writes with a hole, nearly everything leaves crumbs of them."""

Acked = dict[tuple[str, int], dict[int, bytes]]


class Load:
    """Appends at random, and what came of them."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.acked: Acked = defaultdict(dict)
        self.sent: set[bytes] = set()
        self.atomic: list[set[bytes]] = []
        self._number = 0

    def values(self) -> list[bytes]:
        values = []
        for _ in range(self._chance.choice((1, 2, 4, 12))):
            self._number += 1
            values.append(f"{self._number}:".encode().ljust(self._chance.randint(8, 900), b"*"))
        self.sent.update(values)
        return values

    def note(self, partition: Partition, values: list[bytes], result: Appended | PenstockError) -> None:
        if isinstance(result, Appended) and partition.topic != "unflushed":
            for at, value in enumerate(values):
                self.acked[partition.topic, partition.index][result.base_offset + at] = value

    async def turn(self, engine: EmbeddedEngine) -> None:
        """One turn: a few appends at once, sometimes an atomic one, sometimes housekeeping."""
        loop = asyncio.get_running_loop()
        partitions = [engine.partition(name, index) for name in TOPICS for index in range(TOPICS[name].partitions)]
        futures = []
        for partition in self._chance.sample(partitions, self._chance.randint(1, 3)):
            values, future = self.values(), loop.create_future()

            def done(
                result: Appended | PenstockError,
                partition: Partition = partition,
                values: list[bytes] = values,
                future: asyncio.Future[None] = future,
            ) -> None:
                self.note(partition, values, result)
                future.set_result(None)

            partition.append(Batch(values), done)
            futures.append(future)
        if self._chance.random() < 0.3:
            futures.append(self._append_atomic(engine, self._chance.sample(partitions, 3)))
        await asyncio.gather(*futures)
        if self._chance.random() < 0.1:
            await engine.maintain()

    def _append_atomic(self, engine: EmbeddedEngine, partitions: list[Partition]) -> asyncio.Future[None]:
        parts = [(partition, self.values()) for partition in partitions]
        self.atomic.append({value for _, values in parts for value in values})
        future = asyncio.get_running_loop().create_future()

        def done(result: object) -> None:
            if not isinstance(result, PenstockError):
                assert isinstance(result, list)
                for (partition, values), appended in zip(parts, result, strict=True):
                    self.note(partition, values, appended)
            future.set_result(None)

        engine.append_atomic([BatchFor(partition, Batch(values)) for partition, values in parts], done)
        return future


async def read_all(engine: EmbeddedEngine) -> Acked:
    found: Acked = defaultdict(dict)
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


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source, image = tmp_path / "source", tmp_path / "image"
    source.mkdir()
    disk = PowerCutDisk(source, cut_at=chance.randint(60, 900))
    load = Load(chance)
    engine = EmbeddedEngine(source, disk=disk, options=OPTIONS)
    try:
        await engine.start()
        for name, config in TOPICS.items():
            await engine.create_topic(name, config)
        while not disk.is_off:
            await load.turn(engine)
    except OSError:
        assert disk.is_off
    finally:
        await close_without_power(engine)
    disk.image(image, chance, LOSSES[seed % len(LOSSES)])

    foreseen = verify(image)
    assert foreseen.damage == 0, foreseen.findings
    recovered = EmbeddedEngine(image, options=OPTIONS)
    await recovered.start()
    assert ends_of(recovered) == {topic.topic: topic.ends for topic in foreseen.topics}, (
        "a check foresees the next start"
    )
    found = await read_all(recovered)
    assert recovered.stats.corrupt_blocks == 0, "a power cut tears what nobody was promised, and damages nothing"
    await recovered.close()

    for place, records in load.acked.items():
        for offset, value in records.items():
            assert found[place].get(offset) == value, f"{place} offset {offset} was acknowledged"
    everything = {value for records in found.values() for value in records.values()}
    assert everything <= load.sent, "a record is readable that was never sent"
    for values in load.atomic:
        assert values <= everything or not values & everything, "an atomic append is there in part"


def ends_of(engine: EmbeddedEngine) -> dict[str, list[int]]:
    return {
        name: [engine.partition(name, index).committed_end for index in range(info.config.partitions)]
        for name, info in engine.topics().items()
    }


async def close_without_power(engine: EmbeddedEngine) -> None:
    try:
        await engine.close()
    except (OSError, AttributeError):
        pass  # it cannot stop cleanly, and where the power went during its start there is little to stop
