"""Handlers of schemas, and of records that are produced with one."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.broker.limits import SCHEMA_BYTES_CEILING
from penstock.broker.schemas.reference import LATEST, parse_reference
from penstock.errors import SchemaInvalid, SchemaNotFound
from penstock.protocols.flymq.operations import schemas as op
from penstock.protocols.flymq.operations.records import StoredRecord
from penstock.protocols.flymq.operations.topics import Done
from penstock.protocols.flymq.server.dispatch import Caller, Written, handles, writes
from penstock.protocols.flymq.server.records import stored


@handles(op.RegisterSchema)
async def register_schema(caller: Caller, request: op.RegisterSchema) -> op.RegisteredSchema:
    if len(request.definition) > SCHEMA_BYTES_CEILING:
        raise SchemaInvalid(
            f"the definition has {len(request.definition)} bytes: at most {SCHEMA_BYTES_CEILING} are allowed"
        )
    try:
        definition = request.definition.decode()
    except UnicodeDecodeError as error:
        raise SchemaInvalid(f"the definition is not valid UTF-8 at byte {error.start}") from None
    version = await caller.broker.schemas.register(
        caller.principal, request.name, request.type_name, definition, request.compatibility
    )
    return op.RegisteredSchema(version.name, request.type_name, version.version, version.compatibility)


@handles(op.GetSchema, large_read=True, on_every_node=True)
def get_schema(caller: Caller, request: op.GetSchema) -> op.SchemaDefinition:
    try:
        found = caller.broker.schemas.get(caller.principal, request.name, request.version)
    except SchemaNotFound:
        if request.version != LATEST:
            raise
        # The words that deployed brokers have for it here.
        raise SchemaNotFound(f"no schema found for topic: {request.name}") from None
    definition = found.definition.encode()
    return op.SchemaDefinition(
        1,
        found.name,
        found.type,
        found.version,
        definition,
        found.compatibility,
        found.created_ms,
        found.registry_id,
        found.last_version,
    )


@handles(op.ListSchemas, large_read=True, on_every_node=True)
def list_schemas(caller: Caller, request: op.ListSchemas) -> Iterable[tuple[op.SchemaHead, op.SchemaDetails | None]]:
    return (
        (
            op.SchemaHead(f"{each.name}-v{each.version}", each.type, each.version),
            op.SchemaDetails(each.compatibility, each.created_ms),
        )
        for each in caller.broker.schemas.versions(caller.principal, request.name or None)
    )


@handles(op.ValidateSchema, on_every_node=True)
async def validate_schema(caller: Caller, request: op.ValidateSchema) -> op.Validation:
    name, version, message = parse_reference(request.schema)
    errors = await caller.broker.schemas.validate(caller.principal, name, request.value, version, message)
    return op.Validation(not errors, errors)


@handles(op.DeleteSchema)
async def delete_schema(caller: Caller, request: op.DeleteSchema) -> Done:
    await caller.broker.schemas.delete(caller.principal, request.name, request.version)
    return Done(True, "OK")


@handles(op.BindSchema)
async def bind_schema(caller: Caller, request: op.BindSchema) -> Done:
    await caller.broker.schemas.bind(caller.principal, request.topic, request.schema or None)
    return Done(True, "OK")


@writes(op.ProduceWithSchema, on_every_node=True)
def produce_with_schema(caller: Caller, request: op.ProduceWithSchema, written: Written) -> None:
    reading = _meant(caller, request)
    caller.broker.records.produce(
        caller.principal,
        request.topic,
        reading.partition,
        [reading.value],
        None if reading.key is None else [reading.key],
        schema=reading.schema,
        done=stored(StoredRecord, request.topic, reading.key, reading.value, written),
    )


def _meant(caller: Caller, request: op.ProduceWithSchema) -> op.SchemaReading:
    for reading in request.readings[1:] and request.readings:
        if caller.broker.schemas.exists(reading.schema):
            return reading
    return request.readings[0]
