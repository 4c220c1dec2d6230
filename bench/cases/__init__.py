"""The measurements, one module each; `CASES` names them in the order they run."""

from __future__ import annotations

from collections.abc import Callable

from bench.cases import (
    arrow,
    backup,
    blipmq,
    console,
    delayed,
    felix,
    fetch,
    fujin,
    idempotent,
    idle,
    kafka_engine,
    latency,
    logins,
    nats,
    nodes,
    one_in_flight,
    partitions,
    produce,
    quic,
    rustlog,
    schemas,
    spark,
    startup,
    topics,
    transactions,
)
from bench.rounds import Plan, Row

CASES: dict[str, Callable[[Plan], list[Row]]] = {
    "produce": produce.measure,
    "one-in-flight": one_in_flight.measure,
    "latency": latency.measure,
    "nats": nats.measure,
    "partitions": partitions.measure,
    "fetch": fetch.measure,
    "schemas": schemas.measure,
    "transactions": transactions.measure,
    "idempotent": idempotent.measure,
    "blipmq": blipmq.measure,
    "rustlog": rustlog.measure,
    "fujin": fujin.measure,
    "felix": felix.measure,
    "quic": quic.measure,
    "startup": startup.measure,
    "topics": topics.measure,
    "backup": backup.measure,
    "console": console.measure,
    "idle": idle.measure,
    "delayed": delayed.measure,
    "logins": logins.measure,
    "arrow": arrow.measure,
    "kafka-engine": kafka_engine.measure,
    "nodes": nodes.measure,
    "spark": spark.measure,
}
