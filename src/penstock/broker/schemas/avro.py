"""Avro definitions: parsed by fastavro, then held to what the specification asks beyond that.

fastavro resolves names and checks defaults and logical types. It lets pass what other implementations refuse (fields of one name,
unions inside unions, a fixed of negative size), so those are checked here. Logical types do not change how a value is written.
"""

from __future__ import annotations

import re
from typing import Any, Final, Self

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

from penstock.broker.schemas.avro_compatibility import problems_reading
from penstock.broker.schemas.avro_wire import NAMED, AvroChecker, Walks
from penstock.broker.schemas.definition import COST_UNBOUNDED, Checker, shortened
from penstock.broker.schemas.json_schema import JsonText, decode_definition
from penstock.errors import InvalidRequest, SchemaInvalid

DEFINITION_DEPTH_MAX: Final = 64
"""Types inside types, as written down; how deep a recursive type goes is a matter of the record."""
COST_PER_LEVEL: Final = 8
"""A record of one-byte fields takes some 200 ns a byte, because the walk is Python; a record in a record twice that."""
PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class AvroDefinition(JsonText):
    kind = "avro"

    def __init__(self, text: str, cost: int = COST_UNBOUNDED) -> None:
        super().__init__(text, cost)
        source = decode_definition(text)
        _check_depth(source)
        self._named: dict[str, Any] = {}
        try:
            self._schema = fastavro.parse_schema(source, self._named, _write_hint=False)
        except Exception as error:  # noqa: BLE001  its own two errors, and whatever it trips over in a definition of odd types
            said = {"UnknownType": f"unknown type {error}", "KeyError": f"{error} is missing"}
            reason = said.get(type(error).__name__, str(error))
            raise SchemaInvalid(shortened(f"not an Avro schema: {reason}")) from None

    @classmethod
    def parse(cls, text: str) -> Self:
        try:
            definition = cls(text)
            _check(definition._schema)
            _check_finite(definition._named)
            definition.cost = COST_PER_LEVEL * _levels_without_bytes(definition._named)
            definition.checker("")
        except RecursionError:
            raise SchemaInvalid("types refer to types over more levels than can be followed") from None
        return definition

    @property
    def schema(self) -> Any:
        """The definition as fastavro has parsed it, which it also reads records with."""
        return self._schema

    @property
    def crc64(self) -> bytes:
        return bytes.fromhex(fingerprint(to_parsing_canonical_form(self._schema), "CRC-64-AVRO"))

    def checker(self, message: str) -> Checker:
        if message:
            raise InvalidRequest(f"an Avro schema has no messages to choose from: leave out {message!r}")
        return AvroChecker(Walks(self._named).walk(self._schema))

    def problems_reading(self, writer: Self) -> list[str]:
        return problems_reading(self._schema, self._named, writer._schema, writer._named)


def _check_depth(source: Any) -> None:
    level = [source]
    for _ in range(DEFINITION_DEPTH_MAX):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return
    raise SchemaInvalid(f"the definition is nested deeper than {DEFINITION_DEPTH_MAX} levels")


def _check(schema: Any) -> None:
    """What fastavro does not look at. Names are full ones here, and named types are known."""
    if isinstance(schema, list):
        kinds = [_kind(branch) for branch in schema]
        if "union" in kinds:
            raise SchemaInvalid("a union directly inside a union: put all branches into one")
        if len(set(kinds)) < len(kinds):
            raise SchemaInvalid("a union has two branches of one type: keep one of them")
        for branch in schema:
            _check(branch)
        return
    if isinstance(schema, str):
        return
    kind = schema["type"]
    if kind in NAMED:
        _check_name(schema["name"])
    if kind in ("record", "error"):
        names: set[str] = set()
        for field in schema["fields"]:
            name = field["name"]
            if not (isinstance(name, str) and _NAME.fullmatch(name)):
                raise SchemaInvalid(f"field name {name!r} is not a letter or _ followed by letters, digits and _")
            if name in names:
                raise SchemaInvalid(f"record {schema['name']} has two fields named {name}")
            names.add(name)
            _check(field["type"])
    elif kind == "fixed":
        size = schema["size"]
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise SchemaInvalid(f"fixed {schema['name']} has size {size!r}: use a number of bytes")
    elif kind == "array":
        _check(schema["items"])
    elif kind == "map":
        _check(schema["values"])


def _check_name(name: str) -> None:
    if not all(_NAME.fullmatch(part) for part in name.split(".")) or name in PRIMITIVES:
        raise SchemaInvalid(f"type name {name!r} is not a name, or the name of a primitive type")


def _kind(schema: Any) -> str:
    """What tells branches of a union apart: the name of a named type, the type of any other."""
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, str):
        return schema
    return str(schema["name"] if schema["type"] in NAMED else schema["type"])


def _check_finite(named: dict[str, Any]) -> None:
    """A record that always holds itself can never be written. Each round finds types that end, given those found before."""
    ending: set[str] = set()

    def ends(schema: Any) -> bool:
        if isinstance(schema, list):
            return any(map(ends, schema))
        if isinstance(schema, str):
            return schema in PRIMITIVES or schema in ending
        if schema["type"] in ("record", "error"):
            return schema["name"] in ending or all(ends(field["type"]) for field in schema["fields"])
        return True

    found = -1
    while found < len(ending):
        found = len(ending)
        for name, schema in named.items():  # as defined, so that most need no second round
            if ends(schema):
                ending.add(name)
    endless = sorted(set(named) - ending)
    if endless:
        raise SchemaInvalid(f"{endless[0]} holds itself with no way to end: make the field a union with null")


def _levels_without_bytes(named: dict[str, Any]) -> int:
    """How many records may begin at one byte: those that hold others directly, not through a union, array or map."""
    levels: dict[str, int] = {}

    def below(schema: Any) -> int:
        if isinstance(schema, dict) and schema["type"] in ("record", "error"):
            schema = schema["name"]
        if not isinstance(schema, str) or schema not in named or "fields" not in named[schema]:
            return 0
        if schema not in levels:
            levels[schema] = 1 + max((below(field["type"]) for field in named[schema]["fields"]), default=0)
        return levels[schema]

    return max([1, *map(below, named)])
