"""Subscriptions to a topic that gets more partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries.subscription import Delivery, Subscription
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.producing import produce
from tests.broker.subscribing import a_broker, ack, durable, subscribe, take, take_values


async def taken(broker: Broker, subscription: Subscription) -> Delivery:
    delivery = await take(broker, subscription)
    assert delivery is not None
    return delivery


@pytest.mark.dense
async def test_records_of_new_partitions_are_delivered_to_who_began_at_the_end(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with a_broker(tmp_path / "data", clock) as broker:
        await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
        await produce(broker, "orders", [b"before"])
        subscription = await subscribe(broker)
        woken: list[bool] = []
        stop = subscription.watch(lambda: woken.append(True))
        await broker.topics.add_partitions(ANONYMOUS, "orders", 3)
        woken.clear()
        for partition in range(3):
            await produce(broker, "orders", [b"%d" % partition], partition=partition)
            assert woken.pop(), partition
        stop()
        assert sorted(value or b"" for value in await take_values(broker, subscription)) == [b"0", b"1", b"2"]
        assert subscription.lag == 0
        (info,) = broker.subscriptions.group_infos(topic="orders")
        assert [each.offset for each in info.offsets] == [2, 1, 1]


@pytest.mark.dense
async def test_deliveries_in_flight_keep_their_tags_when_partitions_are_added(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with a_broker(tmp_path / "data", clock) as broker:
        await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=2))
        subscription = await subscribe(broker)
        for partition in range(2):
            await produce(broker, "orders", [b"a", b"b"], partition=partition)
        before = [await taken(broker, subscription) for _ in range(4)]
        assert ack(broker, subscription, before[0].tag)
        await broker.topics.add_partitions(ANONYMOUS, "orders", 3)
        for partition in range(3):
            await produce(broker, "orders", [b"c"], partition=partition)
        assert ack(broker, subscription, before[1].tag)
        after = [await taken(broker, subscription) for _ in range(2)]
        assert len({delivery.tag for delivery in before + after}) == 6
        clock.advance(1)  # what is not acknowledged comes again, with its tag
        again = [await taken(broker, subscription) for _ in range(4)]
        assert {(each.tag, each.partition, each.offset) for each in again} == {
            (each.tag, each.partition, each.offset) for each in before[2:] + after
        }
        assert all(ack(broker, subscription, each.tag) for each in again)
        assert subscription.lag == 1


async def test_a_restart_after_partitions_were_added_delivers_what_was_not_settled(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with a_broker(tmp_path / "data", clock) as broker:
        await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
        subscription = await subscribe(broker, name="billing")
        await produce(broker, "orders", [b"a", b"b"])
        first = await taken(broker, subscription)
        second = await taken(broker, subscription)
        assert ack(broker, subscription, first.tag)
        await broker.topics.add_partitions(ANONYMOUS, "orders", 2)
        await produce(broker, "orders", [b"c"], partition=1)
        await durable(broker)
    async with a_broker(tmp_path / "data", clock) as broker:
        subscription = await subscribe(broker, name="billing")
        assert sorted(value or b"" for value in await take_values(broker, subscription, acknowledge=False)) == [
            b"b",
            b"c",
        ]
        assert not ack(broker, subscription, second.tag), "a tag of an earlier run acknowledges nothing else"


async def test_a_subscription_that_was_stored_before_partitions_were_added_gets_new_tags(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with a_broker(tmp_path / "data", clock) as broker:
        await broker.topics.create(ANONYMOUS, "orders", TopicConfig())
        subscription = await subscribe(broker, name="billing")
        await produce(broker, "orders", [b"a", b"b"])
        tags = {(await taken(broker, subscription)).tag for _ in range(2)}
        await durable(broker)
        # As after a crash between the change of the topic and the next write of the subscription.
        await broker._engine.alter_topic("orders", TopicConfig(partitions=3))
        await produce(broker, "orders", [b"c"], partition=2)
    async with a_broker(tmp_path / "data", clock) as broker:
        subscription = await subscribe(broker, name="billing")
        deliveries = [await taken(broker, subscription) for _ in range(3)]
        assert sorted(each.value or b"" for each in deliveries) == [b"a", b"b", b"c"]
        assert not tags & {each.tag for each in deliveries}
        assert all(ack(broker, subscription, each.tag) for each in deliveries)
