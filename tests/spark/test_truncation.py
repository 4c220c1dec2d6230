"""Queries over a topic that loses its tail in a power cut, without Spark: the loss is told, or reading continues at the cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from structlog.testing import capture_logs

from penstock.errors import DataLoss, OffsetOutOfRange
from penstock.log.embedded.partition import EmbeddedPartition
from penstock.protocols.flymq.operations.blocks import PartitionSpan, TopicSpans
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark.source import SliceTask
from penstock.testing import RunningBroker
from tests.log.embedded.storage import cut_log
from tests.spark.by_hand import Source, Stream, rows
from tests.spark.pooled_clients import close_pooled_clients

LENIENT = {"failOnDataLoss": "false"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "data", durability="none", topics=[{"name": "orders"}]) as broker:
        send(broker, b"a", b"b", b"c", b"d", b"e")
        yield broker
        close_pooled_clients()


@pytest.fixture
def source(broker: RunningBroker) -> Source:
    return Source(broker.address, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger="100")


def send(broker: RunningBroker, *values: bytes) -> None:
    """A block each, so that the log can be cut between any two."""
    with FlyMQClient(broker.url) as client:
        for value in values:
            client.send("orders", value)


def log_epoch(broker: RunningBroker) -> int:
    return broker.server.engine.partition("orders", 0).epoch


def cut_power(broker: RunningBroker, cut: int, *new: bytes) -> None:
    broker.kill()
    cut_log(broker.data_dir, "orders", cut)
    broker.start()
    send(broker, *new)


# -- streams ---------------------------------------------------------------------------------------------------------------


def test_a_stream_beyond_the_cut_fails_and_says_what_to_do(broker: RunningBroker, source: Source) -> None:
    """Also if the log has grown past where the query stands: nothing but the epoch tells."""
    stream = source.stream()
    stream.batch()
    cut_power(broker, 3, b"x", b"y", b"z")
    said = r"topic orders partition 0 was cut at offset 3 .* up to offset 5.*failOnDataLoss to false to continue at offset 3"
    with pytest.raises(DataLoss, match=said):
        stream.next_end()
    again = source.stream()
    again.offsets = stream.offsets
    with pytest.raises(DataLoss, match=said):
        again.next_end()


def test_a_lenient_stream_continues_at_the_cut_with_a_warning(broker: RunningBroker, source: Source) -> None:
    stream = source.stream(**LENIENT)
    stream.batch()
    cut_power(broker, 3, b"x", b"y", b"z")
    with capture_logs() as lines:
        assert stream.values() == [b"x", b"y", b"z"]
    [line] = [line for line in lines if line["event"] == "records_lost"]
    assert line["log_level"] == "warning"
    assert "was cut at offset 3" in line["reason"]
    assert stream.offsets[-1] == {
        "__epochs__": {"orders": {"0": log_epoch(broker)}},
        "__from__": {"orders": {"0": 3}},
        "__ids__": stream.offsets[0]["__ids__"],
        "__query__": stream.offsets[0]["__query__"],
        "orders": {"0": 6},
    }
    assert [row["value"] for row in stream.replay(*stream.offsets)] == [b"x", b"y", b"z"], "done again after a crash"
    assert stream.values() is None
    send(broker, b"more")
    assert stream.values() == [b"more"]


def test_a_lenient_stream_continues_at_the_cut_before_anything_is_written_there(
    broker: RunningBroker, source: Source
) -> None:
    stream = source.stream(**LENIENT)
    stream.batch()
    cut_power(broker, 3)
    assert stream.values() == []
    assert stream.offsets[-1]["__epochs__"] == {"orders": {"0": log_epoch(broker)}}
    send(broker, b"x", b"y", b"z")
    assert stream.values() == [b"x", b"y", b"z"]


def test_a_power_cut_that_took_nothing_that_was_read_is_no_loss(broker: RunningBroker, source: Source) -> None:
    stream = source.stream(maxOffsetsPerTrigger="3")
    assert stream.values() == [b"a", b"b", b"c"]
    cut_power(broker, 3)
    assert stream.values() is None
    send(broker, b"x", b"y")
    assert stream.values() == [b"x", b"y"]
    assert stream.offsets[-1]["__epochs__"] == {"orders": {"0": log_epoch(broker)}}


def test_a_batch_that_is_done_again_reads_no_records_that_took_the_place_of_its_own(
    broker: RunningBroker, source: Source
) -> None:
    stream = source.stream()
    stream.batch()
    batch = stream.reader.initialOffset(), stream.offsets[0]
    cut_power(broker, 3, b"x", b"y", b"z")
    with pytest.raises(DataLoss, match="was cut at offset 3"):
        source.stream().replay(*batch)
    lenient = source.stream(**LENIENT)
    assert [row["value"] for row in lenient.replay(*batch)] == [b"a", b"b", b"c"]
    lenient.offsets = stream.offsets
    assert lenient.values() == [b"x", b"y", b"z"], "each of them once"


@pytest.mark.parametrize("wire", [True, False])
def test_a_power_cut_between_planning_and_reading_is_a_loss_or_ends_the_batch(
    broker: RunningBroker, source: Source, wire: bool
) -> None:
    strict, lenient, short = source.stream(), source.stream(**LENIENT), source.stream(maxOffsetsPerTrigger="3")
    tasks = strict.reader.partitions(strict.start, strict.next_end())
    tasks_before_the_cut = short.reader.partitions(short.start, short.next_end())
    cut_power(broker, 3, b"x", b"y", b"z")
    with pytest.raises(DataLoss, match="was cut at offset 3"):
        rows(strict.reader, tasks, wire=wire)
    assert [row["value"] for row in rows(lenient.reader, tasks, wire=wire)] == [b"a", b"b", b"c"]
    assert [row["value"] for row in rows(short.reader, tasks_before_the_cut, wire=wire)] == [b"a", b"b", b"c"]


def test_the_first_batch_begins_at_the_cut_if_the_power_goes_before_it_is_planned_again(
    broker: RunningBroker, source: Source
) -> None:
    stream = source.stream(startingOffsets="latest", **LENIENT)
    assert stream.next_end()["orders"] == {"0": 5}
    cut_power(broker, 3, b"x", b"y", b"z")
    assert stream.values() == [b"x", b"y", b"z"]


def test_a_checkpoint_without_epochs_is_read_and_compared_with_the_end_of_the_log(
    broker: RunningBroker, source: Source
) -> None:
    """As releases wrote it that did not know epochs."""
    stream = source.stream()
    stream.batch()
    old = {key: value for key, value in stream.offsets[0].items() if key != "__epochs__"}
    cut_power(broker, 3, b"x")
    for options, expected in (({}, None), (LENIENT, [])):
        resumed = source.stream(**options)
        resumed.offsets = [dict(old)]
        if expected is None:
            with pytest.raises(DataLoss, match="ends at offset 4, and 5 was read before"):
                resumed.next_end()
        else:
            assert resumed.values() == expected
    send(broker, b"y", b"z")
    resumed = source.stream()
    resumed.offsets = [dict(old)]
    assert resumed.values() == [b"z"]
    assert resumed.offsets[-1]["__epochs__"] == {"orders": {"0": log_epoch(broker)}}


class Run:
    """A lenient query, a topic, and power cuts, in an order that follows from a seed."""

    def __init__(self, broker: RunningBroker, source: Source, chance: Random) -> None:
        self.broker = broker
        self.source = source
        self.chance = chance
        self.number = 0
        self.offsets: list[dict[str, Any]] = []
        self.seen: set[tuple[int, bytes]] = set()
        self.told = 0

    def send(self) -> None:
        self.number += 1
        send(self.broker, b"%d" % self.number)

    def batch(self) -> bool:
        """A batch of a query that was started again; done twice, sometimes with a power cut in between."""
        try:
            self.source.stream().reader.latestOffset(self.start, ReadAllAvailable())
        except DataLoss:
            self.told += 1
        stream = self.source.stream(**LENIENT)
        stream.offsets = list(self.offsets)
        start, end = stream.start, stream.next_end()
        if end == start:
            return False
        self.read(stream, start, end)
        if self.chance.random() < 0.3:
            self.cut()
            self.read(self.source.stream(**LENIENT), start, end)
        self.offsets.append(end)
        return True

    @property
    def start(self) -> dict[str, Any]:
        return self.offsets[-1] if self.offsets else self.source.stream().start

    def read(self, stream: Stream, start: dict[str, Any], end: dict[str, Any]) -> None:
        self.seen |= {(row["offset"], row["value"]) for row in stream.replay(start, end)}

    def cut(self) -> None:
        end = self.broker.connect().describe_topic("orders").partitions[0].next_offset
        cut_power(self.broker, self.chance.randint(max(0, end - 4), end - 1))
        self.send()


@pytest.mark.parametrize("seed", range(4))
def test_every_record_is_read_over_many_power_cuts(broker: RunningBroker, source: Source, seed: int) -> None:
    run = Run(broker, source, Random(seed))
    for _ in range(30):
        run.chance.choice([run.send, run.send, run.batch, run.batch, run.cut])()
    while run.batch():
        pass
    assert run.told > 0
    there = {(row["offset"], row["value"]) for row in Source(broker.address, subscribe="orders").read()}
    assert there <= run.seen


# -- batches ---------------------------------------------------------------------------------------------------------------


def test_a_batch_that_begins_at_the_offset_of_a_stream_sees_the_cut(broker: RunningBroker, source: Source) -> None:
    stream = source.stream()
    stream.batch()
    del stream.offsets[0]["__from__"]
    given: dict[str, Any] = {"startingOffsets": json.dumps(stream.offsets[0])}
    cut_power(broker, 3, b"x", b"y", b"z")
    batch = Source(broker.address, subscribe="orders", **given)
    with pytest.raises(DataLoss, match="was cut at offset 3"):
        batch.values()
    assert batch.values(failOnDataLoss="false") == [b"x", b"y", b"z"]


def test_tasks_of_a_batch_carry_the_epoch_they_were_planned_in(broker: RunningBroker) -> None:
    source = Source(broker.address, subscribe="orders")
    cut_power(broker, 3)
    [task] = source.reader().partitions()
    assert isinstance(task, SliceTask)
    assert [each.epoch for each in task.slices] == [log_epoch(broker)] != [0]


# -- what the broker says --------------------------------------------------------------------------------------------------


def test_a_plan_tells_epochs_and_cuts_and_does_not_keep_a_reader_waiting_that_is_beyond_one(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_power(broker, 3)
    current = log_epoch(broker)
    with FlyMQClient(broker.url) as client:
        for epoch, cut in ((-1, None), (0, 3), (current, None), (current + 1, 0)):
            plan = client.blocks.plan([TopicSpans("orders", [PartitionSpan(0, 5, 5, epoch=epoch)])])
            [partition] = plan.topics[0].partitions
            assert (partition.epoch, partition.cut) == (current, cut)
        monkeypatch.setattr(EmbeddedPartition, "watch", None)
        plan = client.blocks.plan([TopicSpans("orders", [PartitionSpan(0, 5, 5, epoch=0)])], wait_ms=10_000)
        assert plan.topics[0].partitions[0].cut == 3


def test_blocks_of_another_epoch_are_refused(broker: RunningBroker) -> None:
    cut_power(broker, 3)
    current = log_epoch(broker)
    with FlyMQClient(broker.url) as client:
        assert client.blocks.fetch("orders", 0, 0, epoch=current).data == client.blocks.fetch("orders", 0, 0).data
        with pytest.raises(
            OffsetOutOfRange, match=f"0 belongs to log epoch 0 of orders-0, which is in epoch {current}"
        ):
            client.blocks.fetch("orders", 0, 0, epoch=0)
