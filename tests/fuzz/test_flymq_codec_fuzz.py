"""FlyMQ's codec against any bytes in any chunks: only ProtocolViolation may come out, and chunking never matters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.protocols.flymq.codec.frames import (
    Call,
    CodecLimits,
    ProducedRun,
    Reply,
    ReplyDecoder,
    Request,
    RequestDecoder,
    Undecoded,
    decode_undecoded,
)
from penstock.protocols.flymq.codec.record_layouts import (
    Fetched,
    Placed,
    ProduceRun,
    Rows,
    decode_consumed,
    decode_fetched,
    encode_fetched,
    encode_produce,
    encode_produce_many,
    encode_produced,
)
from penstock.protocols.flymq.errors import decode_error
from penstock.protocols.flymq.operations.access import decode_authenticated, decode_refusal
from penstock.protocols.flymq.operations.blocks import decode_blocks, decode_plan
from penstock.protocols.flymq.operations.operation import (
    OPERATIONS,
    BadRequest,
    Operation,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from penstock.protocols.flymq.operations.records import Fetch, FetchRecords, Produce
from penstock.protocols.flymq.operations.transactions import TxnProduce, encode_txn_produces
from penstock.protocols.flymq.wire import AUTH_RESPONSE, ERROR, HEADER_BYTES, PARTITION_AUTO, frame
from tests.fuzz.flymq_messages import DECLARED, any_request, requests, values

LIMITS = CodecLimits(payload_bytes_max=4096, inflated_bytes_max=4096)

names = st.text(max_size=12)
numbers = st.integers(-(1 << 31), (1 << 31) - 1)
produces = st.builds(
    encode_produce,
    st.sampled_from(["a", "orders", "ör/ders", ""]),
    st.binary(max_size=40) | st.sampled_from([b"x" * 20, b"\0" * 20]),
    st.none() | st.sampled_from([b"k", b"key"]) | st.binary(max_size=5),
    st.sampled_from([-1, 0, 1]),
)
calls = any_request.filter(lambda request: not isinstance(request, Produce)).map(encode_request)
transactional = st.builds(
    lambda transaction, topic, value, key, partition, times: encode_txn_produces(
        transaction, topic, [value] * times, [key] * times, partition
    ),
    st.sampled_from(["txn-1", "txn-2", ""]),
    st.sampled_from(["a", "orders", "ör/ders"]),
    st.binary(max_size=40),
    st.none() | st.sampled_from([b"k", b"key"]),
    st.sampled_from([-1, 0, 1]),
    st.integers(1, 5),
)
any_frame = st.builds(frame, st.integers(0, 255), st.binary(max_size=60), st.integers(0, 255))


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Mostly good frames, long runs among them, with a byte changed, removed or added now and then."""
    frames = draw(
        st.lists(st.one_of(produces, produces.map(lambda f: f * 30), transactional, calls, any_frame), max_size=12)
    )
    data = bytearray(b"".join(frames))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["change", "remove", "add"])):
            case "change" if data:
                data[at] = draw(st.integers(0, 255))
            case "remove" if data:
                del data[at]
            case _:
                data.insert(at, draw(st.integers(0, 255)))
    return bytes(data)


