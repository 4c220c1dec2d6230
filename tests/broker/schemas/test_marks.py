"""Marks of records: what was written is found, whatever stands around it, and hostile bytes are refused or bare."""

from __future__ import annotations

import contextlib
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.marks import (
    FIRST_MESSAGE,
    MESSAGE_PATH_MAX,
    REGISTRY_ID_FIRST,
    SCHEMA_HEADER,
    Frame,
    Frames,
    Known,
    MarkInvalid,
    confluent_frame,
    header_mark,
    read_mark,
    single_object_frame,
    stamp_of,
    stamped,
)
from penstock.broker.schemas.reference import Reference, SchemaType
from penstock.record_headers import decode_headers, encode_headers

VERSIONS: Final = [Known(number, REGISTRY_ID_FIRST + number, bytes([number] * 8)) for number in (1, 2, 3)]
KINDS: Final[tuple[SchemaType, ...]] = get_args(SchemaType)
NAMES = st.text(min_size=1, max_size=20)
PAIRS = st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=30)), max_size=5)


def frames(kind: SchemaType) -> Frames:
    return Frames("orders", kind, VERSIONS)


@given(st.sampled_from([1, 2, 3]), st.binary(max_size=30))
def test_what_is_framed_is_found_with_its_payload_after_it(number: int, payload: bytes) -> None:
    for kind in ("json", "avro"):
        value = confluent_frame(REGISTRY_ID_FIRST + number) + payload
        assert frames(kind).find(value) == Frame(number, len(value) - len(payload))
    value = single_object_frame(bytes([number] * 8)) + payload
    assert frames("avro").find(value) == Frame(number, len(value) - len(payload), is_single_object=True)


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=MESSAGE_PATH_MAX), st.binary(max_size=30))
def test_the_path_of_a_message_is_found(path: list[int], payload: bytes) -> None:
    value = confluent_frame(REGISTRY_ID_FIRST + 1, path) + payload
    assert frames("protobuf").find(value) == Frame(1, len(value) - len(payload), message=tuple(path))


def test_the_first_message_takes_one_byte_and_may_take_two() -> None:
    # As Confluent's serializers write it, and as they may.
    head = confluent_frame(REGISTRY_ID_FIRST + 1)
    assert confluent_frame(REGISTRY_ID_FIRST + 1, FIRST_MESSAGE) == head + b"\0"
    assert frames("protobuf").find(head + b"\x02\x00\x08") == Frame(1, len(head) + 2, message=FIRST_MESSAGE)
    assert confluent_frame(REGISTRY_ID_FIRST + 1, (1, 2)) == head + b"\x04\x02\x04"


@given(st.sampled_from(KINDS), st.binary(max_size=40), st.booleans())
def test_any_bytes_are_bare_framed_or_refused(kind: SchemaType, value: bytes, framed: bool) -> None:
    value = confluent_frame(REGISTRY_ID_FIRST + 1) + value if framed else value
    with contextlib.suppress(MarkInvalid):
        found = frames(kind).find(value)
        assert found is None or 0 < found.size_bytes <= len(value)
        assert found is None or frames(kind).any([None, value])


def test_of_versions_that_are_marked_alike_the_preferred_one_is_meant() -> None:
    same = [Known(number, 0, b"12345678") for number in (1, 2, 3)]
    value = single_object_frame(b"12345678")
    for preferred, number in ((1, 1), (2, 2), (0, 3)):
        assert Frames("orders", "avro", same, preferred).find(value) == Frame(number, 10, is_single_object=True)


@given(PAIRS)
def test_a_stamp_replaces_what_was_there_and_leaves_the_rest(pairs: list[tuple[str, bytes | None]]) -> None:
    stamp = stamp_of(Reference("orders", 2, "shop.Order"))
    before = encode_headers([*pairs, (SCHEMA_HEADER, b"other:1")])
    cell = stamped(before, stamp)
    others = [pair for pair in pairs if pair[0] != SCHEMA_HEADER]
    assert decode_headers(cell) == [*others, (SCHEMA_HEADER, b"orders:2:shop.Order")]
    mark = header_mark(cell)
    assert mark is not None
    assert read_mark(mark) == Reference("orders", 2, "shop.Order")


def test_a_name_in_another_header_is_no_mark() -> None:
    cell = encode_headers([("note", SCHEMA_HEADER.encode()), (f"x-{SCHEMA_HEADER}", b"orders:1")])
    assert header_mark(cell) is None
    assert header_mark(None) is None


@given(st.binary(max_size=40))
def test_any_header_names_a_version_or_is_refused(mark: bytes) -> None:
    with contextlib.suppress(MarkInvalid):
        assert read_mark(mark).version > 0


@pytest.mark.parametrize("mark", [b"orders", b"orders:", b":1", b"orders:99999999999", b"a\nb:1"])
def test_what_names_no_version_is_refused(mark: bytes) -> None:
    with pytest.raises(MarkInvalid, match="it names a version as in orders:2"):
        read_mark(mark)
