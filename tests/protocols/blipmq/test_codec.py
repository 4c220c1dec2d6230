"""Frames out of any chunking, runs of publishes, and what cannot be encoded."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidRequest, ProtocolViolation
from penstock.protocols.blipmq import codec
from penstock.protocols.blipmq.codec import RUN_BYTES_MAX, Decoder, Frame, IdRun, PublishRun
from penstock.protocols.blipmq.wire import LENGTH_MAX, FrameType


def publishes(count: int, topic: str = "t", qos: int = 1, first: int = 0) -> bytes:
    return b"".join(codec.encode_publish(n, qos, topic, b"%d" % n) for n in range(first, first + count))


def test_publishes_alike_become_one_run() -> None:
    data = publishes(1000)
    [run] = Decoder().feed(data)
    assert run == PublishRun(1, "t", list(range(1000)), [b"%d" % n for n in range(1000)], len(data))


def test_another_topic_qos_or_frame_ends_a_run() -> None:
    data = publishes(2) + publishes(2, "tt") + publishes(1, qos=0) + codec.encode_ping(9) + publishes(1)
    found = [
        (each.topic, each.qos, len(each.values)) if isinstance(each, PublishRun) else each
        for each in Decoder().feed(data)
    ]
    assert found == [("t", 1, 2), ("tt", 1, 2), ("t", 0, 1), Frame(FrameType.PING, 9, b""), ("t", 1, 1)]


def test_polls_and_acknowledgements_alike_become_one_run_each() -> None:
    data = b"".join(codec.encode_ack(tag, 7) for tag in (3, 1, 2)) + codec.encode_poll(4, 7) * 2
    data += codec.encode_poll(5, 8) + codec.encode_frame(FrameType.POLL, 6, bytes(9)) + codec.encode_poll(6, 8)
    for cut in range(len(data)):
        decoder = Decoder()
        found = decoder.feed(data[:cut]) + decoder.feed(data[cut:])
        assert [each for each in found if isinstance(each, Frame)] == [Frame(FrameType.POLL, 6, bytes(9))]
        frames = [
            (each.type, each.subscription_id, n)
            for each in found
            if isinstance(each, IdRun)
            for n in each.correlation_ids
        ]
        assert frames == [(5, 7, 3), (5, 7, 1), (5, 7, 2), (9, 7, 4), (9, 7, 4), (9, 8, 5), (9, 8, 6)]
    whole = Decoder().feed(data)
    assert whole[:2] == [IdRun(5, 7, [3, 1, 2]), IdRun(9, 7, [4, 4])]
    assert sum(each.size_bytes for each in whole) == len(data)


def test_every_poll_of_a_run_counts_towards_the_bound_of_one_feed() -> None:
    decoder = Decoder(messages_max=3)
    first = decoder.feed(codec.encode_ping(1) + codec.encode_poll(2, 7) * 4)
    assert first == [Frame(FrameType.PING, 1, b""), IdRun(9, 7, [2, 2])]
    assert decoder.more
    assert decoder.feed(b"") == [IdRun(9, 7, [2, 2])]
    assert not decoder.more


def test_a_publish_shorter_than_the_one_before_it_is_not_taken_for_one_like_it() -> None:
    data = codec.encode_publish(1, 1, "topic", b"x") + codec.encode_frame(FrameType.PUBLISH, 2, b"\1\0\5to")
    run, bad = Decoder().feed(data + codec.encode_publish(3, 1, "topic", b""))[:2]
    assert isinstance(run, PublishRun)
    assert run.values == [b"x"]
    assert bad == Frame(FrameType.PUBLISH, 2, b"\1\0\5to")


def test_a_run_ends_where_it_is_large() -> None:
    data = b"".join(codec.encode_publish(n, 1, "t", bytes(1000)) for n in range(3000))
    runs = Decoder().feed(data)
    assert len(runs) == 3
    assert all(run.size_bytes < RUN_BYTES_MAX + 1100 for run in runs)
    assert sum(len(run.values) for run in runs if isinstance(run, PublishRun)) == 3000


def test_a_frame_may_come_byte_by_byte() -> None:
    decoder = Decoder()
    data = codec.encode_subscribe(3, "demo", 1) + codec.encode_publish(4, 0, "demo", b"hi")
    found = []
    for at in range(len(data)):
        found += decoder.feed(data[at : at + 1])
        assert decoder.partial == (at + 1 not in (len(codec.encode_subscribe(3, "demo", 1)), len(data)))
    assert found == [Frame(FrameType.SUBSCRIBE, 3, b"\0\4demo\1"), PublishRun(0, "demo", [4], [b"hi"], 22)]


def test_the_length_is_checked_as_soon_as_it_is_there() -> None:
    decoder = Decoder()
    assert decoder.feed(b"\xff\xff\xff") == []
    with pytest.raises(ProtocolViolation, match="4294967295 is out of bounds"):
        decoder.feed(b"\xff")


def test_the_largest_frame_is_legal_and_one_more_byte_is_not() -> None:
    value = bytes(LENGTH_MAX - 9 - 3 - 1)
    data = codec.encode_publish(1, 1, "t", value)
    [run] = Decoder().feed(data)
    assert isinstance(run, PublishRun)
    assert run.values == [value]
    with pytest.raises(InvalidRequest, match="does not fit"):
        codec.encode_publish(1, 1, "t", value + b"x")
    with pytest.raises(ProtocolViolation):
        Decoder().feed((LENGTH_MAX + 1).to_bytes(4, "big"))


def test_an_announced_length_allocates_nothing() -> None:
    decoder = Decoder()
    decoder.feed(LENGTH_MAX.to_bytes(4, "big") + b"\3")
    assert decoder.kept_bytes == 5


def test_a_client_sees_single_deliveries() -> None:
    assert [type(each) for each in Decoder(runs=False).feed(publishes(2))] == [Frame, Frame]


def test_a_reason_is_cut_where_it_is_too_long_and_stays_text() -> None:
    frame = codec.encode_nack(1, 500, "é" * 2000)
    parsed = codec.parse_nack(frame[13:])
    assert parsed == (500, "é" * 512)


def test_a_topic_longer_than_its_length_field_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="65536 bytes"):
        codec.encode_subscribe(1, "x" * 65_536, 1)


@pytest.mark.parametrize("payload", [b"", b"\1\x90\0", b"\1\x90\0\3ab", b"\1\x90\0\1ab"])
def test_a_malformed_refusal_is_none(payload: bytes) -> None:
    assert codec.parse_nack(payload) is None


def test_what_is_beyond_the_bound_of_one_feed_is_decoded_by_the_next() -> None:
    decoder = Decoder(messages_max=3)
    feeds = [decoder.feed(codec.encode_ping(1) * 7 + codec.encode_ping(1)[:5])]
    while decoder.more:
        feeds.append(decoder.feed(b""))
    assert [len(messages) for messages in feeds] == [3, 3, 1]
    assert decoder.partial
    assert decoder.kept_bytes == 5
