"""Any bytes in any chunks: the same frames, a bounded buffer, and no error but the two there are for it."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.frames import (
    Frame,
    FrameDecoder,
    decode_reply,
    decode_request,
    encode_frame,
    encode_message,
)
from penstock.protocols.felix.codec.messages import BinaryPublish, CachePut, Publish, PublishBatch
from penstock.protocols.felix.wire import HEADER_BYTES, PAYLOAD_BYTES_MAX

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SMALL = st.binary(max_size=40)
VALUES = st.one_of(st.lists(SMALL, max_size=40), st.lists(st.binary(min_size=3, max_size=3), max_size=40))
IDS = st.one_of(st.integers(0, (1 << 64) - 1), TEXTS)
FLAGS = st.one_of(st.sampled_from([0, 1, 9, 0x41, 0x49, 2, 4, 0x24, 0x22, 0x10, 0x1010]), st.integers(0, 0xFFFF))
MESSAGES = st.one_of(
    st.builds(Publish, tenant_id=TEXTS, namespace=TEXTS, stream=TEXTS, payload=SMALL, request_id=IDS),
    st.builds(PublishBatch, tenant_id=TEXTS, namespace=TEXTS, stream=TEXTS, payloads=VALUES),
    st.builds(CachePut, key=TEXTS, value=SMALL, request_id=IDS, ttl_ms=st.one_of(st.none(), st.integers(0, 1 << 40))),
)
FRAMES = st.one_of(
    MESSAGES.map(encode_message),
    st.builds(encode_frame, FLAGS, SMALL),
    st.builds(encode_frame, st.just(1), st.builds(binary.encode_publish, TEXTS, TEXTS, TEXTS, VALUES)),
)


def decoded(data: bytes, cuts: list[int]) -> tuple[list[Frame], bool]:
    """What comes out of the chunks, and whether it ended in a violation."""
    decoder = FrameDecoder()
    frames: list[Frame] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        frames += decoder.feed(data[start:stop])
    assert decoder.violation is not None or decoder.partial == (
        sum(HEADER_BYTES + len(frame.payload) for frame in frames) < len(data)
    )
    return frames, decoder.violation is not None


@given(st.lists(FRAMES, max_size=12), st.lists(st.integers(0, 2000), max_size=8))
def test_whole_frames_come_out_whole_however_they_are_cut(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    found, violated = decoded(data, cuts)
    assert not violated
    assert b"".join(encode_frame(frame.flags, frame.payload) for frame in found) == data


@given(st.lists(st.one_of(FRAMES, SMALL), max_size=12), st.lists(st.integers(0, 2000), max_size=8))
def test_any_bytes_give_the_same_frames_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    assert decoded(data, cuts) == decoded(data, [])


@given(FLAGS, st.one_of(SMALL, MESSAGES.map(lambda message: encode_message(message)[HEADER_BYTES:])))
@settings(max_examples=300)
def test_every_frame_is_a_request_or_is_refused_in_words(flags: int, payload: bytes) -> None:
    decode_request(Frame(flags, payload))
    try:
        decode_reply(Frame(flags, payload))
    except ProtocolViolation:
        pass


@given(MESSAGES)
def test_a_message_comes_back_as_it_was_written(message: Publish | PublishBatch | CachePut) -> None:
    (frame,) = FrameDecoder().feed(encode_message(message))
    assert decode_request(frame) == message


@given(TEXTS, TEXTS, TEXTS, VALUES, st.one_of(st.none(), SMALL), st.one_of(st.none(), st.integers(0, (1 << 64) - 1)))
def test_a_batch_comes_back_as_it_was_written(
    tenant_id: str, namespace: str, stream: str, values: list[bytes], key: bytes | None, request_id: int | None
) -> None:
    payload = binary.encode_publish(tenant_id, namespace, stream, values, key=key, request_id=request_id)
    flags = 1 | (8 if request_id is not None else 0) | (0x40 if key is not None else 0)
    assert decode_request(Frame(flags, payload)) == BinaryPublish(tenant_id, namespace, stream, values, key, request_id)


@given(FLAGS, st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_a_batch_with_a_byte_changed_is_read_or_refused(flags: int, tail: bytes, at: int, byte: int) -> None:
    payload = bytearray(binary.encode_publish("t", "n", "s", [b"one", b"two"], key=b"k", request_id=7) + tail)
    payload[at % len(payload)] = byte
    decode_request(Frame(flags, bytes(payload)))


@pytest.mark.parametrize("number", [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, PAYLOAD_BYTES_MAX + 1, PAYLOAD_BYTES_MAX])
def test_nothing_is_allocated_by_what_is_announced(number: int) -> None:
    names = b"\0\1t\0\1n\0\1s"
    size = number.to_bytes(4, "big")
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        decoder.feed(b"FLX1\0\1\0\1" + size)
        decoder.feed(bytes(1024))
        for payload in (names + size, names + b"\0\0\0\1" + size, names + size + bytes(1024)):
            for flags in (1, 9, 0x41, 0x49):
                decode_request(Frame(flags, payload))
        for flags in (2, 4, 0x22, 0x24):
            try:
                decode_reply(Frame(flags, bytes(16) + size))
            except ProtocolViolation:
                pass
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
