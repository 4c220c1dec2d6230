"""Delta Lake through the deltalake library, on this machine or in any object store that the library knows.

A commit adds the files of a batch together with its number, as an application transaction of the Delta protocol. The library refuses a
commit if another one with the same application has been made since the table was opened, but accepts any number from a fresh handle. So
the number is compared and committed from one handle; a lost race opens the table again and compares again.

The table is created by the commit of its first batch: a table that exists always has the number of the query that it belongs to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from penstock.errors import ConfigError
from penstock.spark.pipelines.files import is_url, sync_directory
from penstock.spark.pipelines.tables.data_files import DataFile, table_schema, write_data_files
from penstock.spark.pipelines.tables.stores import DeltaStore, LocalStore, Store
from penstock.spark.pipelines.tables.table import COMMIT_ATTEMPTS_MAX, Compacted, Table, check_keep, merged_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOG_CHECKPOINT_COMMITS: Final = 100
LOG: Final = "_delta_log"
UNREADABLE_FEATURES: Final = frozenset({"columnMapping", "deletionVectors"})
"""Of the Delta protocol: with them the rows of a table are not simply those of its Parquet files."""


class DeltaLakeTable(Table):
    def __init__(self, spark: SparkSession | None, path: str, storage_options: Mapping[str, str] | None = None) -> None:
        super().__init__(spark, path)
        self._options = dict(storage_options or {})

    def exists(self) -> bool:
        return self._found() is not None

    def append(self, rows: DataFrame, batch_id: int, *, small: bool = False) -> None:
        from deltalake.exceptions import CommitFailedError, DeltaError

        files: list[DataFile] | None = None
        problem: Exception | None = None
        for _ in range(COMMIT_ATTEMPTS_MAX):
            delta = self._found()
            try:
                if delta is not None and not self._has(delta, batch_id):
                    delta = self._with_columns(delta, rows)
                if delta is not None and self._has(delta, batch_id):
                    return
                if files is None:
                    files = write_data_files(rows, self._store, small=small)
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

    def _has(self, delta: Any, batch_id: int) -> bool:
        done = delta.transaction_version(self._query)
        return done is not None and done >= batch_id

    def _commit(self, delta: Any, rows: DataFrame, files: Sequence[DataFile], batch_id: int) -> None:
        from deltalake.transaction import AddAction, CommitProperties, Transaction, create_table_with_add_actions

        now_ms = int(time.time() * 1000)
        actions = [
            AddAction(
                path=each.name,
                size=each.size_bytes,
                partition_values={},
                modification_time=now_ms,
                data_change=True,
                stats=each.statistics,
            )
            for each in files
        ]
        properties = CommitProperties(app_transactions=[Transaction(self._query, batch_id)])
        if delta is not None:
            delta.create_write_transaction(actions, mode="append", schema=delta.schema(), commit_properties=properties)
            return
        if not is_url(self.path):
            Path(self.path).mkdir(parents=True, exist_ok=True)
        create_table_with_add_actions(
            self.path,
            _deltalake().Schema.from_arrow(table_schema(rows)),
            actions,
            mode="error",
            configuration={"delta.checkpointInterval": str(LOG_CHECKPOINT_COMMITS)},
            storage_options=self._options,
            commit_properties=properties,
        )

    def _with_columns(self, delta: Any, rows: DataFrame) -> Any:
        """Return the table with columns for everything in the rows. A crash afterwards leaves columns of nulls, which do no harm."""
        have = _spark_columns(delta)
        names = {field.name for field in have.fields}
        merged = merged_columns(have, rows.schema, "the batch", "let a new pipeline write a new table")
        if len(merged.fields) == len(have.fields):
            return delta
        wanted = _deltalake().Schema.from_arrow(table_schema(rows))
        delta.alter.add_columns([field for field in wanted.fields if field.name not in names])
        return self._opened()

    def _belongs_to(self, query: str) -> bool:
        return self._opened().transaction_version(query) is not None

    def _stored_columns(self) -> StructType | None:
        delta = self._found()
        return None if delta is None else _spark_columns(delta)

    def read(self) -> DataFrame:
        delta = self._readable()
        columns = _spark_columns(delta)
        files = sorted(self._paths(delta))
        if not files:
            return self._spark.createDataFrame([], columns)
        return self._spark.read.schema(columns).parquet(*files)

    def batches(self) -> pa.RecordBatchReader:
        return self._readable().to_pyarrow_dataset().scanner().to_reader()

    def file_sizes(self) -> list[int]:
        sizes: list[int] = _files(self._opened())["size_bytes"].to_pylist()
        return sizes

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
            self._sync_files(after - before)
            self._sync_log(delta.version())
            return Compacted(len(before), len(after))
        raise self._contended(problem)

    def vacuum(self, keep_s: float) -> int:
        check_keep(keep_s)
        # Full: the files of failed attempts are in no commit, and nothing else removes them.
        deleted = self._opened().vacuum(
            retention_hours=-(-int(keep_s) // 3600), dry_run=False, enforce_retention_duration=False, full=True
        )
        return len(deleted)

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
        hidden = sorted(UNREADABLE_FEATURES & set(delta.protocol().reader_features or ()))
        if delta.metadata().partition_columns:
            hidden.append("partition columns")
        if hidden:
            raise ConfigError(
                f"table {self.path} uses {', '.join(hidden)}, which another writer turned on: read it with Spark and the Delta jar"
            )
        return delta

    @property
    def _store(self) -> Store:
        return DeltaStore(self.path, self._options) if is_url(self.path) else LocalStore(self.path)

    def _sync_log(self, first_version: int) -> None:
        """Make commits from a version on durable: the library leaves that to the operating system."""
        if is_url(self.path):
            return
        log = Path(self.path) / LOG
        oldest = f"{first_version:020d}.json"
        self._sync_files(str(each) for each in log.glob("*.json") if each.name >= oldest)
        sync_directory(log)

    def _paths(self, delta: Any) -> set[str]:
        return {f"{self.path}/{unquote(name)}" for name in _files(delta)["path"].to_pylist()}

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
