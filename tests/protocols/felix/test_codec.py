"""Frames and messages: bounds, fragments, and what makes no sense."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from penstock.columns import UniformCells
from penstock.errors import InvalidRequest, ProtocolViolation
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.frames import (
    JSON_COMMAS_MAX,
    Frame,
    FrameDecoder,
    decode_reply,
    decode_request,
    encode_frame,
)
from penstock.protocols.felix.codec.messages import (
    BATCH_EVENTS_MAX,
    ID_CHARS_MAX,
    KEY_CHARS_MAX,
    NAME_CHARS_MAX,
    Auth,
    BadRequest,
    BinaryPublish,
    CacheGet,
    Ok,
    PublishBatch,
    PublishOk,
)
from penstock.protocols.felix.wire import HEADER, MAGIC, PAYLOAD_BYTES_MAX


def refused(payload: bytes | str | dict[str, object], flags: int = 0) -> BadRequest:
    if isinstance(payload, dict):
        payload = json.dumps(payload)
    request = decode_request(Frame(flags, payload.encode() if isinstance(payload, str) else payload))
    assert isinstance(request, BadRequest)
    return request


# --- frames ---------------------------------------------------------------------------------------------------------------


def test_frames_are_the_same_one_byte_at_a_time() -> None:
    data = encode_frame(0, b"") + encode_frame(1, b"abc") + encode_frame(0x8049, bytes(300))
    decoder = FrameDecoder()
    frames: list[Frame] = []
    for at in range(len(data)):
        frames += decoder.feed(data[at : at + 1])
        assert decoder.partial == (sum(12 + len(frame.payload) for frame in frames) != at + 1)
    assert frames == [Frame(0, b""), Frame(1, b"abc"), Frame(0x8049, bytes(300))]


def test_a_stream_that_ends_inside_a_header_ends_cleanly_and_one_inside_a_payload_does_not() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(0, b"abc")[:11])
    assert decoder.partial
    assert not decoder.payload_begun
    decoder.feed(encode_frame(0, b"abc")[11:13])
    assert decoder.payload_begun


def test_the_largest_frame_is_taken_and_a_larger_one_refused_before_its_payload_comes() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(HEADER.pack(MAGIC, 1, 0, PAYLOAD_BYTES_MAX)) == []
    assert decoder.violation is None
    (frame,) = decoder.feed(bytes(PAYLOAD_BYTES_MAX))
    assert len(frame.payload) == 16_777_216
    assert decoder.feed(encode_frame(0, b"x") + HEADER.pack(MAGIC, 1, 0, PAYLOAD_BYTES_MAX + 1)) == [Frame(0, b"x")]
    assert "at most 16777216" in str(decoder.violation)
    assert decoder.feed(encode_frame(0, b"x")) == []


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"GET / HTTP/1.", "this is not Felix"),
        (HEADER.pack(MAGIC, 2, 0, 0), "version 2 is not known"),
        (HEADER.pack(MAGIC, 1, 0, 0xFFFFFFFF), "too long"),
    ],
)
def test_a_header_that_cannot_be_one_is_the_end(header: bytes, reason: str) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(header) == []
    assert reason in str(decoder.violation)


# --- JSON -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"nonsense", b"\xff\xfe", b'{"type":"cache_get","key":"k"}x', b"[" * 9000]
)
def test_what_is_no_json_is_refused(payload: bytes) -> None:
    assert refused(payload).text.startswith(("malformed JSON", "malformed message"))


def test_more_elements_than_a_batch_may_have_are_refused_before_they_are_decoded() -> None:
    names = b'{"type":"publish_batch","tenant_id":"t","namespace":"n","stream":"s","payloads":['
    most = decode_request(Frame(0, names + b'"",' * (BATCH_EVENTS_MAX - 1) + b'""]}'))
    assert isinstance(most, PublishBatch)
    assert len(most.payloads) == BATCH_EVENTS_MAX
    assert refused(b"," * (JSON_COMMAS_MAX + 1)).text.startswith("a message has too many elements: at most 500000")


def test_an_acked_batch_with_a_stray_quote_is_no_json() -> None:
    stray = (
        b'{"type":"publish_batch","tenant_id":"t","namespace":"n","stream":"s","payloads":["YQ=="]","ack":"per_batch"}'
    )
    assert "malformed JSON" in refused(stray).text


@pytest.mark.parametrize("kind", ["unsubscribe", None, 7, ["auth"]])
def test_an_unknown_type_is_refused_with_those_there_are(kind: object) -> None:
    bad = refused({"type": kind, "request_id": "r9"})
    assert "unknown message type" in bad.text
    assert "cache_get" in bad.text
    assert bad.request_id == "r9"


@pytest.mark.parametrize("kind", ["ok", "event", "cache_value", "publish_ok", "event_stream_hello"])
def test_what_only_a_broker_says_is_refused(kind: str) -> None:
    assert refused({"type": kind}).text == f"unexpected message type {kind}: only a broker sends it"


@pytest.mark.parametrize(
    "fields",
    [
        {"payload": "YQ"},
        {"payload": "Y Q=="},
        {"payload": "_-8="},
        {"payload": 7},
        {"payload": "YQ==", "ack": "sometimes"},
        {"payload": "YQ==", "stream": None},
        {"payload": "YQ==", "request_id": 1.5},
        {"payload": "YQ==", "request_id": True},
        {"payload": "YQ==", "request_id": -1},
        {"payload": "YQ==", "request_id": 1 << 64},
    ],
)
def test_a_field_of_another_kind_is_refused(fields: dict[str, object]) -> None:
    scope = {"tenant_id": "t", "namespace": "n", "stream": "s"}
    assert refused({"type": "publish", **scope, **fields}).text


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "cache_put", "key": "k", "value": "", "ttl_ms": -1},
        {"type": "cache_put", "key": "k", "value": "", "ttl_ms": 1 << 64},
        {"type": "cache_put", "key": "k", "value": "", "ttl_ms": 10**400},
        {"type": "subscribe", "tenant_id": "t", "namespace": "n", "stream": "s", "subscription_id": 1 << 64},
    ],
)
def test_a_number_that_is_out_of_range_is_refused_with_the_id_of_its_request(fields: dict[str, object]) -> None:
    bad = refused({**fields, "request_id": "r"})
    assert "out of range" in bad.text
    assert bad.request_id == "r"


def test_flags_of_a_client_may_be_null_and_are_never_negative() -> None:
    auth = {"type": "auth", "tenant_id": "t", "token": "x"}
    assert decode_request(Frame(0, json.dumps({**auth, "client_flags": None}).encode())) == Auth(
        tenant_id="t", token="x", client_flags=None
    )
    assert "client_flags -1 is out of range" in refused({**auth, "client_flags": -1}).text


@pytest.mark.parametrize(
    ("field", "chars_max"),
    [
        ("request_id", ID_CHARS_MAX),
        ("key", KEY_CHARS_MAX),
        ("tenant_id", NAME_CHARS_MAX),
        ("namespace", NAME_CHARS_MAX),
        ("cache", NAME_CHARS_MAX),
    ],
)
def test_what_an_answer_repeats_is_bounded(field: str, chars_max: int) -> None:
    request: dict[str, object] = {"type": "cache_get", "key": "k"}
    longest = decode_request(Frame(0, json.dumps({**request, field: "x" * chars_max}).encode()))
    assert isinstance(longest, CacheGet)
    bad = refused({**request, field: "x" * (chars_max + 1)})
    assert f"length <= {chars_max}" in bad.text
    assert not isinstance(bad.request_id, str)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":7,"request_id":[' + b"[]," * 500_000 + b"[]]}",
        b'{"type":[' + b"{}," * 500_000 + b"{}]}",
        b'{"type":"' + b"x" * 1_500_000 + b'"}',
    ],
    ids=["id", "type", "text"],
)
def test_nothing_is_made_of_what_is_no_message(payload: bytes) -> None:
    tracemalloc.start()
    try:
        assert len(refused(payload).text) < 200
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * len(payload)


def test_the_id_of_what_makes_no_sense_is_found_where_there_is_one() -> None:
    assert refused({"type": "publish", "request_id": 7}).request_id == 7
    assert refused({"type": "cache_get", "request_id": "r"}).request_id == "r"
    assert not isinstance(refused({"type": "cache_get", "request_id": {}}).request_id, int | str)


# --- binary ---------------------------------------------------------------------------------------------------------------

NAMES = b"\x00\x01t\x00\x01n\x00\x01s"


@pytest.mark.parametrize("flags", [0x0002, 0x0004, 0x0010, 0x0020, 0x0080, 0x0101, 0x0109, 0x0008, 0x0040, 0x0048])
def test_bits_that_mean_something_else_to_others_are_refused(flags: int) -> None:
    assert "unsupported frame flags" in refused(NAMES + bytes(4), flags).text


@pytest.mark.parametrize("flags", [0, 0x0001, 0x0009, 0x0041, 0x0049])
def test_a_bit_that_means_nothing_to_anyone_is_ignored(flags: int) -> None:
    payload = b'{"type":"cache_get","key":"k"}'
    if flags:
        key = b"k" if flags & 0x40 else None
        payload = binary.encode_publish("t", "n", "s", [b"x"], key=key, request_id=7 if flags & 8 else None)
    request = decode_request(Frame(flags, payload))
    assert not isinstance(request, BadRequest)
    assert decode_request(Frame(flags | 0x8000, payload)) == request


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "tenant_id"),
        (b"\x00\x05t", "tenant_id needs 5 bytes"),
        (b"\x00\x02\xff\xfe", "not valid UTF-8"),
        (NAMES, "count of payloads"),
        (NAMES + b"\xff\xff\xff\xff", "4294967295 payloads are announced"),
        (NAMES + b"\x00\x00\x00\x02" + bytes(7), "2 payloads are announced"),
        (NAMES + b"\x00\x00\x00\x01" + b"\xff\xff\xff\xff", "payload 0 of 1 runs past the end"),
        (NAMES + b"\x00\x00\x00\x20" + b"\x00\x00\x00\x01x" * 31 + bytes(4) + b"!", None),
        (NAMES + b"\x00\x00\x00\x20" + b"\x00\x00\x00\x01x" * 31 + b"\x00\x00\x00\x09!", "payload 31 of 32"),
    ],
)
def test_lengths_and_counts_that_lie_are_refused(payload: bytes, reason: str | None) -> None:
    if reason is None:
        batch = decode_request(Frame(1, payload))
        assert isinstance(batch, BinaryPublish)
        assert batch.payloads == [b"x"] * 31 + [b""]
    else:
        assert reason in refused(payload, 1).text


def test_a_batch_has_a_bounded_number_of_events() -> None:
    head = NAMES + (BATCH_EVENTS_MAX + 1).to_bytes(4, "big")
    assert "too many" in refused(head + bytes(4 * (BATCH_EVENTS_MAX + 1)), 1).text
    scope = {"type": "publish_batch", "tenant_id": "t", "namespace": "n", "stream": "s"}
    assert "malformed publish_batch" in refused({**scope, "payloads": [""] * (BATCH_EVENTS_MAX + 1)}).text


def test_an_acked_batch_that_makes_no_sense_is_answered_by_its_id() -> None:
    bad = refused((7).to_bytes(8, "big") + b"\x03" + NAMES, 0x0009)
    assert (bad.request_id, bad.binary) == (7, True)
    assert "ack mode 3" in bad.text
    assert not refused(b"\x00\x00", 0x0009).binary


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000])
@pytest.mark.parametrize("size_bytes", [0, 1, 100])
def test_batches_of_one_size_come_apart_as_others_do(count: int, size_bytes: int) -> None:
    values = [bytes((row % 256,)) * size_bytes for row in range(count)]
    for batch in (values, [*values, b"odd one out"], [b"odd one out", *values]):
        data = binary.join_payloads(batch)
        assert binary.split_payloads(b"head" + data[4:] + b"tail", 4, len(batch)) == batch


def test_a_batch_of_one_size_stays_one_piece_and_is_laid_out_as_it_came() -> None:
    values = [b"%04d" % row for row in range(100)]
    data = binary.join_payloads(values)
    column = binary.split_payloads(data, 4, len(values))
    assert isinstance(column, UniformCells)
    assert binary.join_payloads(column) == data


def test_a_key_that_is_too_long_is_not_sent() -> None:
    with pytest.raises(InvalidRequest, match="65536 bytes does not fit"):
        binary.encode_publish("t", "n", "s", [b"x"], key=bytes(65536))


# --- the client's side ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "payload"),
    [
        (0, b"{}"),
        (0, b'{"type":"auth"}'),
        (0, b""),
        (1, NAMES + bytes(4)),
        (0x0010, b"\x00"),
        (0x0004, b"\xff" * 4),
        (0x0006, b""),
    ],
)
def test_what_no_broker_says_is_refused(flags: int, payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decode_reply(Frame(flags, payload))


def test_fields_that_nobody_knows_are_ignored_in_answers_too() -> None:
    assert decode_reply(Frame(0, b'{"type":"ok","later":[1,{"a":null}]}')) == Ok()
    assert decode_reply(Frame(0, b'{"later":1,"request_id":7,"offset":3,"type":"publish_ok"}')) == PublishOk(
        request_id=7, offset=3
    )


def test_a_long_error_text_is_cut_between_two_characters() -> None:
    ack = decode_reply(Frame(0x0010, binary.encode_failed_ack(1, "ü" * 2000)))
    assert ack == binary.PublishAck(1, "ü" * 512)


def test_a_null_stands_for_a_name_that_is_left_out() -> None:
    request = decode_request(Frame(0, b'{"type":"cache_get","key":"k","tenant_id":null,"request_id":null}'))
    assert isinstance(request, CacheGet)
    assert (request.tenant_id, request.request_id) == (None, None)


def test_what_is_beyond_the_bound_of_one_feed_is_decoded_by_the_next() -> None:
    decoder = FrameDecoder(frames_max=3)
    feeds = [decoder.feed(encode_frame(0, b"x") * 7 + encode_frame(0, b"x")[:5])]
    while decoder.more:
        feeds.append(decoder.feed(b""))
    assert [len(frames) for frames in feeds] == [3, 3, 1]
    assert decoder.partial
    assert decoder.kept_bytes == 5
