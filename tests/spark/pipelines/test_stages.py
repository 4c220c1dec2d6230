"""Decoding on executors: whatever shapes a schema has, Spark takes the columns, and every format of table can hold them."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.schemas.protobuf import ProtobufDefinition
from penstock.spark.pipelines.decoded_rows import fitting_rows, with_decoded
from penstock.spark.pipelines.decoding import Plan, version
from penstock.spark.pipelines.stages import Gate, Stopped
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from penstock.spark.pipelines.tables.table import Table
from penstock.spark.schema import source_schema
from tests.spark.pipelines.test_decoding import AVRO_ORDER, PROTO, avro

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

JSON_SHAPES = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "day": {"type": "string", "format": "date"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "tags": {"type": "object", "additionalProperties": {"type": "number"}},
        "anything": {},
    },
}


def decoded(spark: SparkSession, plan: Plan, *values: bytes | None) -> DataFrame:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [(b"k", value, "orders", 0, offset, moment, 1, None) for offset, value in enumerate(values)]
    return with_decoded(spark.createDataFrame(rows, source_schema(headers=True)), plan)


def json_rows(spark: SparkSession) -> DataFrame:
    document = {"id": 1, "day": "2026-01-31", "lines": [{"sku": "a"}], "tags": {"x": 1}, "anything": [None]}
    plan = Plan("orders", "json", "", version("json", 1, json.dumps(JSON_SHAPES)))
    return decoded(spark, plan, json.dumps(document).encode(), b"nonsense", None)


def test_json_of_every_shape_reaches_spark(spark: SparkSession) -> None:
    good, bad, nothing = json_rows(spark).orderBy("offset").collect()
    row = good.row
    assert (row.id, row.day, row.lines[0].sku, row.tags, row.anything) == (
        1,
        date(2026, 1, 31),
        "a",
        {"x": 1.0},
        "[null]",
    )
    assert (good.reason, good.value) == (None, None), "the value stays only where it is needed"
    assert bad.reason.startswith("not a JSON document")
    assert bytes(bad.value) == b"nonsense"
    assert (nothing.reason, nothing.row.id) == (None, None)


def test_avro_of_every_shape_reaches_spark(spark: SparkSession) -> None:
    order = {
        "id": 1,
        "state": "PAID",
        "price": Decimal("12.50"),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "either": 7,
        "counts": {"a": 1},
    }
    plan = Plan("orders", "avro", "", version("avro", 1, json.dumps(AVRO_ORDER)))
    [row] = decoded(spark, plan, avro(AVRO_ORDER, order)).select("row.*").collect()
    assert (row.id, row.state, row.price, row.either, row.counts) == (1, "PAID", Decimal("12.50"), "7", {"a": 1})


def test_protobuf_of_every_shape_reaches_spark(spark: SparkSession) -> None:
    made = version("protobuf", 1, PROTO)
    message: Any = ProtobufDefinition.load(PROTO, made.form, 1).message_class("Order")
    order = message(id=1, state=1, lines=[{"sku": "a", "price": 2.5}], counts={"x": 2**64 - 1})
    plan = Plan("orders", "protobuf", "Order", made)
    [row] = decoded(spark, plan, order.SerializeToString()).select("row.*").collect()
    assert (row.id, row.state, row.lines[0].price, row.counts) == (1, "PAID", 2.5, {"x": Decimal(2**64 - 1)})


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_every_format_holds_every_shape_and_a_batch_once(
    spark: SparkSession, tmp_path: Path, table_format: str
) -> None:
    path = str(tmp_path / "silver" / "orders")
    table: Table
    if table_format == "delta":
        table = DeltaLakeTable(spark, path)
    else:
        table = IcebergTable(spark, path, str(tmp_path), ("silver", "orders"))
    rows = fitting_rows(json_rows(spark))
    assert not table.exists()
    table.claim("query-1", 0, "checkpoint")
    for batch, small in ((0, True), (1, False), (1, True), (0, False)):
        table.append(rows, batch, small=small)
    found = table.read().where("id = 1").collect()
    assert [(row.day, row.lines[0].sku, row.tags, bytes(row.key)) for row in found] == [
        (date(2026, 1, 31), "a", {"x": 1.0}, b"k")
    ] * 2
    assert table.read().count() == table.batches().read_all().num_rows == 4, "two batches of two rows"


def test_once_the_gate_is_closed_no_batch_begins() -> None:
    gate = Gate()
    gate.enter("bronze/orders")
    gate.close()
    with pytest.raises(Stopped):
        gate.enter("bronze/orders")
    assert gate.ended("bronze/orders")
    assert not gate.ended("silver/orders")
