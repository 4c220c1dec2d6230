"""Copies of tables in plain Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.pipelines.export import export_table
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from tests.spark.pipelines.rows_by_hand import ids_from


@pytest.fixture(params=["delta", "iceberg"])
def pipeline(tmp_path: Path, request: pytest.FixtureRequest) -> Pipeline:
    values = {
        "name": "sales",
        "topics": ["orders"],
        "directory": str(tmp_path / "tables"),
        "format": request.param,
        "silver": {},
    }
    made = Pipeline.model_validate(values)
    table = open_table(made, "silver", "orders")
    table.claim("query-1", 0, "checkpoint")
    for batch_id in range(3):
        table.append(ids_from(10 * batch_id), batch_id, small=True)
    return made


def test_a_copy_has_every_row_once_after_a_compaction_too(pipeline: Pipeline, tmp_path: Path) -> None:
    assert export_table(pipeline, "silver/orders", tmp_path / "before") == 30
    open_table(pipeline, "silver", "orders").compact(1 << 20)
    assert export_table(pipeline, "silver/orders", tmp_path / "after") == 30
    for copy in ("before", "after"):
        assert sorted(pq.read_table(tmp_path / copy)["id"].to_pylist()) == list(range(30))


def test_what_cannot_be_copied_says_why(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no table"):
        export_table(pipeline, "silver/gone", tmp_path / "copy")
    with pytest.raises(InvalidRequest, match="is not a table"):
        export_table(pipeline, "orders", tmp_path / "copy")
    (tmp_path / "copy").mkdir()
    with pytest.raises(InvalidRequest, match="is there already"):
        export_table(pipeline, "silver/orders", tmp_path / "copy")


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("id", pa.int64())])

    def broken(table: Any) -> Any:
        def batches() -> Any:
            yield pa.record_batch({"id": [1]})
            raise OSError("the disk went away")

        return pa.RecordBatchReader.from_batches(schema, batches())

    monkeypatch.setattr(DeltaLakeTable, "batches", broken)
    monkeypatch.setattr("penstock.spark.pipelines.tables.iceberg.IcebergTable.batches", broken)
    with pytest.raises(OSError, match="the disk went away"):
        export_table(pipeline, "silver/orders", tmp_path / "copy")
    assert [each.name for each in tmp_path.iterdir()] == ["tables"]
