"""JSON Schema: definitions that are refused, records that are, and any bytes at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.definition import DOCUMENT_DEPTH_MAX, REASON_CHARS_MAX, Checker
from penstock.broker.schemas.json_schema import JsonDefinition
from penstock.errors import InvalidRequest, SchemaInvalid

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
        "email": {"type": "string", "pattern": "^[^@]+@[^@]+$"},
    },
    "required": ["id"],
    "$defs": {"line": {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string"}}}},
}


def checker(schema: Any) -> Checker:
    return JsonDefinition.parse(json.dumps(schema)).checker("")


def test_a_run_is_checked_whole_and_the_first_fault_is_told_with_its_row_and_place() -> None:
    orders = checker(ORDER)
    sound = [json.dumps({"id": n, "lines": [{"sku": "x"}]}).encode() for n in range(1, 50)]
    assert orders.first_fault(sound) is None
    fault = orders.first_fault([*sound, b'{"id": 1, "lines": [{}]}', b"{}"])
    assert fault == (49, 'at /lines/0: "sku" is a required property')


def test_everything_that_is_wrong_with_one_record_is_told_up_to_a_bound() -> None:
    assert checker(ORDER).faults(b'{"id": 0, "email": "nobody"}') == [
        "at /id: 0 is less than the minimum of 1",
        'at /email: "nobody" does not match "^[^@]+@[^@]+$"',
    ]
    assert checker(ORDER).faults(b'{"id": 1}') == []
    assert len(checker({"items": {"type": "string"}}).faults(b"[" + b"1," * 100 + b"1]")) == 10


def test_a_reason_never_grows_with_the_record() -> None:
    [reason] = checker({"maxLength": 5}).faults(b'"' + b"x" * 1_000_000 + b'"')
    assert len(reason) <= REASON_CHARS_MAX


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"nope", "malformed"),
        (b"NaN", "malformed"),
        (b'{"a":1} x', "trailing characters"),
        (b'"\xff"', "utf-8"),
        (b"1e400", "out of range"),
        (b"[" * 100_000 + b"]" * 100_000, "recursion"),
    ],
)
def test_bytes_that_are_no_json_document_are_refused(value: bytes, reason: str) -> None:
    everything = checker({})
    assert reason in everything.faults(value)[0]
    fault = everything.first_fault([b"1", value])
    assert fault is not None
    assert (fault.row, reason in fault.reason) == (1, True)


def test_nesting_is_bounded() -> None:
    nested = checker({"items": {"$ref": "#"}})
    assert nested.faults(b"[" * DOCUMENT_DEPTH_MAX + b"]" * DOCUMENT_DEPTH_MAX) == []
    deep = b"[" * (DOCUMENT_DEPTH_MAX + 1) + b"]" * (DOCUMENT_DEPTH_MAX + 1)
    assert nested.faults(deep) == [f"nested deeper than {DOCUMENT_DEPTH_MAX} levels"]
    assert nested.first_fault([b"[]", deep]) == (1, f"nested deeper than {DOCUMENT_DEPTH_MAX} levels")
    assert nested.faults(b'["' + b"[" * 500 + b'"]') == []
    assert nested.faults(b'[{"a":' * 20 + b"1" + b"}]" * 20) == []
    assert nested.faults(b"[" + b",".join([b'{"a":[1]}'] * 500) + b"]") == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a JSON document"),
        ("{", "not a JSON document"),
        ("5", "5 is not of types"),
        ('{"type": "strin"}', "at /type"),
        ('{"minimum": "1"}', "at /minimum"),
        ('{"$ref": "https://example.com/other.json"}', "Retrieval is disabled"),
        ('{"$ref": "file:///etc/hostname"}', "Retrieval is disabled"),
        ('{"$ref": "#/nowhere"}', "nowhere"),
        ('{"pattern": "^(?=a)"}', "at /pattern"),
        ('{"pattern": "a{1000}{1000}"}', "at /pattern"),
        ('{"$schema": "https://example.com/mine"}', "Unknown meta-schema"),
        ('{"items":' * 5000 + "{}" + "}" * 5000, "recursion"),
        ('{"items":' * 300 + "{}" + "}" * 300, "recursion limit"),
    ],
)
def test_a_definition_that_cannot_be_used_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SchemaInvalid) as refusal:
        JsonDefinition.parse(text)
    assert reason in refusal.value.message
    assert len(refusal.value.message) <= REASON_CHARS_MAX


def test_a_pattern_that_others_backtrack_over_takes_linear_time() -> None:
    assert checker({"pattern": "^(a+)+$"}).faults(b'"' + b"a" * 100_000 + b'b"') != []


def test_an_older_draft_is_read_as_itself() -> None:
    draft4 = checker({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "exclusiveMinimum": True})
    assert draft4.faults(b"1") != []
    assert draft4.faults(b"2") == []


def test_formats_are_annotations() -> None:
    assert checker({"format": "email"}).faults(b'"nobody"') == []


def test_spaces_and_order_do_not_make_another_definition() -> None:
    one = JsonDefinition.parse('{"type": "object", "required": ["a"]}')
    other = JsonDefinition.parse('{"required":["a"],\n"type":"object"}')
    assert one.identity == other.identity
    assert one.identity != JsonDefinition.parse('{"type": "object"}').identity


def test_there_are_no_messages_to_choose_from() -> None:
    with pytest.raises(InvalidRequest, match="leave out 'Order'"):
        JsonDefinition.parse("{}").checker("Order")


@given(st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_sound_or_have_a_reason(value: bytes) -> None:
    orders = checker(ORDER)
    reasons = orders.faults(value)
    fault = orders.first_fault([value])
    assert (fault is None) == (not reasons)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ORDER, "enum", "not"]) | st.text(), inner, max_size=3),
)  # fmt: skip


@given(st.text(max_size=100) | JSON.map(json.dumps))
def test_any_text_is_a_definition_or_is_refused_as_one(text: str) -> None:
    try:
        definition = JsonDefinition.parse(text)
    except SchemaInvalid:
        return
    assert definition.cost >= 1
    again = JsonDefinition.load(text, definition.form, definition.cost).checker("")
    assert again.faults(b"[1]") == definition.checker("").faults(b"[1]")
