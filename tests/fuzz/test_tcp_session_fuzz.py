"""Any conversation over FlyMQ, BlipMQ and RustLog: answered or refused, nothing stays held, and no error is the broker's own fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.access.checks import ANONYMOUS
from penstock.errors import ProtocolViolation
from penstock.net.session import SessionFactory
from penstock.protocols.blipmq import codec as blipmq_codec
from penstock.protocols.blipmq.session import BlipMQ
from penstock.protocols.flymq import wire as flymq_wire
from penstock.protocols.flymq.operations.operation import OPERATIONS
from penstock.protocols.flymq.operations.topics import ListTopics
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.rustlog import wire as rustlog_wire
from penstock.protocols.rustlog.session import RustLog
from tests.fuzz.loop_cost import Peer
from tests.fuzz.stage import Stage, a_stage
from tests.fuzz.test_blipmq_codec_fuzz import FRAMES as ANY_BLIPMQ
from tests.fuzz.test_flymq_codec_fuzz import streams as flymq_streams
from tests.fuzz.test_rustlog_codec_fuzz import CALLS, CLIENTS, DIALECTS, FIELDS, JSON_VALUES, REQUEST_NAMES

ANSWERED_S_MAX = 50.0
TOPICS = ("t", "orders")
CUTS = st.lists(st.integers(0, 1 << 16), max_size=6)
NAMES = st.sampled_from([*TOPICS, "t", "g", "", "__groups", "new", "ü", "a/b"])
SMALL = st.binary(max_size=20)
API_KEY = "dev-key"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with a_stage(tmp_path_factory.mktemp("tcp") / "data") as stage:
        for topic in TOPICS:
            stage.run(stage.broker.topics.ensure(ANONYMOUS, topic))
        yield stage


def converse(stage: Stage, listener: SessionFactory, data: bytes, cuts: list[int]) -> int:
    """Say bytes in these pieces and wait until all that was understood is answered; returns the bytes of the answers."""

    async def conversation() -> int:
        peer = Peer()
        session = listener(peer)
        edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        try:
            for start, stop in pairwise(edges):
                session.receive(data[start:stop])
                await asyncio.sleep(0)
        except ProtocolViolation:
            pass
        async with asyncio.timeout(ANSWERED_S_MAX):
            while peer.held_bytes:
                await peer.answered.wait()
                await asyncio.sleep(0)
        session.closed()
        return peer.sent_bytes

    return stage.run(conversation())


# --- FlyMQ ---


def text(name: str) -> bytes:
    return len(name.encode()).to_bytes(2, "big") + name.encode()


FLYMQ_FIELDS = st.one_of(
    NAMES.map(text),
    st.sampled_from([0, 0, 1, 2, 100, 0x7FFFFFFF, 0xFFFFFFFF]).map(lambda number: number.to_bytes(4, "big")),
    st.sampled_from([0, 1, 7, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]).map(lambda number: number.to_bytes(8, "big")),
    SMALL.map(lambda value: len(value).to_bytes(4, "big") + value),
    st.sampled_from([b"\0", b"\1", b"\2"]),
)
FLYMQ_REQUESTS = st.builds(
    lambda opcode, fields: flymq_wire.frame(opcode, b"".join(fields)),
    st.sampled_from(sorted(OPERATIONS)),
    st.builds(lambda first, rest: [text(first), *rest], NAMES, st.lists(FLYMQ_FIELDS, max_size=6)),
)


@settings(max_examples=150)
@given(st.lists(FLYMQ_REQUESTS | flymq_streams(), max_size=10).map(b"".join), CUTS)
def test_any_conversation_over_flymq(stage: Stage, data: bytes, cuts: list[int]) -> None:
    flymq = FlyMQ(stage.broker, clock=stage.clock, node=Node("node-1", lambda: "192.0.2.9:9092"))
    converse(stage, flymq, data, cuts)
    assert flymq.stats.internal_errors == 0


# --- BlipMQ ---

IDS = st.integers(0, 6) | st.integers(0, (1 << 64) - 1)
BLIPMQ_REQUESTS = st.one_of(
    st.builds(blipmq_codec.encode_publish, IDS, st.integers(0, 1), NAMES, SMALL),
    st.builds(blipmq_codec.encode_subscribe, IDS, NAMES, st.integers(0, 2)),
    st.builds(blipmq_codec.encode_poll, IDS, IDS),
    st.builds(blipmq_codec.encode_ack, IDS, IDS),
    st.builds(blipmq_codec.encode_ping, IDS),
    ANY_BLIPMQ,
)


@settings(max_examples=150)
@given(st.lists(BLIPMQ_REQUESTS | SMALL, max_size=12).map(b"".join), CUTS, st.booleans())
def test_any_conversation_over_blipmq(stage: Stage, data: bytes, cuts: list[int], logged_in: bool) -> None:
    blipmq = BlipMQ(stage.broker, clock=stage.clock, api_keys=[API_KEY])
    login = blipmq_codec.encode_hello(1, 1) + blipmq_codec.encode_auth(2, API_KEY) if logged_in else b""
    converse(stage, blipmq, login + data, cuts)
    assert blipmq.stats.internal_errors == 0


# --- RustLog ---

NAMED_FIELDS = st.fixed_dictionaries(
    {"topic": NAMES, "partition": st.sampled_from([0, 0, 1, -1])},
    optional={
        "records": st.lists(SMALL.map(list), max_size=5),
        "offset": st.sampled_from([0, 1, 1 << 40, -1, (1 << 64) - 1]),
        "max_bytes": st.sampled_from([0, 1, 1 << 20, 1 << 33]),
        "group_id": NAMES,
        "partition_count": st.sampled_from([0, 1, 3, 1 << 31]),
    },
)
RUSTLOG_REQUESTS = st.one_of(
    st.builds(
        lambda name, fields: rustlog_wire.frame(json.dumps({name: fields}).encode()),
        REQUEST_NAMES,
        NAMED_FIELDS | st.dictionaries(FIELDS, JSON_VALUES, max_size=5),
    ),
    st.builds(lambda dialect, body: CLIENTS[dialect].encode_call(body), DIALECTS, CALLS),
    st.builds(
        lambda dialect, topic, values: CLIENTS[dialect].encode_produce(topic, 0, values),
        DIALECTS,
        NAMES,
        st.lists(SMALL, min_size=1, max_size=8),
    ),
    st.builds(rustlog_wire.frame, st.binary(min_size=1, max_size=60)),
)


@settings(max_examples=150)
@given(st.lists(RUSTLOG_REQUESTS | SMALL, max_size=12).map(b"".join), CUTS)
def test_any_conversation_over_rustlog(stage: Stage, data: bytes, cuts: list[int]) -> None:
    rustlog = RustLog(stage.broker, clock=stage.clock)
    converse(stage, rustlog, data, cuts)
    assert rustlog.stats.internal_errors == 0


def test_what_is_said_here_is_understood(stage: Stage) -> None:
    """The other tests would pass if nothing was."""
    blipmq = BlipMQ(stage.broker, clock=stage.clock, api_keys=[API_KEY])
    login = blipmq_codec.encode_hello(1, 1) + blipmq_codec.encode_auth(2, API_KEY)
    assert converse(stage, blipmq, login + blipmq_codec.encode_ping(3), []) > 0
    flymq = FlyMQ(stage.broker, clock=stage.clock, node=Node("node-1", lambda: "192.0.2.9:9092"))
    assert converse(stage, flymq, flymq_wire.frame(ListTopics.opcode, b""), [3]) > 0
    rustlog = RustLog(stage.broker, clock=stage.clock)
    assert converse(stage, rustlog, rustlog_wire.frame(b'{"Ping":{}}'), [1, 5]) > 0
