"""JSON Schema as columns.

A schema says what is allowed, not what there is, so it becomes a type only where it leaves one: `type` with one name besides null, an
`enum` or `const` whose values agree, an `anyOf` or `oneOf` of something and null, an `allOf` of objects. Everything else is kept as
JSON text, whole. A number becomes a double, or a decimal where the schema says so (`x-decimal`). Members that a schema does not name are
in no column; the bronze table has them.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

from penstock.broker.schemas.json_pointer import resolve_local
from penstock.broker.schemas.json_schema import decode_definition
from penstock.errors import SchemaInvalid
from penstock.spark.pipelines.shapes import (
    ANYTHING,
    DECIMAL_DIGITS_MAX,
    DEPTH_MAX,
    TIMESTAMP,
    Shape,
    iso_form,
    json_text,
    list_of,
    map_of,
    struct_of,
    to_date,
    to_decimal,
    to_float,
    to_timestamp,
)

SUBSCHEMAS_MAX: Final = 5_000
"""Looked at in one definition, each as often as references lead to it. What is beyond is kept as JSON text."""

DECIMAL: Final = "x-decimal"
"""The annotation that makes a number, or a text of one, a decimal column: {"precision": 12, "scale": 2}."""
_PLAIN: Final = msgspec.json.Decoder()
_EXACT: Final = msgspec.json.Decoder(float_hook=Decimal)

_SCALARS: Final = {
    "integer": Shape(pa.int64()),
    "number": Shape(pa.float64(), to_float),
    "boolean": Shape(pa.bool_()),
    "string": Shape(pa.string()),
}
_TEXT_FORMATS: Final = {
    "date-time": Shape(TIMESTAMP, to_timestamp, iso_form),
    "date": Shape(pa.date32(), to_date, iso_form),
}


def json_shape(text: str) -> Shape:
    """What the documents of a JSON Schema become."""
    root = decode_definition(text)
    return _Walk(root).shape(root, ())


def json_reader(text: str) -> Callable[[bytes], Any]:
    """Return what reads documents for the columns of a JSON Schema: numbers keep their digits if one of them is a decimal."""
    root = decode_definition(text)
    walk = _Walk(root)
    walk.shape(root, ())
    return _EXACT.decode if walk.has_decimals else _PLAIN.decode


class _Walk:
    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = SUBSCHEMAS_MAX
        self.has_decimals = False

    def shape(self, schema: Any, inside: tuple[str, ...]) -> Shape:
        """`inside` names the references that lead here: one that leads to itself ends there."""
        self._left -= 1
        schema, inside = self._followed(schema, inside)
        if not isinstance(schema, dict) or len(inside) > DEPTH_MAX or self._left < 0:
            return ANYTHING
        if "allOf" in schema:
            merged = self._merged(schema, inside)
            if merged is None:
                return ANYTHING
            schema = merged
        for choice in ("anyOf", "oneOf"):
            if choice in schema:
                return self._chosen(schema, choice, inside)
        match _kind(schema):
            case "object":
                return self._object(schema, inside)
            case "array":
                items = schema.get("items")
                if not isinstance(items, dict) or "prefixItems" in schema:
                    return ANYTHING
                return list_of(self.shape(items, (*inside, "")))
            case "string" | "number" | "integer" if DECIMAL in schema:
                self.has_decimals = True
                return _decimal(schema[DECIMAL], as_text=_kind(schema) == "string")
            case "string":
                return _TEXT_FORMATS.get(str(schema.get("format")), _SCALARS["string"])
            case kind:
                return _SCALARS.get(kind, ANYTHING)

    def _object(self, schema: dict[str, Any], inside: tuple[str, ...]) -> Shape:
        inside = (*inside, "")
        properties = schema.get("properties")
        if isinstance(properties, dict) and properties:
            return struct_of({name: self.shape(each, inside) for name, each in properties.items()})
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and others and "patternProperties" not in schema:
            return map_of(pa.string(), self.shape(others, inside))
        return ANYTHING

    def _chosen(self, schema: dict[str, Any], choice: str, inside: tuple[str, ...]) -> Shape:
        branches = [(each, self._followed(each, inside)[0]) for each in schema[choice]]
        some = [each for each, led_to in branches if not (isinstance(led_to, dict) and _kind(led_to) == "null")]
        if len(some) != 1 or not isinstance(some[0], dict):
            return ANYTHING
        return self.shape({**{name: each for name, each in schema.items() if name != choice}, **some[0]}, inside)

    def _merged(self, schema: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any] | None:
        """An `allOf` of objects as one object; None if it is anything else."""
        merged = {name: each for name, each in schema.items() if name != "allOf"}
        properties: dict[str, Any] = dict(merged.get("properties", {}))
        for part in schema["allOf"]:
            part, _ = self._followed(part, inside)
            if not isinstance(part, dict) or "allOf" in part or "anyOf" in part or "oneOf" in part:
                return None
            for name, each in part.get("properties", {}).items():
                if properties.setdefault(name, each) != each:
                    return None
            merged = {**part, **merged}
        return {**merged, "properties": properties} if properties else merged

    def _followed(self, schema: Any, inside: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Where references lead, with their sibling keywords; None for one that leads in a circle."""
        while isinstance(schema, dict) and "$ref" in schema:
            reference = str(schema["$ref"])
            target = resolve_local(self._root, reference)
            if reference in inside or not isinstance(target, dict):
                return None, inside
            inside = (*inside, reference)
            schema = {**target, **{name: each for name, each in schema.items() if name != "$ref"}}
        return schema, inside


def _decimal(annotation: Any, *, as_text: bool) -> Shape:
    given = annotation if isinstance(annotation, dict) else {}
    precision, scale = given.get("precision"), given.get("scale", 0)
    if (
        type(precision) is not int
        or type(scale) is not int
        or not 0 <= scale <= precision <= DECIMAL_DIGITS_MAX
        or not precision
    ):
        raise SchemaInvalid(
            f'{DECIMAL} is {json_text(annotation)}: write {{"precision": 12, "scale": 2}}, with at most {DECIMAL_DIGITS_MAX} digits'
        )
    return Shape(pa.decimal128(precision, scale), to_decimal, str if as_text else None)


def _kind(schema: dict[str, Any]) -> str:
    """The one type besides null that values have, empty if there are several or any."""
    given = schema.get("type")
    kinds: set[str] = set()
    if isinstance(given, str):
        kinds = {given}
    elif isinstance(given, list):
        kinds = {each for each in given if isinstance(each, str)}
    elif "enum" in schema and isinstance(schema["enum"], list):
        kinds = {_kind_of_value(each) for each in schema["enum"]}
    elif "const" in schema:
        kinds = {_kind_of_value(schema["const"])}
    elif "properties" in schema:
        kinds = {"object"}
    if kinds == {"null"}:
        return "null"
    kinds.discard("null")
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else ""


def _kind_of_value(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
