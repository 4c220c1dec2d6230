"""Who may come in: tokens, API keys, certificates; and that each gets no further than it should."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import ANONYMOUS, SYSTEM
from penstock.broker.access.policy import AccessSettings
from penstock.broker.access.throttle import DELAY_S_FIRST
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.api import Engine
from penstock.protocols.felix.codec.messages import (
    Auth,
    AuthOk,
    CacheGet,
    CachePut,
    CacheValue,
    Error,
    EventStreamHello,
    Ok,
    Publish,
    Subscribe,
    Subscribed,
)
from penstock.protocols.felix.session import Felix
from penstock.protocols.felix.wire import CLOSE_GONE
from penstock.testing.clock import ManualClock
from tests.protocols.felix.conversation import Peer, Talk

LIMITS = BrokerLimits()

T1: Any = {"tenant_id": "t1", "namespace": "default", "stream": "demo"}
T2: Any = {**T1, "tenant_id": "t2"}
OWN: Any = {**T1, "tenant_id": "default"}
TOKENS = {"t1": "one", "t2": "two", "default": "the broker's own"}


@pytest.fixture
async def broker(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    """With users, roles and ACLs, unlike elsewhere."""
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access_settings=AccessSettings())
    await broker.start()
    for topic in ("demo", "t1/demo", "t2/demo"):
        await broker.topics.ensure(SYSTEM, topic)
    yield broker
    await broker.close()


@pytest.fixture
async def felix(broker: Broker, clock: ManualClock) -> Felix:
    return Felix(broker, clock=clock, required=True, tokens=TOKENS, api_keys=["dev-key"])


async def refused(talk: Talk, request: Any) -> str:
    answer = await talk.ask(request)
    assert isinstance(answer, Error), answer
    assert "unauthorized" in answer.message
    return answer.message


async def test_a_stranger_gets_no_further_than_saying_who_it_is(peer: Peer, talk: Talk) -> None:
    for request in (
        Publish(**T1, payload=b"x"),
        Publish(**T1, payload=b"x", ack="none"),
        Subscribe(**T1),
        CachePut(key="k", value=b"v"),
        CacheGet(key="k"),
    ):
        assert "authentication required" in await refused(talk, request)
    assert not peer.connection.opened
    assert await talk.ask(Auth(tenant_id="t1", token="one")) == Ok()
    assert await talk.ask(Publish(**T1, payload=b"x")) == Ok()


async def test_a_token_opens_its_own_tenant_only(peer: Peer) -> None:
    talk = await peer.log_in("t1", "one")
    assert await talk.ask(Publish(**T1, payload=b"x")) == Ok()
    assert isinstance(await talk.ask(Subscribe(**T1)), Subscribed)
    for request in (
        Publish(**T2, payload=b"x"),
        Publish(**OWN, payload=b"x"),
        Publish(**{**OWN, "stream": "t1/demo"}, payload=b"x"),
        Subscribe(**T2),
        CachePut(tenant_id="t2", key="k", value=b"v"),
        CacheGet(tenant_id="t2", key="k"),
    ):
        assert "tenant mismatch" in await refused(talk, request)


async def test_a_tenant_that_names_no_cache_means_its_own(peer: Peer) -> None:
    one, two = await peer.log_in("t1", "one"), await peer.log_in("t2", "two")
    await one.ask(CachePut(key="k", value=b"of t1"))
    assert isinstance(mine := await one.ask(CacheGet(key="k")), CacheValue)
    assert isinstance(other := await two.ask(CacheGet(key="k")), CacheValue)
    assert (mine.value, other.value) == (b"of t1", None)


async def test_the_default_tenant_is_the_brokers_own(peer: Peer) -> None:
    talk = await peer.log_in("default", TOKENS["default"])
    assert await talk.ask(Publish(**OWN, payload=b"x")) == Ok()
    assert await talk.ask(Publish(**{**OWN, "stream": "t1/demo"}, payload=b"x")) == Ok()


@pytest.mark.parametrize(("tenant_id", "token"), [("t1", "two"), ("t1", ""), ("t3", "one"), ("", ""), ("t1", "\ud7ff")])
async def test_a_wrong_token_is_refused_and_the_stream_may_try_again(
    peer: Peer, talk: Talk, tenant_id: str, token: str
) -> None:
    assert "auth failed" in await refused(talk, Auth(tenant_id=tenant_id, token=token))
    assert "authentication required" in await refused(talk, Publish(**T1, payload=b"x"))
    assert await talk.ask(Auth(tenant_id="t1", token="one", client_flags=1)) == AuthOk(server_flags=0x127F)


async def test_who_tried_to_log_in_is_answered_as_a_deployed_client(peer: Peer, talk: Talk) -> None:
    assert "auth failed" in await refused(talk, Auth(tenant_id="t1", token="guess"))
    talk.say(Publish(**T1, payload=b"x", ack="none"))  # which would take an error for the answer to the next one
    assert "authentication required" in await refused(talk, CacheGet(key="k", request_id=1))
    assert talk.silent()


async def test_failures_make_the_next_attempts_wait(peer: Peer, clock: ManualClock) -> None:
    for _ in range(LIMITS.login_failures_per_user_max + 1):
        await refused(peer.open(), Auth(tenant_id="t1", token="guess"))
    talk = peer.open()
    assert "too many failed attempts" in await refused(talk, Auth(tenant_id="t1", token="one"))
    clock.advance(DELAY_S_FIRST)
    assert await talk.ask(Auth(tenant_id="t1", token="one")) == Ok()


async def test_wrong_tokens_lock_no_holder_of_an_api_key_out(peer: Peer, broker: Broker) -> None:
    key = await broker.api_keys.create(SYSTEM, "worker")
    for _ in range(LIMITS.login_failures_per_user_max + 1):
        await refused(peer.open(), Auth(tenant_id="t1", token="guess"))
    assert await peer.open().ask(Auth(tenant_id="t1", token=key)) == Ok()


async def test_nobody_says_twice_who_they_are(peer: Peer) -> None:
    talk = await peer.log_in("t1", "one")
    answer = await talk.ask(Auth(tenant_id="t2", token="two"))
    assert isinstance(answer, Error)
    assert "already established" in answer.message
    assert "tenant mismatch" in await refused(talk, Publish(**T2, payload=b"x"))


async def test_each_stream_says_for_itself_who_it_is(peer: Peer) -> None:
    await peer.log_in("t1", "one")
    assert "authentication required" in await refused(peer.open(), Publish(**T1, payload=b"x"))


async def test_an_api_key_is_good_for_every_tenant_until_it_is_revoked(peer: Peer, broker: Broker) -> None:
    key = await broker.api_keys.create(SYSTEM, "worker", ["consumer"])
    talk = await peer.log_in("t1", key)
    for scope in (T1, T2, OWN):
        assert isinstance(await talk.ask(Subscribe(**scope)), Subscribed)
        assert "may not write" in await refused(talk, Publish(**scope, payload=b"x"))
    events = peer.events
    assert isinstance(await events.reply(), EventStreamHello)
    await broker.api_keys.revoke(SYSTEM, "worker")
    assert "authentication required" in await refused(talk, Subscribe(**T1))
    writer = await peer.log_in("default", "dev-key")
    assert await writer.ask(Publish(**OWN, payload=b"secret")) == Ok()
    await events.cut_off()
    assert events.stream.was_reset == CLOSE_GONE
    assert events.silent()


async def test_acls_decide_for_a_certificate(peer: Peer, broker: Broker) -> None:
    await broker.users.create_user(SYSTEM, "CN=ann", "secret", [])
    await broker.acls.set_acl(SYSTEM, "t1/demo", users=["CN=ann"])
    talk = peer.open(principal_hint="CN=ann")
    assert await talk.ask(Publish(**T1, payload=b"x")) == Ok()
    assert "CN=ann may not write" in await refused(talk, Publish(**T2, payload=b"x"))


@pytest.mark.dense
async def test_where_nobody_is_asked_any_token_will_do(broker: Broker, clock: ManualClock) -> None:
    peer = Peer(Felix(broker, clock=clock))
    assert await peer.open().ask(Publish(**T1, payload=b"x")) == Ok()
    talk = peer.open()
    assert await talk.ask(Auth(tenant_id="t1", token="anything")) == Ok()
    for scope in (T1, T2, OWN):
        assert await talk.ask(Publish(**scope, payload=b"x")) == Ok()
    assert broker.records.partition(ANONYMOUS, "t2/demo", 0).committed_end == 1


async def test_a_failed_login_is_in_the_audit_trail(peer: Peer, broker: Broker) -> None:
    noted = broker.audit.stats.written
    await refused(peer.open(), Auth(tenant_id="t1", token="guess"))
    await broker.audit.written()
    assert broker.audit.stats.written > noted


async def test_a_login_is_in_the_audit_trail(peer: Peer, broker: Broker) -> None:
    await peer.log_in("t1", "one")
    [event] = (await broker.audit.query(SYSTEM, AuditQuery(types=["auth.success"]))).events
    assert event.user == "tenant:t1"
