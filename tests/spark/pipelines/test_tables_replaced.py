"""All rows of a table replaced by others, as a rebuild does, in both formats. No Spark is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, InvalidRequest
from tests.spark.pipelines.rows_by_hand import ids_from, keys, rows_of
from tests.spark.pipelines.table_formats import QUERY, Made, states

MiB = 1 << 20
TEXT = pa.schema([("id", pa.string())])


def append(made: Made, batch_id: int, rows: Any = None) -> None:
    made.claimed(batch_id).append(ids_from(10 * batch_id) if rows is None else rows, batch_id, small=True)


def ids(made: Made) -> list[Any]:
    return sorted(row["id"] for row in made.rows())


def test_every_row_is_replaced_only_if_nothing_was_committed_meanwhile(made: Made) -> None:
    for batch in range(3):
        append(made, batch)
    table = made.claimed(2)
    files = made.files(rows_of(id=["x", "y"]))
    stale = table.handle()
    append(made, 3)
    assert not table.replace(stale, QUERY, 2, files, TEXT)
    stale = table.handle()
    table.compact(MiB)
    assert not table.replace(stale, QUERY, 3, files, TEXT)
    assert ids(made) == list(range(40)), "the rows are what they were"
    for batch in (4, 5):
        append(made, batch)
    assert table.replace(table.handle(), QUERY, 5, files, TEXT)
    assert ids(made) == ["x", "y"]
    version = table.log.version()
    assert version is not None
    assert table.log.commit(version).is_rebuild
    append(made, 6, rows_of(id=["z"]))
    assert (ids(made), table.last_batch(QUERY)) == (["x", "y", "z"], 6)
    assert table.compact(MiB).files_after == 1
    assert ids(made) == ["x", "y", "z"]


def test_readers_see_the_rows_of_before_until_all_are_replaced_at_once(made: Made) -> None:
    table = made.claimed()
    append(made, 0, rows_of(id=[1, 2], amount=[1, 2], gone=["a", "b"]))
    append(made, 1, rows_of(id=[3], amount=[3], gone=["c"]))
    columns = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("note", pa.string())])
    files = made.files(rows_of(id=[1, 2, 3], amount=[1.5, 2.5, 3.5], note=["x", None, "z"]))
    assert table.replace(table.handle(), QUERY, 1, files, columns)
    seen = [state.to_pylist() for state in states(made.open())]
    assert [sorted(row["id"] for row in state) for state in seen] == [[1, 2], [1, 2, 3], [1, 2, 3]]
    # The older states of an Iceberg table keep a column of another type, and its values are found no more.
    assert [row["amount"] for row in seen[0]] == ([1, 2] if made.format == "delta" else [None, None])
    rows = sorted(made.rows(), key=lambda row: int(row["id"]))
    assert rows == [
        {"id": 1, "amount": 1.5, "note": "x"},
        {"id": 2, "amount": 2.5, "note": None},
        {"id": 3, "amount": 3.5, "note": "z"},
    ]
    assert sorted(seen[-1], key=lambda row: int(row["id"])) == rows
    append(made, 2, rows_of(id=[4], amount=[4.5], note=["w"]))
    assert {row["id"]: row["amount"] for row in made.rows()} == {1: 1.5, 2: 2.5, 3: 3.5, 4: 4.5}


def test_a_table_is_replaced_by_nothing_and_in_its_partitions(made: Made) -> None:
    by = ["country"]
    table = made.claimed(partition_by=by)
    rows = rows_of(id=[1, 2, 3], country=["DE", "FR", None])
    table.append(rows, 0, small=True)
    columns = pa.schema([("id", pa.int64()), ("country", pa.string())])
    assert table.replace(table.handle(), QUERY, 0, [], columns)
    assert (made.rows(), table.last_batch(QUERY)) == ([], 0)
    assert table.replace(table.handle(), QUERY, 0, made.files(rows, by), columns)
    assert ids(made) == [1, 2, 3]
    assert made.files_with("country", "FR") == 1
    other = made.claimed()
    with pytest.raises(ConfigError, match="is partitioned by country, and the file says nothing"):
        other.replace(other.handle(), QUERY, 0, [], columns)


def test_an_iceberg_table_is_not_replaced_where_a_column_of_its_partitions_changes_type(tmp_path: Path) -> None:
    made = Made(tmp_path, "iceberg")
    table = made.claimed(partition_by=["id"])
    table.append(ids_from(0, 2), 0, small=True)
    with pytest.raises(ConfigError, match="is partitioned by id, which would change its type"):
        table.replace(table.handle(), QUERY, 0, made.files(rows_of(id=["x"]), ["id"]), TEXT)
    assert ids(made) == [0, 1]


def test_a_table_that_is_not_there_is_made_by_replacing_nothing(made: Made) -> None:
    table = made.claimed()
    files = made.files(rows_of(id=["x"]))
    assert table.handle() is None
    assert table.replace(None, QUERY, 5, files, TEXT)
    assert (ids(made), table.last_batch(QUERY)) == (["x"], 5)
    assert not table.replace(None, QUERY, 5, files, TEXT), "somebody else has made it"


def test_the_history_tells_of_batches_what_they_brought(made: Made) -> None:
    table = made.claimed()
    for batch in range(3):
        append(made, batch)
    versions = [table.log.version_of_batch(QUERY, batch) for batch in range(3)]
    table.compact(MiB)
    newest = table.log.version()
    assert newest is not None
    assert table.log.version_of_batch(QUERY, 2) == newest
    assert table.log.version_of_batch(QUERY, 1) == versions[1]
    assert [sum(file.rows for file in table.log.files(version)) for version in versions] == [10, 20, 30]
    commits = [table.log.commit(version) for version in range(versions[0] + 1, newest + 1)]
    assert [sum(file.rows for file in commit.added) for commit in commits] == [10, 10, 0]
    assert [dict(commit.batches) for commit in commits] == [{QUERY: 1}, {QUERY: 2}, {}]
    assert not any(commit.deletes or commit.is_rebuild for commit in commits)
    assert len(table.log.files(newest)) == 1
    assert table.log.has_files(table.log.files(versions[2]))
    with pytest.raises(ConfigError, match=r"batch -1 is not in table|no longer in its history"):
        table.log.version_of_batch(QUERY, -1)


def test_a_column_that_changes_the_case_of_its_name_is_refused_until_the_rows_are_replaced(made: Made) -> None:
    """The Delta library takes it for another column, and reads the rows as null."""
    append(made, 0)
    upper = rows_of(Id=pa.array([10], pa.int64()), key=keys(10))
    with pytest.raises(InvalidRequest, match="has a column Id, and the table has it as id"):
        made.claimed(1).append(upper, 1, small=True)
    with pytest.raises(InvalidRequest, match="has a column Id, and the table has it as id"):
        made.claimed(1).merge(upper, keys(), ["Id"], 1)
    table = made.open()
    with pytest.raises(InvalidRequest, match="version 2 has a column Id"):
        table.check_columns(upper.schema, "version 2", "")
    assert ids(made) == list(range(10))
    assert table.replace(table.handle(), QUERY, 0, made.files(upper), table.columns_of(upper))
    made.claimed(1).append(rows_of(Id=pa.array([11], pa.int64()), key=keys(11)), 1, small=True)
    assert sorted(row["Id"] for row in made.rows()) == [10, 11]
