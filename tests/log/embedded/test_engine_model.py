"""The embedded engine against a model of a few dozen lines: what it holds is the same after any sequence of operations."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.log.api import Appended, Batch, BatchFor, Durability, Partition, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.clock import ManualClock
from tests.log.embedded.storage import UnflushedDisk, crash_image, settled
from tests.log.records import Record, read_from, start_atomic_append

_T = TypeVar("_T")

TOPICS = {
    "plain": TopicConfig(partitions=2, segment_bytes=400),
    "squeezed": TopicConfig(compression="zstd", segment_bytes=1500, segment_ms=60_000),
    "loose": TopicConfig(durability=Durability("none"), segment_bytes=700),
    "table": TopicConfig(cleanup="compact", segment_bytes=300),
}
PLACES = [(name, index) for name, config in TOPICS.items() for index in range(config.partitions)]
OPTIONS = EngineOptions.model_construct(
    block_bytes_target=300,
    journal_bytes=1500,
    checkpoint_bytes=400,
    tail_bytes_per_partition=600,
    tail_bytes_max=1500,
    tombstone_ms=0,
    merge_block_bytes=150,
    reserve_bytes=0,
    maintenance_interval_s=3600,
)

places = st.sampled_from(PLACES)
keys = st.none() | st.sampled_from([b"a", b"b", b"c", b"a long key, longer than a digest of it"])
values = st.none() | st.binary(max_size=12) | st.integers(50, 350).map(bytes)
rows = st.lists(st.tuples(keys, values), min_size=1, max_size=5)
Rows = list[tuple[bytes | None, bytes | None]]
Place = tuple[str, int]


def batch_of(some: Rows) -> Batch:
    return Batch([value for _, value in some], [key for key, _ in some])


class EngineMachine(RuleBasedStateMachine):
    """`self.model` has, for each partition, every record that was acknowledged, by offset."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.generation = 0
        self.clock = ManualClock()
        self.model: dict[Place, dict[int, Record]] = {place: {} for place in PLACES}
        self.ends: dict[Place, int] = dict.fromkeys(PLACES, 0)
        self.started = False

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self.loop.run_until_complete(work)

    @property
    def data_dir(self) -> Path:
        return self.root / str(self.generation)

    def partition(self, place: Place) -> Partition:
        return self.engine.partition(*place)

    async def open(self) -> None:
        self.engine = EmbeddedEngine(self.data_dir, clock=self.clock, disk=UnflushedDisk(), options=OPTIONS)
        await self.engine.start()

    def note(self, place: Place, some: Rows, appended: Appended) -> None:
        assert appended.base_offset == self.ends[place], "offsets are dense"
        for offset, (key, value) in enumerate(some, appended.base_offset):
            self.model[place][offset] = Record(offset, appended.timestamp_ms, key, value, None, 0)
        self.ends[place] += len(some)

    @initialize()
    def begin(self) -> None:
        async def create() -> None:
            await self.open()
            for name, config in TOPICS.items():
                await self.engine.create_topic(name, config)

        self.run(create())
        self.started = True

    @rule(appends=st.lists(st.tuples(places, rows), min_size=1, max_size=6))
    def append_in_one_turn(self, appends: list[tuple[Place, Rows]]) -> None:
        async def append_all() -> list[Appended]:
            pending = [start_append(self.partition(place), batch_of(some)) for place, some in appends]
            return list(await asyncio.gather(*pending))

        for (place, some), appended in zip(appends, self.run(append_all()), strict=True):
            self.note(place, some, appended)

    @rule(parts=st.lists(st.tuples(places, rows), min_size=1, max_size=4, unique_by=lambda part: part[0]))
    def append_atomically(self, parts: list[tuple[Place, Rows]]) -> None:
        async def append_all() -> list[Appended]:
            batches = [BatchFor(self.partition(place), batch_of(some)) for place, some in parts]
            return list(await start_atomic_append(self.engine, batches))

        for (place, some), appended in zip(parts, self.run(append_all()), strict=True):
            self.note(place, some, appended)

    @rule(seconds=st.sampled_from([0.001, 1, 30, 3600]))
    def let_time_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-7200, -1, 1, 7200]))
    def set_the_clock(self, seconds: float) -> None:
        self.clock.jump(seconds)

    @rule(place=places, fraction=st.floats(0, 1), max_bytes=st.sampled_from([1, 200, 1 << 20]))
    def read(self, place: Place, fraction: float, max_bytes: int) -> None:
        partition = self.partition(place)
        offset = partition.start_offset + int(fraction * (partition.committed_end - partition.start_offset))
        records = self.run(read_from(partition, offset, max_bytes))
        self.check_records(place, records, offset)

    @rule(place=places, fraction=st.floats(0, 1))
    def find_a_time(self, place: Place, fraction: float) -> None:
        partition = self.partition(place)
        records = self.run(read_from(partition, partition.start_offset))
        if records:
            stamp = records[int(fraction * (len(records) - 1))].timestamp_ms
            expected = next(record.offset for record in records if record.timestamp_ms >= stamp)
            assert self.run(partition.offset_at(stamp)) == expected
            last = records[-1].timestamp_ms
            assert self.run(partition.offset_at(last + 1)) >= records[-1].offset + 1

    @rule(place=places, fraction=st.floats(0, 1))
    def delete_the_oldest(self, place: Place, fraction: float) -> None:
        if place[0] == "table":
            return  # what is deleted from a table is not what compaction may remove
        offset = int(fraction * self.ends[place])
        start = self.run(self.partition(place).delete_before(offset))
        assert start <= max(offset, self.partition(place).start_offset)
        self.model[place] = {at: record for at, record in self.model[place].items() if at >= start}

    @rule()
    def maintain(self) -> None:
        self.run(self.engine.maintain())

    @rule()
    def stop_and_start(self) -> None:
        self.run(self.engine.close())
        self.run(self.open())

    @rule(lost_indexes=st.booleans())
    def crash_and_start(self, lost_indexes: bool) -> None:
        self.run(settled(self.engine))
        image = crash_image(self.data_dir, self.root / str(self.generation + 1))
        self.run(self.engine.close())
        shutil.rmtree(self.data_dir)
        self.generation += 1
        if lost_indexes:
            for path in image.rglob("*.index"):
                path.unlink()
        self.run(self.open())

    @precondition(lambda self: self.started)
    @invariant()
    def everything_is_as_the_model_has_it(self) -> None:
        for place in PLACES:
            partition = self.partition(place)
            assert partition.failure is None
            assert partition.committed_end == self.ends[place]
            records = self.run(read_from(partition, partition.start_offset))
            self.check_records(place, records, partition.start_offset)

    def check_records(self, place: Place, records: list[Record], offset: int) -> None:
        expected = [record for at, record in sorted(self.model[place].items()) if at >= offset]
        stamps = [record.timestamp_ms for record in records]
        assert stamps == sorted(stamps)
        if place[0] != "table":
            assert records == expected
            return
        # Compaction may have removed what a later record of the same key supersedes, and deletions.
        assert set(records) <= set(expected)
        assert latest(records) == latest(expected)
        assert [record for record in records if record.key is None] == [each for each in expected if each.key is None]

    def teardown(self) -> None:
        if self.started:
            self.run(self.engine.close())
        self.loop.close()
        shutil.rmtree(self.root)


def latest(records: list[Record]) -> dict[bytes, bytes]:
    """What a table of these records holds."""
    table: dict[bytes, bytes] = {}
    for record in records:
        if record.key is not None and record.value is not None:
            table[record.key] = record.value
        elif record.key is not None:
            table.pop(record.key, None)
    return table


EngineMachine.TestCase.settings = settings(
    # Shrinking a failure takes minutes; add Phase.shrink when there is one to look at.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestEngineAgainstModel = EngineMachine.TestCase
pytestmark = pytest.mark.timeout(240)
