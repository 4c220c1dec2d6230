"""FlyMQ requests about schemas, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.errors import ProtocolViolation, RecordTooLarge
from penstock.protocols.bytes import I32, U32, ByteReader, blob32, text8, text16
from penstock.protocols.flymq.schemas.messages import (
    BindSchema,
    DeleteSchema,
    GetSchema,
    ListSchemas,
    ProduceWithSchema,
    RegisterSchema,
    SchemaBody,
    SchemaReading,
    ValidateSchema,
)
from penstock.protocols.flymq.wire import PARTITION_AUTO, PAYLOAD_BYTES_MAX, Opcode, frame

# --- the server's side ---


def _register_schema(reader: ByteReader) -> RegisterSchema:
    name = reader.text16("name")
    # A type is never empty nor 256 bytes long, so a first byte of zero is the high half of a u16 length.
    type_name = reader.text16("type") if reader.peek(1) == b"\0" else reader.text8("type")
    body = RegisterSchema(name, type_name, reader.blob32("definition"), None)
    if reader.remaining:
        body.compatibility = reader.text8("compatibility") or None
    reader.finish("compatibility")
    return body


def _get_schema(reader: ByteReader) -> GetSchema:
    body = GetSchema(reader.text16("name"), reader.u32("version"))
    reader.finish("version")
    return body


def _list_schemas(reader: ByteReader) -> ListSchemas:
    name = reader.text16("name") if reader.remaining else ""
    reader.finish("name")
    return ListSchemas(name)


def _validate_schema(reader: ByteReader) -> ValidateSchema:
    body = ValidateSchema(reader.text16("name"), reader.blob32("message"))
    reader.finish("message")
    return body


def _produce_with_schema(reader: ByteReader) -> ProduceWithSchema:
    topic = reader.text16("topic")
    readings = [_reading(_schema_first, reader), _reading(_data_first, reader)]
    if readings[0] is None:  # what ends after the data has no key behind it
        readings.append(_reading(_schema_first_with_key, reader))
    possible = [reading for reading in readings if reading is not None and reading.schema]
    if not possible:
        raise ProtocolViolation(
            "invalid binary format: what follows the topic is neither schema and data nor data and schema"
        )
    return ProduceWithSchema(topic, possible)


def _reading(read: Callable[[ByteReader], SchemaReading], reader: ByteReader) -> SchemaReading | None:
    try:
        return read(reader.fork())
    except ProtocolViolation:
        return None


def _schema_first(reader: ByteReader) -> SchemaReading:
    """As the deployed broker, its Go client and its command line have it."""
    reading = SchemaReading(reader.text16("schema"), reader.blob32("data"))
    reader.finish("data")
    return reading


def _data_first(reader: ByteReader) -> SchemaReading:
    """As the deployed Python and Java clients send it."""
    value = reader.blob32("data")
    reading = SchemaReading(reader.text16("schema"), value)
    reader.finish("schema")
    return reading


def _schema_first_with_key(reader: ByteReader) -> SchemaReading:
    schema, value = reader.text16("schema"), reader.blob32("data")
    reading = SchemaReading(schema, value, reader.blob32("key") or None, reader.i32("partition"))
    reader.finish("partition")
    return reading


def _delete_schema(reader: ByteReader) -> DeleteSchema:
    body = DeleteSchema(reader.text16("name"), reader.u32("version"))
    reader.finish("version")
    return body


def _bind_schema(reader: ByteReader) -> BindSchema:
    body = BindSchema(reader.text16("topic"), reader.text16("schema"))
    reader.finish("schema")
    return body


READERS: Mapping[int, Callable[[ByteReader], SchemaBody]] = {
    Opcode.REGISTER_SCHEMA: _register_schema,
    Opcode.GET_SCHEMA: _get_schema,
    Opcode.LIST_SCHEMAS: _list_schemas,
    Opcode.VALIDATE_SCHEMA: _validate_schema,
    Opcode.PRODUCE_WITH_SCHEMA: _produce_with_schema,
    Opcode.DELETE_SCHEMA: _delete_schema,
    Opcode.BIND_SCHEMA: _bind_schema,
}

# --- the client's side ---


def encode_register_schema(name: str, type_name: str, definition: str, compatibility: str | None = None) -> bytes:
    """The tail is sent only where it says something: a deployed broker gets what its own clients send."""
    payload = text16(name) + text8(type_name) + blob32(definition.encode())
    return frame(Opcode.REGISTER_SCHEMA, payload if compatibility is None else payload + text8(compatibility))


def encode_get_schema(name: str, version: int) -> bytes:
    return frame(Opcode.GET_SCHEMA, text16(name) + U32.pack(version))


def encode_list_schemas(name: str = "") -> bytes:
    return frame(Opcode.LIST_SCHEMAS, text16(name))


def encode_validate_schema(schema: str, value: bytes) -> bytes:
    return _bounded(Opcode.VALIDATE_SCHEMA, text16(schema) + blob32(value))


def encode_produce_with_schema(
    topic: str, schema: str, value: bytes, key: bytes | None = None, partition: int = PARTITION_AUTO
) -> bytes:
    payload = text16(topic) + text16(schema) + blob32(value)
    if key or partition != PARTITION_AUTO:
        payload += blob32(key or b"") + I32.pack(partition)
    return _bounded(Opcode.PRODUCE_WITH_SCHEMA, payload)


def encode_produce_many_with_schema(
    topic: str, schema: str, values: Sequence[bytes], keys: Sequence[bytes | None] | None, partition: int
) -> bytes:
    """One frame a record, back to back."""
    if keys is None:
        keys = [None] * len(values)
    return b"".join(
        encode_produce_with_schema(topic, schema, value, key, partition)
        for value, key in zip(values, keys, strict=True)
    )


def encode_delete_schema(name: str, version: int) -> bytes:
    return frame(Opcode.DELETE_SCHEMA, text16(name) + U32.pack(version))


def encode_bind_schema(topic: str, schema: str) -> bytes:
    return frame(Opcode.BIND_SCHEMA, text16(topic) + text16(schema))


def _bounded(opcode: Opcode, payload: bytes) -> bytes:
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise RecordTooLarge(
            f"a request of {len(payload)} bytes does not fit into a frame: at most {PAYLOAD_BYTES_MAX}"
        )
    return frame(opcode, payload)
