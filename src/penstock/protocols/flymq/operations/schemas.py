"""Schemas, and records that are produced with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

from penstock.errors import ProtocolViolation
from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.operations.layout import (
    I64,
    TAIL,
    U32,
    Blob,
    Bool,
    Bytes,
    Columns,
    Label,
    Nullable,
    Number,
    Opaque,
    Pieces,
    ShortText,
    Str,
    Str8,
    Tail,
    Text,
    Word,
)
from penstock.protocols.flymq.operations.operation import Operation
from penstock.protocols.flymq.operations.records import StoredRecord
from penstock.protocols.flymq.operations.topics import Done, Names
from penstock.protocols.flymq.wire import PARTITION_AUTO

Compatibility = Annotated[str | None, Nullable(ShortText(), "")]


@dataclass(slots=True)
class RegisteredSchema:
    name: Str
    type_name: Annotated[Str8, Label("type")]
    """As the request has it."""
    version: U32
    compatibility: Annotated[Compatibility, Tail(always_sent=True)] = None


class RegisterSchema(Operation[RegisteredSchema], opcode=0x10):
    """Register the next version of a schema, or find the one that has this definition already."""

    name: Str
    type_name: Annotated[Word, Label("type")]
    """json, avro or protobuf."""
    definition: Bytes
    compatibility: Annotated[Compatibility, TAIL] = None
    """none, backward, forward or full."""


@dataclass(slots=True)
class SchemaDefinition:
    """A list of one, because that is what the deployed Python client reads."""

    count: U32
    """Always 1."""
    name: Str
    type_name: Annotated[Str8, Label("type")]
    version: U32
    definition: Annotated[bytes | None, Blob(), Tail(always_sent=True)] = None
    compatibility: Annotated[Compatibility, Tail(always_sent=True)] = None
    created_ms: Annotated[int | None, Number("i64", "q"), Tail(always_sent=True)] = None
    registry_id: Annotated[int | None, Number("u32", "I"), Tail(always_sent=True)] = None
    """The definition's number among all schemas, as Confluent framing has it."""
    last_version: Annotated[int | None, Number("u32", "I"), Tail(always_sent=True)] = None
    """The highest number that any version of the name was given, deleted ones included."""


class GetSchema(Operation[SchemaDefinition], opcode=0x11):
    """One version of a schema, in a list of one: that is what the deployed Python client reads."""

    name: Str
    version: U32
    """0 for the latest."""


@dataclass(slots=True)
class SchemaHead:
    id: Str
    """Name and version: orders-v3."""
    type_name: Annotated[Str8, Label("type")]
    version: U32


@dataclass(slots=True)
class SchemaDetails:
    compatibility: Compatibility
    created_ms: I64


class ListSchemas(
    Operation[
        Annotated[
            Iterable[tuple[SchemaHead, SchemaDetails | None]], Columns(SchemaHead, SchemaDetails, REPLY_ITEMS_MAX)
        ]
    ],
    opcode=0x12,
    smaller="name the schema whose versions to list",
):
    """Every version of one schema or of all; an id is the name and the version: orders-v3."""

    name: Annotated[Str, Tail(always_sent=True)] = ""
    """Empty for all."""


@dataclass(slots=True)
class Validation:
    valid: Bool
    errors: Names


class ValidateSchema(Operation[Validation], opcode=0x13):
    """Check a value against a schema without storing it."""

    schema: Annotated[Str, Label("name")]
    """A name, or a reference like name:version."""
    value: Annotated[Bytes, Label("message")]


class SchemaReading(NamedTuple):
    """One way to read the payload of PRODUCE_WITH_SCHEMA."""

    schema: str
    value: bytes
    key: bytes | None = None
    partition: int = PARTITION_AUTO


class ProduceWithSchema(Operation[StoredRecord], opcode=0x14, repeatable=False):
    """Store one record that follows a schema."""

    topic: Str
    readings: Annotated[
        list[SchemaReading],
        Opaque("str schema, blob value [, blob key, i32 partition]; or blob value, str schema"),
    ]
    """The orders of fields that fit, almost always one; deployed Python and Java clients send the second. If both fit, the one whose
    schema exists is meant."""

    @classmethod
    def read(cls, reader: ByteReader) -> Self:
        topic = reader.text16("topic")
        readings = [_reading(_schema_first, reader), _reading(_data_first, reader)]
        if readings[0] is None:  # a payload that ends after the data has no key
            readings.append(_reading(_schema_first_with_key, reader))
        possible = [reading for reading in readings if reading is not None and reading.schema]
        if not possible:
            raise ProtocolViolation(
                "invalid binary format: what follows the topic is neither schema and data nor data and schema"
            )
        reader.take(reader.remaining, "data")
        return cls(topic, possible)

    def write(self, pieces: Pieces) -> None:
        [reading] = self.readings
        Text().write(self.topic, pieces)
        Text().write(reading.schema, pieces)
        Blob().write(reading.value, pieces)
        if reading.key or reading.partition != PARTITION_AUTO:
            Blob().write(reading.key or b"", pieces)
            Number("i32", "i").write(reading.partition, pieces)


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


class DeleteSchema(Operation[Done], opcode=0x15, repeatable=False):
    """Delete one version of a schema or all."""

    name: Str
    version: U32
    """0 for all."""


class BindSchema(Operation[Done], opcode=0xC0):
    """Have the records of a topic follow a schema from now on."""

    topic: Str
    schema: Str
    """Empty for none."""
