"""What FlyMQ says about schemas: requests, and what their replies hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from penstock.protocols.flymq.wire import PARTITION_AUTO

# --- requests ---


@dataclass(slots=True)
class RegisterSchema:
    name: str
    type_name: str
    definition: bytes
    compatibility: str | None
    """Penstock's own tail."""


@dataclass(slots=True)
class GetSchema:
    name: str
    version: int
    """0 for the latest."""


@dataclass(slots=True)
class ListSchemas:
    name: str
    """Empty for all."""


@dataclass(slots=True)
class ValidateSchema:
    schema: str
    """A name, or a reference as in name:version."""
    value: bytes


class SchemaReading(NamedTuple):
    """One way to read the payload of PRODUCE_WITH_SCHEMA."""

    schema: str
    value: bytes
    key: bytes | None = None
    """This and the following are Penstock's own tail."""
    partition: int = PARTITION_AUTO


@dataclass(slots=True)
class ProduceWithSchema:
    topic: str
    readings: list[SchemaReading]
    """The field orders that fit, almost always one. Where two fit, the one whose schema exists is meant."""


@dataclass(slots=True)
class DeleteSchema:
    name: str
    version: int
    """0 for all."""


@dataclass(slots=True)
class BindSchema:
    """Penstock's own."""

    topic: str
    schema: str
    """Empty for none."""


SchemaBody = RegisterSchema | GetSchema | ListSchemas | ValidateSchema | ProduceWithSchema | DeleteSchema | BindSchema

# --- in replies ---


class SchemaInfo(msgspec.Struct, frozen=True):
    """One version of a schema. What a broker does not tell is None."""

    name: str
    type: str
    version: int
    compatibility: str | None = None
    created_ms: int | None = None
    definition: str | None = None
    """Told where one version is asked for."""

    @property
    def id(self) -> str:
        return f"{self.name}-v{self.version}"
