"""Upkeep of tables beside the pipeline that writes them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.pipelines import upkeep as module
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.table import Table
from penstock.spark.pipelines.upkeep import VACUUM_EVERY_S, Upkeep
from tests.spark.pipelines.rows_by_hand import ids_from

TABLES = [("bronze", "orders")]
Make = Callable[..., Upkeep]


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    values = {"name": "sales", "topics": ["orders"], "directory": str(tmp_path / "tables"), "bronze": {}}
    return Pipeline.model_validate(values)


@pytest.fixture
def upkeep(pipeline: Pipeline) -> Make:
    def make(**settings: Any) -> Upkeep:
        return Upkeep(pipeline, LocalFiles(), lambda: TABLES, **settings)

    return make


@pytest.fixture
def table(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> Table:
    """With three files, of which two are allowed."""
    monkeypatch.setattr(module, "SMALL_FILES_MAX", 2)
    opened = open_table(pipeline, "bronze", "orders")
    opened.claim("query-1", 0, "checkpoint")
    for batch_id in range(3):
        opened.append(ids_from(10 * batch_id), batch_id, small=True)
    return opened


def test_many_small_files_become_few_and_the_writer_continues(upkeep: Make, table: Table) -> None:
    upkeep().look_at_all()
    assert len(table.file_sizes()) == 1
    table.append(ids_from(30), 3, small=True)
    upkeep().look_at_all()
    assert len(table.file_sizes()) == 2, "two small ones are not many"
    assert sorted(table.batches().read_all()["id"].to_pylist()) == list(range(40))


def test_large_files_are_left_alone(upkeep: Make, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_FILE_BYTES", 1)
    upkeep().look_at_all()
    assert len(table.file_sizes()) == 3


def test_files_of_failed_attempts_are_deleted_once_a_day(upkeep: Make, table: Table) -> None:
    def leave_behind() -> Path:
        file = Path(table.path, "part-failed.parquet")
        file.write_bytes(b"rows")
        long_ago = time.time() - 2 * VACUUM_EVERY_S
        os.utime(file, (long_ago, long_ago))
        return file

    now = time.time()
    upkeep(clock=lambda: now).look_at_all()
    failed = leave_behind()
    upkeep(clock=lambda: now + VACUUM_EVERY_S - 1).look_at_all()
    assert failed.exists(), "another run on the same day does not list the whole table again"
    upkeep(clock=lambda: now + VACUUM_EVERY_S).look_at_all()
    assert not failed.exists()


def test_a_failure_is_noted_until_it_is_over(upkeep: Make, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise OSError("the disk went away")

    made = upkeep()
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLakeTable, "compact", fails)
        made.look_at_all()
    assert made.note.startswith("upkeep of bronze/orders failed: ")
    assert "the disk went away" in made.note
    made.look_at_all()
    assert made.note == ""


def test_a_table_that_is_not_there_yet_is_passed_over(upkeep: Make) -> None:
    made = upkeep()
    made.look_at_all()
    assert made.note == ""


def test_the_thread_works_from_the_start_and_ends_when_asked(upkeep: Make, table: Table) -> None:
    made = upkeep()
    made.start()
    give_up_s = time.monotonic() + 60
    while len(table.file_sizes()) > 1 and time.monotonic() < give_up_s:
        pass
    made.close()
    assert len(table.file_sizes()) == 1
