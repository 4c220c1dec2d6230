"""Frames to requests: dialects, joining, faults, lengths and counts that lie, and what a peer can make us hold."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from penstock.errors import ProtocolViolation
from penstock.protocols.rustlog.codec import binary_client, json_client, json_dialect, messages
from penstock.protocols.rustlog.codec.binary_dialect import encode_error, encode_produced
from penstock.protocols.rustlog.codec.byte_arrays import cuts_of, encode_byte_arrays
from penstock.protocols.rustlog.codec.frames import RUN_RECORDS_MAX, ReplyDecoder, RequestDecoder
from penstock.protocols.rustlog.wire import (
    DECODED_ON_LOOP_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    RECORDS_PER_PRODUCE_MAX,
    Dialect,
    Opcode,
    dialect_of,
    frame,
)

CALLS: list[tuple[Opcode, messages.Body]] = [
    (Opcode.FETCH, messages.Fetch("orders", 3, 2**64 - 1, 2**32 - 1, "g")),
    (Opcode.FETCH, messages.Fetch("orders", 0, 0, 0, "")),
    (Opcode.OFFSET_COMMIT, messages.OffsetCommit("orders", 2**32 - 1, "g", 7)),
    (Opcode.OFFSET_FETCH, messages.OffsetFetch("örders", 1, "g")),
    (Opcode.CREATE_TOPIC, messages.CreateTopic("a", 5)),
    (Opcode.LIST_TOPICS, messages.ListTopics()),
    (Opcode.DESCRIBE_TOPIC, messages.DescribeTopic("")),
    (Opcode.DESCRIBE_PARTITION, messages.DescribePartition("a", 9)),
    (Opcode.METRICS, messages.Metrics()),
    (Opcode.PING, messages.Ping()),
]


def decode(data: bytes) -> list[messages.Request]:
    return RequestDecoder().feed(data)


def fault(payload: bytes) -> str:
    """What is wrong with the one request of a frame."""
    [request] = decode(frame(payload))
    if isinstance(request, messages.Undecoded):
        request = json_dialect.decode_request(request.payload)
    assert isinstance(request, messages.Call)
    assert isinstance(request.body, messages.BadRequest)
    return request.body.message


def body(text: str | bytes) -> messages.Body:
    [request] = decode(frame(text.encode() if isinstance(text, str) else text))
    assert isinstance(request, messages.Call)
    return request.body


# --- which dialect ---


@pytest.mark.parametrize(
    ("payload", "dialect"),
    [
        (b"{", Dialect.JSON),
        (b'"Ping"', Dialect.JSON),
        (b"[1]", Dialect.JSON),
        (b" x", Dialect.JSON),
        (b"\r", Dialect.JSON),
        (b'\n{"Ping":{}}', Dialect.JSON),
        (b'\t \n{"Ping":{}}', Dialect.JSON),
        (b"\n", Dialect.BINARY),
        (b"\n\x00", Dialect.BINARY),
        (b"\t", Dialect.BINARY),
        (b"\t trailing", Dialect.BINARY),
        (b"\x01", Dialect.BINARY),
        (b"\xff", Dialect.BINARY),
        (b"\x00", Dialect.BINARY),
        (b"GET /", Dialect.BINARY),
    ],
)
def test_the_first_byte_tells_the_dialect(payload: bytes, dialect: Dialect) -> None:
    assert dialect_of(payload) is dialect


# --- requests ---


@pytest.mark.parametrize(("opcode", "message"), CALLS)
def test_what_a_client_encodes_the_server_reads_in_either_dialect(opcode: Opcode, message: messages.Body) -> None:
    for dialect, client in ((Dialect.BINARY, binary_client), (Dialect.JSON, json_client)):
        data: bytes = client.encode_call(message)
        assert decode(data) == [messages.Call(dialect, opcode, message, len(data))]


@pytest.mark.parametrize(
    "values", [[b""], [b"one", b"", b"three" * 100], [b"abc"] * 40, [b""] * 40, [bytes(range(256))]]
)
def test_records_arrive_as_they_were_sent(values: list[bytes]) -> None:
    for client in (binary_client, json_client):
        [run] = decode(client.encode_produce("t", 4, values))
        assert isinstance(run, messages.ProduceRun)
        assert (run.topic, run.partition, run.values, run.counts) == ("t", 4, values, [len(values)])


def test_frames_for_one_partition_in_one_read_are_one_run() -> None:
    data = b"".join(binary_client.encode_produce("t", 0, values) for values in ([b"1", b"2"], [b"3"], [b"4"]))
    [run] = decode(data)
    assert isinstance(run, messages.ProduceRun)
    assert (run.values, run.counts) == ([b"1", b"2", b"3", b"4"], [2, 1, 1])


@pytest.mark.parametrize(
    "other",
    [
        binary_client.encode_produce("u", 0, [b"2"]),
        binary_client.encode_produce("t", 1, [b"2"]),
        json_client.encode_produce("t", 0, [b"2"]),
        binary_client.encode_produce("t", 0, []),
        binary_client.encode_produce("t", 0, [b""] * RUN_RECORDS_MAX),
        binary_client.encode_call(messages.Ping()),
    ],
)
def test_frames_for_other_places_are_not_joined(other: bytes) -> None:
    assert len(decode(binary_client.encode_produce("t", 0, [b"1"]) + other)) == 2


def test_a_frame_may_come_byte_by_byte() -> None:
    decoder = RequestDecoder()
    data = binary_client.encode_produce("t", 0, [b"one"]) + json_client.encode_call(messages.Ping())
    requests: list[messages.Request] = []
    for at in range(len(data)):
        requests += decoder.feed(data[at : at + 1])
        assert decoder.partial == (at + 1 not in {len(data), data.index(b'{"Ping') - 4})
    assert [type(request) for request in requests] == [messages.ProduceRun, messages.Call]


def test_what_follows_a_complete_binary_request_is_ignored() -> None:
    [call] = decode(frame(b"\xff trailing"))
    assert isinstance(call, messages.Call)
    assert call.body == messages.Ping()


# --- broken frames ---


@pytest.mark.parametrize("length", [0, PAYLOAD_BYTES_MAX + 1, 0xFFFF_FFFF])
def test_an_impossible_length_is_the_last_message(length: int) -> None:
    decoder = RequestDecoder()
    requests = decoder.feed(binary_client.encode_call(messages.Ping()) + length.to_bytes(4, "big") + b"\xff" * 10)
    assert [type(request) for request in requests] == [messages.Call, messages.MalformedFrame]
    assert decoder.feed(binary_client.encode_call(messages.Ping())) == []
    assert not decoder.partial


def test_a_json_conversation_hears_of_an_empty_frame_in_json() -> None:
    _, broken = decode(json_client.encode_call(messages.Ping()) + bytes(4))
    assert broken == messages.MalformedFrame(Dialect.JSON, "failed to parse request: zero-length frame")


# --- faults, in the words of deployed brokers ---


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ("01", "missing topic length"),
        ("01 00", "missing topic length"),
        ("01 00 02 61", "truncated topic"),
        ("01 00 01 61 00 00", "missing partition"),
        ("01 00 01 61 00 00 00 00", "missing record count"),
        ("01 00 01 61 00 00 00 00 00 00 00 01", "truncated record length"),
        ("01 00 01 61 00 00 00 00 00 00 00 01 00 00 00", "truncated record length"),
        ("01 00 01 61 00 00 00 00 00 00 00 01 00 00 00 01", "truncated record"),
        ("01 00 01 61 00 00 00 00 00 00 00 02 00 00 00 05 61 61 61 61 61 00 00", "truncated record length"),
        ("01 00 01 61 00 00 00 00 ff ff ff ff", "truncated record length"),
        ("01 00 01 61 00 00 00 00 00 00 00 01 ff ff ff ff", "truncated record"),
        ("02", "missing group_id length"),
        ("02 00 05 61", "truncated group_id"),
        ("02 00 00 00 00 00 00 00 00 00", "missing offset"),
        ("02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00", "missing max_bytes"),
        ("03", "missing group length"),
        ("03 00 09", "truncated group"),
        ("04 00 01 67 00 01 74 00", "missing partition"),
        ("05 00 01 74 00", "missing partition count"),
        ("07 00 01 ff", "invalid utf8 topic: invalid utf-8 sequence of 1 bytes from index 0"),
        ("07 00 02 61 c3", "invalid utf8 topic: incomplete utf-8 byte sequence from index 1"),
        ("03 00 01 80", "invalid utf8 group: invalid utf-8 sequence of 1 bytes from index 0"),
        ("02 00 01 80", "invalid utf8 group_id: invalid utf-8 sequence of 1 bytes from index 0"),
    ],
)
def test_a_malformed_binary_request_is_told_apart(payload: str, words: str) -> None:
    assert fault(bytes.fromhex(payload)) == f"decode error: {words}"


@pytest.mark.parametrize("opcode", [0x00, 0x0A, 0x41, 0xFE])
def test_an_unknown_opcode_is_named(opcode: int) -> None:
    assert fault(bytes((opcode,))) == f"unknown request type: {opcode}"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ("{}", "a request is an object with one key, this one has 0"),
        ('{"Ping":{},"Ping":{}}', "a request is an object with one key, this one has 2"),
        ('{"Ping":{}', "Input data was truncated"),
        ('{"Ping":{}}}', "JSON is malformed: trailing characters"),
        ('{"Ping":{}} {}', "JSON is malformed: trailing characters"),
        ("[]", "Expected `object`, got `array`"),
        ('"Pong"', "Expected `object`, got `str`"),
        ('{"Pong":{}}', "unknown request 'Pong'"),
        ('{"ping":{}}', "unknown request 'ping'"),
        ('{"DescribeTopic":null}', "Expected `object`, got `null`"),
        ('{"DescribeTopic":{}}', "Object missing required field `topic`"),
        ('{"DescribeTopic":{"topic":1}}', "Expected `str`, got `int`"),
        ('{"DescribeTopic":{"topic":"a","topic":"b"}}', "duplicate field `topic`"),
        ('{"DescribeTopic":{"topic":"a","t\\u006fpic":"b"}}', "duplicate field `topic`"),
        ('{"CreateTopic":{"topic":"a","partition_count":1.0}}', "Expected `int`, got `float`"),
        ('{"CreateTopic":{"topic":"a","partition_count":true}}', "Expected `int`, got `bool`"),
        ('{"CreateTopic":{"topic":"a","partition_count":"1"}}', "Expected `int`, got `str`"),
        ('{"CreateTopic":{"topic":"a","partition_count":-1}}', "Expected `int` >= 0"),
        ('{"CreateTopic":{"topic":"a","partition_count":4294967296}}', "Expected `int` <= 4294967295"),
        ('{"CreateTopic":{"topic":"a","partition_count":NaN}}', "JSON is malformed"),
        (
            '{"Fetch":{"topic":"a","partition":0,"offset":18446744073709551616,"max_bytes":1}}',
            "does not fit into 64 bits",
        ),
        ('{"Fetch":{"topic":"a","partition":0,"offset":0,"max_bytes":1,"group_id":5}}', "Expected `str | null`"),
        ('{"Produce":{"topic":"a","partition":0,"records":[[256]]}}', "Expected `int` <= 255"),
        ('{"Produce":{"topic":"a","partition":0,"records":[[-1]]}}', "Expected `int` >= 0"),
        ('{"Produce":{"topic":"a","partition":0,"records":[[1.5]]}}', "Expected `int`, got `float`"),
        ('{"Produce":{"topic":"a","partition":0,"records":["aGk="]}}', "Expected `array`, got `str`"),
        ('{"Produce":{"topic":"a","partition":0,"records":[1]}}', "Expected `array`, got `int`"),
        ('{"Produce":{"topic":"a","partition":0,"records":[[null]]}}', "Expected `int`, got `null`"),
        ('{"Produce":{"topic":"a","partition":0,"records":[[1],]}}', "JSON is malformed"),
        ('{"Produce":{"topic":"\\ud800","partition":0,"records":[]}}', "JSON is malformed"),
        ('{"Fetch":{"topic":"a","partition":0,"offset":' + "9" * 5000 + ',"max_bytes":1}}', "out of range"),
    ],
)
def test_a_malformed_json_request_is_told_apart(payload: str, words: str) -> None:
    assert words in fault(payload.encode())


@pytest.mark.parametrize("payload", [b'{"DescribeTopic":{"topic":"\xff"}}', b'{"Ping":{"x":"\xc3"}}', b'"\xff"'])
def test_what_is_not_utf8_is_refused_wherever_it_is(payload: bytes) -> None:
    assert "not valid UTF-8 at byte" in fault(payload)


@pytest.mark.parametrize("depth", [2_000, 1_000_000])
@pytest.mark.parametrize("start", ['{"Produce":{"topic":"t","partition":0,"records":', "", '{"x":'])
def test_json_that_is_nested_deeply_costs_nothing(start: str, depth: int) -> None:
    text = start + "[" * depth
    assert fault(text.encode())
    assert fault((text + "]" * depth + "}" * start.count("{")).encode())


def test_a_field_that_is_ignored_is_not_nested_without_end() -> None:
    # How deep it may be differs: Python 3.14 bounds the bytes of the stack, earlier ones the levels.
    assert fault(b'{"Ping":{"x":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}}")


def test_unknown_fields_and_an_absent_group_are_no_fault() -> None:
    assert body('{"Fetch":{"x":[{"topic":1}],"topic":"t","partition":0,"offset":0,"max_bytes":1}}') == messages.Fetch(
        "t", 0, 0, 1, ""
    )
    assert body('{"Fetch":{"topic":"topic","partition":0,"offset":0,"max_bytes":1,"group_id":""}}') == messages.Fetch(
        "topic", 0, 0, 1, ""
    )
    assert body('{"\\u0050ing":{}}') == messages.Ping()


def test_more_fields_than_anyone_needs_are_refused_before_they_are_checked() -> None:
    fields = '"x":0,' * json_dialect.FIELDS_MAX
    assert fault(f'{{"DescribeTopic":{{{fields}"topic":"t"}}}}'.encode()) == "more than 10000 fields in one frame"


def test_more_records_than_one_request_may_have_are_refused_in_json() -> None:
    records = ",".join(["[]"] * (RECORDS_PER_PRODUCE_MAX + 1))
    assert "records in one frame" in fault(
        f'{{"Produce":{{"topic":"t","partition":0,"records":[{records}]}}}}'.encode()
    )


def test_more_records_than_one_request_may_have_are_refused_in_binary() -> None:
    head = bytes.fromhex("01 0001 61 00000000")
    most = head + RECORDS_PER_PRODUCE_MAX.to_bytes(4, "big") + bytes(4 * RECORDS_PER_PRODUCE_MAX)
    [run] = decode(frame(most))
    assert isinstance(run, messages.ProduceRun)
    many = RECORDS_PER_PRODUCE_MAX + 1
    assert f"too many records: {many}, at most" in fault(head + many.to_bytes(4, "big") + bytes(4 * many))


# --- long JSON ---


def test_long_json_is_left_as_it_came() -> None:
    ping = b'{"Ping":{}}'
    longest = ping + b" " * (DECODED_ON_LOOP_BYTES_MAX - len(ping))
    assert decode(frame(longest) + frame(longest + b" ") + frame(ping)) == [
        messages.Call(Dialect.JSON, Opcode.PING, messages.Ping(), 4 + len(longest)),
        messages.Undecoded(longest + b" "),
        messages.Call(Dialect.JSON, Opcode.PING, messages.Ping(), 4 + len(ping)),
    ]


def long_produce(records: str) -> messages.ProduceRun | messages.Call:
    padding = " " * DECODED_ON_LOOP_BYTES_MAX
    text = f'{{"Produce":{{"topic":"t","partition":3,{padding}"records":{records}}}}}'
    return json_dialect.decode_request(text.encode())


@pytest.mark.parametrize("size", [1, 40_000, 70_000, 1_000_000])
def test_long_records_are_decoded_in_steps_of_a_bounded_size(size: int) -> None:
    values = [b"ab", bytes(range(256)) * (size // 256 + 1), b"", b"\xff", bytes(size), b"z" * size]
    steps = 0

    def check() -> None:
        nonlocal steps
        steps += 1

    payload = json.dumps({"Produce": {"topic": "t", "partition": 3, "records": [list(value) for value in values]}})
    run = json_dialect.decode_request(payload.encode(), check)
    assert isinstance(run, messages.ProduceRun)
    assert run.values == values
    if len(payload) > DECODED_ON_LOOP_BYTES_MAX:
        assert steps > len(payload) // (3 * json_dialect.STEP_BYTES)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ("[[1],[256]]", "Expected `int` <= 255 - at `$.records`"),
        ("[[1],[-1]]", "records must be arrays of numbers from 0 to 255"),
        ('[[1],"x"]', "records must be arrays of numbers from 0 to 255"),
        ("[[1],[[]]]", "records must be arrays of numbers from 0 to 255"),
        ("[[1],[1.5]]", "records must be arrays of numbers from 0 to 255"),
        ("[1]", "Expected `array`, got `int` - at `$.records`"),
        ("{}", "records must be arrays of numbers from 0 to 255"),
        ("5", "records must be arrays of numbers from 0 to 255"),
        ("null", "records must be arrays of numbers from 0 to 255"),
        ("[[1],]", "JSON is malformed"),
        ("[[1][2]]", "JSON is malformed"),
    ],
)
def test_what_is_wrong_with_long_records_is_said(records: str, reason: str) -> None:
    refused = long_produce(records)
    assert isinstance(refused, messages.Call)
    assert isinstance(refused.body, messages.BadRequest)
    assert reason in refused.body.message


def test_work_that_is_stopped_ends_within_a_step() -> None:
    class Stop(Exception):
        pass

    def check() -> None:
        raise Stop

    with pytest.raises(Stop):
        json_dialect.take_records(b"[[1]]", check)


def test_counts_that_lie_allocate_nothing() -> None:
    payload = bytes.fromhex("01 00 01 61 00 00 00 00 ff ff ff ff")
    tracemalloc.start()
    try:
        assert fault(payload)
        assert fault(payload + bytes(64))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_a_length_that_is_announced_allocates_nothing() -> None:
    decoder = RequestDecoder()
    tracemalloc.start()
    try:
        assert decoder.feed(PAYLOAD_BYTES_MAX.to_bytes(4, "big") + b"\x01") == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert decoder.partial


# --- byte arrays ---


def test_byte_arrays_are_what_json_makes_of_them() -> None:
    values = [bytes(range(256)), b"", b"\x00", b"\xff" * 7, b""]
    cells = encode_byte_arrays(b"".join(values), cuts_of(values))
    assert [json.loads(b"[" + cell + b"]") for cell in cells] == [list(value) for value in values]
    assert b" " not in b"".join(cells)
    assert encode_byte_arrays(b"", cuts_of([])) == []


# --- replies, at the client ---


def test_replies_are_told_apart_by_dialect_and_kind() -> None:
    data = encode_produced(7, 2) + json_dialect.encode_produced(7, 2) + encode_error(10, "no")
    decoder = ReplyDecoder()
    first, second, third = decoder.feed(data[:5]) + decoder.feed(data[5:])
    assert (first.dialect, first.opcode) == (Dialect.BINARY, Opcode.PRODUCE)
    assert list(binary_client.decode_produced(first.payload).offsets) == [7, 8]
    assert (second.dialect, second.opcode) == (Dialect.JSON, Opcode.PRODUCE)
    assert json_client.decode_produced(second.payload).offsets == [7, 8]
    assert binary_client.decode_error(third.payload).message == "no"


@pytest.mark.parametrize("payload", [b"{}", b'{"Nope":{}}', b"\x0b", b"{"])
def test_what_is_no_reply_is_a_violation_behind_those_that_are(payload: bytes) -> None:
    decoder = ReplyDecoder()
    assert len(decoder.feed(encode_produced(0, 1) + frame(payload))) == 1
    assert decoder.violation is not None
    with pytest.raises(ProtocolViolation):
        decoder.feed(b"")


def test_a_reply_of_impossible_length_is_a_violation() -> None:
    decoder = ReplyDecoder()
    with pytest.raises(ProtocolViolation, match="a frame of 0 bytes"):
        decoder.feed(bytes(4))
    assert decoder.violation is not None


@pytest.mark.parametrize(
    ("decoder", "payload"),
    [
        (json_client.decode_fetched, b'{"Fetch":{"records":[{"offset":0,"payload":[256]}],"next_offset":1}}'),
        (json_client.decode_fetched, b'{"Produce":{}}'),
        (json_client.next_offset, b'{"Fetch":{"next_offset":1,"records":[]}}'),
        (binary_client.decode_fetched, bytes.fromhex("02 ff ff ff ff 00")),
        (binary_client.decode_fetched, bytes.fromhex("02 00 00 00 01 00 00 00 01 61 00")),
        (binary_client.next_offset, b"\x02"),
    ],
)
def test_a_reply_that_lies_is_a_violation(decoder: object, payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decoder(payload)  # type: ignore[operator]


def drain(decoder: RequestDecoder, data: bytes) -> list[list[messages.Request]]:
    """What each `feed` returns until there is no more."""
    feeds = [decoder.feed(data)]
    while decoder.more:
        feeds.append(decoder.feed(b""))
    return feeds


def test_what_is_beyond_the_bound_of_one_feed_is_decoded_by_the_next() -> None:
    ping = frame(b'{"Ping":null}')
    feeds = drain(RequestDecoder(requests_max=3), ping * 7 + ping[:5])
    assert [len(requests) for requests in feeds] == [3, 3, 1]
    feeds = drain(RequestDecoder(frames_max=10), binary_client.encode_produce("t", 0, [b"x"]) * 25)
    assert [[len(run.values) for run in runs if isinstance(run, messages.ProduceRun)] for runs in feeds] == [
        [10],
        [10],
        [5],
    ]


def test_an_impossible_length_beyond_the_bound_is_still_the_last_message() -> None:
    ping = frame(b'{"Ping":null}')
    feeds = drain(RequestDecoder(requests_max=2), ping * 4 + bytes(4) + ping)
    assert [type(request) for requests in feeds for request in requests] == [
        messages.Call,
        messages.Call,
        messages.Call,
        messages.Call,
        messages.MalformedFrame,
    ]
