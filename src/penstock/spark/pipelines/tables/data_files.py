"""Parquet files of a batch, written before one commit on the driver adds them to the table.

A large batch is written by its tasks, a file each. A task that is retried writes another file; only files of the attempts that Spark
counts are committed, and the others are in no table and go with the next vacuum. A small batch is collected and written by the driver:
one file, and one Python process less to pass it through.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.spark.pipelines.tables.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ROW_GROUP_BYTES: Final = 128 << 20
"""Of Arrow data, held in memory by each task that writes."""


class DataFile(NamedTuple):
    name: str
    size_bytes: int
    rows: int
    statistics: str
    """As JSON, see statistics.py."""


_COLUMNS: Final = "name string, size_bytes bigint, rows bigint, statistics string"


def is_small(batch: DataFrame) -> bool:
    """Whether the driver can hold a micro-batch of the penstock source.

    The source plans a single task for up to `planner.TASK_BYTES_MIN` (8 MiB) of log, and more tasks for anything larger.
    """
    return batch.rdd.getNumPartitions() <= 1


def write_data_files(rows: DataFrame, store: Store, *, small: bool) -> list[DataFile]:
    """Write the rows as durable files that no table names yet."""
    schema = table_schema(rows)
    if small:
        collected = rows.toArrow().cast(schema)
        written = write_data_file(collected.to_batches(), schema, store)
        return [] if written is None else [written]

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        file = write_data_file(batches, schema, store)
        if file is not None:
            names = list(DataFile._fields)
            yield pa.RecordBatch.from_arrays([pa.array([value]) for value in file], names=names)

    return [DataFile(*each) for each in rows.mapInArrow(write, _COLUMNS).collect()]


def write_data_file(batches: Iterable[Any], schema: pa.Schema, store: Store) -> DataFile | None:
    """Write one file, or none if there are no rows."""
    import pyarrow.parquet as pq

    from penstock.spark.pipelines.tables.statistics import file_statistics

    groups = _row_groups((batch for batch in batches if batch.num_rows), schema)
    first = next(groups, None)
    if first is None:
        return None
    name = f"part-{uuid.uuid4()}.parquet"
    columns_with_nan: set[str] = set()
    with store.create(name) as stream:
        with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
            group: pa.Table | None = first
            while group is not None:
                columns_with_nan |= _columns_with_nan(group)
                writer.write_table(group, row_group_size=group.num_rows)
                group = next(groups, None)
        metadata = writer.writer.metadata
        size_bytes = stream.tell()
    return DataFile(name, size_bytes, metadata.num_rows, file_statistics(metadata, schema, columns_with_nan))


def table_schema(rows: DataFrame) -> pa.Schema:
    """Return the columns as a table has them: all nullable, times in UTC whatever the session's time zone."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([column.with_nullable(True) for column in to_arrow_schema(rows.schema, timezone="UTC")])


def _row_groups(batches: Iterable[Any], schema: pa.Schema) -> Iterator[Any]:
    import pyarrow as pa

    waiting: list[Any] = []
    waiting_bytes = 0
    for batch in batches:
        waiting.append(batch)
        waiting_bytes += batch.nbytes
        if waiting_bytes >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(waiting).cast(schema)
            waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting).cast(schema)


def _columns_with_nan(group: pa.Table) -> set[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    floats = [column.name for column in group.schema if pa.types.is_floating(column.type)]
    return {name for name in floats if pc.any(pc.is_nan(group[name])).as_py()}
