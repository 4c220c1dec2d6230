"""Iceberg through the pyiceberg library, with any catalog that it knows; a SQLite file next to the tables unless another is described.

One transaction adds the files of a batch and sets its number as a property of the table. The catalog accepts it only if the table's
snapshot is still the one that the number was read with. The library would repeat a refused commit on top of whatever came in between, the
same batch of another run included, so its retries are off (`commit.retry.num-retries`): after a refusal the table is loaded and the number
compared again here. A batch without rows makes a snapshot too: catalogs compare snapshots and not properties, and the number alone could be
set back by a run that was overtaken.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.errors import ConfigError, PenstockError
from penstock.spark.pipelines.files import is_url
from penstock.spark.pipelines.tables.data_files import (
    DataFile,
    Partitioning,
    check_partitionable,
    table_schema,
    too_long,
    write_batches,
    write_data_files,
)
from penstock.spark.pipelines.tables.history import AddedFile
from penstock.spark.pipelines.tables.iceberg_history import (
    BATCH,
    COMPACTION,
    QUERY,
    REBUILD,
    IcebergHistory,
    check_readable,
    last_batch,
)
from penstock.spark.pipelines.tables.iceberg_merge import changed_files, rewrite_files
from penstock.spark.pipelines.tables.merging import SizedFile, groups_to_merge, merge_files
from penstock.spark.pipelines.tables.stores import IcebergStore, LocalStore, Store
from penstock.spark.pipelines.tables.table import COMMIT_ATTEMPTS_MAX, Compacted, Table, check_keep, merged_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CATALOG_FILE: Final = "iceberg.db"
CATALOG: Final = "penstock"
RETRIES_PROPERTY: Final = "commit.retry.num-retries"
NAMES_PROPERTY: Final = "schema.name-mapping.default"
"""Which field a column of a file is: files are written before the snapshot that may add the field."""
CATALOG_WAIT_S_MAX: Final = 60.0
"""How long to wait for another process that changes the SQLite catalog."""

Result = TypeVar("Result")


class IcebergTable(Table):
    def __init__(
        self,
        spark: SparkSession | None,
        path: str,
        directory: str,
        identifier: tuple[str, str],
        catalog: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        wait_s: float = CATALOG_WAIT_S_MAX,
    ) -> None:
        super().__init__(spark, path, Partitioning(tuple(partition_by), in_files=True))
        self._directory = directory
        self._identifier = identifier
        self._catalog_properties = dict(catalog or {})
        self._wait_s = wait_s
        self._catalog: Any = None

    def exists(self) -> bool:
        with self._catalog_errors():
            catalog = self._opened_catalog()
            if not catalog.table_exists(self._identifier):
                return False
            self._check_is_ours(catalog.load_table(self._identifier))
            return True

    def _check_is_ours(self, table: Any) -> None:
        """Refuse a table of another topic: names that differ only in punctuation are one name to the catalog."""
        if table.location() != self._location:
            raise ConfigError(
                f"the Iceberg table {'.'.join(self._identifier)} is that of {table.location()}, so {self.path} cannot have its name: "
                'read the two with two pipelines, or use format = "delta"'
            )

    @property
    def _location(self) -> str:
        return self.path if is_url(self.path) else f"file://{self.path}"

    def append(self, rows: DataFrame, batch_id: int, *, small: bool = False) -> None:
        rows = self._with_date(rows)
        files: list[DataFile] | None = None

        def commit() -> None:
            nonlocal files
            table = self._prepared(rows)
            if _has(table, batch_id):
                return
            if files is None:
                files = write_data_files(rows, self._store(table), small=small, partitioning=self._partitioning)
            self._add(table, files, batch_id)

        with self._catalog_errors():
            self._repeated_after_conflicts(commit)

    def merge(self, changes: DataFrame, deleted: pa.Array, key: Sequence[str], batch_id: int) -> None:
        changes = self._with_date(changes)
        found: pa.Table | None = None
        files: list[DataFile] = []

        def commit() -> None:
            nonlocal found, files
            table = self._prepared(changes)
            if _has(table, batch_id):
                return
            store = self._store(table)
            if found is None:
                found = changes.toArrow().cast(table_schema(changes))
                files = list(write_batches(found.to_batches(), found.schema, store, self._partitioning))
            tasks = changed_files(table, found, deleted, key)
            rest = rewrite_files(table, tasks, found, deleted, key, store, self._partitioning)
            self._add(table, [*files, *rest.added], batch_id, rest.removed)

        with self._catalog_errors():
            self._repeated_after_conflicts(commit)

    def _add(self, table: Any, files: Sequence[DataFile], batch_id: int, removed: Sequence[Any] = ()) -> None:
        with table.transaction() as transaction:
            self._stage_batch(table, transaction, self._query, batch_id, files, removed)

    def _stage_batch(
        self,
        table: Any,
        transaction: Any,
        query: str,
        batch_id: int,
        files: Sequence[DataFile],
        removed: Sequence[Any],
        **summary: str,
    ) -> None:
        """The number of a batch, and one snapshot with its files instead of those that are removed."""
        numbered = {QUERY: query, BATCH: str(batch_id)}
        transaction.set_properties(numbered)
        metadata = transaction.table_metadata
        if metadata.name_mapping() is None:
            # Files name their columns, and do not number them: they may be written before a column has its number.
            transaction.set_properties({NAMES_PROPERTY: metadata.schema().name_mapping.model_dump_json()})
        update = transaction.update_snapshot(snapshot_properties={**numbered, **summary})
        with update.overwrite() if removed else update.fast_append() as snapshot:
            for each in removed:
                snapshot.delete_data_file(each)
            for file in files:
                snapshot.append_data_file(self._data_file(table, transaction.table_metadata, file))

    def _data_file(self, table: Any, metadata: Any, file: DataFile) -> Any:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        made = parquet_file_to_data_file(table.io, metadata, self.place(file).path)
        # The library takes the values of a partition from the bounds of the file, which Parquet leaves out if they are long.
        for number, (column, value) in enumerate(json.loads(file.partition_values).items()):
            if (made.partition[number] is None) != (value is None):
                raise too_long(column)
        return made

    # -- the table as it has to be ----------------------------------------------------------------------------------------

    def _prepared(self, rows: DataFrame) -> Any:
        """Return the table with columns for everything in the rows."""
        columns = table_schema(rows)
        table = self._made(columns, self._query)
        have = _spark_columns(table)
        merged = merged_columns(have, rows.schema, "the batch", "let a new pipeline write a new table")
        if len(merged.fields) > len(have.fields):
            with table.update_schema() as update:
                update.union_by_name(columns)
        return table

    def _made(self, columns: pa.Schema, query: str) -> Any:
        """Return the table, made with these columns if there is none. One that is new has no batch."""
        table = self._found()
        if table is None:
            self._make(columns, query)
            table = self._loaded()
        self._check_is_ours(table)
        self._check_partitioning(_partition_columns(table))
        return _without_retries(table)

    def _make(self, columns: pa.Schema, query: str) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

        check_partitionable(columns, self._partitioning.columns)
        catalog = self._opened_catalog()
        catalog.create_namespace_if_not_exists(self._identifier[0])
        try:
            with catalog.create_table_transaction(
                self._identifier,
                columns,
                location=self._location,
                properties={QUERY: query, RETRIES_PROPERTY: "0"},
            ) as transaction:
                if self._partitioning.columns:
                    with transaction.update_spec() as update:
                        for column in self._partitioning.columns:
                            update.add_identity(column)
        except (CommitFailedException, TableAlreadyExistsError):
            if not catalog.table_exists(self._identifier):
                raise

    # -- rebuilding -------------------------------------------------------------------------------------------------------

    @property
    def log(self) -> IcebergHistory:
        table = self._found()
        properties = self._opened_catalog().properties if table is None else table.io.properties
        return IcebergHistory(self.path, self._found, properties)

    def handle(self) -> Any | None:
        table = self._found()
        return None if table is None or BATCH not in table.properties else _without_retries(table)

    def batch_of(self, handle: Any, query: str) -> int | None:
        return last_batch(handle, query)

    def write_files(self, rows: DataFrame, query: str) -> list[DataFile]:
        rows = self._with_date(rows)
        with self._catalog_errors():
            # Credentials for the files of a table may come with the table alone.
            store = self._store(self._made(table_schema(rows), query))
        return write_data_files(rows, store, small=False, partitioning=self._partitioning)

    def place(self, file: DataFile) -> AddedFile:
        return AddedFile(f"{self._location}/data/{file.name}", file.size_bytes, {}, file.rows)

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
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        summary = {REBUILD: str(batch_id)} if same_records else {}
        with self._catalog_errors():
            table = self._made(columns, query) if handle is None else handle
            if handle is None and BATCH in table.properties:
                return False
            self._check_partitioning(_partition_columns(table))
            removed = [task.file for task in table.scan().plan_files()]
            try:
                with table.transaction() as transaction:
                    self._stage_columns(transaction, columns)
                    self._stage_batch(table, transaction, query, batch_id, files, removed, **summary)
            except (CommitFailedException, ValidationException):
                return False
        return True

    def _stage_columns(self, transaction: Any, columns: pa.Schema) -> None:
        """The columns of rows that come instead of all others. One of another type is another column with the same name."""
        have = {field.name: field.dataType for field in _spark_columns(transaction).fields}
        wanted = {field.name: field.dataType for field in spark_columns(columns).fields}
        dropped = [name for name, kind in have.items() if wanted.get(name) != kind]
        fixed = [name for name in dropped if name in self._partitioning.columns]
        if fixed:
            raise ConfigError(
                f"table {self.path} is partitioned by {', '.join(fixed)}, which would change its type: write a new table with another "
                "directory, or keep the type"
            )
        if dropped:
            with transaction.update_schema() as update:
                for name in dropped:
                    update.delete_column((name,))
        if any(have.get(name) != kind for name, kind in wanted.items()):
            with transaction.update_schema() as update:
                update.union_by_name(columns)

    # -- reading ----------------------------------------------------------------------------------------------------------

    def _repeated_after_conflicts(self, commit: Callable[[], Result]) -> Result:
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        for attempt in range(1, COMMIT_ATTEMPTS_MAX + 1):
            try:
                return commit()
            except (CommitFailedException, ValidationException):
                if attempt == COMMIT_ATTEMPTS_MAX:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def last_batch(self, query: str) -> int | None:
        return last_batch(self._loaded(), query)

    def _stored_columns(self) -> StructType | None:
        return _spark_columns(self._loaded()) if self.exists() else None

    def read(self) -> DataFrame:
        table = self._loaded()
        columns = _spark_columns(table)
        tasks = list(table.scan().plan_files())
        check_readable(tasks, self.path)
        files = [task.file.file_path for task in tasks]
        return self._spark.read.schema(columns).parquet(*files) if files else self._spark.createDataFrame([], columns)

    def batches(self) -> pa.RecordBatchReader:
        return self._loaded().scan().to_arrow_batch_reader()

    def row_count(self) -> int:
        rows: int = self._loaded().scan().count()
        return rows

    def file_sizes(self) -> list[int]:
        return [task.file.file_size_in_bytes for task in self._loaded().scan().plan_files()]

    def compact(self, file_bytes: int) -> Compacted:
        def merge() -> Compacted:
            table = self._loaded()
            before = list(table.scan().plan_files())
            self._merge_small_files(table, before, file_bytes)
            return Compacted(len(before), len(list(table.refresh().scan().plan_files())))

        with self._catalog_errors():
            return self._repeated_after_conflicts(merge)

    def _merge_small_files(self, table: Any, scanned: Sequence[Any], file_bytes: int) -> None:
        """Replace them in one snapshot; until it is committed, nobody sees any of it."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        # Files with rows that another writer deleted are left alone: the rows are still in the file.
        files = {
            task.file.file_path: task.file
            for task in scanned
            if not task.delete_files and task.file.spec_id == table.metadata.default_spec_id
        }
        sized = (SizedFile(path, file.file_size_in_bytes, repr(file.partition)) for path, file in files.items())
        groups = groups_to_merge(table.io, sized, file_bytes)
        if not groups:
            return
        store = self._store(table)
        marked = {COMPACTION: str(len(groups))}
        with (
            table.transaction() as transaction,
            transaction.update_snapshot(snapshot_properties=marked).overwrite() as snapshot,
        ):
            for group in groups:
                name = f"part-compacted-{uuid.uuid4()}.parquet"
                merge_files(table.io, group, store, name)
                for file in group:
                    snapshot.delete_data_file(files[file.path])
                path = f"{self._location}/data/{name}"
                snapshot.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))

    def vacuum(self, keep_s: float) -> int:
        """Expire old snapshots; delete files that no snapshot names, which on object stores is left to the catalog's own tools."""
        from datetime import UTC, datetime, timedelta

        check_keep(keep_s)

        def expire() -> Any:
            table = self._loaded()
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - timedelta(seconds=keep_s)).commit()
            return table.refresh()

        with self._catalog_errors():
            table = self._repeated_after_conflicts(expire)
            return 0 if is_url(self.path) else self._delete_unnamed(table, keep_s)

    def _delete_unnamed(self, table: Any, keep_s: float) -> int:
        named = {
            Path(entry.data_file.file_path).name
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }
        now_s = time.time()
        unneeded = [
            each
            for each in Path(self.path, "data").rglob("*.parquet")
            if each.name not in named and now_s - each.stat().st_mtime >= keep_s
        ]
        for each in unneeded:
            each.unlink()
        return len(unneeded)

    # -- the library ------------------------------------------------------------------------------------------------------

    def _loaded(self) -> Any:
        return self._opened_catalog().load_table(self._identifier)

    def _found(self) -> Any | None:
        """Return the table, None if there is none."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._loaded()
        except NoSuchTableError:
            return None

    def _store(self, table: Any) -> Store:
        if is_url(self.path):
            return IcebergStore(f"{self._location}/data", table.io.properties)
        return LocalStore(f"{self.path}/data")

    def _opened_catalog(self) -> Any:
        if self._catalog is None:
            try:
                from pyiceberg.catalog import load_catalog
            except ImportError:
                raise ConfigError(
                    'format = "iceberg" needs the pyiceberg library: run pip install "penstock[iceberg]"'
                ) from None
            self._catalog = load_catalog(CATALOG, **(self._catalog_properties or self._sqlite()))
        return self._catalog

    def _sqlite(self) -> dict[str, str]:
        from penstock.spark.pipelines.tables.iceberg_files import FILE_IO

        Path(self._directory).mkdir(parents=True, exist_ok=True)
        return {
            "py-io-impl": FILE_IO,
            "type": "sql",
            "uri": f"sqlite:///{self._directory}/{CATALOG_FILE}?timeout={self._wait_s}",
            "warehouse": f"file://{self._directory}",
        }

    @contextmanager
    def _catalog_errors(self) -> Iterator[None]:
        """Turn what goes wrong with the catalog into errors that say what to do."""
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            from pyiceberg.exceptions import CommitFailedException, ValidationException

            if isinstance(error, CommitFailedException | ValidationException):
                raise ConfigError(
                    f"the Iceberg table {'.'.join(self._identifier)} was changed by another writer in each of {COMMIT_ATTEMPTS_MAX} "
                    f"attempts to commit: let only one pipeline write it, then run this again ({error})"
                ) from error
            if type(error).__name__ == "OperationalError":
                raise ConfigError(
                    f"the Iceberg catalog of {self._directory} cannot be used: {getattr(error, 'orig', error)}; if another program "
                    f"holds it, let that one finish (it was given {self._wait_s:g} s)"
                ) from error
            raise


def stage_directories(directory: str, stage: str, catalog: Mapping[str, str]) -> list[str]:
    """Return the names of the directories of a stage's tables, by the catalog."""
    from pyiceberg.catalog import load_catalog

    opened = load_catalog(CATALOG, **catalog)
    if not opened.namespace_exists(stage):
        return []
    locations = [opened.load_table(each).location() for each in opened.list_tables(stage)]
    below = f"{directory}/{stage}/"
    return [each.removeprefix(below) for each in locations if each.startswith(below)]


def _has(table: Any, batch_id: int) -> bool:
    return int(table.properties.get(BATCH, -1)) >= batch_id


def _without_retries(table: Any) -> Any:
    if table.properties.get(RETRIES_PROPERTY) != "0":
        with table.transaction() as transaction:
            transaction.set_properties({RETRIES_PROPERTY: "0"})
    return table


def _partition_columns(table: Any) -> list[str]:
    schema = table.schema()
    return [schema.find_column_name(field.source_id) or field.name for field in table.spec().fields]


def _spark_columns(table: Any) -> StructType:
    """Of a table, or of one as a transaction leaves it."""
    metadata = getattr(table, "table_metadata", None) or table.metadata
    return spark_columns(metadata.schema().as_arrow())


def spark_columns(columns: pa.Schema) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(columns, prefer_timestamp_ntz=False)
