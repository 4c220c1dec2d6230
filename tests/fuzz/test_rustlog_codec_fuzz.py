"""Hypothesis over both RustLog codecs: whatever bytes come, however they are cut, each frame gets one message and nothing else escapes."""

from __future__ import annotations

import json
from itertools import accumulate, pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import ProtocolViolation
from penstock.protocols.rustlog.codec import binary_client, binary_dialect, json_client, json_dialect
from penstock.protocols.rustlog.codec.byte_arrays import cuts_of, encode_byte_arrays
from penstock.protocols.rustlog.codec.frames import ReplyDecoder, RequestDecoder
from penstock.protocols.rustlog.codec.messages import (
    BadRequest,
    Body,
    Call,
    CreateTopic,
    DescribePartition,
    DescribeTopic,
    Fetch,
    ListTopics,
    OffsetCommit,
    OffsetFetch,
    Ping,
    ProduceRun,
    Request,
)
from penstock.protocols.rustlog.wire import Dialect, frame

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
U32S = st.integers(0, 2**32 - 1)
U64S = st.integers(0, 2**64 - 1)
CALLS: st.SearchStrategy[Body] = st.one_of(
    st.builds(Fetch, NAMES, U32S, U64S, U32S, NAMES),
    st.builds(OffsetCommit, NAMES, U32S, NAMES, U64S),
    st.builds(OffsetFetch, NAMES, U32S, NAMES),
    st.builds(CreateTopic, NAMES, U32S),
    st.builds(DescribeTopic, NAMES),
    st.builds(DescribePartition, NAMES, U32S),
    st.just(ListTopics()),
    st.just(Ping()),
)
VALUES = st.one_of(
    st.lists(st.binary(max_size=30), min_size=1, max_size=30),
    st.builds(lambda value, count: [value] * count, st.binary(max_size=5), st.integers(1, 40)),
)
CLIENTS: dict[Dialect, Any] = {Dialect.BINARY: binary_client, Dialect.JSON: json_client}
DIALECTS = st.sampled_from(list(CLIENTS))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.sampled_from(["topic", "partition", "records", "offset", "max_bytes", "group_id", "partition_count", "x"])
REQUEST_NAMES = st.sampled_from([name.decode() for name in json_dialect._READERS]) | NAMES


def all_of(data: bytes, cuts: list[int]) -> list[Request]:
    """What a decoder makes of data that comes in pieces, runs taken apart into their frames."""
    decoder = RequestDecoder()
    pieces = pairwise(sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)}))
    requests: list[Request] = []
    for start, stop in pieces:
        for request in decoder.feed(data[start:stop]):
            requests += frames_of(request) if isinstance(request, ProduceRun) else [request]
    return requests


def frames_of(run: ProduceRun) -> list[ProduceRun]:
    """Each frame as a run of its own."""
    starts = accumulate(run.counts[:-1], initial=0)
    return [
        ProduceRun(run.dialect, run.topic, run.partition, run.values[start : start + count], [count], 0)
        for start, count in zip(starts, run.counts, strict=True)
    ]


def places(request: Request) -> tuple[object, ...]:
    if isinstance(request, ProduceRun):
        return request.dialect, request.topic, request.partition, request.values
    return (request,)


@given(
    st.lists(st.tuples(DIALECTS, st.tuples(NAMES, U32S, VALUES) | CALLS), max_size=6),
    st.lists(st.integers(0), max_size=8),
)
def test_what_clients_send_arrives_however_it_is_cut(
    sent: list[tuple[Dialect, tuple[str, int, list[bytes]] | Body]], cuts: list[int]
) -> None:
    data = b"".join(
        CLIENTS[dialect].encode_produce(*each) if isinstance(each, tuple) else CLIENTS[dialect].encode_call(each)
        for dialect, each in sent
    )
    received = all_of(data, cuts)
    assert len(received) == len(sent)
    for (dialect, each), request in zip(sent, received, strict=True):
        assert isinstance(request, ProduceRun | Call)
        assert request.dialect is dialect
        if isinstance(request, ProduceRun):
            assert (request.topic, request.partition, request.values) == each
        else:
            assert request.body == each


