"""Programs of the manual's pages on backfills and on reading tables that need Spark: they do what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.testing import BrokerProcess
from tests.manual import blocks, page
from tests.spark.pipelines.test_manual_tables import write_orders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_backfill_and_a_stream_that_begins_where_a_batch_ended(
    spark: SparkSession,
    broker: BrokerProcess,
    client: FlyMQClient,
    fresh_topic: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = fresh_topic("backfill")
    client.create_topic(topic, 2)
    (tmp_path / "orders-2025").mkdir()
    (tmp_path / "orders-2025" / "january.json").write_text('{"id": 1}\n{"id": 2}\n')

    def here(program: str) -> str:
        """With the broker, the topic and the directory of this test."""
        program = program.replace('"topic": "orders"', f'"topic": "{topic}", "penstock.bootstrap": "{broker.address}"')
        program = program.replace('spark, "orders"', f'spark, "{topic}", options={{"penstock.bootstrap": address}}')
        program = program.replace("options(subscribe", 'options(**{"penstock.bootstrap": address}, subscribe')
        return program.replace('"orders-', f'"{tmp_path}/orders-').replace('"orders"', f'"{topic}"')

    write, handover = blocks("python", page("docs/pipelines-backfill.md"))
    for _ in range(2):
        exec(here(write), {"address": broker.address})
    assert sorted(record.value or b"" for record in client.records(topic)) == [b'{"id":1}', b'{"id":2}']
    names: dict[str, Any] = {"address": broker.address}
    exec(here(handover), names)
    client.send(topic, b'{"id":3}')
    query = names["stream"].writeStream.format("memory").queryName("handed_over").trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.sql("SELECT CAST(value AS STRING) AS value FROM handed_over").collect()
    assert [json.loads(row.value) for row in rows] == [{"id": 3}]


def test_spark_reads_a_delta_table_as_a_stream_without_a_jar(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_orders(tmp_path)
    [program] = [each for each in blocks("python", page("docs/pipelines-tables.md")) if "penstock-delta" in each]
    exec(program.replace('"sales-tables', f'"{tmp_path}/sales-tables'), {})
    assert "|  0|     DE|   9.5|" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "shown"),
    [("docs/pipelines-tables.md", "|     DE|        9.5|"), ("docs/pipelines.md", "|  0|     DE|   9.5|")],
)
@pytest.mark.usefixtures("spark")
def test_spark_reads_a_delta_table_as_it_is_without_a_jar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, shown: str
) -> None:
    write_orders(tmp_path)
    [program] = [each for each in blocks("python", page(name)) if "penstock.spark.table(" in each]
    exec(program.replace('"sales-tables', f'"{tmp_path}/sales-tables'), {})
    assert shown in capsys.readouterr().out
