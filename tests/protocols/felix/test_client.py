"""Our own Felix clients, against a broker over real QUIC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import pytest

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConnectionLost,
    InvalidRequest,
    OffsetOutOfRange,
    RequestTimeout,
    ServerError,
    TopicNotFound,
    Unreachable,
)
from penstock.protocols.felix.client.client import AsyncFelixClient, FelixEvent
from penstock.protocols.felix.server.stats import FelixStats
from penstock.protocols.felix.sync import FelixClient
from penstock.testing import RunningBroker

EVENT_S_MAX = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    topics = [{"name": "demo"}, {"name": "wide", "partitions": 3}, {"name": "shop/orders"}, {"name": "t1/demo"}]
    with RunningBroker(topics=topics) as broker:
        yield broker


@pytest.fixture
async def client(broker: RunningBroker) -> AsyncIterator[AsyncFelixClient]:
    async with AsyncFelixClient(broker.felix_url) as client:
        yield client


async def test_events_arrive_with_their_offsets(client: AsyncFelixClient) -> None:
    async with await client.subscribe("demo") as subscription:
        first = await client.send("demo", b"one")
        assert first is not None
        assert await client.send_many("demo", [b"two", b"three"], key=b"k") == first + 1
        await client.send("demo", b"unheard", ack=False)
        events = [await subscription.next(EVENT_S_MAX) for _ in range(4)]
    assert events == [
        FelixEvent("demo", value, first + row) for row, value in enumerate([b"one", b"two", b"three", b"unheard"])
    ]


async def test_a_subscription_may_begin_earlier(client: AsyncFelixClient) -> None:
    first = await client.send("shop/orders", b"a")
    assert first is not None
    await client.send("orders", b"b", namespace="shop")
    subscription = await client.subscribe("orders", start="earliest", namespace="shop")
    assert [event.value async for event in _some(subscription, 2)] == [b"a", b"b"]
    subscription = await client.subscribe("orders", start=first + 1, namespace="shop")
    assert await subscription.next(EVENT_S_MAX) == FelixEvent("orders", b"b", first + 1)
    with pytest.raises(OffsetOutOfRange, match="cannot be read"):
        await client.subscribe("demo", start=1 << 40)


async def _some(subscription: AsyncIterator[FelixEvent], count: int) -> AsyncIterator[FelixEvent]:
    for _ in range(count):
        yield await anext(subscription)


async def test_many_publishes_at_once_share_the_connection(client: AsyncFelixClient) -> None:
    async with await client.subscribe("wide") as subscription:
        batches = [[b"%d-%d" % (number, row) for row in range(64)] for number in range(50)]
        await asyncio.gather(*(client.send_many("wide", batch) for batch in batches))
        found: list[bytes] = []
        while len(found) < 50 * 64:
            found += [event.value for event in await subscription.next_batch()]
    assert sorted(found) == sorted(value for batch in batches for value in batch)


async def test_the_cache_keeps_values(client: AsyncFelixClient, broker: RunningBroker) -> None:
    await client.cache_put("k", b"v", cache="prices")
    assert await client.cache_get("k", cache="prices") == b"v"
    assert await client.cache_get("k") is None
    assert await client.cache_delete("k") is None
    assert await client.cache_delete("k", cache="prices") == b"v"
    assert await client.cache_get("k", cache="prices") is None
    await client.cache_put("k", b"short", ttl_s=1)
    broker.clock.advance(1)
    assert await client.cache_get("k") is None
    keys = [f"k{number}" for number in range(500)]
    await asyncio.gather(*(client.cache_put(key, key.encode()) for key in keys))
    assert await asyncio.gather(*(client.cache_get(key) for key in keys)) == [key.encode() for key in keys]


async def test_errors_have_their_classes(client: AsyncFelixClient) -> None:
    with pytest.raises(TopicNotFound, match="stream=nope"):
        await client.send("nope", b"x")
    with pytest.raises(TopicNotFound, match="stream=nope"):
        await client.subscribe("nope")
    with pytest.raises(AccessDenied):
        await client.send("__groups", b"x")
    with pytest.raises(OffsetOutOfRange, match="one partition"):
        await client.subscribe("wide", start=1)
    assert await client.send("demo", b"x") is not None


async def test_what_makes_no_sense_is_refused_before_it_is_sent(client: AsyncFelixClient) -> None:
    wrong: Any = "text"
    for refused, reason in (
        (client.send("demo", wrong), "not str"),
        (client.send("demo", b"v", key=wrong), "not str"),
        (client.send_many("demo", [cast(bytes, (b"key", b"v"))]), "those of one call share a key"),
        (client.send_many("demo", [bytes(9 << 20)] * 2), "do not fit into a frame"),
        (client.cache_put("k", wrong), "not str"),
        (client.cache_put("k", bytes(13 << 20)), "too long"),
        (client.cache_put("k", b"v", ttl_s=-1), "time to live"),
        (client.subscribe("demo", start=-1), "out of range"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            await refused


async def test_closing_waits_for_what_was_sent() -> None:
    with RunningBroker(topics=[{"name": "demo"}]) as own:
        client = AsyncFelixClient(own.felix_url)
        await client.open()
        await client.send_many("demo", [bytes(1000)] * 1000, ack=False)
        asked = [asyncio.ensure_future(client.send("demo", b"%d" % number)) for number in range(20)]
        put = asyncio.ensure_future(client.cache_put("k", b"v"))
        await asyncio.sleep(0)  # so that they are on their way
        await client.close()
        assert await asyncio.gather(*asked) == list(range(1000, 1020))
        await put
        with pytest.raises(InvalidRequest, match="closed"):
            await client.send("demo", b"late")
        assert len(list(own.connect().records("demo"))) == 1020


async def test_a_broker_that_is_late_with_an_answer_is_connected_to_again(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncFelixClient(broker.felix_url) as client:
        lane = (await client._sessions.get()).publishing
        monkeypatch.setattr(lane, "_settle", lambda _: None)  # the answer is lost
        monkeypatch.setattr(client._sessions, "_options", ClientOptions(request_timeout_s=0.01))
        with pytest.raises(RequestTimeout):
            await client.send("demo", b"x")
        monkeypatch.setattr(client._sessions, "_options", ClientOptions())
        assert await client.send("demo", b"x") is not None
        assert (await client._sessions.get()).publishing is not lane


async def test_who_stops_waiting_for_a_subscription_has_none(client: AsyncFelixClient, broker: RunningBroker) -> None:
    stats = broker.server.sessions["felix"]
    assert isinstance(stats, FelixStats)
    before = stats.subscribers
    for turns in range(40):  # at any point of the way
        asking = asyncio.ensure_future(client.subscribe("demo"))
        for _ in range(turns):
            await asyncio.sleep(0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await asking).close()
    async with asyncio.timeout(EVENT_S_MAX):
        await client.cache_get("k")  # the connection is fine
        while stats.subscribers > before:
            await asyncio.sleep(0)
    assert await client.send("demo", b"x") is not None


async def test_a_subscription_that_nobody_reads_holds_up_nothing_else(client: AsyncFelixClient) -> None:
    async with await client.subscribe("demo") as unread, await client.subscribe("shop/orders") as read:
        for _ in range(8):
            await client.send_many("demo", [bytes(16 << 10)] * 64)  # more than any window
        await client.send("shop/orders", b"heard")
        assert (event := await read.next(EVENT_S_MAX)) is not None
        assert event.value == b"heard"
        await client.cache_put("k", b"v")
        assert await client.cache_get("k") == b"v"
        assert len(await unread.next_batch()) >= 1


async def test_a_subscription_may_be_closed_while_somebody_waits_for_its_next_event(client: AsyncFelixClient) -> None:
    subscription = await client.subscribe("demo")
    waiting = asyncio.ensure_future(subscription.next())
    await asyncio.sleep(0)
    subscription.close()
    assert await waiting is None
    subscription.close()


async def test_no_event_in_time_is_no_event(client: AsyncFelixClient) -> None:
    async with await client.subscribe("demo") as subscription:
        assert await subscription.next(0.01) is None
        await client.send("demo", b"later")
        assert (event := await subscription.next(EVENT_S_MAX)) is not None
        assert event.value == b"later"
    assert await subscription.next(EVENT_S_MAX) is None


async def test_a_subscription_ends_when_its_topic_is_deleted(client: AsyncFelixClient, broker: RunningBroker) -> None:
    admin = broker.connect()
    admin.create_topic("brief")
    subscription = await client.subscribe("brief")
    admin.delete_topic("brief")
    with pytest.raises(ConnectionLost, match="cut"):
        await subscription.next(EVENT_S_MAX)


def test_the_sync_twin_does_the_same(broker: RunningBroker) -> None:
    with penstock.connect(broker.felix_url) as client:
        assert isinstance(client, FelixClient)
        with client.subscribe("demo") as subscription:
            client.send("demo", b"one")
            client.send_many("demo", [b"two", b"three"])
            events = iter(subscription)
            assert [next(events).value for _ in range(3)] == [b"one", b"two", b"three"]
            assert subscription.next(0.01) is None
        client.cache_put("sync", b"v")
        assert client.cache_get("sync") == b"v"
        assert client.cache_delete("sync") == b"v"
        with pytest.raises(TopicNotFound):
            client.send("nope", b"x")


async def test_a_connection_is_made_again() -> None:
    with RunningBroker(topics=[{"name": "demo"}]) as own:
        async with AsyncFelixClient(own.felix_url) as client:
            subscription = await client.subscribe("demo")
            await client.send("demo", b"before")
            assert (event := await subscription.next(EVENT_S_MAX)) is not None
            assert event.value == b"before"
            await asyncio.to_thread(own.restart)
            with contextlib.suppress(ConnectionLost):  # unless its end comes first, which is in good order
                assert await subscription.next(EVENT_S_MAX) is None
            assert await client.cache_get("k") is None
            assert await client.send("demo", b"after") == 1


def test_tenant_and_token_say_who_is_asking() -> None:
    settings = {"felix": {"tokens": {"t1": "s3cret"}}}
    with RunningBroker(topics=[{"name": "t1/demo"}], listeners=settings) as broker:
        address, trust = broker.addresses["felix"], f"?ca={broker.certificate}"
        with contextlib.closing(penstock.connect(f"felix://{address}{trust}", tenant="t1", token="s3cret")) as client:
            assert client.send("demo", b"x") == 0
        with contextlib.closing(penstock.connect(f"felix://t1:s3cret@{address}{trust}")) as client:
            assert client.send("demo", b"x") == 1
        with pytest.raises(AuthenticationFailed, match="auth failed"):
            penstock.connect(f"felix://t1:guess@{address}{trust}")


def test_where_nothing_answers_is_told_at_once() -> None:
    with pytest.raises(Unreachable):
        penstock.connect("felix://127.0.0.1:1", options=ClientOptions(retry=NO_RETRY, connect_timeout_s=2))


def test_a_certificate_that_nobody_vouches_for_is_not_trusted(broker: RunningBroker) -> None:
    with pytest.raises(Unreachable):
        penstock.connect(f"felix://{broker.addresses['felix']}")


@pytest.mark.parametrize("url", ["flymq://127.0.0.1:5000", "felix://127.0.0.1:5000/x"])
def test_an_address_of_something_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        AsyncFelixClient(url)
    with pytest.raises(InvalidRequest, match="ca=FILE"):
        AsyncFelixClient("felix://127.0.0.1", tls=False)


def test_a_value_larger_than_the_cache_is_refused() -> None:
    with RunningBroker(limits={"cache_bytes_max": "1 KiB"}) as small, penstock.connect(small.felix_url) as client:
        with pytest.raises(ServerError, match="does not fit into the cache"):
            client.cache_put("k", bytes(2000))
