"""Changes of rows in a Delta table, by the deltalake library, on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.pipelines.tables.delta_log import commit_hooks
from penstock.spark.pipelines.tables.row_keys import distinct, rows_with, without

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_KEY: Final = "key"
"""The column with the key of the record that a row was made of."""
DELETED: Final = "__penstock_deleted"
"""Of the source of a merge: true for rows that are only to be deleted."""


def merge_rows(delta: Any, rows: pa.Table, deleted: pa.Array, key: Sequence[str], query: str, batch_id: int) -> None:
    """Replace the rows of the same key, add the others, and delete those of records with the keys in `deleted`: one commit, as a batch.

    A row that is replaced is not deleted: the batch has written it again. It keeps nothing of what it was: columns that the batch lacks
    become null.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake.transaction import CommitProperties, Transaction

    properties = CommitProperties(app_transactions=[Transaction(query, batch_id)])
    rows = _with_columns_of(delta, rows)
    gone = _rows_of_records(delta, deleted, rows, key)
    if not rows.num_rows and not gone.num_rows:
        # A merge of nothing makes no commit, and the batch has to be on record.
        partition_by = list(delta.metadata().partition_columns) or None
        delta.create_write_transaction(
            [],
            mode="append",
            schema=delta.schema(),
            partition_by=partition_by,
            commit_properties=properties,
            post_commithook_properties=commit_hooks(delta),
        )
        return
    source = pa.concat_tables([_marked(rows, False), _marked(gone, True)], promote_options="default")
    empty = {name for name in _text_partitions(delta, source) if pc.any(pc.equal(source[name], "")).as_py()}
    same = " AND ".join(
        _same(column, nullable=gone[column].null_count > 0, empty_is_null=column in empty) for column in key
    )
    is_deleted = f"s.{_quoted(DELETED)}"
    same += f" AND (NOT {is_deleted} OR t.{_quoted(RECORD_KEY)} = s.{_quoted(RECORD_KEY)})"
    every = {_quoted(column): f"s.{_quoted(column)}" for column in rows.schema.names}
    (
        delta.merge(
            source,
            same,
            source_alias="s",
            target_alias="t",
            commit_properties=properties,
            post_commithook_properties=commit_hooks(delta),
        )
        .when_matched_delete(is_deleted)
        .when_matched_update(every, f"NOT {is_deleted}")
        .when_not_matched_insert(every, f"NOT {is_deleted}")
        .execute()
    )


def _with_columns_of(delta: Any, rows: pa.Table) -> pa.Table:
    """The rows with every column of the table, of nulls where they have none."""
    import pyarrow as pa

    names = {name.lower() for name in rows.schema.names}
    for field in pa.schema(delta.schema().to_arrow()):
        if field.name.lower() not in names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows


def _rows_of_records(delta: Any, deleted: pa.Array, replacing: pa.Table, key: Sequence[str]) -> pa.Table:
    """The table's rows of records with these keys, without those that are replaced: key columns and record key, each pair once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = list(dict.fromkeys([*key, RECORD_KEY]))
    if not len(deleted):
        return replacing.select(names).slice(0, 0)
    # Not by a filter of the scan, which does not compare binary values with the bounds that the library gives it.
    scanner = delta.to_pyarrow_dataset().scanner(columns=names)
    found = [rows.filter(pc.is_in(rows[RECORD_KEY].cast(deleted.type), deleted)) for rows in scanner.to_batches()]
    gone = pa.Table.from_batches(found, pa.schema([scanner.projected_schema.field(name) for name in names]))
    gone = gone.cast(pa.schema([replacing.schema.field(name) for name in names]))
    for name in _text_partitions(delta, gone):
        gone = gone.set_column(names.index(name), gone.schema.field(name), pc.coalesce(gone[name], ""))
    gone = distinct(gone)
    return without(gone, rows_with(gone, replacing, key))


def _marked(rows: pa.Table, is_deleted: bool) -> pa.Table:
    import pyarrow as pa

    return rows.append_column(DELETED, pa.repeat(is_deleted, rows.num_rows))


def _text_partitions(delta: Any, rows: pa.Table) -> list[str]:
    """Columns of the rows that divide the table by text. An empty one is null to some who read or write the table, and to others not."""
    import pyarrow as pa

    partitions = delta.metadata().partition_columns
    return [field.name for field in rows.schema if field.name in partitions and pa.types.is_string(field.type)]


def _same(column: str, *, nullable: bool, empty_is_null: bool) -> str:
    """Rows of before there was a key may have none, and a tombstone deletes them too. Comparing so is slower."""
    ours, theirs = f"t.{_quoted(column)}", f"s.{_quoted(column)}"
    if empty_is_null:
        return f"coalesce({ours}, '') = coalesce({theirs}, '')"
    same = f"{ours} = {theirs}"
    return f"({same} OR ({ours} IS NULL AND {theirs} IS NULL))" if nullable else same


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
