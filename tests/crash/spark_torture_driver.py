"""A Spark driver that is meant to be killed: one query from topic to topic, started again whenever it ends.

Commands come one a line on standard input: `stop` ends the query and starts it again; `replay` does so too, and in between forgets that
the last batch was committed, as if the driver had died after the sink's commit; `quit` ends the process. Each is answered by a line that
says what was done.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException

import penstock.spark
from tests.spark.jvm import FAST_SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# A task is tried four times, as on a cluster.
MASTER = "local[2,4]"
RECORDS_PER_TRIGGER_MAX = 2_000
# Of every thousand offsets the records of half have this header, so that tasks come to stage their records or not to.
PADDING = "IF(offset % 1000 < 500, array(struct('padding' AS key, CAST(REPEAT('x', 2000) AS BINARY) AS value)), NULL) AS headers"
LOOK_S = 0.05
LOOK_CLOSELY_S = 0.001
BATCH_S_MAX = 5.0


class Driver:
    def __init__(self, spark: SparkSession, address: str, checkpoint: Path) -> None:
        self._spark = spark
        self._address = {"penstock.bootstrap": address}
        self._checkpoint = checkpoint
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self) -> None:
        while True:
            query = self._start()
            command = self._watch(query)
            if command in ("replay", "quit"):
                self._wait_for_the_end_of_a_batch()
            with suppress(PySparkException):
                query.stop()
            if command in ("stop", "replay"):
                _answer(self._stopped(forget=command == "replay"))
            elif command == "quit":
                _answer("bye")
                return

    def _start(self) -> StreamingQuery:
        rows = self._spark.readStream.format("penstock").options(
            **self._address,
            subscribe="in",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(RECORDS_PER_TRIGGER_MAX),
        )
        # Through a shuffle, so that records change places and a task that is tried again may find them in another order.
        written = rows.load().selectExpr("key", "value", PADDING).repartition(2)
        return (
            written.writeStream.format("penstock")
            .options(**self._address, topic="out", checkpointLocation=str(self._checkpoint))
            .start()
        )

    def _watch(self, query: StreamingQuery) -> str:
        """Until a command comes or the query ends, which is no more than what this is about."""
        while query.isActive:
            with suppress(queue.Empty):
                return self._commands.get(timeout=LOOK_S)
        sys.stderr.write(f"the query ended: {str(query.exception())[:2000]}\n")
        time.sleep(LOOK_S)
        return "restart"

    def _wait_for_the_end_of_a_batch(self) -> None:
        until_s = time.monotonic() + BATCH_S_MAX
        while self._last("commits") < self._last("offsets") and time.monotonic() < until_s:
            time.sleep(LOOK_CLOSELY_S)

    def _stopped(self, *, forget: bool) -> str:
        """What the next run of the query will find."""
        last = self._last("commits")
        if last < self._last("offsets"):
            return "batch interrupted, done again"
        if last < 0 or not forget:
            return "query stopped"
        (self._checkpoint / "commits" / str(last)).unlink()
        (self._checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)
        return "batch forgotten, done again"

    def _last(self, log: str) -> int:
        """The last batch in a log of the checkpoint, -1 for none."""
        return max((int(path.name) for path in (self._checkpoint / log).glob("*") if path.name.isdigit()), default=-1)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line.strip())
        self._commands.put("quit")


def _answer(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("scratch", type=Path)
    given = parser.parse_args()
    config = {**FAST_SETTINGS, "spark.local.dir": str(given.scratch), "spark.sql.warehouse.dir": str(given.scratch)}
    spark = penstock.spark.session("torture", MASTER, config)
    _answer("ready")
    Driver(spark, given.address, given.checkpoint).run()
    spark.stop()


if __name__ == "__main__":
    main()
