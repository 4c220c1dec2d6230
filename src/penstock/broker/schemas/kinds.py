"""The kinds of schema by name, and the check that a definition passes before it is registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.broker.schemas.avro import AvroDefinition
from penstock.broker.schemas.definition import REASONS_MAX, Definition
from penstock.broker.schemas.json_schema import JsonDefinition
from penstock.broker.schemas.protobuf import ProtobufDefinition
from penstock.broker.schemas.reference import TRANSITIVE

KINDS: Final[Mapping[str, type[Definition]]] = {
    each.kind: each for each in (JsonDefinition, AvroDefinition, ProtobufDefinition)
}


def problems_between(newer: Definition, older: Definition, compatibility: str) -> list[str]:
    """What speaks against `newer` as the version after `older`, which is of the same kind."""
    if compatibility == "none":
        return []
    compatibility = compatibility.removesuffix(TRANSITIVE)
    problems = newer.problems_following(older)
    if compatibility in ("backward", "full"):
        problems += newer.problems_reading(older)
    if compatibility in ("forward", "full"):
        problems += [f"{problem} (for readers of the older version)" for problem in older.problems_reading(newer)]
    return problems[:REASONS_MAX]
