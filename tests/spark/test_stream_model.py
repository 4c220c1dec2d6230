"""A stream under everything at once: writers, housekeeping, restarts, limits, batches that are done again. Every record comes once.

Each run follows a seed. What was read is compared with what was sent, by partition and in order.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import RunningBroker
from tests.spark.by_hand import Row, Source, Stream, maintain, rows
from tests.spark.pooled_clients import close_pooled_clients

STEPS = 60
PARTITIONS = 3
LIMITS: list[dict[str, Any]] = [
    {},
    {"maxOffsetsPerTrigger": "37"},
    {"maxBytesPerTrigger": "50 KB"},
    {"maxOffsetsPerTrigger": "100", "maxBytesPerTrigger": "20 KB", "maxRecordsPerPartition": "11"},
    {"minPartitions": "5"},
    {"maxBytesPerPartition": "9000"},
]

Sent = dict[tuple[str, int], list[bytes]]


class Run:
    """One broker, a writer, and a query that crashes."""

    def __init__(self, broker: RunningBroker, chance: Random, **config: Any) -> None:
        self.broker = broker
        self.chance = chance
        self.client: FlyMQClient = broker.connect()
        self.config = config
        self.options = chance.choice(LIMITS)
        self.sent: Sent = defaultdict(list)
        self.read: Sent = defaultdict(list)
        self.topics: list[str] = []
        self.number = 0
        self.stream = self.query()

    def query(self) -> Stream:
        source = Source(self.broker.address, subscribePattern="orders-.*")
        return source.stream(startingOffsets="earliest", **self.options)

    def send(self) -> None:
        if not self.topics or self.chance.random() < 0.05:
            self.topics.append(f"orders-{len(self.topics)}")
            self.client.create_topic(self.topics[-1], PARTITIONS, **self.config)
        topic, partition = self.chance.choice(self.topics), self.chance.randrange(PARTITIONS)
        values = []
        for _ in range(self.chance.choice([1, 1, 5, 40])):
            values.append(b"%d " % self.number + self.chance.randbytes(self.chance.choice([0, 10, 2000])))
            self.number += 1
        self.client.send_many(topic, values, partition)
        self.sent[topic, partition] += values

    def batch(self) -> None:
        """A batch; some of them are planned or read, and then done again by another run of the query."""
        start, end = self.stream.start, self.stream.next_end()
        if end == start:
            return
        if self.chance.random() < 0.3:
            tasks = self.stream.reader.partitions(start, end)
            if tasks and self.chance.random() < 0.5:
                rows(self.stream.reader, tasks[:1])
            self.crash()
        tasks = self.stream.reader.partitions(start, end)
        if self.chance.random() < 0.3:
            self.housekeeping()
        if self.chance.random() < 0.1:
            self.restart()
        self.take(rows(self.stream.reader, tasks, wire=self.chance.random() < 0.2))
        self.stream.offsets.append(end)

    def take(self, found: list[Row]) -> None:
        for row in found:
            place = row["topic"], row["partition"]
            assert row["offset"] == len(self.read[place]), f"of {place}"
            self.read[place].append(row["value"])

    def crash(self) -> None:
        offsets = self.stream.offsets
        self.stream = self.query()
        self.stream.offsets = offsets

    def housekeeping(self) -> None:
        self.broker.clock.advance(self.chance.choice([1, 3600]))
        maintain(self.broker)

    def restart(self) -> None:
        if self.chance.random() < 0.5:
            self.broker.kill()
            self.broker.start()
        else:
            self.broker.restart()


@pytest.mark.parametrize("seed", range(8))
def test_every_record_is_read_once_and_in_order(seed: int, tmp_path: Path) -> None:
    chance = Random(seed)
    config = {"segment_bytes": 1 << 16, "segment_ms": 1000, "compression": chance.choice(["none", "zstd"])}
    with RunningBroker(tmp_path / "data") as broker:
        run = Run(broker, chance, **config)
        actions = [run.send, run.send, run.send, run.batch, run.batch, run.crash, run.housekeeping]
        for _ in range(STEPS):
            chance.choice(actions)()
        if chance.random() < 0.5:
            run.stream.reader.prepareForTriggerAvailableNow()
        while run.stream.next_end() != run.stream.start:
            run.batch()
        assert {place: values for place, values in run.read.items() if values} == dict(run.sent)
        assert sum(map(len, run.read.values())) == run.number
        close_pooled_clients()
