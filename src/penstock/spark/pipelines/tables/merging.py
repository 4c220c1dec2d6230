"""Small Parquet files into large ones, a row group at a time.

Files of different columns stay apart, so that no file has to be read by the schema of another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from penstock.errors import ConfigError
from penstock.spark.pipelines.tables.stores import Store

PIECE_BYTES_MAX: Final = 64 << 20
"""Of rows that are in memory at once, by the size in the file's footer; it becomes one row group."""
PIECE_ROWS_MAX: Final = 1 << 20
READ_AHEAD_BYTES: Final = 1 << 20
"""For each column: without it a whole column chunk is read at once."""
_SMALL: Final = 0.75
"""A file of this fraction of the target size is large enough to be left alone."""


class SizedFile(NamedTuple):
    path: str
    size_bytes: int
    partition: str = ""
    """Files of different ones stay apart."""


def groups_to_merge(io: Any, files: Iterable[SizedFile], file_bytes: int) -> list[list[SizedFile]]:
    """Return small files of the same partition and columns, grouped to files of the target size. `io` is pyiceberg's FileIO."""
    groups: list[list[SizedFile]] = []
    open_groups: dict[tuple[str, str], list[SizedFile]] = {}
    for file in files:
        if file.size_bytes >= file_bytes * _SMALL:
            continue
        key = (file.partition, _schema(io, file.path).to_string(show_schema_metadata=False))
        group = open_groups.get(key)
        if group is None or sum(each.size_bytes for each in group) + file.size_bytes > file_bytes:
            group = open_groups[key] = []
            groups.append(group)
        group.append(file)
    return [group for group in groups if len(group) > 1]


def merge_files(io: Any, files: Sequence[SizedFile], store: Store, name: str) -> None:
    """Write the rows of files of the same columns to a new one, which is durable when this returns."""
    rows = 0
    schema = _schema(io, files[0].path)
    with store.create(name) as target:
        with pq.ParquetWriter(target, schema, compression="zstd") as writer:
            for file in files:
                with (
                    io.new_input(file.path).open() as stream,
                    pq.ParquetFile(stream, buffer_size=READ_AHEAD_BYTES) as source,
                ):
                    rows += source.metadata.num_rows
                    for piece in source.iter_batches(_piece_rows(source.metadata)):
                        writer.write_batch(piece)
        written = writer.writer.metadata.num_rows
    if written != rows:
        raise ConfigError(f"{name} has {written} rows instead of {rows}: the table was left as it is")


def _schema(io: Any, path: str) -> Any:
    with io.new_input(path).open() as stream:
        return pq.read_schema(stream)


def _piece_rows(metadata: Any) -> int:
    size_bytes: int = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    rows: int = metadata.num_rows
    return max(1, min(PIECE_ROWS_MAX, PIECE_BYTES_MAX * rows // max(1, size_bytes)))
