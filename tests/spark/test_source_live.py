"""The source inside Spark: batches, streams and SQL against a broker process. What needs no Spark is in `test_source` and `test_stream`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

import penstock.spark
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess, RunningBroker
from tests.log.embedded.storage import cut_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader

FreshTopic = Callable[..., str]
PUBLISH_S_MAX = 60


class Table:
    """What a stream has written, in memory."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self.name = name.replace("-", "_")

    def values(self) -> list[str]:
        rows = self._spark.table(self.name).collect()
        return [bytes(row["value"]).decode() for row in sorted(rows, key=lambda row: (row["topic"], row["offset"]))]


class Query:
    """A stream from topics to memory, run as often as a test likes over one checkpoint."""

    def __init__(
        self, spark: SparkSession, broker: BrokerProcess | RunningBroker, directory: Path, name: str, **options: str
    ) -> None:
        self._spark = spark
        self.checkpoint = directory / "checkpoint"
        self._options = {"penstock.bootstrap": broker.addresses["flymq"], **options}
        self._name = name
        self._runs = 0

    def reader(self) -> DataStreamReader:
        return self._spark.readStream.format("penstock").options(**self._options)

    def start(self, *, now: bool = True) -> tuple[StreamingQuery, Table]:
        self._runs += 1
        table = Table(self._spark, f"{self._name}_{self._runs}")
        rows: list[Any] = []
        seen = self._spark

        def keep(batch: DataFrame, number: int) -> None:
            rows.extend(batch.collect())
            seen.createDataFrame(rows, batch.schema).createOrReplaceTempView(table.name)

        writer = self.reader().load().writeStream.foreachBatch(keep).option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if now else writer).start(), table

    def run(self) -> list[str]:
        """All that is available now."""
        query, table = self.start()
        query.awaitTermination()
        return table.values()

    def offsets(self, batch: int) -> dict[str, Any]:
        text = (self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1]
        decoded: dict[str, Any] = json.loads(text)
        return decoded

    def forget_commit(self, batch: int) -> None:
        """As if Spark had died after the batch and before it noted that."""
        (self.checkpoint / "commits" / str(batch)).unlink()
        (self.checkpoint / "commits" / f".{batch}.crc").unlink(missing_ok=True)


def until_committed(client: FlyMQClient, topic: str, group: str, offset: int) -> None:
    """Offsets are published while the query continues."""
    give_up_s = time.monotonic() + PUBLISH_S_MAX
    while time.monotonic() < give_up_s:
        if client.committed(topic, group, 0) == offset:
            return
    raise AssertionError(f"{group} is at {client.committed(topic, group, 0)} in {topic}, and should be at {offset}")


@pytest.fixture
def read(spark: SparkSession, broker: BrokerProcess) -> Callable[..., DataFrame]:
    def load(**options: str) -> DataFrame:
        return (
            spark.read.format("penstock").options(**{"penstock.bootstrap": broker.addresses["flymq"], **options}).load()
        )

    return load


# -- batches and SQL ------------------------------------------------------------------------------------------------------------


def test_a_topic_is_a_dataframe(client: FlyMQClient, fresh_topic: FreshTopic, read: Callable[..., DataFrame]) -> None:
    topic = fresh_topic("orders")
    client.create_topic(topic, 3)
    client.send_many(topic, [(b"k%d" % at, b"%d" % at) for at in range(1000)])
    frame = read(subscribe=topic)
    assert frame.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    summed = frame.selectExpr("sum(cast(cast(value AS string) AS int)) AS total", "count(DISTINCT partition) AS parts")
    assert summed.collect()[0].asDict() == {"total": 499_500, "parts": 3}
    assert frame.count() == 1000
    assert frame.where("topic <> ''").count() == 1000


def test_driver_and_tasks_take_the_first_node_that_answers(
    spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, fresh_topic: FreshTopic
) -> None:
    source, copy = fresh_topic("orders"), fresh_topic("copy")
    client.create_topic(source, 2)
    client.send_many(source, [b"%d" % at for at in range(100)])
    nodes = {"penstock.bootstrap": f"127.0.0.1:1,{broker.addresses['flymq']}"}
    orders = spark.read.format("penstock").options(**nodes, subscribe=source).load()
    orders.select("value").write.format("penstock").options(**nodes, topic=copy).mode("append").save()
    assert sorted(record.value or b"" for record in client.records(copy)) == sorted(b"%d" % at for at in range(100))


