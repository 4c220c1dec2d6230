"""A stream that retention overtakes, again and again: every batch is read whole, or the loss is told. None is silently short.

Each run follows a seed: topics come, records come and go, batches are planned, read, and done again by another run of the query, with
retention at work between any two of these steps.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.errors import DataLoss
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.offsets import StreamOffset
from penstock.testing import RunningBroker
from tests.spark.by_hand import Row, Source, Stream, maintain, rows
from tests.spark.pooled_clients import close_pooled_clients

STEPS = 80
PARTITIONS = 2
RETENTION_S = 60
LIMITS: list[dict[str, str]] = [{}, {"maxOffsetsPerTrigger": "30"}, {"maxBytesPerPartition": "20000"}]


class Run:
    def __init__(self, broker: RunningBroker, chance: Random) -> None:
        self.broker = broker
        self.chance = chance
        self.client: FlyMQClient = broker.connect()
        self.options = chance.choice(LIMITS)
        self.topics: list[str] = []
        self.offsets: list[dict[str, Any]] = []
        self.whole = self.told = 0

    def query(self, **options: str) -> Stream:
        source = Source(self.broker.address, subscribePattern="orders-.*", startingOffsets="earliest", **self.options)
        stream = source.stream(**options)
        stream.offsets = self.offsets
        return stream

    def send(self) -> None:
        if not self.topics or self.chance.random() < 0.1:
            self.topics.append(f"orders-{len(self.topics)}")
            self.client.create_topic(
                self.topics[-1], PARTITIONS, segment_bytes=1 << 16, retention_ms=RETENTION_S * 1000
            )
        values = [self.chance.randbytes(3000) for _ in range(self.chance.choice([1, 10, 30]))]
        self.client.send_many(self.chance.choice(self.topics), values, self.chance.randrange(PARTITIONS))

    def retention(self) -> None:
        self.broker.clock.advance(self.chance.choice([1, RETENTION_S + 1]))
        maintain(self.broker)

    def sometimes_retention(self) -> None:
        if self.chance.random() < 0.3:
            self.retention()

    def batch(self) -> None:
        try:
            start, end, found = self.attempt(self.query())
        except DataLoss:
            self.told += 1
            lenient = self.query(failOnDataLoss="false")
            start, end = lenient.start, lenient.next_end()
            lenient.replay(start, end)
        else:
            assert_whole(start, end, found)
            self.whole += 1
        if end != start:
            self.offsets.append(end)

    def attempt(self, stream: Stream) -> tuple[dict[str, Any], dict[str, Any], list[Row]]:
        start, end = stream.start, stream.next_end()
        self.sometimes_retention()
        if self.chance.random() < 0.3:
            stream.reader.partitions(start, end)
            stream = self.query()
            self.sometimes_retention()
        tasks = stream.reader.partitions(start, end)
        self.sometimes_retention()
        return start, end, rows(stream.reader, tasks, wire=self.chance.random() < 0.3)


def assert_whole(start: dict[str, Any], end: dict[str, Any], found: list[Row]) -> None:
    """Every offset between where the batch begins and where it ends, in order."""
    read: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in found:
        read[row["topic"], row["partition"]].append(row["offset"])
    until = StreamOffset.decode(end)
    begin = until.begin(start)
    for topic, numbers in until.positions.items():
        for index, offset in numbers.items():
            assert read[topic, index] == list(range(begin[topic][index], offset)), f"of {topic}-{index}"


@pytest.mark.parametrize("seed", range(5))
def test_no_batch_is_short_without_a_word(seed: int, tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data") as broker:
        run = Run(broker, Random(seed))
        actions = [run.send, run.send, run.send, run.batch, run.batch, run.retention]
        for _ in range(STEPS):
            run.chance.choice(actions)()
        assert run.whole > 5
        assert run.told > 0
        close_pooled_clients()
