"""Rows become records that decoding makes the same rows of; what does not fit says why."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pytest

from penstock.broker.schemas.marks import Framing
from penstock.broker.schemas.reference import SchemaType
from penstock.errors import InvalidRequest, ValidationFailed
from penstock.spark.pipelines.decoding import Decoder, Plan, version
from penstock.spark.pipelines.encoding import Encoder, EncodingPlan

MOMENT: Final = datetime(2026, 1, 31, 12, 30, 15, 250_000, tzinfo=UTC)
JSON: Final = json.dumps(
    {
        "type": "object",
        "required": ["id"],
        "properties": {
            "id": {"type": "integer"},
            "key": {"type": "string"},
            "price": {"type": "number", "x-decimal": {"precision": 9, "scale": 2}},
            "text": {"type": "string", "x-decimal": {"precision": 9, "scale": 2}},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "a member": {"type": "array", "items": {"type": "object", "properties": {"x.y": {"type": "number"}}}},
            "tags": {"type": "object", "additionalProperties": {"type": "string"}},
            "extra": {},
        },
    }
)
AVRO: Final = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"], "default": None},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "either", "type": ["int", "string"]},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
            {"name": "state", "type": {"type": "enum", "name": "S", "symbols": ["NEW", "PAID"]}},
            {"name": "count", "type": "int", "default": 7},
        ],
    }
)
PROTO: Final = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Other {}
message R {
  int64 id = 1; optional string note = 2; State state = 3; google.protobuf.Timestamp at = 4; repeated Line lines = 5;
  map<string, uint64> counts = 6; google.protobuf.Int32Value rank = 7; google.protobuf.Struct extra = 8; bytes data = 9; float ratio = 10;
}
message Line { string sku = 1; double price = 2; }
enum State { NEW = 0; PAID = 1; }
"""
ROWS: Final[dict[SchemaType, tuple[str, str, dict[str, Any]]]] = {
    "json": (
        JSON,
        "",
        {
            "id": 1,
            "value_key": "k",
            "price": Decimal("19.99"),
            "text": Decimal("0.50"),
            "at": MOMENT,
            "day": date(2026, 1, 31),
            "a_member": [{"x_y": 0.1}, {"x_y": None}],
            "tags": [("a", "b")],
            "extra": '{"x":[1,null]}',
        },
    ),
    "avro": (
        AVRO,
        "",
        {
            "id": 1,
            "note": None,
            "price": Decimal("19.99"),
            "at": MOMENT,
            "day": date(2026, 1, 31),
            "time": "10:20:30.250000",
            "either": '"x"',
            "counts": [("a", 1)],
            "state": "PAID",
            "count": 3,
        },
    ),
    "protobuf": (
        PROTO,
        "R",
        {
            "id": 1,
            "note": None,
            "state": "PAID",
            "at": MOMENT,
            "lines": [{"sku": "a", "price": 2.5}],
            "counts": [("x", Decimal(2**64 - 1))],
            "rank": 5,
            "extra": '{"a": [1.0]}',
            "data": b"\0\xff",
            "ratio": 0.5,
        },
    ),
}


def plan(kind: SchemaType, framing: Framing = "none") -> EncodingPlan:
    text, message, _ = ROWS[kind]
    return EncodingPlan("r", kind, message, version(kind, 1, text, 100_001), framing)


@pytest.mark.parametrize("framing", ["none", "header", "confluent", "single-object"])
@pytest.mark.parametrize("kind", ["json", "avro", "protobuf"])
def test_what_is_encoded_is_decoded_to_what_it_was(kind: SchemaType, framing: Framing) -> None:
    _, message, row = ROWS[kind]
    made = plan(kind, framing)
    if framing == "single-object" and kind != "avro":
        with pytest.raises(InvalidRequest, match="only Avro has single-object encoding"):
            Encoder(made)
        return
    values = Encoder(made).encode([row, row])
    decoder = Decoder(Plan("r", kind, message, made.version, unmarked="read"))
    decoded = decoder.decode(values, [made.mark] * 2 if framing == "header" else None)
    assert decoded.reasons == [None, None]
    assert pa.record_batch(decoded.columns, schema=decoder.schema).to_pylist() == [row, row]


def test_a_column_that_is_missing_or_null_is_left_to_the_schema() -> None:
    assert Encoder(plan("json")).encode([{"id": 1}, {"id": 2, "price": None}]) == [b'{"id":1}', b'{"id":2}']
    row = {**ROWS["avro"][2], "count": None}
    decoder = Decoder(Plan("r", "avro", "", plan("avro").version))
    assert decoder.decode(Encoder(plan("avro")).encode([row])).columns[-1].to_pylist() == [7], "its default"


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        ("json", {"price": Decimal(1)}, '"id" is a required property'),
        ("json", {"id": 1, "extra": "{"}, "{ is not a JSON document"),
        ("avro", {"id": "x"}, "r-v1"),
        ("protobuf", {"id": 1, "state": "LOST"}, "LOST"),
    ],
)
def test_a_row_that_does_not_fit_says_why(kind: SchemaType, row: dict[str, Any], reason: str) -> None:
    good = ROWS[kind][2]
    with pytest.raises(ValidationFailed, match=r"row 1 of a batch does not fit") as failed:
        Encoder(plan(kind)).encode([good, row])
    assert reason in str(failed.value)


def test_a_schema_of_no_record_is_one_column() -> None:
    made = EncodingPlan("r", "json", "", version("json", 1, '{"type": "integer"}'), "none")
    encoder = Encoder(made)
    assert encoder.schema.names == ["value"]
    assert encoder.encode([{"value": 5}]) == [b"5"]


def test_without_a_registry_id_there_is_no_confluent_framing() -> None:
    made = EncodingPlan("r", "json", "", version("json", 1, "{}"), "confluent")
    with pytest.raises(InvalidRequest, match="has no registry id for r:1"):
        Encoder(made)
