"""A Felix stream that is told anything: it answers, keeps its accounts, and never fails with a bug of ours."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.access import ANONYMOUS, OpenAccess
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.embedded import EmbeddedEngine
from penstock.protocols.felix import binary
from penstock.protocols.felix.codec import encode_frame, encode_message
from penstock.protocols.felix.messages import (
    Auth,
    CacheGet,
    CachePut,
    CacheValue,
    Publish,
    PublishBatch,
    StartOffset,
    Subscribe,
)
from penstock.protocols.felix.session import Felix
from penstock.testing.clock import ManualClock
from tests.protocols.felix.conversation import Peer

NAMES = st.sampled_from(["default", "t1", "demo", "nope", "", "a/b", "__x", "ü"])
SMALL = st.binary(max_size=30)
IDS = st.one_of(st.none(), st.integers(0, 9), st.sampled_from(["r1", ""]))
ACKS = st.sampled_from([None, "none", "per_message", "per_batch"])
SCOPE: Any = {"tenant_id": NAMES, "namespace": NAMES, "stream": NAMES}
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
    st.builds(Auth, tenant_id=NAMES, token=NAMES, client_flags=st.integers(0, 0xFFFF)),
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
BARRIER = CacheGet(key="k", request_id="the barrier")


def over_a_broker(work: Callable[[Broker, ManualClock], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        clock = ManualClock()
        with tempfile.TemporaryDirectory() as directory:
            engine = EmbeddedEngine(Path(directory) / "data", clock=clock)
            await engine.start()
            broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
            await broker.start()
            await broker.ensure_topic(ANONYMOUS, "demo")
            try:
                await work(broker, clock)
            finally:
                await broker.close()
                await engine.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@given(
    st.lists(st.lists(PARTS, min_size=1, max_size=8), min_size=1, max_size=6),
    st.integers(1, 60),
    st.sampled_from(["auto", "spec", "native"]),
    st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_said_is_answered_and_leaves_nothing_held(
    streams: list[list[bytes]], step: int, dialect: Any, auto_create: bool
) -> None:
    async def converse(broker: Broker, clock: ManualClock) -> None:
        felix = Felix(broker, clock=clock, dialect=dialect, auto_create=auto_create)
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
                answer = await talk.reply()
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

    over_a_broker(converse)
