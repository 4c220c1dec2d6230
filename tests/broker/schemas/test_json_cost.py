"""The cost of checking: found without checking anything, and never below what checking can really take."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.schemas.definition import COST_UNBOUNDED
from penstock.broker.schemas.json_cost import evaluations_per_value

STRING = {"type": "string"}


def laugh(depth: int, keyword: str = "anyOf") -> dict[str, Any]:
    levels = {f"l{n}": {keyword: [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(depth)}
    return {"$ref": "#/$defs/l0", "$defs": {**levels, f"l{depth}": STRING}}


@pytest.mark.parametrize(
    ("schema", "cost"),
    [
        (True, 1),
        ({}, 1),
        ({"type": "object", "properties": dict.fromkeys("abcdefgh", STRING)}, 1),
        ({"allOf": [STRING, STRING]}, 3),
        ({"properties": {"a": {"anyOf": [STRING, STRING, STRING]}, "b": STRING}}, 4),
        ({"properties": {"a": STRING}, "patternProperties": {"a": STRING}, "additionalProperties": STRING}, 3),
        ({"$ref": "#/$defs/s", "$defs": {"s": STRING, "unused": laugh(30)}}, 2),
        ({"items": {"$ref": "#"}}, 2),
        ({"allOf": [{"items": {"$ref": "#"}}]}, 3),
        ({"enum": list(range(800))}, 101),
        ({"prefixItems": [STRING], "items": STRING, "contains": STRING}, 3),
        ({"items": [STRING, STRING], "additionalItems": STRING}, 2),
        ({"if": STRING, "then": STRING, "else": STRING, "not": STRING}, 5),
        ({"dependencies": {"a": ["b"], "c": STRING}, "dependentSchemas": {"d": STRING}}, 3),
        ({"propertyNames": {"maxLength": 3}}, 1),
    ],
)
def test_the_cost_is_how_often_a_value_is_checked(schema: Any, cost: int) -> None:
    assert evaluations_per_value(schema) == cost


@pytest.mark.parametrize(
    "schema",
    [
        laugh(30),
        laugh(30, "allOf"),
        {"$ref": "#"},
        {"anyOf": [{"items": {"$ref": "#"}}, {"items": {"$ref": "#"}, "minItems": 1}]},
        {"$dynamicRef": "#x", "$defs": {"x": {"$dynamicAnchor": "x"}}},
        {"unevaluatedProperties": False},
        {"properties": {"a": {"$id": "https://example.com/a"}}},
        {"$ref": "#name", "$defs": {"a": {"$anchor": "name"}}},
    ],
)
def test_where_work_can_double_or_references_cannot_be_followed_there_is_no_bound(schema: Any) -> None:
    assert evaluations_per_value(schema) == COST_UNBOUNDED


def test_patterns_count_by_their_length_and_repetition() -> None:
    assert evaluations_per_value({"pattern": "^a"}) == 1
    assert evaluations_per_value({"pattern": "^a{5}"}) == 9
    assert evaluations_per_value({"pattern": "x" * 160}) == 11
    assert evaluations_per_value({"patternProperties": {"x" * 160: True}}) == 11


def test_a_large_schema_is_walked_in_time_or_not_at_all() -> None:
    wide = {"properties": {f"p{n}": {"properties": {"next": {"$ref": "#"}}} for n in range(20_000)}}
    assert evaluations_per_value(wide) == COST_UNBOUNDED
    chain = {"$ref": "#/$defs/l0", "$defs": {f"l{n}": {"$ref": f"#/$defs/l{n + 1}"} for n in range(1500)}}
    chain["$defs"]["l1500"] = STRING  # type: ignore[index]
    assert evaluations_per_value(chain) == 1502
