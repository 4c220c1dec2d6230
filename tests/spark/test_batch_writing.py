"""`penstock.spark.write_batch` in a query: by the driver or by tasks, and once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import penstock.spark
from penstock.errors import InvalidRequest
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark import batch_writing
from penstock.spark.batch_writing import is_small
from penstock.spark.sink import StagedMessage, stage
from penstock.testing import BrokerProcess
from tests.spark.test_sink_live import forget_last_commit, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = [b"%d" % number for number in range(10)]
Copy = Callable[..., None]


@pytest.fixture
def by_driver(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each batch had that the driver wrote without staging them, whether the broker knew them or not."""
    found: list[int] = []

    def noted(options: Any, work: Any, batches: Any) -> StagedMessage:
        rows = list(batches)
        message = stage(options, work, iter(rows))
        if not message.requests:
            found.append(sum(batch.num_rows for batch in rows))
        return message

    monkeypatch.setattr(batch_writing, "stage", noted)
    return found


@pytest.fixture
def copy(
    spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, fresh_topic: Callable[..., str], tmp_path: Path
) -> tuple[Copy, str, str]:
    """A stream that copies what is there to another topic, by batches of four; and the two topics."""
    source, target = fresh_topic("in"), fresh_topic("out")
    client.create_topic(source, 2)
    client.create_topic(target, 2)
    client.send_many(source, RECORDS)

    def run(*columns: str, **options: str) -> None:
        def write(batch: DataFrame, batch_id: int) -> None:
            broker_option = {"penstock.bootstrap": broker.address}
            topic = None if columns else target
            rows = batch.selectExpr("key", "value", *columns)
            penstock.spark.write_batch(rows, batch_id, topic=topic, options=broker_option)

        given = {"penstock.bootstrap": broker.address, "subscribe": source, "startingOffsets": "earliest", **options}
        rows = spark.readStream.format("penstock").options(**{"maxOffsetsPerTrigger": "4", **given}).load()
        writing = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        assert writing.trigger(availableNow=True).start().awaitTermination(120)

    return run, source, target


def test_small_batches_are_written_by_the_driver_and_left_out_when_they_are_repeated(
    copy: tuple[Copy, str, str], by_driver: list[int], client: FlyMQClient, tmp_path: Path
) -> None:
    run, _, target = copy
    run()
    assert sum(by_driver) == len(RECORDS)
    assert len(by_driver) > 1
    forget_last_commit(tmp_path / "checkpoint")
    before = len(by_driver)
    run()
    assert len(by_driver) == before + 1
    assert stored(client, target) == sorted(value.decode() for value in RECORDS)


def test_a_batch_is_written_once_by_driver_and_tasks_together(
    copy: tuple[Copy, str, str],
    by_driver: list[int],
    client: FlyMQClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_writing, "FEW_ROWS_MAX", 0)
    run, source, target = copy
    run()
    forget_last_commit(tmp_path / "checkpoint")
    client.send_many(source, [b"more", b"still more"])
    before = len(by_driver)
    run(minPartitions="2")
    assert len(by_driver) == before, "tasks wrote"
    assert stored(client, target) == sorted([*(value.decode() for value in RECORDS), "more", "still more"])


@pytest.mark.parametrize(("few", "counted"), [(100, 1), (3, 3)])
def test_tasks_are_counted_for_the_first_batch_and_for_those_with_more_than_few_rows(
    copy: tuple[Copy, str, str],
    by_driver: list[int],
    client: FlyMQClient,
    monkeypatch: pytest.MonkeyPatch,
    few: int,
    counted: int,
) -> None:
    found: list[bool] = []

    def noted(batch: DataFrame) -> bool:
        found.append(is_small(batch))
        return found[-1]

    monkeypatch.setattr(batch_writing, "is_small", noted)
    monkeypatch.setattr(batch_writing, "FEW_ROWS_MAX", few)
    run, _, target = copy
    run()
    assert len(by_driver) == 3
    assert found == [True] * counted
    assert stored(client, target) == sorted(value.decode() for value in RECORDS)


def test_a_batch_of_tasks_after_one_of_few_rows_is_left_to_tasks(
    copy: tuple[Copy, str, str], by_driver: list[int], client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writing, "FEW_ROWS_MAX", 4)
    run, source, target = copy
    run()
    more = [b"more %d" % number for number in range(40)]
    client.send_many(source, more)
    before = len(by_driver)
    run(minPartitions="2", maxOffsetsPerTrigger="1000")
    assert len(by_driver) == before, "tasks wrote"
    assert stored(client, target) == sorted(value.decode() for value in [*RECORDS, *more])


def test_rows_that_are_too_many_for_the_driver_are_left_to_tasks(
    copy: tuple[Copy, str, str], by_driver: list[int], client: FlyMQClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_writing, "FEW_ROWS_MAX", 0)
    monkeypatch.setattr(batch_writing, "DRIVER_ROWS_MAX", 1)
    run, _, target = copy
    run()
    assert not any(by_driver)
    assert stored(client, target) == sorted(value.decode() for value in RECORDS)


def test_a_batch_for_several_topics_is_written_once_too(
    copy: tuple[Copy, str, str], by_driver: list[int], client: FlyMQClient, tmp_path: Path
) -> None:
    run, _, target = copy
    client.create_topic(f"{target}-odd", 1)
    spread = f"CASE offset % 2 WHEN 0 THEN '{target}' ELSE '{target}-odd' END AS topic"
    run(spread)
    assert sum(by_driver) == len(RECORDS)
    forget_last_commit(tmp_path / "checkpoint")
    run(spread)
    found = [*stored(client, target), *stored(client, f"{target}-odd")]
    assert sorted(found) == sorted(value.decode() for value in RECORDS)


def test_outside_of_a_query_there_is_no_batch(spark: SparkSession) -> None:
    rows = spark.sql("SELECT 'one' AS value")
    with pytest.raises(InvalidRequest, match="call it in foreachBatch"):
        penstock.spark.write_batch(rows, 0, topic="orders")
    with pytest.raises(InvalidRequest, match="the number of the batch is the version"):
        penstock.spark.write_batch(rows, 0, topic="orders", options={"txnVersion": "1"})
