"""Records of every kind of schema become typed columns; those that do not fit get a reason and disturb nobody."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from penstock.broker.schemas.protobuf import ProtobufDefinition
from penstock.spark.pipelines.decoding import Decoder, Plan, version


def json_decoder(**schema: Any) -> Decoder:
    return Decoder(Plan("orders", "json", "", version("json", 1, json.dumps(schema))))


def columns(decoder: Decoder) -> dict[str, str]:
    return {field.name: str(field.type) for field in decoder.schema}


def rows(decoder: Decoder, *values: bytes | None) -> tuple[list[dict[str, Any]], list[str | None]]:
    decoded = decoder.decode(values)
    return pa.record_batch(decoded.columns, schema=decoder.schema).to_pylist(), decoded.reasons


ORDER = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": "number"},
        "country": {"type": "string"},
        "paid": {"type": ["boolean", "null"]},
        "created": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"sku": {"type": "string"}}}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
        "extra": {},
    },
}


def test_a_json_schema_becomes_typed_columns() -> None:
    assert columns(json_decoder(**ORDER)) == {
        "id": "int64",
        "amount": "double",
        "country": "string",
        "paid": "bool",
        "created": "timestamp[us, tz=UTC]",
        "day": "date32[day]",
        "lines": "list<item: struct<sku: string>>",
        "tags": "map<string, string>",
        "extra": "string",
    }


def test_json_records_become_rows_and_a_missing_member_is_null() -> None:
    order = {
        "id": 7,
        "amount": 10,
        "created": "2026-01-31T12:00:00+01:00",
        "day": "2026-01-31",
        "lines": [{"sku": "a", "other": 1}, {}],
        "tags": {"a": "b"},
        "extra": {"x": [1, None]},
        "unnamed": 1,
    }
    [full, bare, nothing], reasons = rows(json_decoder(**ORDER), json.dumps(order).encode(), b'{"id": 8.0}', None)
    assert reasons == [None, None, None]
    assert full == {
        "id": 7,
        "amount": 10.0,
        "country": None,
        "paid": None,
        "created": datetime(2026, 1, 31, 11, tzinfo=UTC),
        "day": date(2026, 1, 31),
        "lines": [{"sku": "a"}, {"sku": None}],
        "tags": [("a", "b")],
        "extra": '{"x":[1,null]}',
    }
    assert bare["id"] == 8
    assert set(nothing.values()) == {None}, "a record without a value is a deletion, not a mistake"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"nonsense", "not a JSON document"),
        (b'{"amount": 1}', '"id" is a required property'),
        (b'{"id": "seven"}', 'at /id: "seven" is not of type "integer"'),
        (b'{"id": 99999999999999999999}', "too large"),
        (b'{"id": 1, "created": "yesterday"}', "yesterday is not a date and time"),
        (b'{"id": 1, "day": "2026-02-30"}', "2026-02-30 is not a date"),
    ],
)
def test_a_json_record_that_does_not_fit_has_a_reason_and_its_neighbours_are_fine(value: bytes, reason: str) -> None:
    [before, bad, after], reasons = rows(json_decoder(**ORDER), b'{"id": 1}', value, b'{"id": 3}')
    assert (before["id"], after["id"]) == (1, 3)
    assert set(bad.values()) == {None}
    assert (reasons[0], reasons[2]) == (None, None)
    assert reasons[1] is not None
    assert reason in reasons[1]
    assert reasons[1].endswith("(orders-v1)")


@pytest.mark.parametrize("member", [{"type": "integer"}, {"type": "string", "format": "date"}])
@pytest.mark.parametrize("value", [b"5", b"[1]", b'"text"', b"null"])
def test_what_is_no_object_has_a_reason_also_where_the_schema_lets_it_pass(member: Any, value: bytes) -> None:
    whole = json_decoder(properties={"a": member})
    nested = json_decoder(type="object", properties={"inner": {"properties": {"a": member}}})
    for decoder, bad in ((whole, value), (nested, b'{"inner": %s}' % value)):
        if bad == b'{"inner": null}':
            continue  # there it is a member without a value
        _, reasons = rows(decoder, b"{}", bad, b"{}")
        assert (reasons[0], reasons[2]) == (None, None)
        assert reasons[1] is not None


@pytest.mark.parametrize(
    ("schema", "arrow"),
    [
        ({"type": ["integer", "null"]}, "int64"),
        ({"type": ["integer", "number"]}, "double"),
        ({"type": ["integer", "string"]}, "string"),
        ({"enum": ["a", "b", None]}, "string"),
        ({"const": 5}, "int64"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/money"}]}, "struct<units: int64>"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, "string"),
        ({"allOf": [{"$ref": "#/$defs/money"}, {"properties": {"iso": {"type": "string"}}}]}, None),
        ({"$ref": "#/$defs/tree"}, "struct<left: string, right: string>"),
        ({"type": "array"}, "string"),
        ({"type": "null"}, "string"),
        (True, "string"),
    ],
)
def test_a_schema_is_a_type_only_where_it_leaves_one(schema: Any, arrow: str | None) -> None:
    definitions = {
        "money": {"type": "object", "properties": {"units": {"type": "integer"}}},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "right": {"$ref": "#/$defs/tree"}}},
    }
    decoder = json_decoder(**{"type": "object", "properties": {"field": schema}, "$defs": definitions})
    found = columns(decoder)["field"]
    if arrow is None:
        assert found.startswith("struct<")
    else:
        assert found == arrow


def test_members_named_like_other_columns_are_told_apart() -> None:
    names = ["key", "Topic", "a b", "a.b", "A_B", "offset", "fine"]
    decoder = json_decoder(type="object", properties={name: {"type": "integer"} for name in names})
    lower = [name.lower() for name in columns(decoder)]
    assert len(set(lower)) == len(names)
    assert not {"key", "topic", "offset"} & set(lower)
    [row], _ = rows(decoder, json.dumps(dict(zip(names, range(7), strict=True))).encode())
    assert list(row.values()) == list(range(7))


def test_a_schema_of_no_object_becomes_one_column() -> None:
    assert rows(json_decoder(type="integer"), b"7") == ([{"value": 7}], [None])


# --- Avro ---

AVRO_ORDER: dict[str, Any] = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "either", "type": ["int", "string"]},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {"name": "next", "type": ["null", "shop.Order"], "default": None},
    ],
}


def avro(schema: Any, record: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), record)
    return out.getvalue()


def test_avro_records_become_rows() -> None:
    decoder = Decoder(Plan("orders", "avro", "", version("avro", 1, json.dumps(AVRO_ORDER))))
    assert columns(decoder) == {
        "id": "int64",
        "state": "string",
        "price": "decimal128(9, 2)",
        "at": "timestamp[us, tz=UTC]",
        "note": "string",
        "either": "string",
        "counts": "map<string, int64>",
        "next": "string",
    }
    order = {
        "id": 1,
        "state": "PAID",
        "price": Decimal("12.50"),
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "either": "x",
        "counts": {"a": 1},
    }
    [row, bad], reasons = rows(decoder, avro(AVRO_ORDER, order), b"\x02\x09")
    assert row == {**order, "note": None, "either": '"x"', "counts": [("a", 1)], "next": None}
    assert reasons[0] is None
    assert reasons[1] is not None
    assert set(bad.values()) == {None}


# --- Protobuf ---

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Order {
  int64 id = 1;
  optional string note = 2;
  State state = 3;
  google.protobuf.Timestamp at = 4;
  repeated Line lines = 5;
  map<string, uint64> counts = 6;
  google.protobuf.Int32Value rank = 7;
  google.protobuf.Struct extra = 8;
  Order parent = 9;
}
message Line { string sku = 1; double price = 2; }
enum State { NEW = 0; PAID = 1; }
"""


