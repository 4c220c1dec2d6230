"""One subscription over a real log: what is delivered, what comes again, and what its readers are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries.cursor import NOT_IN_MEMORY
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.producing import produce
from tests.broker.subscribing import (
    POLICY,
    a_broker,
    ack,
    publish_qos0,
    subscribe,
    take,
    take_values,
    write_dead_letters,
)


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    async with a_broker(tmp_path / "data", clock) as broker:
        yield broker


@pytest.mark.dense
async def test_tags_count_every_record_from_one(broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "orders")
    await produce(broker, "orders", [b"before"])
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    await publish_qos0(broker, "orders", [b"zero"])
    await produce(broker, "orders", [b"b"])
    tags = [(await take(broker, subscription)).tag for _ in range(3)]  # type: ignore[union-attr]
    assert tags == [1, 2, 3]


async def test_all_partitions_are_read_and_their_tags_differ(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "wide", TopicConfig(partitions=3))
    subscription = await subscribe(broker, "wide")
    for partition in range(3):
        await produce(broker, "wide", [f"{partition}".encode()], partition=partition)
    deliveries = [await take(broker, subscription) for _ in range(3)]
    assert sorted(d.value or b"" for d in deliveries if d) == [b"0", b"1", b"2"]
    assert len({d.tag for d in deliveries if d}) == 3
    assert all(ack(broker, subscription, d.tag) for d in deliveries if d)


async def test_an_unacknowledged_record_comes_again_with_its_tag_after_growing_delays(
    broker: Broker, clock: ManualClock
) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    first = await take(broker, subscription)
    assert first is not None
    assert await take(broker, subscription) is None
    clock.advance(0.099)
    assert await take(broker, subscription) is None
    clock.advance(0.001)
    assert await take(broker, subscription) == replace(first, deliveries=2)
    clock.advance(0.199)
    assert await take(broker, subscription) is None
    clock.advance(0.001)
    assert await take(broker, subscription) == replace(first, deliveries=3)
    assert ack(broker, subscription, first.tag)


async def test_an_acknowledgement_after_its_time_is_refused_and_the_record_comes_again(
    broker: Broker, clock: ManualClock
) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    first = await take(broker, subscription)
    assert first is not None
    clock.advance(0.1)
    assert not ack(broker, subscription, first.tag)
    assert await take(broker, subscription) == replace(first, deliveries=2)


async def test_unknown_and_settled_tags_are_refused(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    delivery = await take(broker, subscription)
    assert delivery is not None
    assert ack(broker, subscription, delivery.tag)
    assert not ack(broker, subscription, delivery.tag)
    assert not ack(broker, subscription, 0)
    assert not ack(broker, subscription, 1 << 63)


@pytest.mark.dense
async def test_a_record_is_settled_once_nobody_is_owed_it(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(ANONYMOUS, "orders")
    await produce(broker, "orders", [b"before"])
    subscription = await broker.subscriptions.subscribe(ANONYMOUS, "orders", 1, name="billing")
    assert broker.subscriptions.find_named("orders", "billing") is subscription
    assert broker.subscriptions.find_named("orders", "other") is None
    await produce(broker, "orders", [b"one", b"two"])
    before, one, two = (subscription.tag(0, offset) for offset in range(3))
    assert (before, one, two) == (0, 1, 2)
    assert not any(map(subscription.is_settled, (before, one, two, 3))), "nothing was delivered"
    for tag in (one, two):
        delivery = await take(broker, subscription)
        assert delivery is not None
        assert delivery.tag == tag
        assert not subscription.is_settled(tag)
    broker.subscriptions.acknowledge(ANONYMOUS, "orders", subscription, one)
    clock.advance(1)
    broker.subscriptions.sweep()
    assert [subscription.is_settled(tag) for tag in (before, one, two, 3)] == [False, True, False, False]
    subscription.dead_letter(two, "too large")
    assert not subscription.is_settled(two), "not before it is a dead letter"


@pytest.mark.dense
async def test_no_more_than_the_bound_is_in_flight(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"%d" % n for n in range(10)])
    assert await take_values(broker, subscription, acknowledge=False) == [b"0", b"1", b"2", b"3"]
    assert ack(broker, subscription, 2)
    assert await take_values(broker, subscription, acknowledge=False) == [b"4"]


async def test_a_refused_delivery_comes_again_after_its_delay(broker: Broker, clock: ManualClock) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    first = await take(broker, subscription)
    assert first is not None
    clock.advance(0.05)
    assert broker.subscriptions.refuse(ANONYMOUS, "orders", subscription, first.tag)
    clock.advance(0.099)
    assert await take(broker, subscription) is None
    clock.advance(0.001)
    assert await take(broker, subscription) == replace(first, deliveries=2)
    assert not broker.subscriptions.refuse(ANONYMOUS, "orders", subscription, 99)


async def test_expired_records_are_neither_delivered_nor_repeated(broker: Broker, clock: ManualClock) -> None:
    subscription = await subscribe(broker)
    placed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    soon_ms = clock.now_ms() + 50
    broker.records.produce(
        ANONYMOUS, "orders", -1, [b"soon", b"sooner", b"never"], expiries=[soon_ms, soon_ms, 0], done=placed.set_result
    )
    await placed
    first = await take(broker, subscription)
    assert first is not None
    assert first.value == b"soon"
    clock.advance(0.1)
    assert await take_values(broker, subscription) == [b"never"]
    assert subscription.in_flight == 0


async def test_a_backlog_on_disk_is_read_and_repeated_from_there(tmp_path: Path, clock: ManualClock) -> None:
    policy = DeliveryPolicy(in_flight_max=10_000)
    async with a_broker(tmp_path / "d", clock, policy, tail_bytes=0) as broker:
        subscription = await subscribe(broker)
        values = [b"%06d" % n + bytes(1000) for n in range(1000)]
        for at in range(0, len(values), 100):
            await produce(broker, "orders", values[at : at + 100])
        assert await take_values(broker, subscription, acknowledge=False) == values
        clock.advance(0.1)
        assert await take_values(broker, subscription) == values


@pytest.mark.embedded
async def test_blocks_are_let_go_when_nobody_reads(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock, tail_bytes=0) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"a", b"b", b"c"])
        await produce(broker, "orders", [b"d"])
        assert (await take(broker, subscription)).value == b"a"  # type: ignore[union-attr]
        assert ack(broker, subscription, 1)
        clock.advance(2)
        broker.subscriptions.sweep()
        assert broker.subscriptions.take_many(ANONYMOUS, "orders", subscription, 1, 1) is NOT_IN_MEMORY
        assert await take_values(broker, subscription) == [b"b", b"c", b"d"]


@pytest.mark.dense
async def test_retention_takes_records_from_under_a_reader(tmp_path: Path, clock: ManualClock) -> None:
    policy = DeliveryPolicy(in_flight_max=100)
    async with a_broker(tmp_path / "d", clock, policy, tail_bytes=0) as broker:
        config = TopicConfig(segment_bytes=1 << 16)
        await broker.topics.create(ANONYMOUS, "orders", config)
        subscription = await subscribe(broker)
        for number in range(20):
            await produce(broker, "orders", [b"%d" % number + bytes(20_000)])
        first = await take(broker, subscription)
        assert first is not None
        partition = broker.records.partition(ANONYMOUS, "orders", 0)
        start = await partition.delete_before(10)
        assert start > 0
        subscription.forget_blocks()
        clock.advance(0.1)
        values = await take_values(broker, subscription)
        assert [(value or b"").rstrip(b"\0") for value in values] == [b"%d" % number for number in range(start, 20)]
        assert subscription.in_flight == 0


async def test_a_reader_that_watches_is_told_of_new_records_until_it_stops(broker: Broker) -> None:
    subscription = await subscribe(broker)
    told: list[str] = []
    stop_first, stop_second = subscription.watch(lambda: told.append("a")), subscription.watch(lambda: told.append("b"))
    await produce(broker, "orders", [b"1"])
    assert told == ["a", "b"]
    stop_first()
    stop_first()
    await produce(broker, "orders", [b"2"])
    assert told == ["a", "b", "b"]
    stop_second()
    await produce(broker, "orders", [b"3"])
    assert told == ["a", "b", "b"]
    assert not subscription.watched


async def test_a_reader_that_watches_is_told_of_deliveries_taken_back_and_of_the_end(
    broker: Broker, clock: ManualClock
) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"1"])
    delivery = await take(broker, subscription)
    assert delivery is not None
    told: list[bool] = []
    subscription.watch(lambda: told.append(subscription.deleted))
    broker.subscriptions.refuse(ANONYMOUS, "orders", subscription, delivery.tag)
    assert told == []
    clock.advance(0.1)
    broker.subscriptions.sweep()
    assert told == [False]
    await broker.topics.delete(ANONYMOUS, "orders")
    assert told == [False, True]


async def test_room_that_an_acknowledgement_makes_is_told_to_those_who_watch(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"%d" % number for number in range(6)])
    first = await take(broker, subscription)
    assert first is not None
    while await take(broker, subscription) is not None:
        pass
    told: list[int] = []
    subscription.watch(lambda: told.append(subscription.in_flight))
    assert ack(broker, subscription, first.tag)
    assert told == [3]


async def test_what_a_reader_gives_back_is_delivered_next_and_was_no_delivery(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"1", b"2"])
    for _ in range(POLICY.deliveries_max + 1):
        delivery = await take(broker, subscription)
        assert delivery is not None
        assert delivery.value == b"1"
        broker.subscriptions.requeue(subscription, [(delivery.tag, delivery.deliveries)])
        assert not ack(broker, subscription, delivery.tag)
    assert await take_values(broker, subscription) == [b"1", b"2"]


async def test_what_a_reader_gives_back_stands_before_what_others_gave_back(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"1", b"2", b"3"])
    had = [await take(broker, subscription) for _ in range(3)]
    broker.subscriptions.requeue(subscription, [(each.tag, each.deliveries) for each in had if each is not None])
    first = await take(broker, subscription)
    assert first is not None
    broker.subscriptions.requeue(subscription, [(first.tag, first.deliveries)])
    assert await take_values(broker, subscription) == [b"1", b"2", b"3"]


async def test_what_readers_were_at_work_on_when_they_went_becomes_a_dead_letter_in_the_end(broker: Broker) -> None:
    """And nothing else that they had."""
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"1", b"poison", b"3"])
    done = await take(broker, subscription)
    assert done is not None
    assert ack(broker, subscription, done.tag)
    for times in range(1, POLICY.deliveries_max + 1):
        had = [await take(broker, subscription) for _ in range(2)]
        assert [each and (each.value, each.deliveries) for each in had] == [(b"poison", times), (b"3", 1)]
        given = [(each.tag, each.deliveries) for each in had if each is not None]
        broker.subscriptions.requeue(subscription, [(done.tag, 1), *given], first_counts=True)
    await write_dead_letters(broker)
    [letter] = await broker.dead_letters.letters(ANONYMOUS, "orders", 10)
    assert (letter.value, letter.attempts) == (b"poison", 3)
    assert letter.reason == "its reader was gone after 3 deliveries"
    assert await take_values(broker, subscription) == [b"3"]


async def test_what_has_become_a_dead_letter_makes_room_and_readers_are_told(
    tmp_path: Path, clock: ManualClock
) -> None:
    policy = DeliveryPolicy(in_flight_max=1, deliveries_max=1)
    async with a_broker(tmp_path / "d", clock, policy) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"1", b"2"])
        assert await take(broker, subscription) is not None
        assert await take(broker, subscription) is None
        told: list[int] = []
        clock.advance(1)
        broker.subscriptions.sweep()
        assert await take(broker, subscription) is None
        subscription.watch(lambda: told.append(subscription.exhausted))
        await write_dead_letters(broker)
        assert told == [0]
        assert (await take(broker, subscription)).value == b"2"  # type: ignore[union-attr]


async def test_a_subscription_may_give_its_readers_more_time(broker: Broker, clock: ManualClock) -> None:
    subscription = await subscribe(broker, name="billing", ack_ms=5_000)
    assert await subscribe(broker, name="billing") is subscription
    await produce(broker, "orders", [b"1"])
    delivery = await take(broker, subscription)
    assert delivery is not None
    clock.advance(4.9)
    assert await take(broker, subscription) is None
    clock.advance(0.2)
    again = await take(broker, subscription)
    assert again is not None
    assert again.tag == delivery.tag


@pytest.mark.dense
async def test_many_records_are_taken_and_settled_at_once_within_their_bounds(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"%d" % number * 10 for number in range(4)])
    subscriptions = broker.subscriptions
    first = subscriptions.take_many(ANONYMOUS, "orders", subscription, 10, 11)
    rest = subscriptions.take_many(ANONYMOUS, "orders", subscription, 10, 1000)
    assert isinstance(first, list)
    assert isinstance(rest, list)
    assert [len(first), len(rest)] == [2, 2]
    assert subscriptions.take_many(ANONYMOUS, "orders", subscription, 10, 1000) == []
    tags = [delivery.tag for delivery in (*first, *rest)]
    assert subscriptions.acknowledge_many(ANONYMOUS, "orders", subscription, [*tags, 99]) == [True] * 4 + [False]
    assert subscription.in_flight == 0


@pytest.mark.embedded
async def test_many_records_that_are_not_in_memory_are_loaded_first(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock, tail_bytes=0) as broker:
        subscription = await subscribe(broker)
        for value in (b"1", b"2"):
            await produce(broker, "orders", [value])
        taken = broker.subscriptions.take_many(ANONYMOUS, "orders", subscription, 10, 1000)
        assert taken is NOT_IN_MEMORY
        await broker.subscriptions.load(ANONYMOUS, "orders", subscription)
        taken = broker.subscriptions.take_many(ANONYMOUS, "orders", subscription, 10, 1000)
        assert isinstance(taken, list)
        assert [delivery.value for delivery in taken] == [b"1", b"2"]


async def test_a_subscription_may_take_every_record_at_least_once(broker: Broker) -> None:
    subscription = await subscribe(broker, qos=2)
    await publish_qos0(broker, "orders", [b"1"])
    delivery = await take(broker, subscription)
    assert delivery is not None
    assert delivery.qos == 1
    assert ack(broker, subscription, delivery.tag)


async def test_what_another_reader_has_meanwhile_is_not_given_back(broker: Broker, clock: ManualClock) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"1"])
    first = await take(broker, subscription)
    clock.advance(0.1)
    second = await take(broker, subscription)
    assert first is not None
    assert second is not None
    assert (first.deliveries, second.deliveries) == (1, 2)
    broker.subscriptions.requeue(subscription, [(first.tag, first.deliveries)])
    assert await take(broker, subscription) is None
    assert ack(broker, subscription, second.tag)
