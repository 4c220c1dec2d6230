"""Reads, writes and streams of Spark, from and to Penstock and Kafka in turns. Run by the benchmarks as `python -m bench.spark`.

One Spark session serves every side, so that each has the same virtual machine, the same settings and the same compiled code. Rows
are made by Spark itself, in two tasks, and a read takes all columns of a topic into Spark's `noop` sink. The floor of a micro-batch is
the time of a trigger that takes one record: a partition of a few dozen records is read one a batch, so that no trigger waits for data.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench.dialects import RecordLost
from bench.rounds import interleave
from bench.spark_session import answer_in_session
from bench.spark_sides import (
    PARTITIONS,
    Kafka,
    Penstock,
    PenstockByTasks,
    PenstockByWriteBatch,
    PenstockOnKafka,
    PenstockOverTheWire,
    Side,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DRIVER_MEMORY = "2g"
MADE = "made"
"""In place of a side: rows that are made and go nowhere."""
BATCHES_LEFT_OUT = 5
"""At the start of a query: its processes are being started."""


class SparkJob(msgspec.Struct, frozen=True, kw_only=True):
    penstock: str
    """host:port of a broker's FlyMQ listener, on this machine."""
    on_kafka: str
    """The same of one whose log is in Kafka."""
    kafka: str
    jars: list[str]
    """Of Spark's Kafka connector."""
    directory: str
    rows: int
    payload_bytes: int
    batches: int
    """Of one record each, in a round of the floor."""
    rounds: int


class SparkResult(msgspec.Struct, frozen=True, kw_only=True):
    """Rounds by side: seconds of reads and writes, milliseconds of the median trigger."""

    read_s: dict[str, list[float]]
    write_s: dict[str, list[float]]
    to_noop_ms: dict[str, list[float]]
    to_topic_ms: dict[str, list[float]]


class Rounds:
    def __init__(self, spark: SparkSession, job: SparkJob) -> None:
        self._spark = spark
        self._job = job
        self._penstock, self._kafka = Penstock(spark, job.penstock), Kafka(spark, job.kafka)
        self._wire = PenstockOverTheWire(spark, job.penstock)
        self._on_kafka = PenstockOnKafka(spark, job.on_kafka)
        self._by_tasks = PenstockByTasks(spark, job.penstock)
        self._by_write_batch = PenstockByWriteBatch(spark, job.penstock)
        self._checkpoints = (Path(job.directory) / f"checkpoint-{number}" for number in itertools.count())

    def run(self) -> SparkResult:
        both: tuple[Side, ...] = (self._penstock, self._kafka)
        for side in both:
            self._fill(side, "read", self._rows(self._job.rows))
            self._fill(
                side,
                "one-by-one",
                self._rows(self._job.batches + BATCHES_LEFT_OUT).selectExpr("value", "0 AS partition"),
            )
            side.make_topic("copies")
        self._fill(self._on_kafka, "read", self._rows(self._job.rows))
        return SparkResult(
            read_s=self._reads((self._penstock, self._wire, self._on_kafka, self._kafka)),
            write_s=self._writes((self._penstock, self._on_kafka, self._kafka)),
            to_noop_ms=self._floors((*both, self._by_tasks), None),
            to_topic_ms=self._floors((*both, self._by_write_batch), "copies"),
        )

    def _writes(self, sides: Sequence[Side]) -> dict[str, list[float]]:
        def write(side: Side) -> Callable[[int], float]:
            def once(number: int) -> float:
                topic, rows = f"written-{number}", self._rows(self._job.rows)
                side.make_topic(topic)
                seconds = _timed(lambda: side.write(rows, topic))
                self._check(side, topic, self._job.rows)
                return seconds

            return once

        def make(_: int) -> float:
            return _timed(lambda: _into_nothing(self._rows(self._job.rows)))

        return interleave({**{side.name: write(side) for side in sides}, MADE: make}, self._job.rounds)

    def _reads(self, sides: Sequence[Side]) -> dict[str, list[float]]:
        def read(side: Side) -> Callable[[int], float]:
            def once(_: int) -> float:
                with side.apart("read"):
                    return _timed(lambda: _into_nothing(side.rows("read")))

            return once

        for side in sides:
            read(side)(0)  # warm-up: the data is in the page cache, the code compiled
        return interleave({side.name: read(side) for side in sides}, self._job.rounds)

    def _floors(self, sides: Sequence[Side], sink: str | None) -> dict[str, list[float]]:
        def stream(side: Side) -> Callable[[int], float]:
            def once(_: int) -> float:
                triggers = side.triggers_ms("one-by-one", sink, next(self._checkpoints))
                if len(triggers) < self._job.batches:
                    raise RecordLost(
                        f"{side.name}: {self._job.batches} batches of one record were due, {len(triggers)} came"
                    )
                return statistics.median(triggers[BATCHES_LEFT_OUT:])

            return once

        return interleave({side.name: stream(side) for side in sides}, self._job.rounds)

    def _rows(self, count: int) -> DataFrame:
        value = f"CAST(LPAD(CAST(id AS STRING), {self._job.payload_bytes}, 'x') AS BINARY) AS value"
        return self._spark.range(0, count, 1, PARTITIONS).selectExpr(value)

    def _fill(self, side: Side, topic: str, rows: DataFrame) -> None:
        side.make_topic(topic)
        side.write(rows, topic)
        self._check(side, topic, rows.count())

    def _check(self, side: Side, topic: str, expected: int) -> None:
        held = side.rows(topic).count()
        if held != expected:
            raise RecordLost(f"{side.name}: {expected} rows were written to {topic}, {held} are there")


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _into_nothing(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=SparkJob)
    settings = {
        "spark.jars": ",".join(job.jars),
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.local.dir": job.directory,
        "spark.sql.streaming.numRecentProgressUpdates": str(job.batches + BATCHES_LEFT_OUT + 10),
    }
    answer_in_session(settings, lambda spark: Rounds(spark, job).run())


if __name__ == "__main__":
    main()
