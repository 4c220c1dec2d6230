"""POLL and ACK frames in a row: answered together, and as each would be alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.subscription import Subscription
from penstock.errors import CorruptBlock
from penstock.protocols.blipmq.codec import encode_ack, encode_poll, encode_publish, parse_nack, parse_publish
from penstock.protocols.blipmq.session import BlipMQ
from penstock.protocols.blipmq.wire import FrameType
from penstock.protocols.conversation import GATHERED_BYTES_MAX
from penstock.testing.clock import ManualClock
from tests.broker.subscribing import a_broker
from tests.protocols.blipmq.conversation import Conversation


def polls(subscription: int, count: int) -> list[bytes]:
    return [encode_poll(100 + n, subscription) for n in range(count)]


async def values(talk: Conversation, subscription: int, count: int) -> list[bytes]:
    frames = await talk.answers(*polls(subscription, count))
    parsed = [parse_publish(frame.payload) for frame in frames if frame.type == FrameType.PUBLISH]
    return [each[2] for each in parsed if each is not None]


@pytest.mark.dense
async def test_polls_are_one_call_of_the_broker_and_one_send(
    talk: Conversation, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", *[b"%d" % n for n in range(10)])
    taken: list[int] = []
    take_many = broker.subscriptions.take_many

    def counted(*given: object) -> object:
        found = take_many(*given)  # type: ignore[arg-type]
        taken.append(len(found))  # type: ignore[arg-type]
        return found

    monkeypatch.setattr(broker.subscriptions, "take_many", counted)
    talk.say(*polls(subscription, 10))
    assert taken == [10]
    assert len(talk.connection.sends) == 1
    assert [frame.correlation_id for frame in await talk.answers()] == list(range(1, 11))


@pytest.mark.dense
async def test_each_acknowledgement_of_a_run_is_settled_or_refused_by_itself(talk: Conversation) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", b"a", b"b", b"c")
    await values(talk, subscription, 3)
    refusals = await talk.answers(*[encode_ack(tag, subscription) for tag in (1, 9, 2, 2, 3)])
    assert [(frame.type, frame.correlation_id) for frame in refusals] == [(FrameType.NACK, 9), (FrameType.NACK, 2)]
    assert parse_nack(refusals[0].payload) == (404, "unknown subscription or delivery tag")


@pytest.mark.dense
async def test_deliveries_of_qos_0_echo_the_polls_that_they_answer(talk: Conversation) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", b"a", qos=0)
    await talk.publish("t", b"b", qos=1)
    await talk.publish("t", b"c", qos=0)
    frames = await talk.answers(*polls(subscription, 4))
    assert [frame.correlation_id for frame in frames] == [100, 2, 102]


@pytest.mark.dense
async def test_polls_for_more_than_is_sent_at_once_wait_for_a_peer_that_reads(
    talk: Conversation, broker: Broker, blipmq: BlipMQ
) -> None:
    subscription = await talk.subscribe("t")
    value = bytes(GATHERED_BYTES_MAX // 2 - 100)
    await talk.publish("t", *[value] * 6)
    connection = talk.connection
    send = connection.send

    def full_after_one(data: bytes) -> None:
        send(data)
        connection.writable = False

    connection.send = full_after_one  # type: ignore[method-assign]
    talk.say(*polls(subscription, 6))
    before = broker.subscriptions.stats.delivered
    assert before == 3, "as many as fill what is gathered"
    assert connection.held_bytes > 0
    assert blipmq.stats.requests_by_name()["poll"] == 1 + before, "the one of `publish`, and those that are answered"
    connection.send = send  # type: ignore[method-assign]
    connection.writable = True
    talk.session.resume()
    assert len(await talk.answers()) == 6
    assert connection.held_bytes == 0
    assert blipmq.stats.requests_by_name()["poll"] == 7


@pytest.mark.dense
async def test_a_delivery_without_room_is_given_back_and_its_poll_waits(talk: Conversation) -> None:
    subscription = await talk.subscribe("t")
    await talk.publish("t", bytes(10), bytes(5000), b"last")
    connection = talk.connection

    def no_room(_: int) -> bool:
        connection.writable = False
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "room_for", no_room)
        talk.say(*polls(subscription, 3))
    assert len(connection.sends[-1]) < 100, "only the first was sent"
    connection.writable = True
    talk.session.resume()
    frames = await talk.answers()
    assert [frame.correlation_id for frame in frames] == [1, 2, 3]
    assert [len(frame.payload) for frame in frames] == [14, 5004, 8]
    assert connection.held_bytes == 0


@asynccontextmanager
async def on_disk(directory: Path, clock: ManualClock, count: int) -> AsyncIterator[tuple[Broker, Conversation, int]]:
    """A conversation with a subscription whose records are in no cache."""
    async with a_broker(directory, clock, DeliveryPolicy(), tail_bytes=0) as broker:
        talk = Conversation(BlipMQ(broker, clock=clock, api_keys=["dev-key"]))
        await talk.log_in()
        subscription = await talk.subscribe("t")
        for n in range(count):
            await talk.publish("t", b"%d" % n)
        yield broker, talk, subscription


async def test_polls_continue_with_what_must_be_read_from_disk(tmp_path: Path, clock: ManualClock) -> None:
    async with on_disk(tmp_path / "d", clock, 20) as (_, talk, subscription):
        assert await values(talk, subscription, 30) == [b"%d" % n for n in range(20)]
        assert talk.connection.held_bytes == 0


@pytest.mark.embedded
async def test_what_cannot_be_read_is_said_to_the_polls_behind_what_can(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with on_disk(tmp_path / "d", clock, 3) as (_, talk, subscription):
        load, loads = Subscription.load, iter(range(10))

        async def damaged(found: Subscription) -> None:
            if next(loads):
                raise CorruptBlock("damaged")
            await load(found)

        monkeypatch.setattr(Subscription, "load", damaged)
        monkeypatch.setattr("penstock.broker.deliveries.cursor.READ_BYTES", 1)
        frames = await talk.answers(*polls(subscription, 3))
        assert [(frame.type, frame.correlation_id) for frame in frames] == [
            (FrameType.PUBLISH, 1),
            (FrameType.NACK, 101),
            (FrameType.NACK, 102),
        ]


async def test_a_connection_that_is_gone_while_its_polls_are_read_holds_nothing(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with on_disk(tmp_path / "d", clock, 3) as (_, talk, subscription):
        talk.say(*polls(subscription, 5), encode_publish(1, 1, "t", b"x"))
        assert talk.connection.held_bytes > 0
        talk.connection.writable = False
        talk.session.closed()
        while talk.connection.held_bytes:
            await asyncio.sleep(0)
