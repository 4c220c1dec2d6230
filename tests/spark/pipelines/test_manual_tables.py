"""The manual's page for readers of tables: programs that need nothing but what is installed do what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from tests.manual import blocks, page
from tests.spark.pipelines.rows_by_hand import rows_of

PROGRAMS = blocks("python", page("docs/pipelines-tables.md"))


def write_orders(directory: Path, table_format: str = "delta", stage: str = "silver") -> None:
    values = {
        "name": "sales",
        "topics": ["orders"],
        "directory": str(directory / "sales-tables"),
        "format": table_format,
        "silver": {},
    }
    table = open_table(Pipeline.model_validate(values), stage, "orders")
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