def test_protobuf_messages_become_rows() -> None:
    made = version("protobuf", 1, PROTO)
    decoder = Decoder(Plan("orders", "protobuf", "shop.Order", made))
    message: Any = ProtobufDefinition.load(PROTO, made.form, 1).message_class("Order")
    order = message(id=1, state=1, lines=[{"sku": "a", "price": 2.5}], counts={"x": 2**64 - 1}, parent={"id": 2})
    order.at.FromDatetime(datetime(2026, 1, 1, tzinfo=UTC))
    order.extra.update({"a": [1]})
    assert columns(decoder)["counts"] == "map<string, decimal128(20, 0)>"
    [row, empty, bad], reasons = rows(decoder, order.SerializeToString(), b"", b"\xff\xff")
    assert row == {
        "id": 1,
        "note": None,
        "state": "PAID",
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "lines": [{"sku": "a", "price": 2.5}],
        "counts": [("x", Decimal(2**64 - 1))],
        "rank": None,
        "extra": '{"a": [1.0]}',
        "parent": '{"id": "2"}',
    }
    assert (empty["id"], empty["state"], empty["at"], empty["lines"]) == (0, "NEW", None, [])
    assert reasons[:2] == [None, None]
    assert reasons[2] is not None
    assert set(bad.values()) == {None}
