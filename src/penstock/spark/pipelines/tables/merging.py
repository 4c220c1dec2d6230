"""Small Parquet files into large ones, a piece at a time: what compacting comes down to in Parquet and Iceberg tables.

Files of different columns stay apart, so that no file has to be read with the eyes of another.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from penstock.errors import ConfigError

PIECE_BYTES_MAX: Final = 64 << 20
"""Of rows that are in memory at once, by what the file says of their size; it becomes one row group."""
PIECE_ROWS_MAX: Final = 1 << 20
READ_AHEAD_BYTES: Final = 1 << 20
"""Of each column: without it all that a row group has of a column is read at once."""
_SMALL: Final = 0.75
"""A file of this part of the size that is aimed at is large enough to be left alone."""


class SizedFile(NamedTuple):
    path: Path
    size_bytes: int


def groups_to_merge(files: Iterable[SizedFile], file_bytes: int) -> list[list[SizedFile]]:
    """Small files of the same columns, as many together as make a large one; in the order in which the first of each came."""
    groups: list[list[SizedFile]] = []
    open_groups: dict[Any, list[SizedFile]] = {}
    for file in files:
        if file.size_bytes >= file_bytes * _SMALL:
            continue
        key = pq.read_schema(file.path).to_string(show_schema_metadata=False)
        group = open_groups.get(key)
        if group is None or sum(each.size_bytes for each in group) + file.size_bytes > file_bytes:
            group = open_groups[key] = []
            groups.append(group)
        group.append(file)
    return [group for group in groups if len(group) > 1]


def merge_files(files: Sequence[SizedFile], into: Path) -> None:
    """Write the rows of files of the same columns to a new one, which is on disk when this returns."""
    rows = 0
    with pq.ParquetWriter(into, pq.read_schema(files[0].path), compression="zstd") as writer:
        for file in files:
            with pq.ParquetFile(file.path, buffer_size=READ_AHEAD_BYTES) as source:
                rows += source.metadata.num_rows
                for piece in source.iter_batches(_piece_rows(source.metadata)):
                    writer.write_batch(piece)
    with into.open("rb") as stream:
        os.fsync(stream.fileno())
    written = pq.read_metadata(into).num_rows
    if written != rows:
        raise ConfigError(f"{into} has {written} rows instead of {rows}: the table was left as it is")


def _piece_rows(metadata: Any) -> int:
    size_bytes: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(PIECE_ROWS_MAX, PIECE_BYTES_MAX * rows // max(1, size_bytes)))
