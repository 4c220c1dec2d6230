"""Iceberg through the pyiceberg library, with a catalog in one SQLite file beside the tables.

Executors write the files; one transaction on the driver adds them and sets the number of the batch as a property of the table. The
catalog may be open in any number of processes: each change of it is one short transaction of SQLite, for which others wait.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ConfigError, PenstockError
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.tables.data_files import write_data_files
from penstock.spark.pipelines.tables.merging import SizedFile, groups_to_merge, merge_files
from penstock.spark.pipelines.tables.table import Compacted, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALOG_FILE: Final = "iceberg.db"
CATALOG: Final = "penstock"
BATCH_PROPERTY: Final = "penstock.batch"
CATALOG_WAIT_S_MAX: Final = 60.0
"""How long to wait for another process that changes the catalog."""


class IcebergTable(Table):
    def __init__(
        self,
        spark: SparkSession | None,
        path: str,
        files: Files,
        directory: str,
        identifier: tuple[str, str],
        wait_s: float = CATALOG_WAIT_S_MAX,
    ) -> None:
        super().__init__(spark, path, files)
        self._directory = directory
        self._identifier = identifier
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
        """Names that differ only in what is no letter or digit are one name to the catalog, and would be one table."""
        if table.location() != self._location:
            raise ConfigError(
                f"the Iceberg table {'.'.join(self._identifier)} is that of {table.location()}, so {self.path} cannot have its name: "
                'read the two with two pipelines, or use format = "delta" or "parquet"'
            )

    @property
    def _location(self) -> str:
        return f"file://{self.path}"

    def append(self, rows: DataFrame, batch_id: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        columns = to_arrow_schema(rows.schema, timezone="UTC")
        with self._catalog_errors():
            catalog = self._opened_catalog()
            catalog.create_namespace_if_not_exists(self._identifier[0])
            table = catalog.create_table_if_not_exists(self._identifier, columns, location=self._location)
            self._check_is_ours(table)
            if int(table.properties.get(BATCH_PROPERTY, -1)) >= batch_id:
                return
            with table.update_schema() as update:
                update.union_by_name(columns)
            written = write_data_files(rows, f"{self.path}/data")
            with table.transaction() as transaction:
                if written:
                    transaction.add_files([f"{self._location}/data/{each.name}" for each in written])
                transaction.set_properties({BATCH_PROPERTY: str(batch_id)})

    def read(self) -> DataFrame:
        scan = self._opened_catalog().load_table(self._identifier).scan()
        files = [task.file.file_path for task in scan.plan_files()]
        return self._spark.read.option("mergeSchema", "true").parquet(*files)

    def compact(self, file_bytes: int, keep_s: float) -> Compacted:
        from datetime import UTC, datetime, timedelta

        with self._catalog_errors():
            table = self._opened_catalog().load_table(self._identifier)
            before = list(table.scan().plan_files())
            self._merge_small_files(table, before, file_bytes)
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC) - timedelta(seconds=keep_s)).commit()
            after = len(list(table.refresh().scan().plan_files()))
            return Compacted(len(before), after, self._delete_unneeded(table, keep_s))

    def _merge_small_files(self, table: Any, scanned: Sequence[Any], file_bytes: int) -> None:
        """In one snapshot; until it is committed, nobody sees any of it."""
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        # What other programs have deleted rows of is left alone: the rows are still in the file.
        files = {_local_path(task.file.file_path): task.file for task in scanned if not task.delete_files}
        groups = groups_to_merge((SizedFile(path, file.file_size_in_bytes) for path, file in files.items()), file_bytes)
        if not groups:
            return
        data = Path(self.path, "data")
        with table.transaction() as transaction, transaction.update_snapshot().overwrite() as snapshot:
            for group in groups:
                merged = data / f"part-compacted-{uuid.uuid4()}.parquet"
                merge_files(group, merged)
                for file in group:
                    snapshot.delete_data_file(files[file.path])
                snapshot.append_data_file(parquet_file_to_data_file(table.io, table.metadata, f"file://{merged}"))

    def _delete_unneeded(self, table: Any, keep_s: float) -> int:
        """Files that no snapshot names any more, and those of attempts that failed: the library forgets them and leaves them. How many."""
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
            if each.name not in named and (keep_s <= 0 or now_s - each.stat().st_mtime >= keep_s)
        ]
        for each in unneeded:
            each.unlink()
        return len(unneeded)

    def _opened_catalog(self) -> Any:
        if self._catalog is None:
            try:
                from pyiceberg.catalog.sql import SqlCatalog
            except ImportError:
                raise ConfigError(
                    'format = "iceberg" needs the pyiceberg library: run pip install "penstock[iceberg]"'
                ) from None
            Path(self._directory).mkdir(parents=True, exist_ok=True)
            self._catalog = SqlCatalog(
                CATALOG,
                uri=f"sqlite:///{self._directory}/{CATALOG_FILE}?timeout={self._wait_s}",
                warehouse=f"file://{self._directory}",
            )
        return self._catalog

    @contextmanager
    def _catalog_errors(self) -> Iterator[None]:
        """What goes wrong with the catalog, in words of ours."""
        try:
            yield
        except PenstockError:
            raise
        except Exception as error:
            from pyiceberg.exceptions import CommitFailedException, ValidationException
            from sqlalchemy.exc import OperationalError

            if isinstance(error, OperationalError):
                raise ConfigError(
                    f"the Iceberg catalog {self._directory}/{CATALOG_FILE} cannot be used: {error.orig}; where another program holds it, "
                    f"let that one finish (it was given {self._wait_s:g} s)"
                ) from error
            if isinstance(error, CommitFailedException | ValidationException):
                raise ConfigError(
                    f"the Iceberg table {'.'.join(self._identifier)} was changed by another program meanwhile: run this again, and let "
                    f"only the pipeline write its tables ({error})"
                ) from error
            raise


def _local_path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))
