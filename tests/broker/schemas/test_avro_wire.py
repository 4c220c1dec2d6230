"""Avro's encoding: what fastavro writes is accepted, what breaks the encoding is not, and no bytes cost more than their number."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.avro import AvroDefinition
from penstock.broker.schemas.definition import DOCUMENT_DEPTH_MAX

POINT = {
    "type": "record",
    "name": "shop.Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "y", "type": "double"}],
}
ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "float"}},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 4}},
        {"name": "copy", "type": "Digest"},
        {"name": "paid", "type": "boolean"},
        {"name": "raw", "type": "bytes"},
        {"name": "where", "type": POINT},
        {"name": "seen", "type": {"type": "array", "items": "shop.Point"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "nothing", "type": "null"},
    ],
}  # fmt: skip
LIST = {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}

POINTS = st.fixed_dictionaries({"x": st.integers(-(2**31), 2**31 - 1), "y": st.floats(allow_nan=False)})
ORDERS = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.text(),
        "note": st.none() | st.text(),
        "state": st.sampled_from(["NEW", "PAID"]),
        "before": st.none() | st.sampled_from(["NEW", "PAID"]),
        "tags": st.lists(st.text()),
        "sizes": st.dictionaries(st.text(), st.floats(width=32, allow_nan=False)),
        "digest": st.binary(min_size=4, max_size=4),
        "copy": st.binary(min_size=4, max_size=4),
        "paid": st.booleans(),
        "raw": st.binary(),
        "where": POINTS,
        "seen": st.lists(POINTS),
        "day": st.integers(0, 20_000),
        "nothing": st.none(),
    }
)


def faults(definition: Any, value: bytes) -> list[str]:
    checker = AvroDefinition.parse(json.dumps(definition)).checker("")
    reasons = checker.faults(value)
    fault = checker.first_fault([value])
    assert (fault is None) == (not reasons)
    return reasons


def encoded(definition: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(definition), value)
    return buffer.getvalue()


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


@given(st.lists(ORDERS, min_size=1, max_size=5))
def test_what_fastavro_writes_is_accepted_and_a_byte_more_or_less_is_not(orders: list[Any]) -> None:
    checker = AvroDefinition.parse(json.dumps(ORDER)).checker("")
    values = [encoded(ORDER, order) for order in orders]
    assert checker.first_fault(values) is None
    assert checker.faults(values[0] + b"\0") == ["1 bytes follow the end of the record"]
    assert checker.faults(values[0][:-1]) != []


@pytest.mark.parametrize(
    ("definition", "value", "reason"),
    [
        ("long", b"", "ends in the middle"),
        ("long", b"\xff" * 40, "more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("int", varint(1 << 31), "more than 32 bits"),
        ("boolean", b"\x02", "a boolean is 2"),
        ("double", b"1234567", "ends in the middle"),
        ("string", varint(1 << 60) + b"abc", "does not fit the 3 that are left"),
        ("string", varint(-5) + b"abc", "a length of -5"),
        ("bytes", varint(-1), "a length of -1"),
        ("bytes", varint(4) + b"abc", "does not fit"),
        ("string", varint(2) + b"\xff\xfe", "not valid UTF-8"),
        ({"type": "fixed", "name": "f", "size": 10**12}, b"abc", "ends in the middle"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, varint(-1), "no symbol -1"),
        ({"type": "enum", "name": "e", "symbols": ["A", "B"]}, varint(2), "no symbol 2"),
        (["null", "int"], varint(-1) + b"\x02", "no branch -1"),
        (["null", "int"], varint(2), "no branch 2"),
        ({"type": "array", "items": "int"}, varint(1 << 60) + b"\x02\x04\x00", "items do not fit"),
        ({"type": "array", "items": "int"}, varint(-2) + varint(3) + b"\x02\x04\x00", "not as long as it says"),
        ({"type": "map", "values": "int"}, varint(1) + varint(1) + b"\xff\x02\x00", "UTF-8"),
    ],
)
def test_what_breaks_the_encoding_is_refused(definition: Any, value: bytes, reason: str) -> None:
    assert reason in faults(definition, value)[0]


def test_blocks_may_say_how_long_they_are() -> None:
    assert (
        faults({"type": "array", "items": "int"}, varint(-2) + varint(2) + b"\x02\x04" + varint(1) + b"\x06\x00") == []
    )


def test_values_that_take_no_bytes_take_no_time_however_many_they_are() -> None:
    huge = varint((1 << 62) - 1) + b"\0"
    assert faults({"type": "array", "items": "null"}, huge) == []
    empty = {"type": "record", "name": "e", "fields": []}
    doubled: Any = empty
    for level in range(25):
        below = doubled if level == 0 else {**doubled}
        doubled = {
            "type": "record",
            "name": f"d{level}",
            "fields": [{"name": "a", "type": below}, {"name": "b", "type": below["name"]}],
        }
        if level == 12:
            break
    assert faults({"type": "array", "items": doubled}, huge) == []
    assert faults(doubled, b"") == []


def test_a_recursive_type_is_followed_as_deep_as_records_may_be() -> None:
    assert faults(LIST, b"\x02" * (DOCUMENT_DEPTH_MAX - 1) + b"\0") == []
    assert faults(LIST, b"\x02" * DOCUMENT_DEPTH_MAX + b"\0") == ["records are nested deeper than 100 levels"]
    assert faults(LIST, b"\x02" * 1_000_000) == ["records are nested deeper than 100 levels"]
    tree = {"type": "record", "name": "t", "fields": [{"name": "kids", "type": {"type": "array", "items": "t"}}]}
    assert faults(tree, b"\x02" * 1_000_000) != []


@given(st.binary(max_size=200), st.sampled_from([ORDER, LIST, ["null", POINT], {"type": "map", "values": "bytes"}]))
def test_any_bytes_are_sound_or_have_a_reason(value: bytes, definition: Any) -> None:
    if not faults(definition, value):
        fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(definition), None)
