"""The cache over Felix: both dialects, scopes, times to live."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.protocols.felix.codec.frames import Frame, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import (
    CacheDelete,
    CacheGet,
    CacheOk,
    CachePut,
    CacheValue,
    Error,
    Message,
    Ok,
    Publish,
    PublishOk,
)
from penstock.protocols.felix.server.caching import VALUE_BYTES_MAX
from penstock.protocols.felix.server.stream import KEPT_BACK_BYTES_MAX, REQUESTS_PER_TURN_MAX
from penstock.protocols.felix.session import Felix
from penstock.protocols.felix.wire import PAYLOAD_BYTES_MAX
from penstock.testing.clock import ManualClock
from tests.protocols.felix.conversation import Peer, Talk

PRICES: Any = {"tenant_id": "t1", "namespace": "shop", "cache": "prices"}


@pytest.mark.parametrize(
    ("given", "ok"),
    [
        ({"request_id": "r1"}, Ok(request_id="r1")),
        ({"request_id": 1}, Ok(request_id=1)),
        ({}, Ok()),
        ({**PRICES, "request_id": "r1"}, Ok(request_id="r1")),
        ({**PRICES, "request_id": 1}, CacheOk(request_id=1)),
        (PRICES, Ok()),
    ],
)
async def test_the_dialect_decides_how_a_put_is_answered(talk: Talk, given: Any, ok: Any) -> None:
    assert await talk.ask(CachePut(**given, key="k", value=b"v")) == ok
    answer = await talk.ask(CacheGet(**given, key="k"))
    assert isinstance(answer, CacheValue)
    assert (answer.value, answer.key) == (b"v", "k")
    assert {name: getattr(answer, name) for name in given} == given


@pytest.mark.parametrize("given", [{"request_id": "r1"}, {}, {**PRICES, "request_id": 1}, PRICES])
async def test_what_is_deleted_comes_back_with_the_answer_and_is_gone(talk: Talk, given: Any) -> None:
    await talk.ask(CachePut(**given, key="k", value=b"v"))
    await talk.ask(CachePut(**given, key="other", value=b"w"))
    for value in (b"v", None):
        answer = await talk.ask(CacheDelete(**given, key="k"))
        assert isinstance(answer, CacheValue)
        assert (answer.key, answer.value) == ("k", value)
        assert {name: getattr(answer, name) for name in given} == given
    for key, value in (("k", None), ("other", b"w")):
        answer = await talk.ask(CacheGet(**given, key=key))
        assert isinstance(answer, CacheValue)
        assert answer.value == value


async def test_a_value_whose_time_is_over_was_not_there_to_delete(talk: Talk, clock: ManualClock) -> None:
    await talk.ask(CachePut(**PRICES, key="k", value=b"v", ttl_ms=10, request_id=1))
    clock.advance(0.01)
    frame = await asked(talk, CacheDelete(**PRICES, key="k", request_id=2))
    assert frame.payload == (
        b'{"type":"cache_value","tenant_id":"t1","namespace":"shop","cache":"prices","key":"k","value":null,"request_id":2}'
    )


async def test_who_has_logged_in_is_answered_as_a_deployed_client(peer: Peer) -> None:
    talk = await peer.log_in()
    assert await talk.ask(CachePut(key="k", value=b"v", request_id=1)) == CacheOk(request_id=1)
    assert await talk.ask(CachePut(key="k", value=b"v")) == Ok()
    frame: Frame = await asked(talk, CacheGet(**PRICES, key="none", request_id=5))
    assert frame.payload == (
        b'{"type":"cache_value","tenant_id":"t1","namespace":"shop","cache":"prices","key":"none","value":null,"request_id":5}'
    )


async def asked(talk: Talk, request: CacheGet | CacheDelete) -> Frame:
    talk.say(request)
    return await talk.frame()


async def test_names_that_are_left_out_are_the_defaults(talk: Talk) -> None:
    await talk.ask(CachePut(key="k", value=b"v"))
    answer = await talk.ask(CacheGet(tenant_id="default", namespace="default", cache="default", key="k"))
    assert isinstance(answer, CacheValue)
    assert answer.value == b"v"


async def test_caches_of_tenants_and_namespaces_are_apart(talk: Talk) -> None:
    scopes: list[Any] = [
        PRICES,
        {**PRICES, "tenant_id": "t2"},
        {**PRICES, "namespace": "n"},
        {**PRICES, "cache": "c"},
        {},
    ]
    for number, scope in enumerate(scopes):
        await talk.ask(CachePut(**scope, key="k", value=b"%d" % number))
    for number, scope in enumerate(scopes):
        answer = await talk.ask(CacheGet(**scope, key="k"))
        assert isinstance(answer, CacheValue)
        assert answer.value == b"%d" % number


async def test_a_value_expires(talk: Talk, clock: ManualClock) -> None:
    await talk.ask(CachePut(key="k", value=b"v", ttl_ms=100))
    clock.advance(0.1)
    answer = await talk.ask(CacheGet(key="k", request_id="r"))
    assert isinstance(answer, CacheValue)
    assert answer.value is None


async def test_what_the_cache_refuses_is_answered_with_its_id(broker: Broker, clock: ManualClock) -> None:
    broker.cache._limits = BrokerLimits(cache_bytes_max=1024)
    talk = Peer(Felix(broker, clock=clock)).open()
    for request in (
        CachePut(key="k", value=bytes(1000), request_id="r"),
        CachePut(key="k", value=b"", ttl_ms=-1, request_id="r"),
        CachePut(tenant_id="a/b", key="k", value=b"", request_id="r"),
        CachePut(cache="__internal", key="k", value=b"", request_id="r"),
    ):
        answer = await talk.ask(request)
        assert isinstance(answer, Error)
        assert answer.request_id == "r"
    assert len(broker.cache) == 0


async def test_a_value_that_would_not_fit_into_its_answer_is_refused(talk: Talk) -> None:
    most: Any = {"tenant_id": "t" * 50, "namespace": "n" * 50, "cache": "c" * 50, "key": "\x01" * 4096}
    assert await talk.ask(CachePut(**most, value=bytes(VALUE_BYTES_MAX), request_id=1)) == CacheOk(request_id=1)
    frame = await asked(talk, CacheGet(**most, request_id="\x01" * 1024))
    assert VALUE_BYTES_MAX < len(frame.payload) <= PAYLOAD_BYTES_MAX
    answer = await talk.ask(CachePut(key="k", value=bytes(VALUE_BYTES_MAX + 1), request_id="r"))
    assert isinstance(answer, Error)
    assert f"at most {VALUE_BYTES_MAX}" in answer.message


@pytest.mark.parametrize(
    ("question", "answer_bytes", "count"),
    [(CacheGet(key="k"), 133_000, 200), (CacheGet(key="none"), 190, 20_000), (encode_frame(0, b""), 220, 20_000)],
    ids=["large values", "small ones", "errors"],
)
async def test_answers_do_not_pile_up_behind_a_publish_that_is_not_committed(
    talk: Talk,
    broker: Broker,
    felix: Felix,
    monkeypatch: pytest.MonkeyPatch,
    question: bytes | Message,
    answer_bytes: int,
    count: int,
) -> None:
    await talk.ask(CachePut(key="k", value=bytes(100_000)))
    produce = broker.records.produce_together
    uncommitted: list[Callable[[], None]] = []
    monkeypatch.setattr(
        broker.records, "produce_together", lambda *given, **more: uncommitted.append(partial(produce, *given, **more))
    )
    publish = Publish(tenant_id="default", namespace="default", stream="demo", payload=b"first", request_id=0)
    talk.say(publish, *[question] * count)
    while talk.session._turn_scheduled:  # type: ignore[attr-defined]
        await asyncio.sleep(0)
    asked = sum(number for name, number in felix.stats.requests.items() if name in ("cache_get", "malformed"))
    assert 5 < asked < 2 * KEPT_BACK_BYTES_MAX // answer_bytes
    assert talk.silent()
    (commit,) = uncommitted
    commit()
    assert await talk.reply() == PublishOk(request_id=0)
    for _ in range(count):
        await talk.reply()
    assert talk.stream.held_bytes == 0


async def test_pipelined_requests_are_answered_each_with_its_id(talk: Talk) -> None:
    for start in range(0, 300, 100):
        ids = range(start, start + 100)
        talk.say(*(CachePut(**PRICES, key=f"k{n}", value=b"%d" % n, request_id=n) for n in ids))
        talk.say(*(CacheGet(**PRICES, key=f"k{n}", request_id=n) for n in ids))
        assert [await talk.reply() for _ in ids] == [CacheOk(request_id=n) for n in ids]
        answers = [await talk.reply() for _ in ids]
        assert [(each.request_id, each.value) for each in answers if isinstance(each, CacheValue)] == [
            (n, b"%d" % n) for n in ids
        ]


async def test_a_stream_that_ends_inside_a_frame_after_a_full_turn_is_ended(talk: Talk) -> None:
    get = encode_message(CacheGet(key="k"))
    talk.say(get * REQUESTS_PER_TURN_MAX, get[:-1])
    talk.session.ended()
    for _ in range(REQUESTS_PER_TURN_MAX):
        assert isinstance(await talk.reply(), CacheValue)
    assert await talk.reply() == Error(message="the stream ended inside a frame")
    assert talk.ended()
