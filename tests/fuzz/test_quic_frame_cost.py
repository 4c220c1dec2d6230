"""Any frame of Felix and Fujin up to the largest allowed, before a login and after it: see test_frame_cost.py."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.broker.access.checks import UNAUTHENTICATED
from penstock.net.session import SessionFactory
from penstock.protocols.felix.codec.frames import JSON_COMMAS_MAX, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import BATCH_EVENTS_MAX, Auth
from penstock.protocols.felix.session import Felix
from penstock.protocols.felix.wire import PAYLOAD_BYTES_MAX
from penstock.protocols.fujin.session import Fujin
from penstock.protocols.fujin.wire import (
    BODY_BYTES_MAX_DEFAULT,
    HEADER_STRINGS_MAX,
    ID_BYTES_MAX,
    IDS_MAX,
    TOPIC_BYTES_MAX,
    Request,
)
from tests.fuzz.loop_cost import TURN_S_MAX, Bench, one_stream
from tests.fuzz.test_frame_cost import FILLINGS, as_many, filled
from tests.protocols.fujin import requests

pytestmark = pytest.mark.timeout(600)

# --- Felix ---

NAMES = b"\0\7default\0\7default\0\1t"
FELIX_SIZES = st.sampled_from([64 << 10, 1 << 20, PAYLOAD_BYTES_MAX])
HEADS = st.sampled_from([b"", NAMES, bytes(8) + b"\2" + NAMES, b"\0\1k" + NAMES])
TYPES = st.sampled_from(["publish", "publish_batch", "subscribe", "cache_put", "auth", "group_ack", "ok", "nonsense"])
FIELDS = st.sampled_from(["payload", "payloads", "value", "token", "request_id", "key", "x"])


def json_message(kind: str, field: str, filling: str, size: int) -> bytes:
    """A message with one field that is as long as there is room for."""
    message = {"type": kind, "tenant_id": "default", "namespace": "default", "stream": "t", field: "FILLING"}
    start, _, end = json.dumps(message).partition('"FILLING"')
    room = size - len(start) - len(end)
    if filling == "text":
        value = b'"' + base64.b64encode(bytes((room - 2) // 4 * 3)) + b'"'
    else:
        count = (room - 2) // (len(filling) + 1)
        value = b"[" + ",".join([filling] * count).encode() + b"]"
    return encode_frame(0, start.encode() + value + end.encode())


def json_batch(events: int) -> bytes:
    """The costliest batch that has this many events."""
    value = base64.b64encode(bytes((PAYLOAD_BYTES_MAX - 200) // events * 3 // 4 - 6)).decode()
    names = {"tenant_id": "default", "namespace": "default", "stream": "t"}
    return encode_frame(0, json.dumps({"type": "publish_batch", **names, "payloads": [value] * events}).encode())


FELIX_FRAMES = st.one_of(
    st.builds(
        lambda flags, head, filling, size: encode_frame(flags, head + filled(filling, size - 100)),
        st.sampled_from([0, 1, 9, 0x41, 0x49, 2, 0xFFFF]),
        HEADS,
        FILLINGS,
        FELIX_SIZES,
    ),
    st.builds(
        lambda value_bytes, size: encode_frame(
            1, as_many(NAMES, value_bytes.to_bytes(4, "big") + bytes(value_bytes), size)
        ),
        st.sampled_from([0, 1, 30, 31, 100, 1000, 60_000]),
        FELIX_SIZES,
    ),
    st.builds(
        json_message, TYPES, FIELDS, st.sampled_from(["text", "0", '""', '"YQ=="', "{}", "[]", "1e5"]), FELIX_SIZES
    ),
)


@pytest.fixture(scope="module")
def strict_felix(bench: Bench) -> SessionFactory:
    return one_stream(Felix(bench.broker, clock=bench.clock, required=True, tokens={"default": "token"}))


@settings(max_examples=40)
@given(frame=FELIX_FRAMES)
@example(frame=json_batch(2_000_000))
def test_a_felix_frame_before_the_login(bench: Bench, strict_felix: SessionFactory, frame: bytes) -> None:
    assert bench.turn_s(strict_felix, frame=frame) < TURN_S_MAX


@settings(max_examples=40)
@given(frame=FELIX_FRAMES)
@example(frame=json_batch(100_000))
@example(frame=json_batch(BATCH_EVENTS_MAX))
@example(frame=json_message("publish_batch", "payloads", "0", PAYLOAD_BYTES_MAX))
@example(frame=encode_frame(0, b'{"type":"publish","x":[' + b"0," * (JSON_COMMAS_MAX - 1) + b"0]}"))
def test_a_felix_frame_after_the_login(bench: Bench, strict_felix: SessionFactory, frame: bytes) -> None:
    login = encode_message(Auth(tenant_id="default", token="token"))
    assert bench.turn_s(strict_felix, login, frame=frame) < TURN_S_MAX


# --- Fujin ---

BODIES = st.builds(filled, FILLINGS, st.sampled_from([1000, 64 << 10, BODY_BYTES_MAX_DEFAULT]))
IDS = st.builds(
    lambda id_bytes, count: [n.to_bytes(8, "big").rjust(id_bytes, b"x") for n in range(count)],
    st.sampled_from([8, 12, ID_BYTES_MAX]),
    st.sampled_from([1, 1000, IDS_MAX]),
)
STRINGS = st.builds(
    lambda size, count: [bytes(size)] * count, st.sampled_from([0, 1, 250]), st.sampled_from([0, 2, HEADER_STRINGS_MAX])
)
TOPICS = st.sampled_from([b"t", b"", b"\xff" * 300, b"t" * TOPIC_BYTES_MAX])
FUJIN_FRAMES = st.one_of(
    st.builds(requests.write, st.just(7), TOPICS, BODIES),
    st.builds(lambda topic, body, strings: requests.write_table(7, topic, body, *strings), TOPICS, BODIES, STRINGS),
    st.builds(requests.ack, st.just(7), IDS),
    st.builds(requests.nack, st.just(7), IDS),
    st.builds(lambda request, filled: bytes((request,)) + filled, st.sampled_from(list(Request)), BODIES),
)
CONVERSATIONS = st.sampled_from([(), (requests.CONNECT_WRITER,), (requests.connect_reader(b"t"),)])


@pytest.fixture(scope="module", params=["open", "required"])
def fujin(bench: Bench, request: pytest.FixtureRequest) -> SessionFactory:
    """The protocol has no login: a client without a certificate is let in, or is a stranger."""
    return one_stream(
        Fujin(bench.broker) if request.param == "open" else Fujin(bench.broker, principal=UNAUTHENTICATED)
    )


@settings(max_examples=40)
@given(before=CONVERSATIONS, frame=FUJIN_FRAMES)
def test_a_fujin_frame(bench: Bench, fujin: SessionFactory, before: tuple[bytes, ...], frame: bytes) -> None:
    assert bench.turn_s(fujin, *before, frame=frame) < TURN_S_MAX
