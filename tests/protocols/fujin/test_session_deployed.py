"""The Go client that is deployed, with each of its habits and faults, against a broker over real QUIC.

The letters are those of a list of its faults: a server must not trigger any of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from penstock.clock import SystemClock
from penstock.testing import RunningBroker
from tests.protocols.fujin.deployed import DeployedClient, Refused, deployed_client

FUJIN: dict[str, Any] = {
    "fetch_wait_s": 0.6,
    "ping_interval_s": 0.1,
    "ping_timeout_s": 20.0,
    "aliases": {"pub": {"topic": "orders"}, "sub": {"topic": "orders", "group": "examples"}},
}


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(clock=SystemClock(), listeners={"fujin": FUJIN}) as broker:
        yield broker


@pytest.fixture
async def client(broker: RunningBroker) -> AsyncIterator[DeployedClient]:
    async with deployed_client(broker.addresses["fujin"]) as client:
        yield client


def publish(broker: RunningBroker, topic: str, values: list[bytes]) -> None:
    broker.connect().send_many(topic, values)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)


# -- the published examples --------------------------------------------------------------------------------------------------


async def test_writer_and_subscriber_under_their_two_names(client: DeployedClient) -> None:
    subscriber = await client.subscriber(b"sub")
    writer = await client.writer()
    for number in range(20):
        await writer.write(b"pub", b"value %d" % number)
    assert [(await subscriber.next())[1] for _ in range(20)] == [b"value %d" % number for number in range(20)]
    await writer.close()
    await subscriber.close()


async def test_many_writes_in_flight(client: DeployedClient) -> None:
    writer = await client.writer(b"my-writer")
    await asyncio.gather(*(writer.write(b"pub", b"%d" % number) for number in range(500)))
    await writer.close()


async def test_transactions(client: DeployedClient, broker: RunningBroker) -> None:
    writer = await client.writer(b"transactional-id")
    for ends in (writer.commit, writer.rollback):
        with pytest.raises(Refused, match=r"^invalid tx state$"):
            await ends()
    await writer.begin()
    await writer.write(b"pub", b"kept")
    await writer.commit()
    await writer.begin()
    await writer.write(b"pub", b"dropped")
    await writer.rollback()
    await writer.begin()
    with pytest.raises(Refused, match=r"^invalid tx state$"):
        await writer.begin()
    await writer.write(b"pub", b"lost")
    await writer.close()
    assert [record.value for record in broker.connect().records("orders")] == [b"kept"]


async def test_a_subscriber_that_acknowledges(client: DeployedClient, broker: RunningBroker) -> None:
    subscriber = await client.subscriber(b"sub", auto_commit=False)
    await asyncio.to_thread(publish, broker, "orders", [b"a1", b"b2"])
    for expected in (b"a1", b"b2"):
        message_id, value = await subscriber.next()
        assert value == expected
        assert message_id
        assert await subscriber.ack(message_id) == [(message_id, None)]
    await subscriber.close()
    again = await client.subscriber(b"sub", auto_commit=False)
    await asyncio.to_thread(publish, broker, "orders", [b"c3"])
    assert (await again.next())[1] == b"c3"


async def test_a_consumer_that_acknowledges(client: DeployedClient, broker: RunningBroker) -> None:
    consumer = await client.consumer(b"sub", auto_commit=False)
    await asyncio.to_thread(publish, broker, "orders", [b"a1", b"b2", b"c3"])
    messages = await consumer.fetch(10)
    assert [value for _, value in messages] == [b"a1", b"b2", b"c3"]
    ids = [message_id for message_id, _ in messages if message_id is not None]
    assert await consumer.ack(*ids[:2]) == [(ids[0], None), (ids[1], None)]
    assert await consumer.nack(ids[2]) == [(ids[2], None)]
    ((again_id, again),) = await consumer.fetch(10)
    assert (again_id, again) == (ids[2], b"c3")
    await consumer.close()


async def test_pings_are_answered_and_the_connection_stays(client: DeployedClient) -> None:
    await until(lambda: client.pongs >= 5)
    assert client.bare_ends == 0, "byte and end came in one read"
    assert client.connection.loss is None


async def test_a_client_that_does_not_answer_pings_is_disconnected_with_a_code() -> None:
    settings = {"ping_interval_s": 0.1, "ping_timeout_s": 0.1}
    with RunningBroker(listeners={"fujin": settings}) as broker:
        async with deployed_client(broker.addresses["fujin"]) as client:
            await _is_disconnected(client)


async def _is_disconnected(client: DeployedClient) -> None:
    client.connection.on_stream = lambda stream: None
    await until(lambda: client.connection.loss is not None)
    assert client.connection.loss_code == 3
    assert "deadline exceeded" in str(client.connection.loss)


# -- its faults --------------------------------------------------------------------------------------------------------------


async def test_a_fetch_that_finds_nothing_is_no_empty_batch(client: DeployedClient, broker: RunningBroker) -> None:
    """(a)"""
    consumer = await client.consumer(b"sub")
    with pytest.raises(Refused, match="no messages"):
        await consumer.fetch(10)
    await asyncio.to_thread(publish, broker, "orders", [b"later"])
    assert await consumer.fetch(10) == [(None, b"later")]
    await consumer.close()


def test_no_fetch_is_answered_after_ten_seconds() -> None:
    """(b) The setting has a bound below the client's patience."""
    from pydantic import ValidationError

    from penstock.config import FujinListener

    with pytest.raises(ValidationError):
        FujinListener(fetch_wait_s=10.0)
    assert FujinListener().fetch_wait_s == 5.0


