"""The manual's page for readers of tables: programs that need nothing but what is installed do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.tables.table import Table
from tests.manual import blocks, page
from tests.spark.pipelines.rows_by_hand import ids_from, rows_of

PROGRAMS = blocks("python", page("docs/pipelines-tables.md"))


def orders_table(directory: Path, table_format: str, stage: str = "silver") -> Table:
    values = {
        "name": "sales",
        "topics": ["orders"],
        "directory": str(directory / "sales-tables"),
        "format": table_format,
        "silver": {},
    }
    return open_table(Pipeline.model_validate(values), stage, "orders")


def write_orders(directory: Path, table_format: str = "delta", stage: str = "silver") -> None:
    table = orders_table(directory, table_format, stage)
    table.claim("query-1", 0, "checkpoint")
    integers = pa.array([0, 1], pa.int64())
    rows = rows_of(id=integers, country=["DE", "FR"], amount=[9.5, 5.0], offset=integers, reason=["bad", "bad"])
    table.append(rows, 0, small=True)


def test_every_program_is_python() -> None:
    assert len(PROGRAMS) == 8
    for program in PROGRAMS:
        compile(program, "docs/pipelines-tables.md", "exec")


def test_pandas_and_pyarrow_read_a_delta_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_orders(tmp_path, "delta")
    [program] = [each for each in PROGRAMS if "to_pandas" in each and "deltalake" in each]
    names: dict[str, Any] = {}
    exec(program, names)
    assert "DE" in capsys.readouterr().out
    assert names["recent"].to_pylist() == [{"id": 1, "amount": 5.0}]


@pytest.mark.parametrize(("stage", "shown"), [("silver", "9.5"), ("rejects", "bad")])
def test_duckdb_reads_a_delta_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], stage: str, shown: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_orders(tmp_path, stage=stage)
    [program] = [each for each in PROGRAMS if "duckdb" in each and f"/{stage}/" in each]
    exec(program, {})
    assert shown in capfd.readouterr().out


def test_polars_reads_a_delta_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_orders(tmp_path)
    [program] = [each for each in PROGRAMS if "polars" in each]
    names: dict[str, Any] = {}
    exec(program.replace("\npl.scan_delta", "\nsums = pl.scan_delta"), names)
    assert dict(names["sums"].iter_rows()) == {"DE": 9.5, "FR": 5.0}


def test_an_iceberg_table_is_read_through_its_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_orders(tmp_path, "iceberg")
    [program] = [each for each in PROGRAMS if "load_catalog" in each]
    names: dict[str, Any] = {}
    exec(program.replace("\ncatalog.load_table", "\nrows = catalog.load_table"), names)
    assert names["rows"]["country"].tolist() == ["FR"]


def test_every_reader_counts_each_row_once_after_a_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that a compaction has replaced stay in the directory, for readers that began before."""
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # its own planner is one more package
    for table_format in ("delta", "iceberg"):
        table = orders_table(tmp_path / table_format, table_format)
        table.claim("query-1", 0, "checkpoint")
        for batch_id in range(3):
            table.append(ids_from(10 * batch_id), batch_id, small=True)
        assert table.compact(1 << 20) == (3, 1)
    path = str(tmp_path / "delta" / "sales-tables" / "silver" / "orders")
    delta = DeltaTable(path)
    catalog = f"sqlite:///{tmp_path}/iceberg/sales-tables/iceberg.db"
    iceberg = load_catalog("penstock", type="sql", uri=catalog).load_table("silver.orders")
    dataset, scanned = delta.to_pyarrow_dataset(), iceberg.scan().to_arrow()
    with duckdb.connect() as database:
        found = {
            "pandas": delta.to_pandas()["id"].tolist(),
            "Polars": pl.scan_delta(path).collect()["id"].to_list(),
            "DuckDB": database.from_arrow(dataset).project("id").fetchnumpy()["id"].tolist(),
            "pandas, Iceberg": iceberg.scan().to_pandas()["id"].tolist(),
            "Polars, Iceberg": pl.scan_iceberg(iceberg).collect()["id"].to_list(),
            "DuckDB, Iceberg": database.from_arrow(scanned).project("id").fetchnumpy()["id"].tolist(),
        }
    assert {reader: sorted(ids) for reader, ids in found.items()} == {reader: list(range(30)) for reader in found}
