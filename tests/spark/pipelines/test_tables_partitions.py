"""Tables in partitions, in both formats. No Spark is needed."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from penstock.errors import ConfigError
from tests.spark.pipelines.rows_by_hand import keys, rows_of
from tests.spark.pipelines.table_formats import Made


def countries(start: int, *names: str | None) -> Any:
    return rows_of(id=pa.array(range(start, start + len(names)), pa.int64()), country=pa.array(names, pa.string()))


def test_rows_are_filed_by_their_values_whatever_those_are(made: Made) -> None:
    table = made.claimed(partition_by=["country"])
    table.append(countries(0, "DE", "F/R ä%", None, "DE"), 0, small=True)
    table.append(countries(4, "F/R ä%"), 1, small=True)
    rows = sorted(made.rows(), key=lambda row: int(row["id"]))
    assert [row["country"] for row in rows] == ["DE", "F/R ä%", None, "DE", "F/R ä%"]
    assert [made.files_with("country", name) for name in ("DE", "F/R ä%", "FR")] == [1, 2, 0]
    assert table.compact(1 << 20).files_after == 3
    assert sorted(made.rows(), key=lambda row: int(row["id"])) == rows
    assert table.batches().read_all().num_rows == table.row_count() == 5
    other = made.claimed(2)
    with pytest.raises(ConfigError, match="is partitioned by country, and the file says nothing"):
        other.append(countries(5, "DE"), 2, small=True)


def test_a_reader_that_takes_values_from_directories_sees_them_too(tmp_path: Path) -> None:
    made = Made(tmp_path, "delta")
    table = made.claimed(partition_by=["country"])
    names = ["DE", "New York", "F/R ä%", "%41", "a=b", "..", None]
    for batch_id in range(2):
        table.append(countries(10 * batch_id, *names), batch_id, small=True)
    for _ in range(2):
        rows = pl.read_delta(made.path).sort("id")
        assert rows["country"].to_list() == [*names, *names]
        table.compact(1 << 20)
    assert len(table.file_sizes()) == len(names)


def test_columns_of_every_kind_that_is_allowed_divide_a_table(made: Made) -> None:
    by = ["day", "number", "is_paid", "text"]
    table = made.claimed(partition_by=by)
    values: dict[str, list[Any]] = {
        "day": [date(2026, 1, 31), date(1969, 12, 31), None, date(2026, 1, 31)],
        "number": [1, -(2**40), None, 1],
        "is_paid": [True, False, None, True],
        "text": ["a", "b", None, "a"],
    }
    kinds = {"day": pa.date32(), "number": pa.int64(), "is_paid": pa.bool_(), "text": pa.string()}
    columns = {name: pa.array(values[name], kind) for name, kind in kinds.items()}
    table.append(rows_of(id=pa.array(range(4), pa.int64()), **columns), 0, small=True)
    rows = sorted(made.rows(), key=lambda row: int(row["id"]))
    assert [{name: row[name] for name in by} for row in rows] == [
        {name: values[name][place] for name in by} for place in range(4)
    ]
    assert len(table.file_sizes()) == 3
    assert [made.files_with(name, values[name][1]) for name in by] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("column", "message"),
    [("price", "which is double: use columns of text"), ("nowhere", "which the rows do not have: price")],
)
def test_a_table_is_not_partitioned_by_just_anything(made: Made, column: str, message: str) -> None:
    table = made.claimed(partition_by=[column])
    with pytest.raises(ConfigError, match=message):
        table.append(rows_of(price=[1.5]), 0, small=True)
    assert not table.exists()


def test_an_iceberg_table_has_no_partition_of_a_value_without_bounds(tmp_path: Path) -> None:
    made = Made(tmp_path, "iceberg")
    table = made.claimed(partition_by=["text"])
    table.append(rows_of(text=["x" * 1000]), 0, small=True)
    with pytest.raises(ConfigError, match="a value of text is too long to partition by"):
        table.append(rows_of(text=["x" * 100_000]), 1, small=True)
    assert [len(row["text"]) for row in made.rows()] == [1000]


def test_a_delta_table_has_no_partition_whose_directory_cannot_be_named(tmp_path: Path) -> None:
    made = Made(tmp_path, "delta")
    table = made.claimed(partition_by=["country"])
    longest = "ä" * 41
    for batch_id in range(2):
        table.append(countries(batch_id, longest), batch_id, small=True)
    assert table.compact(1 << 20) == (2, 1)
    longer = countries(2, f"{longest}ä")
    with pytest.raises(ConfigError, match="a value of country is too long to partition by"):
        table.append(longer, 2, small=True)
    with pytest.raises(ConfigError, match="a value of country is too long to partition by"):
        table.merge(longer, keys(), ["id"], 2)
    assert [row["country"] for row in made.rows()] == [longest] * 2


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_of_an_empty_text_are_replaced_and_deleted_by_their_keys(made: Made, compacted: bool) -> None:
    def rows(*numbers: int, owner: str = "") -> Any:
        return rows_of(
            id=pa.array(numbers, pa.int64()),
            country=pa.array([""] * len(numbers), pa.string()),
            owner=pa.array([owner] * len(numbers), pa.string()),
            key=keys(*numbers),
        )

    table = made.claimed(partition_by=["country"])
    for batch_id in range(2):
        table.append(rows(2 * batch_id, 2 * batch_id + 1, owner="a"), batch_id, small=True)
    if compacted:
        assert table.compact(1 << 20) == (2, 1)
    by = ["country", "id"]
    table.merge(rows(0, owner="b"), keys(1), by, 2)
    assert sorted((row["id"], row["owner"]) for row in made.rows()) == [(0, "b"), (2, "a"), (3, "a")]
    table.merge(rows(0, owner="c"), keys(0, 2), by, 3)
    assert sorted((row["id"], row["owner"]) for row in made.rows()) == [(0, "c"), (3, "a")], "0 was written again"


def test_an_empty_text_of_a_delta_table_is_null_in_its_log_too(tmp_path: Path) -> None:
    table = Made(tmp_path, "delta").claimed(partition_by=["country"])
    table.append(countries(0, "", "DE"), 0, small=True)
    found = [table.log.files(0), table.log.commit(0).added]
    assert [sorted(str(file.partition_values["country"]) for file in files) for files in found] == [["DE", "None"]] * 2


def test_the_day_of_the_timestamp_is_a_column_to_partition_by(made: Made) -> None:
    at = [datetime(2026, 1, 31, 23, 59, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)]
    with_day = pa.table({"timestamp": pa.array(at, pa.timestamp("us", "UTC")), "date": [each.date() for each in at]})
    table = made.claimed(partition_by=["date"])
    rows = rows_of(timestamp=pa.array(at, pa.timestamp("us", "UTC")))
    rows.selectExpr = lambda *expressions: rows_of(**{name: with_day[name] for name in with_day.column_names})
    table.append(rows, 0, small=True)
    assert sorted(row["date"] for row in made.rows()) == [each.date() for each in at]
    assert len(table.file_sizes()) == 2


def test_every_directory_on_the_way_to_a_file_is_durable(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was synced in a directory that was not may be gone after a power cut."""
    durable: set[str] = set()
    fsync = os.fsync

    def note_and_sync(descriptor: int) -> None:
        fsync(descriptor)
        synced = Path(f"/proc/self/fd/{descriptor}").readlink()
        if synced.is_dir():
            durable.update(str(each) for each in synced.iterdir())

    def missing() -> list[str]:
        files = [each for each in Path(made.path).rglob("*") if each.suffix in (".parquet", ".json", ".avro")]
        way = {str(each) for file in files for each in (file, *file.parents) if tmp_path in each.parents}
        return sorted(way - durable)

    monkeypatch.setattr(os, "fsync", note_and_sync)
    table = made.claimed(partition_by=["country"])
    for batch_id in range(2):
        table.append(countries(batch_id, "DE", "FR"), batch_id, small=True)
        assert missing() == []
    for batch_id, country in ((2, "IT"), (3, "ES")):
        rows = rows_of(id=pa.array([9], pa.int64()), country=[country], key=keys(9))
        table.merge(rows, keys(), ["id"], batch_id)
        assert missing() == []
    table.compact(1 << 20)
    assert missing() == []
