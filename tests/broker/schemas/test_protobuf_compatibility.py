"""Protobuf evolution: what may follow what, in both directions, and the reasons for a refusal."""

from __future__ import annotations

import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.kinds import problems_between
from penstock.broker.schemas.protobuf import ProtobufDefinition

PROTO3, PROTO2 = 'syntax = "proto3";', 'syntax = "proto2";'


def parsed(body: str) -> ProtobufDefinition:
    return ProtobufDefinition.parse(body if body.startswith("syntax") else f"{PROTO3} {body}")


def reading(reader: str, writer: str) -> list[str]:
    return parsed(reader).problems_reading(parsed(writer))


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("message A { int32 x = 1; }", "message A { int32 renamed = 1; }"),
        ("message A { int32 x = 1; string y = 2; }", "message A { int32 x = 1; }"),
        ("message A { int32 x = 1; }", "message A { int32 x = 1; string y = 2; }"),
        ("message A { int64 x = 1; }", "message A { int32 x = 1; }"),
        ("message A { int64 x = 1; }", "message A { uint32 x = 1; }"),
        ("message A { uint32 x = 1; }", "message A { bool x = 1; }"),
        ("message A { bytes x = 1; }", "message A { string x = 1; }"),
        ("message A { bytes x = 1; }", "message A { A x = 1; }"),
        ("message A { int32 x = 1; }", "message A { E x = 1; enum E { Z = 0; } }"),
        ("message A { repeated int32 x = 1; }", "message A { int32 x = 1; }"),
        ("message A { optional int32 x = 1; }", "message A { int32 x = 1; }"),
        ("message A { oneof o { int32 x = 1; } }", "message A { int32 x = 1; }"),
        ("message A { oneof o { int32 x = 1; int32 y = 2; } }", "message A { oneof p { int32 x = 1; int32 y = 2; } }"),
        ("message A { int32 x = 1; int32 y = 2; }", "message A { oneof p { int32 x = 1; int32 y = 2; } }"),
        ("message A { E x = 1; enum E { Z = 0; } }", "message A { E x = 1; enum E { Z = 0; Y = 1; } }"),
        ("message A { map<string, int64> m = 1; }", "message A { map<string, int32> m = 1; }"),
        ("message A { A next = 1; int64 x = 2; }", "message A { A next = 1; int32 x = 2; }"),
        ("message A {} message B {}", "message A {}"),
        (f"{PROTO2} message A {{ required int32 x = 1; }}", f"{PROTO2} message A {{ required int32 x = 1; }}"),
    ],
)  # fmt: skip
def test_what_reads_as_it_was_written_is_compatible(reader: str, writer: str) -> None:
    assert reading(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "reason"),
    [
        ("message A { int32 x = 1; }", "message A { int64 x = 1; }", "A.x is int32, which does not hold every int64"),
        ("message A { uint64 x = 1; }", "message A { int32 x = 1; }", "does not hold every int32"),
        ("message A { sint32 x = 1; }", "message A { int32 x = 1; }", "A.x is sint32"),
        ("message A { fixed32 x = 1; }", "message A { sfixed32 x = 1; }", "A.x is fixed32"),
        ("message A { string x = 1; }", "message A { bytes x = 1; }", "A.x is string"),
        ("message A { A x = 1; }", "message A { bytes x = 1; }", "A.x is message"),
        ("message A { E x = 1; enum E { Z = 0; } }", "message A { int32 x = 1; }", "A.x is enum"),
        ("message A { int32 x = 1; }", "message A { repeated int32 x = 1; }", "A.x is repeated in the other"),
        ("message A {}", "message A {} message B {}", "message B is missing"),
        ("package a; message A {}", "package b; message A {}", "package is a, in the other version b"),
        ("message A { oneof o { int32 x = 1; int32 y = 2; } }", "message A { int32 x = 1; int32 y = 2; }", "oneof A.o keeps one of x, y"),
        ("message A { oneof o { int32 x = 1; int32 y = 2; } }", "message A { oneof o { int32 x = 1; } int32 y = 2; }", "oneof A.o"),
        ("message A { B b = 1; message B { int32 x = 1; } }", "message A { B b = 1; message B { string x = 1; } }", "A.B.x is int32"),
        ("message A { map<string, int32> m = 1; }", "message A { map<string, int64> m = 1; }", "is int32, which does not hold"),
        (f"{PROTO2} message A {{ required int32 x = 1; }}", f"{PROTO2} message A {{ optional int32 x = 1; }}", "A.x is required"),
        (f"{PROTO2} message A {{ required int32 x = 1; }}", f"{PROTO2} message A {{}}", "A.x is required"),
        (f"{PROTO2} message A {{ optional E x = 1; enum E {{ Z = 0; }} }}",
         f"{PROTO2} message A {{ optional E x = 1; enum E {{ Z = 0; Y = 1; }} }}", "enum A.E lacks Y"),
        (f"{PROTO2} message A {{ extensions 5; }} extend A {{ optional int32 x = 5; }}",
         f"{PROTO2} message A {{ extensions 5; }} extend A {{ optional string x = 5; }}", "x is int32"),
        (f"{PROTO2} message A {{ optional group G = 1 {{}} }}", f"{PROTO2} message A {{ optional G g = 1; message G {{}} }}", "is group"),
    ],
)  # fmt: skip
def test_what_would_be_lost_or_misread_is_refused_with_the_reason(reader: str, writer: str, reason: str) -> None:
    assert any(reason in problem for problem in reading(reader, writer)), reading(reader, writer)


def test_what_a_version_reserves_its_successor_must_not_use() -> None:
    older = parsed("message A { reserved 2, 5 to 7; reserved 'gone'; int32 x = 1; }")
    for field in ("int32 y = 2;", "string y = 6;", "int32 gone = 3;"):
        assert problems_between(parsed(f"message A {{ int32 x = 1; {field} }}"), older, "backward") != []
    assert problems_between(parsed("message A { int32 x = 1; int32 y = 8; }"), older, "full") == []
    # Removing a field and reserving its number is how it is meant to be done.
    assert problems_between(parsed("message A { reserved 1; }"), parsed("message A { int32 x = 1; }"), "full") == []


def test_each_mode_looks_in_its_own_direction() -> None:
    narrow, wide = parsed("message A { int32 x = 1; }"), parsed("message A { int64 x = 1; }")
    found = {mode: bool(problems_between(wide, narrow, mode)) for mode in ("none", "backward", "forward", "full")}
    assert found == {"none": False, "backward": False, "forward": True, "full": True}


NUMBERS = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "sint32": st.integers(-(2**31), 2**31 - 1),
    "sint64": st.integers(-(2**63), 2**63 - 1),
    "bool": st.booleans(),
}
DEFINITIONS: dict[str, ProtobufDefinition] = {}


@given(st.sampled_from(sorted(NUMBERS)), st.sampled_from(sorted(NUMBERS)), st.data())
def test_a_number_that_is_said_to_be_readable_is_read_as_it_was_written(
    reader: str, writer: str, data: st.DataObject
) -> None:
    for kind in (reader, writer):
        if kind not in DEFINITIONS:
            DEFINITIONS[kind] = parsed(f"message A {{ {kind} x = 1; }}")
    if DEFINITIONS[reader].problems_reading(DEFINITIONS[writer]):
        return
    one, other = (GetMessageClass(DEFINITIONS[kind]._file.message_types_by_name["A"]) for kind in (writer, reader))
    value = data.draw(NUMBERS[writer])
    assert other.FromString(one(x=value).SerializeToString()).x == value  # type: ignore[attr-defined]
