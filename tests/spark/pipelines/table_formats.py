"""One table in each format, and its rows as another reader sees them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import polars as pl
import pyarrow as pa
import pyarrow.dataset
from deltalake import DeltaTable

from penstock.spark.pipelines.tables.data_files import DataFile, Partitioning, write_data_files
from penstock.spark.pipelines.tables.delta import DeltaLakeTable
from penstock.spark.pipelines.tables.iceberg import IcebergTable
from penstock.spark.pipelines.tables.stores import LocalStore
from penstock.spark.pipelines.tables.table import Table

QUERY: Final = "query-1"
IDENTIFIER: Final = ("silver", "orders")
FORMATS: Final = ("delta", "iceberg")
Format = Literal["delta", "iceberg"]


def states(table: Table) -> list[pa.Table]:
    """What a reader of the format's library saw after each commit of rows."""
    if not isinstance(table, IcebergTable):
        versions = range(DeltaTable(table.path).version() + 1)
        return [DeltaTable(table.path, version=version).to_pyarrow_table() for version in versions]
    stored = table._loaded()
    snapshots = sorted(stored.snapshots(), key=lambda snapshot: int(snapshot.sequence_number or 0))
    return [stored.scan(snapshot_id=each.snapshot_id).to_arrow() for each in snapshots]


class Made:
    """A table that need not be there yet."""

    def __init__(self, directory: Path, of: Format) -> None:
        self.format = of
        self._directory = directory
        self.path = f"{directory}/silver/orders"

    def open(self, partition_by: Sequence[str] = ()) -> Table:
        if self.format == "delta":
            return DeltaLakeTable(None, self.path, partition_by=partition_by)
        return IcebergTable(None, self.path, str(self._directory), IDENTIFIER, partition_by=partition_by)

    def claimed(self, batch_id: int = 0, partition_by: Sequence[str] = (), query: str = QUERY) -> Table:
        table = self.open(partition_by)
        table.claim(query, batch_id, "checkpoint")
        return table

    def rows(self) -> list[dict[str, Any]]:
        """By a reader that knows nothing of Penstock: the Delta library, or Polars, which reads Iceberg by itself."""
        if self.format == "delta":
            return list(DeltaTable(self.path).to_pyarrow_table().to_pylist())
        return pl.scan_iceberg(self.iceberg()).collect().to_dicts()

    def files_with(self, column: str, value: Any) -> int:
        """How many files a reader opens for rows of a value."""
        if self.format == "delta":
            expression = pyarrow.dataset.field(column) == value
            return len(list(DeltaTable(self.path).to_pyarrow_dataset().get_fragments(expression)))
        from pyiceberg import expressions

        of: Any = expressions
        return len(list(self.iceberg().scan(row_filter=of.EqualTo(column, value)).plan_files()))

    def iceberg(self) -> Any:
        table = self.open()
        assert isinstance(table, IcebergTable)
        return table._loaded()

    def files(self, rows: Any, partition_by: Sequence[str] = ()) -> list[DataFile]:
        """Files of rows, which no version of the table names yet."""
        is_delta = self.format == "delta"
        store = LocalStore(self.path if is_delta else f"{self.path}/data")
        partitioning = Partitioning(tuple(partition_by), in_files=not is_delta)
        return write_data_files(rows, store, small=True, partitioning=partitioning)
