"""FlyMQ replies about schemas, both ways. Layouts are in `wire`.

What deployed clients do not know stands behind what they do: they stop reading there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.protocols.bytes import I64, U32, ByteReader, blob32, text8, text16, texts16
from penstock.protocols.flymq.limits import REPLY_ITEMS_MAX
from penstock.protocols.flymq.schemas.messages import SchemaInfo
from penstock.protocols.flymq.wire import Opcode, counted_rows, frame

_SCHEMA_BYTES_MIN = 7

# --- the server's side ---


def encode_registered(name: str, type_name: str, version: int, compatibility: str) -> bytes:
    """The type is what the request calls it."""
    return frame(Opcode.REGISTER_SCHEMA, text16(name) + text8(type_name) + U32.pack(version) + text8(compatibility))


def encode_schema(schema: SchemaInfo) -> bytes:
    """A list of one, because that is what the deployed Python client reads."""
    return frame(
        Opcode.GET_SCHEMA,
        U32.pack(1)
        + text16(schema.name)
        + text8(schema.type)
        + U32.pack(schema.version)
        + blob32((schema.definition or "").encode())
        + text8(schema.compatibility or "")
        + I64.pack(schema.created_ms or 0),
    )


def encode_schemas(schemas: Iterable[SchemaInfo]) -> bytes:
    tail = bytearray()

    def row(schema: SchemaInfo) -> bytes:
        tail.extend(text8(schema.compatibility or "") + I64.pack(schema.created_ms or 0))
        return text16(schema.id) + text8(schema.type) + U32.pack(schema.version)

    return frame(Opcode.LIST_SCHEMAS, counted_rows(Opcode.LIST_SCHEMAS, map(row, schemas)) + tail)


def encode_validated(reasons: Sequence[str]) -> bytes:
    return frame(Opcode.VALIDATE_SCHEMA, bytes((not reasons,)) + texts16(reasons))


def encode_schema_done(opcode: int) -> bytes:
    return frame(opcode, b"\x01" + text16("OK"))


# --- the client's side ---


def decode_registered(payload: bytes) -> SchemaInfo:
    reader = ByteReader(payload)
    name, type_name, version = reader.text16("name"), reader.text8("type"), reader.u32("version")
    return SchemaInfo(name, type_name, version, reader.text8("compatibility") if reader.remaining else None)


def decode_schema(payload: bytes) -> SchemaInfo:
    reader = ByteReader(payload)
    reader.u32("count")
    name, type_name, version = reader.text16("name"), reader.text8("type"), reader.u32("version")
    if not reader.remaining:
        return SchemaInfo(name, type_name, version)
    definition = reader.blob32("definition").decode()
    return SchemaInfo(name, type_name, version, reader.text8("compatibility"), reader.i64("creation time"), definition)


def decode_schemas(payload: bytes) -> list[SchemaInfo]:
    reader = ByteReader(payload)
    rows = [
        (reader.text16("id"), reader.text8("type"), reader.u32("version"))
        for _ in range(reader.count32("schemas", _SCHEMA_BYTES_MIN, REPLY_ITEMS_MAX))
    ]
    told = [(reader.text8("compatibility"), reader.i64("creation time")) for _ in rows] if reader.remaining else []
    schemas = []
    for row, (schema_id, type_name, version) in enumerate(rows):
        schemas.append(
            SchemaInfo(schema_id.removesuffix(f"-v{version}"), type_name, version, *(told[row] if told else ()))
        )
    return schemas


def decode_validated(payload: bytes) -> list[str]:
    reader = ByteReader(payload)
    valid = reader.boolean("valid")
    reasons = reader.texts16("errors", REPLY_ITEMS_MAX)
    return [] if valid else reasons or ["the broker gives no reason"]
