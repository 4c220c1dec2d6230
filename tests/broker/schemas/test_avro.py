"""Avro definitions: what is refused beyond what fastavro refuses, and any text at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.avro import COST_PER_LEVEL, AvroDefinition
from penstock.errors import InvalidRequest, SchemaInvalid


def record(*fields: Any, name: str = "r", **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(fields)],
        **more,
    }


def nested(depth: int) -> Any:
    return "int" if depth == 0 else {"type": "array", "items": nested(depth - 1)}


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("zork", "unknown type zork"),
        (5, "not an Avro schema"),
        (None, "not an Avro schema"),
        ({}, "'type' is missing"),
        ({"type": "array"}, "not an Avro schema"),
        ({"type": {"type": {"type": "int"}}}, "not an Avro schema"),
        ({"type": "record", "name": "r", "fields": 5}, "not an Avro schema"),
        (record("missing"), "unknown type missing"),
        (record("int", name="1r"), "type name '1r'"),
        (record("int", name="string"), "primitive"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}] * 2}, "two fields named a"),
        ({"type": "record", "name": "r", "fields": [{"name": "a-b", "type": "int"}]}, "field name 'a-b'"),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": "x"}]}, "Default value"),
        (["int", "int"], "two branches of one type"),
        (["int", ["null"]], "union directly inside a union"),
        ({"type": "fixed", "name": "f", "size": -1}, "fixed f has size -1"),
        ({"type": "fixed", "name": "f", "size": "x"}, "fixed f has size 'x'"),
        ({"type": "enum", "name": "e", "symbols": ["A", "A"]}, "unique"),
        (record("r"), "holds itself with no way to end"),
        (record(record("r", name="s")), "holds itself with no way to end"),
        (nested(100), "nested deeper than 64 levels"),
    ],
)
def test_a_definition_that_cannot_be_used_is_refused(definition: Any, reason: str) -> None:
    with pytest.raises(SchemaInvalid) as refusal:
        AvroDefinition.parse(json.dumps(definition))
    assert reason in refusal.value.message


@pytest.mark.parametrize(
    ("definition", "levels"),
    [
        ("int", 1),
        (record("int", ["null", "r"]), 1),
        (record("int", {"type": "array", "items": "r"}, {"type": "map", "values": record("int", name="s")}), 1),
        (record(record("int", name="s")), 2),
        (record(record(record("int", name="u"), name="t"), "t", "u"), 3),
        (record({"type": "long", "logicalType": "timestamp-millis"}), 1),
    ],
)
def test_the_cost_grows_with_records_that_hold_records(definition: Any, levels: int) -> None:
    assert AvroDefinition.parse(json.dumps(definition)).cost == COST_PER_LEVEL * levels


def test_a_long_chain_of_types_is_followed_in_time_and_its_records_are_too_deep() -> None:
    chain = [record("int", name="t0"), *(record(f"t{n}", name=f"t{n + 1}") for n in range(2000))]
    definition = AvroDefinition.parse(json.dumps(record(*chain)))
    assert definition.cost == COST_PER_LEVEL * 2002
    assert definition.checker("").faults(b"\0" * 2001) == ["records are nested deeper than 100 levels"]


def test_there_are_no_messages_to_choose_from() -> None:
    with pytest.raises(InvalidRequest, match="leave out 'Order'"):
        AvroDefinition.parse('"int"').checker("Order")


WORDS = st.sampled_from(["int", "record", "enum", "array", "map", "fixed", "r", "null"])
KEYS = st.sampled_from(
    ["type", "name", "fields", "items", "values", "symbols", "size", "default", "aliases", "logicalType"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
)


@given(st.text(max_size=50) | JSON.map(json.dumps))
def test_any_text_is_a_definition_or_is_refused_as_one(text: str) -> None:
    try:
        definition = AvroDefinition.parse(text)
    except SchemaInvalid:
        return
    again = AvroDefinition.load(text, definition.form, definition.cost)
    assert again.checker("").faults(b"\x02\x02") == definition.checker("").faults(b"\x02\x02")
