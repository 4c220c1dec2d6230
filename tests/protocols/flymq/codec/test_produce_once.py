"""PRODUCE_ONCE by hand: the same bytes, and the same messages, as its declaration makes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocols.flymq.codec.produce_once import (
    decode_produce_once,
    decode_stored_together,
    encode_produce_once,
    encode_stored_together,
)
from penstock.protocols.flymq.operations.limits import PRODUCED_RECORDS_MAX
from penstock.protocols.flymq.operations.operation import (
    BadRequest,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from penstock.protocols.flymq.operations.records import ProduceOnce, RecordFailure, StoredOnce
from penstock.protocols.flymq.wire import HEADER_BYTES, PAYLOAD_BYTES_MAX

cells = st.none() | st.binary(max_size=9)
texts = st.text(max_size=5)
alike = st.tuples(st.integers(1, 20), st.binary(min_size=1, max_size=9)).map(lambda each: [each[1]] * each[0])
requests = st.builds(
    ProduceOnce,
    st.binary(min_size=16, max_size=16) | st.binary(max_size=20),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 64) - 1),
    st.booleans(),
    texts,
    alike | st.lists(cells, max_size=5),
    st.just([]) | st.lists(cells, max_size=3),
    st.just([]),
    st.integers(-1, 3),
    st.integers(0, (1 << 64) - 1),
    texts,
)


@given(texts, st.lists(st.binary(max_size=9), max_size=5), st.integers(-1, 9), st.integers(0, 9), texts)
def test_produce_once_is_encoded_as_it_is_declared(
    topic: str, values: list[bytes], partition: int, ttl_ms: int, schema: str
) -> None:
    declared = ProduceOnce(bytes(16), 0, 0, False, topic, values, (), (), partition, ttl_ms, schema)
    assert encode_produce_once(topic, values, partition, ttl_ms, schema) == encode_request(declared)


def test_what_no_short_form_of_produce_once_can_hold_is_left_to_its_declaration() -> None:
    assert encode_produce_once("t", [b"a", None], -1, 0, "") is None
    assert encode_produce_once("t", [bytes(PAYLOAD_BYTES_MAX)], -1, 0, "") is None
    assert encode_produce_once("t" * 70_000, [b"a"], -1, 0, "") is None


def told(payload: bytes) -> tuple[object, object]:
    """What the short way and the long one make of a payload, in the middle of other bytes."""
    data = b"before" + payload + b"behind"
    start, end = len(b"before"), len(data) - len(b"behind")
    return decode_produce_once(data, start, end), decode_request(ProduceOnce.opcode, data, start, end)


@given(requests)
def test_produce_once_is_decoded_as_it_is_declared(request: ProduceOnce) -> None:
    short, long = told(encode_request(request)[HEADER_BYTES:])
    assert long == request
    sizes = {0 if value is None else len(value) for value in request.values}
    if len(sizes) == 1 and 0 not in sizes and len(request.producer) == 16 and not request.keys:
        assert short == request
    else:
        assert short is None


@given(requests, st.data())
def test_a_damaged_produce_once_is_what_its_declaration_says(request: ProduceOnce, data: st.DataObject) -> None:
    payload = bytearray(encode_request(request)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.sampled_from([0, 1, 2, 127, 255]))
    short, long = told(bytes(payload[: data.draw(st.integers(0, len(payload)))]))
    assert short is None or short == long


def test_more_values_than_a_produce_once_may_have_are_refused() -> None:
    for count, refused in ((PRODUCED_RECORDS_MAX, False), (PRODUCED_RECORDS_MAX + 1, True)):
        payload = encode_request(ProduceOnce(bytes(16), 0, 0, False, "t", [b"v"] * count))[HEADER_BYTES:]
        short, long = told(payload)
        assert (short is None) == refused
        assert isinstance(long, ProduceOnce) != refused


@pytest.mark.parametrize(("count", "value_bytes"), [(0xFFFFFFFF, 0xFFFFFFFF), (1 << 31, 0xFFFFFFFF), (1, 0xFFFFFFFF)])
def test_numbers_that_no_frame_has_room_for_are_refused(count: int, value_bytes: int) -> None:
    payload = encode_request(ProduceOnce(bytes(16), 0, 0, False, "t", [b"v"]))[HEADER_BYTES:]
    at = payload.index(struct.pack(">II", 1, 1))
    short, long = told(payload[:at] + struct.pack(">II", count, value_bytes) + payload[at + 8 :])
    assert short is None
    assert isinstance(long, BadRequest)


@given(st.integers(0, 9999), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))
def test_the_reply_for_one_place_is_coded_as_it_is_declared(partition: int, offset: int, timestamp_ms: int) -> None:
    reply = encode_stored_together(partition, offset, timestamp_ms)
    assert reply == encode_reply(ProduceOnce, StoredOnce([], [(partition, offset, timestamp_ms)], []))
    assert decode_stored_together(reply[HEADER_BYTES:]) == (partition, offset, timestamp_ms)


@pytest.mark.parametrize(
    "reply",
    [
        StoredOnce([0, 1], [(0, 1, 2), (1, 1, 2)], []),
        StoredOnce([0, 65535], [(0, 1, 2)], [RecordFailure(1, "no")]),
        StoredOnce([65535], [], [RecordFailure(0, "refused by its size")]),
        StoredOnce([], [], []),
    ],
    ids=["two places", "one refused", "all refused", "nothing"],
)
def test_other_replies_are_left_to_their_declaration(reply: StoredOnce) -> None:
    payload = encode_reply(ProduceOnce, reply)[HEADER_BYTES:]
    assert decode_stored_together(payload) is None
    assert decode_reply(ProduceOnce, payload) == reply
