"""Rows that come with the plan of a small batch, asked for as Spark asks; the last test lets Spark itself do it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper

from penstock.errors import Unreachable
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark import prefetching
from penstock.spark.stream import PenstockStreamReader
from penstock.testing import BrokerProcess, RunningBroker
from tests.spark.by_hand import Source, through_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = [b"%d" % number for number in range(10)]


def has_rows(reader: object) -> bool:
    """What Spark asks after a plan."""
    return isinstance(reader, _SimpleStreamReaderWrapper)


@pytest.fixture
def planned(running: RunningBroker) -> Callable[..., tuple[PenstockStreamReader, dict[str, Any], dict[str, Any]]]:
    """Makes a reader that has planned a batch of a few records; returns it with the start and the end of the batch."""

    def plan(**options: str) -> tuple[PenstockStreamReader, dict[str, Any], dict[str, Any]]:
        client = running.connect()
        client.send_many("orders", RECORDS)
        reader = Source(running.address, subscribe="orders", startingOffsets="earliest").stream(**options).reader
        start = reader.initialOffset()
        end = through_json(reader.latestOffset(start, reader.getDefaultReadLimit()))
        assert not has_rows(reader), "nothing is planned yet"
        reader.partitions(start, end)
        return reader, start, end

    return plan


Planned = Callable[..., tuple[PenstockStreamReader, dict[str, Any], dict[str, Any]]]


def test_a_small_batch_has_its_rows_once_and_is_then_as_any_other(planned: Planned) -> None:
    reader, start, end = planned()
    assert has_rows(reader)
    rows = reader.getCache(start, end)
    assert rows is not None
    assert [row["value"] for batch in rows for row in batch.to_pylist()] == RECORDS
    assert not has_rows(reader), "Spark would not ask for the end of the log"
    assert reader.getCache(start, end) is None


def test_rows_do_not_travel_with_the_reader(planned: Planned) -> None:
    reader, start, end = planned()
    there = pickle.loads(pickle.dumps(reader))
    assert type(there) is PenstockStreamReader
    assert there.getCache(start, end) is None


def test_a_batch_of_several_tasks_is_left_to_them(planned: Planned) -> None:
    assert not has_rows(planned(minPartitions="2")[0])


@pytest.mark.parametrize("bound", ["LOG_BYTES_MAX", "ROW_BYTES_MAX"])
def test_a_batch_that_is_too_large_is_left_to_its_task(
    bound: str, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, bound, 10)
    assert not has_rows(planned()[0])


def test_what_the_driver_cannot_read_is_left_to_the_task(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(reader: PenstockStreamReader, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise Unreachable("the broker is gone")

    monkeypatch.setattr(PenstockStreamReader, "read", read)
    assert not has_rows(planned()[0])


def test_without_sparks_class_every_batch_is_left_to_its_task(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "_Wrapper", None)
    reader, start, end = planned()
    assert not has_rows(reader)
    assert reader.getCache(start, end) is None


def without_tasks() -> type:
    """Return a source of streams whose tasks fail. Made in a function, so that Spark sends it by value."""
    from pyspark.sql.types import StructType

    from penstock.spark.source import PenstockDataSource

    class Reader(PenstockStreamReader):
        def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            if TaskContext.get() is not None:
                raise AssertionError("a task reads")
            return super().read(partition)

    class WithoutTasks(PenstockDataSource):
        @classmethod
        def name(cls) -> str:
            return "penstock-without-tasks"

        def streamReader(self, schema: StructType) -> PenstockStreamReader:  # noqa: N802 - Spark's name
            made = super().streamReader(schema)
            assert isinstance(made, PenstockStreamReader)
            return Reader(made._options, made._schema)

    return WithoutTasks


def test_spark_takes_the_rows_of_small_batches_and_still_tells_the_end_of_the_log(
    spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, fresh_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = fresh_topic("small")
    client.create_topic(topic, 2)
    client.send_many(topic, RECORDS)
    spark.dataSource.register(without_tasks())
    options = {"penstock.bootstrap": broker.address, "subscribe": topic, "startingOffsets": "earliest"}
    rows = spark.readStream.format("penstock-without-tasks").options(**options, maxOffsetsPerTrigger="4").load()
    found: list[bytes] = []
    query = (
        rows.writeStream.foreachBatch(lambda batch, _: found.extend(bytes(row.value) for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sorted(found) == RECORDS
    assert '"' + topic + '"' in str(query.recentProgress[0]["sources"][0]["latestOffset"])
