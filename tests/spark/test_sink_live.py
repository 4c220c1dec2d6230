"""The sink inside Spark: batches, streams and SQL against a broker process. What needs no Spark is in `test_sink`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FreshTopic = Callable[..., str]


@pytest.fixture
def options(broker: BrokerProcess) -> dict[str, str]:
    return {"penstock.bootstrap": broker.address}


def stored(client: FlyMQClient, topic: str) -> list[str]:
    return sorted((record.value or b"").decode() for record in client.records(topic))


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died between the sink's commit and its own."""
    last = max(
        (path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()), key=lambda path: int(path.name)
    )
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def test_rows_become_records_with_keys_and_headers_in_the_topics_they_name(
    spark: SparkSession, client: FlyMQClient, fresh_topic: FreshTopic, options: dict[str, str]
) -> None:
    one, two = fresh_topic("one"), fresh_topic("two")
    client.create_topic(one, 3)
    rows = spark.range(20).selectExpr(
        "CAST(id AS STRING) AS value",
        "CAST(id % 5 AS STRING) AS key",
        f"IF(id % 2 = 0, '{one}', '{two}') AS topic",
        "array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
    )
    rows.write.format("penstock").options(**options).mode("append").save()
    assert stored(client, one) == sorted(str(number) for number in range(0, 20, 2))
    assert stored(client, two) == sorted(str(number) for number in range(1, 20, 2))
    read = spark.read.format("penstock").options(**options, subscribe=one, includeHeaders="true").load().collect()
    assert {bytes(row.value) for row in read} == {bytes(row.headers[0].value) for row in read}
    partitions = {bytes(row.key): row.partition for row in read}
    assert all(partitions[bytes(row.key)] == row.partition for row in read)


def test_a_stream_writes_each_batch_once_also_when_it_comes_again(
    spark: SparkSession, client: FlyMQClient, fresh_topic: FreshTopic, options: dict[str, str], tmp_path: Path
) -> None:
    source, sink, checkpoint = fresh_topic("in"), fresh_topic("out"), tmp_path / "checkpoint"

    def run() -> None:
        rows = spark.readStream.format("penstock").options(**options, subscribe=source, startingOffsets="earliest")
        query = (
            rows.load()
            .select("value")
            .writeStream.format("penstock")
            .options(**options, topic=sink, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    client.send_many(source, [b"a", b"b"])
    run()
    assert stored(client, sink) == ["a", "b"]
    forget_last_commit(checkpoint)
    client.send(source, b"c")
    run()
    assert stored(client, sink) == ["a", "b", "c"]


def test_a_query_with_another_checkpoint_fails_instead_of_leaving_its_rows_out(
    spark: SparkSession, client: FlyMQClient, fresh_topic: FreshTopic, options: dict[str, str], tmp_path: Path
) -> None:
    source, sink = fresh_topic("in"), fresh_topic("out")
    client.send_many(source, [b"a", b"b"])

    def run(checkpoint: str, **more: str) -> None:
        rows = spark.readStream.format("penstock").options(**options, subscribe=source, startingOffsets="earliest")
        writing = rows.load().select("value").writeStream.format("penstock").options(**options, topic=sink, **more)
        writing = writing.option("txnAppId", sink).option("checkpointLocation", str(tmp_path / checkpoint))
        writing.trigger(availableNow=True).start().awaitTermination()

    run("first")
    with pytest.raises(PySparkException, match=f"wrote batches up to 0 under txnAppId {sink}"):
        run("second")
    run("third", txnReplay="true")
    assert stored(client, sink) == ["a", "b"]


def test_inside_foreach_batch_each_named_write_is_done_once(
    spark: SparkSession, client: FlyMQClient, fresh_topic: FreshTopic, options: dict[str, str], tmp_path: Path
) -> None:
    source, orders, totals = fresh_topic("in"), fresh_topic("orders"), fresh_topic("totals")
    client.send_many(source, [b"a", b"b"])

    def write(batch: DataFrame, number: int) -> None:
        for topic, rows in (
            (orders, batch.select("value")),
            (totals, batch.groupBy().count().selectExpr("CAST(count AS STRING) AS value")),
        ):
            rows.write.format("penstock").options(**options, topic=topic, txnAppId=f"app-{topic}").mode("append").save()

    for _ in range(2):
        rows = (
            spark.readStream.format("penstock").options(**options, subscribe=source, startingOffsets="earliest").load()
        )
        query = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
        forget_last_commit(tmp_path / "checkpoint")
    assert (stored(client, orders), stored(client, totals)) == (["a", "b"], ["2"])


def test_sql_inserts_into_a_view_of_a_topic(
    spark: SparkSession, client: FlyMQClient, fresh_topic: FreshTopic, options: dict[str, str]
) -> None:
    topic = fresh_topic()
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW inserted USING penstock "
        f"OPTIONS (`penstock.bootstrap` '{options['penstock.bootstrap']}', topic '{topic}', subscribe '{topic}')"
    )
    spark.sql(
        "INSERT INTO inserted (key, value) SELECT CAST('k' AS BINARY), CAST(CAST(id AS STRING) AS BINARY) FROM range(3)"
    )
    assert stored(client, topic) == ["0", "1", "2"]
    assert {record.key for record in client.records(topic)} == {b"k"}
    assert spark.sql("SELECT count(*) AS records FROM inserted").collect()[0].records == 3
    spark.catalog.dropTempView("inserted")


def test_a_numbered_write_is_done_once(
    spark: SparkSession, client: FlyMQClient, fresh_topic: FreshTopic, options: dict[str, str]
) -> None:
    topic = fresh_topic()
    rows = spark.range(3).selectExpr("CAST(id AS STRING) AS value")
    for _ in range(2):
        write = rows.write.format("penstock").options(**options, topic=topic, txnAppId=topic, txnVersion="1")
        write.mode("append").save()
    assert stored(client, topic) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("columns", "more", "mode", "problem"),
    [
        (["id AS value"], {}, "append", "column value is bigint: it must be string or binary"),
        (["'v' AS value"], {"topc": "x"}, "append", "option topc is not known: did you mean topic"),
        (["'v' AS value"], {}, "overwrite", "a topic cannot be overwritten"),
        (["'v' AS value", "7 AS partition"], {}, "append", "partition 7 not found"),
    ],
)
def test_what_cannot_be_written_is_explained(
    spark: SparkSession,
    fresh_topic: FreshTopic,
    options: dict[str, str],
    columns: list[str],
    more: dict[str, Any],
    mode: str,
    problem: str,
) -> None:
    write = spark.range(1).selectExpr(*columns).write.format("penstock").options(**options, topic=fresh_topic(), **more)
    with pytest.raises(PySparkException, match=problem):
        write.mode(mode).save()
