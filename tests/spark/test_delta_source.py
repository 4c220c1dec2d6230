"""A Delta table as a stream, asked by hand as Spark would."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyspark.sql.streaming.datasource import ReadAllAvailable

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark import delta_source
from penstock.spark.delta_source import DeltaDataSource, DeltaStreamReader
from penstock.spark.pipelines.progress import Counts, Progress
from penstock.spark.pipelines.tables.delta_log import REBUILD

ALL = ReadAllAvailable()


class Stream:
    """A query with its checkpoint: what it has read, and how far it is."""

    def __init__(self, path: str, **options: str) -> None:
        self._options = {"path": path, **options}
        self.offset: dict[str, Any] = {"version": -1}
        self.ids: list[int] = []

    def reader(self) -> DeltaStreamReader:
        from pyspark.sql.types import LongType, StructField, StructType

        source = DeltaDataSource(self._options)
        made = source.streamReader(StructType([StructField("id", LongType())]))
        assert isinstance(made, DeltaStreamReader)
        made.prepareForTriggerAvailableNow()
        return made

    def run(self) -> list[int]:
        """Read all there is, as a run of a query does; return what is new."""
        reader, read = self.reader(), []
        while (end := reader.latestOffset(self.offset, ALL)) != self.offset:
            for task in reader.partitions(self.offset, end):
                for batch in reader.read(task):
                    read += batch.column("id").to_pylist()
            self.offset = end
        self.ids += read
        return read


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def position(path: str, version: int, records: int) -> dict[str, Any]:
    return {"version": version, "records": records, "table": str(DeltaTable(path).metadata().id)}


def write(path: str, *ids: int, **settings: Any) -> None:
    write_deltalake(path, pa.table({"id": pa.array(ids, pa.int64())}), **{"mode": "append", **settings})


def test_every_row_comes_once_and_compactions_are_not_seen(path: str) -> None:
    stream = Stream(path)
    assert stream.run() == [], "a table that is not there yet has no rows"
    write(path, 1, 2)
    write(path, 3)
    DeltaTable(path).optimize.compact()
    assert sorted(stream.run()) == [1, 2, 3]
    assert stream.run() == []
    write(path, 4)
    write(path, 5)
    DeltaTable(path).optimize.compact()
    write(path, 6)
    assert stream.run() == [4, 5, 6]
    assert stream.offset == position(path, 6, 6)


def test_a_rebuild_brings_no_new_rows_and_other_changes_are_refused_or_passed_over(path: str) -> None:
    write(path, 1)
    stream, patient = Stream(path), Stream(path, ignoreChanges="true")
    stream.run()
    patient.run()
    rebuilt = CommitProperties(custom_metadata={REBUILD: "0"})
    write(path, 10, mode="overwrite", commit_properties=rebuilt)
    write(path, 2)
    assert stream.run() == [2]
    DeltaTable(path).delete("id = 2")
    write(path, 3)
    with pytest.raises(InvalidRequest, match=r"version 3 of table .* changes or deletes rows"):
        stream.run()
    assert patient.run() == [2, 3]


@pytest.mark.parametrize("commits", [1, 3, 5])
def test_a_table_that_was_made_again_ends_the_stream(path: str, commits: int) -> None:
    for number in range(3):
        write(path, number)
    stopped, running = Stream(path), Stream(path)
    stopped.run()
    reader = running.reader()
    running.offset = reader.latestOffset(running.offset, ALL)
    begun = position(path, 1, 2)
    reader._target = None
    shutil.rmtree(path)
    for number in range(commits):
        write(path, 10 + number)
    if commits == 3:
        assert reader.latestOffset(running.offset, ALL) == running.offset
        write(path, 20)
    for action in (
        stopped.run,
        lambda: reader.latestOffset(running.offset, ALL),
        lambda: stopped.reader().partitions(begun, stopped.offset),
    ):
        with pytest.raises(ConfigError, match=r"was removed, or replaced by another, .* its directories in gold"):
            action()


def test_a_checkpoint_that_does_not_name_the_table_continues_and_names_it_from_then_on(path: str) -> None:
    write(path, 1)
    stream = Stream(path)
    stream.run()
    del stream.offset["table"]
    assert stream.run() == []
    write(path, 2)
    assert stream.run() == [2]
    assert stream.offset == position(path, 1, 2)


def test_a_batch_has_a_bound(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_source, "COMMITS_MAX", 2)
    write(path, 0)
    stream = Stream(path)
    stream.run()
    for number in range(1, 6):
        write(path, number)
    assert stream.reader().latestOffset(stream.offset, ALL) == position(path, 2, 3)
    assert stream.run() == [1, 2, 3, 4, 5]


def test_what_waits_is_told_in_records_and_rebuilds_and_compactions_bring_none(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_source, "COMMITS_MAX", 4)
    write(path, 1, 2, 3)
    stream = Stream(path)
    stream.run()
    progress = Progress(["gold/orders"])

    def lag(start: dict[str, Any]) -> int:
        reader = stream.reader()
        end = reader.latestOffset(start, ALL)
        sources = [{"endOffset": json.dumps(end), "latestOffset": json.dumps(reader.reportLatestOffset())}]
        progress.batch("gold/orders", {"sources": sources}, Counts())
        return progress.stages()[0].lag

    assert lag(stream.offset) == 0
    for number in range(10, 14):
        write(path, number, number)
    write(path, 20, 21, 22)
    DeltaTable(path).optimize.compact()
    write(path, 30, mode="overwrite", commit_properties=CommitProperties(custom_metadata={REBUILD: "0"}))
    write(path, 40, 41)
    assert lag({"version": -1}) == 0, "the first batch is the table as it is"
    assert lag(stream.offset) == 3 + 2, "after the four commits of the batch"
    write(path, 50)
    assert lag(stream.offset) == 3 + 2, "four commits more are looked at"
    old = {"version": stream.offset["version"]}
    assert lag(old) == 3 + 2, "a checkpoint of an earlier version has no number of records"
    stream.run()
    assert lag(stream.offset) == 0
    write(path, 60)
    reader = stream.reader()
    assert reader.reportLatestOffset() is None
    reader.latestOffset(stream.offset, ALL)
    write(path, 61, 62)
    assert reader.reportLatestOffset() == position(path, 11, stream.offset["records"] + 3)


def test_columns_come_from_the_log_and_the_schema_where_a_file_has_them_not(path: str) -> None:
    from pyspark.sql.types import DateType, LongType, StringType, StructField, StructType

    day = pa.array([date(2026, 1, 1)], pa.date32())
    write_deltalake(path, pa.table({"id": pa.array([1]), "day": day}), partition_by=["day"])
    schema = StructType(
        [StructField("id", LongType()), StructField("day", DateType()), StructField("note", StringType())]
    )
    reader = DeltaDataSource({"path": path}).reader(schema)
    [task] = reader.partitions()
    batches: list[Any] = list(reader.read(task))
    assert batches[0].to_pylist() == [{"id": 1, "day": date(2026, 1, 1), "note": None}]
    assert [field.name for field in DeltaDataSource({"path": path}).schema().fields] == ["id", "day"]


def test_what_cannot_be_read_says_why(path: str) -> None:
    with pytest.raises(InvalidRequest, match="needs the path of a Delta table"):
        DeltaDataSource({}).schema()
    with pytest.raises(ConfigError, match="there is no Delta table in"):
        DeltaDataSource({"path": path}).schema()
    write(path, 1)
    stream = Stream(path)
    stream.run()
    stream.offset = {"version": 7}
    with pytest.raises(ConfigError, match="was removed, or replaced by another"):
        stream.run()
    stream.offset = {"orders": {"0": 3}}
    with pytest.raises(InvalidRequest, match='set from = "topic"'):
        stream.run()
    stream.offset = {"version": -1}
    for file in Path(path).glob("*.parquet"):
        file.unlink()
    with pytest.raises(ConfigError, match="vacuumed before it was read"):
        stream.run()


def test_options_of_the_library_have_names_that_spark_does_not_show() -> None:
    from penstock.spark.delta_source import _place

    given = {"path": "s3://lake/orders", "Storage.Secret.AWS_REGION": "eu", "ignoreChanges": "true"}
    assert _place(given) == ("s3://lake/orders", {"aws_region": "eu"})


def test_spark_finds_the_source_by_itself() -> None:
    import pyspark_penstock_delta

    assert pyspark_penstock_delta.DefaultSource is DeltaDataSource
