"""The manual's page on reading from Spark: its programs run, and its tables name every option."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.protocols.flymq.sync import FlyMQClient
from penstock.spark import options
from penstock.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
READING = PAGE.partition("\n## Writing")[0]
ADDRESS = "127.0.0.1:9092"


@pytest.fixture
def orders(client: FlyMQClient) -> Iterator[FlyMQClient]:
    members = {"id": {"type": "integer"}, "amount": {"type": "number"}}
    client.schemas.register("orders", json.dumps({"type": "object", "properties": members}))
    client.create_topic("orders", 2)
    client.send_many("orders", [(b"k%d" % at, b'{"amount": %d}' % at) for at in range(10)])
    yield client
    client.delete_topic("orders")
    client.schemas.delete("orders")


def test_the_programs_run(
    spark: SparkSession,
    broker: BrokerProcess,
    orders: FlyMQClient,
    tmp_path: Path,
) -> None:
    spark.catalog.dropTempView("orders")  # of the test before
    address = broker.addresses["flymq"]
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", READING, re.DOTALL):
        code = code.replace(ADDRESS, address)
        # Spark's own process is where it was started, wherever this test is.
        code = code.replace('"tables/', f'"{tmp_path}/tables/').replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
        # Where the page leaves the broker to the default, it is another one here.
        code = code.replace('.option("subscribe"', f'.option("penstock.bootstrap", "{address}").option("subscribe"')
        code = code.replace('spark, "orders",', f'spark, "orders", options={{"penstock.bootstrap": "{address}"}},')
        exec(code, names)
    assert names["orders"].count() == 10
    assert names["decoded"].where("_reason IS NULL").count() == 10
    assert [record.value for record in orders.records("invoices")] == [b'{"id":7,"amount":19.99}']
    assert names["recent"].columns == ["value", "timestamp"]
    assert names["recent"].count() == 10
    query = names["query"]
    try:
        query.processAllAvailable()
        orders.send("orders", b"{}", partition=0)
        query.processAllAvailable()
        assert spark.read.parquet(f"{tmp_path}/tables/orders").count() == 11
    finally:
        query.stop()
        spark.catalog.dropTempView("orders")
    assert sum(orders.describe_group("billing", "orders")[0].offsets.values()) >= 10


def test_the_tables_name_every_option() -> None:
    known = {*options._BOTH, *options._BATCH_ONLY, *options._STREAM_ONLY}
    written = set(re.findall(r"`([a-zA-Z.]+)`", READING)) | {f"penstock.tls.{name}" for name in ("ca", "cert", "key")}
    assert known <= written