def test_one_dataframe_may_be_filtered_in_many_ways(
    client: FlyMQClient, fresh_topic: FreshTopic, read: Callable[..., DataFrame]
) -> None:
    topic = fresh_topic("orders")
    client.create_topic(topic, 4)
    for partition in range(4):
        client.send_many(topic, [b"x"] * 10, partition)
    frame = read(subscribe=topic)
    assert frame.filter("partition = 2").count() == 10
    assert frame.count() == 40
    both = frame.filter("partition = 0").union(frame.filter("partition = 1"))
    assert {row["partition"] for row in both.collect()} == {0, 1}


def test_a_topic_is_a_view_in_sql(
    spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("orders")
    client.send_many(topic, [b'{"amount": 5}', b'{"amount": 7}'])
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING penstock OPTIONS "
        f"('penstock.bootstrap' '{broker.addresses['flymq']}', subscribe '{topic}', includeHeaders 'true')"
    )
    query = "SELECT sum(get_json_object(cast(value AS string), '$.amount')) AS total, max(offset) AS last FROM orders"
    assert spark.sql(query).collect()[0].asDict() == {"total": 12.0, "last": 1}
    assert spark.table("orders").schema["headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    spark.catalog.dropTempView("orders")


def test_a_schema_prunes_and_load_prunes_more(
    spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("orders")
    client.create_topic(topic, 2)
    for partition in range(2):
        client.send_many(topic, [b"%d-%d" % (partition, at) for at in range(5)], partition)
    connection = {"penstock.bootstrap": broker.addresses["flymq"]}
    pruned = spark.read.format("penstock").options(**connection, subscribe=topic).schema("offset bigint, value binary")
    assert pruned.load().agg({"offset": "sum"}).collect()[0][0] == 20
    loaded = penstock.spark.load(
        spark,
        topic,
        partitions=[1],
        since=datetime(2020, 1, 1, tzinfo=UTC),
        columns=["value", "partition"],
        options=connection,
    )
    assert loaded.columns == ["value", "partition"]
    assert [bytes(row["value"]) for row in loaded.collect()] == [b"1-%d" % at for at in range(5)]
    assert penstock.spark.load(spark, topic, until=0, options=connection).count() == 0


def test_large_records_nulls_and_empty_topics(
    client: FlyMQClient, fresh_topic: FreshTopic, read: Callable[..., DataFrame]
) -> None:
    topic, empty = fresh_topic("large"), fresh_topic("empty")
    client.create_topic(empty, 2)
    client.send(topic, b"")
    client.send(topic, b"x" * (30 << 20), key=b"large")
    found = read(subscribe=f"{topic},{empty}").selectExpr("key IS NULL AS keyless", "length(value) AS size").collect()
    assert [(row["keyless"], row["size"]) for row in found] == [(True, 0), (False, 30 << 20)]
    assert read(subscribe=empty).count() == 0


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"subscribe": "no-such-topic"}, "topic not found: no-such-topic"),
        ({"subscribed": "orders"}, "option subscribed is not known: did you mean subscribe?"),
        (
            {"subscribe": "orders", "kafka.bootstrap.servers": "localhost:9092"},
            "set penstock.bootstrap to the host:port",
        ),
        ({"subscribe": "orders", "startingOffsets": "yesterday"}, "use earliest or JSON"),
        ({"subscribe": "orders", "penstock.bootstrap": "127.0.0.1:1"}, "Start the broker (`penstock serve`)"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    read: Callable[..., DataFrame], options: dict[str, str], found: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(**options).count()
    assert found in str(caught.value)


# -- streams --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def query(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, fresh_topic: FreshTopic
) -> Iterator[Callable[..., Query]]:
    def make(**options: str) -> Query:
        return Query(spark, broker, tmp_path, fresh_topic("query"), **options)

    yield make
    for active in spark.streams.active:
        active.stop()


