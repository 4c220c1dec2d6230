"""Copies of tables as plain Parquet, for programs that read neither Delta nor Iceberg.

A copy is not kept up to date, and takes no part in what makes tables exact. It appears under its name whole or not at all.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Final

from penstock.errors import InvalidRequest
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import named_table

ROWS_PER_FILE: Final = 5_000_000


def export_table(pipeline: Pipeline, table: str, target: Path) -> int:
    """Write a table, named as in "silver/orders", to a directory that does not exist yet; return the number of rows."""
    import pyarrow.dataset as ds

    if target.exists():
        raise InvalidRequest(f"{target} is there already: name another directory, or remove it")
    source = named_table(pipeline, table)
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    rows = 0

    def count(written: ds.WrittenFile) -> None:
        nonlocal rows
        rows += written.metadata.num_rows

    try:
        ds.write_dataset(
            source.batches(),
            unfinished,
            format="parquet",
            file_options=ds.ParquetFileFormat().make_write_options(compression="zstd"),
            max_rows_per_file=ROWS_PER_FILE,
            file_visitor=count,
        )
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return rows
