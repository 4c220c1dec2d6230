"""Rebuilds of silver that lacks batches, are interrupted, or come after bronze was compacted and vacuumed. Real tables, without Spark."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.driver_rows import Rows
from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.delta_source import DeltaStreamReader
from penstock.spark.pipelines import rebuild
from penstock.spark.pipelines.decoding import RAW_COLUMNS, REASON
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.rebuild import Rebuild, Rebuilt
from penstock.spark.pipelines.silver import Sorted, silver_columns
from penstock.spark.pipelines.tables import delta, iceberg
from penstock.spark.pipelines.tables.data_files import DataFile, Partitioning, write_data_files
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.delta_log import LOG, DeltaLog
from penstock.spark.pipelines.tables.history import AddedFile
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from penstock.spark.pipelines.tables.table import Table
from penstock.spark.pipelines.topic_stage import TOPICS
from penstock.spark.schema import chosen_schema
from tests.spark.pipelines.table_formats import FORMATS

QUERY, TOPIC = "query-1", "orders"
RAW = to_arrow_schema(chosen_schema(RAW_COLUMNS), timezone="UTC")
REJECTED = to_arrow_schema(chosen_schema(RAW_COLUMNS).add(REASON, "string"), timezone="UTC")
SILVER = to_arrow_schema(silver_columns(None), timezone="UTC")


def records(values: Sequence[str]) -> pa.Table:
    same = {"topic": TOPIC, "partition": 0, "offset": 0, "timestamp": datetime(2030, 1, 1, tzinfo=UTC)}
    return pa.Table.from_pylist([{"value": value.encode(), **same} for value in values], RAW)


def frame(rows: pa.Table) -> Any:
    return Rows(rows)


@contextmanager
def judged(rows: Any, plan: None, rules: Any) -> Iterator[Sorted]:
    """A record fits unless it begins with "bad"."""
    found = rows.toArrow()
    bad = [value.startswith(b"bad") for value in found["value"].to_pylist()]
    rejected = found.filter(pa.array(bad, pa.bool_()))
    fitting = found.filter(pa.array([not each for each in bad], pa.bool_())).select(SILVER.names)
    with_reason = rejected.append_column(REASON, pa.repeat("bad", len(rejected))).cast(REJECTED)
    yield Sorted(frame(fitting), frame(with_reason) if len(rejected) else None, None, len(rejected))


class Kept:
    """The tables of a pipeline, written as its query writes them."""

    def __init__(self, directory: Path, table_format: str) -> None:
        self.of_table: type[Table] = DeltaLakeTable if table_format == "delta" else IcebergTable
        settings = {"name": "p", "topics": [TOPIC], "directory": str(directory), "format": table_format}
        self.pipeline = Pipeline.model_validate({**settings, "bronze": {}, "silver": {}})
        self.checkpoint = Path(self.pipeline.checkpoint(TOPICS, TOPIC))
        (self.checkpoint / "commits").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))

    def table(self, kind: str) -> Table:
        table = open_table(self.pipeline, kind, TOPIC)
        table.claim(QUERY, 0, str(self.checkpoint))
        return table

    def batch(self, number: int, *, silver: bool = True, finished: bool = True) -> None:
        rows = frame(records([f"good{number}", f"bad{number}"]))
        self.table("bronze").append(rows, number, small=True)
        if silver:
            with judged(rows, None, None) as found:
                assert found.rejected is not None
                self.table("rejects").append(found.rejected, number, small=True)
                self.table("silver").append(found.fitting, number, small=True)
        if finished:
            (self.checkpoint / "commits" / str(number)).touch()

    def compact_and_vacuum(self, kind: str) -> None:
        table = self.table(kind)
        table.compact(1 << 20)
        if isinstance(table, IcebergTable):
            stored = table._loaded()
            stored.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
            table._delete_unnamed(stored.refresh(), 0)
        else:
            DeltaTable(table.path).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)

    def rebuilt(self) -> Rebuilt:
        spark: Any = SimpleNamespace(
            createDataFrame=lambda rows, columns: Rows(to_arrow_schema(columns, timezone="UTC").empty_table())
        )
        return Rebuild(spark, self.pipeline, LocalFiles(), TOPIC, None)()

    def stream(self) -> DeltaStreamReader | None:
        """Of silver, which has none as Iceberg."""
        log = self.table("silver").log
        return DeltaStreamReader(log, SILVER) if isinstance(log, DeltaLog) else None

    def values(self, kind: str) -> list[str]:
        return sorted(value.decode() for value in self.table(kind).batches().read_all()["value"].to_pylist())

    def check_whole(self, last: int) -> None:
        """Every record up to a batch is there once, and no commit adds what it removes."""
        assert self.values("silver") == [f"good{number}" for number in range(last + 1)]
        assert self.values("rejects") == [f"bad{number}" for number in range(last + 1)]
        for kind in ("silver", "rejects"):
            table = self.table(kind)
            assert table.last_batch(QUERY) == last
            if isinstance(table, IcebergTable):
                files = [task.file.file_path for task in table._loaded().scan().plan_files()]
                assert len(set(files)) == len(files)
                continue
            for commit in Path(table.path, LOG).glob("*.json"):
                actions = [json.loads(line) for line in commit.read_text().splitlines()]
                added, removed = ({each[of]["path"] for each in actions if of in each} for of in ("add", "remove"))
                assert not added & removed


@pytest.fixture(params=FORMATS)
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    def read_back(self: Rebuild, table: Table, files: Sequence[AddedFile | DataFile], columns: Any) -> Rows:
        schema = to_arrow_schema(columns, timezone="UTC")
        named = [table.place(file) if isinstance(file, DataFile) else file for file in files]
        data = pickle.loads(pickle.dumps(table.log.data))
        read = (rebuild.rows_of_file(data, file, schema) for file in named)
        return Rows(pa.Table.from_batches(chain.from_iterable(read), schema))

    def written(rows: Any, store: Any, *, small: bool, partitioning: Partitioning) -> list[DataFile]:
        return write_data_files(rows, store, small=True, partitioning=partitioning)

    monkeypatch.setattr(Rebuild, "_read_back", read_back)
    monkeypatch.setattr(rebuild, "sorted_records", judged)
    for module in (delta, iceberg):
        monkeypatch.setattr(module, "write_data_files", written)
    return Kept(tmp_path / "lake", request.param)


def fails_once(kept: Kept, monkeypatch: pytest.MonkeyPatch, method: str, kind: str, *, done: bool = False) -> None:
    """Let a call for a table fail, before it has done its work or after."""
    original = getattr(kept.of_table, method)

    def failing(self: Table, *arguments: Any, **options: Any) -> Any:
        if f"/{kind}/" not in self.path:
            return original(self, *arguments, **options)
        monkeypatch.setattr(kept.of_table, method, original)
        if done:
            original(self, *arguments, **options)
        raise OSError("no space left")

    monkeypatch.setattr(kept.of_table, method, failing)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize(("method", "kind", "done"), [("replace", "silver", True), ("replace", "rejects", False)])
def test_what_is_in_silver_is_not_committed_again_by_the_next_attempt(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, method: str, kind: str, done: bool, compacted: bool
) -> None:
    for number in range(3):
        kept.batch(number)
    fails_once(kept, monkeypatch, method, kind, done=done)
    with pytest.raises(OSError, match="no space left"):
        kept.rebuilt()
    kept.batch(3)
    if compacted:
        kept.compact_and_vacuum("silver")
    again = kept.rebuilt()
    assert (again.rows, again.resumed) == (4, 0)
    kept.check_whole(3)


def test_what_was_decoded_is_kept_when_the_commit_is_refused(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.batch(0)
    with monkeypatch.context() as patched:
        patched.setattr(kept.of_table, "replace", lambda *arguments, **options: False)
        with pytest.raises(ConfigError, match="what was decoded is kept"):
            kept.rebuilt()
    again = kept.rebuilt()
    assert (again.chunks, again.resumed) == (1, 1)
    kept.check_whole(0)


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_rejects_that_are_ahead_of_silver_are_there_once(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(rebuild, "CHUNK_BYTES", chunk_bytes)
    kept.batch(0)
    for number in (1, 2):
        kept.batch(number, silver=False)
    fails_once(kept, monkeypatch, "append", "silver")
    with pytest.raises(OSError, match="no space left"):
        kept.rebuilt()
    assert kept.table("rejects").last_batch(QUERY) == (1 if chunk_bytes == 1 else 2)
    kept.batch(3, silver=False)
    done = kept.rebuilt()
    assert (done.batch, done.rows, done.rejects) == (3, 4, 4)
    kept.check_whole(3)


@pytest.mark.parametrize("finished", [True, False])
def test_silver_is_brought_forward_at_once_when_bronze_was_compacted_and_vacuumed(kept: Kept, finished: bool) -> None:
    """Whether the query has finished the last batch of bronze or is busy with it."""
    gold = [
        {"name": "all", "sql": f"SELECT * FROM {TOPIC}"},
        {"name": "topic", "sql": "SELECT 1 AS one", "topic": "ones", "table": False},
    ]
    kept.pipeline = Pipeline.model_validate({**kept.pipeline.model_dump(), "gold": gold})
    checkpoint = Path(kept.pipeline.checkpoint("gold", "all"))
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").touch()
    kept.batch(0)
    stream = kept.stream()
    read = {} if stream is None else stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for number in (1, 2, 3):
        kept.batch(number, silver=False, finished=finished or number < 3)
    kept.compact_and_vacuum("bronze")
    done = kept.rebuilt()
    assert (done.batch, done.rows, done.rejects) == (3, 4, 4)
    of_silver = (kept.pipeline.table("gold", "all"), str(checkpoint))
    assert done.to_remove == (() if stream is None else of_silver), "of Iceberg tables gold reads the topic"
    kept.check_whole(3)
    if stream is not None:
        with pytest.raises(InvalidRequest, match="remove the checkpoint and the results"):
            stream.partitions(read, stream.latestOffset(read, ReadAllAvailable()))
    kept.batch(4)
    assert kept.rebuilt().to_remove == (), "it lacked nothing any more"
    kept.check_whole(4)


def test_batches_that_silver_lacks_are_new_rows_when_bronze_was_compacted_alone(kept: Kept) -> None:
    kept.batch(0)
    stream = kept.stream()
    read = {} if stream is None else stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    for number in (1, 2, 3):
        kept.batch(number, silver=False)
    kept.table("bronze").compact(1 << 20)
    done = kept.rebuilt()
    assert (done.rows, done.to_remove) == (4, ())
    kept.check_whole(3)
    if stream is not None:
        [task] = stream.partitions(read, stream.latestOffset(read, ReadAllAvailable()))
        new = pa.Table.from_batches(stream.read(task), SILVER)
        assert sorted(new["value"].to_pylist()) == [b"good1", b"good2", b"good3"]


def test_files_that_were_vacuumed_after_an_attempt_are_not_needed_by_the_next(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        kept.batch(number)
    with monkeypatch.context() as patched:
        patched.setattr(kept.of_table, "replace", lambda *arguments, **options: False)
        with pytest.raises(ConfigError, match="what was decoded is kept"):
            kept.rebuilt()
    kept.batch(3)
    kept.compact_and_vacuum("bronze")
    done = kept.rebuilt()
    assert (done.rows, done.resumed, done.to_remove) == (4, 0, ())
    kept.check_whole(3)


def test_files_that_are_vacuumed_meanwhile_are_no_reason_to_remove_anything(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        kept.batch(number, silver=not number)

    def decoded(self: Rebuild, files: Sequence[AddedFile]) -> list[Any]:
        monkeypatch.setattr(Rebuild, "_decoded", original)
        kept.compact_and_vacuum("bronze")
        return original(self, files)

    original = Rebuild._decoded
    monkeypatch.setattr(Rebuild, "_decoded", decoded)
    with pytest.raises(ConfigError, match="was vacuumed while the rebuild went on: run the rebuild again"):
        kept.rebuilt()
    kept.rebuilt()
    kept.check_whole(2)
