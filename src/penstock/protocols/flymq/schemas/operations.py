"""What FlyMQ requests about schemas do. The rest is in `operations`.

PRODUCE_WITH_SCHEMA is started like PRODUCE, without waiting for the commit of the one before it: `WRITES` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from penstock.broker.limits import SCHEMA_BYTES_CEILING
from penstock.broker.schemas.reference import LATEST, parse_reference
from penstock.broker.schemas.registry import SchemaVersion
from penstock.broker.spreading import Placement, Scattered
from penstock.clock import Clock
from penstock.errors import PenstockError, SchemaInvalid, SchemaNotFound
from penstock.protocols.flymq.lifetime.operations import OnWritten
from penstock.protocols.flymq.lifetime.replies import encode_stored
from penstock.protocols.flymq.schemas.messages import (
    BindSchema,
    DeleteSchema,
    GetSchema,
    ListSchemas,
    ProduceWithSchema,
    RegisterSchema,
    SchemaInfo,
    SchemaReading,
    ValidateSchema,
)
from penstock.protocols.flymq.schemas.replies import (
    encode_registered,
    encode_schema,
    encode_schema_done,
    encode_schemas,
    encode_validated,
)
from penstock.protocols.flymq.wire import Opcode

if TYPE_CHECKING:
    from penstock.protocols.flymq.access.operations import Caller
    from penstock.protocols.flymq.operations import Answer


async def _register_schema(caller: Caller, opcode: int, body: RegisterSchema) -> bytes:
    if len(body.definition) > SCHEMA_BYTES_CEILING:
        raise SchemaInvalid(
            f"the definition has {len(body.definition)} bytes: at most {SCHEMA_BYTES_CEILING} are allowed"
        )
    try:
        definition = body.definition.decode()
    except UnicodeDecodeError as error:
        raise SchemaInvalid(f"the definition is not valid UTF-8 at byte {error.start}") from None
    version = await caller.broker.schemas.register(
        caller.principal, body.name, body.type_name, definition, body.compatibility
    )
    return encode_registered(version.name, body.type_name, version.version, version.compatibility)


def _get_schema(caller: Caller, opcode: int, body: GetSchema) -> bytes:
    try:
        version = caller.broker.schemas.get(caller.principal, body.name, body.version)
    except SchemaNotFound:
        if body.version != LATEST:
            raise
        # The words that deployed brokers have for it here.
        raise SchemaNotFound(f"no schema found for topic: {body.name}") from None
    return encode_schema(_info(version, definition=version.definition))


def _list_schemas(caller: Caller, opcode: int, body: ListSchemas) -> bytes:
    return encode_schemas(map(_info, caller.broker.schemas.versions(caller.principal, body.name or None)))


async def _validate_schema(caller: Caller, opcode: int, body: ValidateSchema) -> bytes:
    name, version, message = parse_reference(body.schema)
    return encode_validated(await caller.broker.schemas.validate(caller.principal, name, body.value, version, message))


async def _delete_schema(caller: Caller, opcode: int, body: DeleteSchema) -> bytes:
    await caller.broker.schemas.delete(caller.principal, body.name, body.version)
    return encode_schema_done(opcode)


async def _bind_schema(caller: Caller, opcode: int, body: BindSchema) -> bytes:
    await caller.broker.schemas.bind(caller.principal, body.topic, body.schema or None)
    return encode_schema_done(opcode)


def _info(version: SchemaVersion, definition: str | None = None) -> SchemaInfo:
    return SchemaInfo(
        version.name, version.type, version.version, version.compatibility, version.created_ms, definition
    )


METHODS: Mapping[type, Callable[[Caller, int, Any], Answer]] = {
    RegisterSchema: _register_schema,
    GetSchema: _get_schema,
    ListSchemas: _list_schemas,
    ValidateSchema: _validate_schema,
    DeleteSchema: _delete_schema,
    BindSchema: _bind_schema,
}

# --- the write ---


def _produce_with_schema(caller: Caller, clock: Clock, body: ProduceWithSchema, written: OnWritten) -> None:
    reading = _meant(caller, body)

    def done(placed: list[Placement] | Scattered) -> None:
        if isinstance(placed, Scattered):
            partition, offset, timestamp_ms = (int(column[0]) for column in placed)
        else:
            [(partition, _, result)] = placed
            if isinstance(result, PenstockError):
                written(result)
                return
            offset, timestamp_ms = result
        opcode = Opcode.PRODUCE_WITH_SCHEMA
        written(encode_stored(opcode, body.topic, partition, offset, timestamp_ms, reading.key, reading.value))

    caller.broker.produce(
        caller.principal,
        body.topic,
        reading.partition,
        [reading.value],
        None if reading.key is None else [reading.key],
        schema=reading.schema,
        done=done,
    )


def _meant(caller: Caller, body: ProduceWithSchema) -> SchemaReading:
    for reading in body.readings[1:] and body.readings:
        if caller.broker.schemas.exists(reading.schema):
            return reading
    return body.readings[0]


WRITES: Mapping[type, Callable[[Caller, Clock, Any, OnWritten], None]] = {ProduceWithSchema: _produce_with_schema}
