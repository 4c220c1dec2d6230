"""Changes of rows in a Delta table, by the deltalake library, on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def merge_rows(delta: Any, rows: pa.Table, key: Sequence[str], query: str, batch_id: int) -> None:
    """Replace the rows of the same key and add the others, as a batch of a query."""
    from deltalake.transaction import CommitProperties, Transaction

    properties = CommitProperties(app_transactions=[Transaction(query, batch_id)])
    if not rows.num_rows:
        # A merge of nothing makes no commit, and the batch has to be on record.
        delta.create_write_transaction([], mode="append", schema=delta.schema(), commit_properties=properties)
        return
    same = " AND ".join(f"t.{_quoted(column)} = s.{_quoted(column)}" for column in key)
    every = {_quoted(column): f"s.{_quoted(column)}" for column in rows.schema.names}
    (
        delta.merge(rows, same, source_alias="s", target_alias="t", commit_properties=properties)
        .when_matched_update(every)
        .when_not_matched_insert(every)
        .execute()
    )


def delete_rows(delta: Any, keys: pa.Array) -> None:
    """Delete the rows of records with these keys."""
    import pyarrow as pa

    source = pa.table({"key": keys})
    delta.merge(source, "t.key = s.key", source_alias="s", target_alias="t").when_matched_delete().execute()


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
