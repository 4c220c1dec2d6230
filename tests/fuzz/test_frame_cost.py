"""Any frame up to the largest allowed costs the event loop less than 50 ms of CPU at a time, before a login and after it.

The only tests of the project with a time in them: what they guard against costs seconds. `make fuzz` keeps to the 50 ms; ordinary runs
allow for more, so that a busy machine does not count. Protocols over QUIC: test_quic_frame_cost.py.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from functools import partial
from struct import Struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.broker.access.checks import UNAUTHENTICATED
from penstock.broker.records.filters import RecordFilter
from penstock.broker.records.searching import PATH_TEXT_BYTES_MAX, path_search
from penstock.errors import InvalidRequest
from penstock.net.session import SessionFactory
from penstock.protocols.blipmq import wire as blipmq_wire
from penstock.protocols.blipmq.codec import encode_auth, encode_frame, encode_hello
from penstock.protocols.blipmq.session import BlipMQ
from penstock.protocols.flymq import wire as flymq_wire
from penstock.protocols.flymq.operations.access import AclSet
from penstock.protocols.flymq.operations.limits import LOGIN_PAYLOAD_BYTES_MAX
from penstock.protocols.flymq.operations.operation import OPERATIONS
from penstock.protocols.flymq.operations.records import Fetch, Produce, ProduceWithTtl
from penstock.protocols.flymq.operations.schemas import ProduceWithSchema, ValidateSchema
from penstock.protocols.flymq.operations.topics import CreateTopic, ListTopics
from penstock.protocols.flymq.operations.transactions import TxnProduce
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.rustlog import wire as rustlog_wire
from penstock.protocols.rustlog.session import RustLog
from tests.fuzz.loop_cost import ATTEMPTS, TURN_S_MAX, Bench
from tests.protocols.flymq.operations.test_limits import LISTS

U32 = Struct(">I")
FILLINGS = st.sampled_from(
    [b"\0", b"\0\0\0\1", b"\0\1a", b"\xff", b"[", b"{}", b"[],", b'"\\u0061":0,', b"0,", b" ", "é".encode()]
)
"""Of which a payload is made by repetition: empty and tiny items, lengths that lie, nesting, text that takes long to decode."""

pytestmark = pytest.mark.timeout(600)


def filled(filling: bytes, size: int) -> bytes:
    return (filling * (size // len(filling) + 1))[:size]


# --- FlyMQ ---

NODE = Node("node-1", lambda: "192.0.2.9:9092")
FLYMQ_SIZES = st.sampled_from([LOGIN_PAYLOAD_BYTES_MAX, 1 << 20, flymq_wire.PAYLOAD_BYTES_MAX])
OPCODES = st.sampled_from(sorted([*OPERATIONS, flymq_wire.AUTH_RESPONSE, flymq_wire.ERROR])) | st.just(0xEE)


def flymq_frame(opcode: int, payload: bytes, flags: int = 1) -> bytes:
    return flymq_wire.HEADER.pack(flymq_wire.MAGIC, flymq_wire.VERSION, opcode, flags, len(payload)) + payload


def as_many(before: bytes, item: bytes, size: int) -> bytes:
    """A list of as many items as a payload of this size holds."""
    count = (size - len(before) - 4) // len(item)
    return before + U32.pack(count) + item * count


LIST_PAYLOADS = st.builds(
    lambda name, size: (LISTS[name][0], as_many(LISTS[name][1], LISTS[name][3], size)),
    st.sampled_from(sorted(LISTS)),
    FLYMQ_SIZES,
)
LONGEST_LISTS = st.builds(
    lambda name: (
        LISTS[name][0],
        LISTS[name][1] + U32.pack(LISTS[name][2]) + LISTS[name][3] * LISTS[name][2] + bytes(LISTS[name][4]),
    ),
    st.sampled_from(sorted(LISTS)),
)
ANY_PAYLOADS = st.tuples(OPCODES, st.builds(filled, FILLINGS, FLYMQ_SIZES))
VALUE_PAYLOADS = st.builds(
    lambda opcode, names, size: (opcode, names + U32.pack(size - 1000) + bytes(size - 1000)),
    st.sampled_from([ProduceWithSchema.opcode, ValidateSchema.opcode, ProduceWithTtl.opcode, TxnProduce.opcode]),
    st.sampled_from([b"\0\1t", b"\0\1t\0\1s"]),
    FLYMQ_SIZES,
)
EMPTY_MEMBER = gzip.compress(b"", mtime=0)
PACKED = st.one_of(
    st.builds(lambda size: EMPTY_MEMBER * (size // len(EMPTY_MEMBER)), FLYMQ_SIZES),
    st.builds(lambda filling, size: gzip.compress(filled(filling, size), 1), FILLINGS, FLYMQ_SIZES),
    st.builds(lambda payload: gzip.compress(payload[1], 1), LIST_PAYLOADS),
)
FLYMQ_FRAMES = st.one_of(
    st.builds(lambda payload: flymq_frame(*payload), LIST_PAYLOADS | LONGEST_LISTS | ANY_PAYLOADS | VALUE_PAYLOADS),
    st.builds(lambda opcode, payload: flymq_frame(opcode, payload, 0x03), OPCODES, PACKED),
)


@pytest.fixture(scope="module")
def strict_flymq(bench: Bench) -> FlyMQ:
    return FlyMQ(bench.broker, clock=bench.clock, node=NODE, principal=UNAUTHENTICATED, login_required=True)


@pytest.fixture(scope="module")
def open_flymq(bench: Bench) -> FlyMQ:
    return FlyMQ(bench.broker, clock=bench.clock, node=NODE)


@settings(max_examples=60)
@given(frame=FLYMQ_FRAMES)
@example(frame=flymq_frame(AclSet.opcode, as_many(b"\0\1t\0", b"\0\0", 8 << 20)))
@example(frame=flymq_frame(ListTopics.opcode, EMPTY_MEMBER * 100_000, 0x03))
def test_a_flymq_frame_before_the_login(bench: Bench, strict_flymq: FlyMQ, frame: bytes) -> None:
    assert bench.turn_s(strict_flymq, frame=frame) < TURN_S_MAX


@settings(max_examples=60)
@given(frame=FLYMQ_FRAMES)
@example(frame=flymq_frame(Produce.opcode, b"\0\1t" + bytes(4) + U32.pack(31 << 20) + bytes(31 << 20) + b"\xff" * 4))
@example(frame=flymq_frame(AclSet.opcode, as_many(b"\0\1t\0", b"\0\0", flymq_wire.PAYLOAD_BYTES_MAX)))
@example(frame=flymq_frame(CreateTopic.opcode, as_many(b"\0\1u\0\0\0\1", bytes(4), flymq_wire.PAYLOAD_BYTES_MAX)))
@example(frame=flymq_frame(Produce.opcode, b"\0\1t" + bytes(4) + U32.pack(31 << 20) + bytes((31 << 20) + 5)))
@example(frame=flymq_frame(ListTopics.opcode, EMPTY_MEMBER * 1_000_000, 0x03))
@example(frame=flymq_frame(Fetch.opcode, b"\0\1t" + bytes(12) + b"\0\0\0\x64" + b"\0\x0b(\\pL{1000})"))
def test_a_flymq_frame_after_the_login(bench: Bench, open_flymq: FlyMQ, frame: bytes) -> None:
    assert bench.turn_s(open_flymq, frame=frame) < TURN_S_MAX


# --- BlipMQ ---

BLIPMQ_FRAMES = st.builds(
    lambda kind, start, filling, size: encode_frame(kind, 7, start + filled(filling, size - 100)),
    st.sampled_from(list(blipmq_wire.FrameType)),
    st.sampled_from([b"", b"\1\0\1t", b"\0\1t", b"\xff\xf0"]),
    FILLINGS,
    st.sampled_from([blipmq_wire.LOGIN_LENGTH_MAX, 1 << 20, blipmq_wire.LENGTH_MAX]),
)


@pytest.fixture(scope="module")
def blipmq(bench: Bench) -> BlipMQ:
    return BlipMQ(bench.broker, clock=bench.clock, api_keys=["dev-key"])


@settings(max_examples=40)
@given(frame=BLIPMQ_FRAMES)
def test_a_blipmq_frame_before_the_login(bench: Bench, blipmq: BlipMQ, frame: bytes) -> None:
    assert bench.turn_s(blipmq, encode_hello(1, 1), frame=frame) < TURN_S_MAX


@settings(max_examples=40)
@given(frame=BLIPMQ_FRAMES)
def test_a_blipmq_frame_after_the_login(bench: Bench, blipmq: BlipMQ, frame: bytes) -> None:
    assert bench.turn_s(blipmq, encode_hello(1, 1), encode_auth(2, "dev-key"), frame=frame) < TURN_S_MAX


# --- RustLog ---

RUSTLOG_SIZES = st.sampled_from([rustlog_wire.DECODED_ON_LOOP_BYTES_MAX, 1 << 20, rustlog_wire.PAYLOAD_BYTES_MAX])
BINARY_PAYLOADS = st.one_of(
    st.builds(
        lambda opcode, start, filling, size: bytes((opcode,)) + start + filled(filling, size - 100),
        st.sampled_from([*map(int, rustlog_wire.Opcode), 0x77]),
        st.sampled_from([b"", b"\0\1t", b"\0\1t" + bytes(4)]),
        FILLINGS,
        RUSTLOG_SIZES,
    ),
    st.builds(
        lambda sizes, size: bytes((1,)) + as_many(b"\0\1t" + bytes(4), b"".join(map(_record, sizes)), size - 100),
        st.lists(st.integers(0, 3), min_size=1, max_size=4),
        RUSTLOG_SIZES,
    ),
)


def _record(size: int) -> bytes:
    return U32.pack(size) + bytes(size)


def json_records(record: str, size: int) -> bytes:
    count = (size - 100) // (len(record) + 1)
    return b'{"Produce":{"topic":"t","partition":0,"records":[%b]}}' % ",".join([record] * count).encode()


def one_json_record(number: str, size: int) -> bytes:
    numbers = ",".join([number] * ((size - 100) // (len(number) + 1)))
    return b'{"Produce":{"topic":"t","partition":0,"records":[[%b]]}}' % numbers.encode()


def json_around(name: str, field: str, filling: bytes, size: int) -> bytes:
    body = {"topic": "t", "partition": 0, "offset": 0, "max_bytes": 1, "records": [[1]], field: "FILLING"}
    start, _, end = json.dumps({name: body}).partition('"FILLING"')
    return start.encode() + filled(filling, size - 300) + end.encode()


JSON_PAYLOADS = st.one_of(
    st.builds(json_records, st.sampled_from(["[]", "[0]", "[255,255,255,255]", "1", "{}", '"x"']), RUSTLOG_SIZES),
    st.builds(one_json_record, st.sampled_from(["0", "255", "256", "1e1", "[]"]), RUSTLOG_SIZES),
    st.builds(
        json_around,
        st.sampled_from(["Produce", "Fetch", "DescribeTopic", "Ping", "Nonsense"]),
        st.sampled_from(["x", "records", "topic"]),
        FILLINGS,
        RUSTLOG_SIZES,
    ),
    st.builds(lambda filling, size: b"{" + filled(filling, size - 1), FILLINGS, RUSTLOG_SIZES),
)


@pytest.fixture(scope="module", params=["open", "required"])
def rustlog(bench: Bench, request: pytest.FixtureRequest) -> SessionFactory:
    if request.param == "open":
        return RustLog(bench.broker, clock=bench.clock)
    return RustLog(bench.broker, clock=bench.clock, principal=UNAUTHENTICATED)


@settings(max_examples=60)
@given(payload=BINARY_PAYLOADS | JSON_PAYLOADS)
@example(payload=one_json_record("0", rustlog_wire.PAYLOAD_BYTES_MAX))
@example(payload=json_records("[0,0,0,0,0,0,0,0,0]", rustlog_wire.PAYLOAD_BYTES_MAX))
@example(payload=json_records("[1,2,3," + "0," * 50 + "0]", rustlog_wire.PAYLOAD_BYTES_MAX))
@example(payload=b"\x01\0\1t" + bytes(4) + U32.pack(100_000) + b"".join(_record(n % 3) for n in range(100_000)))
@example(payload=b"\x01" + as_many(b"\0\1t" + bytes(4), bytes(4), rustlog_wire.PAYLOAD_BYTES_MAX - 1))
def test_a_rustlog_frame(bench: Bench, rustlog: SessionFactory, payload: bytes) -> None:
    assert bench.turn_s(rustlog, frame=rustlog_wire.frame(payload)) < TURN_S_MAX


# --- filters, in the thread that evaluates them ---


def cpu_s(work: Callable[[], object]) -> float:
    def once_s() -> float:
        started_s = time.thread_time()
        work()
        return time.thread_time() - started_s

    return min(once_s() for _ in range(ATTEMPTS))


@pytest.mark.parametrize("text", [r"(\pL{1000})", r"\pL{1000}" * 100, r"(?i)[\pL\pN\pP]{1000}" * 40, ".{1000}" * 140])
def test_compiling_the_costliest_filters(text: str) -> None:
    def compile_filter() -> None:
        with pytest.raises(InvalidRequest, match="too complex"):
            RecordFilter(text)

    assert cpu_s(compile_filter) < TURN_S_MAX


@pytest.mark.parametrize("filling", [b"1,", b"{},", b'"a",'])
def test_looking_for_a_path_in_a_large_value(filling: bytes) -> None:
    path = path_search(["b"])
    for size in (PATH_TEXT_BYTES_MAX, 16 << 20):
        value = b'{"a":[' + filling * ((size - 10) // len(filling)) + b"1]}"
        assert cpu_s(partial(path, value)) < TURN_S_MAX
