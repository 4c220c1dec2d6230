"""Delta through the deltalake library: executors write the files, one commit on the driver adds them.

The commit carries the query and the number of the batch as an application transaction of the Delta protocol, so that it and the data are
one step, and any Delta reader can see it.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError
from penstock.spark.pipelines.tables.data_files import write_data_files
from penstock.spark.pipelines.tables.table import Compacted, Table, merged_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    deltalake: Any


class DeltaLakeTable(Table):
    def exists(self) -> bool:
        return bool(_deltalake().DeltaTable.is_deltatable(self.path))

    def append(self, rows: DataFrame, batch_id: int) -> None:
        delta = self._opened(rows)
        done = delta.transaction_version(self._query)
        if done is not None and done >= batch_id:
            return
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        now_ms = int(time.time() * 1000)
        actions = [
            AddAction(
                path=each.name,
                size=each.size_bytes,
                partition_values={},
                modification_time=now_ms,
                data_change=True,
                stats=json.dumps({"numRecords": each.rows}),
            )
            for each in write_data_files(rows, self.path)
        ]
        delta.create_write_transaction(
            actions,
            mode="append",
            schema=delta.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(self._query, batch_id)]),
        )

    def _opened(self, rows: DataFrame) -> Any:
        """The table, with columns for everything in the rows."""
        from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

        library = _deltalake()
        wanted = library.Schema.from_arrow(to_arrow_schema(rows.schema, timezone="UTC"))
        if not self.exists():
            return library.DeltaTable.create(self.path, wanted)
        delta = library.DeltaTable(self.path)
        import pyarrow as pa

        have = from_arrow_schema(pa.schema(delta.schema().to_arrow()), prefer_timestamp_ntz=False)
        names = {field.name for field in have.fields}
        if merged_columns(have, rows.schema, "the batch", "let a new pipeline write a new table").fields != have.fields:
            delta.alter.add_columns([field for field in wanted.fields if field.name not in names])
            delta = library.DeltaTable(self.path)
        return delta

    def read(self) -> DataFrame:
        return self._spark.read.option("mergeSchema", "true").parquet(*_deltalake().DeltaTable(self.path).file_uris())

    def compact(self, file_bytes: int, keep_s: float) -> Compacted:
        delta = _deltalake().DeltaTable(self.path)
        before = len(delta.file_uris())
        delta.optimize.compact(target_size=file_bytes)
        deleted = delta.vacuum(retention_hours=int(keep_s // 3600), dry_run=False, enforce_retention_duration=False)
        return Compacted(before, len(delta.file_uris()), len(deleted))


def _deltalake() -> Any:
    try:
        import deltalake
    except ImportError:
        raise ConfigError('format = "delta" needs the deltalake library: run pip install "penstock[delta]"') from None
    return deltalake