async def test_single_bytes_do_not_come_among_others(client: DeployedClient, broker: RunningBroker) -> None:
    """(c)"""
    await asyncio.to_thread(publish, broker, "orders", [b"aa", b"b", b"c", b"dd", b"ee"])
    consumer = await client.consumer(b"sub")
    batches = [[value for _, value in await consumer.fetch(10)] for _ in range(4)]
    assert batches == [[b"aa"], [b"b"], [b"c"], [b"dd", b"ee"]]
    await consumer.close()


async def test_ids_are_never_empty(client: DeployedClient, broker: RunningBroker) -> None:
    """(d)"""
    await asyncio.to_thread(publish, broker, "orders", [b"aa", b"bb"])
    consumer = await client.consumer(b"sub", auto_commit=False)
    assert [len(message_id or b"") for message_id, _ in await consumer.fetch(10)] == [8, 8]


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_acknowledgements_fail_one_by_one_and_never_as_a_whole(client: DeployedClient, auto_commit: bool) -> None:
    """(e), (f), (g): the caller hears of it, and the reader stays in step."""
    consumer = await client.consumer(b"sub", auto_commit=auto_commit)
    for settle in (consumer.ack, consumer.nack):
        assert await settle(b"12345678", b"?") == [(b"12345678", "unknown id"), (b"?", "unknown id")]
        assert await settle() == []
    await consumer.close()


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_the_first_message_never_comes_with_the_answer_to_the_connect(
    broker: RunningBroker, auto_commit: bool
) -> None:
    """(h)"""
    for _ in range(10):
        await asyncio.to_thread(publish, broker, "orders", [b"first", b"second"])
        async with deployed_client(broker.addresses["fujin"]) as client:
            subscriber = await client.subscriber(b"sub", auto_commit=auto_commit)
            messages = [await subscriber.next() for _ in range(2)]
            assert [value for _, value in messages] == [b"first", b"second"]
            if not auto_commit:
                await subscriber.ack(*(message_id or b"" for message_id, _ in messages))
            await subscriber.close()


async def test_the_reason_of_a_refused_connect_is_heard(client: DeployedClient) -> None:
    """(i), (j): in one read, shorter than 512 bytes, and the end comes later."""
    for topic in (b"", b"x" * 5000, b"__groups"):
        with pytest.raises(Refused, match=r".+"):
            await client.subscriber(topic)


async def test_a_slow_program_that_acknowledges_is_not_flooded(client: DeployedClient, broker: RunningBroker) -> None:
    """(k) Its queue of a thousand never fills, so the answers to its acknowledgements come through."""
    await asyncio.to_thread(publish, broker, "orders", [b"%04d" % number for number in range(3000)])
    subscriber = await client.subscriber(b"sub", auto_commit=False)
    await until(lambda: subscriber.queued >= 256)
    taken: list[bytes] = []
    for number in range(3000):
        message_id, value = await subscriber.next()
        assert value == b"%04d" % number
        taken.append(message_id or b"")
        if len(taken) == 100:
            assert {error for _, error in await subscriber.ack(*taken)} == {None}
            taken.clear()
        assert subscriber.queued <= 256
    await subscriber.close()


