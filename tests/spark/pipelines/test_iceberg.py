"""Iceberg tables, where no Spark is needed to tell."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.pipelines.tables import iceberg
from penstock.spark.pipelines.tables.iceberg import CATALOG_FILE, IcebergTable
from penstock.spark.pipelines.tables.merging import merge_files
from penstock.spark.pipelines.tables.table import COMMIT_ATTEMPTS_MAX, VACUUM_KEEP_S_MIN
from tests.spark.pipelines.rows_by_hand import ids_from, rows_of

IDENTIFIER = ("bronze", "orders_eu")
COLUMNS = pa.schema([pa.field("id", pa.int64())])
MiB = 1 << 20


def iceberg_table(directory: Path, name: str = "orders-eu", **settings: Any) -> IcebergTable:
    return IcebergTable(None, f"{directory}/bronze/{name}", str(directory), IDENTIFIER, **settings)


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


def append(directory: Path, batch_id: int, rows: Any = None, query: str = "query-1") -> None:
    table = iceberg_table(directory)
    table.claim(query, batch_id, "checkpoint")
    table.append(ids_from(10 * batch_id) if rows is None else rows, batch_id, small=True)


def test_what_the_catalog_names_is_durable_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog syncs what it commits: metadata that a power cut makes empty would be an unreadable table."""
    synced: set[str] = set()
    fsync = os.fsync

    def note_and_sync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note_and_sync)
    append(tmp_path, 0)
    append(tmp_path, 1, rows_of(id=pa.array([10], pa.int64()), note=["x"]))
    for file_bytes in (1, MiB):
        iceberg_table(tmp_path).compact(file_bytes)
    below = Path(iceberg_table(tmp_path).path)
    files = {each.name for each in below.rglob("*") if each.is_file()}
    assert {Path(name).suffix for name in files} == {".json", ".avro", ".parquet"}
    assert {"data", "metadata", *files} <= synced


def interposed(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None], times: int = 1) -> None:
    """Let something happen between the comparison of the batch number and the commit."""
    left = [times]

    def add_late(table: IcebergTable, stored: Any, files: Any, batch_id: int) -> None:
        if left[0]:
            left[0] -= 1
            meanwhile()
        add(table, stored, files, batch_id)

    add = IcebergTable._add
    monkeypatch.setattr(IcebergTable, "_add", add_late)


def test_each_batch_is_appended_once_however_often_it_is_tried(tmp_path: Path) -> None:
    for batch_id in (0, 0, 1, 0, 1, 2, 2):
        append(tmp_path, batch_id)
    assert ids(iceberg_table(tmp_path)) == list(range(30))


@pytest.mark.parametrize("batch_id", [0, 1])
def test_two_runs_that_commit_one_batch_at_once_append_it_once(
    tmp_path: Path, batch_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for earlier in range(batch_id):
        append(tmp_path, earlier)
    interposed(monkeypatch, lambda: append(tmp_path, batch_id))
    append(tmp_path, batch_id)
    assert ids(iceberg_table(tmp_path)) == list(range(10 * (batch_id + 1)))


def test_a_batch_that_loses_the_race_to_a_compaction_is_committed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0)
    append(tmp_path, 1)

    def compact() -> None:
        assert iceberg_table(tmp_path).compact(MiB) == (2, 1)

    interposed(monkeypatch, compact)
    append(tmp_path, 2)
    assert ids(iceberg_table(tmp_path)) == list(range(30))
    assert len(iceberg_table(tmp_path).file_sizes()) == 2


def test_a_table_that_others_keep_changing_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0)
    numbers = iter(range(100))

    def other_rows() -> None:
        stored = iceberg_table(tmp_path)._opened_catalog().load_table(IDENTIFIER)
        stored.append(pa.table({"id": pa.array([1000 + next(numbers)], pa.int64())}))

    interposed(monkeypatch, other_rows, times=COMMIT_ATTEMPTS_MAX)
    with pytest.raises(ConfigError, match="was changed by another writer in each of 10 attempts"):
        append(tmp_path, 1)
    assert ids(iceberg_table(tmp_path)) == [*range(10), *range(1000, 1000 + COMMIT_ATTEMPTS_MAX)]


def test_batches_without_rows_are_recorded_and_the_next_is_appended(tmp_path: Path) -> None:
    for batch_id in (0, 1):
        append(tmp_path, batch_id, ids_from(0, 0))
    assert ids(iceberg_table(tmp_path)) == []
    append(tmp_path, 2)
    append(tmp_path, 3, ids_from(0, 0))
    append(tmp_path, 2)
    assert ids(iceberg_table(tmp_path)) == list(range(20, 30))
    assert iceberg_table(tmp_path).last_batch("query-1") == 3


