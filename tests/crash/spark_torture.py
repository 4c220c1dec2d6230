"""Exactly once, from a topic through Spark to a topic, while everything that can be killed is killed.

    python -m tests.crash.spark_torture --kills 200 [--engine kafka]

A writer feeds the topic `in`; a query copies it to `out`; each round ends something at a moment of its own: the broker, one of Spark's
Python processes (workers, what runs the source, what commits the sink), the whole driver; or it ends the query, or makes it repeat a batch
whose commit it has forgotten. In the end `out` holds every record of `in`, and each of them once; so does `in` of all that its writer heard
are stored. Ends with 1, and leaves its files where they are, if that is not so or the query stands still.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import ClassVar

from tests.crash.spark_torture_report import Verdict, judge
from tests.crash.torture import MakeRecord, Spark, Torture, main

IN_PARTITIONS, OUT_PARTITIONS = 2, 3


def _record(number: int) -> tuple[bytes | None, bytes | None]:
    return (b"%d" % (number % 97) if number % 3 else None), b"%d" % number


class SparkTorture(Torture):
    # A driver takes as long to come back as everything else takes for ten rounds.
    WEIGHTS: ClassVar[Mapping[str, int]] = {"broker": 30, "worker": 30, "replay": 20, "stop": 12, "driver": 8}
    FED: ClassVar[Mapping[str, MakeRecord]] = {"in": _record}

    def _create_topics(self) -> None:
        with self._broker.connect() as client:
            client.create_topic("in", IN_PARTITIONS)
            client.create_topic("out", OUT_PARTITIONS)

    def _driver(self) -> Spark:
        scratch = [str(self._directory / name) for name in ("checkpoint", "scratch")]
        return Spark("tests.crash.spark_torture_driver", self._directory, self._broker.address, *scratch)

    def finish(self) -> dict[str, Verdict]:
        self._stop_feeding()
        self._wait_until(lambda: len(self._values("out")) >= len(self._values("in")))
        # If something is there twice, it looks caught up too soon. So once more from the checkpoint, and to the end of a batch.
        self._spark.tell("stop")
        self._spark.tell("quit")
        return {"topic out": judge(self._feeders[0].acknowledged, self._values("in"), self._values("out"))}

    def progress(self) -> str:
        return f"the source ends at {self._end('in'):8d}, the sink at {self._written():8d}"

    def _written(self) -> int:
        return self._end("out")


if __name__ == "__main__":
    sys.exit(main(SparkTorture, __doc__ or ""))
