"""The manual's page on writing from Spark: its programs run, and its tables name every option and column."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock.spark
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark import sink_options
from penstock.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
WRITING = PAGE.partition("\n## Writing")[2]
ADDRESS = "127.0.0.1:9092"


def test_the_programs_run(spark: SparkSession, broker: BrokerProcess, client: FlyMQClient, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": spark, "penstock": penstock}
    for code in re.findall(r"```python\n(.*?)```", WRITING, re.DOTALL):
        exec(code.replace(ADDRESS, broker.address).replace('"checkpoints/', f'"{tmp_path}/checkpoints/'), names)
    spark.catalog.dropTempView("new_totals")
    written = {(record.key, record.value) for record in client.records("totals")}
    assert written == {(b"0", b'{"id":0}'), (b"1", b'{"id":1}'), (b"2", b'{"id":2}'), (b"4", b"{}")}
    for topic in ("copies", "valid-copies"):
        assert {(record.key, record.value) for record in client.records(topic)} == written


def test_the_tables_name_every_option_and_column() -> None:
    written = set(re.findall(r"`([a-zA-Z.]+)`", WRITING))
    assert {*sink_options._SINK_OPTIONS, *sink_options._TYPES} <= written
