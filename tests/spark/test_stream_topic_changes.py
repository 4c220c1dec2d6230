"""A stream over a topic that gets partitions or is truncated, without Spark: asked as Spark asks it."""

from __future__ import annotations

import pytest

from penstock.errors import DataLoss
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import RunningBroker
from tests.spark.by_hand import Source


@pytest.fixture
def client(running: RunningBroker) -> FlyMQClient:
    return running.connect()


@pytest.fixture
def source(running: RunningBroker) -> Source:
    return Source(running.address, subscribe="orders")


def test_a_stream_reads_partitions_that_are_added_from_their_start(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 2)
    stream = source.stream()
    assert stream.values() == []
    client.send("orders", b"old", partition=0)
    assert stream.values() == [b"old"]
    client.add_partitions("orders", 4)
    client.send("orders", b"new", partition=3)
    client.send("orders", b"old", partition=1)
    start, end = stream.start, stream.next_end()
    assert sorted(end["orders"]) == ["0", "1", "2", "3"]
    again = source.stream().replay(start, end)
    assert sorted(row["value"] or b"" for row in again) == [b"new", b"old"], "the batch is the same if it is done again"
    assert set(stream.values() or []) == {b"new", b"old"}
    assert stream.values() is None


def test_an_idle_stream_notices_a_partition_that_is_added_while_it_waits(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders")
    stream = source.stream()
    stream.values()
    assert stream.values() is None
    client.add_partitions("orders", 2)
    client.send("orders", b"new", partition=1)
    assert stream.values() == [b"new"]


def test_truncation_that_overtakes_a_stream_is_a_loss(client: FlyMQClient, source: Source) -> None:
    client.send_many("orders", [b"0", b"1"])
    strict = source.stream(startingOffsets="earliest")
    lenient = source.stream(startingOffsets="earliest", failOnDataLoss="false")
    assert strict.values() == lenient.values() == [b"0", b"1"]
    client.send_many("orders", [b"2", b"3", b"4"])
    client.truncate_topic("orders", 4)
    with pytest.raises(DataLoss, match="retention or truncation has removed offsets 2 to 3 of orders-0"):
        strict.batch()
    assert lenient.values() == [b"4"]


def test_a_table_holds_what_a_truncation_has_left(client: FlyMQClient, source: Source) -> None:
    client.send_many("orders", [b"0", b"1", b"2"])
    client.truncate_topic("orders", 2)
    assert source.values() == [b"2"]
