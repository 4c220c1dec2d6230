"""Small batches, whose records travel with the messages of their tasks and come with the commit: against a real broker, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import InvalidRequest, PartitionNotFound, RecordTooLarge, TopicNotFound, ValidationFailed
from penstock.protocols.flymq.client.exchanges import Channel
from penstock.protocols.flymq.operations.operation import Operation
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark import sink_blocks
from penstock.spark.sink import MESSAGE_BYTES_MAX, StagedMessage, Work, publish, stage
from penstock.spark.sink_options import SinkOptions, parse_sink_options
from penstock.testing import RunningBroker
from tests.spark.sink_by_hand import Query, schema_of, values_batch

WORK = Work("app", "run-1", 0, lasting=True, query="query-1", turn=0, message_bytes_max=4 << 20)


@pytest.fixture
def client(running: RunningBroker) -> FlyMQClient:
    client = running.connect()
    client.create_topic("out", 1)
    return client


@pytest.fixture
def options(running: RunningBroker) -> SinkOptions:
    return sink_options(running, "value BINARY")


def sink_options(running: RunningBroker, columns: str, **more: str) -> SinkOptions:
    given = {"penstock.bootstrap": running.address, "topic": "out", "txnAppId": "app", "txnVersion": "0", **more}
    return parse_sink_options(given, schema_of(columns), streaming=False)


def write(options: SinkOptions, work: Work, *batches: pa.RecordBatch) -> StagedMessage:
    message = stage(options, work, iter(batches))
    publish(options.connection, [message])
    return message


def stored(client: FlyMQClient, topic: str = "out") -> list[bytes | None]:
    return [record.value for record in client.records(topic)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests of all clients, in order."""
    names: list[str] = []
    ask = Channel.ask

    def noted(channel: Channel, request: Operation[Any], **more: Any) -> Any:
        names.append(request.opcode_name)
        return ask(channel, request, **more)

    monkeypatch.setattr(Channel, "ask", noted)
    return names


