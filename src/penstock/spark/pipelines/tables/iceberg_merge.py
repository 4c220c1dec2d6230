"""Changes of rows in an Iceberg table: the files that have rows to be replaced or deleted are written again without them, on the driver.

Not by the library's own `upsert`: it makes two or more snapshots, and compares rows by filters of one term for each key. One file is in
memory at a time, read by the library, because another writer may have written it with other names of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.spark.pipelines.tables.data_files import DataFile, Partitioning, write_batches
from penstock.spark.pipelines.tables.delta_merge import RECORD_KEY
from penstock.spark.pipelines.tables.row_keys import rows_with, without
from penstock.spark.pipelines.tables.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa


class Rewritten(NamedTuple):
    removed: list[Any]
    """Files of the table, as the library has them."""
    added: list[DataFile]


def rewrite_files(
    table: Any,
    tasks: Sequence[Any],
    rows: pa.Table,
    deleted: pa.Array,
    key: Sequence[str],
    store: Store,
    partitioning: Partitioning,
) -> Rewritten:
    """Write those of the files again that have rows of the keys of `rows`, or of records with the keys in `deleted`, without them."""
    done = Rewritten([], [])
    for task in tasks:
        gone = _rows_to_remove(table, task, rows, deleted, key)
        if not len(gone):
            continue
        left = without(_read(table, task), gone)
        done.removed.append(task.file)
        done.added.extend(write_batches(left.to_batches(), left.schema, store, partitioning))
    return done


def _rows_to_remove(table: Any, task: Any, rows: pa.Table, deleted: pa.Array, key: Sequence[str]) -> pa.Array:
    """The numbers of rows of a file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = list(dict.fromkeys([*key, RECORD_KEY]))
    found = _read(table, task, names).select(names).cast(pa.schema([rows.schema.field(name) for name in names]))
    of_records = pc.indices_nonzero(pc.is_in(found[RECORD_KEY].cast(deleted.type), deleted))
    return pa.concat_arrays([rows_with(found, rows, key), of_records.cast(pa.int64())])


def _read(table: Any, task: Any, names: Sequence[str] = ()) -> pa.Table:
    """All columns of a file, or those of some names."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    columns = table.schema().select(*names) if names else table.schema()
    return ArrowScan(table.metadata, table.io, columns, AlwaysTrue()).to_table([task])


def changed_files(table: Any, rows: pa.Table, deleted: pa.Array, key: Sequence[str]) -> list[Any]:
    """The files that may have such rows, by their bounds, as tasks of a scan."""
    from pyiceberg import expressions

    of: Any = expressions
    partitions = {field.name for field in table.spec().fields}
    by_key = reduce(of.And, [_among(column, rows[column], is_partition=column in partitions) for column in key])
    by_record = _among(RECORD_KEY, deleted, is_partition=RECORD_KEY in partitions)
    return list(table.scan(row_filter=of.Or(by_key, by_record)).plan_files())


def _among(column: str, values: pa.Array | pa.ChunkedArray, *, is_partition: bool) -> Any:
    """What every row of these values meets."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyiceberg import expressions

    of: Any = expressions
    if len(values) == values.null_count:
        return of.AlwaysFalse()
    if is_partition:
        # The library cannot compare the partition of null with a bound.
        return of.In(column, pc.unique(values.drop_null()).to_pylist())
    if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return of.AlwaysTrue()
    bounds = pc.min_max(values).as_py()
    return of.And(of.GreaterThanOrEqual(column, bounds["min"]), of.LessThanOrEqual(column, bounds["max"]))
