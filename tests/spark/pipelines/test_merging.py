"""Small Parquet files into large ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from penstock.spark.pipelines.tables import merging
from penstock.spark.pipelines.tables.merging import SizedFile, groups_to_merge, merge_files
from penstock.spark.pipelines.tables.stores import LocalStore

IO = PyArrowFileIO()


def file(directory: Path, name: str, size_bytes: int, **columns: list[Any]) -> SizedFile:
    path = directory / f"{name}.parquet"
    pq.write_table(pa.table(columns or {"id": [1]}), path)
    return SizedFile(str(path), size_bytes)


def names(groups: list[list[SizedFile]]) -> list[list[str]]:
    return [[Path(each.path).stem for each in group] for group in groups]


def test_small_files_are_put_together_until_they_make_a_large_one(tmp_path: Path) -> None:
    files = [file(tmp_path, name, size) for name, size in [("a", 40), ("b", 50), ("c", 30), ("large", 75), ("d", 60)]]
    assert names(groups_to_merge(IO, files, 100)) == [["a", "b"], ["c", "d"]]


def test_a_file_that_would_be_alone_stays_as_it_is(tmp_path: Path) -> None:
    assert groups_to_merge(IO, [file(tmp_path, "a", 10), file(tmp_path, "large", 90)], 100) == []


def test_files_of_other_columns_stay_apart(tmp_path: Path) -> None:
    files = [file(tmp_path, name, 10) for name in "ab"]
    files += [file(tmp_path, name, 10, id=[1], note=["x"]) for name in "cd"]
    assert names(groups_to_merge(IO, files, 100)) == [["a", "b"], ["c", "d"]]


def test_no_more_rows_are_in_memory_than_fit_the_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PIECE_BYTES_MAX", 100_000)
    values = [f"{number:01000d}" for number in range(1000)]
    files = [file(tmp_path, "a", 1, value=values[:500]), file(tmp_path, "b", 1, value=values[500:])]
    merge_files(IO, files, LocalStore(str(tmp_path)), "merged.parquet")
    with pq.ParquetFile(tmp_path / "merged.parquet") as merged:
        pieces = [merged.metadata.row_group(number).num_rows for number in range(merged.metadata.num_row_groups)]
        assert merged.read()["value"].to_pylist() == values
    assert sum(pieces) == 1000
    assert max(pieces) <= 100
