"""Files of rows, written by executors: what Delta and Iceberg then take into their tables in one commit on the driver.

A task that is tried again writes another file; only those of the attempts that Spark counts are committed. What is left lying about is
in no table and goes with the next clean-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DataFile(NamedTuple):
    name: str
    size_bytes: int
    rows: int


def write_data_files(rows: DataFrame, directory: str) -> list[DataFile]:
    """One Parquet file a task that has rows, in a directory that driver and executors share."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import uuid
        from pathlib import Path

        import pyarrow as pa
        import pyarrow.parquet as pq

        name = f"part-{uuid.uuid4()}.parquet"
        writer, count = None, 0
        path = Path(directory) / name
        try:
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                if writer is None:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    writer = pq.ParquetWriter(path, batch.schema, compression="zstd")
                writer.write_batch(batch)
                count += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
        if writer is not None:
            with path.open("rb") as stream:
                os.fsync(stream.fileno())
            yield pa.record_batch(
                [[name], pa.array([path.stat().st_size], pa.int64()), pa.array([count], pa.int64())],
                names=["name", "size_bytes", "rows"],
            )

    written = rows.mapInArrow(write, "name string, size_bytes bigint, rows bigint").collect()
    return [DataFile(each.name, each.size_bytes, each.rows) for each in written]