async def test_the_server_lets_the_client_close_the_connection(broker: RunningBroker) -> None:
    """(l) A connection that the server closes makes this client spin: it asks with STOP, and the client leaves."""
    async with deployed_client(broker.addresses["fujin"]) as client:
        writer = await client.writer()
        await writer.write(b"pub", b"x")
        subscriber = await client.subscriber(b"sub")
        consumer = await client.consumer(b"sub")
        stopping = asyncio.create_task(asyncio.to_thread(broker.stop))
        await until(lambda: writer.stopped and subscriber.stopped and consumer.stopped)
        assert client.connection.loss is None
        for session in (writer, subscriber, consumer):
            await session.close()
            assert session.goodbyes == 1
        client.connection.close()
        await stopping


async def test_nothing_too_small_or_too_large_reaches_a_subscriber(
    client: DeployedClient, broker: RunningBroker
) -> None:
    """(m) It is pushed 64 KiB at most, and may fetch more, because its consumers have no such bound."""
    broker.connect().create_topic("orders")
    await asyncio.to_thread(publish, broker, "orders", [b"", b"x" * 65_536, b"x" * 65_537, b"", b"last"])
    subscriber = await client.subscriber(b"sub")
    assert [len((await subscriber.next())[1]) for _ in range(2)] == [65_536, 4]
    await subscriber.close()
    writer, consumer = await client.writer(), await client.consumer(b"orders")
    await writer.write(b"pub", b"y" * 65_537)
    lengths: list[int] = []
    while len(lengths) < 4:
        lengths += [len(value) for _, value in await consumer.fetch(10)]
    assert lengths == [65_536, 65_537, 4, 65_537]
    await writer.close()
    await consumer.close()


async def test_a_broker_without_any_settings_serves_it() -> None:
    """Reading first and writing later, as a program that only reads never shows what it is."""
    with RunningBroker(clock=SystemClock()) as broker:
        async with deployed_client(broker.addresses["fujin"]) as client:
            consumer = await client.consumer(b"orders", auto_commit=False)
            with pytest.raises(Refused, match="no messages"):
                await consumer.fetch(10)
            writer = await client.writer(b"wid")
            for body in (b"a", b"b", b"cc", b"x" * 65_537):
                await writer.write(b"orders", body)
            fetched: list[bytes] = []
            while len(fetched) < 4:
                messages = await consumer.fetch(10)
                fetched += [value for _, value in messages]
                assert await consumer.ack(*(id_ or b"" for id_, _ in messages)) == [(id_, None) for id_, _ in messages]
            assert fetched == [b"a", b"b", b"cc", b"x" * 65_537]
            await consumer.close()
            subscriber = await client.subscriber(b"orders")
            for body in (b"d", b"x" * 65_537, b"e"):
                await writer.write(b"orders", body)
            assert [(await subscriber.next())[1] for _ in range(2)] == [b"d", b"e"]
            await subscriber.close()
            await writer.close()


async def test_streams_end_in_good_order_and_never_with_a_reset(client: DeployedClient) -> None:
    """(n) Also where the client does something wrong."""
    writer = await client.writer()
    writer._stream.send(b"\xff")
    await asyncio.wait_for(writer.server_ended.wait(), 5)
    assert (writer.goodbyes, writer.failure) == (1, None)
    stray = client.connection.open_stream()
    stray.send(b"\xff")
    assert await asyncio.wait_for(stray.read(), 5) == b"", "an end without a word"


async def test_a_write_of_nothing_is_refused_and_others_are_not_disturbed(client: DeployedClient) -> None:
    writer, other = await client.writer(), await client.writer()
    with pytest.raises(Refused, match=r"^write size arg not provided$"):
        await writer.write(b"pub", b"")
    await writer.write(b"pub", b"x")
    await other.write(b"pub", b"y")
    with pytest.raises(Refused, match=r"^writer topic len arg not provided$"):
        await other.write(b"", b"y")
    await other.write(b"pub", b"y")
    await writer.close()
    await other.close()


async def test_a_writer_with_an_id_beside_one_without(client: DeployedClient) -> None:
    """An ordinary sequence that ends the deployed server."""
    plain, named = await client.writer(), await client.writer(b"wid")
    await plain.write(b"pub", b"1")
    await named.write(b"pub", b"2")
    await plain.close()
    await named.write(b"pub", b"3")
    await named.close()
