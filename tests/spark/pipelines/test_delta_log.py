"""The log of a Delta table, commit by commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from penstock.errors import ConfigError
from penstock.spark.pipelines.tables.delta_log import DeltaLog, parse_commit


def number(batch: int) -> CommitProperties:
    return CommitProperties(app_transactions=[Transaction("q", batch)])


def append(path: str, batch: int, rows: int = 10) -> None:
    write_deltalake(path, pa.table({"id": pa.array([batch] * rows)}), mode="append", commit_properties=number(batch))


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    return DeltaLog(str(tmp_path / "table"), {})


def test_rows_that_come_in_are_told_from_rows_that_are_moved(log: DeltaLog) -> None:
    assert log.version() is None
    for batch in range(3):
        append(log.path, batch)
    DeltaTable(log.path).optimize.compact()
    appended, compacted = log.commit(2), log.commit(3)
    assert (len(appended.added), appended.deletes, appended.batches) == (1, False, {"q": 2})
    assert (compacted.added, compacted.deletes) == ((), False)
    assert [len(log.files(version)) for version in range(4)] == [1, 2, 3, 1]
    assert (log.has(3), log.has(4)) == (True, False)
    DeltaTable(log.path).delete("id = 1")
    assert log.commit(4).deletes


def test_the_version_that_has_a_batch_and_none_after_it_is_found(log: DeltaLog) -> None:
    append(log.path, 0)
    append(log.path, 1)
    DeltaTable(log.path).optimize.compact()
    append(log.path, 2)
    DeltaTable(log.path).optimize.compact()
    assert [log.version_of_batch("q", batch) for batch in (0, 1, 2, 7)] == [0, 2, 4, 4]
    with pytest.raises(ConfigError, match="batch 0 is not in table"):
        log.version_of_batch("another query", 0)


def test_a_commit_that_is_gone_is_an_error_that_says_what_to_do(log: DeltaLog) -> None:
    append(log.path, 0)
    with pytest.raises(ConfigError, match=r"version 5 of table .* is no longer in its log"):
        log.commit(5)


def test_names_in_a_commit_are_those_of_files() -> None:
    commit = parse_commit(
        7, '{"add": {"path": "country=F%252FR/a.parquet", "size": 3, "partitionValues": {"country": "F/R"}}}'
    )
    assert commit.added[0] == ("country=F%2FR/a.parquet", 3, {"country": "F/R"}, 0)
