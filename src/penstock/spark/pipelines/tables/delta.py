"""Delta Lake through the deltalake library, on this machine or in any object store that the library knows.

A commit adds the files of a batch together with its number, as an application transaction of the Delta protocol. The library refuses a
commit if another one with the same application has been made since the table was opened, but accepts any number from a fresh handle. So
the number is compared and committed from one handle; a lost race opens the table again and compares again.

The table is created by the commit of its first batch: a table that exists always has the number of the query that it belongs to.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from penstock.errors import ConfigError
from penstock.spark.delta_format import FORMAT, STORAGE_PREFIX, with_delta_source
from penstock.spark.pipelines.files import is_url, make_directory, sync_directories
from penstock.spark.pipelines.tables.data_files import (
    DataFile,
    Partitioning,
    check_partition_names,
    table_schema,
    write_data_files,
)
from penstock.spark.pipelines.tables.delta_log import (
    LOG,
    LOG_CHECKPOINT_COMMITS,
    REBUILD,
    DeltaLog,
    check_readable,
    commit_hooks,
)
from penstock.spark.pipelines.tables.delta_merge import merge_rows
from penstock.spark.pipelines.tables.history import AddedFile
from penstock.spark.pipelines.tables.stores import DeltaStore, LocalStore, Store
from penstock.spark.pipelines.tables.table import (
    COMMIT_ATTEMPTS_MAX,
    VACUUM_KEEP_S_MIN,
    Compacted,
    Table,
    check_keep,
    merged_columns,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

KEPT_IN_LOG: Final = "delta.deletedFileRetentionDuration"
"""How long the log names files that were replaced."""
KEPT_IN_LOG_DEFAULT: Final = "interval 168 hours"
FULL_VACUUM_FROM_MS: Final = "penstock.fullVacuumFromMs"
"""When every file that was replaced within the time to keep is in the log, if it once named them for a shorter time."""
LAST_CHECKPOINT: Final = "_last_checkpoint"
"""The file that names the newest checkpoint of the log."""


class DeltaLakeTable(Table):
    def __init__(
        self,
        spark: SparkSession | None,
        path: str,
        storage_options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        keep_s: float = VACUUM_KEEP_S_MIN,
    ) -> None:
        """`keep_s`: how long a table that is created here names replaced files in its log."""
        super().__init__(spark, path, Partitioning(tuple(partition_by)))
        self._options = dict(storage_options or {})
        self._keep_s = keep_s

    def exists(self) -> bool:
        return self._found() is not None

    def has(self, batch_id: int) -> bool:
        delta = self._found()
        return delta is not None and self._has(delta, batch_id)

    def append(self, rows: DataFrame, batch_id: int, *, small: bool = False) -> None:
        from deltalake.exceptions import CommitFailedError, DeltaError

        rows = self._with_date(rows)
        files: list[DataFile] | None = None
        problem: Exception | None = None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            delta = self._found()
            self._check_partitioned(delta)
            try:
                if delta is not None and not self._has(delta, batch_id):
                    delta = self._with_columns(delta, rows)
                if delta is not None and self._has(delta, batch_id):
                    self._sync_found(delta)
                    return
                if files is None:
                    files = write_data_files(rows, self._store, small=small, partitioning=self._partitioning)
                self._commit(delta, rows, files, batch_id)
            except DeltaError as error:
                created_meanwhile = delta is None and self.exists()
                if not isinstance(error, CommitFailedError) and not created_meanwhile:
                    raise
                problem = error
            else:
                self._sync_log(0 if delta is None else delta.version() + 1)
                return
        raise self._contended(problem)

    # -- rebuilding -------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> DeltaLog:
        return DeltaLog(self.path, self._options)

    def handle(self) -> Any | None:
        return self._found()

    def batch_of(self, handle: Any, query: str) -> int | None:
        done: int | None = handle.transaction_version(query)
        return done

    def write_files(self, rows: DataFrame, query: str) -> list[DataFile]:
        return write_data_files(self._with_date(rows), self._store, small=False, partitioning=self._partitioning)

    def place(self, file: DataFile) -> AddedFile:
        return AddedFile(file.name, file.size_bytes, json.loads(file.partition_values), file.rows)

    def replace(
        self,
        handle: Any | None,
        query: str,
        batch_id: int,
        files: Sequence[DataFile],
        columns: pa.Schema,
        *,
        same_records: bool = True,
    ) -> bool:
        # Without `max_commit_retries` the library would put the commit on top of a compaction that came in between, and leave the
        # compacted rows in addition to the new ones.
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import CommitProperties, Transaction

        properties = CommitProperties(
            app_transactions=[Transaction(query, batch_id)],
            custom_metadata={REBUILD: str(batch_id)} if same_records else None,
            max_commit_retries=0,
        )
        schema = _deltalake().Schema.from_arrow(columns)
        try:
            if handle is None:
                self._create(schema, _add_actions(files), properties)
            else:
                self._check_partitioned(handle)
                handle.create_write_transaction(
                    _add_actions(files),
                    mode="overwrite",
                    schema=schema,
                    partition_by=self._partition_columns or None,
                    commit_properties=properties,
                )
        except DeltaError as error:
            created_meanwhile = handle is None and self.exists()
            if not isinstance(error, CommitFailedError) and not created_meanwhile:
                raise
            return False
        self._sync_log(0 if handle is None else handle.version())
        return True

    # -- appending --------------------------------------------------------------------------------------------------------

    def _has(self, delta: Any, batch_id: int) -> bool:
        done = delta.transaction_version(self._query)
        return done is not None and done >= batch_id

    def _commit(self, delta: Any, rows: DataFrame, files: Sequence[DataFile], batch_id: int) -> None:
        from deltalake.transaction import CommitProperties, Transaction

        actions = _add_actions(files)
        properties = CommitProperties(app_transactions=[Transaction(self._query, batch_id)])
        if delta is not None:
            delta.create_write_transaction(
                actions,
                mode="append",
                schema=delta.schema(),
                partition_by=self._partition_columns or None,
                commit_properties=properties,
                post_commithook_properties=commit_hooks(delta),
            )
            return
        self._create(_deltalake().Schema.from_arrow(table_schema(rows)), actions, properties)

    def _create(self, schema: Any, actions: list[Any], properties: Any) -> None:
        from deltalake.transaction import create_table_with_add_actions

        if not is_url(self.path):
            make_directory(Path(self.path))
        create_table_with_add_actions(
            self.path,
            schema,
            actions,
            mode="error",
            partition_by=self._partition_columns or None,
            configuration={
                "delta.checkpointInterval": str(LOG_CHECKPOINT_COMMITS),
                KEPT_IN_LOG: f"interval {_hours(self._keep_s)} hours",
            },
            storage_options=self._options,
            commit_properties=properties,
        )

    @property
    def _partition_columns(self) -> list[str]:
        return list(self._partitioning.columns)

    def _check_partitioned(self, delta: Any | None) -> None:
        if delta is not None:
            self._check_partitioning(delta.metadata().partition_columns)

    def _with_columns(self, delta: Any, rows: DataFrame) -> Any:
        """Return the table with columns for everything in the rows. A crash afterwards leaves columns of nulls, which do no harm."""
        have = _spark_columns(delta)
        names = {field.name for field in have.fields}
        merged = merged_columns(have, rows.schema, "the batch", "let a new pipeline write a new table")
        if len(merged.fields) == len(have.fields):
            return delta
        wanted = _deltalake().Schema.from_arrow(table_schema(rows))
        first_version = delta.version() + 1
        delta.alter.add_columns([field for field in wanted.fields if field.name not in names])
        self._sync_log(first_version)
        return self._opened()

    def last_batch(self, query: str) -> int | None:
        found: int | None = self._opened().transaction_version(query)
        return found

    def _stored_columns(self) -> StructType | None:
        delta = self._found()
        return None if delta is None else _spark_columns(delta)

    def read(self) -> DataFrame:
        delta = self._readable()
        columns = _spark_columns(delta)
        if delta.metadata().partition_columns:
            # Values of those columns are in the log alone.
            storage = {f"{STORAGE_PREFIX}{name}": value for name, value in self._options.items()}
            return with_delta_source(self._spark).read.format(FORMAT).options(**storage).schema(columns).load(self.path)
        files = sorted(self._paths(delta))
        if not files:
            return self._spark.createDataFrame([], columns)
        return self._spark.read.schema(columns).parquet(*files)

    def batches(self) -> pa.RecordBatchReader:
        return self._readable().to_pyarrow_dataset().scanner().to_reader()

    def row_count(self) -> int:
        rows: int = self._readable().to_pyarrow_dataset().count_rows()
        return rows

    def file_sizes(self) -> list[int]:
        sizes: list[int] = _files(self._opened())["size_bytes"].to_pylist()
        return sizes

    def merge(self, changes: DataFrame, deleted: pa.Array, key: Sequence[str], batch_id: int) -> None:
        from deltalake.exceptions import CommitFailedError

        changes = self._with_date(changes)
        found: pa.Table | None = None
        problem: Exception | None = None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            delta = self._found()
            if delta is None:
                self.append(changes, batch_id, small=True)
                return
            self._check_partitioned(delta)
            if self._has(delta, batch_id):
                self._sync_found(delta)
                return
            check_readable(delta, self.path)
            if found is None:
                found = changes.toArrow().cast(table_schema(changes))
                check_partition_names(found, self._partitioning)
            try:
                delta = self._with_columns(delta, changes)
                before, first_version = self._paths(delta), delta.version()
                merge_rows(delta, found, deleted, key, self._query, batch_id)
            except CommitFailedError as error:
                problem = error
                continue
            self._sync_data(self._paths(self._opened()) - before)
            self._sync_log(first_version)
            return
        raise self._contended(problem)

    def compact(self, file_bytes: int) -> Compacted:
        from deltalake import WriterProperties
        from deltalake.exceptions import CommitFailedError

        problem: Exception | None = None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            delta = self._opened()
            before = self._paths(delta)
            try:
                # One group of files at a time: memory and processors belong to the queries.
                delta.optimize.compact(
                    target_size=file_bytes,
                    max_concurrent_tasks=1,
                    writer_properties=WriterProperties(compression="ZSTD"),
                )
            except CommitFailedError as error:
                problem = error
                continue
            after = self._paths(self._opened())
            self._sync_data(after - before)
            self._sync_log(delta.version())
            return Compacted(len(before), len(after))
        raise self._contended(problem)

    def vacuum(self, keep_s: float) -> int:
        check_keep(keep_s)
        hours = _hours(keep_s)
        self._keep_in_log(hours)
        delta = self._opened()
        # Full: the files of failed attempts are in no commit, and nothing else removes them.
        full = time.time() * 1000 >= _full_vacuum_from_ms(delta)
        deleted = delta.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=full)
        return len(deleted)

    def _keep_in_log(self, hours: int) -> None:
        """Let the log name replaced files for this long. A full vacuum takes those that it does not name for files of failed attempts,
        however short the time since they were replaced: there is none until what the log has forgotten may be deleted. For no longer
        either: every look at the table reads what the log names."""
        delta = self._opened()
        found = re.fullmatch(
            r"interval (\d+) hours", delta.metadata().configuration.get(KEPT_IN_LOG, KEPT_IN_LOG_DEFAULT)
        )
        before = 0 if found is None else int(found[1])
        if before < hours:
            first_version = delta.version() + 1
            from_ms = max(int(time.time() * 1000), _full_vacuum_from_ms(delta)) + (hours - before) * 3_600_000
            delta.alter.set_table_properties(
                {KEPT_IN_LOG: f"interval {hours} hours", FULL_VACUUM_FROM_MS: str(from_ms)}, raise_if_not_exists=False
            )
            self._sync_log(first_version)

    # -- the library ------------------------------------------------------------------------------------------------------

    def _found(self) -> Any | None:
        """Return the table, None if there is none."""
        library = _deltalake()
        from deltalake.exceptions import TableNotFoundError

        try:
            return library.DeltaTable(self.path, storage_options=self._options)
        except TableNotFoundError:
            return None

    def _opened(self) -> Any:
        return _deltalake().DeltaTable(self.path, storage_options=self._options)

    def _readable(self) -> Any:
        delta = self._opened()
        check_readable(delta, self.path)
        return delta

    @property
    def _store(self) -> Store:
        return DeltaStore(self.path, self._options) if is_url(self.path) else LocalStore(self.path)

    def _sync_log(self, first_version: int) -> None:
        """Make commits from a version on durable, and checkpoints of the log: the library leaves that to the operating system.

        A checkpoint that a power cut leaves empty would make the table unreadable, although every commit is there.
        """
        if is_url(self.path):
            return
        log = Path(self.path) / LOG
        for version in itertools.count(first_version):  # they are numbered without gaps
            commit, checkpoint = log / f"{version:020d}.json", log / f"{version:020d}.checkpoint.parquet"
            if checkpoint.exists():
                self._sync_files(str(each) for each in (checkpoint, log / LAST_CHECKPOINT) if each.exists())
            if commit.exists():
                self._sync_files([str(commit)])
            elif version > first_version:  # the first may be one from before, and cleaned up
                break
        sync_directories([log], Path(self.path))

    def _sync_found(self, delta: Any) -> None:
        """Sync a batch that was committed before: its writer may have been killed between commit and sync."""
        if is_url(self.path):
            return
        self._sync_data(self._paths(delta))
        self._sync_log(min(int(commit.stem) for commit in (Path(self.path) / LOG).glob("*.json")))

    def _paths(self, delta: Any) -> set[str]:
        return {f"{self.path}/{unquote(name)}" for name in _files(delta)["path"].to_pylist()}

    def _sync_data(self, paths: Collection[str]) -> None:
        self._sync_files(paths)
        if not is_url(self.path):
            sync_directories([Path(each).parent for each in paths], Path(self.path))

    def _sync_files(self, paths: Iterable[str]) -> None:
        if is_url(self.path):
            return
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _contended(self, problem: Exception | None) -> ConfigError:
        return ConfigError(
            f"table {self.path} was changed by another writer in each of {COMMIT_ATTEMPTS_MAX} attempts to commit ({problem}): let only "
            "one pipeline write it, then run this again"
        )


def stage_directories(directory: str, stage: str, storage_options: Mapping[str, str]) -> list[str]:
    """Return the names of the directories of a stage's tables in an object store."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import FileSelector, FileType, PyFileSystem

    file_system = PyFileSystem(DeltaStorageHandler(directory, dict(storage_options)))
    listed = file_system.get_file_info(FileSelector(stage, allow_not_found=True))
    return [each.base_name for each in listed if each.type == FileType.Directory]


def _add_actions(files: Sequence[DataFile]) -> list[Any]:
    from deltalake.transaction import AddAction

    now_ms = int(time.time() * 1000)
    return [
        AddAction(
            path=each.name,
            size=each.size_bytes,
            partition_values=json.loads(each.partition_values),
            modification_time=now_ms,
            data_change=True,
            stats=each.statistics,
        )
        for each in files
    ]


def _hours(duration_s: float) -> int:
    return math.ceil(duration_s / 3600)


def _full_vacuum_from_ms(delta: Any) -> int:
    return int(delta.metadata().configuration.get(FULL_VACUUM_FROM_MS, "0"))


def _files(delta: Any) -> pa.Table:
    """Return the add actions of the table: `path` (escaped as in URLs), `size_bytes` and more."""
    import pyarrow as pa

    return pa.table(delta.get_add_actions())


def _spark_columns(delta: Any) -> StructType:
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema(delta.schema().to_arrow()), prefer_timestamp_ntz=False)


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError:
        raise ConfigError('Delta tables need the deltalake library: run pip install "penstock[spark]"') from None
    return deltalake
