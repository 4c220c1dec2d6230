"""A Spark driver that is meant to be killed: one query from topic to topic, started again whenever it ends.

Commands come one a line on standard input: `stop` ends the query and starts it again; `replay` does so too, and in between forgets that
the last batch was committed, as if the driver had died after the sink's commit; `quit` ends the process.
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
LOOK_S = 0.05


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
            with suppress(PySparkException):
                query.stop()
            if command == "quit":
                return
            if command == "replay":
                self._forget_last_commit()

    def _start(self) -> StreamingQuery:
        rows = self._spark.readStream.format("penstock").options(
            **self._address,
            subscribe="in",
            startingOffsets="earliest",
            maxOffsetsPerTrigger=str(RECORDS_PER_TRIGGER_MAX),
        )
        # Through a shuffle, so that records change places and a task that is tried again may find them in another order.
        written = rows.load().selectExpr("key", "value").repartition(2)
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

    def _forget_last_commit(self) -> None:
        commits = self._checkpoint / "commits"
        numbers = [int(path.name) for path in commits.glob("*") if path.name.isdigit()]
        if numbers:
            (commits / str(max(numbers))).unlink()
            (commits / f".{max(numbers)}.crc").unlink(missing_ok=True)

    def _listen(self) -> None:
        for line in sys.stdin:
            self._commands.put(line.strip())
        self._commands.put("quit")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("scratch", type=Path)
    given = parser.parse_args()
    config = {**FAST_SETTINGS, "spark.local.dir": str(given.scratch), "spark.sql.warehouse.dir": str(given.scratch)}
    spark = penstock.spark.session("torture", MASTER, config)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    Driver(spark, given.address, given.checkpoint).run()
    spark.stop()


if __name__ == "__main__":
    main()
