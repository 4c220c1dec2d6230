"""What every table format offers: a batch is appended whole and once, however often it is tried.

Batches of a query are numbered, and Spark repeats a batch under its number if it does not know that the batch was finished. Each format
stores the number of the last batch with the data, in the same commit, and skips a batch that it has.

The numbers mean something only together with the checkpoint they come from. A checkpoint that was removed begins at 0 again, and its
batches would be taken for done; a table that was removed would lack what the checkpoint has long passed. So a table records the query it
belongs to, and refuses any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ConfigError, InvalidRequest
from penstock.spark.pipelines.tables.data_files import DataFile, Partitioning, table_schema
from penstock.spark.pipelines.tables.history import AddedFile, History

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

COMMIT_ATTEMPTS_MAX: Final = 10
"""Per batch or compaction, when other writers of the table keep winning the race."""
READ_AGAIN: Final = "remove the checkpoint too to read everything again"
VACUUM_KEEP_S_MIN: Final = 24 * 3600
"""Files that no commit names may be those of a batch under way: they must be this old before they are deleted."""


class Compacted(NamedTuple):
    """The number of data files of a table before and after a compaction."""

    files_before: int
    files_after: int


DATE: Final = "date"
"""A column to partition by that is made of the timestamp."""


class Table(ABC):
    def __init__(self, spark: SparkSession | None, path: str, partitioning: Partitioning) -> None:
        self.path = path
        self._session = spark
        self._partitioning = partitioning
        self._query = ""

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None, "this table was opened without a Spark session"
        return self._session

    def claim(
        self, query: str, batch_id: int, checkpoint: str, *, remedy: str = READ_AGAIN, every_batch: bool = True
    ) -> None:
        """Check that the table and the checkpoint belong together. Call it before the first append of a run.

        `remedy` is what to do about a table that lacks batches. One that does not get `every_batch` may lack any.
        """
        if self.exists():
            last = self.last_batch(query)
            if last is None:
                raise ConfigError(
                    f"table {self.path} was not written with checkpoint {checkpoint}, so which batches it has is unknown: put back the "
                    "checkpoint it was written with, choose another directory, or remove the table too to read everything again"
                )
            if every_batch and last < batch_id - 1:
                raise ConfigError(
                    f"table {self.path} lacks batches {last + 1} to {batch_id - 1} of its checkpoint {checkpoint}, which were done without "
                    f"it: {remedy}"
                )
        elif every_batch and batch_id > 0:
            raise ConfigError(
                f"table {self.path} is gone, but its checkpoint {checkpoint} has gone past what was in it: put the table back, or {remedy}"
            )
        self._query = query

    def check_columns(self, columns: StructType, what: str, advice: str) -> None:
        """Check that rows with these columns can be appended. Raises InvalidRequest as `merged_columns` does."""
        stored = self._stored_columns()
        if stored is not None:
            merged_columns(stored, columns, what, advice)

    def has(self, batch_id: int) -> bool:
        """Return whether a batch of the query that has claimed the table is in it."""
        last = self.last_batch(self._query) if self.exists() else None
        return last is not None and last >= batch_id

    @abstractmethod
    def exists(self) -> bool:
        """Return whether the table was created."""

    @abstractmethod
    def last_batch(self, query: str) -> int | None:
        """Return the number of the last batch of a query in the table, which exists; None if it was not written by that query."""

    @abstractmethod
    def _stored_columns(self) -> StructType | None: ...

    @abstractmethod
    def append(self, rows: DataFrame, batch_id: int, *, small: bool = False) -> None:
        """Append a batch, unless it was appended before. A small one is collected and written by the driver."""

    @abstractmethod
    def merge(self, changes: DataFrame, deleted: pa.Array, key: Sequence[str], batch_id: int) -> None:
        """Commit a batch of changes, unless it was done before: delete rows of `deleted` record keys, replace and add rows by key."""

    @abstractmethod
    def read(self) -> DataFrame:
        """Return everything in the table."""

    @abstractmethod
    def batches(self) -> pa.RecordBatchReader:
        """Return everything in the table, without Spark."""

    @abstractmethod
    def row_count(self) -> int: ...

    @abstractmethod
    def file_sizes(self) -> list[int]:
        """Return the size in bytes of each data file."""

    @abstractmethod
    def compact(self, file_bytes: int) -> Compacted:
        """Rewrite small files as larger ones. Safe while a pipeline writes and others read."""

    @abstractmethod
    def vacuum(self, keep_s: float) -> int:
        """Delete files that have been in no version of the table for this long, at least `VACUUM_KEEP_S_MIN`; return how many."""

    # -- rebuilding -------------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def log(self) -> History: ...

    @abstractmethod
    def handle(self) -> Any | None:
        """Return the table as it is now, to be replaced; None if there is none."""

    @abstractmethod
    def batch_of(self, handle: Any, query: str) -> int | None:
        """Return the number of the last batch of a query in a table as it was; None if it was not written by that query."""

    @abstractmethod
    def write_files(self, rows: DataFrame, query: str) -> list[DataFile]:
        """Write durable files that no version of the table names yet. The table may be made for the query, without rows and batches."""

    @abstractmethod
    def place(self, file: DataFile) -> AddedFile:
        """Return a file that was written here as the table's history names it."""

    @abstractmethod
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
        """Replace every row by those of the files, which are all of a query up to a batch. Return whether that was done.

        It is not if anything was committed since the handle was opened. Streams of the table pass over it, unless these are not the
        `same_records` as before: then they end with an error.
        """

    def columns_of(self, rows: DataFrame) -> pa.Schema:
        """Return the columns that the table has with these rows alone."""
        return table_schema(self._with_date(rows))

    # -- for the formats --------------------------------------------------------------------------------------------------

    def _with_date(self, rows: DataFrame) -> DataFrame:
        """Return the rows with the day of their timestamp, in UTC, if the table is partitioned by it and they have none."""
        if DATE not in self._partitioning.columns or DATE in rows.columns or "timestamp" not in rows.columns:
            return rows
        return rows.selectExpr("*", f"CAST(to_utc_timestamp(timestamp, current_timezone()) AS DATE) AS {DATE}")

    def _check_partitioning(self, found: Sequence[str]) -> None:
        wanted = self._partitioning.columns
        if tuple(found) != wanted:
            raise ConfigError(
                f"table {self.path} is partitioned by {', '.join(found) or 'nothing'}, and the file says "
                f"{', '.join(wanted) or 'nothing'}: set partition_by back, or write a new table with another directory"
            )


def merged_columns(table: StructType, rows: StructType, what: str, advice: str) -> StructType:
    """Return the columns a table has after rows with theirs are appended. Raises InvalidRequest if a column would change its type, or have
    its name in other case: to Spark that is the same column, and to the libraries another."""
    from pyspark.sql.types import StructType

    known: dict[str, Any] = {field.name.lower(): field for field in table.fields}
    added = []
    for field in rows.fields:
        before = known.get(field.name.lower())
        if before is None:
            added.append(field)
        elif before.name != field.name:
            raise InvalidRequest(
                f"{what} has a column {field.name}, and the table has it as {before.name}, in other upper and lower case: {advice}"
            )
        elif before.dataType != field.dataType:
            raise InvalidRequest(
                f"{what} makes column {field.name} {field.dataType.simpleString()}, and the table has it as "
                f"{before.dataType.simpleString()}: {advice}"
            )
    return StructType([*table.fields, *added])


def check_keep(keep_s: float) -> None:
    if keep_s < VACUUM_KEEP_S_MIN:
        raise InvalidRequest(
            f"replaced files must be kept for at least {VACUUM_KEEP_S_MIN // 3600} h, got {keep_s / 3600:g} h: a batch under way may "
            "have written files that no commit names yet"
        )
