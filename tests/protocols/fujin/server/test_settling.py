"""What readers ack, nack, ignore and leave unsettled."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.stored import Unsettled
from penstock.protocols.fujin.server.stream import ALONE_LOOKS_MAX, ALONE_S
from tests.broker.producing import produce
from tests.protocols.fujin.conftest import Connect
from tests.protocols.fujin.memory import ENDINGS, Client, Timers, leave, settle, until
from tests.protocols.fujin.records import in_flight, make
from tests.protocols.fujin.requests import (
    DISCONNECT,
    ack,
    connect_reader,
    fetch,
    fetched,
    message,
    nack,
    settled,
    tag,
)

UNKNOWN = b"unknown id"


async def test_what_is_acknowledged_does_not_come_again(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders")
    await produce(broker, "orders", [b"a", b"b"])
    await reader.hear(36)
    reply = await reader.ask(ack(5, [tag(2), tag(1)]), size=36)
    assert reply == settled(8, 5, (tag(2), None), (tag(1), None))
    assert in_flight(broker) == 0


async def test_an_id_is_settled_once(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders")
    await produce(broker, "orders", [b"a"])
    await reader.hear(18)
    reader.say(ack(1, [tag(1), tag(1)]), ack(2, [tag(1)]), nack(3, [tag(1)]))
    expected = settled(8, 1, (tag(1), None), (tag(1), UNKNOWN))
    await until(lambda: expected in reader.stream.sent)
    assert settled(8, 2, (tag(1), UNKNOWN)) in reader.stream.sent
    assert settled(9, 3, (tag(1), UNKNOWN)) in reader.stream.sent


@pytest.mark.parametrize("request_", [ack, nack])
@pytest.mark.parametrize("foreign", [b"", b"x", bytes(8), b"\xff" * 8, bytes(1024)])
async def test_ids_that_were_not_given_are_unknown_each_by_itself(
    client: Client, request_: object, foreign: bytes
) -> None:
    assert callable(request_)
    reader = await client.reader(b"orders")
    number = 8 if request_ is ack else 9
    expected = settled(number, 1, (foreign, UNKNOWN))
    assert await reader.ask(request_(1, [foreign]), size=len(expected)) == expected
    assert not reader.stream.has_ended


@pytest.mark.parametrize("request_", [ack, nack])
async def test_no_ids_are_answered_with_no_results(client: Client, request_: object) -> None:
    assert callable(request_)
    reader = await client.reader(b"orders")
    assert await reader.ask(request_(1, []), size=10) == settled(8 if request_ is ack else 9, 1)


async def test_acknowledging_with_auto_commit_is_answered(client: Client, broker: Broker) -> None:
    reader = await client.reader(b"orders", auto_commit=True)
    await produce(broker, "orders", [b"a"])
    await reader.hear(6)
    expected = settled(8, 1, (tag(1), UNKNOWN))
    assert await reader.ask(ack(1, [tag(1)]), size=len(expected)) == expected


async def test_what_is_refused_comes_again_after_a_moment_and_at_last_is_a_dead_letter(
    client: Client, broker: Broker, timers: Timers
) -> None:
    reader = await client.reader(b"orders")
    await produce(broker, "orders", [b"a"])
    for delay_s in (0.1, 0.2, 0.0):
        assert await reader.hear(18) == message(b"a", 1)
        assert await reader.ask(nack(1, [tag(1)]), size=23) == settled(9, 1, (tag(1), None))
        await reader.silence()
        timers.advance(delay_s)
        broker.subscriptions.sweep()
    await until(lambda: broker.dead_letters.stats.sent == 1)
    await reader.silence()
    assert in_flight(broker) == 0


async def test_what_is_neither_settled_nor_refused_comes_again_after_its_time(
    connect: Connect, broker: Broker, timers: Timers
) -> None:
    reader = await connect(ack_ms_max=1000).reader(b"orders")
    await produce(broker, "orders", [b"a"])
    assert await reader.hear(18) == message(b"a", 1)
    timers.advance(0.9)
    broker.subscriptions.sweep()
    await reader.silence()
    timers.advance(0.1)
    broker.subscriptions.sweep()
    assert await reader.hear(18) == message(b"a", 1)
    assert await reader.ask(ack(1, [tag(1)]), size=23) == settled(8, 1, (tag(1), None))


async def test_what_was_left_alone_takes_no_room_from_what_comes_again_and_after_it(
    connect: Connect, broker: Broker, timers: Timers
) -> None:
    """A reader that loses messages is pushed them again, then told no more of them, and continues with others."""
    reader = await connect(ack_ms_max=1000, unacknowledged_max=2).reader(b"orders")
    await produce(broker, "orders", [b"a", b"b", b"c", b"d"])
    for _ in range(3):
        assert await reader.hear(36) == message(b"a", 1) + message(b"b", 2)
        await reader.silence()
        timers.advance(1.0)
        broker.subscriptions.sweep()
    assert await reader.hear(36) == message(b"c", 3) + message(b"d", 4)
    await until(lambda: broker.dead_letters.stats.sent == 2)
    expected = settled(8, 1, (tag(1), UNKNOWN), (tag(3), None))
    assert await reader.ask(ack(1, [tag(1), tag(3)]), size=len(expected)) == expected


@pytest.mark.dense
async def test_a_reader_that_fetches_and_settles_nothing_is_not_remembered_forever(
    connect: Connect, broker: Broker, timers: Timers
) -> None:
    await make(broker, "orders", [b"%d" % number for number in range(10)])
    reader = await connect(dialect="spec").reader(b"orders", pull=True)
    subscription = broker.subscriptions.find(1)
    assert subscription is not None
    subscription.policy, subscription.ack_ms = DeliveryPolicy(deliveries_max=1, in_flight_max=2), 1000
    role: Any = reader.session._role  # type: ignore[attr-defined]
    for number in range(0, 10, 2):
        expected = fetched(number, b"%d" % number, b"%d" % (number + 1), first=number + 1)
        assert await reader.ask(fetch(number, 5), size=len(expected)) == expected
        assert len(role._outstanding) == 2
        timers.advance(1.0)
        broker.subscriptions.sweep()


@pytest.mark.dense
@pytest.mark.parametrize("how", ENDINGS)
async def test_what_a_reader_leaves_goes_to_another_at_once_and_only_the_first_of_it_counts(
    client: Client, connect: Connect, broker: Broker, how: str
) -> None:
    """The reader was working on that record; if it crashes every reader, it must not be redelivered forever."""
    other = connect()
    await make(broker, "orders", [b"a", b"b"])
    for _ in range(3):
        reader = await client.reader(b"orders")
        assert await reader.hear(36) == message(b"a", 1) + message(b"b", 2)
        leave(client, reader, how)
        client = connect()
    heir = await other.reader(b"orders")
    assert await heir.hear(18) == message(b"b", 2)
    await heir.silence()
    await until(lambda: broker.dead_letters.stats.sent == 1)


@pytest.mark.dense
async def test_readers_that_take_one_record_each_and_leave_make_no_dead_letters(client: Client, broker: Broker) -> None:
    """What was sent ahead of what they asked for does not count, however often that happens."""
    await make(broker, "orders", [b"%d" % number for number in range(9)])
    for number in range(9):
        reader = await client.reader(b"orders")
        assert await reader.hear(18) == message(b"%d" % number, number + 1)
        reader.say(ack(1, [tag(number + 1)]), DISCONNECT)
        await reader.end()
    await settle()
    assert (in_flight(broker), broker.dead_letters.stats.sent) == (0, 0)


@pytest.mark.dense
async def test_what_came_again_is_behind_what_came_before_it(connect: Connect, broker: Broker, timers: Timers) -> None:
    """So a reader that leaves was at work on the other."""
    client = connect(ack_ms_max=1000)
    reader = await client.reader(b"orders")
    await produce(broker, "orders", [b"a"])
    await reader.hear(18)
    timers.advance(0.9)
    await produce(broker, "orders", [b"b"])
    await reader.hear(18)
    timers.advance(0.1)
    broker.subscriptions.sweep()
    assert await reader.hear(18) == message(b"a", 1)
    reader.say(DISCONNECT)
    await reader.end()
    subscription = broker.subscriptions.find(1)
    assert subscription is not None
    (cursor,) = subscription.stored().cursors
    assert cursor.unsettled == (Unsettled(first=0, count=2, deliveries=1),)


async def test_with_auto_commit_a_record_is_settled_when_its_bytes_have_arrived(
    client: Client, broker: Broker, timers: Timers
) -> None:
    reader = await client.reader(b"orders", auto_commit=True)
    reader.stream.unacknowledged_bytes = 12
    await produce(broker, "orders", [b"a", b"b", b"c"])
    await reader.hear(18)
    timers.advance(0.05)
    assert in_flight(broker) == 3
    reader.stream.unacknowledged_bytes = 0
    timers.advance(0.05)
    assert in_flight(broker) == 0


@pytest.mark.parametrize("pull", [True, False])
async def test_with_auto_commit_no_more_is_under_way_than_may_be_and_what_arrives_makes_room(
    client: Client, broker: Broker, timers: Timers, pull: bool
) -> None:
    await make(broker, "orders", [b"%04d" % number for number in range(5000)])
    reader = client.open()
    reader.stream.unacknowledged_bytes = 1 << 30
    reader.say(connect_reader(b"orders", kind=2 if pull else 1, auto_commit=1))
    await reader.hear(2)
    timers.advance(ALONE_S * (ALONE_LOOKS_MAX + 1))  # the answer to the connect has not arrived either
    if pull:
        reader.say(fetch(1, 5000), fetch(2, 5000))
    heads_bytes = 10 if pull else 0
    row_bytes = len(message(b"0000")) - int(pull)
    await reader.hear(heads_bytes + 4096 * row_bytes)
    await reader.silence()
    assert in_flight(broker) == 4096
    reader.stream.unacknowledged_bytes = 0
    timers.advance(0.002)
    await reader.hear(heads_bytes + 904 * row_bytes)


async def test_with_auto_commit_what_has_not_arrived_goes_to_another(
    client: Client, broker: Broker, timers: Timers
) -> None:
    await make(broker, "orders", [b"a"])
    reader = await client.reader(b"orders", auto_commit=True)
    await reader.hear(6)
    timers.advance(0.05)
    reader.stream.unacknowledged_bytes = 6
    await produce(broker, "orders", [b"b"])
    await reader.hear(6)
    reader.session.aborted(0)
    heir = await client.reader(b"orders", auto_commit=True)
    assert await heir.hear(6) == message(b"b")
    await heir.silence()


async def test_settled_records_stay_settled_over_a_restart_of_the_readers(
    client: Client, connect: Connect, broker: Broker
) -> None:
    """An ACK is answered once it is on disk."""
    reader = await client.reader(b"orders")
    await produce(broker, "orders", [b"a"])
    await reader.hear(18)
    reader.say(ack(1, [tag(1)]))
    await until(lambda: len(reader.stream.sent) > 20)
    durable: list[object] = []
    broker.subscriptions.when_durable(durable.append)
    assert durable == [None]
