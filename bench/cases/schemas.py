"""What a schema costs: pipelined produce to a topic that is bound to one, against the same records to a topic that is not."""

from __future__ import annotations

import io
import json

import fastavro

from bench.load import Job, LoadResult
from bench.processes import HOST, Broker, check_held, run_load
from bench.rounds import Plan, Row, compared, cpu_us_each, interleave

CONNECTIONS = (1, 4)
IN_FLIGHT = 100
# Of appending alone. Where many records are appended at once, checking one takes about as long; Avro is checked in Python.
RATIO_MIN = {"json": 0.5, "avro": 0.3, "protobuf": 0.5}

_FIELDS = {"id": 123_456, "name": "user 123456", "email": "user@example.com", "tags": ["a", "b"], "price": 12.5}
_JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "name": {"type": "string", "maxLength": 50},
        "email": {"type": "string", "pattern": "^[^@]+@[^@]+$"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "price": {"type": "number"},
    },
    "required": ["id", "name"],
    "additionalProperties": False,
}
_AVRO = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "email", "type": ["null", "string"]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "price", "type": "double"},
    ],
}
_PROTOBUF = """
syntax = "proto3";
message User { int64 id = 1; string name = 2; string email = 3; repeated string tags = 4; double price = 5; }
"""
# The fields above, as Protobuf writes them.
_PROTOBUF_VALUE = (
    b"\x08\xc0\xc4\x07\x12\x0buser 123456\x1a\x10user@example.com\x22\x01a\x22\x01b\x29\0\0\0\0\0\0\x29\x40"
)


def measure(plan: Plan) -> list[Row]:
    rows = []
    values = {"json": json.dumps(_FIELDS).encode(), "avro": _avro_value(), "protobuf": _PROTOBUF_VALUE}
    definitions = {"json": json.dumps(_JSON), "avro": json.dumps(_AVRO), "protobuf": _PROTOBUF}
    with Broker(plan.directory / "schemas") as broker:
        for kind, value in values.items():
            with broker.client() as client:
                client.schemas.register(kind, definitions[kind], kind)
            for connections in CONNECTIONS:
                plan.say(f"schemas: {kind}, {connections} connections")
                rows.append(_compare(plan, broker, kind, value, connections))
    return rows


def _compare(plan: Plan, broker: Broker, kind: str, value: bytes, connections: int) -> Row:
    def bound(number: int) -> LoadResult:
        return _round(plan, broker, value, connections, f"bound-{kind}-{number}", {"schema": kind})

    def free(number: int) -> LoadResult:
        return _round(plan, broker, value, connections, f"free-{kind}-{number}", {})

    results = interleave({"bound": bound, "free": free}, plan.rounds)
    noun = "connection" if connections == 1 else "connections"
    return compared(
        "schemas",
        f"fsync, {kind}, {len(value)} B, {connections} {noun}, {IN_FLIGHT} in flight each",
        "records/s",
        [result.rate for result in results["bound"]],
        "a topic without a schema",
        [result.rate for result in results["free"]],
        ratio_min=RATIO_MIN[kind],
        cpu_us=cpu_us_each(results["bound"]),
        against_cpu_us=cpu_us_each(results["free"]),
    )


def _round(
    plan: Plan, broker: Broker, value: bytes, connections: int, topic: str, settings: dict[str, str]
) -> LoadResult:
    with broker.client() as client:
        client.create_topic(topic, 1, durability="fsync", **settings)
    job = Job(
        side="flymq",
        host=HOST,
        port=broker.port,
        name=topic,
        payload_bytes=len(value),
        connections=connections,
        in_flight=IN_FLIGHT,
        seconds=plan.seconds,
        value=value,
        server_pid=broker.pid,
    )
    result = run_load(job)
    check_held(broker, topic, result.acknowledged)
    with broker.client() as client:
        client.delete_topic(topic)
    return result


def _avro_value() -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(_AVRO), _FIELDS)
    return buffer.getvalue()
