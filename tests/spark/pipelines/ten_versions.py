"""Ten versions of a schema in every format: their fields turn round from version to version, and each adds one."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

import fastavro

from penstock.broker.schemas.protobuf import ProtobufDefinition
from penstock.broker.schemas.reference import SchemaType

VERSIONS: Final = 10

Encode = Callable[[int, int], bytes]
"""The version, and the number of the record."""


def avro_bytes(schema: Any, record: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), record)
    return buffer.getvalue()


def crc64(schema: Any) -> bytes:
    canonical = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(schema))
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


def fields_of(number: int) -> list[str]:
    names = [f"f{field}" for field in range(number + 1)]
    return names[number % len(names) :] + names[: number % len(names)]


def avro_schema(number: int) -> Any:
    fields = [{"name": name, "type": "long", "default": -1} for name in fields_of(number)]
    return {"type": "record", "name": "Order", "fields": fields}


def json_schema(number: int) -> Any:
    members = {name: {"type": "integer"} for name in fields_of(number)}
    return {"type": "object", "properties": members, "required": [f"f{number}"]}


def proto_text(number: int) -> str:
    fields = [f"optional int64 {name} = {int(name[1:]) + 1};" for name in fields_of(number)]
    return 'syntax = "proto3"; message Other { string x = 1; } message Order { ' + " ".join(fields) + " }"


def row_of(number: int, record: int) -> dict[str, int]:
    return {name: 1000 * record + int(name[1:]) for name in fields_of(number)}


def avro_encode(number: int, record: int) -> bytes:
    return avro_bytes(avro_schema(number), row_of(number, record))


def json_encode(number: int, record: int) -> bytes:
    return json.dumps(row_of(number, record)).encode()


def proto_encode(number: int, record: int) -> bytes:
    message: Any = PROTO[number].message_class("Order")
    return message(**row_of(number, record)).SerializeToString()  # type: ignore[no-any-return]


NUMBERS: Final = range(1, VERSIONS + 1)
PROTO: Final = {number: ProtobufDefinition.parse(proto_text(number)) for number in NUMBERS}
FORMATS: Final[dict[SchemaType, tuple[Callable[[int], str], Encode]]] = {
    "avro": (lambda number: json.dumps(avro_schema(number)), avro_encode),
    "json": (lambda number: json.dumps(json_schema(number)), json_encode),
    "protobuf": (proto_text, proto_encode),
}
