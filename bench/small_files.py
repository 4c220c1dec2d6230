"""A table that gets a small batch a second for an hour, without the waiting. Run by the benchmarks as `python -m bench.small_files`.

Batches are committed one after another as the driver of a pipeline commits small ones, and what a pipeline does for its tables once a
minute is done every sixty batches. There is no Spark in it: rows are there as Arrow, which is what the driver would get of Spark.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa

from bench.dialects import RecordLost
from bench.driver_rows import Rows
from penstock.spark.pipelines.files import LocalFiles
from penstock.spark.pipelines.model import Pipeline
from penstock.spark.pipelines.opening import open_table
from penstock.spark.pipelines.upkeep import LOOK_EVERY_S, Upkeep

TRIGGER_S: Final = 1.0
SAMPLE: Final = 100
READS: Final = 5


class SmallFilesJob(msgspec.Struct, frozen=True, kw_only=True):
    directory: str
    triggers: int
    rows: int
    """Of each batch."""
    upkeep: bool


class SmallFilesResult(msgspec.Struct, frozen=True, kw_only=True):
    files: list[int]
    """Data files of the table, minute by minute, before anything is done about them."""
    files_on_disk: int
    """In the end, those included that no version of the table of now names."""
    size_bytes: int
    """Of everything in the directory."""
    compactions: int
    upkeep_s: float
    first_ms: list[float]
    last_ms: list[float]
    """Of the first and the last commits, each."""
    read_ms: list[float]


def run(job: SmallFilesJob) -> SmallFilesResult:
    settings = {"name": "hour", "topics": ["orders"], "directory": job.directory, "silver": {}}
    pipeline = Pipeline.model_validate(settings)
    table = open_table(pipeline, "silver", "orders")
    table.claim("query", 0, "none")
    upkeep = Upkeep(pipeline, LocalFiles(), lambda: [("silver", "orders")])
    minute = round(LOOK_EVERY_S / TRIGGER_S)
    files: list[int] = []
    commits_ms: list[float] = []
    compactions, upkeep_s = 0, 0.0
    for number in range(job.triggers):
        rows: Any = Rows(_columns(number * job.rows, job.rows))
        commits_ms.append(_ms(lambda: table.append(rows, number, small=True)))  # noqa: B023 - called at once
        if (number + 1) % minute == 0:
            files.append(len(table.file_sizes()))
            if job.upkeep:
                upkeep_s += _ms(upkeep.look_at_all) / 1000
                if upkeep.note:
                    raise RecordLost(upkeep.note)
                compactions += len(table.file_sizes()) < files[-1]
    read_ms = [_ms(lambda: _check(table.batches().read_all().num_rows, job)) for _ in range(READS)]
    everything = [file for file in Path(job.directory).rglob("*") if file.is_file()]
    return SmallFilesResult(
        files=files,
        files_on_disk=sum(file.suffix == ".parquet" and "_delta_log" not in file.parts for file in everything),
        size_bytes=sum(file.stat().st_size for file in everything),
        compactions=compactions,
        upkeep_s=upkeep_s,
        first_ms=commits_ms[:SAMPLE],
        last_ms=commits_ms[-SAMPLE:],
        read_ms=read_ms,
    )


def _columns(start: int, count: int) -> pa.Table:
    ids = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "country": [f"country-{each % 50}" for each in ids],
            "amount": [each / 7 for each in ids],
            "offset": pa.array(ids, pa.int64()),
        }
    )


def _check(found: int, job: SmallFilesJob) -> None:
    if found != job.triggers * job.rows:
        raise RecordLost(f"{job.triggers * job.rows} rows were written, {found} are there")


def _ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=SmallFilesJob)
    sys.stdout.buffer.write(msgspec.json.encode(run(job)))


if __name__ == "__main__":
    main()
