"""Avro as columns. Choices between several types, and records that hold themselves, are kept as JSON text."""

from __future__ import annotations

from datetime import time
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from penstock.spark.pipelines.avro_reading import parsed
from penstock.spark.pipelines.shapes import (
    ANYTHING,
    DECIMAL_DIGITS_MAX,
    DEPTH_MAX,
    TIMESTAMP,
    Shape,
    aware,
    list_of,
    map_of,
    struct_of,
)

_PRIMITIVES: Final = {
    "boolean": Shape(pa.bool_()),
    # Versions may widen int to long and float to double; a column that is wide from the start does not have to change.
    "int": Shape(pa.int64()),
    "long": Shape(pa.int64()),
    "float": Shape(pa.float64()),
    "double": Shape(pa.float64()),
    "bytes": Shape(pa.binary()),
    "string": Shape(pa.string()),
    "enum": Shape(pa.string()),
    "fixed": Shape(pa.binary()),
}
_MOMENT: Final = Shape(TIMESTAMP, aware)
_TIME: Final = Shape(pa.string(), lambda moment: moment.isoformat(), time.fromisoformat)
_LOGICAL: Final = {
    "date": Shape(pa.date32()),
    "timestamp-millis": _MOMENT,
    "timestamp-micros": _MOMENT,
    "local-timestamp-millis": _MOMENT,
    "local-timestamp-micros": _MOMENT,
    "time-millis": _TIME,
    "time-micros": _TIME,
    "uuid": Shape(pa.string(), str),
}


def avro_shape(text: str) -> Shape:
    """What the records of an Avro schema become."""
    schema, named = parsed(text)
    return _shape(schema, named, ())


def _shape(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> Shape:
    if isinstance(schema, list):
        some = [branch for branch in schema if branch != "null"]
        return _shape(some[0], named, inside) if len(some) == 1 else ANYTHING
    if isinstance(schema, str):
        return _PRIMITIVES[schema] if schema in _PRIMITIVES else _shape(named.get(schema, {"type": ""}), named, inside)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _shape(kind, named, inside)
    logical = schema.get("logicalType")
    if logical == "decimal":
        digits, scale = schema.get("precision", 0), schema.get("scale", 0)
        return (
            Shape(pa.decimal128(digits, scale))
            if 0 < digits <= DECIMAL_DIGITS_MAX
            else Shape(pa.string(), str, Decimal)
        )
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    match kind:
        case "record" | "error":
            name = schema["name"]
            if name in inside or len(inside) >= DEPTH_MAX:
                return ANYTHING
            return struct_of(
                {field["name"]: _shape(field["type"], named, (*inside, name)) for field in schema["fields"]}
            )
        case "array":
            return list_of(_shape(schema["items"], named, inside))
        case "map":
            return map_of(pa.string(), _shape(schema["values"], named, inside))
        case _:
            return _PRIMITIVES.get(kind, ANYTHING)
