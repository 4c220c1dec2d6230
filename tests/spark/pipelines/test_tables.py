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
