"""The batch source against a real broker, without Spark: what it reads, from files and over the wire, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import (
    AccessDenied,
    AuthenticationRequired,
    DataLoss,
    InvalidRequest,
    PartitionNotFound,
    TopicNotFound,
    Unreachable,
)
from penstock.log.block import Block
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.record_headers import encode_headers
from penstock.spark import reading
from penstock.spark.planner import Slice
from penstock.spark.schema import HEADERS_TYPE
from penstock.spark.source import PenstockDataSource, PenstockReader, SliceTask
from penstock.testing import RunningBroker
from tests.spark.by_hand import Source, engine_of, maintain, rows, run, task_rows
from tests.spark.pooled_clients import close_pooled_clients

BOTH = pytest.mark.parametrize("wire", [False, True], ids=["files", "wire"])


@pytest.fixture
def client(running: RunningBroker) -> FlyMQClient:
    return running.connect()


@pytest.fixture
def source(running: RunningBroker) -> Source:
    return Source(running.address, subscribe="orders")


# -- what is read -------------------------------------------------------------------------------------------------------------


@BOTH
def test_a_topic_is_a_table(running: RunningBroker, client: FlyMQClient, source: Source, wire: bool) -> None:
    client.send("orders", b"one", key=b"k")
    client.send("orders", b"")
    first, second = source.read(wire=wire)
    now_ms = running.clock.now_ms()
    assert round(first.pop("timestamp").timestamp() * 1000) == now_ms
    assert first == {
        "key": b"k", "value": b"one", "topic": "orders", "partition": 0, "offset": 0, "timestampType": 1,
    }  # fmt: skip
    assert (second["key"], second["value"], second["offset"]) == (None, b"", 1)


@BOTH
def test_every_partition_is_read_in_order(client: FlyMQClient, source: Source, wire: bool) -> None:
    client.create_topic("orders", 3)
    client.send_many("orders", [(b"%d" % at, b"%d" % at) for at in range(300)])
    found = source.read(wire=wire)
    assert sorted(int(row["value"]) for row in found) == list(range(300))
    for partition in range(3):
        offsets = [row["offset"] for row in found if row["partition"] == partition]
        assert offsets == list(range(len(offsets)))


@BOTH
def test_several_topics_by_name_or_by_pattern(running: RunningBroker, client: FlyMQClient, wire: bool) -> None:
    for topic in ("orders-eu", "orders-us", "payments", "my-orders-eu"):
        client.send(topic, topic.encode())
    source = Source(running.address)
    assert source.values(subscribe="payments,orders-us", wire=wire) == [b"orders-us", b"payments"]
    assert source.values(subscribePattern="orders-.*", wire=wire) == [b"orders-eu", b"orders-us"]
    assert source.values(subscribePattern="nothing-.*", wire=wire) == []


def test_only_assigned_partitions_are_read(running: RunningBroker, client: FlyMQClient) -> None:
    client.create_topic("orders", 3)
    for partition in range(3):
        client.send("orders", b"%d" % partition, partition=partition)
    source = Source(running.address)
    assert source.values(assign='{"orders":[0,2]}') == [b"0", b"2"]
    with pytest.raises(PartitionNotFound, match="has partitions 0 to 2, and the option assign names more"):
        source.read(assign='{"orders":[3]}')


def test_an_empty_topic_is_an_empty_table(client: FlyMQClient, source: Source) -> None:
    client.create_topic("orders", 2)
    reader = source.reader()
    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []


@BOTH
def test_a_record_of_thirty_megabytes_comes_through(client: FlyMQClient, source: Source, wire: bool) -> None:
    large = bytes(range(256)) * (30 << 12)
    client.send("orders", b"before")
    client.send("orders", large, key=b"large")
    client.send("orders", b"after")
    assert source.values(wire=wire) == [b"before", large, b"after"]


@BOTH
def test_headers_come_only_if_asked_for(
    running: RunningBroker, client: FlyMQClient, source: Source, wire: bool
) -> None:
    client.create_topic("orders")
    append_headers(running, [("a", b"1"), ("b", None)])
    client.send("orders", b"none")
    assert "headers" not in source.read(wire=wire)[0]
    found = [row["headers"] for row in source.read(includeHeaders="true", wire=wire)]
    assert found == [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None]


@BOTH
def test_nulls_stay_nulls(running: RunningBroker, client: FlyMQClient, source: Source, wire: bool) -> None:
    client.create_topic("orders")
    append_headers(running, [], value=None)
    assert [(row["key"], row["value"]) for row in source.read(wire=wire)] == [(None, None)]


def append_headers(running: RunningBroker, pairs: list[tuple[str, bytes | None]], value: bytes | None = b"v") -> None:
    from tests.log.records import append

    async def work() -> None:
        await append(engine_of(running).partition("orders", 0), [value], headers=[encode_headers(pairs)])

    run(running, work())


@BOTH
def test_expired_records_are_not_read(running: RunningBroker, client: FlyMQClient, source: Source, wire: bool) -> None:
    client.send("orders", b"short", ttl_s=10)
    client.send("orders", b"for ever")
    reader = source.reader()
    tasks = reader.partitions()
    assert [row["value"] for row in rows(reader, tasks, wire=wire)] == [b"short", b"for ever"]
    running.clock.advance(10)
    planned = [row["value"] for row in rows(reader, tasks, wire=wire)]
    assert planned == [b"short", b"for ever"], "an attempt of a task sees what the first one saw"
    assert source.values(wire=wire) == [b"for ever"]


@BOTH
def test_compressed_topics_and_merged_segments_are_read(
    running: RunningBroker, client: FlyMQClient, source: Source, wire: bool
) -> None:
    client.create_topic("orders", compression="zstd", segment_bytes=1 << 16)
    values = [b"%06d" % at * 100 + Random(at).randbytes(600) for at in range(300)]
    for value in values:
        client.send("orders", value)
    assert source.values(wire=wire) == values
    maintain(running)
    assert list(running.data_dir.glob("topics/orders.*/0/*-*.log")), "small blocks were merged"
    assert source.values(wire=wire) == values
    assert source.values(wire=wire, startingOffsets='{"orders":{"0":137}}') == values[137:]


@BOTH
def test_compaction_leaves_gaps_and_no_alarm(
    running: RunningBroker, client: FlyMQClient, source: Source, wire: bool
) -> None:
    client.create_topic("orders", cleanup="compact", segment_bytes=1 << 16)
    for at in range(100):
        client.send("orders", b"%04d" % at * 500, key=b"%d" % (at % 3))
    maintain(running)
    found = source.read(wire=wire)
    offsets = [row["offset"] for row in found]
    assert offsets[-1] == 99
    assert len(offsets) < 100
    start = client.describe_topic("orders").partitions[0].start_offset
    assert source.read(wire=wire, startingOffsets='{"orders":{"0":0}}') == found, f"the log begins at {start}"


# -- columns --------------------------------------------------------------------------------------------------------------------


def test_a_schema_prunes_columns(client: FlyMQClient, source: Source) -> None:
    client.send("orders", b"one", key=b"k")
    two = StructType().add("offset", "long").add("value", "binary")
    assert source.read(two) == [{"offset": 0, "value": b"one"}]
    assert source.read(StructType().add("Topic", "string")) == [{"Topic": "orders"}]
    assert source.read(StructType().add("headers", HEADERS_TYPE)) == [{"headers": None}]


@pytest.mark.parametrize(
    ("name", "kind", "nullable", "found"),
    [
        ("amount", "integer", True, "the schema has a column 'amount': there are key, value, topic"),
        ("value", "string", True, "it is binary; read it so, and write CAST\\(value AS STRING\\) in the query"),
        ("offset", "integer", True, "as int: it is bigint"),
        ("offset", "long", False, "NOT NULL"),
    ],
)
def test_a_schema_the_source_does_not_have_is_refused(
    source: Source, name: str, kind: str, nullable: bool, found: str
) -> None:
    with pytest.raises(InvalidRequest, match=found):
        source.reader(StructType().add(name, kind, nullable))


def test_the_schema_is_that_of_kafkas_connector() -> None:
    assert PenstockDataSource({}).schema().simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    with_headers = PenstockDataSource({"includeHeaders": "true"}).schema()
    assert with_headers["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"


def test_filters_are_not_pushed_down() -> None:
    assert PenstockReader.pushFilters is DataSourceReader.pushFilters
    assert PenstockDataSource.name() == "penstock"


def test_spark_finds_the_source_by_itself() -> None:
    import pyspark_penstock

    assert pyspark_penstock.DefaultSource is PenstockDataSource


# -- from where to where ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def hours(running: RunningBroker, client: FlyMQClient) -> int:
    """Ten records in each of two partitions, one an hour; returns the time of the first, in ms."""
    client.create_topic("orders", 2)
    first_ms = running.clock.now_ms()
    for hour in range(10):
        for partition in range(2):
            client.send("orders", b"%d" % hour, partition=partition)
        running.clock.advance(3600)
    return first_ms


def offsets(found: list[dict[str, Any]]) -> dict[int, list[int]]:
    return {p: [row["offset"] for row in found if row["partition"] == p] for p in range(2)}


@pytest.mark.usefixtures("hours")
def test_offsets_bound_a_batch(source: Source) -> None:
    found = source.read(startingOffsets='{"orders":{"0":3,"1":-2}}', endingOffsets='{"orders":{"0":5,"1":-1}}')
    assert offsets(found) == {0: [3, 4], 1: list(range(10))}
    assert offsets(source.read(endingOffsets='{"orders":{"0":0,"1":1}}')) == {0: [], 1: [0]}


def test_times_bound_a_batch(hours: int, source: Source) -> None:
    hour_ms = 3_600_000
    found = source.read(startingTimestamp=str(hours + 2 * hour_ms), endingTimestamp=str(hours + 4 * hour_ms))
    assert offsets(found) == {0: [2, 3], 1: [2, 3]}
    found = source.read(
        startingOffsetsByTimestamp=f'{{"orders":{{"0":{hours + 1},"1":{hours + 9 * hour_ms}}}}}',
        endingOffsetsByTimestamp=f'{{"orders":{{"0":{hours + hour_ms + 1},"1":{hours + 99 * hour_ms}}}}}',
    )
    assert offsets(found) == {0: [1], 1: [9]}
    assert source.read(startingTimestamp=str(hours + 5 * hour_ms), endingTimestamp=str(hours)) == []
    assert len(source.read(startingTimestamp="0", endingTimestamp=str((1 << 53) - 1))) == 20


def test_a_time_that_no_record_is_as_late_as(hours: int, source: Source) -> None:
    never = str(hours + 99 * 3_600_000)
    with pytest.raises(
        InvalidRequest, match=r"orders-0 has no record at or after .*startingOffsetsByTimestampStrategy"
    ):
        source.read(startingTimestamp=never)
    assert source.read(startingTimestamp=never, startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.usefixtures("hours")
@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"startingOffsets": '{"orders":{"0":3}}'}, "must name every partition that is read: orders-1 is missing"),
        ({"startingOffsets": '{"orders":{"0":3,"1":0,"2":0}}'}, "names orders-2, which the query does not read"),
        ({"endingOffsets": '{"orders":{"0":3,"1":0},"b":{"0":1}}'}, "names b-0, which the query does not read"),
        ({"startingOffsets": '{"orders":{"0":11,"1":0}}'}, "offset 11 of orders-0 lies beyond its end, which is 10"),
        ({"endingOffsets": '{"orders":{"0":11,"1":0}}'}, "option endingOffsets: offset 11 of orders-0"),
        (
            {"startingOffsets": '{"orders":{"0":5,"1":0}}', "endingOffsets": '{"orders":{"0":4,"1":0}}'},
            "startingOffsets is 5 for orders-0 and endingOffsets 4: begin before the end",
        ),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":3}}'}, "option startingOffsetsByTimestamp must name every"),
    ],
)
def test_offsets_that_cannot_be_are_refused(source: Source, options: dict[str, Any], found: str) -> None:
    with pytest.raises(InvalidRequest, match=found):
        source.read(**options)


def test_a_batch_stays_what_it_was_when_it_was_planned(client: FlyMQClient, source: Source) -> None:
    client.send("orders", b"one")
    reader = source.reader()
    tasks = reader.partitions()
    client.send("orders", b"two")
    assert [row["value"] for row in rows(reader, tasks)] == [b"one"]
    assert source.values() == [b"one", b"two"]


# -- tasks ------------------------------------------------------------------------------------------------------------------------


def test_tasks_are_as_many_and_as_small_as_was_asked(client: FlyMQClient, source: Source) -> None:
    values = [b"%05d" % at for at in range(5000)]
    for at in range(0, 5000, 500):
        client.send_many("orders", values[at : at + 500])
    assert len(source.reader().partitions()) == 1
    bounds: list[dict[str, Any]] = [
        {"minPartitions": "7"},
        {"maxRecordsPerPartition": "333"},
        {"maxBytesPerPartition": "10000"},
        {"minPartitions": "3", "maxRecordsPerPartition": "1000"},
    ]
    for options in bounds:
        reader = source.reader(**options)
        tasks = reader.partitions()
        assert len(tasks) >= 3
        assert [row["value"] for row in rows(reader, tasks)] == values
        assert [row["value"] for row in rows(reader, tasks, wire=True)] == values


# -- files come and go ------------------------------------------------------------------------------------------------------------


def fill_segments(client: FlyMQClient, **config: Any) -> list[bytes]:
    """Some hundred records in segments of 64 KiB."""
    client.create_topic("orders", segment_bytes=1 << 16, **config)
    values = [b"%03d" % at * 1000 for at in range(200)]
    for at in range(0, 200, 5):
        client.send_many("orders", values[at : at + 5])
    return values


def test_what_was_planned_from_files_that_were_replaced_is_read_all_the_same(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    client.create_topic("orders", segment_bytes=1 << 16)
    values = [b"%03d" % at * 100 for at in range(800)]
    for value in values:
        client.send("orders", value)
    reader = source.reader(maxBytesPerPartition="20000")
    tasks = reader.partitions()
    before = set(running.data_dir.glob("topics/orders.*/0/*.log"))
    maintain(running)
    assert before - set(running.data_dir.glob("topics/orders.*/0/*.log")), "files were replaced"
    assert [row["value"] for row in rows(reader, tasks)] == values


def test_a_file_that_goes_while_it_is_read_costs_nothing_and_doubles_nothing(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    values = fill_segments(client)
    reader = source.reader()
    [task] = reader.partitions()
    found: list[bytes] = []
    for row in task_rows(reader, task):
        if not found:
            maintain(running)
        found.append(row["value"])
    assert found == values


def test_a_damaged_file_is_the_brokers_to_answer_for(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    """The broker reads the last segment from memory, so it has the records that the file has lost."""
    client.send_many("orders", [b"one", b"two"])
    [path] = running.data_dir.glob("topics/orders.*/0/*.log")
    with path.open("r+b") as file:
        file.seek(70)
        file.write(b"\xff\xff")
    assert source.values() == [b"one", b"two"]


def test_files_are_read_only_where_the_broker_runs_on_them(
    running: RunningBroker, client: FlyMQClient, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.send_many("orders", [b"one", b"two"])
    reader = source.reader()
    [task] = reader.partitions()
    assert isinstance(task, SliceTask)
    opened: list[Path] = []
    real = reading.file_blocks

    def noted(path: Path, each: Slice) -> Iterator[Block]:
        opened.append(path)
        return real(path, each)

    monkeypatch.setattr(reading, "file_blocks", noted)
    assert len(rows(reader, [task])) == 2
    assert len(opened) == 1
    copy = tmp_path / "copy"
    shutil.copytree(task.files.directory, copy)
    (copy / "LOCK").write_text("another run")
    for files in (
        task.files._replace(directory=str(copy)),
        task.files._replace(directory=str(tmp_path / "nothing")),
        task.files._replace(token="0" * 32),
        task.files._replace(token=""),
    ):
        task.files = files
        assert len(rows(reader, [task])) == 2
    assert len(opened) == 1, "whatever has no proof is read over the wire"


def test_a_broker_that_restarts_between_planning_and_reading(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    values = fill_segments(client)
    reader = source.reader(maxBytesPerPartition="100000")
    tasks = reader.partitions()
    found = [row["value"] for row in rows(reader, tasks[:2])]
    running.restart()
    found += [row["value"] for row in rows(reader, tasks[2:])]
    assert found == values


# -- what is gone -----------------------------------------------------------------------------------------------------------------


def retain(running: RunningBroker) -> int:
    """Let retention remove all but the last segments; returns where the log begins then."""
    running.clock.advance(3600)
    maintain(running)
    return running.connect().describe_topic("orders").partitions[0].start_offset


@BOTH
def test_retention_that_overtakes_a_batch_is_a_loss_that_is_told(
    running: RunningBroker, client: FlyMQClient, source: Source, wire: bool
) -> None:
    values = fill_segments(client, retention_ms=60_000)
    strict, lenient = source.reader(), source.reader(failOnDataLoss="false")
    tasks = strict.partitions()
    start = retain(running)
    assert start > 0
    with pytest.raises(
        DataLoss, match=rf"retention or truncation has removed offsets 0 to {start - 1} of orders-0 .*failOnDataLoss"
    ):
        rows(strict, tasks, wire=wire)
    assert [row["value"] for row in rows(lenient, tasks, wire=wire)] == values[start:]


def test_a_start_that_retention_has_passed_is_a_loss_and_earliest_is_not(
    running: RunningBroker, client: FlyMQClient, source: Source
) -> None:
    values = fill_segments(client, retention_ms=60_000)
    start = retain(running)
    assert source.values() == values[start:]
    at_zero: dict[str, Any] = {"startingOffsets": '{"orders":{"0":0}}'}
    with pytest.raises(DataLoss, match="retention or truncation has removed offsets 0 to"):
        source.read(**at_zero)
    assert source.values(**at_zero, failOnDataLoss="false") == values[start:]
    assert source.values(startingOffsets=f'{{"orders":{{"0":{start}}}}}') == values[start:]


@pytest.mark.parametrize("config", [{}, {"retention_ms": 3_600_000}], ids=["kept", "retained"])
def test_records_that_expired_are_no_loss(
    running: RunningBroker, client: FlyMQClient, source: Source, config: dict[str, Any]
) -> None:
    client.create_topic("orders", segment_bytes=1 << 16, **config)
    for _ in range(4):
        client.send("orders", b"x" * 40_000, ttl_s=1)
    client.send("orders", b"last" * 10_000)
    client.send("orders", b"next")
    reader = source.reader()
    tasks = reader.partitions()
    running.clock.advance(10)
    maintain(running)
    running.restart()
    assert client.fetch("orders", 0, 0).records[0].offset > 0, "the expired records are gone from the disk"
    assert [row["value"] for row in rows(reader, tasks)][-1] == b"next"
    assert source.values(startingOffsets='{"orders":{"0":0}}')[-1] == b"next"


@BOTH
def test_records_at_the_end_that_expired_are_no_loss_either(
    running: RunningBroker, client: FlyMQClient, source: Source, wire: bool
) -> None:
    client.create_topic("orders", segment_bytes=1 << 16, segment_ms=1000)
    client.send("orders", b"first" * 20_000)
    for _ in range(4):
        client.send("orders", b"x" * 40_000, ttl_s=1)
    reader = source.reader(maxRecordsPerPartition="1")
    tasks = reader.partitions()
    assert len(tasks) == 5
    running.clock.advance(10)
    maintain(running)
    running.restart()  # what it had in memory is forgotten
    described = client.describe_topic("orders").partitions[0]
    assert (described.start_offset, described.next_offset) == (0, 5)
    assert len(client.fetch("orders", 0, 0).records) == 1
    assert [row["offset"] for row in rows(reader, tasks, wire=wire)] == [0]
    assert len(source.read(wire=wire)) == 1


@BOTH
def test_a_topic_that_is_deleted_or_created_again_under_a_batch(
    client: FlyMQClient, source: Source, wire: bool
) -> None:
    client.send("orders", b"old")
    strict, lenient = source.reader(), source.reader(failOnDataLoss="false")
    tasks = strict.partitions()
    client.delete_topic("orders")
    with pytest.raises(DataLoss, match="topic orders was deleted while it was read"):
        rows(strict, tasks, wire=wire)
    client.send("orders", b"new")
    with pytest.raises(DataLoss, match="topic orders was deleted while it was read"):
        rows(strict, tasks, wire=wire)
    assert rows(lenient, tasks, wire=wire) == []


# -- what is wrong --------------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_named(source: Source) -> None:
    with pytest.raises(TopicNotFound, match=r"topic not found: orders .*penstock topic create"):
        source.read()


def test_a_broker_that_is_not_there_is_named_with_what_to_do() -> None:
    with pytest.raises(Unreachable, match=r"127.0.0.1:1: .*penstock serve.*penstock.bootstrap"):
        Source("127.0.0.1:1", subscribe="orders").read()


def test_who_may_not_read_may_not_read_by_blocks_either() -> None:
    with RunningBroker(listeners={"flymq": {"auth": "required"}}, dev=True) as broker:
        admin = FlyMQClient(f"flymq://admin:admin@{broker.address}")
        admin.send("orders", b"one")
        admin.access.create_user("ann", "correct horse", ["guest"])
        admin.close()
        source = Source(broker.address, subscribe="orders")
        with pytest.raises(AuthenticationRequired):
            source.read()
        credentials: dict[str, Any] = {"penstock.user": "ann", "penstock.password": "correct horse"}
        with pytest.raises(AccessDenied):
            source.read(**credentials)
        admin_credentials: dict[str, Any] = {"penstock.user": "admin", "penstock.password": "admin"}
        assert source.values(**admin_credentials) == [b"one"]
        close_pooled_clients()
