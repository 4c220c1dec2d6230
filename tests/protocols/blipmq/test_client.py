"""The BlipMQ clients against a real broker over real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.clients.arguments import CHUNK_RECORDS_MAX
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.clock import SystemClock
from penstock.errors import (
    AuthenticationFailed,
    BatchFailed,
    ConnectionLost,
    EntryNotFound,
    InvalidRequest,
    Unreachable,
)
from penstock.protocols.blipmq.client import AsyncBlipMQClient, Message
from penstock.protocols.blipmq.sync import BlipMQClient
from penstock.testing import RunningBroker


@pytest.fixture
def client(penstock_broker: RunningBroker) -> Iterator[BlipMQClient]:
    with BlipMQClient(penstock_broker.blipmq_url) as client:
        yield client


def test_a_message_travels_and_is_acknowledged(client: BlipMQClient) -> None:
    subscription = client.subscribe("orders")
    client.send("orders", b"one")
    assert client.poll(subscription) == [Message("orders", b"one", 1, 1)]
    client.ack(subscription, 1)
    with pytest.raises(EntryNotFound, match="unknown subscription or delivery tag"):
        client.ack(subscription, 1)
    assert client.poll(subscription) == []
    assert client.ping() >= 0


def test_many_are_sent_and_read_in_order(client: BlipMQClient) -> None:
    subscription = client.subscribe("orders")
    values = [b"%d" % number for number in range(5000)]
    client.send_many("orders", values)
    assert [message.value for message in client.records("orders", subscription=subscription)] == values
    assert list(client.records("orders", subscription=subscription)) == []


def test_messages_of_qos_0_need_no_acknowledgement(client: BlipMQClient) -> None:
    subscription = client.subscribe("orders", qos=0)
    client.send("orders", b"one")
    client.send("orders", b"two", qos=0)
    assert [(message.value, message.qos, message.tag) for message in client.poll(subscription, 5)] == [
        (b"one", 0, None),
        (b"two", 0, None),
    ]


def test_an_iteration_that_is_left_acknowledges_what_it_went_past(
    client: BlipMQClient, penstock_broker: RunningBroker
) -> None:
    subscription = client.subscribe("orders")
    client.send_many("orders", [b"a", b"b", b"c"])
    for message in client.records("orders", subscription=subscription, limit=3):
        if message.value == b"c":
            break
    penstock_broker.clock.advance(1)
    assert [message.value for message in client.poll(subscription, 5)] == [b"c"]


def test_a_limit_ends_an_iteration(client: BlipMQClient) -> None:
    subscription = client.subscribe("orders")
    client.send_many("orders", [b"a", b"b", b"c"])
    assert len(list(client.records("orders", subscription=subscription, limit=2))) == 2
    assert [message.value for message in client.poll(subscription, 5)] == [b"c"]


def test_following_waits_for_more(client: BlipMQClient, penstock_broker: RunningBroker) -> None:
    subscription = client.subscribe("orders")
    with BlipMQClient(penstock_broker.blipmq_url) as other:
        values = []
        client.send("orders", b"0")
        for message in client.records("orders", subscription=subscription, follow=True):
            values.append(message.value)
            if len(values) == 5:
                break
            other.send("orders", b"%d" % len(values))
    assert values == [b"0", b"1", b"2", b"3", b"4"]


def test_refusals_are_raised(client: BlipMQClient) -> None:
    with pytest.raises(InvalidRequest, match="topic name"):
        client.send("a//b", b"x")
    with pytest.raises(InvalidRequest, match="topic name"):
        client.subscribe("a//b")
    with pytest.raises(InvalidRequest, match="empty topic"):
        client.send("", b"x")
    with pytest.raises(InvalidRequest, match="QoS 2"):
        client.send("orders", b"x", qos=2)
    with pytest.raises(InvalidRequest, match="does not fit"):
        client.send("orders", bytes(16 << 20))
    with pytest.raises(AuthenticationFailed, match="internal"):
        client.send("__groups", b"x")
    with pytest.raises(InvalidRequest, match="topic name"):
        client.send_many("a//b", [b"x", b"y"])
    with pytest.raises(InvalidRequest, match="BlipMQ messages have neither keys nor headers"):
        client.send_many("orders", [(b"key", b"value")])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="bytes, not str"):
        client.send("orders", "text")  # type: ignore[arg-type]


def test_a_batch_that_fails_half_way_tells_what_was_published(client: BlipMQClient) -> None:
    subscription = client.subscribe("orders")
    values = [b"%d" % number for number in range(CHUNK_RECORDS_MAX)]
    with pytest.raises(BatchFailed, match="does not fit") as caught:
        client.send_many("orders", [*values, bytes(16 << 20)])
    assert [type(result) for result in caught.value.results] == [type(None)] * len(values) + [InvalidRequest]
    assert [message.value for message in client.records("orders", subscription=subscription)] == values


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("blipmq://127.0.0.1:5555", "names no API key"),
        ("flymq://k@127.0.0.1:5555", "not a BlipMQ address"),
    ],
)
def test_an_address_that_cannot_work_is_refused(url: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem):
        BlipMQClient(url)


def test_a_wrong_key_is_told_at_once(penstock_broker: RunningBroker) -> None:
    with pytest.raises(AuthenticationFailed, match="invalid API key"):
        penstock.connect(f"blipmq://wrong@{penstock_broker.addresses['blipmq']}")


def test_a_client_reconnects_and_the_subscription_is_still_there(
    client: BlipMQClient, penstock_broker: RunningBroker
) -> None:
    subscription = client.subscribe("orders")
    client.send_many("orders", [b"a", b"b"])
    [first] = client.poll(subscription)
    assert first.tag is not None
    client.ack(subscription, first.tag)
    penstock_broker.restart()
    assert [message.value for message in client.poll(subscription, 5)] == [b"b"]


def test_a_broker_that_is_gone_is_told(penstock_broker: RunningBroker) -> None:
    options = ClientOptions(retry=NO_RETRY)
    with BlipMQClient(penstock_broker.blipmq_url, options=options) as client:
        penstock_broker.stop()
        with pytest.raises((Unreachable, ConnectionLost)):
            client.send("orders", b"x")


async def test_the_async_client_is_what_connect_async_gives() -> None:
    with RunningBroker(clock=SystemClock()) as broker:
        async with await penstock.connect_async(broker.blipmq_url) as client:
            assert isinstance(client, AsyncBlipMQClient)
            subscription = await client.subscribe("orders")
            await client.send("orders", b"one")
            async for message in client.records("orders", subscription=subscription):
                assert message.value == b"one"
