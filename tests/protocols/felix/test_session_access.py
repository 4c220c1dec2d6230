"""Every operation of Felix for everyone there is: each cell says whether it may."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.access.checks import SYSTEM
from penstock.broker.access.policy import AccessSettings
from penstock.broker.broker import Broker
from penstock.broker.deliveries.subscription import ALWAYS_AT_LEAST_ONCE
from penstock.broker.limits import BrokerLimits
from penstock.log.api import Engine
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.binary import PublishAck
from penstock.protocols.felix.codec.frames import encode_frame
from penstock.protocols.felix.codec.messages import (
    Auth,
    CacheDelete,
    CacheGet,
    CachePut,
    Error,
    GroupAck,
    GroupPoll,
    Ok,
    Publish,
    PublishBatch,
    StreamShards,
    StreamShardsView,
    Subscribe,
)
from penstock.protocols.felix.session import Felix
from penstock.protocols.felix.wire import HEADER, JSON, LOGIN_PAYLOAD_BYTES_MAX, MAGIC, VERSION
from penstock.testing.clock import ManualClock
from tests.broker.producing import produce
from tests.broker.subscribing import take
from tests.protocols.felix.conversation import Peer, Talk

TENANT = "t1"
OWN: Any = {"tenant_id": TENANT, "namespace": "default"}
OTHERS: Any = {"tenant_id": "t2", "namespace": "default"}


def operations(scope: Any) -> dict[str, Any]:
    """By what they need, and their name."""
    payload = binary.encode_publish(scope["tenant_id"], scope["namespace"], "demo", [b"x"], request_id=7)
    keyed = binary.encode_publish(scope["tenant_id"], scope["namespace"], "demo", [b"x"], key=b"k", request_id=7)
    return {
        "write: publish": Publish(**scope, stream="demo", payload=b"x"),
        "write: publish_batch": PublishBatch(**scope, stream="demo", payloads=[b"x", b"y"]),
        "write: empty batch": PublishBatch(**scope, stream="demo", payloads=[]),
        "write: binary batch": encode_frame(0x09, payload),
        "write: keyed binary batch": encode_frame(0x49, keyed),
        "read: subscribe": Subscribe(**scope, stream="demo"),
        "read: subscribe from the earliest": Subscribe(**scope, stream="demo", start="earliest"),
        "write: cache_put": CachePut(**scope, cache="default", key="k", value=b"v"),
        "read: cache_get": CacheGet(**scope, cache="default", key="k"),
        "read and write: cache_delete": CacheDelete(**scope, cache="default", key="k"),
        "read: group_poll": GroupPoll(**scope, stream="demo", group="g", max_records=1, request_id=1),
        "read: group_ack": GroupAck(**scope, stream="demo", group="known", offset=0, request_id=1),
    }


# Who may do what with what is its own, and with what is another tenant's.
WHO = {
    "nobody": ((), ()),
    "tenant": (("read", "write"), ()),
    "configured key": (("read", "write"), ("read", "write")),
    "consumer": (("read",), ("read",)),
    "producer": (("write",), ("write",)),
    "revoked": ((), ()),
    "unknown token": ((), ()),
}


@pytest.fixture
async def broker(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    """With users, roles and ACLs."""
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access_settings=AccessSettings())
    await broker.start()
    for topic in ("t1/demo", "t2/demo"):
        await broker.topics.ensure(SYSTEM, topic)
        await produce(broker, topic, [b"finished"], principal=SYSTEM)
        group = await broker.subscriptions.subscribe(
            SYSTEM, topic, ALWAYS_AT_LEAST_ONCE, name="known", start="earliest"
        )
        delivery = await take(broker, group, SYSTEM)
        assert delivery is not None
        assert broker.subscriptions.acknowledge(SYSTEM, topic, group, delivery.tag)
    yield broker
    await broker.close()


@pytest.fixture
async def felix(broker: Broker, clock: ManualClock) -> Felix:
    return Felix(broker, clock=clock, required=True, tokens={TENANT: "one", "t2": "two"}, api_keys=["dev-key"])


async def log_in(broker: Broker, peer: Peer, who: str) -> Talk:
    if who == "nobody":
        return peer.open()
    token = {"tenant": "one", "configured key": "dev-key", "unknown token": "guess"}.get(who)
    if token is None:
        role = who if who != "revoked" else "consumer"
        token = await broker.api_keys.create(SYSTEM, who, [role])
    talk = peer.open()
    await talk.ask(Auth(tenant_id=TENANT, token=token))
    if who == "revoked":
        await broker.api_keys.revoke(SYSTEM, who)
    return talk


@pytest.mark.parametrize("name", operations(OWN))
@pytest.mark.parametrize("who", WHO)
async def test_each_may_do_what_it_may_and_nothing_else(peer: Peer, broker: Broker, who: str, name: str) -> None:
    talk = await log_in(broker, peer, who)
    before = written(broker)
    for scope, allowed in zip((OWN, OTHERS), WHO[who], strict=True):
        answer = await talk.ask(operations(scope)[name])
        refused = isinstance(answer, Error) or (isinstance(answer, PublishAck) and answer.error is not None)
        assert refused == (not set(name.partition(":")[0].split(" and ")) <= {*allowed}), answer
        if refused:
            assert "unauthorized" in (answer.message if isinstance(answer, Error) else str(answer))
    if not any(WHO[who]):
        assert written(broker) == before
        assert not peer.connection.opened


def written(broker: Broker) -> int:
    return sum(broker.records.partition(SYSTEM, topic, 0).committed_end for topic in ("t1/demo", "t2/demo"))


@pytest.mark.parametrize("who", WHO)
async def test_how_many_shards_a_stream_has_tells_nobody_whether_it_exists(
    peer: Peer, broker: Broker, who: str
) -> None:
    """Every stream has one. A tenant may ask for its own only."""
    talk = await log_in(broker, peer, who)
    answers = [await talk.ask(StreamShards(**OWN, stream=name, request_id=1)) for name in ("demo", "none")]
    assert answers == [StreamShardsView(shards=1, request_id=1)] * 2
    answer = await talk.ask(StreamShards(**OTHERS, stream="demo", request_id=1))
    assert isinstance(answer, Error) == (who == "tenant")


# --- before the login ---


@pytest.fixture
async def strict(broker: Broker, clock: ManualClock) -> Peer:
    return Peer(Felix(broker, clock=clock, required=True, login_required=True, tokens={TENANT: "one"}))


async def test_a_frame_before_the_login_is_small(strict: Peer) -> None:
    strict.open().say(HEADER.pack(MAGIC, VERSION, JSON, LOGIN_PAYLOAD_BYTES_MAX))
    assert not strict.connection.was_closed
    strict.open().say(HEADER.pack(MAGIC, VERSION, JSON, LOGIN_PAYLOAD_BYTES_MAX + 1))
    assert "authentication required" in str(strict.connection.was_closed)


async def test_a_login_allows_larger_frames_also_in_the_same_read(strict: Peer) -> None:
    large = Publish(
        tenant_id=TENANT, namespace="default", stream="demo", payload=bytes(2 * LOGIN_PAYLOAD_BYTES_MAX), request_id=1
    )
    talk = strict.open()
    talk.say(Auth(tenant_id=TENANT, token="one"), large)
    assert isinstance(await talk.reply(), Ok)
    assert not isinstance(await talk.reply(), Error)
    assert strict.connection.was_closed is None
