"""Parquet files of a batch, written before one commit on the driver adds them to the table.

A large batch is written by its tasks, a file each. A task that is retried writes another file; only files of the attempts that Spark
counts are committed, and the others are in no table and go with the next vacuum. A small batch is collected and written by the driver:
one file, and one Python process less to pass it through.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from penstock.errors import ConfigError
from penstock.spark.pipelines.tables.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

NAME_BYTES_MAX: Final = 255
"""Of the name of a directory: common file systems take no longer one."""
ROW_GROUP_BYTES: Final = 128 << 20
"""Of Arrow data, held in memory by each task that writes."""


PARTITIONS_MAX: Final = 1000
"""Of a table: those that one task or one small batch has rows for."""


class DataFile(NamedTuple):
    name: str
    size_bytes: int
    rows: int
    statistics: str
    """As JSON, see statistics.py."""
    partition_values: str = "{}"
    """As JSON, by column; values as text, or null."""


_COLUMNS: Final = "name string, size_bytes bigint, rows bigint, statistics string, partition_values string"


class Partitioning(NamedTuple):
    columns: tuple[str, ...] = ()
    in_files: bool = False
    """Whether files have those columns too, as Iceberg has it, or values stand in the log alone, as Delta has it."""


UNPARTITIONED: Final = Partitioning()


def write_data_files(
    rows: DataFrame, store: Store, *, small: bool, partitioning: Partitioning = UNPARTITIONED
) -> list[DataFile]:
    """Write the rows as durable files that no table names yet."""
    schema = table_schema(rows)
    if small:
        return list(write_batches(rows.toArrow().cast(schema).to_batches(), schema, store, partitioning))

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for file in write_batches(batches, schema, store, partitioning):
            names = list(DataFile._fields)
            yield pa.RecordBatch.from_arrays([pa.array([value]) for value in file], names=names)

    return [DataFile(*each) for each in rows.mapInArrow(write, _COLUMNS).collect()]


def write_batches(
    batches: Iterable[Any], schema: pa.Schema, store: Store, partitioning: Partitioning
) -> Iterator[DataFile]:
    """Write Arrow batches as durable files that no table names yet."""
    if not partitioning.columns:
        file = write_data_file(batches, schema, store)
        if file is not None:
            yield file
        return
    import pyarrow as pa

    inside = [field for field in schema if partitioning.in_files or field.name not in partitioning.columns]
    for group in _row_groups((batch for batch in batches if batch.num_rows), schema):
        for values, rows in partitioned(group, partitioning.columns):
            texts = {name: partition_text(value) for name, value in values.items()}
            directory = "/".join(_directory_name(name, text, partitioning) for name, text in texts.items())
            file = write_data_file(
                rows.select([field.name for field in inside]).to_batches(), pa.schema(inside), store, f"{directory}/"
            )
            if file is not None:
                yield file._replace(partition_values=json.dumps(texts))


def partitioned(rows: pa.Table, partition_by: Sequence[str]) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The rows of each combination of values. Raises ConfigError if a table cannot be partitioned so."""
    import pyarrow as pa
    import pyarrow.compute as pc

    check_partitionable(rows.schema, partition_by)
    found = rows.group_by(list(partition_by)).aggregate([]).to_pylist()
    if len(found) > PARTITIONS_MAX:
        raise ConfigError(
            f"partition_by {', '.join(partition_by)} has {len(found)} values in one batch, and at most {PARTITIONS_MAX} make sense: "
            "partition by something that has fewer"
        )
    for values in found:
        chosen = None
        for name, value in values.items():
            same = pc.is_null(rows[name]) if value is None else pc.equal(rows[name], pa.scalar(value, rows[name].type))
            chosen = same if chosen is None else pc.and_(chosen, same)
        yield values, rows.filter(chosen)


def check_partitionable(columns: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises ConfigError if a table of these columns cannot be partitioned so."""
    import pyarrow as pa

    for name in partition_by:
        if name not in columns.names:
            raise ConfigError(f"partition_by names {name}, which the rows do not have: {', '.join(columns.names)}")
        kind = columns.field(name).type
        if not (
            pa.types.is_string(kind) or pa.types.is_date32(kind) or pa.types.is_integer(kind) or kind == pa.bool_()
        ):
            raise ConfigError(
                f"partition_by names {name}, which is {kind}: use columns of text, dates, integers or booleans"
            )


def partition_text(value: Any) -> str | None:
    """A partition value as a Delta log has it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


def check_partition_names(rows: pa.Table, partitioning: Partitioning) -> None:
    """Raises ConfigError if there can be no directory for a value that the rows have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in partitioning.columns:
        if pa.types.is_string(rows[column].type):
            for text in pc.unique(rows[column]).to_pylist():
                _directory_name(column, text, partitioning)


def _directory_name(column: str, text: str | None, partitioning: Partitioning) -> str:
    """A name for the files of a value. Some readers take values from names, so it is written as the Delta library writes it, which also
    writes files itself: to one of its tables there is no other name."""
    name = f"{column}={quote(text, safe='') if text else '__HIVE_DEFAULT_PARTITION__'}"
    if len(name.encode()) <= NAME_BYTES_MAX:
        return name
    if not partitioning.in_files:
        raise too_long(column)
    return f"{column}={blake2b(name.encode(), digest_size=16).hexdigest()}"


def too_long(column: str) -> ConfigError:
    return ConfigError(f"a value of {column} is too long to partition by: partition by something shorter")


def write_data_file(batches: Iterable[Any], schema: pa.Schema, store: Store, directory: str = "") -> DataFile | None:
    """Write one file, or none if there are no rows."""
    import pyarrow.parquet as pq

    from penstock.spark.pipelines.tables.statistics import file_statistics

    groups = _row_groups((batch for batch in batches if batch.num_rows), schema)
    first = next(groups, None)
    if first is None:
        return None
    name = f"{directory}part-{uuid.uuid4()}.parquet"
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
