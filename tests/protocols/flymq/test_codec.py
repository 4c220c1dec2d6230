"""Whole reads become messages: runs, halves of frames, broken framing, payloads that do not decode, gzip."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from penstock.columns import UniformCells
from penstock.errors import InvalidRequest, ProtocolViolation, RecordTooLarge
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
    Failed,
    Fetched,
    Placed,
    ProduceRun,
    Rows,
    UniformRows,
    decode_fetched,
    encode_fetched,
    encode_produce,
    encode_produce_many,
    encode_produced,
)
from penstock.protocols.flymq.errors import encode_error
from penstock.protocols.flymq.operations.access import Auth, PasswordChange, UserCreate
from penstock.protocols.flymq.operations.operation import OPERATIONS, BadRequest, encode_reply, encode_request
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.operations.topics import Commit, ListTopics, Subscribe
from penstock.protocols.flymq.wire import PAYLOAD_BYTES_MAX, frame

LIST_TOPICS = encode_request(ListTopics())
SIZES = {
    "one size": [b"x" * 100] * 100,
    "many sizes": [b"y" * (number * 7 % 50) for number in range(100)],
    "a size that changes after a while": [b"z" * 10] * 40 + [b"z" * 11] * 40,
    "empty values": [b""] * 40,
    "few": [b"1", b"22"],
    "zero bytes at the end": [b"ends with\0\0"] * 40,
}
KEYS = {
    "no keys": lambda number: None,
    "keys of one size": lambda number: b"k%03d" % number,
    "keys of many sizes": lambda number: b"k%d" % number,
    "a key now and then": lambda number: b"key" if number % 5 == 3 else None,
    "keys late": lambda number: b"key" if number > 20 else None,
}


def only(requests: list[Request]) -> Request:
    [request] = requests
    return request


def fault(data: bytes) -> str:
    """The error text of the only request in there."""
    request = only(RequestDecoder().feed(data))
    assert isinstance(request, Call)
    assert isinstance(request.body, BadRequest)
    return request.body.message


# --- runs ---


@pytest.mark.parametrize("values", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_produces_of_one_topic_and_partition_are_one_run(values: list[bytes], key: object) -> None:
    assert callable(key)
    keys = [key(number) for number in range(len(values))]
    data = encode_produce_many("orders", values, keys, 3)
    assert data == b"".join(encode_produce("orders", v, k, 3) for v, k in zip(values, keys, strict=True))
    run = only(RequestDecoder().feed(data))
    assert run == ProduceRun("orders", 3, keys if any(keys) else None, values, len(data))


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 40])
def test_a_run_ends_where_the_topic_changes(count: int) -> None:
    values = [b"v" * 20] * count
    data = b"".join(
        [
            encode_produce_many("orders", values, partition=0),
            encode_produce_many("orders", values, partition=1),
            encode_produce_many("order2", values, partition=1),
            encode_produce_many("o", values, partition=1),
            encode_produce_many("orders", values, partition=0),
        ]
    )
    requests = RequestDecoder().feed(data)
    runs = [request for request in requests if isinstance(request, ProduceRun)]
    assert [(run.topic, run.partition, run.partitions, run.values) for run in runs] == [
        ("orders", 0, [0] * count + [1] * count, values * 2),
        ("order2", 1, None, values),
        ("o", 1, None, values),
        ("orders", 0, None, values),
    ]
    assert sum(request.request_bytes for request in requests) == len(data)


def test_values_of_one_size_stay_one_column_until_one_of_another_size_comes() -> None:
    frames = [encode_produce("t", b"v%04d" % number) for number in range(40)]
    [run] = RequestDecoder().feed(b"".join(frames))
    assert isinstance(run, ProduceRun)
    assert isinstance(run.values, UniformCells)
    [mixed] = RequestDecoder().feed(b"".join([*frames, encode_produce("t", b"longer"), *frames]))
    assert isinstance(mixed, ProduceRun)
    assert mixed.values == [*run.values, b"longer", *run.values]
    half = RequestDecoder().feed(b"".join(frames) + frames[0][:20])
    assert half == [run], "the start of another frame leaves the column as it is"
    assert isinstance(half[0], ProduceRun)
    assert isinstance(half[0].values, UniformCells)


@pytest.mark.parametrize("at", [0, 1, 5, 16, 17, 30, 39])
def test_partitions_are_never_mixed_up_wherever_another_one_stands(at: int) -> None:
    partitions = [0] * 40
    partitions[at] = 7
    data = b"".join(encode_produce("orders", b"v%04d" % n, None, partition) for n, partition in enumerate(partitions))
    run = only(RequestDecoder().feed(data))
    assert isinstance(run, ProduceRun)
    assert (run.partition, run.partitions) == (partitions[0], partitions)
    assert run.values == [b"v%04d" % n for n in range(40)]


@pytest.mark.parametrize("pattern", [[0, 1], [0, 0, 1], [0] * 17 + [1], [0] * 200 + [1]])
def test_partitions_that_take_turns_cost_no_more_than_their_number(pattern: list[int]) -> None:
    """Comparing all that follows again at every change would take minutes; the timeout of the test would tell."""
    count = 100_000 // len(pattern)
    data = b"".join(encode_produce("orders", b"v", None, partition) for partition in pattern) * count
    run = only(RequestDecoder().feed(data))
    assert isinstance(run, ProduceRun)
    assert run.partitions == pattern * count
    assert len(run.values) == len(run.partitions)


def test_keys_and_partitions_appear_with_the_first_that_differs() -> None:
    data = encode_produce_many("a", [b"1", b"2"]) + encode_produce("a", b"3", b"key", partition=5)
    run = only(RequestDecoder().feed(data))
    assert run == ProduceRun("a", -1, [None, None, b"key"], [b"1", b"2", b"3"], len(data), [-1, -1, 5])


def test_a_run_ends_at_another_request() -> None:
    data = encode_produce_many("a", [b"1"] * 20) + LIST_TOPICS + encode_produce_many("a", [b"2"] * 20)
    first, call, second = RequestDecoder().feed(data)
    assert isinstance(first, ProduceRun)
    assert isinstance(second, ProduceRun)
    assert (first.values, second.values) == ([b"1"] * 20, [b"2"] * 20)
    assert call == Call(0x08, ListTopics(), 8)


def test_a_bad_frame_in_a_run_is_refused_alone() -> None:
    bad = frame(Produce.opcode, b"\x00\x01a" + b"\0" * 3)
    data = encode_produce_many("a", [b"1"] * 20) + bad + encode_produce_many("a", [b"2"] * 20)
    first, call, second = RequestDecoder().feed(data)
    assert isinstance(first, ProduceRun)
    assert isinstance(second, ProduceRun)
    assert isinstance(call, Call)
    assert isinstance(call.body, BadRequest)
    assert len(first.values) == len(second.values) == 20


def test_flags_that_mean_nothing_do_not_end_a_run() -> None:
    frames = bytearray(encode_produce_many("a", [b"1"] * 3))
    size = len(frames) // 3
    frames[3], frames[size + 3], frames[2 * size + 3] = 0x00, 0x85, 0x09
    run = only(RequestDecoder().feed(bytes(frames)))
    assert isinstance(run, ProduceRun)
    assert run.values == [b"1"] * 3


# --- halves ---


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 8, 9, 41, 1000])
def test_chunks_of_any_size_give_the_same_records(chunk: int) -> None:
    values = [b"v%d" % number for number in range(60)]
    data = encode_produce_many("orders", values) + LIST_TOPICS
    decoder = RequestDecoder()
    requests = [request for at in range(0, len(data), chunk) for request in decoder.feed(data[at : at + chunk])]
    assert [value for run in requests if isinstance(run, ProduceRun) for value in run.values] == values
    assert requests[-1] == Call(0x08, ListTopics(), 8)
    assert not decoder.partial


def test_a_frame_is_partial_from_its_first_byte_to_its_last() -> None:
    decoder = RequestDecoder()
    data = encode_produce("orders", b"hello")
    assert not decoder.partial
    for byte in data[:-1]:
        assert decoder.feed(bytes([byte])) == []
        assert decoder.partial
    assert len(decoder.feed(data[-1:])) == 1
    assert not decoder.partial


def test_an_announced_length_allocates_nothing() -> None:
    decoder = RequestDecoder()
    tracemalloc.start()
    try:
        decoder.feed(frame(Produce.opcode)[:4] + PAYLOAD_BYTES_MAX.to_bytes(4) + b"\0" * 100)
        for _ in range(100):
            decoder.feed(b"\0")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.partial
    assert peak < 100_000


def test_a_dripping_peer_does_not_make_us_copy_what_we_have_again_and_again() -> None:
    """Quadratic copying of 1 MB, byte by byte, would move 500 GB; the timeout of the test would tell."""
    decoder = RequestDecoder()
    data = encode_produce("orders", bytes(1_000_000))
    decoder.feed(data[:8])
    for at in range(8, len(data) - 1):
        decoder.feed(data[at : at + 1])
    run = only(decoder.feed(data[-1:]))
    assert isinstance(run, ProduceRun)
    assert len(run.values[0]) == 1_000_000


# --- broken framing ---


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "begins with 47 45"),
        (b"G", "begins with 47"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "begins with 16 03"),
        (b"\xaf\x02", "begins with af 02"),
        (b"\xaf\x02\x01\x01\0\0\0\0", "begins with af 02"),
        (b"\xaf\x01\x01\x01\x02\x00\x00\x01", "33554433 payload bytes, at most 33554432"),
        (b"\xaf\x01\x01\x01\xff\xff\xff\xff", "4294967295 payload bytes"),
    ],
)
def test_broken_framing_is_a_violation(data: bytes, reason: str) -> None:
    decoder = RequestDecoder()
    with pytest.raises(ProtocolViolation, match=reason):
        decoder.feed(data)
    with pytest.raises(ProtocolViolation, match=reason):
        decoder.feed(LIST_TOPICS)


def test_a_payload_of_exactly_the_limit_is_taken() -> None:
    decoder = RequestDecoder(CodecLimits(payload_bytes_max=30))
    data = encode_produce("a", b"x" * 15)
    assert len(data) == 8 + 30
    assert len(decoder.feed(data)) == 1
    with pytest.raises(ProtocolViolation, match="31 payload bytes"):
        decoder.feed(encode_produce("a", b"x" * 16))


@pytest.mark.parametrize("count", [1, 20])
def test_the_limit_holds_inside_a_run(count: int) -> None:
    decoder = RequestDecoder(CodecLimits(payload_bytes_max=30))
    run = only(decoder.feed(encode_produce_many("a", [b"x" * 15] * count + [b"x" * 16])))
    assert isinstance(run, ProduceRun)
    assert len(run.values) == count
    assert decoder.violation is not None


def test_frames_before_a_violation_are_still_handed_out() -> None:
    decoder = RequestDecoder()
    assert len(decoder.feed(LIST_TOPICS + b"nonsense")) == 1
    assert decoder.violation is not None
    with pytest.raises(ProtocolViolation):
        decoder.feed(b"")


# --- payloads that do not decode ---

T = "0004 74657374"
BAD_PAYLOADS = [
    (0x01, "", "buffer too small: length of topic"),
    (0x01, "0005 74657374", "buffer too small: topic needs 5 bytes, 4 are left"),
    (0x01, f"{T} 00000001", "buffer too small: key needs 1 bytes"),
    (0x01, f"{T} 00000000 ffffffff 78 00000000", "buffer too small: value needs 4294967295 bytes"),
    (0x01, f"{T} 00000000 00000001 78 0000", "buffer too small: partition needs 4 bytes, 2 are left"),
    (0x01, f"{T} 00000000 00000001 78 00000000 00", "invalid binary format: 1 unexpected bytes after partition"),
    (0x01, "0002 c328 00000000 00000000 00000000", "invalid binary format: topic is not valid UTF-8"),
    (0x02, f"{T} 00000000", "buffer too small: offset needs 8 bytes"),
    (0x02, f"{T} 00000000 0000000000000000 00", "invalid binary format: 1 unexpected bytes after offset"),
    (0x03, f"{T}", "buffer too small: partitions"),
    (0x03, f"{T} 00000001 ffffffff", "invalid binary format: 4294967295 settings are announced"),
    (0x03, f"{T} 00000001 00000001 0001 61 0000 00", "invalid binary format: 1 unexpected bytes after settings"),
    (0x04, "", "buffer too small: length of topic"),
    (0x05, f"{T} 0001 67 00000000", "buffer too small: length of mode"),
    (0x05, f"{T} 0001 67 00000000 05 61", "buffer too small: mode"),
    (0x05, f"{T} 0001 67 00000000 02 ffff", "invalid binary format: mode is not valid UTF-8"),
    (0x06, f"{T} 0001 67 00000000", "buffer too small: offset"),
    (0x07, f"{T} 00000000 0000000000000000", "buffer too small: max_messages"),
    (0x07, f"{T} 00000000 0000000000000000 0000000a 00", "buffer too small: length of filter"),
    (0x07, f"{T} 00000000 0000000000000000 0000000a 0001 ff", "invalid binary format: filter is not valid UTF-8"),
    (0x07, f"{T} 00000000 0000000000000000 0000000a 0000 00", "invalid binary format: 1 unexpected bytes after filter"),
    (0x08, "00", "invalid binary format: 1 unexpected bytes"),
    (0x09, "0004 746573", "buffer too small: topic"),
    (0x53, "0004 7465", "buffer too small: topic"),
    (0x60, f"{T} 0001 67", "buffer too small: partition"),
    (0x61, f"{T} 0001 67 00000000", "buffer too small: length of mode"),
    (0x61, f"{T} 0001 67 00000000 06 6f6666736574", "buffer too small: offset"),
    (0x61, f"{T} 0001 67 00000000 06 6c6174657374 00", "buffer too small: offset"),
    (0x62, "00", "invalid binary format: 1 unexpected bytes"),
    (0x63, "", "buffer too small: length of topic or group"),
    (0x63, f"{T} 00", "buffer too small: length of group"),
    (0x63, f"{T} 0001 67 00", "invalid binary format: 1 unexpected bytes after group"),
    (0x66, f"{T} 0001 67 00000000 00", "buffer too small: timestamp"),
    (0x70, "0001 61", "invalid auth request: buffer too small: length of password"),
    (0x72, "00", "invalid binary format: 1 unexpected bytes"),
]


@pytest.mark.parametrize(("opcode", "payload", "text"), BAD_PAYLOADS)
def test_a_payload_that_does_not_decode_says_which_field(opcode: int, payload: str, text: str) -> None:
    data = frame(opcode, bytes.fromhex(payload))
    assert fault(data).startswith(text)
    decoder = RequestDecoder()
    assert len(decoder.feed(data + LIST_TOPICS)) == 2, "the connection goes on"


def test_lengths_that_lead_into_the_next_frame_are_refused() -> None:
    good = encode_produce("test", b"hello")
    lying = bytearray(good)
    lying[8 + 2 + 4 + 4 + 3] += 1
    first, second = RequestDecoder().feed(bytes(lying) + good)
    assert isinstance(first, Call)
    assert isinstance(first.body, BadRequest)
    assert isinstance(second, ProduceRun)


@pytest.mark.parametrize("opcode", [0x00, 0x0C, 0x54, 0x71, 0x82, 0xB2, 0xFE, 0xFF])
def test_an_unknown_opcode_is_named_in_decimal(opcode: int) -> None:
    assert fault(frame(opcode, b"anything")) == f"unknown opcode: {opcode}"


@pytest.mark.parametrize("opcode", sorted(OPERATIONS))
def test_every_operation_has_a_reader(opcode: int) -> None:
    decoded = only(RequestDecoder().feed(frame(opcode)))
    assert not (isinstance(decoded, Call) and decoded.body == BadRequest(f"unknown opcode: {opcode}"))


@pytest.mark.parametrize(
    "data",
    [
        encode_request(Auth("admin", "hunter2")),
        encode_request(UserCreate("bob", "hunter2")),
        encode_request(PasswordChange("bob", "new", "hunter2")),
    ],
)
def test_passwords_are_not_shown(data: bytes) -> None:
    assert "hunter2" not in repr(only(RequestDecoder().feed(data)))


# --- gzip ---


def compressed(data: bytes, flags: int = 0x03, payload: bytes | None = None) -> bytes:
    return frame(data[2], gzip.compress(data[8:]) if payload is None else payload, flags)


def inflated(data: bytes, limits: CodecLimits | None = None) -> Request:
    call = only(RequestDecoder().feed(data))
    assert isinstance(call, Call)
    assert isinstance(call.body, Undecoded)
    return decode_undecoded(call, limits or CodecLimits(), lambda: None)


def refused(request: Request) -> str:
    assert isinstance(request, Call)
    assert isinstance(request.body, BadRequest)
    return request.body.message


@pytest.mark.parametrize("flags", [0x02, 0x03, 0x06, 0x07, 0x83])
def test_a_gzip_payload_is_the_request_it_holds(flags: int) -> None:
    data = encode_produce("orders", b"hello", b"k")
    assert inflated(compressed(data, flags)) == ProduceRun("orders", -1, [b"k"], [b"hello"], len(data))
    commit = encode_request(Commit("orders", "g", 0, 7))
    assert inflated(compressed(commit, flags)) == Call(0x06, Commit("orders", "g", 0, 7), len(commit))


@pytest.mark.parametrize("flags", [0x00, 0x04, 0x05, 0x08, 0x09, 0x0C, 0x80])
def test_other_compression_flags_mean_not_compressed(flags: int) -> None:
    data = bytearray(encode_produce("orders", b"hello"))
    data[3] = flags
    assert isinstance(only(RequestDecoder().feed(bytes(data))), ProduceRun)


def test_several_gzip_members_are_one_payload() -> None:
    data = encode_produce("orders", b"hello")
    payload = gzip.compress(data[8:12]) + gzip.compress(data[12:])
    assert inflated(compressed(data, payload=payload)) == ProduceRun("orders", -1, None, [b"hello"], len(data))


@pytest.mark.parametrize("payload", [b"", b"not gzip", b"\x1f\x8b\x08", zlib.compress(b"zlib, not gzip")])
def test_what_is_not_gzip_is_refused(payload: bytes) -> None:
    assert refused(inflated(compressed(LIST_TOPICS, payload=payload))).startswith("gzip: ")


def test_gzip_that_is_cut_short_is_refused() -> None:
    payload = gzip.compress(bytes(1000))[:-4]
    assert (
        refused(inflated(compressed(LIST_TOPICS, payload=payload))) == "gzip: unexpected end of the compressed payload"
    )


def test_a_gzip_bomb_is_refused_and_inflated_no_further_than_the_limit() -> None:
    bomb = compressed(LIST_TOPICS, payload=gzip.compress(bytes(100 << 20)))
    assert len(bomb) < 200_000
    tracemalloc.start()
    try:
        text = refused(inflated(bomb, CodecLimits(inflated_bytes_max=1 << 20)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert text == "gzip: the payload inflates to more than 1048576 bytes"
    assert peak < 8 << 20


def test_a_bomb_of_many_members_is_refused_too() -> None:
    payload = gzip.compress(bytes(4 << 20)) * 10
    text = refused(inflated(compressed(LIST_TOPICS, payload=payload)))
    assert text == "gzip: the payload inflates to more than 33554432 bytes"


def test_a_payload_that_inflates_to_exactly_the_limit_is_taken() -> None:
    data = encode_produce("a", b"x" * 15)
    limits = CodecLimits(inflated_bytes_max=30)
    assert isinstance(inflated(compressed(data), limits), ProduceRun)
    assert "inflates to more than 30" in refused(inflated(compressed(encode_produce("a", b"x" * 16)), limits))


# --- replies ---


@pytest.mark.parametrize("count", [1, 15, 16, 40])
@pytest.mark.parametrize("keyed", [False, True])
def test_replies_to_a_run_are_those_to_its_records(count: int, keyed: bool) -> None:
    values = [b"v" * number for number in range(count)]
    keys: list[bytes | None] | None = [b"k" * (number % 3) or None for number in range(count)] if keyed else None
    together = encode_produced("orders", keys, values, [Placed(slice(None), 3, 1000, 77)])
    one_by_one = b"".join(
        encode_produced("orders", keys and [keys[row]], [value], [Placed(slice(None), 3, 1000 + row, 77)])
        for row, value in enumerate(values)
    )
    assert together == one_by_one
    assert ReplyDecoder().feed(together) == [
        ProducedRun("orders", [3] * count, list(range(1000, 1000 + count)), [77] * count)
    ]


def test_replies_of_a_run_that_was_split_stand_in_the_order_of_its_records() -> None:
    values = [b"%d" % number for number in range(7)]
    refusal = encode_error("no")
    replies = encode_produced(
        "t",
        [None] * 7,
        values,
        [Placed(slice(0, None, 3), 0, 10, 1), Placed([1, 4], 1, 20, 2), Failed([2, 5], refusal)],
    )
    assert ReplyDecoder().feed(replies) == [
        ProducedRun("t", [0, 1], [10, 20], [1, 2]),
        Reply(0xFF, refusal[8:]),
        ProducedRun("t", [0, 1], [11, 21], [1, 2]),
        Reply(0xFF, refusal[8:]),
        ProducedRun("t", [0], [12], [1]),
    ]


def test_the_client_keeps_topics_and_other_replies_apart() -> None:
    def produced(topic: str, count: int) -> bytes:
        return encode_produced(topic, None, [b"v"] * count, [Placed(slice(None), 0, 0, 5)])

    data = produced("a", 3) + produced("b", 20) + encode_reply(Subscribe, 9) + produced("b", 1) + encode_error("x")
    for chunk in (1, 10, 50, len(data)):
        decoder = ReplyDecoder()
        found: list[tuple[str, int]] = []
        for at in range(0, len(data), chunk):
            for reply in decoder.feed(data[at : at + chunk]):
                if isinstance(reply, Reply):
                    found.append(("", reply.opcode))
                else:
                    found += [(reply.topic, offset) for offset in reply.offsets]
        assert found == [
            *[("a", n) for n in range(3)],
            *[("b", n) for n in range(20)],
            ("", 5),
            ("b", 0),
            ("", 0xFF),
        ]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("count", [1, 15, 16, 200])
def test_uniform_rows_are_encoded_like_any_others(native: bool, count: int) -> None:
    values = [b"%08d" % number for number in range(count)]
    offsets = range(100, 100 + count)
    uniform = encode_fetched(7, [UniformRows(offsets, 8, b"".join(values))], 999, native=native)
    assert uniform == encode_fetched(7, [Rows(offsets, None, values)], 999, native=native)
    assert uniform == encode_fetched(7, [Rows(offsets, [None] * count, values)], 999, native=native)
    assert decode_fetched(uniform[8:], native=native) == Fetched(list(offsets), None, list(values), 999)


@pytest.mark.parametrize("native", [True, False])
def test_rows_of_any_shape_come_back_as_they_were(native: bool) -> None:
    values: list[bytes | None] = [b"v" * (number % 9) for number in range(50)]
    values[7] = None
    keys = [b"k" * (number % 4) or None for number in range(50)]
    offsets = [number * 3 for number in range(50)]
    for part in (Rows(offsets, keys, values), Rows(offsets, None, values), Rows(offsets[:3], None, values[:3])):
        count = len(part.offsets)
        data = encode_fetched(7, [part, part], 150, native=native)
        assert decode_fetched(data[8:], native=native) == Fetched(
            offsets[:count] * 2, keys * 2 if part.keys else None, [value or b"" for value in values[:count]] * 2, 150
        )


@pytest.mark.parametrize("native", [True, False])
def test_a_fetch_reply_that_lies_is_a_violation(native: bool) -> None:
    data = encode_fetched(7, [Rows(range(3), None, [b"abc"] * 3)], 3, native=native)[8:]
    for cut in range(len(data)):
        with pytest.raises(ProtocolViolation):
            decode_fetched(data[:cut], native=native)


def test_what_does_not_fit_a_frame_is_not_encoded() -> None:
    with pytest.raises(RecordTooLarge, match="at most 33554417 bytes"):
        encode_produce("a", bytes(PAYLOAD_BYTES_MAX))
    with pytest.raises(RecordTooLarge):
        encode_produce_many("a", [b"", bytes(PAYLOAD_BYTES_MAX)], [b"k", None])
    with pytest.raises(InvalidRequest):
        encode_produce("a" * 70_000, b"")


def test_no_records_are_no_bytes() -> None:
    assert encode_produce_many("a", []) == b""


def drain(decoder: RequestDecoder, data: bytes) -> list[list[Request]]:
    """What each `feed` returns until there is no more."""
    feeds = [decoder.feed(data)]
    while decoder.more:
        feeds.append(decoder.feed(b""))
    return feeds


def test_what_is_beyond_the_bound_of_one_feed_is_decoded_by_the_next() -> None:
    header = encode_request(ListTopics())
    decoder = RequestDecoder(frames_max=3)
    assert [len(requests) for requests in drain(decoder, header * 7 + header[:5])] == [3, 3, 1]
    assert decoder.partial
    assert decoder.kept_bytes == 5


def test_a_run_counts_once_and_frames_that_only_join_it_count_each() -> None:
    plain = encode_produce_many("a", [b"1"])
    other_flags = plain[:3] + b"\x80" + plain[4:]
    [[run]] = drain(RequestDecoder(frames_max=3), plain * 100)
    assert isinstance(run, ProduceRun)
    assert len(run.values) == 100
    assert len(drain(RequestDecoder(frames_max=3), (plain + other_flags) * 6)) == 4


def test_a_violation_beyond_the_bound_is_found_when_it_is_reached() -> None:
    decoder = RequestDecoder(frames_max=2)
    assert len(decoder.feed(encode_request(ListTopics()) * 3 + b"GET / HTTP/1.1")) == 2
    assert decoder.more
    assert len(decoder.feed(b"")) == 1
    assert "47 45" in str(decoder.violation)
    assert not decoder.partial
