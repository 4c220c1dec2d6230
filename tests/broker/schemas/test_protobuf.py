"""Protobuf: definitions that are really compiled, records that are really decoded, and any bytes at all."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.definition import REASON_CHARS_MAX
from penstock.broker.schemas.protobuf import IMPORTS, ProtobufDefinition
from penstock.errors import InvalidRequest, SchemaInvalid

ORDERS = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  string name = 2;
  repeated Line lines = 3;
  google.protobuf.Timestamp at = 4;
  enum State { NEW = 0; PAID = 1; }
  State state = 5;
  message Line { string sku = 1; }
}
message Refund { int64 order = 1; }
"""
STRICT = 'syntax = "proto2"; message M { required int32 a = 1; optional E e = 2; enum E { X = 1; Y = 2; } }'
TREE = 'syntax = "proto3"; message T { repeated T t = 1; }'


@pytest.fixture(scope="module")
def orders() -> ProtobufDefinition:
    return ProtobufDefinition.parse(ORDERS)


@pytest.fixture(scope="module")
def strict() -> ProtobufDefinition:
    return ProtobufDefinition.parse(STRICT)


def order(definition: ProtobufDefinition, **fields: Any) -> bytes:
    message: Any = GetMessageClass(definition._file.message_types_by_name["Order"])
    return bytes(message(**fields).SerializeToString())


def test_records_are_the_first_message_unless_a_reference_says_which(orders: ProtobufDefinition) -> None:
    value = order(orders, id=7, name="x", lines=[{"sku": "y"}], at={"seconds": 1}, state=1)
    assert orders.checker("").faults(value) == []
    assert orders.checker("Order").faults(value) == []
    assert orders.checker("shop.Order").faults(value) == []
    assert orders.checker("Refund").faults(b"\x08\x07") == []
    assert orders.checker("Order.Line").faults(b"\x0a\x01x") == []
    assert orders.checker("Refund").faults(value) == ["there are fields or enum values that shop.Refund does not have"]
    for name in ("Nope", "google.protobuf.Timestamp", "shop.Order.State"):
        with pytest.raises(InvalidRequest, match=f"no message '{name}': it has Order, Refund"):
            orders.checker(name)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"hello world", "Error parsing message"),
        (b"\x08", "Error parsing message"),
        (b'{"id": 1}', "Error parsing message"),
        (b"\x12\x01\xff", "Error parsing message"),
        (b"\x48\x01", "does not have"),
        (b"\x1a\x02\x48\x01", "does not have"),
        (b"\x09" + bytes(8), "does not have"),
    ],
)
def test_bytes_that_are_not_the_message_are_refused(orders: ProtobufDefinition, value: bytes, reason: str) -> None:
    assert reason in orders.checker("").faults(value)[0]
    fault = orders.checker("").first_fault([b"", b"\x08\x01", value, b"\x08"])
    assert fault is not None
    assert fault.row == 2


def test_required_fields_are_required_and_closed_enums_closed(strict: ProtobufDefinition) -> None:
    checker = strict.checker("")
    assert checker.faults(b"\x08\x01\x10\x02") == []
    assert checker.faults(b"") == ["required fields are missing: a"]
    assert checker.faults(b"\x08\x01\x10\x09") == ["there are fields or enum values that M does not have"]


def test_required_fields_are_found_inside_messages_and_extensions() -> None:
    inside = 'syntax = "proto2"; message M { optional N n = 1; } message N { required int32 a = 1; }'
    assert ProtobufDefinition.parse(inside).checker("").faults(b"\x0a\x00") == ["required fields are missing: n.a"]
    extended = 'syntax = "proto2"; message M { extensions 5; } message N { required int32 a = 1; } extend M { optional N n = 5; }'
    assert ProtobufDefinition.parse(extended).checker("M").faults(b"\x2a\x00") != []