def chunked(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


def decode(chunks: Sequence[bytes]) -> tuple[list[object], int, bool, bool]:
    """Records and calls one by one, the bytes they took, whether the framing broke, and whether a frame was left half received."""
    decoder = RequestDecoder(LIMITS)
    found: list[object] = []
    taken = 0
    for chunk in chunks:
        try:
            requests = decoder.feed(chunk)
        except ProtocolViolation:
            break
        for request in requests:
            taken += request.request_bytes
            found += flattened(request)
        if decoder.violation is not None:
            break
    return found, taken, decoder.violation is not None, decoder.partial


def flattened(request: Request) -> list[object]:
    if isinstance(request, Call) and isinstance(request.body, TxnProduce):
        run = request.body
        assert run.keys is None or (len(run.keys) == len(run.values) and any(run.keys))
        assert run.partitions is None or len(run.partitions) == len(run.values)
        count = len(run.values)
        keys, partitions = run.keys or [None] * count, run.partitions or [PARTITION_AUTO] * count
        return [(run.transaction, run.topic, *record) for record in zip(run.values, keys, partitions, strict=True)]
    if isinstance(request, Call):
        return [request]
    assert request.keys is None or len(request.keys) == len(request.values)
    assert request.keys is None or any(request.keys)
    assert request.partitions is None or len(request.partitions) == len(request.values)
    count = len(request.values)
    keys, partitions = request.keys or [None] * count, request.partitions or [request.partition] * count
    return [(request.topic, *record) for record in zip(request.values, keys, partitions, strict=True)]


def reference(data: bytes) -> tuple[list[object], int]:
    """The same stream read frame by frame, each by a decoder of its own: the slow way, which knows no runs."""
    found: list[object] = []
    position = 0
    while len(data) - position >= 8:
        length = int.from_bytes(data[position + 4 : position + 8])
        if data[position : position + 2] != b"\xaf\x01" or length > LIMITS.payload_bytes_max:
            break
        end = position + 8 + length
        if end > len(data):
            break
        [request] = RequestDecoder(LIMITS).feed(data[position:end])
        found += flattened(request)
        position = end
    return found, position


@given(streams(), st.lists(st.integers(0, 1 << 16), max_size=8))
@settings(max_examples=300)
def test_chunking_never_matters(data: bytes, cuts: list[int]) -> None:
    whole = decode([data])
    assert decode(chunked(data, cuts)) == whole
    assert whole[:2] == reference(data)


@given(streams())
@settings(max_examples=100)
def test_a_dripping_peer_is_understood_like_any_other(data: bytes) -> None:
    assert decode([data[at : at + 1] for at in range(len(data))]) == decode([data])


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
@example(b"\xaf\x01\x01\x01\xff\xff\xff\xff", [])
@example(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", [3])
def test_any_bytes_are_requests_or_a_violation(data: bytes, cuts: list[int]) -> None:
    decode(chunked(data, cuts))


@given(st.sampled_from([*OPERATIONS, AUTH_RESPONSE, ERROR]), st.binary(max_size=80))
@settings(max_examples=400)
def test_any_payload_of_any_opcode_is_a_request_or_says_what_is_wrong(opcode: int, payload: bytes) -> None:
    [request] = RequestDecoder(LIMITS).feed(frame(opcode, payload))
    if isinstance(request, Call) and isinstance(request.body, BadRequest):
        assert request.body.message.startswith(
            (
                "buffer too small: ",
                "invalid binary format: ",
                "invalid auth request: ",
                "unknown opcode: ",
            )
        )


fetches = st.builds(FetchRecords, names, numbers, st.integers(0, (1 << 64) - 1), numbers, names).map(
    lambda request: encode_request(request)[HEADER_BYTES:]
)


@given(fetches, st.integers(0, 60), st.binary(max_size=3), st.binary(max_size=4))
def test_fetch_records_is_read_by_hand_as_it_is_declared(payload: bytes, at: int, put: bytes, more: bytes) -> None:
    """Sound ones, and those with bytes changed, cut off and added."""
    for each in (payload, payload[:at] + put + payload[at + len(put) :], payload[:at], payload + more):
        [call] = RequestDecoder(LIMITS).feed(frame(FetchRecords.opcode, each) + frame(FetchRecords.opcode, payload))[:1]
        assert isinstance(call, Call)
        assert call.body == decode_request(FetchRecords.opcode, each)


@given(st.integers(0, 255), st.binary(max_size=80))
def test_any_gzip_payload_is_a_request_or_says_what_is_wrong(opcode: int, payload: bytes) -> None:
    request = decode_undecoded(Call(opcode, Undecoded(payload, gzip=True), len(payload)), LIMITS, lambda: None)
    assert isinstance(request, Call)
    assert isinstance(request.body, BadRequest)


@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.opcode_name)
@given(st.data())
@settings(max_examples=25)
def test_a_request_arrives_as_it_was(kind: type[Operation[Any]], data: st.DataObject) -> None:
    request = data.draw(requests(kind))
    assert decode_request(kind.opcode, encode_request(request)[HEADER_BYTES:]) == request


@pytest.mark.parametrize("kind", OPERATIONS.values(), ids=lambda kind: kind.opcode_name)
@given(st.data())
@settings(max_examples=25)
def test_a_reply_arrives_as_it_was(kind: type[Operation[Any]], data: st.DataObject) -> None:
    encoded = encode_reply(kind, data.draw(values(kind.reply)))
    assert encode_reply(kind, decode_reply(kind, encoded[HEADER_BYTES:])) == encoded


@given(any_request, st.integers(0, 1 << 16))
@settings(max_examples=300)
def test_a_part_of_a_request_is_a_request_or_says_what_is_wrong(request: Operation[Any], cut: int) -> None:
    payload = encode_request(request)[HEADER_BYTES:]
    decoded = decode_request(request.opcode, payload[: cut % (len(payload) + 1)])
    assert isinstance(decoded, type(request) | BadRequest)


@given(calls)
def test_every_request_our_client_sends_is_understood(data: bytes) -> None:
    [request] = RequestDecoder().feed(data)
    assert isinstance(request, Call)
    assert not isinstance(request.body, BadRequest)
    assert (request.opcode, request.request_bytes) == (data[2], len(data))


records = st.lists(st.tuples(st.none() | st.binary(min_size=1, max_size=8), st.binary(max_size=12)), max_size=60)


@given(names, records, numbers)
def test_produced_records_arrive_as_they_were(
    topic: str, pairs: list[tuple[bytes | None, bytes]], partition: int
) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    data = encode_produce_many(topic, values, keys, partition)
    requests = RequestDecoder().feed(data)
    if not pairs:
        assert requests == []
        return
    assert requests == [ProduceRun(topic, partition, keys if any(keys) else None, values, len(data))]


@given(records, st.integers(0, (1 << 63) - 1), st.booleans())
def test_fetched_records_arrive_as_they_were(
    pairs: list[tuple[bytes | None, bytes]], next_offset: int, native: bool
) -> None:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    rows = Rows(range(7, 7 + len(pairs)), keys, values)
    payload = encode_fetched(Fetch.opcode, [rows], next_offset, native=native)[8:]
    assert decode_fetched(payload, native=native) == Fetched(
        list(rows.offsets), keys if any(keys) else None, values, next_offset
    )


@given(names, st.lists(st.binary(max_size=9), min_size=1, max_size=40), st.lists(st.integers(0, 3000), max_size=4))
def test_acknowledgements_arrive_as_they_were(topic: str, values: list[bytes], cuts: list[int]) -> None:
    data = encode_produced(topic, None, values, [Placed(slice(None), 2, 5, 1_700_000_000_000)])
    decoder = ReplyDecoder()
    offsets: list[int] = []
    for chunk in chunked(data, cuts):
        for reply in decoder.feed(chunk):
            assert isinstance(reply, ProducedRun)
            assert reply.topic == topic
            offsets += reply.offsets
    assert offsets == list(range(5, 5 + len(values)))


@given(st.binary(max_size=120))
@settings(max_examples=300)
def test_any_payload_of_a_server_is_a_reply_or_a_violation(payload: bytes) -> None:
    decode_error(payload)
    decoders: list[Callable[[bytes], object]] = [partial(decode_reply, kind) for kind in OPERATIONS.values()]
    decoders += [decode_authenticated, decode_refusal, decode_blocks, decode_plan, decode_consumed]
    decoders += [partial(decode_fetched, native=native) for native in (True, False)]
    for decode_payload in decoders:
        with suppress(ProtocolViolation):
            decode_payload(payload)


@given(st.lists(st.binary(max_size=60) | produces | any_frame, max_size=6))
def test_any_bytes_of_a_server_are_replies_or_a_violation(chunks: list[bytes]) -> None:
    decoder = ReplyDecoder(LIMITS)
    for chunk in chunks:
        try:
            replies = decoder.feed(chunk)
        except ProtocolViolation:
            return
        assert all(isinstance(reply, Reply | ProducedRun) for reply in replies)
