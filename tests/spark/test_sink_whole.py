"""Batches that the driver writes in one request, against a real broker and without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from penstock.errors import InvalidRequest, PartitionNotFound, RecordTooLarge
from penstock.protocols.flymq.operations import operation
from penstock.protocols.flymq.operations.spark import WriteEpoch
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark import sink_blocks
from penstock.spark.sink import Work, publish, stage, write_whole
from penstock.spark.sink_options import SinkOptions, parse_sink_options
from penstock.testing import RunningBroker
from tests.spark.sink_by_hand import schema_of, values_batch

WORK = Work("app", "run-1", 0, lasting=True, query="query-1", turn=0)


@pytest.fixture
def client(running: RunningBroker) -> FlyMQClient:
    return running.connect()


@pytest.fixture
def options(running: RunningBroker) -> SinkOptions:
    return sink_options(running, "value BINARY")


def sink_options(running: RunningBroker, columns: str) -> SinkOptions:
    given = {"penstock.bootstrap": running.address, "topic": "out", "txnAppId": "app", "txnVersion": "0"}
    return parse_sink_options(given, schema_of(columns), streaming=False)


def write(options: SinkOptions, work: Work, *batches: pa.RecordBatch) -> bool:
    """Write a batch as the driver does; whether one request was enough."""
    if write_whole(options, work, batches):
        return True
    publish(options.connection, [stage(options, work, iter(batches))])
    return False


def stored(client: FlyMQClient) -> list[bytes | None]:
    return [record.value for record in client.records("out")]


def test_a_batch_of_any_size_is_written_once_whichever_way_it_goes(options: SinkOptions, client: FlyMQClient) -> None:
    client.create_topic("out", 1)
    assert write(options, WORK, values_batch(b"a"), values_batch(b"b"))
    assert write(options, WORK, values_batch(b"again"))
    large = [values_batch(bytes(3 << 20)) for _ in range(4)]
    assert not write(options, replace(WORK, epoch=1), *large)
    assert write(options, replace(WORK, epoch=1), values_batch(b"again"))
    assert not write(options, replace(WORK, epoch=2))
    assert write(options, replace(WORK, epoch=2), values_batch(b"again"))
    assert write(options, replace(WORK, epoch=3, run_name="run-2"), values_batch(b"c"))
    assert [len(value or b"") for value in stored(client)] == [1, 1, *[3 << 20] * 4, 1]


def test_a_batch_that_takes_several_requests_is_not_laid_out_to_its_end_in_vain(
    options: SinkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out: list[int] = []
    blocks = sink_blocks._blocks

    def counted(pieces: list[sink_blocks.Rows]) -> Iterator[bytes]:
        laid_out.append(sum(map(len, pieces)))
        return blocks(pieces)

    monkeypatch.setattr(sink_blocks, "_blocks", counted)
    assert not write_whole(options, WORK, [values_batch(bytes(5 << 20)) for _ in range(6)])
    assert laid_out == [1, 1]


def test_a_broker_of_an_earlier_release_gets_its_batches_staged(
    options: SinkOptions, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.delitem(operation._DECLARED, WriteEpoch.opcode)
        assert not write(options, WORK, values_batch(b"a"))
        assert not write(options, WORK, values_batch(b"again"))
    assert write(options, WORK, values_batch(b"again"))
    assert write(options, replace(WORK, epoch=1), values_batch(b"b"))
    assert stored(client) == [b"a", b"b"]


def test_a_batch_that_was_written_is_left_out_although_its_topic_has_changed(
    running: RunningBroker, client: FlyMQClient
) -> None:
    options = sink_options(running, "partition INT, value BINARY")
    rows = pa.record_batch({"partition": pa.array([0, 1], pa.int32()), "value": pa.array([b"a", b"b"], pa.binary())})
    client.create_topic("out", 2)
    assert write(options, WORK, rows)
    client.delete_topic("out")
    assert not write(options, WORK, rows)
    assert "out" not in client.topics()
    with pytest.raises(PartitionNotFound, match="topic out has partitions 0 to 0"):
        write(options, replace(WORK, epoch=1), rows)


def test_a_record_that_is_too_large_says_how_large_it_may_be(options: SinkOptions, client: FlyMQClient) -> None:
    with pytest.raises(RecordTooLarge, match="topic out do not fit into one request: at most 33554432"):
        write(options, WORK, values_batch(bytes(33_554_432)))
    assert write(options, WORK, values_batch(b"small"))
    assert stored(client) == [b"small"]


def test_a_batch_of_another_query_under_the_same_name_is_not_left_out(
    options: SinkOptions, client: FlyMQClient
) -> None:
    assert write(options, WORK, values_batch(b"a"))
    other = replace(WORK, run_name="run-2", query="query-2")
    with pytest.raises(InvalidRequest, match="query query-1 wrote batches up to 0 under txnAppId app"):
        write(options, other, values_batch(b"other rows"))
    assert write(replace(options, replay=True), replace(other, run_name="run-3"), values_batch(b"a"))
    assert stored(client) == [b"a"]
