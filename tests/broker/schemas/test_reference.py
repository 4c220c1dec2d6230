"""How schemas, their types and their modes are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.reference import Reference, compatibility_mode, parse_reference, schema_type
from penstock.errors import InvalidRequest, SchemaInvalid


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("orders", Reference("orders")),
        ("site/orders", Reference("site/orders")),
        ("orders:3", Reference("orders", 3)),
        ("orders:Order", Reference("orders", 0, "Order")),
        ("orders:3:shop.Order", Reference("orders", 3, "shop.Order")),
        ("日本:1", Reference("日本", 1)),
    ],
)
def test_a_reference_is_read_and_written(text: str, reference: Reference) -> None:
    assert parse_reference(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a:", "a::B", "a:b c", "a:1:2", "a:B:1", "a:99999999999", "a\nb", "x" * 250, "a:\ud800", "\ud800"],
)
def test_what_names_no_schema_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_reference(text)


@given(st.text())
def test_any_text_is_a_reference_that_is_written_the_same_or_is_refused(text: str) -> None:
    try:
        reference = parse_reference(text)
    except InvalidRequest:
        return
    assert parse_reference(str(reference)) == reference


def test_types_have_aliases_and_unknown_ones_are_named() -> None:
    assert [schema_type(name) for name in ("json", "JSON", "avro", "proto", "protobuf")] == [
        "json",
        "json",
        "avro",
        "protobuf",
        "protobuf",
    ]
    with pytest.raises(SchemaInvalid, match=r"unsupported schema type: xml \(use json, avro, protobuf\)"):
        schema_type("xml")


def test_compatibility_is_one_of_four_words() -> None:
    assert compatibility_mode("full") == "full"
    with pytest.raises(InvalidRequest, match="'transitive' is not known: use none, backward, forward, full"):
        compatibility_mode("transitive")
