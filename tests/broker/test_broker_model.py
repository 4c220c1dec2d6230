"""The broker on the real engine against a model in memory: equal at every step, also after restarts and crashes.

A crash is the data directory as it is at that instant, copied away from under the running broker and opened by a new one. What was
acknowledged must be there; the steps wait for each acknowledgement, so broker and model must agree on everything.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import (
    GroupNotFound,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    TopicExists,
    TopicNotFound,
)
from penstock.log.api import Durability, TopicConfig
from penstock.log.embedded.options import EngineOptions
from penstock.testing.clock import ManualClock
from tests.broker.producing import appended, produce
from tests.engines import make_engine
from tests.open_access import OpenAccess

WHO = ANONYMOUS
EXISTING = st.sampled_from(["t", "a/b"])
TOPICS = EXISTING | st.just("missing")
GROUPS = st.sampled_from(["g", "h"])
PARTITIONS = st.integers(0, 2)
KEYS = st.none() | st.sampled_from([b"a", b"k1", b"user-123", b"long" * 40])
RECORDS = st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=40)), min_size=1, max_size=20)
Record = tuple[bytes | None, bytes | None]


class ModelTopic:
    def __init__(self, partitions: int, *, flushed: bool) -> None:
        self.partitions: list[list[Record]] = [[] for _ in range(partitions)]
        self.turn = 0
        self.flushed = flushed
        self.cut = False
        """Whether it may have lost its tail: offsets beyond its end are of records that are lost."""


class Model:
    """What a broker is, without disks, blocks or waiting."""

    def __init__(self) -> None:
        self.topics: dict[str, ModelTopic] = {}
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.members: dict[tuple[str, str], set[str]] = {}

    def topic(self, name: str) -> ModelTopic:
        if name not in self.topics:
            raise TopicNotFound(name)
        return self.topics[name]

    def partition(self, name: str, index: int) -> list[Record]:
        partitions = self.topic(name).partitions
        if index >= len(partitions):
            raise PartitionNotFound(name)
        return partitions[index]

    def create(self, name: str, partitions: int, *, flushed: bool) -> None:
        if name in self.topics:
            raise TopicExists(name)
        self.topics[name] = ModelTopic(partitions, flushed=flushed)
        self._forget_groups(name)

    def delete(self, name: str) -> None:
        self.topic(name)
        del self.topics[name]
        self._forget_groups(name)

    def _forget_groups(self, name: str) -> None:
        self.offsets = {pair: offsets for pair, offsets in self.offsets.items() if pair[0] != name}
        self.members = {pair: members for pair, members in self.members.items() if pair[0] != name}

    def produce(self, name: str, explicit: int, records: list[Record]) -> list[tuple[int, int]]:
        topic = self.topic(name)
        if explicit >= len(topic.partitions):
            raise PartitionNotFound(name)
        placed = []
        for key, value in records:
            index = explicit
            if index < 0 and key is not None:
                index = fnv(key) % len(topic.partitions)
            elif index < 0:
                index = topic.turn % len(topic.partitions)
                topic.turn += 1
            topic.partitions[index].append((key, value))
            placed.append((index, len(topic.partitions[index]) - 1))
        return placed

    def read(self, name: str, index: int, offset: int) -> list[Record]:
        records = self.partition(name, index)
        if offset > len(records):
            raise OffsetOutOfRange(name)
        return records[offset:]

    def commit(self, name: str, group: str, partition: int, offset: int) -> None:
        if name in self.topics:
            end = len(self.partition(name, partition))
            if self.topics[name].cut and offset > end:
                raise OffsetOutOfRange(name)
        self.offsets.setdefault((name, group), {})[partition] = offset

    def crash(self) -> None:
        """Groups continue at the end of a topic without flushes if they were beyond it."""
        for name, topic in self.topics.items():
            topic.cut = topic.cut or not topic.flushed
            if topic.flushed:
                continue
            for (of_topic, _), offsets in self.offsets.items():
                if of_topic == name:
                    for partition, offset in offsets.items():
                        offsets[partition] = min(offset, len(topic.partitions[partition]))

    def committed(self, name: str, group: str, partition: int) -> int | None:
        pair = name, group
        if pair not in self.offsets and pair not in self.members:
            raise GroupNotFound(name)
        return self.offsets.get(pair, {}).get(partition)

    def lag(self, name: str, group: str, partition: int) -> int:
        end = len(self.partition(name, partition))
        return max(0, end - (self.committed(name, group, partition) or 0))

    def subscribe(self, name: str, group: str, session_id: str) -> None:
        self.topic(name)
        self.members.setdefault((name, group), set()).add(session_id)

    def unsubscribe(self, session_id: str) -> None:
        self.members = {pair: members - {session_id} for pair, members in self.members.items()}

    def delete_group(self, group: str) -> None:
        pairs = {pair for pair in self.offsets.keys() | self.members.keys() if pair[1] == group}
        if not pairs:
            raise GroupNotFound(group)
        for pair in pairs:
            self.offsets.pop(pair, None)
            self.members.pop(pair, None)

    def groups(self) -> list[tuple[str, str, tuple[str, ...], dict[int, int]]]:
        pairs = sorted(self.offsets.keys() | self.members.keys())
        return [(*pair, tuple(sorted(self.members.get(pair, ()))), self.offsets.get(pair, {})) for pair in pairs]


def fnv(key: bytes) -> int:
    digest = 2166136261
    for byte in key:
        digest = (digest ^ byte) * 16777619 % 2**32
    return digest


class BrokerAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-model-"))
        self.generation = 0
        self.runner = asyncio.Runner()
        self.clock = ManualClock()
        self.model = Model()
        self.runner.run(self.start())

    async def start(self) -> None:
        options = EngineOptions(reserve_bytes=1 << 12, tail_bytes_per_partition=256)
        self.engine = make_engine(self.root / str(self.generation), clock=self.clock, options=options)
        await self.engine.start()
        self.broker = Broker(self.engine, clock=self.clock, limits=BrokerLimits(), access=OpenAccess())
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.close()
        await self.engine.close()

    def teardown(self) -> None:
        self.runner.run(self.stop())
        self.runner.close()
        shutil.rmtree(self.root)

    @rule()
    def restart(self) -> None:
        self.runner.run(self.stop())
        self.reopen()

    @rule()
    def crash(self) -> None:
        old, self.generation = self.generation, self.generation + 1
        shutil.copytree(self.root / str(old), self.root / str(self.generation))
        self.runner.run(self.stop())
        self.model.crash()
        self.reopen()

    def reopen(self) -> None:
        self.model.members.clear()
        for topic in self.model.topics.values():
            topic.turn = 0
        self.runner.run(self.start())

    def same(self, expected: Callable[[], Any], actual: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Both give the same answer, or fail with the same error."""
        try:
            answer = expected()
        except PenstockError as error:
            with pytest.raises(type(error)):
                self.runner.run(actual())
        else:
            assert self.runner.run(actual()) == answer

    # -- topics and records -----------------------------------------------------------------------------------------------

    @rule(name=EXISTING, partitions=st.integers(1, 3), durability=st.sampled_from(["fsync", "none"]))
    def create_topic(self, name: str, partitions: int, durability: str) -> None:
        async def actual() -> None:
            config = TopicConfig(partitions, Durability.parse(durability), segment_bytes=1 << 16)
            await self.broker.topics.create(WHO, name, config)

        self.same(lambda: self.model.create(name, partitions, flushed=durability == "fsync"), actual)

    @rule(name=EXISTING)
    def delete_topic(self, name: str) -> None:
        async def actual() -> None:
            await self.broker.topics.delete(WHO, name)

        self.same(lambda: self.model.delete(name), actual)

    @rule(name=TOPICS, explicit=st.integers(-1, 2), records=RECORDS, keyed=st.booleans())
    def produce(self, name: str, explicit: int, records: list[Record], keyed: bool) -> None:
        async def actual() -> list[tuple[int, int]]:
            keys = [key for key, _ in records] if keyed else None
            placed: dict[int, tuple[int, int]] = {}
            for placement in await produce(self.broker, name, [value for _, value in records], keys, explicit):
                rows = placement.rows
                if isinstance(placement.result, PartitionNotFound):
                    raise placement.result
                numbers = range(len(records))[rows] if isinstance(rows, slice) else rows
                base = appended(placement).base_offset
                placed.update({row: (placement.partition, base + n) for n, row in enumerate(numbers)})
            return [placed[row] for row in range(len(records))]

        sent: list[Record] = records if keyed else [(None, value) for _, value in records]
        self.same(lambda: self.model.produce(name, explicit, sent), actual)

    @rule(name=TOPICS, index=PARTITIONS, offset=st.integers(0, 60))
    def read(self, name: str, index: int, offset: int) -> None:
        async def actual() -> list[Record]:
            partition = self.broker.records.partition(WHO, name, index)
            records: list[Record] = []
            at = offset
            while blocks := await partition.read(at, max_bytes=200):
                for block in blocks:
                    start = block.index_of(at)
                    keys = block.keys(start) or [None] * (block.count - start)
                    records += zip(keys, block.values(start), strict=True)
                    at = block.next_offset
            return records

        self.same(lambda: self.model.read(name, index, offset), actual)

    # -- groups -----------------------------------------------------------------------------------------------------------

    @rule(name=TOPICS, group=GROUPS, partition=PARTITIONS, offset=st.integers(0, 60))
    def commit(self, name: str, group: str, partition: int, offset: int) -> None:
        async def actual() -> None:
            await self.broker.groups.commit(WHO, name, group, partition, offset)

        self.same(lambda: self.model.commit(name, group, partition, offset), actual)

    @rule(name=TOPICS, group=GROUPS, partition=PARTITIONS, mode=st.sampled_from(["earliest", "latest"]))
    def reset(self, name: str, group: str, partition: int, mode: str) -> None:
        def expected() -> int:
            end = len(self.model.partition(name, partition))
            offset = end if mode == "latest" else 0
            self.model.commit(name, group, partition, offset)
            return offset

        async def actual() -> int:
            return await self.broker.groups.reset_offset(WHO, name, group, partition, mode)

        self.same(expected, actual)

    @rule(name=TOPICS, group=GROUPS, partition=PARTITIONS)
    def look_at_a_group(self, name: str, group: str, partition: int) -> None:
        async def committed() -> int | None:
            return self.broker.groups.committed(WHO, name, group, partition)

        async def lag() -> int:
            return (await self.broker.groups.lag(WHO, name, group, partition)).records

        self.same(lambda: self.model.committed(name, group, partition), committed)
        self.same(lambda: self.model.lag(name, group, partition), lag)

    @rule(name=EXISTING, group=GROUPS, session_id=st.sampled_from(["s1", "s2"]))
    def subscribe(self, name: str, group: str, session_id: str) -> None:
        async def actual() -> None:
            self.broker.groups.subscribe(WHO, name, group, session_id)

        self.same(lambda: self.model.subscribe(name, group, session_id), actual)

    @rule(session_id=st.sampled_from(["s1", "s2"]))
    def unsubscribe(self, session_id: str) -> None:
        self.broker.groups.unsubscribe(session_id)
        self.model.unsubscribe(session_id)

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        async def actual() -> None:
            await self.broker.groups.delete(WHO, group)

        self.same(lambda: self.model.delete_group(group), actual)

    # -- always -----------------------------------------------------------------------------------------------------------

    @invariant()
    def topics_and_ends_agree(self) -> None:
        assert self.broker.topics.names(WHO) == sorted(self.model.topics)
        for name, topic in self.model.topics.items():
            described = self.broker.topics.describe(WHO, name).partitions
            assert [part.committed_end for part in described] == [len(records) for records in topic.partitions]

    @invariant()
    def groups_agree(self) -> None:
        listed = [
            (info.topic, info.group, info.members, {offset.partition: offset.offset for offset in info.offsets})
            for info in self.broker.groups.all(WHO)
        ]
        assert listed == self.model.groups()


TestBrokerAgainstModel = BrokerAgainstModel.TestCase
# Forty steps with restarts, fifty times over: seconds on an idle machine, minutes on a busy one.
pytestmark = [pytest.mark.timeout(900), pytest.mark.embedded]
TestBrokerAgainstModel.settings = settings(max_examples=50, stateful_step_count=40)