def test_nesting_is_bounded_by_the_decoder() -> None:
    checker = ProtobufDefinition.parse(TREE).checker("")

    def nested(depth: int) -> bytes:
        value = b""
        for _ in range(depth):
            length = len(value)
            value = b"\x0a" + (bytes([length]) if length < 128 else bytes([length & 0x7F | 0x80, length >> 7])) + value
        return value

    assert checker.faults(nested(90)) == []
    assert checker.faults(nested(200)) != []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no message"),
        ('//// file: a.proto\nsyntax = "proto3"; message A {}', "name it schema.proto"),
        ("//// file: schema.proto\nmessage A {}\n//// file: schema.proto\nmessage B {}", "two files schema.proto"),
        ("nonsense", "line 1:1"),
        ('syntax = "proto3"; message A { int32 x = 1 }', 'Expected ";"'),
        ('syntax = "proto3"; message A { int32 x = 1; int32 y = 1; }', "already been used"),
        ('syntax = "proto3"; message A { Missing x = 1; }', '"Missing" is not defined'),
        ('import "/etc/passwd"; message A {}', "not found"),
        ('import "other.proto"; message A {}', "not found"),
        ('import "../x.proto"; message A {}', "not allowed"),
        ('import "schema.proto"; message A {}', "imports itself"),
        ('import "google/protobuf/compiler/plugin.proto"; message A {}', "only the well-known types"),
        ('syntax = "proto3"; message A {}\0', "control characters"),
        ('syntax = "proto3";' + "message M {" * 5000 + "}" * 5000, "recursion limit"),
    ],
)
def test_a_definition_that_cannot_be_used_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SchemaInvalid) as refusal:
        ProtobufDefinition.parse(text)
    assert reason in refusal.value.message
    assert len(refusal.value.message) <= REASON_CHARS_MAX


def test_all_well_known_types_can_be_imported() -> None:
    imports = "".join(f'import "{name}";' for name in IMPORTS)
    for text in (imports, "".join(f'import "{name}";' for name in reversed(IMPORTS))):
        definition = ProtobufDefinition.parse(f'syntax = "proto3"; {text} message A {{ google.protobuf.Any any = 1; }}')
        assert definition.checker("").faults(b"") == []


@pytest.mark.parametrize("edition", ['edition = "2023";', 'edition = "2024";', 'syntax = "proto2";', ""])
def test_every_syntax_and_edition_is_known(edition: str) -> None:
    assert (
        ProtobufDefinition.parse(f"{edition} message A {{ repeated int32 x = 1; }}").checker("").faults(b"\x08\x01")
        == []
    )


def test_comments_and_spaces_do_not_make_another_definition(orders: ProtobufDefinition) -> None:
    assert (
        ProtobufDefinition.parse(ORDERS.replace("message Refund", "// money back\nmessage  Refund")).identity
        == orders.identity
    )
    assert ProtobufDefinition.parse(ORDERS.replace("Refund", "Return")).identity != orders.identity


def test_what_is_stored_is_loaded_without_the_compiler(orders: ProtobufDefinition) -> None:
    again = ProtobufDefinition.load("not looked at", orders.form, orders.cost)
    assert again.checker("Refund").faults(b"\x08\x07") == []


@given(st.binary(max_size=200))
def test_any_bytes_are_sound_or_have_a_reason(orders: ProtobufDefinition, value: bytes) -> None:
    checker = orders.checker("")
    fault = checker.first_fault([value])
    assert (fault is None) == (not checker.faults(value))


def test_a_file_without_a_message_is_there_for_others_and_no_record_is_of_it() -> None:
    definition = ProtobufDefinition.parse('syntax = "proto3"; enum E { A = 0; }')
    with pytest.raises(InvalidRequest, match="for others to import"):
        definition.checker("")


def test_a_definition_with_imported_files_is_loaded_from_its_form() -> None:
    text = (
        '//// file: part.proto\nsyntax = "proto3"; import "google/protobuf/timestamp.proto";\n'
        "message Part { google.protobuf.Timestamp at = 1; }\n"
        '//// file: schema.proto\nsyntax = "proto3"; import "part.proto"; message Whole { repeated Part parts = 1; }'
    )
    parsed = ProtobufDefinition.parse(text)
    loaded = ProtobufDefinition.load(text, parsed.form, parsed.cost)
    assert loaded.checker("").faults(b"\x0a\x04\x0a\x02\x08\x01") == []
    assert loaded.checker("").faults(b"\x0a\x02\x10\x01") != []
    assert loaded.identity == parsed.identity
    with pytest.raises(InvalidRequest, match="no message 'Part'"):
        loaded.checker("Part")
