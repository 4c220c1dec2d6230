"""Values as JSON, by the schema that they follow."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest

from penstock.broker.schemas import decoding
from penstock.broker.schemas.decoded import Decoded
from penstock.broker.schemas.decoding import Writing, decode_values
from penstock.broker.schemas.entries import Version
from penstock.broker.schemas.kinds import KINDS
from penstock.broker.schemas.reference import SchemaType


def version(kind: SchemaType, text: str) -> Version:
    definition = KINDS[kind].parse(text)
    return Version(kind, text, definition.form, definition.cost, b"", 0)


def check() -> None:
    pass


def decode(stored: Version, *values: bytes, message: str = "", path: tuple[int, ...] | None = None) -> list[Decoded]:
    return decode_values([Writing(value, stored, message, path, "s:1") for value in values], check)


def test_avro_is_read_with_its_logical_types() -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
            {"name": "raw", "type": "bytes"},
            {"name": "note", "type": ["null", "string"]},
        ],
    }
    written = io.BytesIO()
    order = {"at": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("9.50"), "raw": b"\xff", "note": None}
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), order)
    [decoded] = decode(version("avro", json.dumps(schema)), written.getvalue())
    assert decoded.json is not None
    assert json.loads(decoded.json) == {"at": "2026-01-02T00:00:00Z", "price": "9.50", "raw": "/w==", "note": None}
    assert (decoded.schema, decoded.fault) == ("s:1", None)


def test_a_value_that_does_not_follow_the_schema_is_not_read() -> None:
    endless = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # an array that claims 2**63 - 1 elements without a byte
    [decoded] = decode(version("avro", '{"type": "array", "items": "null"}'), endless)
    assert decoded.json is None
    assert decoded.fault


def test_a_message_of_several_is_read() -> None:
    text = 'syntax = "proto3"; message A { int32 x = 1; } message B { string user_name = 1; }'
    ways: list[dict[str, Any]] = [{"message": "B"}, {"path": (1,)}]
    for way in ways:
        [decoded] = decode(version("protobuf", text), b"\x0a\x03ann", **way)
        assert json.loads(decoded.json or b"") == {"user_name": "ann"}
    [decoded] = decode(version("protobuf", text), b"", path=(1, 7))
    assert decoded.fault == "the definition has no message at 1.7"


def test_values_beyond_the_bound_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "DECODED_BYTES_MAX", 5)
    decoded = decode(version("json", "{}"), b"[1]", b"[2]")
    assert [each.json for each in decoded] == [b"[1]", None]
