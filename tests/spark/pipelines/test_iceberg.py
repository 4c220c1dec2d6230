"""Iceberg tables, where no Spark is needed to tell."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.tables import iceberg
from penstock.spark.pipelines.tables.iceberg import CATALOG_FILE, IcebergTable
from penstock.spark.pipelines.tables.merging import merge_files

IDENTIFIER = ("bronze", "orders_eu")
COLUMNS = pa.schema([pa.field("id", pa.int64())])
MiB = 1 << 20


def iceberg_table(directory: Path, name: str = "orders-eu", **settings: Any) -> IcebergTable:
    return IcebergTable(None, f"{directory}/bronze/{name}", LocalFiles(), str(directory), IDENTIFIER, **settings)


def with_files(table: IcebergTable, count: int) -> Any:
    """The table as the library has it, with a file for each row, added as a batch adds them."""
    catalog = table._opened_catalog()
    catalog.create_namespace_if_not_exists(IDENTIFIER[0])
    stored = catalog.create_table_if_not_exists(IDENTIFIER, COLUMNS, location=f"file://{table.path}")
    for number in range(count):
        add_file(table, stored, {"id": [number]})
    return stored


def add_file(table: IcebergTable, stored: Any, columns: dict[str, list[Any]]) -> None:
    path = Path(table.path, "data", f"part-{len(list(stored.snapshots()))}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    stored.add_files([f"file://{path}"])


def ids(table: IcebergTable) -> list[int]:
    rows: Any = table._opened_catalog().load_table(IDENTIFIER).scan().to_arrow()
    return sorted(rows["id"].to_pylist())


def test_two_topics_that_the_catalog_cannot_tell_apart_are_refused(tmp_path: Path) -> None:
    first, second = iceberg_table(tmp_path, "orders-eu"), iceberg_table(tmp_path, "orders.eu")
    assert not first.exists()
    with_files(first, 0)
    assert first.exists()
    with pytest.raises(ConfigError, match="two pipelines"):
        second.exists()


def test_compacting_deletes_what_no_snapshot_names(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path)
    with_files(table, 3)
    data = Path(table.path, "data")
    (data / "part-of-an-attempt-that-failed.parquet").write_bytes(b"")

    assert table.compact(MiB, keep_s=3600) == (3, 1, 0), "readers that began before are still at it"
    assert len(list(data.rglob("*.parquet"))) == 5
    assert table.compact(MiB, keep_s=0) == (1, 1, 4)
    assert len(list(data.rglob("*.parquet"))) == 1
    assert ids(table) == [0, 1, 2]


def test_compacting_leaves_large_files_and_keeps_columns_that_came_later(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path)
    stored = with_files(table, 3)
    with stored.update_schema() as update:
        update.union_by_name(pa.schema([*COLUMNS, pa.field("note", pa.string())]))
    for number in range(3, 6):
        add_file(table, stored, {"id": [number], "note": [f"n{number}"]})
    large = list(range(100, 100 + 20_000))
    add_file(table, stored, {"id": large, "note": ["large"] * len(large)})

    assert table.compact(50_000, keep_s=0)[:2] == (7, 3), "one for each set of columns, and the large one"
    assert {path.name for path in Path(table.path, "data").iterdir()} >= {"part-6.parquet"}
    rows: Any = table._opened_catalog().load_table(IDENTIFIER).scan().to_arrow()
    notes = dict(zip(rows["id"].to_pylist(), rows["note"].to_pylist(), strict=True))
    assert len(notes) == rows.num_rows == 20_006
    assert [notes[number] for number in (0, 2, 3, 5, 100)] == [None, None, "n3", "n5", "large"]


def test_compacting_leaves_rows_deleted_that_others_deleted(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path)
    stored = with_files(table, 4)
    stored.delete("id = 2")
    table.compact(MiB, keep_s=0)
    assert ids(table) == [0, 1, 3]


@pytest.mark.parametrize("step", ["merge_files", "groups_to_merge"])
def test_a_crash_while_compacting_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    table = iceberg_table(tmp_path)
    with_files(table, 3)

    def crash(*given: Any) -> None:
        if step == "merge_files":
            given[1].write_bytes(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(iceberg, step, crash)
        with pytest.raises(KeyboardInterrupt):
            table.compact(MiB, keep_s=0)
    assert ids(iceberg_table(tmp_path)) == [0, 1, 2]
    assert iceberg_table(tmp_path).compact(MiB, keep_s=0)[:2] == (3, 1)
    assert ids(iceberg_table(tmp_path)) == [0, 1, 2]


WRITER = """
import sys
from pathlib import Path
from tests.spark.pipelines.test_iceberg import iceberg_table, make_namespaces
catalog = iceberg_table(Path(sys.argv[1]))._opened_catalog()
print("ready", flush=True)
make_namespaces(catalog, "theirs")
"""


def make_namespaces(catalog: Any, whose: str) -> None:
    for number in range(20):
        catalog.create_namespace(f"{whose}_{number}")
        catalog.load_table(IDENTIFIER)


def test_two_processes_use_one_catalog_at_the_same_time(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path)
    with_files(table, 1)
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n", other.communicate()[1]
        make_namespaces(table._opened_catalog(), "ours")
        _, errors = other.communicate()
    assert other.returncode == 0, errors
    assert len(table._opened_catalog().list_namespaces()) == 41


@pytest.mark.parametrize("use", [IcebergTable.exists, lambda table: table.compact(MiB, 0)])
def test_a_catalog_that_another_program_holds_is_an_error_that_says_so(
    tmp_path: Path, use: Callable[[IcebergTable], object]
) -> None:
    with_files(iceberg_table(tmp_path), 2)
    waiting = iceberg_table(tmp_path, wait_s=0.01)
    waiting._opened_catalog()
    holder = sqlite3.connect(tmp_path / CATALOG_FILE)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            ConfigError, match="database is locked; where another program holds it, let that one finish"
        ):
            use(waiting)
    finally:
        holder.close()
    assert ids(waiting) == [0, 1]


def test_a_table_that_another_program_changes_meanwhile_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = iceberg_table(tmp_path)
    with_files(table, 2)

    def meanwhile(*given: Any) -> None:
        other = iceberg_table(tmp_path)
        add_file(other, other._opened_catalog().load_table(IDENTIFIER), {"id": [7]})
        merge_files(*given)

    with monkeypatch.context() as patch:
        patch.setattr(iceberg, "merge_files", meanwhile)
        with pytest.raises(ConfigError, match="was changed by another program meanwhile: run this again"):
            table.compact(MiB, 0)
    assert ids(table) == [0, 1, 7]
    assert table.compact(MiB, 0)[:2] == (3, 1)
