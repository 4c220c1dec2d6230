"""Avro's resolution rules, type by type; and what is said to be readable is read by fastavro."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.avro import AvroDefinition


def record(name: str = "r", /, *, aliases: Any = None, **fields: Any) -> dict[str, Any]:
    listed = [
        {"name": each, **(t if isinstance(t, dict) and "default" in t else {"type": t})} for each, t in fields.items()
    ]
    return {"type": "record", "name": name, "fields": listed, **({"aliases": aliases} if aliases else {})}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "e", "symbols": list(symbols), **more}


def reading(reader: Any, writer: Any) -> list[str]:
    return AvroDefinition.parse(json.dumps(reader)).problems_reading(AvroDefinition.parse(json.dumps(writer)))


WITH_DEFAULT = {"type": "int", "default": 7}


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("long", "int"),
        ("float", "long"),
        ("double", "int"),
        ("string", "bytes"),
        ("bytes", "string"),
        (["null", "int"], "int"),
        ("long", ["int", "long"]),
        (["null", "long", "string"], ["null", "int"]),
        ({"type": "array", "items": "double"}, {"type": "array", "items": "float"}),
        ({"type": "map", "values": ["null", "long"]}, {"type": "map", "values": "int"}),
        (record(a="int", b=WITH_DEFAULT), record(a="int")),
        (record(a="int"), record(a="int", b="string")),
        (record("shop.r", a="int"), record("store.r", a="int")),
        (record("new", aliases=["r"], a="int"), record(a="int")),
        ({"type": "record", "name": "r", "fields": [{"name": "b", "type": "int", "aliases": ["a"]}]}, record(a="int")),
        (enum("A", "B", "C"), enum("A", "B")),
        (enum("A", "X", default="X"), enum("A", "B")),
        (record(next=["null", "r"], a="long"), record(next=["null", "r"], a="int")),
        ({"type": "long", "logicalType": "timestamp-millis"}, "int"),
        (record(a={"type": "fixed", "name": "f", "size": 4}), record(a={"type": "fixed", "name": "f", "size": 4})),
    ],
)
def test_what_resolution_allows_is_compatible(reader: Any, writer: Any) -> None:
    assert reading(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        ("int", "long", "int cannot read long"),
        ("int", "string", "int cannot read string"),
        ("long", "double", "long cannot read double"),
        ("int", ["null", "int"], "int cannot read null"),
        (["null", "int"], "string", "no branch of the union reads string"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, "at /*: int cannot read long"),
        (record(a="int", b="int"), record(a="int"), "at /b: field b has no default"),
        (record(a="int"), record(a="string"), "at /a: int cannot read string"),
        (record(a=record("s", x="int")), record(a=record("s", x="string")), "at /a/x: int cannot read string"),
        (record(a="int"), record("other", a="int"), "record r cannot read record other"),
        (enum("A"), enum("A", "B", "C"), "enum e lacks B, C and has no default"),
        ({"type": "fixed", "name": "f", "size": 4}, {"type": "fixed", "name": "f", "size": 8}, "size of f has changed"),
        (record(next=["null", "r"], a="int"), record(next=["null", "r"], a="long"), "at /a: int cannot read long"),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "map cannot read array"),
    ],
)
def test_what_resolution_does_not_allow_is_refused_with_the_reason(reader: Any, writer: Any, reason: str) -> None:
    assert any(reason in problem for problem in reading(reader, writer))


def test_a_comparison_of_hostile_definitions_ends() -> None:
    # Each record holds two of the next one, behind unions: every pair is compared, but not every path to it.
    inner: Any = record("t20", x="int")
    for n in reversed(range(10)):
        inner = record(f"t{n}", a=["null", inner], b=["null", inner["name"]])
    wider = json.loads(json.dumps(inner).replace('"int"', '"long"'))
    assert isinstance(reading(wider, inner), list)
    assert reading(inner, wider) != []


SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-100, 100),
    "long": st.integers(-(2**40), 2**40),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=4),
    "boolean": st.booleans(),
}


@given(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(sorted(SCALARS)), min_size=1),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from([*sorted(SCALARS), "default"]), min_size=1),
    st.data(),
)
def test_what_is_said_to_be_readable_is_read_by_fastavro(
    written: dict[str, str], read: dict[str, str], data: st.DataObject
) -> None:
    writer = record(**written)
    reader = record(**{name: WITH_DEFAULT if kind == "default" else kind for name, kind in read.items()})
    if reading(reader, writer):
        return
    value = {name: data.draw(SCALARS[kind]) for name, kind in written.items()}
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(writer), value)
    buffer.seek(0)
    got = fastavro.schemaless_reader(buffer, fastavro.parse_schema(writer), fastavro.parse_schema(reader))
    assert isinstance(got, dict)
    assert set(got) == set(read)