@pytest.mark.parametrize("later_rows", [10, 0])
def test_a_batch_without_rows_of_a_run_that_was_overtaken_sets_no_number_back(
    tmp_path: Path, later_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(tmp_path, 0)

    def overtake() -> None:
        append(tmp_path, 1, ids_from(0, 0))
        append(tmp_path, 2, ids_from(20, later_rows))

    interposed(monkeypatch, overtake)
    append(tmp_path, 1, ids_from(0, 0))
    assert iceberg_table(tmp_path).last_batch("query-1") == 2
    append(tmp_path, 2, ids_from(20, later_rows))
    assert ids(iceberg_table(tmp_path)) == [*range(10), *range(20, 20 + later_rows)]


def test_a_table_and_a_checkpoint_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is gone, but its checkpoint"):
        append(tmp_path, 3)
    append(tmp_path, 0)
    with pytest.raises(ConfigError, match="was not written with checkpoint"):
        append(tmp_path, 0, query="query-2")


def test_a_batch_with_another_column_widens_the_table(tmp_path: Path) -> None:
    append(tmp_path, 0)
    append(tmp_path, 1, rows_of(id=pa.array([10], pa.int64()), note=["new"]))
    rows = iceberg_table(tmp_path).batches().read_all().sort_by("id")
    assert rows["note"].to_pylist() == [None] * 10 + ["new"]


def test_a_catalog_is_any_that_the_library_knows(tmp_path: Path) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/elsewhere.db", "warehouse": f"file://{tmp_path}"}
    table = iceberg_table(tmp_path, catalog=properties)
    table.claim("query-1", 0, "checkpoint")
    table.append(ids_from(0), 0, small=True)
    assert ids(table) == list(range(10))
    assert (tmp_path / "elsewhere.db").exists()
    assert not (tmp_path / CATALOG_FILE).exists()


def test_vacuum_deletes_what_no_snapshot_names_and_never_files_of_a_batch_under_way(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path)
    with_files(table, 3)
    data = Path(table.path, "data")
    failed, under_way = data / "part-of-a-failed-attempt.parquet", data / "part-new.parquet"
    for file in (failed, under_way):
        file.write_bytes(b"")
    long_ago = time.time() - 2 * VACUUM_KEEP_S_MIN
    os.utime(failed, (long_ago, long_ago))

    assert table.compact(MiB) == (3, 1)
    assert table.vacuum(VACUUM_KEEP_S_MIN) == 1
    assert not failed.exists()
    assert under_way.exists()
    assert len(list(data.rglob("*.parquet"))) == 5, "replaced files stay for readers that began before"
    assert ids(table) == [0, 1, 2]
    with pytest.raises(InvalidRequest, match="must be kept for at least 24 h"):
        table.vacuum(60)


def test_compacting_leaves_large_files_and_keeps_columns_that_came_later(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path)
    stored = with_files(table, 3)
    with stored.update_schema() as update:
        update.union_by_name(pa.schema([*COLUMNS, pa.field("note", pa.string())]))
    for number in range(3, 6):
        add_file(table, stored, {"id": [number], "note": [f"n{number}"]})
    large = list(range(100, 100 + 20_000))
    add_file(table, stored, {"id": large, "note": ["large"] * len(large)})

    assert table.compact(50_000) == (7, 3), "one for each set of columns, and the large one"
    assert {path.name for path in Path(table.path, "data").iterdir()} >= {"part-6.parquet"}
    rows: Any = table._opened_catalog().load_table(IDENTIFIER).scan().to_arrow()
    notes = dict(zip(rows["id"].to_pylist(), rows["note"].to_pylist(), strict=True))
    assert len(notes) == rows.num_rows == 20_006
    assert [notes[number] for number in (0, 2, 3, 5, 100)] == [None, None, "n3", "n5", "large"]


def test_compacting_leaves_rows_deleted_that_others_deleted(tmp_path: Path) -> None:
    table = iceberg_table(tmp_path)
    stored = with_files(table, 4)
    stored.delete("id = 2")
    table.compact(MiB)
    assert ids(table) == [0, 1, 3]


@pytest.mark.parametrize("step", ["merge_files", "groups_to_merge"])
def test_a_crash_while_compacting_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    table = iceberg_table(tmp_path)
    with_files(table, 3)

    def crash(*given: Any) -> None:
        if step == "merge_files":
            _, _, store, name = given
            Path(store.directory, name).write_bytes(b"half of it")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(iceberg, step, crash)
        with pytest.raises(KeyboardInterrupt):
            table.compact(MiB)
    assert ids(iceberg_table(tmp_path)) == [0, 1, 2]
    assert iceberg_table(tmp_path).compact(MiB) == (3, 1)
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


@pytest.mark.parametrize("use", [IcebergTable.exists, lambda table: table.compact(MiB)])
def test_a_catalog_that_another_program_holds_is_an_error_that_says_so(
    tmp_path: Path, use: Callable[[IcebergTable], object]
) -> None:
    with_files(iceberg_table(tmp_path), 2)
    waiting = iceberg_table(tmp_path, wait_s=0.01)
    waiting._opened_catalog()
    holder = sqlite3.connect(tmp_path / CATALOG_FILE)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ConfigError, match="database is locked; if another program holds it, let that one finish"):
            use(waiting)
    finally:
        holder.close()
    assert ids(waiting) == [0, 1]


def test_a_compaction_that_loses_the_race_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = iceberg_table(tmp_path)
    for batch_id in range(2):
        append(tmp_path, batch_id)
    raced: list[bool] = []

    def meanwhile(*given: Any) -> None:
        if not raced:
            raced.append(True)
            append(tmp_path, 2)
        merge_files(*given)

    monkeypatch.setattr(iceberg, "merge_files", meanwhile)
    assert table.compact(MiB) == (3, 1)
    assert ids(table) == list(range(30))
    append(tmp_path, 2)
    assert ids(table) == list(range(30)), "the number of the last batch is still there"
