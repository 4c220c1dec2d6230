"""The sink against a real broker, without Spark: writers made, pickled and asked as Spark does it, with everything going wrong in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pyarrow as pa
import pytest
import structlog.testing

from penstock.errors import (
    InvalidRequest,
    PartitionNotFound,
    ProducerFenced,
    RecordTooLarge,
    TransactionNotFound,
    Unreachable,
)
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark import sink
from penstock.spark.source import PenstockDataSource
from penstock.testing import RunningBroker
from tests.spark.sink_by_hand import Query, schema_of, values_batch


@pytest.fixture
def client(running: RunningBroker) -> FlyMQClient:
    return running.connect()


@pytest.fixture(autouse=True, params=["staged", "with the commit"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the records of a task reach the broker."""
    if request.param == "staged":
        monkeypatch.setattr(sink, "MESSAGE_BYTES_MAX", 0)
    return str(request.param)


@pytest.fixture
def query(running: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> Query:
    return Query(monkeypatch, running.address, topic="out")


def stored(client: FlyMQClient, topic: str = "out") -> list[bytes]:
    return sorted(record.value or b"" for record in client.records(topic)) if topic in client.topics() else []


# -- streams ------------------------------------------------------------------------------------------------------------------


def test_a_batch_is_there_with_its_commit_and_not_before(query: Query, client: FlyMQClient, way: str) -> None:
    client.create_topic("out", 1)
    one = query.task(0, [values_batch(b"a", b"b"), values_batch(b"c")])
    two = query.task(0, [values_batch(b"d")], partition=1)
    assert (one.records, one.requests, len(one.unstaged)) == ((3, 1, 0) if way == "staged" else (3, 0, 1))
    assert stored(client) == []
    query.commit(0, one, two)
    assert stored(client) == [b"a", b"b", b"c", b"d"]


def test_of_a_task_that_ran_twice_only_the_attempt_that_won_counts(query: Query, client: FlyMQClient) -> None:
    query.task(0, [values_batch(b"loser")])
    winner = query.task(0, [values_batch(b"winner")])
    query.commit(0, winner)
    assert stored(client) == [b"winner"]


def test_a_batch_that_comes_again_after_its_commit_writes_nothing(query: Query, client: FlyMQClient) -> None:
    query.commit(0, query.task(0, [values_batch(b"a")]))
    query.run_id = "run-2"
    left = iter([values_batch(b"again")] * 3)
    message = query.task(0, left)
    assert (message.requests, next(left, None)) == (0, None), "its rows are taken all the same"
    with structlog.testing.capture_logs() as logged:
        query.commit(0, message)
        query.commit(1, query.task(1, [values_batch(b"b")]))
    (said,) = logged
    assert (said["event"], said["epoch"]) == ("batch_skipped", 0)
    assert stored(client) == [b"a", b"b"]


def test_a_commit_that_is_tried_again_after_it_was_done_is_done_once(query: Query, client: FlyMQClient) -> None:
    message = query.task(0, [values_batch(b"a")])
    query.commit(0, message)
    query.commit(0, message)
    assert stored(client) == [b"a"]


@pytest.mark.parametrize("way", ["staged"], indirect=True)
def test_an_abort_after_a_commit_undoes_nothing_and_before_it_drops_what_was_staged(
    query: Query, client: FlyMQClient
) -> None:
    message = query.task(0, [values_batch(b"a")])
    query.commit(0, message)
    query.abort(0, message)
    assert stored(client) == [b"a"]
    failed = query.task(1, [values_batch(b"b")])
    query.abort(1, None, failed)
    with pytest.raises(TransactionNotFound):
        query.commit(1, failed)
    query.abort(1, None, None)
    query.commit(1, query.task(1, [values_batch(b"b again")]))
    assert stored(client) == [b"a", b"b again"]


def test_what_a_task_wrote_before_it_failed_is_not_there_when_its_next_attempt_wins(
    query: Query, client: FlyMQClient
) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield values_batch(bytes(5 << 20))  # enough to be sent at once
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError):
        query.task(0, rows())
    query.commit(0, query.task(0, [values_batch(b"a")]))
    assert stored(client) == [b"a"]


def test_a_commit_that_does_not_hear_of_every_task_publishes_nothing(query: Query, client: FlyMQClient) -> None:
    message = query.task(0, [values_batch(b"a")])
    with pytest.raises(InvalidRequest, match="1 of 2 tasks did not say what they wrote"):
        query.commit(0, message, None)
    with pytest.raises(
        TransactionNotFound, match=r"2 names .*query-1 run 1 epoch 0, query-1 run 2 epoch 0.*write the batch again"
    ):
        query.commit(0, message, dataclasses.replace(message, run=2))
    assert stored(client) == []
    query.commit(0, message)
    assert stored(client) == [b"a"]


