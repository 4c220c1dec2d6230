"""Iceberg through the pyiceberg library, with any catalog that it knows; a SQLite file next to the tables unless another is described.

One transaction adds the files of a batch and sets its number as a property of the table. The catalog accepts it only if the table's
snapshot is still the one that the number was read with. The library would repeat a refused commit on top of whatever came in between, the
same batch of another run included, so its retries are off (`commit.retry.num-retries`): after a refusal the table is loaded and the number
compared again here. A batch without rows makes a snapshot too: catalogs compare snapshots and not properties, and the number alone could be
set back by a run that was overtaken.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.errors import ConfigError, PenstockError
from penstock.spark.pipelines.files import is_url
from penstock.spark.pipelines.tables.data_files import DataFile, table_schema, write_data_files
from penstock.spark.pipelines.tables.merging import SizedFile, groups_to_merge, merge_files
from penstock.spark.pipelines.tables.stores import IcebergStore, LocalStore, Store
from penstock.spark.pipelines.tables.table import COMMIT_ATTEMPTS_MAX, Compacted, Table, check_keep, merged_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

CATALOG_FILE: Final = "iceberg.db"
CATALOG: Final = "penstock"
BATCH_PROPERTY: Final = "penstock.batch"
QUERY_PROPERTY: Final = "penstock.query"
RETRIES_PROPERTY: Final = "commit.retry.num-retries"
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
        wait_s: float = CATALOG_WAIT_S_MAX,
    ) -> None:
        super().__init__(spark, path)
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
        files: list[DataFile] | None = None

        def commit() -> None:
            nonlocal files
            table = self._created(rows)
            if int(table.properties.get(BATCH_PROPERTY, -1)) >= batch_id:
                return
            if files is None:
                files = write_data_files(rows, self._store(table), small=small)
            self._add(table, files, batch_id)

        with self._catalog_errors():
            self._repeated_after_conflicts(commit)

    def _add(self, table: Any, files: Sequence[DataFile], batch_id: int) -> None:
        with table.transaction() as transaction:
            transaction.add_files([f"{self._location}/data/{each.name}" for each in files])
            transaction.set_properties({BATCH_PROPERTY: str(batch_id)})

    def _created(self, rows: DataFrame) -> Any:
        """Return the table with columns for everything in the rows."""
        from pyiceberg.exceptions import NoSuchTableError

        columns = table_schema(rows)
        try:
            table = self._loaded()
        except NoSuchTableError:
            catalog = self._opened_catalog()
            catalog.create_namespace_if_not_exists(self._identifier[0])
            properties = {QUERY_PROPERTY: self._query, RETRIES_PROPERTY: "0"}
            table = catalog.create_table_if_not_exists(
                self._identifier, columns, location=self._location, properties=properties
            )
        self._check_is_ours(table)
        if table.properties.get(RETRIES_PROPERTY) != "0":
            with table.transaction() as transaction:
                transaction.set_properties({RETRIES_PROPERTY: "0"})
        have = _spark_columns(table)
        merged = merged_columns(have, rows.schema, "the batch", "let a new pipeline write a new table")
        if len(merged.fields) > len(have.fields):
            with table.update_schema() as update:
                update.union_by_name(columns)
        return table

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
        properties = self._loaded().properties
        return int(properties.get(BATCH_PROPERTY, -1)) if properties.get(QUERY_PROPERTY) == query else None

    def _stored_columns(self) -> StructType | None:
        return _spark_columns(self._loaded()) if self.exists() else None

    def read(self) -> DataFrame:
        table = self._loaded()
        columns = _spark_columns(table)
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise ConfigError(
                f"rows of table {self.path} were deleted by another writer: read it with an Iceberg reader"
            )
        files = [task.file.file_path for task in tasks]
        return self._spark.read.schema(columns).parquet(*files) if files else self._spark.createDataFrame([], columns)

    def batches(self) -> pa.RecordBatchReader:
        return self._loaded().scan().to_arrow_batch_reader()

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
        files = {task.file.file_path: task.file for task in scanned if not task.delete_files}
        sized = (SizedFile(path, file.file_size_in_bytes) for path, file in files.items())
        groups = groups_to_merge(table.io, sized, file_bytes)
        if not groups:
            return
        store = self._store(table)
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
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


def _spark_columns(table: Any) -> StructType:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(table.schema().as_arrow(), prefer_timestamp_ntz=False)
