"""How much work a JSON Schema can make of a document.

Checking takes time in proportion to the document, except that a schema may look at one value many times: `anyOf` tries its branches,
`allOf` takes all of them, and references multiply what they refer to. Twenty definitions of which each tries the next one twice look
at a single number a million times; a recursive schema can double its work with each level of the document.

`evaluations_per_value` returns the highest number of times that any value, at any depth, is evaluated. It walks the schema once
and then follows the counts down level by level: keywords that look at the same value add up on one level, keywords that look at parts
of the value carry their count to the next. Where references cannot be followed by reading alone (`$dynamicRef`, `$id` inside, anchors,
`unevaluated...`, which looks again at what others have seen) there is no answer but COST_UNBOUNDED, which is also the highest one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from penstock.broker.schemas.definition import COST_UNBOUNDED, DOCUMENT_DEPTH_MAX
from penstock.broker.schemas.json_pointer import resolve_local

# Steps of the walk down: subschemas times levels.
STEPS_MAX: Final = 200_000
# A list of this many values to compare with (`enum`, `required`) takes about as long as looking at the value once.
VALUES_PER_EVALUATION: Final = 8
# A pattern of this many characters, likewise: matching takes linear time. With counted repetition a short pattern stands for a long one,
# up to PATTERN_BYTES_MAX, and what was measured then is this many looks.
PATTERN_CHARS_PER_EVALUATION: Final = 16
REPETITION_EVALUATIONS: Final = 8

_SAME_VALUE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_VALUE: Final = ("not", "if", "then", "else")
_SAME_VALUE_MAPS: Final = ("dependentSchemas", "dependencies")
_OPAQUE: Final = frozenset(
    {"$dynamicRef", "$recursiveRef", "$anchor", "$dynamicAnchor", "unevaluatedItems", "unevaluatedProperties"}
)


class _Opaque(Exception):
    pass


class _Subschema:
    __slots__ = ("additional", "contains", "items", "names", "own", "patterns", "prefix", "properties", "same")

    def __init__(self) -> None:
        self.own = 1
        self.same: list[int] = []
        self.properties: list[int] = []
        self.patterns: list[int] = []
        self.additional: list[int] = []
        self.names: list[int] = []
        self.prefix: list[int] = []
        self.items: list[int] = []
        self.contains: list[int] = []

    def parts(self, counts: list[int]) -> int:
        """How often one part of the value is evaluated, given how often each subschema evaluates such a part."""

        def most(indexes: list[int]) -> int:
            return max([counts[index] for index in indexes]) if indexes else 0

        member = most(self.properties) + sum([counts[index] for index in self.patterns]) + most(self.additional)
        name = most(self.names)
        element = most(self.prefix) + most(self.items) + most(self.contains)
        return max(member + name, element)


def evaluations_per_value(schema: dict[str, Any] | bool) -> int:
    """From 1 to COST_UNBOUNDED. The schema must be sound: checked against its meta-schema."""
    if isinstance(schema, bool):
        return 1
    try:
        subschemas = _Walk(schema).subschemas
        order = _same_value_order(subschemas)
    except _Opaque:
        return COST_UNBOUNDED
    most = 0
    counts = [0] * len(subschemas)
    for depth in range(min(DOCUMENT_DEPTH_MAX, STEPS_MAX // len(subschemas)) + 1):
        below, counts = counts, [0] * len(subschemas)
        for index in order:
            subschema = subschemas[index]
            here = subschema.own if depth == 0 else subschema.parts(below)
            counts[index] = here + sum([counts[other] for other in subschema.same])
        most = max(most, counts[0])
        if most >= COST_UNBOUNDED:
            return COST_UNBOUNDED
        if counts == below or not any(counts):
            return most
    return most if len(subschemas) * DOCUMENT_DEPTH_MAX <= STEPS_MAX else COST_UNBOUNDED


class _Walk:
    """Finds every subschema that the root reaches, each once; the root is the first."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._indexes: dict[int, int] = {}
        self._waiting: list[tuple[_Subschema, dict[str, Any]]] = []
        self.subschemas: list[_Subschema] = []
        self._index(root)
        while self._waiting:
            self._read(*self._waiting.pop())

    def _index(self, schema: Any) -> int:
        index = self._indexes.get(id(schema))
        if index is None:
            index = self._indexes[id(schema)] = len(self.subschemas)
            subschema = _Subschema()
            self.subschemas.append(subschema)
            if isinstance(schema, dict):
                self._waiting.append((subschema, schema))
        return index

    def _read(self, subschema: _Subschema, schema: dict[str, Any]) -> None:
        if not _OPAQUE.isdisjoint(schema) or ("$id" in schema and schema is not self._root) or "id" in schema:
            raise _Opaque
        subschema.own = 1 + sum(_weight(keyword, value) for keyword, value in schema.items())
        reference = schema.get("$ref")
        if reference is not None:
            target = resolve_local(self._root, reference)
            if target is None:
                raise _Opaque
            subschema.same.append(self._index(target))
        for keyword in _SAME_VALUE_LISTS:
            subschema.same += map(self._index, schema.get(keyword, ()))
        for keyword in _SAME_VALUE:
            subschema.same += [self._index(schema[keyword])] if keyword in schema else []
        for keyword in _SAME_VALUE_MAPS:
            subschema.same += [self._index(each) for each in schema.get(keyword, {}).values() if _is_schema(each)]
        subschema.properties += map(self._index, schema.get("properties", {}).values())
        subschema.patterns += map(self._index, schema.get("patternProperties", {}).values())
        subschema.prefix += map(self._index, schema.get("prefixItems", ()))
        items = schema.get("items")
        if isinstance(items, list):  # drafts before 2020-12
            subschema.prefix += map(self._index, items)
        elif items is not None:
            subschema.items.append(self._index(items))
        subschema.items += [self._index(schema["additionalItems"])] if "additionalItems" in schema else []
        for keyword, indexes in (
            ("additionalProperties", subschema.additional),
            ("propertyNames", subschema.names),
            ("contains", subschema.contains),
        ):
            indexes += [self._index(schema[keyword])] if keyword in schema else []


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)


def _weight(keyword: str, value: Any) -> int:
    """Looks at the value that a keyword by itself is worth, beyond the first."""
    if keyword in ("enum", "required"):
        return len(value) // VALUES_PER_EVALUATION
    if keyword == "pattern":
        return _pattern_weight(value)
    if keyword == "patternProperties":
        return sum(map(_pattern_weight, value))
    return 0


def _pattern_weight(pattern: str) -> int:
    return len(pattern) // PATTERN_CHARS_PER_EVALUATION + (REPETITION_EVALUATIONS if "{" in pattern else 0)


def _same_value_order(subschemas: list[_Subschema]) -> list[int]:
    """Indexes such that a subschema for the same value comes before those that refer to it. A cycle has no such order."""
    order: list[int] = []
    state = [0] * len(subschemas)  # 0: not seen, 1: being followed, 2: in order
    for start in range(len(subschemas)):
        if state[start]:
            continue
        state[start] = 1
        path: list[tuple[int, Iterator[int]]] = [(start, iter(subschemas[start].same))]
        while path:
            index, others = path[-1]
            other = next(others, None)
            if other is None:
                path.pop()
                state[index] = 2
                order.append(index)
            elif state[other] == 1:
                raise _Opaque
            elif state[other] == 0:
                state[other] = 1
                path.append((other, iter(subschemas[other].same)))
    return order
