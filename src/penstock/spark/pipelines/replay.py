"""Records of a table, or of a time range of a topic, written to a topic again.

A replay is one transaction: all of it appears, or none. It has an id, and is done once under it: asked for again after a crash it is
finished, and after it was finished it is refused. Without an id given it is made of what was asked for. What was done under an id is noted
next to the tables (`_replays`), with the name that the sink knows it by: who removes the tables and begins again may replay again. Before
anything is written that name is noted (`_replays/begun`), after it that it was done; neither note is ever replaced.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidRequest
from penstock.spark.applications import application_name
from penstock.spark.pipelines.decoding import METADATA_COLUMNS
from penstock.spark.pipelines.files import Files
from penstock.spark.pipelines.model import Pipeline, path_name
from penstock.spark.pipelines.opening import named_table
from penstock.spark.sessions import parallelism_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT: Final = "penstock"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    to: str
    table: str | None = None
    """As in "bronze/orders"."""
    topic: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""
    keep_partitions: bool = False
    id: str | None = None

    @property
    def name(self) -> str:
        if self.id is not None:
            return self.id
        asked = json.dumps([self.to, self.table, self.topic, self.since_ms, self.until_ms, self.keep_partitions])
        return hashlib.sha256(asked.encode()).hexdigest()[:16]


def replay(
    spark: SparkSession, pipeline: Pipeline, files: Files, options: dict[str, str], request: ReplayRequest
) -> int:
    """How many records were written. Raises InvalidRequest if this replay was done before."""
    if (request.table is None) == (request.topic is None):
        raise InvalidRequest("say what to replay: a table such as bronze/orders, or a topic")
    begun = f"{pipeline.notes}/_replays/begun/{path_name(request.name)}.json"
    done = f"{pipeline.notes}/_replays/{path_name(request.name)}.json"
    found = files.read(done)
    if found is not None:
        before = json.loads(found)
        when = datetime.fromtimestamp(before["at_ms"] / 1000, UTC).isoformat(" ", "seconds")
        raise InvalidRequest(
            f"replay {request.name} was done at {when} with {before['rows']} records: give it another id to do it again"
        )
    # Makes the session active in this thread: that is where Spark looks a source up, and a thread need not have one.
    spark.createDataFrame([], "id int")
    rows = _from_table(spark, pipeline, request) if request.table is not None else _from_topic(spark, options, request)
    if not request.keep_partitions and "partition" in rows.columns:
        rows = rows.drop("partition")
    rows = rows.persist()
    try:
        count = rows.count()
        write = _noted_write(files, begun)
        application = application_name(pipeline.name, "replay", request.name, write)
        target = {**options, "topic": request.to, "txnAppId": application, "txnVersion": "0"}
        rows.write.format(FORMAT).options(**target).mode("append").save()
    finally:
        rows.unpersist()
    files.write(done, json.dumps({"at_ms": int(time.time() * 1000), "rows": count, "write": write}))
    return count


def _noted_write(files: Files, begun: str) -> str:
    """What tells this replay from one of the same id whose notes were removed."""
    found = files.read(begun)
    if found is not None:
        return str(json.loads(found)["write"])
    write = uuid.uuid4().hex
    files.write(begun, json.dumps({"write": write}))
    return write


def _from_topic(spark: SparkSession, options: dict[str, str], request: ReplayRequest) -> DataFrame:
    assert request.topic is not None
    given = {**options, **parallelism_option(spark), "subscribe": request.topic, "includeHeaders": "true"}
    if request.since_ms is not None:
        given |= {"startingTimestamp": str(request.since_ms), "startingOffsetsByTimestampStrategy": "latest"}
    if request.until_ms is not None:
        given["endingTimestamp"] = str(request.until_ms)
    return spark.read.format(FORMAT).options(**given).load().select("key", "value", "headers", "partition")


def _from_table(spark: SparkSession, pipeline: Pipeline, request: ReplayRequest) -> DataFrame:
    assert request.table is not None
    rows = named_table(pipeline, request.table, spark).read()
    if request.since_ms is not None or request.until_ms is not None:
        if "timestamp" not in rows.columns:
            raise InvalidRequest(f"table {request.table} has no column timestamp to choose rows by: replay all of it")
        if request.since_ms is not None:
            rows = rows.where(f"timestamp >= timestamp_millis({request.since_ms})")
        if request.until_ms is not None:
            rows = rows.where(f"timestamp < timestamp_millis({request.until_ms})")
    if request.table.startswith(("bronze/", "rejects/")):
        return rows.select("key", "value", "headers", "partition")
    columns = [f"`{column}`" for column in rows.columns if column not in METADATA_COLUMNS]
    value = f"CAST(to_json(struct({', '.join(columns)})) AS BINARY) AS value"
    if set(METADATA_COLUMNS) <= set(rows.columns):
        return rows.selectExpr("key", value, "partition")
    return rows.selectExpr(value)
