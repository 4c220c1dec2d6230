"""Compaction of the tables of a pipeline on demand, also while it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import existing_tables, open_table
from penstock.spark.pipelines.tables.table import check_keep


class TableUpkeep(NamedTuple):
    files_before: int
    files_after: int
    deleted_files: int


def compact_tables(
    pipeline: Pipeline, *, file_bytes: int, keep_s: float, kinds: Sequence[str] = ()
) -> Iterator[tuple[str, TableUpkeep]]:
    """Compact and vacuum each table; yield its name and the result as it is done."""
    check_keep(keep_s)
    for kind, name in existing_tables(pipeline, kinds):
        table = open_table(pipeline, kind, name)
        compacted = table.compact(file_bytes)
        yield f"{kind}/{name}", TableUpkeep(*compacted, table.vacuum(keep_s))
