"""Any bytes in any chunks: the same messages, a bounded buffer, and no error but ProtocolViolation."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from penstock.errors import ProtocolViolation
from penstock.protocols.blipmq import codec
from penstock.protocols.blipmq.codec import Decoder, Frame, IdRun, Message, PublishRun
from penstock.protocols.blipmq.wire import FrameType

IDS = st.integers(0, (1 << 64) - 1)
TEXTS = st.text(max_size=12)
SMALL = st.binary(max_size=40)
FRAMES = st.one_of(
    st.builds(codec.encode_publish, IDS, st.integers(0, 1), TEXTS, SMALL),
    st.builds(codec.encode_publish, IDS, st.just(1), st.just("t"), SMALL),
    st.builds(codec.encode_subscribe, IDS, TEXTS, st.integers(0, 255)),
    st.builds(codec.encode_ack, IDS, IDS),
    st.builds(codec.encode_poll, IDS, IDS),
    st.builds(codec.encode_ack, IDS, st.just(7)),
    st.builds(codec.encode_poll, IDS, st.just(7)),
    st.builds(codec.encode_auth, IDS, TEXTS),
    st.builds(codec.encode_nack, IDS, st.integers(0, 0xFFFF), TEXTS),
    st.builds(codec.encode_frame, st.sampled_from(list(FrameType)), IDS, SMALL),
)


def flattened(messages: list[Message]) -> list[tuple[object, ...]]:
    """Runs taken apart, so that where a chunk ended makes no difference."""
    flat: list[tuple[object, ...]] = []
    for message in messages:
        if isinstance(message, PublishRun):
            flat += [
                (message.qos, message.topic, *each)
                for each in zip(message.correlation_ids, message.values, strict=True)
            ]
        elif isinstance(message, IdRun):
            flat += [(message.type, message.subscription_id, each) for each in message.correlation_ids]
        else:
            flat.append(astuple(message))
    return flat


def decoded(data: bytes, cuts: list[int]) -> tuple[list[tuple[object, ...]], bool]:
    """What comes out of the chunks, and whether it ended in a violation."""
    decoder = Decoder()
    messages: list[Message] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, stop in pairwise(edges):
        try:
            messages += decoder.feed(data[start:stop])
        except ProtocolViolation:
            return flattened(messages), True
        if decoder.violation is not None:
            return flattened(messages), True
    return flattened(messages), False


@given(st.lists(FRAMES, max_size=20), st.lists(st.integers(0, 2000), max_size=8))
def test_whole_frames_come_out_whole_however_they_are_cut(frames: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames)
    whole, violated = decoded(data, [])
    assert not violated
    assert len(whole) == len(frames)
    assert decoded(data, cuts) == (whole, False)


@given(st.lists(st.one_of(FRAMES, SMALL), max_size=12), st.lists(st.integers(0, 2000), max_size=8))
def test_any_bytes_give_the_same_messages_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    assert decoded(data, cuts) == decoded(data, [])


@given(IDS, st.integers(0, 1), TEXTS, SMALL)
def test_a_publish_comes_back_as_it_was_written(correlation_id: int, qos: int, topic: str, value: bytes) -> None:
    [message] = Decoder(runs=False).feed(codec.encode_publish(correlation_id, qos, topic, value))
    assert isinstance(message, Frame)
    assert message.correlation_id == correlation_id
    assert codec.parse_publish(message.payload) == (qos, topic, value)


@given(SMALL)
@settings(max_examples=300)
def test_payloads_are_parsed_or_refused(payload: bytes) -> None:
    for parse in (
        codec.parse_publish,
        codec.parse_subscribe,
        codec.parse_auth,
        codec.parse_hello,
        codec.parse_id,
        codec.parse_nack,
    ):
        parse(payload)
