"""Settings that make Spark start and turn small batches around quickly; they suit tests and nothing else."""

from __future__ import annotations

FAST_MASTER = "local[2]"

FAST_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    # The second compiler and a concurrent collector cost more start-up than they can win back in a test.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
}
