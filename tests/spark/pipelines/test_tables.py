"""Tables of a pipeline, where no Spark is needed to tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.tables.iceberg import IcebergTable


def iceberg_table(directory: Path, name: str) -> IcebergTable:
    spark: Any = None
    return IcebergTable(spark, f"{directory}/bronze/{name}", LocalFiles(), str(directory), ("bronze", "orders_eu"))


def test_two_topics_that_the_catalog_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    first, second = iceberg_table(tmp_path, "orders-eu"), iceberg_table(tmp_path, "orders.eu")
    catalog = first._opened_catalog()
    catalog.create_namespace("bronze")
    assert not first.exists()
    columns = pa.schema([pa.field("value", pa.binary())])
    catalog.create_table(("bronze", "orders_eu"), columns, location=f"file://{first.path}")
    assert first.exists()
    with pytest.raises(ConfigError, match="two pipelines"):
        second.exists()


def test_compacting_iceberg_deletes_what_no_snapshot_names(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path, "orders-eu")
    catalog = table._opened_catalog()
    catalog.create_namespace("bronze")
    columns = pa.schema([pa.field("id", pa.int64())])
    stored = catalog.create_table(("bronze", "orders_eu"), columns, location=f"file://{table.path}")
    for number in range(3):
        stored.append(pa.table({"id": [number]}, schema=columns))
    data = Path(table.path, "data")
    (data / "part-of-an-attempt-that-failed.parquet").write_bytes(b"")

    assert table.compact(1 << 20, keep_s=3600) == (3, 1, 0), "readers that began before are still at it"
    assert len(list(data.rglob("*.parquet"))) == 5
    assert table.compact(1 << 20, keep_s=0) == (1, 1, 4)
    assert len(list(data.rglob("*.parquet"))) == 1
    assert sorted(catalog.load_table(("bronze", "orders_eu")).scan().to_arrow()["id"].to_pylist()) == [0, 1, 2]