@given(st.binary(min_size=1, max_size=200), st.lists(st.integers(0), max_size=4))
@example(bytes.fromhex("01 00 01 61 00 00 00 00 ff ff ff ff"), [])
@example(b'{"Ping":{}}', [3])
@example(b"\n", [])
@example(b"\t{", [])
def test_any_payload_is_one_message(payload: bytes, cuts: list[int]) -> None:
    requests = all_of(frame(payload) + binary_client.encode_call(Ping()), cuts)
    assert len(requests) == 2
    assert isinstance(requests[1], Call)
    assert requests[1].body == Ping()


@given(st.binary(max_size=300), st.lists(st.integers(0), max_size=8))
def test_any_stream_is_the_same_however_it_is_cut(data: bytes, cuts: list[int]) -> None:
    assert list(map(places, all_of(data, cuts))) == list(map(places, all_of(data, [])))


@given(REQUEST_NAMES, st.dictionaries(FIELDS, JSON_VALUES, max_size=6))
def test_json_of_any_shape_is_a_request_or_a_fault(name: str, fields: dict[str, object]) -> None:
    text = json.dumps({name: fields}).encode()
    [request] = all_of(frame(text), [])
    if isinstance(request, Call) and not isinstance(request.body, BadRequest):
        assert name.encode() in json_dialect._READERS


@given(CALLS, st.integers(0), st.integers(0, 255))
def test_a_byte_that_is_wrong_never_breaks_the_decoder(body: Body, at: int, byte: int) -> None:
    for client in CLIENTS.values():
        data = bytearray(client.encode_call(body))
        data[4 + at % (len(data) - 4)] = byte
        assert len(all_of(bytes(data), [])) == 1


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_byte_arrays_are_what_json_makes_of_them(values: list[bytes]) -> None:
    cells = encode_byte_arrays(b"".join(values), cuts_of(values))
    assert [json.loads(b"[" + cell + b"]") for cell in cells] == [list(value) for value in values]


@given(
    st.lists(st.lists(st.integers(0, 255), max_size=20), max_size=20),
    st.lists(st.sampled_from(["", " ", "\n\t ", " " * 30]), min_size=1),
    st.integers(1, 60),
)
def test_records_decoded_in_steps_are_those_decoded_at_once(
    records: list[list[int]], blanks: list[str], step_bytes: int
) -> None:
    pieces = [piece for mark in json.dumps(records).replace(" ", "").split(",") for piece in (mark, ",")][:-1]
    text = "".join(piece + blanks[n % len(blanks)] for n, piece in enumerate(pieces)).encode()
    assert json_dialect.take_records(text, lambda: None, step_bytes) == [bytes(record) for record in records]


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(0, 2**62))
def test_fetched_records_arrive_in_both_dialects(values: list[bytes], base: int) -> None:
    following = base + len(values)
    binary = binary_dialect.encode_fetched([binary_dialect.encode_values(values)], len(values), following)
    cells = encode_byte_arrays(b"".join(values), cuts_of(values))
    records = json_dialect.encode_records(range(base, following), cells, first=True) if values else []
    for client, reply in ((binary_client, binary), (json_client, json_dialect.encode_fetched(records, following))):
        fetched = client.decode_fetched(reply[4:])
        assert (list(fetched.offsets), list(fetched.values), fetched.next_offset) == (
            list(range(base, following)),
            values,
            following,
        )
        assert client.next_offset(reply[4:]) == following


@given(st.binary(max_size=200))
def test_a_client_takes_any_bytes_for_replies_or_a_violation(data: bytes) -> None:
    try:
        replies = ReplyDecoder().feed(data)
    except ProtocolViolation:
        return
    for reply in replies:
        for decode in (
            CLIENTS[reply.dialect].decode_produced,
            CLIENTS[reply.dialect].decode_fetched,
            CLIENTS[reply.dialect].next_offset,
            CLIENTS[reply.dialect].decode_success,
            CLIENTS[reply.dialect].decode_committed_offset,
            CLIENTS[reply.dialect].decode_topics,
            CLIENTS[reply.dialect].decode_metrics,
            CLIENTS[reply.dialect].decode_error,
        ):
            try:
                decode(reply.payload)
            except ProtocolViolation:
                pass
