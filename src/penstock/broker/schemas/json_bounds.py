"""What a list of JSON Schemas that all hold says about single values: which types, which values, how large, how long.

Each function compares one keyword family of a reader with the facts of a writer and returns what the reader might refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec

TYPES: Final = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")

Facts = Sequence[dict[str, Any]]


def possible_types(facts: Facts) -> frozenset[str]:
    """The types a value may have. "number" stands for numbers that are no integers; "integer" is listed as well."""
    types = TYPES
    for fact in facts:
        named = fact.get("type")
        if named is not None:
            types &= _with_integers([named] if isinstance(named, str) else named)
        values = _listed(fact)
        if values is not None:
            types &= frozenset(map(_type_of, values))
    return types


def type_problem(reader: dict[str, Any], facts: Facts) -> str | None:
    named = reader.get("type")
    if named is None:
        return None
    accepted = [named] if isinstance(named, str) else named
    refused = possible_types(facts) - _with_integers(accepted)
    if not refused:
        return None
    return f"the type is narrowed to {' or '.join(accepted)}: {' and '.join(sorted(refused))} is no longer accepted"


def value_problem(reader: dict[str, Any], facts: Facts) -> str | None:
    """`enum` and `const`."""
    accepted = _listed(reader)
    if accepted is None:
        return None
    known = set(map(_encoded, accepted))
    lists = [values for fact in facts if (values := _listed(fact)) is not None]
    if not lists:
        return "only listed values are accepted where any was before"
    refused = [value for value in min(lists, key=len) if _encoded(value) not in known]
    return f"listed values are no longer accepted: {', '.join(_shown(value) for value in refused)}" if refused else None


def bound_problems(reader: dict[str, Any], facts: Facts) -> Iterator[str]:
    """Ranges of numbers, lengths and counts; patterns, divisors and uniqueness."""
    types = possible_types(facts)
    if not types.isdisjoint({"integer", "number"}):
        yield from _range_problems(reader, facts)
        divisor = reader.get("multipleOf")
        multiples = [fact["multipleOf"] for fact in facts if "multipleOf" in fact]
        multiples += [] if "number" in types else [1]
        if divisor is not None and not any(_divides(divisor, multiple) for multiple in multiples):
            yield f"only multiples of {_shown(divisor)} are accepted"
    for kind, lowest, highest in (
        ("string", "minLength", "maxLength"),
        ("array", "minItems", "maxItems"),
        ("object", "minProperties", "maxProperties"),
    ):
        if kind in types:
            yield from _count_problems(reader, facts, lowest, highest)
    if "string" in types:
        pattern = reader.get("pattern")
        if pattern is not None and all(fact.get("pattern") != pattern for fact in facts):
            yield f"pattern {_shown(pattern)} is not one that the other version has"
    if "array" in types and reader.get("uniqueItems") and not any(fact.get("uniqueItems") for fact in facts):
        yield "items must be unique"


def _range_problems(reader: dict[str, Any], facts: Facts) -> Iterator[str]:
    for inclusive, exclusive, tighter in (
        ("minimum", "exclusiveMinimum", max),
        ("maximum", "exclusiveMaximum", min),
    ):
        wanted = _limit(reader, inclusive, exclusive, tighter)
        if wanted is None:
            continue
        limits = [limit for fact in facts if (limit := _limit(fact, inclusive, exclusive, tighter)) is not None]
        if not limits or tighter(wanted, tighter(limits)) != tighter(limits):
            yield f"{inclusive} is tightened to {_shown(wanted[0])}"


_Limit = tuple[Decimal, int]


def _limit(schema: dict[str, Any], inclusive: str, exclusive: str, tighter: Callable[..., _Limit]) -> _Limit | None:
    """The bound as a number and a step: an exclusive bound lies just inside the inclusive one of the same number."""
    found = []
    inside = 1 if tighter is max else -1
    if _is_number(schema.get(inclusive)):
        # Draft 4 has a flag here, the later drafts a number of its own.
        found.append((Decimal(str(schema[inclusive])), inside if schema.get(exclusive) is True else 0))
    if _is_number(schema.get(exclusive)):
        found.append((Decimal(str(schema[exclusive])), inside))
    return tighter(found) if found else None


def _count_problems(reader: dict[str, Any], facts: Facts, lowest: str, highest: str) -> Iterator[str]:
    if reader.get(lowest, 0) > max((fact.get(lowest, 0) for fact in facts), default=0):
        yield f"{lowest} is raised to {reader[lowest]}"
    if highest in reader:
        bounds = [fact[highest] for fact in facts if highest in fact]
        if not bounds or min(bounds) > reader[highest]:
            yield f"{highest} is lowered to {reader[highest]}"


def _divides(divisor: Any, number: Any) -> bool:
    try:
        return Decimal(str(number)) % Decimal(str(divisor)) == 0
    except InvalidOperation:
        return False


def _listed(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _with_integers(types: Sequence[str]) -> frozenset[str]:
    return frozenset(types) | {"integer"} if "number" in types else frozenset(types)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return "integer"
    kinds: dict[type, str] = {float: "number", str: "string", list: "array", dict: "object"}
    return kinds[type(value)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _encoded(value: Any) -> bytes:
    return _ENCODER.encode(int(value) if isinstance(value, float) and value.is_integer() else value)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else _ENCODER.encode(value).decode()