def test_an_older_run_of_the_query_is_fenced(query: Query, client: FlyMQClient) -> None:
    late = query.task(0, [values_batch(b"late")])
    query.run_id = "run-2"
    message = query.task(0, [values_batch(b"new")])
    with pytest.raises(ProducerFenced):
        query.commit(0, late)
    query.commit(0, message)
    query.run_id = "run-1"
    with pytest.raises(ProducerFenced):
        query.task(1, [values_batch(b"too late")])
    assert stored(client) == [b"new"]


def test_a_batch_without_records_is_committed_too(query: Query, client: FlyMQClient) -> None:
    query.commit(0, query.task(0, []), query.task(0, [values_batch()], partition=1))
    query.commit(1, query.task(1, []))
    query.commit(2)
    query.run_id = "run-2"
    for epoch in (0, 1):
        query.commit(epoch, query.task(epoch, [values_batch(b"late")]))
    assert stored(client) == []


def test_queries_do_not_stand_in_each_others_way(query: Query, client: FlyMQClient) -> None:
    query.commit(0, query.task(0, [values_batch(b"a")]))
    query.query_id = "query-2"
    query.commit(0, query.task(0, [values_batch(b"b")]))
    assert stored(client) == [b"a", b"b"]


def test_a_name_of_its_own_outlives_the_checkpoint(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(monkeypatch, running.address, topic="out", txnAppId="nightly")
    query.commit(0, query.task(0, [values_batch(b"a")]))
    query.query_id, query.run_id = "query-2", "run-2"
    with pytest.raises(InvalidRequest, match="query query-1 wrote batches up to 0 under txnAppId nightly"):
        query.task(0, [values_batch(b"other rows, which must not be left out")])
    query = Query(monkeypatch, running.address, topic="out", txnAppId="nightly", txnReplay="true")
    query.query_id, query.run_id = "query-3", "run-3"
    query.commit(0, query.task(0, [values_batch(b"a")]))
    query.commit(1, query.task(1, [values_batch(b"b")]))
    assert stored(client) == [b"a", b"b"]
    # From now on it is that query's: a batch that it repeats is its own.
    query = Query(monkeypatch, running.address, topic="out", txnAppId="nightly")
    query.query_id, query.run_id = "query-3", "run-4"
    query.commit(1, query.task(1, [values_batch(b"b")]))
    assert stored(client) == [b"a", b"b"]


def test_a_write_without_tasks_is_written_all_the_same(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(monkeypatch, running.address, topic="out", txnAppId="job", txnVersion="5")
    query.batch().commit([])
    for version, value in ((5, b"late"), (6, b"next")):
        query = Query(monkeypatch, running.address, topic="out", txnAppId="job", txnVersion=str(version))
        writer = query.batch()
        writer.commit([query.task(None, [values_batch(value)], writer=writer)])
    Query(monkeypatch, running.address, topic="out").batch().commit([])
    assert stored(client) == [b"next"]


def test_what_does_not_come_from_a_micro_batch_is_refused(query: Query) -> None:
    with pytest.raises(InvalidRequest, match="use a micro-batch trigger"):
        query.task(None, [values_batch(b"a")])


# -- batches ------------------------------------------------------------------------------------------------------------------


def test_a_batch_job_is_published_by_its_commit_and_leaves_nothing_behind(query: Query, client: FlyMQClient) -> None:
    writer = query.batch()
    messages = [
        query.task(None, [values_batch(b"%d" % number)], partition=number, writer=writer) for number in range(3)
    ]
    assert stored(client) == []
    writer.commit(messages)
    writer.commit(messages)
    writer.abort(messages)
    assert stored(client) == [b"0", b"1", b"2"]


def test_each_batch_job_writes_again(query: Query, client: FlyMQClient) -> None:
    for _ in range(2):
        writer = query.batch()
        writer.commit([query.task(None, [values_batch(b"a")], writer=writer)])
    assert stored(client) == [b"a", b"a"]


def test_a_batch_job_that_is_given_up_needs_no_messages_for_it(query: Query, client: FlyMQClient) -> None:
    writer = query.batch()
    message = query.task(None, [values_batch(b"a")], writer=writer)
    writer.abort([None, None])
    with pytest.raises(ProducerFenced):
        writer.commit([message])
    assert stored(client) == []


def test_a_numbered_batch_job_is_done_once(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("1", "1", "3", "2"):
        query = Query(monkeypatch, running.address, topic="out", txnAppId="job", txnVersion=version)
        writer = query.batch()
        writer.commit([query.task(None, [values_batch(version.encode())], writer=writer)])
    assert stored(client) == [b"1", b"3"]


@pytest.mark.parametrize("way", ["staged"], indirect=True)
def test_a_numbered_batch_job_that_is_given_up_is_dropped(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(monkeypatch, running.address, topic="out", txnAppId="job", txnVersion="4")
    writer = query.batch()
    message = query.task(None, [values_batch(b"4")], writer=writer)
    writer.abort([message])
    with pytest.raises(TransactionNotFound):
        writer.commit([message])
    assert stored(client) == []


def test_inside_foreach_batch_a_named_write_is_numbered_by_its_batch(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(monkeypatch, running.address, topic="out", txnAppId="orders")
    other = Query(monkeypatch, running.address, topic="out", txnAppId="totals")
    for _ in range(2):
        for each, value in ((query, b"order"), (other, b"total")):
            writer = each.batch()
            writer.commit([each.task(0, [values_batch(value)], writer=writer)])
    assert stored(client) == [b"order", b"total"]
    with pytest.raises(InvalidRequest, match="txnAppId is set without txnVersion"):
        query.task(None, [values_batch(b"a")], writer=query.batch())


def test_a_topic_is_not_overwritten_but_complete_mode_adds_to_it(running: RunningBroker) -> None:
    source = PenstockDataSource({"penstock.bootstrap": running.address, "topic": "out"})
    with pytest.raises(InvalidRequest, match="a topic cannot be overwritten"):
        source.writer(schema_of("value BINARY"), True)
    source.streamWriter(schema_of("value BINARY"), True)


# -- what is written ----------------------------------------------------------------------------------------------------------


def test_records_go_where_every_other_client_would_send_them(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [b"key-%d" % number for number in range(50)]
    for topic in ("out", "reference"):
        client.create_topic(topic, 7)
    client.send_many("reference", [(key, b"v") for key in keys])
    query = Query(monkeypatch, running.address, "key BINARY, value BINARY, headers HEADERS", topic="out")
    headers = pa.array([[("h", b"1")]] * len(keys), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array([b"v"] * len(keys), pa.binary()),
        "headers": headers,
    }
    query.commit(0, query.task(0, [pa.record_batch(columns)]))
    placed = [{record.key: record.partition for record in client.records(topic)} for topic in ("out", "reference")]
    assert placed[0] == placed[1]


def test_a_topic_that_is_missing_is_created_with_one_partition(query: Query, client: FlyMQClient) -> None:
    query.commit(0, query.task(0, [values_batch(b"a")]))
    assert len(client.describe_topic("out").partitions) == 1


def test_rows_may_name_their_topics(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(monkeypatch, running.address, "topic STRING, value BINARY")
    rows = pa.record_batch({"topic": pa.array(["a", "b", "a"]), "value": pa.array([b"1", b"2", b"3"], pa.binary())})
    query.commit(0, query.task(0, [rows]))
    assert (stored(client, "a"), stored(client, "b")) == ([b"1", b"3"], [b"2"])


def test_a_record_of_thirty_megabytes_is_written(query: Query, client: FlyMQClient) -> None:
    query.commit(0, query.task(0, [values_batch(b"small", bytes(30_000_000), b"small")]))
    assert [len(record.value or b"") for record in client.records("out")] == [5, 30_000_000, 5]


def test_a_record_that_is_too_large_says_how_large_it_may_be(query: Query, client: FlyMQClient) -> None:
    with pytest.raises(RecordTooLarge, match="at most 33554432"):
        query.task(0, [values_batch(b"small", bytes(33_554_432))])
    query.commit(0, query.task(0, [values_batch(b"small")]))
    assert stored(client) == [b"small"]


def test_a_row_that_cannot_be_written_fails_its_task_and_nothing_is_there(
    running: RunningBroker, client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(monkeypatch, running.address, "partition INT, value BINARY", topic="out")
    rows = pa.record_batch({"partition": pa.array([0, 5], pa.int32()), "value": pa.array([b"1", b"2"], pa.binary())})
    with pytest.raises(PartitionNotFound):
        query.task(0, [rows])
    query.abort(0, None)
    assert stored(client) == []


def test_a_broker_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "RECONNECT_S_MAX", 0.0)
    query = Query(monkeypatch, "127.0.0.1:1", topic="out")
    with pytest.raises(Unreachable, match=r"set the option penstock\.bootstrap"):
        query.task(0, [values_batch(b"a")])
