"""Definitions with references become self-contained, and mean what they meant."""

from __future__ import annotations

import json
from typing import Any

import fastavro
import jsonschema_rs
import pytest

from penstock.broker.schemas.bundling import bundled, files_of
from penstock.errors import SchemaInvalid

ADDRESS = {"type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}]}
STATE = {"type": "enum", "name": "shop.State", "symbols": ["NEW", "PAID"]}


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Order",
        "fields": [{"name": f"f{at}", "type": each} for at, each in enumerate(fields)],
        **more,
    }


def avro(document: Any, *others: Any) -> Any:
    parts = [(f"r{at}", json.dumps(each)) for at, each in enumerate(others)]
    return json.loads(bundled("avro", json.dumps(document), parts))


@pytest.mark.parametrize(
    "document",
    [
        record("shop.Address", "shop.Address"),
        record("Address", namespace="shop"),
        record(["null", "shop.Address"]),
        record({"type": "array", "items": "shop.Address"}, {"type": "map", "values": "shop.Address"}),
        record({"type": "shop.Address"}),
        record(record("shop.Address", name="Inner"), "shop.Address"),
    ],
    ids=["twice", "namespace", "union", "array and map", "wrapped", "nested"],
)
def test_an_avro_type_is_defined_where_it_is_first_named(document: Any) -> None:
    whole = avro(document, ADDRESS)
    fastavro.parse_schema(whole)  # which knows nothing of references
    assert json.dumps(whole).count('"Address"') >= 1
    assert json.dumps(whole).count('"city"') == 1


def test_what_an_avro_reference_refers_to_comes_with_it() -> None:
    customer = {
        "type": "record",
        "name": "Customer",
        "namespace": "crm",
        "fields": [{"name": "at", "type": "shop.Address"}],
    }
    flat = avro(customer, ADDRESS)
    whole = avro(record("crm.Customer", "shop.Address", "shop.State"), flat, STATE, ADDRESS)
    fastavro.parse_schema(whole)
    assert json.dumps(whole).count('"city"') == 1


def test_a_type_that_the_definition_has_itself_or_never_names_stays_out() -> None:
    assert avro(record("int"), ADDRESS) == record("int")
    assert avro(ADDRESS, ADDRESS) == ADDRESS


CITY = {"$id": "city.json", "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "properties": {"name": {"$ref": "#/definitions/name"}}, "required": ["name"],
        "definitions": {"name": {"type": "string"}}}  # fmt: skip


@pytest.mark.parametrize(
    ("target", "good", "bad"),
    [
        ("a/city.json", {"name": "x"}, {"name": 1}),
        ("a/city.json#/definitions/name", "x", 1),
        ("a/city.json#", {"name": "x"}, {}),
    ],
)
def test_a_json_document_is_found_under_defs(target: str, good: Any, bad: Any) -> None:
    order = {
        "type": "object",
        "properties": {"to": {"$ref": target}, "own": {"$ref": "#/$defs/own"}},
        "$defs": {"own": {"type": "integer"}},
    }
    whole = bundled("json", json.dumps(order), [("a/city.json", json.dumps(CITY))])
    validator = jsonschema_rs.validator_for(whole, offline=True)
    assert validator.is_valid({"to": good, "own": 1})
    assert not validator.is_valid({"to": bad})
    assert not validator.is_valid({"own": "x"})


def test_json_references_go_over_several_documents() -> None:
    street = bundled("json", '{"type": "object", "properties": {"city": {"$ref": "c"}}}', [("c", json.dumps(CITY))])
    whole = bundled("json", '{"properties": {"street": {"$ref": "s"}}}', [("s", street)])
    validator = jsonschema_rs.validator_for(whole, offline=True)
    assert validator.is_valid({"street": {"city": {"name": "x"}}})
    assert not validator.is_valid({"street": {"city": {"name": 1}}})


@pytest.mark.parametrize(
    ("kind", "text", "part", "words"),
    [
        ("protobuf", 'syntax = "proto3";', "words\n//// file: schema.proto\n", "first line"),
        ("json", "[]", "{}", "JSON object"),
        ("json", '{"$defs": {"r": {}}}', "{}", "rename"),
        ("json", "{", "{}", "not a JSON document"),
        ("avro", "[" * 5000, '"int"', "JSON|deep"),
    ],
)
def test_what_cannot_be_bundled_is_refused(kind: str, text: str, part: str, words: str) -> None:
    with pytest.raises(SchemaInvalid, match=words):
        bundled(kind, text, [("r", part)])


def test_a_protobuf_definition_has_each_file_once_behind_those_that_it_imports() -> None:
    street = bundled("protobuf", 'import "city"; message Street {}', [("city", "message City {}")])
    house = 'import "city"; import "street"; message House {}'
    whole = bundled("protobuf", house, [("street", street), ("city", "message City {}")])
    assert files_of(whole) == [
        ("city", "message City {}"),
        ("street", 'import "city"; message Street {}'),
        ("schema.proto", house),
    ]
    with pytest.raises(SchemaInvalid, match="two versions"):
        bundled("protobuf", house, [("street", street), ("city", "message City { int32 a = 1; }")])


def test_without_references_a_definition_stays_as_it_is() -> None:
    assert bundled("json", "{ }", []) == "{ }"