def test_a_small_batch_takes_a_request_of_each_task_and_one_of_its_commit(
    running: RunningBroker, client: FlyMQClient, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(monkeypatch, running.address, topic="out")
    for epoch in range(2):
        asked.clear()
        messages = [query.task(epoch, [values_batch(b"%d" % task)], partition=task) for task in range(3)]
        assert stored(client) == [b"0", b"1", b"2"] * epoch
        query.commit(epoch, *messages)
        assert asked == [*["BEGIN_RUN"] * 3, "STAGE_COMMIT"]
    assert stored(client) == [b"0", b"1", b"2"] * 2


def test_tasks_send_less_the_more_there_are(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(monkeypatch, running.address, topic="out")
    rows = [values_batch(bytes(MESSAGE_BYTES_MAX // 10))]
    messages = [query.task(0, rows, partition=task) for task in range(12)]
    assert [len(message.unstaged) for message in messages] == [1] * 9 + [0] * 3
    assert [message.requests for message in messages] == [0] * 9 + [1] * 3
    query.commit(0, *messages)
    assert len(stored(client)) == 12
    every = range(100_000)
    assert sum(MESSAGE_BYTES_MAX // (task + 1) for task in every if MESSAGE_BYTES_MAX // (task + 1) > 1024) < 4 << 20


def test_rows_for_several_topics_come_with_one_commit(
    running: RunningBroker, client: FlyMQClient, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_topic("a", 2)
    client.create_topic("b", 1)
    query = Query(monkeypatch, running.address, "topic STRING, value BINARY")
    names, values = ["a", "b", "a"], [b"1", b"2", b"3"]
    rows = pa.record_batch({"topic": pa.array(names), "value": pa.array(values, pa.binary())})
    asked.clear()
    query.commit(0, query.task(0, [rows]))
    assert asked == [*["BEGIN_RUN"] * 3, "STAGE_COMMIT"]
    assert (stored(client, "a"), stored(client, "b")) == ([b"1", b"3"], [b"2"])
    missing = pa.record_batch({"topic": pa.array(["a", "new"]), "value": pa.array([b"4", b"5"], pa.binary())})
    query.commit(1, query.task(1, [missing]))
    assert (stored(client, "a"), stored(client, "new")) == ([b"1", b"3", b"4"], [b"5"])


def test_a_batch_of_any_size_is_written_once_whichever_way_it_goes(options: SinkOptions, client: FlyMQClient) -> None:
    assert write(options, WORK, values_batch(b"a"), values_batch(b"b")).unstaged
    assert not write(options, WORK, values_batch(b"again")).unstaged, "it was committed"
    large = [values_batch(bytes(3 << 20)) for _ in range(4)]
    assert write(options, replace(WORK, epoch=1), *large).requests == 2
    write(options, replace(WORK, epoch=1), values_batch(b"again"))
    write(options, replace(WORK, epoch=2))
    write(options, replace(WORK, epoch=2), values_batch(b"again"))
    assert write(options, replace(WORK, epoch=3, run_name="run-2"), values_batch(b"c")).unstaged
    assert [len(value or b"") for value in stored(client)] == [1, 1, *[3 << 20] * 4, 1]


def test_a_message_that_has_no_room_for_all_records_has_none(options: SinkOptions, client: FlyMQClient) -> None:
    few = replace(WORK, message_bytes_max=2048)
    message = stage(options, few, iter([values_batch(bytes(500)), values_batch(bytes(500))]))
    assert (message.requests, len(message.unstaged)) == (1, 0)
    publish(options.connection, [message])
    assert [len(value or b"") for value in stored(client)] == [500, 500]


def test_records_of_a_large_batch_are_staged_as_they_are_laid_out(
    options: SinkOptions, client: FlyMQClient, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    laid_out: list[int] = []
    blocks = sink_blocks._blocks

    def counted(pieces: list[sink_blocks.Rows]) -> Iterator[bytes]:
        laid_out.append(asked.count("STAGE"))
        return blocks(pieces)

    monkeypatch.setattr(sink_blocks, "_blocks", counted)
    write(options, WORK, *[values_batch(bytes(5 << 20)) for _ in range(3)])
    assert laid_out == [0, 1, 2]


def test_a_batch_that_was_written_is_left_out_although_its_topic_is_gone(
    options: SinkOptions, client: FlyMQClient
) -> None:
    write(options, WORK, values_batch(b"a"))
    client.delete_topic("out")
    write(options, WORK, values_batch(b"a"))
    assert "out" not in client.topics()
    write(options, replace(WORK, epoch=1), values_batch(b"b"))
    assert stored(client) == [b"b"]


def test_a_topic_that_is_created_again_before_the_commit_gets_nothing_of_the_batch(
    running: RunningBroker, client: FlyMQClient
) -> None:
    options = sink_options(running, "partition INT, value BINARY")
    rows = pa.record_batch({"partition": pa.array([0], pa.int32()), "value": pa.array([b"a"], pa.binary())})
    message = stage(options, WORK, iter([rows]))
    client.delete_topic("out")
    client.create_topic("out", 2)
    with pytest.raises(
        TopicNotFound, match="out was deleted after records were laid out for it; write the epoch again"
    ):
        publish(options.connection, [message])
    assert stored(client) == []
    write(options, WORK, rows)
    assert stored(client) == [b"a"]
    wrong = pa.record_batch({"partition": pa.array([2], pa.int32()), "value": pa.array([b"b"], pa.binary())})
    with pytest.raises(PartitionNotFound, match="topic out has partitions 0 to 1"):
        write(options, replace(WORK, epoch=1), wrong)


def test_a_record_that_does_not_fit_its_schema_fails_the_commit_and_leaves_the_batch_open(
    options: SinkOptions, client: FlyMQClient
) -> None:
    client.schemas.register("number", '{"type": "integer"}')
    client.create_topic("numbers", 1, schema="number")
    options = replace(options, topic="numbers")
    with pytest.raises(ValidationFailed):
        write(options, WORK, values_batch(b"1", b"one"))
    assert stored(client, "numbers") == []
    write(options, WORK, values_batch(b"1"))
    assert stored(client, "numbers") == [b"1"]


def test_a_record_that_is_too_large_says_how_large_it_may_be(options: SinkOptions, client: FlyMQClient) -> None:
    with pytest.raises(RecordTooLarge, match="topic out do not fit into one request: at most 33554432"):
        write(options, WORK, values_batch(bytes(33_554_432)))
    write(options, WORK, values_batch(b"small"))
    assert stored(client) == [b"small"]


def test_a_batch_of_another_query_under_the_same_name_is_not_left_out(
    options: SinkOptions, client: FlyMQClient
) -> None:
    write(options, WORK, values_batch(b"a"))
    other = replace(WORK, run_name="run-2", query="query-2")
    with pytest.raises(InvalidRequest, match="query query-1 wrote batches up to 0 under txnAppId app"):
        write(options, other, values_batch(b"other rows"))
    write(replace(options, replay=True), replace(other, run_name="run-3"), values_batch(b"a"))
    assert stored(client) == [b"a"]
