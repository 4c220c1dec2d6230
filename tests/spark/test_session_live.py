"""The shared session does what a session must: it runs Python on executors, keeps streaming state in RocksDB, and stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pyspark
import pytest

import penstock.spark
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def _package(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyspark

    list(batches)
    yield pa.record_batch([[pyspark.__file__]], names=["file"])


def _doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        yield pa.record_batch([pc.multiply(batch.column(0), 2)], names=["id"])


def test_executors_run_the_python_of_the_driver(spark: SparkSession) -> None:
    doubled = spark.range(5).mapInArrow(_doubled, "id long")
    assert sorted(row.id for row in doubled.collect()) == [0, 2, 4, 6, 8]


def test_executors_have_the_compiled_modules_of_the_driver(spark: SparkSession) -> None:
    """And not those of a zip, which each of them would compile."""
    found = spark.range(1).mapInArrow(_package, "file string").collect()
    assert {row.file for row in found} == {pyspark.__file__}


def test_the_state_of_streams_is_kept_in_rocksdb(spark: SparkSession) -> None:
    assert str(spark.conf.get("spark.sql.streaming.stateStore.providerClass")).endswith("RocksDBStateStoreProvider")


def test_a_running_session_is_used_as_it_is_and_what_differs_is_named(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    zone = "spark.sql.session.timeZone"
    spark.conf.set(zone, "Europe/Berlin")
    before = dict(spark.conf.getAll)
    try:
        again = penstock.spark.session("another", config={"spark.hadoop.fs.s3a.secret.key": "s3cret"})
        assert again is spark
        assert dict(again.conf.getAll) == before
    finally:
        spark.conf.set(zone, "UTC")
    [warning] = [record.getMessage() for record in caplog.records if record.name == "penstock.spark.sessions"]
    assert "is used as it is" in warning
    assert zone in warning
    assert "spark.hadoop.fs.s3a.secret.key" in warning
    assert "spark.master" not in warning, "no other was asked for"
    assert "s3cret" not in warning


def test_a_registered_source_reads_and_writes(
    spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, fresh_topic: Callable[..., str]
) -> None:
    topic = fresh_topic("registered")
    client.create_topic(topic, 1)
    client.send_many(topic, [b"1", b"2"])
    session = spark.newSession()
    penstock.spark.register(session)
    options = {"penstock.bootstrap": broker.address, "subscribe": topic}
    rows = session.read.format("penstock").options(**options).load()
    rows.select("value").write.format("penstock").options(**{**options, "topic": topic}).mode("append").save()
    assert sorted(record.value or b"" for record in client.records(topic)) == [b"1", b"1", b"2", b"2"]
