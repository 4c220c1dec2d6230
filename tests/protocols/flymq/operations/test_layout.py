"""Layouts are compiled from annotations: what they write, what they read, and what they refuse to compile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import pytest

from penstock.errors import InvalidRequest, ProtocolViolation
from penstock.protocols.bytes import ByteReader
from penstock.protocols.flymq.operations.layout import (
    I32,
    I64,
    NOT_SENT,
    TAIL,
    U32,
    U64,
    AtMost,
    Bool,
    Bytes,
    Columns,
    Key,
    Label,
    Layout,
    Nullable,
    Number,
    OneOf,
    PayloadTooLarge,
    Pieces,
    Shared,
    Sized,
    Str,
    Str8,
    Tail,
    Word,
    layout_of,
    record_of,
)


def written(value: Any, layout: Layout | None = None) -> str:
    pieces = Pieces(1 << 20)
    kind: type = type(value)
    (layout or record_of(kind)).write(value, pieces)
    return pieces.join().hex(" ", 1)


def read(kind: type, data: str) -> Any:
    return record_of(kind).read(ByteReader(bytes.fromhex(data)))


class Place(NamedTuple):
    topic: Str
    partition: I32
    offset: U64


@dataclass
class Mixed:
    name: Str8
    lag: I64
    size: Annotated[U32, Label("size of the file")]
    alive: Bool
    key: Key
    value: Bytes
    places: Annotated[Sequence[Place], AtMost(2)]
    pairs: Annotated[dict[Str, U32], AtMost(2)]
    word: Word


MIXED = Mixed("é", -1, 7, True, None, b"v", [Place("t", 1, 2)], {"a": 1}, "go")
BYTES = (
    "02 c3 a9 ff ff ff ff ff ff ff ff 00 00 00 07 01 00 00 00 00 00 00 00 01 76 "
    "00 00 00 01 00 01 74 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 01 00 01 61 00 00 00 01 02 67 6f"
)


def test_fields_follow_one_another() -> None:
    assert written(MIXED) == BYTES
    assert read(Mixed, BYTES) == MIXED
    assert record_of(Mixed).bytes_min == 1 + 8 + 4 + 1 + 4 + 4 + 4 + 4 + 1


def test_a_word_is_read_with_a_short_and_with_a_wide_length() -> None:
    assert read(Mixed, BYTES[: -len("02 67 6f")] + "00 02 67 6f") == MIXED


@pytest.mark.parametrize(
    ("bytes_left", "text"),
    [
        (0, "length of name"),
        (3, "lag needs 8 bytes, 0 are left"),
        (12, "size of the file needs 4 bytes, 1 are left"),
        (15, "alive"),
        (24, "value needs 1 bytes, 0 are left"),
        (27, "count of places"),
        (35, "1 places are announced, the 6 bytes left hold at most 0"),
    ],
)
def test_what_is_missing_is_named(bytes_left: int, text: str) -> None:
    data = bytes.fromhex(BYTES)[:bytes_left]
    with pytest.raises(ProtocolViolation, match=text):
        record_of(Mixed).read(ByteReader(data))


def test_a_list_has_at_most_its_maximum() -> None:
    places = layout_of(Annotated[list[Place], AtMost(2)])
    three = bytes.fromhex(written([Place("", 0, 0)] * 3, places))
    with pytest.raises(ProtocolViolation, match="too many places: 3, at most 2"):
        places.read(ByteReader(three), "places")


def test_a_list_is_written_no_further_than_its_frame_holds() -> None:
    taken = []

    def names() -> Iterator[str]:
        while True:
            taken.append("x")
            yield "x" * 8

    with pytest.raises(PayloadTooLarge, match="at least 104 bytes"):
        layout_of(Annotated[Iterable[Str], AtMost(2)]).write(names(), Pieces(100))
    assert len(taken) == 10


def test_a_payload_may_fill_its_frame() -> None:
    pieces = Pieces(6)
    layout_of(Annotated[list[Str], AtMost(2)]).write([""], pieces)
    assert pieces.join(b"head") == b"head\0\0\0\1\0\0"


def test_a_number_that_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="offset -1 is out of range: it is sent as u64"):
        written(Place("t", 0, -1))


@dataclass
class WithTail:
    name: Str
    key: Annotated[Key, TAIL] = None
    partition: Annotated[I32, TAIL] = -1
    found: Annotated[list[str], NOT_SENT] = field(default_factory=list)


def test_a_tail_is_sent_if_it_says_something_and_may_be_absent() -> None:
    assert written(WithTail("a")) == "00 01 61"
    assert written(WithTail("a", partition=3)) == "00 01 61 00 00 00 00 00 00 00 03"
    assert read(WithTail, "00 01 61") == WithTail("a")
    assert read(WithTail, "00 01 61 00 00 00 01 6b 00 00 00 03") == WithTail("a", b"k", 3)
    with pytest.raises(ProtocolViolation, match="partition"):
        read(WithTail, "00 01 61 00 00 00 01 6b")
    assert record_of(WithTail).fields_notation == "str name [, blob key, i32 partition]"


@dataclass
class AlwaysSent:
    message: Annotated[Str, Tail(always_sent=True)] = ""


def test_a_tail_may_be_absent_and_yet_always_be_sent() -> None:
    assert written(AlwaysSent()) == "00 00"
    assert read(AlwaysSent, "") == AlwaysSent()
    assert record_of(AlwaysSent).fields_notation == "[str message]"


@dataclass
class Details:
    failed_ms: Annotated[int | None, Nullable(Number("i64", "q"), -1)]


def test_columns_are_heads_and_then_details_if_they_were_sent() -> None:
    columns = Columns(Place, Details, 2)
    rows = [(Place("a", 0, 1), Details(None)), (Place("b", 1, 2), Details(5))]
    data = bytes.fromhex(written(rows, columns))
    assert columns.read(ByteReader(data), "rows") == rows
    heads = data[:-16]
    assert columns.read(ByteReader(heads), "rows") == [(head, None) for head, _ in rows]
    with pytest.raises(ProtocolViolation, match="too many rows: 3, at most 2"):
        columns.read(ByteReader(bytes.fromhex("00 00 00 03") + bytes(42)), "rows")


def test_a_sized_record_ends_where_its_size_says() -> None:
    sized = Sized(Place)
    data = bytes.fromhex(written(Place("t", 1, 2), sized))
    assert data[:4] == b"\0\0\0\x0f"
    assert sized.read(ByteReader(data), "place") == Place("t", 1, 2)
    with pytest.raises(ProtocolViolation, match="1 unexpected bytes after offset"):
        sized.read(ByteReader(b"\0\0\0\x10" + data[4:] + b"x"), "place")


def test_a_shared_record_is_encoded_once() -> None:
    class Counted(str):
        __slots__ = ()
        encodings = 0

        def encode(self, *arguments: Any, **options: Any) -> bytes:
            Counted.encodings += 1
            return super().encode(*arguments, **options)

    shared = Shared(Place)
    place = Place(Counted("t"), 1, 2)
    assert written(place, shared) == written(place, shared) == written(Place("t", 1, 2))
    assert Counted.encodings == 1


def test_one_of_several_records_is_written_by_its_type_and_the_first_is_read() -> None:
    either = OneOf(Place, AlwaysSent)
    assert written(AlwaysSent("x"), either) == "00 01 78"
    assert either.read(ByteReader(bytes.fromhex(written(Place("t", 1, 2), either))), "reply") == Place("t", 1, 2)
    assert either.notation == "str topic, i32 partition, u64 offset; or [str message]"


@pytest.mark.parametrize(
    ("hint", "reason"),
    [
        (list[Str], "has no maximum: annotate it with AtMost"),
        (dict[Str, Str], "has no maximum: annotate it with AtMost"),
        (Annotated[list[str], AtMost(2)], "has no layout: annotate it with one"),
        (int, "has no layout: annotate it with one"),
        (Annotated[list[WithTail], AtMost(2)], "WithTail has a tail, so it cannot be a part of another record"),
    ],
)
def test_what_has_no_bound_or_no_layout_does_not_compile(hint: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        layout_of(hint)


@dataclass
class FieldAfterTail:
    name: Annotated[Str, TAIL] = ""
    key: Str = ""


@dataclass
class TailWithoutDefault:
    name: Annotated[Str, TAIL]


@pytest.mark.parametrize("kind", [FieldAfterTail, TailWithoutDefault])
def test_a_tail_that_makes_no_sense_does_not_compile(kind: type) -> None:
    with pytest.raises(TypeError):
        record_of(kind)
