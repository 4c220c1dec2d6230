"""Compacting a Parquet table: the same rows in fewer files, at every moment and after a crash at any step."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import ConfigError
from penstock.spark.pipelines.tables import parquet_compaction, parquet_log
from penstock.spark.pipelines.tables.parquet_compaction import compact
from penstock.spark.pipelines.tables.parquet_log import LOG, entries_of, entry_for
from penstock.spark.pipelines.tables.table import Compacted

LARGE = 1 << 20


class Table:
    """A table as Spark's file sink leaves it: a file a batch, a log entry a batch, a `.compact` every third."""

    def __init__(self, directory: Path, batches: int, compact_every: int = 10) -> None:
        self.path = directory
        self.log = directory / LOG
        self.log.mkdir(parents=True)
        self._compact_every = compact_every
        for number in range(batches):
            self.append(number, [number * 10, number * 10 + 1])

    def append(self, number: int, values: list[int], **columns: list[str]) -> None:
        file = self.path / f"part-00000-{number}.parquet"
        pq.write_table(pa.table({"id": values, **columns}), file)
        before = entries_of(self.log)
        if (number + 1) % self._compact_every == 0:
            (self.log / f"{number}.compact").write_text(
                "\n".join(["v1", *(e.line for e in [*before, entry_for(file)])])
            )
        else:
            (self.log / str(number)).write_text(f"v1\n{entry_for(file).line}")

    def ids(self) -> list[int]:
        tables = [pq.read_table(entry.path, columns=["id"]) for entry in entries_of(self.log)]
        return sorted(value for table in tables for value in table["id"].to_pylist())

    def files(self) -> int:
        return len(list(self.path.glob("*.parquet")))

    def compact(self, keep_s: float = 0.0, now_s: float = 1e10) -> Compacted:
        return compact(self.path, file_bytes=LARGE, keep_s=keep_s, now_s=now_s)


@pytest.mark.parametrize(("batches", "compact_every"), [(1, 3), (2, 3), (3, 3), (8, 3), (25, 10)])
def test_the_rows_stay_the_same_in_fewer_files_and_the_log_goes_on_after_its_last_batch(
    tmp_path: Path, batches: int, compact_every: int
) -> None:
    table = Table(tmp_path / "t", batches, compact_every)
    before, names = table.ids(), set(parquet_log.names_of(table.log))
    result = table.compact()
    assert (result.files_before, result.files_after) == (batches, 1)
    assert table.ids() == before
    assert table.files() == 1
    assert set(parquet_log.names_of(table.log)) == names, "Spark counts batches by these names"
    table.append(batches, [-1])
    assert table.ids() == [-1, *before]


def test_replaced_files_stay_for_readers_until_their_time_is_over(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", 4)
    assert table.compact(keep_s=3600, now_s=1e10).deleted_files == 0
    assert table.files() == 5
    assert table.compact(keep_s=3600, now_s=1e10 + 3599).deleted_files == 0
    assert table.compact(keep_s=3600, now_s=1e10 + 3600).deleted_files == 4
    assert (table.files(), len(table.ids())) == (1, 8)
    assert [each.name for each in table.path.iterdir() if each.is_dir()] == [LOG]


def test_large_files_are_left_alone(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", 2)
    result = compact(table.path, file_bytes=100, keep_s=0, now_s=1e10)
    assert (result.files_before, result.files_after) == (2, 2)


def test_files_with_other_columns_are_merged_among_themselves(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", 2)
    table.append(2, [5], note=["x"])
    table.append(3, [6], note=["y"])
    assert table.compact().files_after == 2
    assert table.ids() == [0, 1, 5, 6, 10, 11]


def test_what_no_log_names_is_deleted(tmp_path: Path) -> None:
    table = Table(tmp_path / "t", 1)
    (table.path / "part-of-a-failed-task.parquet").write_bytes(b"half a file")
    (table.path / ".part-of-a-failed-task.parquet.crc").write_bytes(b"crc")
    assert table.compact().deleted_files == 1
    assert table.ids() == [0, 1]
    assert not list(table.path.glob(".part*"))


class Crash(Exception):
    pass


@pytest.mark.parametrize("step", ["merge_files", "write_log", "exchange", "after_exchange"])
def test_a_crash_at_any_step_loses_nothing_and_the_next_run_cleans_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    table = Table(tmp_path / "t", 5, compact_every=3)
    before = table.ids()

    def crash(*args: object, **kwargs: object) -> None:
        if step == "after_exchange":
            parquet_log.exchange(*args)  # type: ignore[arg-type]
        if step == "write_log":
            assert isinstance(args[0], Path)
            args[0].mkdir()
            (args[0] / "2.compact").write_text('v1\n{"path": "half a li')
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(parquet_compaction, "exchange" if step == "after_exchange" else step, crash)
        with pytest.raises(Crash):
            table.compact()
    assert table.ids() == before
    result = table.compact()
    assert (result.files_after, table.ids(), table.files()) == (1, before, 1)


def test_a_directory_that_is_no_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no table that a pipeline wrote"):
        compact(tmp_path, file_bytes=LARGE, keep_s=0, now_s=0)


def test_paths_with_odd_characters_survive(tmp_path: Path) -> None:
    table = Table(tmp_path / "shop%2Forders and more", 3)
    line = json.loads(entries_of(table.log)[0].line)
    assert line["path"].endswith("/shop%252Forders%20and%20more/part-00000-0.parquet")
    table.compact()
    assert len(table.ids()) == 6
