"""The same rows into tables of each format, batch by batch as a pipeline does. Run by the benchmarks as `python -m bench.tables`.

One Spark session serves every side. Rows are made by Spark in two tasks, nine columns as those of silver. A table that tasks write gets
files from them and one commit from the driver; one that the driver writes gets a file of all rows. Spark's own Parquet writer stands for
what files cost that are no table: it appends to a directory, at least once. Each table is counted afterwards, compacted, and counted again
by a reader that is not Spark.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow.dataset as ds

from bench.dialects import RecordLost
from bench.rounds import interleave
from bench.spark_session import answer_in_session
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DELTA: Final = "Delta by tasks"
DELTA_BY_DRIVER: Final = "Delta by the driver"
ICEBERG: Final = "Iceberg by tasks"
PARQUET: Final = "Parquet"
TASKS: Final = 2
FILE_BYTES: Final = 128 << 20
DRIVER_MEMORY: Final = "2g"


class TablesJob(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    rows: int
    batch_rows: int
    rounds: int


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What one round made of one side. Without a table there is no compaction."""

    seconds: float
    files: int
    size_bytes: int
    compaction_s: float = 0.0
    files_after: int = 0


class TablesResult(msgspec.Struct, frozen=True, kw_only=True):
    rounds: dict[str, list[Written]]


class Rounds:
    def __init__(self, spark: SparkSession, job: TablesJob) -> None:
        self._spark = spark
        self._job = job

    def run(self) -> TablesResult:
        sides: dict[str, Callable[[int], Written]] = {
            DELTA: lambda number: self._table("delta", f"delta-{number}", small=False),
            DELTA_BY_DRIVER: lambda number: self._table("delta", f"driver-{number}", small=True),
            ICEBERG: lambda number: self._table("iceberg", f"iceberg-{number}", small=False),
            PARQUET: lambda number: self._parquet(f"parquet-{number}"),
        }
        self._parquet("warm-up")
        return TablesResult(rounds=interleave(sides, self._job.rounds))

    def _table(self, kind: str, name: str, *, small: bool) -> Written:
        settings = {"name": name, "topics": ["orders"], "directory": self._path(name), "format": kind, "silver": {}}
        table = open_table(Pipeline.model_validate(settings), "silver", "orders", self._spark)
        table.claim(name, 0, "none")
        seconds = self._timed(lambda rows, number: table.append(rows, number, small=small))
        self._check(name, table.batches().read_all().num_rows)
        sizes = table.file_sizes()
        began = time.perf_counter()
        table.compact(FILE_BYTES)
        compaction_s = time.perf_counter() - began
        self._check(name, table.batches().read_all().num_rows)
        return Written(
            seconds=seconds,
            files=len(sizes),
            size_bytes=sum(sizes),
            compaction_s=compaction_s,
            files_after=len(table.file_sizes()),
        )

    def _parquet(self, name: str) -> Written:
        path = self._path(name)
        seconds = self._timed(lambda rows, _: rows.write.mode("append").parquet(path))
        files = list(Path(path).glob("*.parquet"))
        self._check(name, ds.dataset(files).count_rows())
        return Written(seconds=seconds, files=len(files), size_bytes=sum(file.stat().st_size for file in files))

    def _timed(self, write: Callable[[DataFrame, int], None]) -> float:
        """Write all rows in batches; returns the seconds."""
        size = self._job.batch_rows
        began = time.perf_counter()
        for number, start in enumerate(range(0, self._job.rows, size)):
            write(self._batch(start, size), number)
        return time.perf_counter() - began

    def _batch(self, start: int, count: int) -> DataFrame:
        return self._spark.range(start, start + count, 1, TASKS).selectExpr(
            "id",
            "CONCAT('country-', CAST(id % 50 AS STRING)) AS country",
            "CAST(id % 9973 AS DOUBLE) / 7 AS amount",
            "CONCAT('a note of order ', CAST(id AS STRING)) AS note",
            "CAST(CAST(id AS STRING) AS BINARY) AS key",
            "'orders' AS topic",
            "CAST(id % 2 AS INT) AS partition",
            "id AS offset",
            "timestamp_millis(1700000000000 + id) AS timestamp",
        )

    def _check(self, name: str, found: int) -> None:
        if found != self._job.rows:
            raise RecordLost(f"{name}: {self._job.rows} rows were written, {found} are there")

    def _path(self, name: str) -> str:
        return str(Path(self._job.directory) / name)


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=TablesJob)
    settings = {"spark.driver.memory": DRIVER_MEMORY, "spark.local.dir": job.directory}
    answer_in_session(settings, lambda spark: Rounds(spark, job).run())


if __name__ == "__main__":
    main()
