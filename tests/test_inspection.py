"""Frames for people: values in words, bounded, hidden where they must be; and dissectors that no bytes can trip."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.inspection import ITEMS_SHOWN_MAX, TEXT_CHARS_MAX, Cutter, Frame, View
from penstock.protocols.blipmq.codec import encode_publish
from penstock.protocols.dissectors import DISSECTORS
from penstock.protocols.felix.codec.frames import encode_frame
from penstock.protocols.flymq.codec.record_layouts import encode_produce
from penstock.protocols.flymq.errors import encode_error
from penstock.protocols.flymq.operations.operation import encode_reply
from penstock.protocols.flymq.operations.schemas import ValidateSchema, Validation
from penstock.protocols.rustlog.codec import binary_client


class Colour(Enum):
    RED = 1


class Pair(NamedTuple):
    left: int
    right: object


@dataclass(slots=True)
class Thing:
    name: str
    value: object


class Struct(msgspec.Struct):
    key: str
    absent: int | msgspec.UnsetType = msgspec.UNSET


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (7, "7"),
        ("text", "text"),
        (Colour.RED, "RED"),
        (b"\x00\xff", "00 ff"),
        (b"a\nb", "a\\nb"),
        ([1, 2], "[1, 2]"),
        (list(range(9)), "[0, 1, 2, 3, 4, … 9 in all]"),
        ({"a": b"x"}, "[a: x]"),
        (Pair(1, Pair(2, None)), "{left=1, right={left=2, right=None}}"),
    ],
)
def test_values_are_shown_in_words(value: object, text: str) -> None:
    assert View(payloads=True).text(value) == text


def test_payloads_and_credentials_are_hidden() -> None:
    view = View()
    assert view.text(b"secret") == "6 bytes"
    assert view.text([b"a", None], "values") == "[1 bytes, None]"
    assert view.fields(Struct("é")) == (("key", "2 bytes"),)
    assert view.fields(Thing("n", "v")) == (("name", "n"), ("value", "1 bytes"))
    for shown in (view, View(payloads=True)):
        assert shown.text("guess", "password") == "hidden"
        assert shown.text({"token": "t"}) == "[token: hidden]"


def test_what_is_shown_is_bounded() -> None:
    view = View(payloads=True)
    deep: object = 1
    for _ in range(100):
        deep = [deep]
    assert len(view.text("x" * 10_000)) == TEXT_CHARS_MAX + 1
    assert len(view.text(b"\xff" * 10_000)) == TEXT_CHARS_MAX + 1
    assert len(view.text([["x" * 900] * 9] * 9)) <= TEXT_CHARS_MAX + 1
    assert "…" in view.text(deep)
    assert view.text(range(1_000_000)).count(",") == ITEMS_SHOWN_MAX


def size_of(data: bytes) -> int | None:
    if data[0] > 100:
        raise ProtocolViolation("too long")
    return data[0] + 1


@given(st.lists(st.binary(max_size=50)), st.integers(1, 60))
def test_frames_are_cut_however_they_come(payloads: list[bytes], step: int) -> None:
    cutter = Cutter(size_of, lambda data: Frame(data[1:].hex(), len(data), ()))
    stream = b"".join(bytes([len(each)]) + each for each in payloads)
    seen = [frame.name for at in range(0, len(stream), step) for frame in cutter.feed(stream[at : at + step])]
    assert seen == [each.hex() for each in payloads]


def test_once_boundaries_are_lost_nothing_more_is_decoded() -> None:
    cutter = Cutter(size_of, lambda data: Frame("whole", len(data), ()))
    names = [frame.name for frame in cutter.feed(b"\x01a\xff" + b"b" * 9)]
    assert names == ["whole", "not decoded"]
    assert [frame.name for frame in cutter.feed(b"\x01a")] == ["not decoded"]


def test_frames_are_decoded_when_they_are_asked_for_and_none_is_lost() -> None:
    decoded: list[bytes] = []

    def decode(data: bytes) -> Frame:
        decoded.append(data)
        return Frame(data[1:].decode(), len(data), ())

    cutter = Cutter(size_of, decode)
    assert [frame.name for frame in islice(cutter.feed(b"\x01a\x01b\x01c\x01"), 2)] == ["a", "b"]
    assert len(decoded) == 2
    assert [frame.name for frame in cutter.feed(b"d")] == ["c", "d"]


def test_errors_quote_no_record_unless_payloads_are_asked_for() -> None:
    error = 'schema validation failed: at /id: "a secret" is not of type "integer" (order-v1)'
    replies = encode_error(error) + encode_reply(ValidateSchema, Validation(False, ['"a secret" is too short']))
    shown = str(list(DISSECTORS["flymq"](View()).sent(replies)))
    assert "secret" not in shown
    assert "schema validation failed" in shown
    assert str(list(DISSECTORS["flymq"](View(payloads=True)).sent(replies))).count("a secret") == 2


SOUND = [
    encode_produce("orders", b"value", b"key"),
    encode_publish(7, 1, "orders", b"value"),
    binary_client.encode_produce("orders", 0, [b"value"]),
    encode_frame(0, b'{"type": "publish"}'),
    b"\x01\x00\x00\x00\x00",
]


@pytest.mark.parametrize("protocol", sorted(DISSECTORS))
@given(
    chunks=st.lists(st.tuples(st.booleans(), st.binary(max_size=60) | st.sampled_from(SOUND)), max_size=8),
    payloads=st.booleans(),
)
def test_no_bytes_trip_a_dissector(protocol: str, chunks: list[tuple[bool, bytes]], payloads: bool) -> None:
    dissector = DISSECTORS[protocol](View(payloads))
    for received, data in chunks:
        for frame in dissector.received(data) if received else dissector.sent(data):
            assert frame.name
            assert all(isinstance(each.value, str) for each in frame.fields)
