"""What every format offers: a batch is appended whole and once, however often it is tried.

Batches of a query are numbered, and Spark does a batch again, under its number, where it does not know that it was done. Each format
keeps the number of the last batch with the data, in the same atomic step, and passes over a batch that it has.

The numbers mean something only together with the checkpoint they come from. A checkpoint that was removed begins at 0 again, and its
batches would be taken for done; a table that was removed would lack what the checkpoint has long passed. So a table knows the query it
belongs to (`_penstock.json` inside it), and refuses any other.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import ConfigError, InvalidRequest, PenstockError
from penstock.spark.pipelines.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

OWNER_FILE: Final = "_penstock.json"


class Compacted(NamedTuple):
    """What compacting a table came to."""

    files_before: int
    files_after: int
    deleted_files: int = 0
    """Of earlier compactions, that no reader can need any more."""


class Table(ABC):
    def __init__(self, spark: SparkSession | None, path: str, files: Files) -> None:
        self.path = path
        self._session = spark
        self._files = files
        self._query = ""
        self._columns: StructType | None = None
        """Those that it has, once they were asked for."""

    @property
    def _spark(self) -> SparkSession:
        assert self._session is not None, "compacting alone needs no Spark"
        return self._session

    def claim(self, query: str, batch_id: int, checkpoint: str) -> None:
        """Make sure that the table and the checkpoint belong together. To be called before the first append of a run."""
        found = self._files.read(f"{self.path}/{OWNER_FILE}")
        owner = None if found is None else json.loads(found)["query"]
        if owner is None:
            if self.exists():
                raise ConfigError(
                    f"{self.path} is there and was not written by this pipeline: choose another directory, or remove it"
                )
            if batch_id > 0:
                raise ConfigError(
                    f"table {self.path} is gone, but its checkpoint {checkpoint} has gone past what was in it: put the table back, "
                    "or remove the checkpoint too to read everything again"
                )
            self._files.write(f"{self.path}/{OWNER_FILE}", json.dumps({"query": query}))
        elif owner != query:
            raise ConfigError(
                f"table {self.path} was written with another checkpoint than {checkpoint}, so what it has is not known: put that "
                "checkpoint back, or remove the table too to read everything again"
            )
        self._query = query

    def check_columns(self, columns: StructType, what: str, advice: str) -> None:
        """Make sure that rows with these columns can be appended. Raises InvalidRequest where a column would change its type."""
        if self._columns is None:
            self._columns = self._found_columns()
        self._columns = columns if self._columns is None else merged_columns(self._columns, columns, what, advice)

    def _found_columns(self) -> StructType | None:
        if not self.exists():
            return None
        try:
            return self.read().schema
        except Exception as error:  # a table of empty batches has no columns yet
            if isinstance(error, PenstockError):
                raise
            return None

    @abstractmethod
    def exists(self) -> bool:
        """Whether anything was ever appended."""

    @abstractmethod
    def append(self, rows: DataFrame, batch_id: int) -> None:
        """Append a batch, unless it was appended before."""

    @abstractmethod
    def read(self) -> DataFrame:
        """Everything in the table."""

    @abstractmethod
    def compact(self, file_bytes: int, keep_s: float) -> Compacted:
        """Rewrite small files as larger ones, while nobody writes. What is replaced is kept for readers that began before."""


def merged_columns(table: StructType, rows: StructType, what: str, advice: str) -> StructType:
    """The columns that a table has once rows with theirs are in it. Raises where a column would change its type."""
    from pyspark.sql.types import StructType

    known: dict[str, Any] = {field.name.lower(): field for field in table.fields}
    added = []
    for field in rows.fields:
        before = known.get(field.name.lower())
        if before is None:
            added.append(field)
        elif before.dataType != field.dataType:
            raise InvalidRequest(
                f"{what} makes column {field.name} {field.dataType.simpleString()}, and the table has it as "
                f"{before.dataType.simpleString()}: {advice}"
            )
    return StructType([*table.fields, *added])
