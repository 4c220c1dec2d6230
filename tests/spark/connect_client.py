"""A client of a Spark Connect server, which `test_sessions_connect.py` runs as a process that has no virtual machine and no other session.

    python -m tests.spark.connect_client SERVER BROKER DIRECTORY

Prints what it found as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import penstock.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM_S_MAX = 180


def try_everything(server: str, broker: str, directory: Path) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(server).getOrCreate()
    penstock.spark.register(spark)
    options = {"penstock.bootstrap": broker}
    found: dict[str, Any] = {}

    def values(topic: str) -> list[str]:
        rows = spark.read.format("penstock").options(**options, subscribe=topic).load()
        return sorted(row.value for row in rows.selectExpr("CAST(value AS STRING) AS value").collect())

    numbers = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value")
    numbers.write.format("penstock").options(**options, topic="written").mode("append").save()
    found["written"] = values("written")

    def copy() -> None:
        rows = spark.readStream.format("penstock").options(
            **options, subscribe="written", startingOffsets="earliest", maxOffsetsPerTrigger="70"
        )
        writing = rows.load().select("key", "value").writeStream.format("penstock").options(**options, topic="copied")
        query = writing.option("checkpointLocation", str(directory / "copied")).trigger(availableNow=True).start()
        assert query.awaitTermination(STREAM_S_MAX), query.status

    copy()
    found["copied"] = values("copied")
    numbers.limit(1).write.format("penstock").options(**options, topic="written").mode("append").save()
    copy()
    found["resumed"] = len(values("copied"))

    def write(batch: DataFrame, batch_id: int) -> None:
        penstock.spark.write_batch(batch, batch_id, topic="refused", options=options)

    rows = spark.readStream.format("penstock").options(**options, subscribe="written", startingOffsets="earliest")
    query = rows.load().select("key", "value").writeStream.foreachBatch(write).trigger(availableNow=True).start()
    try:
        query.awaitTermination(STREAM_S_MAX)
        found["refused"] = ""
    except Exception as error:  # noqa: BLE001 - what it says is what is examined
        found["refused"] = str(error)

    # A session with a broker of its own, as `penstock.spark.session` leaves it.
    spark.conf.set("spark.penstock.bootstrap", broker)
    again = penstock.spark.session(config={"spark.remote": server})
    found["same session"] = again is spark
    orders = penstock.spark.decode(again.read.format("penstock").option("subscribe", "orders").load(), "orders")
    found["orders"] = sorted(row.id for row in orders.collect())
    found["table"] = sorted(row.id for row in penstock.spark.table(again, str(directory / "table")).collect())
    stream = again.readStream.format("penstock-delta").load(str(directory / "table"))
    query = stream.writeStream.format("memory").queryName("ids").trigger(availableNow=True).start()
    assert query.awaitTermination(STREAM_S_MAX), query.status
    found["table as a stream"] = sorted(row.id for row in again.sql("SELECT id FROM ids").collect())
    spark.stop()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(try_everything(sys.argv[1], sys.argv[2], Path(sys.argv[3]))) + "\n")