def test_a_stream_reads_each_record_once_over_runs(
    client: FlyMQClient, fresh_topic: FreshTopic, query: Callable[..., Query]
) -> None:
    topic = fresh_topic("orders")
    client.send_many(topic, [b"a", b"b", b"c"])
    stream = query(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert stream.run() == ["a", "b", "c"]
    assert stream.offsets(0)[topic] == {"0": 2}
    assert stream.offsets(0)["__from__"] == {topic: {"0": 0}}
    assert stream.offsets(1)[topic] == {"0": 3}
    client.send(topic, b"d")
    assert stream.run() == ["d"]


def test_a_batch_that_was_not_committed_is_done_again_the_same(
    client: FlyMQClient, fresh_topic: FreshTopic, query: Callable[..., Query]
) -> None:
    topic = fresh_topic("orders")
    client.send(topic, b"before")
    stream = query(subscribePattern=f"{topic}(-new)?")
    client.send(topic, b"a")
    query_now, table = stream.start()
    query_now.awaitTermination()
    assert table.values() == [], "a stream begins with what comes"
    stream.forget_commit(0)
    client.send(topic, b"b")
    client.send(f"{topic}-new", b"c")
    assert stream.run() == ["b", "c"], "the first batch begins where it began, though the latest offset is another now"
    assert stream.offsets(1)["__from__"] == {f"{topic}-new": {"0": 0}}
    stream.forget_commit(1)
    client.send(f"{topic}-new", b"d")
    assert stream.run() == ["b", "c", "d"]


def test_a_stream_that_continues_sees_new_topics_and_survives_the_broker(
    spark: SparkSession, tmp_path: Path, fresh_topic: FreshTopic
) -> None:
    prefix = fresh_topic("site")
    with BrokerProcess(tmp_path / "data") as broker:
        with broker.connect() as client:
            client.send(f"{prefix}-one", b"a")
        stream = Query(spark, broker, tmp_path, fresh_topic("query"), subscribePattern=f"{prefix}-.*", group="watch")
        running, table = stream.start(now=False)
        try:
            running.processAllAvailable()
            with broker.connect() as client:
                client.send(f"{prefix}-two", b"b")
            running.processAllAvailable()
            assert table.values() == ["b"]
            broker.kill9()
            broker.start()
            with broker.connect() as client:
                client.send(f"{prefix}-one", b"c")
                running.processAllAvailable()
                assert table.values() == ["c", "b"]
                assert running.exception() is None
                until_committed(client, f"{prefix}-two", "watch", 1)
        finally:
            running.stop()


def test_a_topic_that_was_created_again_stops_the_query(
    client: FlyMQClient, fresh_topic: FreshTopic, query: Callable[..., Query]
) -> None:
    topic = fresh_topic("orders")
    client.send_many(topic, [b"a", b"b"])
    stream = query(subscribe=topic, startingOffsets="earliest")
    assert stream.run() == ["a", "b"]
    client.delete_topic(topic)
    client.send(topic, b"new")
    running, _ = stream.start()
    with pytest.raises(PySparkException, match="was deleted and created again"):
        running.awaitTermination()


def test_a_power_cut_that_took_what_was_read_stops_the_query_unless_it_may_continue(
    spark: SparkSession, tmp_path: Path
) -> None:
    with RunningBroker(tmp_path / "data", durability="none", topics=[{"name": "orders"}]) as broker:
        send = broker.connect().send
        for value in (b"a", b"b", b"c"):
            send("orders", value)
        options = {"subscribe": "orders", "startingOffsets": "earliest", "group": ""}
        query = Query(spark, broker, tmp_path, "cut", **options)
        assert query.run() == ["a", "b", "c"]
        broker.kill()
        cut_log(broker.data_dir, "orders", 1)
        broker.start()
        for value in (b"x", b"y", b"z"):
            send("orders", value)
        with pytest.raises(PySparkException, match="topic orders partition 0 was cut at offset 1"):
            query.run()
        assert Query(spark, broker, tmp_path, "cut_on", failOnDataLoss="false", **options).run() == ["x", "y", "z"]
        assert query.offsets(1)["__epochs__"] == {"orders": {"0": broker.server.engine.partition("orders", 0).epoch}}


def test_the_last_batch_of_a_query_that_ends_is_published(
    client: FlyMQClient, fresh_topic: FreshTopic, query: Callable[..., Query]
) -> None:
    topic = fresh_topic("orders")
    client.send_many(topic, [b"a", b"b", b"c"])
    stream = query(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="2")
    assert stream.run() == ["a", "b", "c"]
    group = f"spark-{topic}-{stream.offsets(0)['__query__']}"
    assert dict(client.describe_group(group, topic)[0].offsets) == {0: 3}
