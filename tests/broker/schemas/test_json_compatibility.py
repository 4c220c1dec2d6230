"""JSON Schema evolution: what may follow what, the reasons for a refusal, and that nothing is let through that should not be."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.broker.schemas.json_compatibility import problems_reading

PATTERNS = jsonschema_rs.RegexOptions()


def reading(reader: Any, writer: Any) -> list[str]:
    return problems_reading(reader, writer, PATTERNS)


def thing(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


INT, NUMBER, STRING = {"type": "integer"}, {"type": "number"}, {"type": "string"}
TREE = thing({"value": INT, "children": {"type": "array", "items": {"$ref": "#"}}})
TREE_OF_NUMBERS = thing({"value": NUMBER, "children": {"type": "array", "items": {"$ref": "#"}}, "note": STRING})
SHAPES = {"oneOf": [thing({"kind": {"const": kind}}, required=["kind"]) for kind in ("circle", "square")]}
MORE_SHAPES = {"oneOf": [*SHAPES["oneOf"], thing({"kind": {"const": "line"}, "length": NUMBER}, required=["kind"])]}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        (True, False),
        ({}, thing({"a": INT})),
        (thing({"a": INT}), thing({"a": INT})),
        (thing({"a": NUMBER}), thing({"a": INT})),
        (thing({"a": {"type": ["integer", "null"]}}), thing({"a": INT})),
        (thing({"a": INT, "b": STRING}), thing({"a": INT})),
        (thing({"a": INT}), thing({"a": INT}, required=["a"])),
        (thing({"a": INT}), thing({"a": INT, "b": STRING})),
        (thing({"a": INT, "b": STRING}, additionalProperties=False), thing({"a": INT}, additionalProperties=False)),
        (thing({"a": INT}, additionalProperties=STRING), thing({"a": INT, "b": STRING}, additionalProperties=False)),
        (thing({"a": INT}, unevaluatedProperties=False), thing({"a": INT}, unevaluatedProperties=False)),
        (thing({"a": INT, "b": INT}, unevaluatedProperties=False), thing({"a": INT}, unevaluatedProperties=False)),
        (thing({"a": {"enum": ["x", "y", "z"]}, "n": INT}), thing({"a": {"enum": ["x", "y"]}})),
        (thing({"a": {"minimum": 0}, "n": INT}), thing({"a": {"type": "integer", "exclusiveMinimum": 0}})),
        (thing({"a": {"maxLength": 9}, "n": INT}), thing({"a": {"type": "string", "maxLength": 9}})),
        (thing({"a": {"items": NUMBER}, "n": INT}), thing({"a": {"type": "array", "items": INT}})),
        (thing({"a": {"prefixItems": [NUMBER]}, "n": INT}), thing({"a": {"prefixItems": [INT, STRING]}})),
        (thing({"a": {"anyOf": [STRING, INT]}, "n": INT}), thing({"a": INT})),
        (thing({"a": {"anyOf": [NUMBER, STRING]}, "n": INT}), thing({"a": {"anyOf": [STRING, INT]}})),
        (thing({"a": {"oneOf": [STRING, INT]}, "n": INT}), thing({"a": INT})),
        (thing({"a": {"not": STRING}, "n": INT}), thing({"a": INT})),
        (thing({"a": {"$ref": "#/$defs/n"}, "n": INT}, **{"$defs": {"n": NUMBER}}), thing({"a": INT})),
        (thing({"a": NUMBER, "n": INT}), thing({"a": {"allOf": [{"$ref": "#/$defs/n"}, {"minimum": 1}]}}, **{"$defs": {"n": INT}})),
        (TREE_OF_NUMBERS, TREE),
        (MORE_SHAPES, SHAPES),
        (thing({"a": {"multipleOf": 2}, "n": INT}), thing({"a": {"type": "number", "multipleOf": 4}})),
        (thing({"a": {"if": STRING, "then": {"minLength": 1}}, "n": INT}), thing({"a": {"if": STRING, "then": {"minLength": 1}}})),
        (thing({}, patternProperties={"^x": NUMBER}, additionalProperties=True), thing({}, patternProperties={"^x": INT})),
        ({"properties": {"b": STRING}, "required": ["a"]}, {"required": ["a"]}),
    ],
)  # fmt: skip
def test_a_change_that_accepts_what_was_accepted_is_compatible(reader: Any, writer: Any) -> None:
    assert reading(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        (False, True, "nothing is accepted any more"),
        (thing({"a": INT}, required=["a"]), thing({"a": INT}), "new required field 'a' is optional in old schema"),
        (thing({"a": INT, "b": INT}, required=["a", "b"]), thing({"a": INT}, required=["a"]), "new required field 'b' not in old schema"),
        (thing({"a": INT}), thing({"a": NUMBER}), "at /a: the type is narrowed to integer"),
        (thing({"a": STRING}), thing({"a": INT}), "at /a: the type is narrowed to string: integer is no longer accepted"),
        (thing({"a": {"enum": ["x"]}}), thing({"a": {"enum": ["x", "y"]}}), 'at /a: listed values are no longer accepted: "y"'),
        (thing({"a": {"const": "x"}}), thing({"a": STRING}), "at /a: only listed values are accepted"),
        (thing({"a": {"minimum": 1}}), thing({"a": {"minimum": 0}}), "at /a: minimum is tightened to 1"),
        (thing({"a": {"exclusiveMaximum": 9}}), thing({"a": {"maximum": 9}}), "at /a: maximum is tightened to 9"),
        (thing({"a": {"maxLength": 5}}), thing({"a": {"maxLength": 6}}), "at /a: maxLength is lowered to 5"),
        (thing({"a": {"minItems": 2}}), thing({"a": {"type": "array"}}), "at /a: minItems is raised to 2"),
        (thing({"a": {"pattern": "^x"}}), thing({"a": STRING}), "at /a: pattern"),
        (thing({"a": {"multipleOf": 4}}), thing({"a": {"multipleOf": 2}}), "at /a: only multiples of 4"),
        (thing({"a": {"uniqueItems": True}}), thing({"a": {"type": "array"}}), "at /a: items must be unique"),
        (thing({"a": INT}, additionalProperties=False), thing({"a": INT}), "additional properties are no longer accepted"),
        (thing({}, additionalProperties=False), thing({"b": INT}, additionalProperties=False), "at /b: nothing is accepted"),
        (thing({"a": INT}, unevaluatedProperties=False), thing({"a": INT}), "additional properties are no longer accepted"),
        (thing({"b": INT}), thing({}, additionalProperties=STRING), "at /b: the type is narrowed"),
        (thing({}, additionalProperties=INT), thing({}, additionalProperties=NUMBER), "additional properties"),
        (thing({}, patternProperties={"^x": INT}), thing({"xy": STRING}), "at /xy: the type is narrowed to integer"),
        (thing({}, patternProperties={"^x": INT}), thing({}), "at /(^x): the type is narrowed"),
        (thing({"b": STRING}), {"type": "object", "required": ["b"]}, "at /b: the type is narrowed"),
        (thing({"a": {"items": INT}}), thing({"a": {"items": NUMBER}}), "at /a/*: the type is narrowed"),
        (thing({"a": {"items": INT}}), thing({"a": {"prefixItems": [STRING], "items": INT}}), "at /a/0: the type is narrowed"),
        (thing({"a": {"items": False}}), thing({"a": {"items": INT}}), "at /a/*: nothing is accepted"),
        (thing({"a": {"anyOf": [STRING, INT]}}), thing({"a": {"anyOf": [STRING, NUMBER]}}), "at /a: no case of anyOf"),
        (SHAPES, MORE_SHAPES, "no single case of oneOf"),
        ({"oneOf": [STRING, {"maxLength": 5}]}, STRING, "no single case of oneOf"),
        (thing({"a": {"not": INT}}), thing({"a": NUMBER}), "at /a: what must not be"),
        ({"if": STRING, "then": {"minLength": 9}}, {"if": STRING, "then": {"minLength": 1}}, "if is not what"),
        (thing({}, dependentRequired={"a": ["b"]}), thing({}), "dependentRequired is not what"),
        (TREE, TREE_OF_NUMBERS, "at /value: the type is narrowed to integer"),
        ({"$ref": "#/$defs/n", "$defs": {"n": INT}}, {"$ref": "#/$defs/n", "$defs": {"n": NUMBER}}, "the type is narrowed"),
    ],
)  # fmt: skip
def test_a_change_that_refuses_what_was_accepted_is_refused_with_the_reason(
    reader: Any, writer: Any, reason: str
) -> None:
    problems = reading(reader, writer)
    assert any(reason in problem for problem in problems), problems


def test_keywords_beside_a_reference_mean_nothing_before_draft_2019() -> None:
    definitions = {"definitions": {"s": STRING}, "type": "object"}
    old = {"$schema": "http://json-schema.org/draft-07/schema#", **definitions}
    writer = {**old, "properties": {"a": {"$ref": "#/definitions/s", "maxLength": 3}}}
    reader = {**old, "properties": {"a": {"type": "string", "maxLength": 3}, "b": INT}}
    assert reading(reader, writer) != []


def test_a_comparison_of_hostile_definitions_ends() -> None:
    def laugh(depth: int) -> dict[str, Any]:
        levels = {
            f"l{n}": {"anyOf": [thing({"x": {"$ref": f"#/$defs/l{n + 1}"}}, required=[f"k{side}"]) for side in "ab"]}
            for n in range(depth)
        }
        return {"$ref": "#/$defs/l0", "$defs": {**levels, f"l{depth}": INT}}

    wider = json.loads(json.dumps(laugh(25)).replace('"integer"', '"number"'))
    assert isinstance(reading(wider, laugh(25)), list)
    assert reading(laugh(25), wider) != []


NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(
    st.builds(lambda t: {"type": t}, st.sampled_from(["integer", "number", "string", "null", "boolean"])),
    st.builds(lambda values: {"enum": values}, st.lists(st.sampled_from([0, 1, "x", "yy", None]), min_size=1, unique_by=repr)),
    st.builds(lambda low, high: {"type": "integer", "minimum": low, "maximum": high}, st.integers(-2, 1), st.integers(0, 3)),
    st.builds(lambda low: {"type": "number", "exclusiveMinimum": low}, st.integers(-2, 2)),
    st.builds(lambda low, high: {"type": "string", "minLength": low, "maxLength": high}, st.integers(0, 2), st.integers(0, 3)),
    st.builds(lambda divisor: {"multipleOf": divisor}, st.integers(1, 4)),
    st.just({"pattern": "^x"}),
)  # fmt: skip


def objects(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda properties, required, additional, patterns: {
            "type": "object",
            "properties": properties,
            "required": sorted(required),
            **({} if additional is None else {"additionalProperties": additional}),
            **({"patternProperties": patterns} if patterns else {}),
        },
        st.dictionaries(NAMES, children, max_size=3),
        st.sets(NAMES, max_size=2),
        st.none() | st.just(False) | children,
        st.dictionaries(st.sampled_from(["^a", "b$"]), children, max_size=1),
    )


def combined(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(children, min_size=1, max_size=2)
    return st.one_of(
        objects(children),
        st.builds(lambda items, first: {"type": "array", "items": items, "prefixItems": first}, children, lists),
        st.builds(lambda key, branches: {key: branches}, st.sampled_from(["anyOf", "oneOf", "allOf"]), lists),
        st.builds(lambda banned: {"not": banned}, children),
        st.builds(lambda test, then: {"if": test, "then": then}, children, children),
    )


SCHEMAS = st.recursive(SCALARS | st.booleans(), combined, max_leaves=6)
DOCUMENTS = st.recursive(
    st.sampled_from([0, 1, 2, -1, 0.5, "x", "yy", "xyz", "", None, True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def changed(schema: Any, random: Random) -> Any:
    """The schema with something left out or replaced, somewhere."""
    if not isinstance(schema, dict) or not schema or random.random() < 0.2:
        return random.choice([True, INT, NUMBER, STRING, {"type": "object"}, {"enum": [0, "x"]}, {"minimum": 0}])
    keyword = random.choice(sorted(schema))
    value = schema[keyword]
    if random.random() < 0.3:
        return {name: each for name, each in schema.items() if name != keyword}
    if keyword in ("properties", "patternProperties") and value:
        name = random.choice(sorted(value))
        return {**schema, keyword: {**value, name: changed(value[name], random)}}
    if keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        index = random.randrange(len(value))
        return {**schema, keyword: [*value[:index], changed(value[index], random), *value[index + 1 :]]}
    if keyword in ("items", "additionalProperties", "not", "if", "then"):
        return {**schema, keyword: changed(value, random)}
    if isinstance(value, int) and not isinstance(value, bool) and keyword != "multipleOf":
        return {
            **schema,
            keyword: max(0, value + random.choice([-1, 1])) if "Length" in keyword else value + random.choice([-1, 1]),
        }
    return schema


@given(SCHEMAS, st.randoms(use_true_random=False), st.lists(DOCUMENTS, min_size=5, max_size=20))
@settings(max_examples=400)
def test_no_document_of_the_writer_is_refused_by_a_reader_that_is_said_to_be_compatible(
    writer: Any, random: Random, documents: list[Any]
) -> None:
    reader = changed(writer, random)
    written = [document for document in documents if jsonschema_rs.is_valid(writer, document)]
    assume(written and not _names_a_new_property(reader, writer))
    if not reading(reader, writer):
        assert all(jsonschema_rs.is_valid(reader, document) for document in written)


def _names_a_new_property(reader: Any, writer: Any) -> bool:
    """The one thing that is taken on trust: a name of the reader's that the writer does not mention."""
    return not set(_names(reader)) <= set(_names(writer))


def _names(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for each in schema for name in _names(each)]
    if not isinstance(schema, dict):
        return []
    return [*schema.get("properties", {}), *(name for each in schema.values() for name in _names(each))]
