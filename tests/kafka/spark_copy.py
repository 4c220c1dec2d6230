"""Copies a topic with Spark, by a job and by a stream that repeats its last batch: python -m tests.kafka.spark_copy ADDRESS DIRECTORY.

A process of its own, because there can be only one session in a process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import penstock.spark
from tests.spark.jvm import FAST_MASTER, FAST_SETTINGS
from tests.spark.test_sink_live import forget_last_commit

SOURCE: Final = "in"
BY_JOB: Final = "by-job"
BY_STREAM: Final = "by-stream"
RECORDS_PER_BATCH_MAX: Final = 60
# Records of the job are staged; those of the stream are few, and come with their commits.
PADDING: Final = "array(struct('padding' AS key, CAST(REPEAT('x', 20000) AS BINARY) AS value)) AS headers"


def main(address: str, directory: Path) -> None:
    scratch = str(directory / "scratch")
    settings = {**FAST_SETTINGS, "spark.local.dir": scratch, "spark.sql.warehouse.dir": scratch}
    spark = penstock.spark.session("copy", FAST_MASTER, settings)
    broker = {"penstock.bootstrap": address}
    rows = spark.read.format("penstock").options(**broker, subscribe=SOURCE).load().selectExpr("key", "value", PADDING)
    rows.write.format("penstock").options(**broker, topic=BY_JOB).mode("append").save()
    checkpoint = directory / "checkpoint"
    reading = {**broker, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(RECORDS_PER_BATCH_MAX)}
    for turn in range(2):
        if turn:
            forget_last_commit(checkpoint)
        arriving = (
            spark.readStream.format("penstock").options(**reading, subscribe=SOURCE).load().select("key", "value")
        )
        writing = arriving.writeStream.format("penstock").options(**broker, topic=BY_STREAM)
        writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
