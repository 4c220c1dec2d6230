"""`spark.readStream.format("penstock-delta")`: a Delta table as a table and as a stream, without a Delta jar.

The position in a stream is a version of the table. The first batch is the table as it is; later ones are the files that commits have added
since. With the version goes the number of records up to there, so that whoever watches the stream knows how many wait, and the id of the
table: one that was removed and made again has other commits under the same numbers, and ends the stream. A compaction moves rows and adds
none, so it is not seen. Neither is a rebuild by a pipeline, which decodes the same records again. Any other commit that takes rows away
cannot be a part of a stream of rows, and is an error, or passed over with `ignoreChanges`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.delta_format import FORMAT, RECORDS, STORAGE_PREFIX, TABLE, VERSION
from penstock.spark.option_values import flag
from penstock.spark.pipelines.files import is_url
from penstock.spark.pipelines.tables.delta_log import DeltaLog
from penstock.spark.pipelines.tables.history import AddedFile, Commit, DataFiles, total_bytes, total_rows

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BATCH_BYTES_MAX: Final = 1 << 30
"""Of files, after which a micro-batch takes no further commit."""
COMMITS_MAX: Final = 1000
"""Per micro-batch; and as many after it are looked at to tell how many records wait."""
TASK_BYTES: Final = 32 << 20
TASK_FILES_MAX: Final = 100
ROWS_MAX: Final = 10_000
"""Per Arrow batch that goes to Spark."""
IDLE_WAIT_S: Final = 0.2
LOOK_EVERY_S: Final = 0.02
NOTHING_READ: Final = -1


@dataclass
class FileTask(InputPartition):
    """What one Spark task reads."""

    files: tuple[AddedFile, ...]


class DeltaDataSource(DataSource):
    """A Delta table that a pipeline, or anybody else, writes."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
        from pyspark.sql.pandas.types import from_arrow_schema

        path, storage = _place(self.options)
        try:
            table = DeltaTable(path, storage_options=storage)
        except TableNotFoundError:
            raise _missing(path) from None
        return from_arrow_schema(pa.schema(table.schema().to_arrow()), prefer_timestamp_ntz=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return DeltaReader(DeltaLog(*_place(self.options)), _arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        given = {name.lower(): value for name, value in self.options.items()}
        return DeltaStreamReader(
            DeltaLog(*_place(self.options)),
            _arrow_schema(schema),
            ignore_changes=flag(given, "ignoreChanges", default=False),
        )


class DeltaReader(DataSourceReader):
    def __init__(self, log: DeltaLog, schema: pa.Schema) -> None:
        self._log = log
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        version = self._log.version()
        if version is None:
            raise _missing(self._log.path)
        return _tasks(self._log.files(version))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_files(self._log, partition, self._schema)


class DeltaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, log: DeltaLog, schema: pa.Schema, *, ignore_changes: bool = False) -> None:
        self._log = log
        self._schema = schema
        self._ignore_changes = ignore_changes
        self._target: int | None = None
        """Where `Trigger.AvailableNow` ends."""
        self._planned: dict[str, Any] | None = None
        """Where the last micro-batch ends; None before this reader was asked for one."""
        self._ahead: dict[int, _Amount] = {}
        """What is in the commits after that, by version."""
        self._table: str | None = None
        """The id of the table that is read."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {VERSION: NOTHING_READ}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        version = self._log.version()
        self._target = NOTHING_READ if version is None else version

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        before = _version(start)
        if before == NOTHING_READ:
            self._planned = self._whole_table() or start
        else:
            if self._planned is None:
                # Once, when a query continues: only here can it turn out that the log no longer has what comes next.
                if self._check_table(start) > before:
                    self._log.commit(before + 1)
                planned = self._with_commits(start, before)
            else:
                planned = self._with_commits(start, before)
                # The newest commit is in the log as long as the table is.
                if planned is not start or not self._log.has(before):
                    self._check_table(start)
            self._planned = planned
        return self._planned

    def _whole_table(self) -> dict[str, Any] | None:
        if self._target == NOTHING_READ:
            return None
        newest = self._log.newest()
        if newest is None:
            time.sleep(IDLE_WAIT_S)
            return None
        self._table = newest.table_id
        version = newest.version if self._target is None else self._target
        return self._position(version, total_rows(self._log.files(version)))

    def _with_commits(self, start: dict[str, Any], before: int) -> dict[str, Any]:
        last = before
        size_bytes, records = 0, _records(start)
        while last - before < COMMITS_MAX and size_bytes < BATCH_BYTES_MAX:
            if last == self._target or not self._is_there(last + 1, wait=last == before):
                break
            last += 1
            amount = self._amount(last)
            size_bytes += amount.size_bytes
            records += amount.records
        return start if last == before else self._position(last, records)

    def _position(self, version: int, records: int) -> dict[str, Any]:
        return {VERSION: version, RECORDS: records, TABLE: self._table}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return how far the table is, looking at `COMMITS_MAX` commits at most after the micro-batch."""
        if self._planned is None or (planned := _version(self._planned)) == NOTHING_READ:
            return self._planned
        self._ahead = {version: amount for version, amount in self._ahead.items() if version > planned}
        last, records = planned, _records(self._planned)
        while last - planned < COMMITS_MAX and (last + 1 in self._ahead or self._log.has(last + 1)):
            last += 1
            records += self._amount(last).records
        return self._planned if last == planned else self._position(last, records)

    def _amount(self, version: int) -> _Amount:
        found = self._ahead.get(version)
        if found is None:
            commit = self._log.commit(version)
            found = _Amount(total_bytes(commit.added), total_rows(_new_files(commit)))
            self._ahead[version] = found
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        first, last = _version(start), _version(end)
        if last == NOTHING_READ:
            return []
        if end != self._planned:
            # A query that continues does the batch again that it was planned with before.
            self._check_table(end)
        if first == NOTHING_READ:
            return _tasks(self._log.files(last))
        files: list[AddedFile] = []
        for version in range(first + 1, last + 1):
            commit = self._log.commit(version)
            if commit.deletes and not commit.is_rebuild and not self._ignore_changes:
                raise InvalidRequest(
                    f"version {version} of table {self._log.path} changes or deletes rows, which a stream of rows cannot tell: remove the "
                    "checkpoint and the results to begin with the table as it is, read the topic instead, or pass over such versions with "
                    "the option ignoreChanges"
                )
            files += _new_files(commit)
        return _tasks(files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_files(self._log, partition, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a stream but its checkpoint."""

    def _check_table(self, position: Mapping[str, Any]) -> int:
        """Check that it is the table that the position is of; return its version. Positions of earlier versions do not say the table."""
        newest = self._log.newest()
        if (
            newest is None
            or newest.version < _version(position)
            or newest.table_id != position.get(TABLE, newest.table_id)
        ):
            raise ConfigError(
                f"table {self._log.path} was removed, or replaced by another, since it was read: remove the checkpoint and the results to "
                "read the table that is there now from its beginning; for gold of a pipeline, its directories in gold and in "
                "_checkpoints/gold"
            )
        self._table = newest.table_id
        return newest.version

    def _is_there(self, version: int, *, wait: bool) -> bool:
        """Whether there is a commit; an idle query waits a moment for it, so that it does not ask all the time."""
        give_up_s = time.monotonic() + (IDLE_WAIT_S if wait and self._target is None else 0)
        while not self._log.has(version):
            if time.monotonic() >= give_up_s:
                return False
            time.sleep(LOOK_EVERY_S)
        return True


class _Amount(NamedTuple):
    """What a commit brings."""

    size_bytes: int
    records: int
    """Those that a stream gets."""


def _new_files(commit: Commit) -> tuple[AddedFile, ...]:
    """The files of a commit whose rows are new to a stream."""
    return () if commit.is_rebuild or commit.deletes else commit.added


def read_files(data: DataFiles, partition: InputPartition, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.parquet as pq

    if not isinstance(partition, FileTask):
        return  # what Spark makes of a plan without tasks
    opened = data.opener()
    for file in partition.files:
        try:
            source = opened(file.path)
        except FileNotFoundError:
            raise ConfigError(
                f"{file.path} of table {data.path} was replaced by a compaction and then vacuumed before it was read here: remove the "
                "checkpoint and the results to begin with the table as it is, and keep replaced files longer (keep_ms)"
            ) from None
        with pq.ParquetFile(source) as rows:
            there = [name for name in schema.names if name in rows.schema_arrow.names]
            for batch in rows.iter_batches(ROWS_MAX, columns=there):
                yield pa.RecordBatch.from_arrays(
                    [_column(batch, field, file.partition_values) for field in schema], schema=schema
                )


def _column(batch: pa.RecordBatch, field: pa.Field, partition_values: Mapping[str, str | None]) -> pa.Array:
    if field.name in batch.schema.names:
        return batch.column(field.name).cast(field.type)
    value = partition_values.get(field.name)
    if value is None:
        return pa.nulls(batch.num_rows, field.type)
    return pa.array([value] * batch.num_rows, pa.string()).cast(field.type)


def _tasks(files: list[AddedFile]) -> list[InputPartition]:
    """Small files together, in the order in which they came."""
    tasks: list[InputPartition] = []
    group: list[AddedFile] = []
    for file in files:
        if group and (total_bytes(group) + file.size_bytes > TASK_BYTES or len(group) >= TASK_FILES_MAX):
            tasks.append(FileTask(tuple(group)))
            group = []
        group.append(file)
    return [*tasks, FileTask(tuple(group))] if group else tasks


def _place(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The table's path, and what the library needs to reach it."""
    given = {name.lower(): value for name, value in options.items()}
    path = given.get("path", "")
    if not path:
        raise InvalidRequest(f"{FORMAT} needs the path of a Delta table: load(PATH), or the option path")
    storage = {
        name.removeprefix(STORAGE_PREFIX): value for name, value in given.items() if name.startswith(STORAGE_PREFIX)
    }
    return path if is_url(path) else os.path.abspath(path.removeprefix("file://")), storage  # noqa: PTH100 - no links followed


def _missing(path: str) -> ConfigError:
    return ConfigError(
        f"there is no Delta table in {path}: check the path, or let the pipeline that writes it run first"
    )


def _version(offset: Mapping[str, Any]) -> int:
    version = offset.get(VERSION)
    if not isinstance(version, int):
        raise InvalidRequest(
            "the checkpoint is that of a query that reads something else than this table: name another checkpoint; for gold of a pipeline, "
            'set from = "topic" as it was, or give it another name'
        )
    return version


def _records(offset: Mapping[str, Any]) -> int:
    """Checkpoints of earlier versions have no such number: they count from 0."""
    return int(offset.get(RECORDS, 0))


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
