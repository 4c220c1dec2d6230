"""Felix streams over real QUIC that are cut, stopped, dripped or left unread: the others notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.clients.quic import QuicConnection, QuicStream, connect_quic
from penstock.errors import ConnectionLost
from penstock.net.flow import UNSENT_BYTES_FREE
from penstock.net.quic import QuicListener
from penstock.protocols.felix.client.client import AsyncFelixClient, AsyncSubscription
from penstock.protocols.felix.codec import binary
from penstock.protocols.felix.codec.frames import FrameDecoder, Reply, decode_reply, encode_frame, encode_message
from penstock.protocols.felix.codec.messages import (
    CacheGet,
    CacheValue,
    EventStreamHello,
    Ok,
    Publish,
    StartOffset,
    Subscribe,
)
from penstock.protocols.felix.server.stats import FelixStats
from penstock.protocols.felix.wire import CLOSE_SLOW
from penstock.testing import RunningBroker

DEMO: Any = {"tenant_id": "default", "namespace": "default", "stream": "demo"}
WAIT_S_MAX = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(topics=[{"name": "demo"}]) as broker:
        yield broker


@asynccontextmanager
async def connected(broker: RunningBroker) -> AsyncIterator[QuicConnection]:
    host, _, port = broker.addresses["felix"].rpartition(":")
    connection = await connect_quic(host, int(port), ca_file=broker.certificate)
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


def stats_of(broker: RunningBroker) -> FelixStats:
    stats = broker.server.sessions["felix"]
    assert isinstance(stats, FelixStats)
    return stats


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():
            await asyncio.sleep(0)


async def replies(stream: QuicStream, count: int) -> list[Reply]:
    decoder = FrameDecoder()
    found: list[Reply] = []
    async with asyncio.timeout(WAIT_S_MAX):
        while len(found) < count:
            data = await stream.read()
            assert data, "the broker ended the stream"
            found += [decode_reply(frame) for frame in decoder.feed(data)]
    return found


async def is_served(connection: QuicConnection) -> bool:
    stream = connection.open_stream()
    await stream.write(encode_message(CacheGet(key="k", request_id="r")), end=True)
    (answer,) = await replies(stream, 1)
    return isinstance(answer, CacheValue)


async def test_one_byte_at_a_time(broker: RunningBroker) -> None:
    async with connected(broker) as connection:
        stream = connection.open_stream()
        data = encode_message(Publish(**DEMO, payload=b"slow")) + encode_message(CacheGet(key="k"))
        for at in range(len(data)):
            await stream.write(data[at : at + 1])
            await asyncio.sleep(0)  # each goes in a datagram of its own
        ok, value = await replies(stream, 2)
        assert ok == Ok()
        assert isinstance(value, CacheValue)


@pytest.mark.parametrize("complete", [False, True], ids=["inside a frame", "between frames"])
async def test_a_stream_that_is_reset(broker: RunningBroker, complete: bool) -> None:
    async with connected(broker) as connection:
        stream = connection.open_stream()
        frame = encode_message(Publish(**DEMO, payload=b"cut"))
        await stream.write(frame if complete else frame[:-1])
        stream.reset(7)
        assert await is_served(connection)


async def test_a_stream_whose_answers_are_refused(broker: RunningBroker) -> None:
    async with connected(broker) as connection:
        stream = connection.open_stream()
        await stream.write(encode_message(CacheGet(key="k")) * 100)
        stream.stop_receiving(7)
        assert await is_served(connection)


async def test_a_subscription_ends_when_its_stream_is_refused(broker: RunningBroker) -> None:
    stats = stats_of(broker)
    async with connected(broker) as connection:
        asking = connection.open_stream()
        await asking.write(encode_message(Subscribe(**DEMO)), end=True)
        assert await replies(asking, 1) == [Ok()]
        events = await connection.accept_stream()
        assert isinstance((await replies(events, 1))[0], EventStreamHello)
        assert stats.subscribers == 1
        events.stop_receiving()
        await until(lambda: stats.subscribers == 0)
        assert await is_served(connection)


async def test_subscriptions_end_with_their_connection(broker: RunningBroker) -> None:
    stats = stats_of(broker)
    async with AsyncFelixClient(broker.felix_url) as client:
        for _ in range(3):
            await client.subscribe("demo")
        assert stats.subscribers == 3
    await until(lambda: stats.subscribers == 0)


async def test_what_is_not_felix_ends_its_connection_and_no_other(broker: RunningBroker) -> None:
    async with connected(broker) as connection, connected(broker) as other:
        stream = connection.open_stream()
        await stream.write(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n")
        with pytest.raises(ConnectionLost, match="this is not Felix"):
            await stream.read()
        await connection.wait_closed()
        assert connection.loss_code == 1
        assert await is_served(other)


async def test_a_length_that_lies_costs_nothing(broker: RunningBroker) -> None:
    async with connected(broker) as connection:
        stream = connection.open_stream()
        await stream.write(b"FLX1\x00\x01\x00\x00\xff\xff\xff\xff")
        await connection.wait_closed()
        assert connection.loss_code == 1


async def test_a_one_way_stream_publishes(broker: RunningBroker) -> None:
    async with connected(broker) as connection, AsyncFelixClient(broker.felix_url) as client:
        subscription = await client.subscribe("demo")
        stream = connection.open_stream(one_way=True)
        batch = binary.encode_publish("default", "default", "demo", [b"one", b"way"])
        await stream.write(encode_frame(1, batch), end=True)
        values = [await subscription.next(WAIT_S_MAX) for _ in range(2)]
        assert [event.value for event in values if event] == [b"one", b"way"]


async def all_of(subscription: AsyncSubscription) -> int:
    """How many events come until it ends."""
    return len([event async for event in subscription])


@pytest.mark.parametrize("policy", ["drop", "pause", "close"])
async def test_a_subscriber_that_never_reads(policy: str) -> None:
    settings = {"felix": {"slow_subscriber": policy, "subscriber_lag_records_max": 200}}
    batches, batch = 24, [bytes(16 << 10)] * 64
    with RunningBroker(topics=[{"name": "demo"}], durability="none", listeners=settings) as broker:
        stats = stats_of(broker)
        async with AsyncFelixClient(broker.felix_url) as lazy, AsyncFelixClient(broker.felix_url) as brisk:
            unread, read = await lazy.subscribe("demo"), await brisk.subscribe("demo")
            for number in range(batches):
                offset = await brisk.send_many("demo", batch)
                found = 0
                while found < len(batch):  # reads along, and misses nothing
                    events = await read.next_batch()
                    found += len(events)
                    assert events[-1].offset == (offset or 0) + found - 1
                assert stats.sent_records >= (number + 1) * len(batch)
            if policy == "pause":
                assert stats.dropped_events == stats.closed_subscribers == 0
                total = 0
                while total < batches * len(batch):
                    total += len(await unread.next_batch())
            elif policy == "drop":
                assert stats.dropped_events > 200
                assert stats.subscribers == 2
            else:
                assert (stats.closed_subscribers, stats.subscribers) == (1, 1)
                with pytest.raises(ConnectionLost, match=f"code {CLOSE_SLOW}"):
                    await all_of(unread)


async def test_all_subscribers_that_never_read_are_bounded_together() -> None:
    values, budget_bytes = [bytes(16 << 10)] * 256, 1 << 20
    limits = {"in_flight_total_bytes_max": budget_bytes}
    with RunningBroker(topics=[{"name": "demo"}], durability="none", limits=limits) as broker:
        listener = broker.server.listeners["felix"]
        assert isinstance(listener, QuicListener)
        async with AsyncFelixClient(broker.felix_url) as brisk:
            await brisk.send_many("demo", values)
            lazy = [await connected_lazily(broker) for _ in range(12)]
            await until(lambda: listener.budget.waiting_for_room > 0)
            assert listener.budget.unsent_bytes <= budget_bytes + len(lazy) * UNSENT_BYTES_FREE
            for connection in lazy:
                connection.close()
            # A reader gets all of it, once the others are gone.
            subscription, found = await brisk.subscribe("demo", start="earliest"), 0
            while found < len(values):
                found += len(await subscription.next_batch())


async def connected_lazily(broker: RunningBroker) -> QuicConnection:
    """A subscriber of all there is, who reads nothing of it."""
    host, _, port = broker.addresses["felix"].rpartition(":")
    connection = await connect_quic(host, int(port), ca_file=broker.certificate)
    stream = connection.open_stream()
    await stream.write(encode_message(Subscribe(**DEMO, start=StartOffset(0))), end=True)
    connection.pause_receiving()
    return connection
