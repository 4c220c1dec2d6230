"""Schemas: list, versions, register, check a draft, try a record, delete."""

from __future__ import annotations

from http import HTTPStatus
from itertools import groupby
from operator import attrgetter
from typing import Annotated

import msgspec

from penstock.admin.api.records import given_bytes
from penstock.admin.api.table import Call, Reply, Request, endpoint
from penstock.broker.schemas.operations import Schemas
from penstock.broker.schemas.reference import LATEST, VERSION_MAX, Compatibility, SchemaType, parse_version
from penstock.broker.schemas.registry import SchemaVersion
from penstock.errors import (
    IncompatibleSchema,
    InvalidRequest,
    LimitExceeded,
    SchemaInvalid,
    SchemaNotFound,
)

Version = Annotated[int, msgspec.Meta(ge=LATEST, le=VERSION_MAX)]


class SchemaSummary(Reply, frozen=True):
    name: str
    type: SchemaType
    compatibility: Compatibility
    versions: list[int]
    created_ms: int
    """Of the latest version."""


class SchemaDefinition(Reply, frozen=True):
    name: str
    version: int
    type: SchemaType
    compatibility: Compatibility
    definition: str
    created_ms: int


class Draft(Request, frozen=True):
    type: SchemaType
    definition: str
    compatibility: Compatibility | None = None
    """What later versions must keep; as it is if it is left out."""


class Compatible(Reply, frozen=True):
    compatible: bool
    problems: list[str]


class Trial(Request, frozen=True):
    """A value to try: text, or base64."""

    value: str | None = None
    value_base64: str | None = None
    version: Version = LATEST
    """0 for the latest version."""
    message: str = ""
    """For a Protobuf schema; the first if it is left out."""


class Fits(Reply, frozen=True):
    valid: bool
    faults: list[str]


class SchemaVersionQuery(Request, frozen=True):
    version: Version = LATEST
    """0 for all versions."""


@endpoint("GET", "/schemas", asks=Schemas.versions)
async def list_schemas(call: Call) -> list[SchemaSummary]:
    """List the schemas that the caller may know of, by name."""
    summaries = []
    for name, group in groupby(call.broker.schemas.versions(call.principal), key=attrgetter("name")):
        versions = list(group)
        latest = versions[-1]
        numbers = [each.version for each in versions]
        summaries.append(SchemaSummary(name, latest.type, latest.compatibility, numbers, latest.created_ms))
    return summaries


@endpoint("GET", "/schemas/{schema}", asks=Schemas.get, errors=(SchemaNotFound,))
async def get_schema(call: Call) -> list[SchemaDefinition]:
    """Return every version of a schema, the oldest first."""
    name = call.path["schema"]
    call.broker.schemas.get(call.principal, name)
    return [_definition(each) for each in call.broker.schemas.versions(call.principal, name)]


@endpoint("GET", "/schemas/{schema}/versions/{version}", asks=Schemas.get, errors=(InvalidRequest, SchemaNotFound))
async def get_schema_version(call: Call) -> SchemaDefinition:
    """Return one version of a schema; `latest` is the latest."""
    text = call.path["version"]
    version = LATEST if text == "latest" else parse_version(text)
    if version is None:
        raise InvalidRequest(f"version {text[:100]!r} in the path is not a number from 1 on, nor latest")
    return _definition(call.broker.schemas.get(call.principal, call.path["schema"], version))


def _definition(version: SchemaVersion) -> SchemaDefinition:
    return SchemaDefinition(
        version.name, version.version, version.type, version.compatibility, version.definition, version.created_ms
    )


@endpoint(
    "POST",
    "/schemas/{schema}",
    asks=Schemas.register,
    status=HTTPStatus.CREATED,
    errors=(InvalidRequest, SchemaInvalid, IncompatibleSchema, LimitExceeded),
)
async def register_schema(call: Call, body: Draft) -> SchemaDefinition:
    """Register the next version of a schema, or return the version that has this definition already."""
    return _definition(
        await call.broker.schemas.register(
            call.principal, call.path["schema"], body.type, body.definition, body.compatibility
        )
    )


@endpoint("POST", "/schemas/{schema}/check", asks=Schemas.check, errors=(InvalidRequest, SchemaInvalid))
async def check_schema(call: Call, body: Draft) -> Compatible:
    """Tell whether a definition could be the next version of a schema, and if not, why."""
    problems = await call.broker.schemas.check(
        call.principal, call.path["schema"], body.type, body.definition, body.compatibility
    )
    return Compatible(not problems, problems)


@endpoint("POST", "/schemas/{schema}/validate", asks=Schemas.validate, errors=(InvalidRequest, SchemaNotFound))
async def validate_value(call: Call, body: Trial) -> Fits:
    """Tell whether a value follows a schema, and if not, why."""
    if (body.value is None) == (body.value_base64 is None):
        raise InvalidRequest("give the value as text or as value_base64")
    value = given_bytes(body.value, body.value_base64, "value")
    assert value is not None
    faults = await call.broker.schemas.validate(call.principal, call.path["schema"], value, body.version, body.message)
    return Fits(not faults, faults)


@endpoint("DELETE", "/schemas/{schema}", asks=Schemas.delete, errors=(InvalidRequest, SchemaNotFound))
async def delete_schema(call: Call, query: SchemaVersionQuery) -> None:
    """Delete a schema, or one version of it."""
    await call.broker.schemas.delete(call.principal, call.path["schema"], query.version)
