"""A Felix stream that is told anything: it answers, keeps its accounts, and never fails with a bug of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.access.checks import ANONYMOUS
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.frames import decode_reply, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import (
    Auth,
    CacheDelete,
    CacheGet,
    CachePut,
    CacheValue,
    GroupAck,
    GroupNack,
    GroupPoll,
    Publish,
    PublishBatch,
    StartOffset,
    StreamShards,
    Subscribe,
)
from penstock.protocols.felix.session import Felix
from tests.fuzz.stage import Stage, a_stage
from tests.protocols.felix.conversation import Peer

NAMES = st.sampled_from(["default", "t1", "demo", "nope", "", "a/b", "__x", "ü"])
SMALL = st.binary(max_size=30)
IDS = st.one_of(st.none(), st.integers(0, 9), st.sampled_from(["r1", ""]))
ACKS = st.sampled_from([None, "none", "per_message", "per_batch"])
SCOPE: Any = {"tenant_id": NAMES, "namespace": NAMES, "stream": NAMES}
NUMBERS = st.sampled_from([0, 0, 0, 1, 2, 1 << 40, 1 << 64, -1])
DEMO = st.just("demo")
GROUP: Any = {
    "tenant_id": st.sampled_from(["default", "t1"]),
    "namespace": st.just("default"),
    "stream": DEMO | NAMES,
    "shard": st.sampled_from([0, 0, 0, 1]),
    "group": st.sampled_from(["g", "h", ""]),
    "request_id": IDS,
}
MESSAGES = st.one_of(
    st.builds(Publish, **SCOPE, payload=SMALL, request_id=IDS, ack=ACKS),
    st.builds(PublishBatch, **SCOPE, payloads=st.lists(SMALL, max_size=5), request_id=IDS, ack=ACKS),
    st.builds(
        Subscribe,
        **SCOPE,
        subscription_id=IDS,
        request_id=IDS,
        start=st.sampled_from([None, "latest", "earliest", StartOffset(0), StartOffset(1 << 40)]),
    ),
    st.builds(CachePut, key=NAMES, value=SMALL, request_id=IDS, ttl_ms=st.sampled_from([None, 0, 5, -1])),
    st.builds(CacheGet, tenant_id=NAMES, cache=NAMES, key=NAMES, request_id=IDS),
    st.builds(CacheDelete, tenant_id=NAMES, cache=NAMES, key=NAMES, request_id=IDS),
    st.builds(StreamShards, **SCOPE, request_id=IDS),
    st.builds(
        GroupPoll,
        **GROUP,
        max_records=st.sampled_from([0, 1, 9, 1 << 64]),
        wait_ms=st.sampled_from([0, 1, -1]),
        visibility_ms=NUMBERS,
    ),
    st.builds(GroupAck, **GROUP, offset=NUMBERS),
    st.builds(GroupNack, **GROUP, offset=NUMBERS, delay_ms=NUMBERS, attempts=NUMBERS),
    st.builds(
        Auth,
        tenant_id=NAMES,
        token=NAMES,
        client_flags=st.integers(0, 0xFFFF),
        client_features=st.none() | st.integers(0, 0xFFFF_FFFF),
    ),
)
PARTS = st.one_of(
    MESSAGES.map(encode_message),
    st.builds(
        encode_frame,
        st.sampled_from([1, 9, 0x41, 0x49, 0xFFFF]),
        st.builds(binary.encode_publish, NAMES, NAMES, NAMES, st.lists(SMALL, max_size=70), key=SMALL),
    ),
    st.builds(encode_frame, st.integers(0, 0xFFFF), SMALL),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
    | st.sampled_from([-1, 0, 1 << 64, 10**400, "x" * 5000, "YQ==", "\x7f" * 300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
TYPES = "publish publish_batch subscribe cache_put cache_get cache_delete group_poll group_ack group_nack stream_shards auth ok"
FIELDS = (
    "tenant_id namespace stream cache key value payload payloads ack token request_id subscription_id ttl_ms start client_flags offset"
    " client_features group shard max_records wait_ms consumer visibility_ms delay_ms attempts"
)
WILD = st.fixed_dictionaries(
    {"type": st.sampled_from(TYPES.split()) | ANYTHING},
    optional=dict.fromkeys(FIELDS.split(), ANYTHING | NAMES),
).map(lambda message: encode_frame(0, json.dumps(message).encode()))
ANSWER_BYTES_MAX = 16_384
"""Nothing that is said here has a longer answer."""
BARRIER = CacheGet(key="k", request_id="the barrier")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with a_stage(tmp_path_factory.mktemp("felix") / "data") as stage:
        stage.run(stage.broker.topics.ensure(ANONYMOUS, "demo"))
        yield stage


@given(
    st.lists(st.lists(PARTS | WILD, min_size=1, max_size=8), min_size=1, max_size=6),
    st.integers(1, 60),
    st.sampled_from(["auto", "spec", "native"]),
    st.booleans(),
)
@settings(max_examples=60)
def test_whatever_is_said_is_answered_and_leaves_nothing_held(
    stage: Stage, streams: list[list[bytes]], step: int, dialect: Any, auto_create: bool
) -> None:
    async def converse() -> None:
        felix = Felix(stage.broker, clock=stage.clock, dialect=dialect, auto_create=auto_create)
        peer = Peer(felix)
        talks = []
        for parts in streams:
            talk = peer.open()
            talks.append(talk)
            data = b"".join(parts) + encode_message(BARRIER)
            for at in range(0, len(data), step):
                talk.say(data[at : at + step])
        for talk in talks:
            while True:
                frame = await talk.frame()
                assert len(frame.payload) < ANSWER_BYTES_MAX
                answer = decode_reply(frame)
                if isinstance(answer, CacheValue) and answer.request_id == "the barrier":
                    break
        assert peer.connection.was_closed is None
        assert felix.stats.internal_errors == 0
        for talk in talks:
            while talk.stream.held_bytes:  # publishes that nobody hears of
                await asyncio.sleep(0)
            talk.session.ended()
            assert talk.ended()
            talk.close()
        for events in peer.connection.opened:
            events.close()
        assert felix.stats.subscribers == 0

    stage.run(converse())


@given(st.lists(PARTS | WILD, min_size=1, max_size=8), st.integers(1, 60))
@settings(max_examples=40)
def test_whatever_is_said_on_a_stream_that_cannot_answer_leaves_nothing_held(
    stage: Stage, parts: list[bytes], step: int
) -> None:
    async def converse() -> None:
        felix = Felix(stage.broker, clock=stage.clock)
        peer = Peer(felix)
        talk = peer.open(one_way=True)
        data = b"".join(parts)
        for at in range(0, len(data), step):
            if talk.stream.stopped is None:
                talk.say(data[at : at + step])
        while talk.stream.held_bytes:
            await asyncio.sleep(0)
        assert talk.silent()
        assert (felix.stats.internal_errors, felix.stats.subscribers) == (0, 0)
        talk.close()

    stage.run(converse())
