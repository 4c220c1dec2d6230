"""Groups and subscriptions as an operator sees them."""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.groups import monitoring
from penstock.broker.groups.lag import PartitionLag
from penstock.broker.groups.membership import Heartbeat, Session
from penstock.broker.groups.monitoring import Filter
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.producing import produce
from tests.broker.subscribing import write_dead_letters

WHO = ANONYMOUS
ALL = Filter()


@pytest.mark.dense
async def test_a_group_is_shown_with_its_members_their_partitions_and_its_lag(
    broker: Broker, clock: ManualClock
) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=2))
    await produce(broker, "t", [b"x"] * 3, partition=1)
    clock.advance(2)
    await broker.groups.commit(WHO, "t", "g", 0, 0)
    broker.groups.subscribe(WHO, "t", "g", "connection")
    await broker.coordinator.heartbeat(WHO, "g", ["t"], Heartbeat("m", 0, Session(instance="i"), {}))
    [status] = (await broker.groups.statuses(WHO, ALL)).items
    assert (status.topic, status.group, status.sessions, status.generation, status.state) == ("t", "g", 1, 1, "stable")
    assert [(each.id, each.instance, each.silent_ms) for each in status.members] == [("m", "i", 0)]
    assert status.partitions == [PartitionLag(0, 0, 0, 0, 0.0), PartitionLag(1, None, 3, 3, 2.0)]
    assert status.owners == ["m", "m"]
    await broker.coordinator.heartbeat(WHO, "g", ["t"], Heartbeat("n", 0, Session(), {}))
    [status] = (await broker.groups.statuses(WHO, ALL)).items
    assert (status.state, len(status.members)) == ("rebalancing", 2)


async def test_a_group_without_readers_is_empty_and_one_without_a_topic_has_no_lag(broker: Broker) -> None:
    await broker.groups.commit(WHO, "missing", "g", 3, 5)
    [status] = (await broker.groups.statuses(WHO, ALL)).items
    assert (status.state, status.generation, status.sessions) == ("empty", 0, 0)
    assert status.partitions == [PartitionLag(3, 5, None, None, None)]


async def test_groups_come_in_pages_and_by_name(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "PAGE_PARTITIONS_MAX", 3)
    for topic in ("t", "u"):
        await broker.topics.create(WHO, topic, TopicConfig(partitions=2))
        for group in ("a", "b", "c"):
            await broker.groups.commit(WHO, topic, group, 0, 0)
    seen: list[tuple[str, str]] = []
    after, more = ("", ""), True
    while more:
        items, more = await broker.groups.statuses(WHO, Filter(after=after))
        assert len(items) <= 2
        seen += [(each.topic, each.group) for each in items]
        after = seen[-1]
    assert seen == [(topic, group) for topic in "tu" for group in "abc"]
    [one, two] = (await broker.groups.statuses(WHO, Filter(name="b"))).items
    assert [(each.topic, each.group) for each in (one, two)] == [("t", "b"), ("u", "b")]
    [only] = (await broker.groups.statuses(WHO, Filter(name="b", topic="u"))).items
    assert only.topic == "u"


@pytest.mark.dense
async def test_a_subscription_is_shown_with_what_is_in_flight_redelivered_and_dead(
    broker: Broker, clock: ManualClock
) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=1))
    subscription = await broker.subscriptions.subscribe(WHO, "t", 1, name="jobs", start="earliest")
    await broker.subscriptions.subscribe(WHO, "t", 1)
    await produce(broker, "t", [b"x"] * 3, partition=0)
    clock.advance(4)
    assert broker.subscriptions.take_many(WHO, "t", subscription, 1, 1)
    unnamed, status = (await broker.subscription_admin.statuses(WHO, ALL)).items
    assert unnamed.name == "#2"
    assert (status.name, status.lag, status.seconds, status.in_flight) == ("jobs", 3, 4.0, 1)
    assert (status.redeliveries, status.dead_letters, status.positions) == (0, 0, [(1, 3)])
    for _ in range(2):
        clock.advance(10)
        assert broker.subscriptions.take_many(WHO, "t", subscription, 1, 1)
    clock.advance(10)
    subscription.expire_deliveries(clock.now_ms())
    [status] = (await broker.subscription_admin.statuses(WHO, Filter(name="jobs"))).items
    assert (status.redeliveries, status.waiting, status.dead_letters, status.lag) == (2, 1, 0, 3)
    broker.subscriptions.sweep()
    await write_dead_letters(broker)
    [status] = (await broker.subscription_admin.statuses(WHO, Filter(topic="t", name="jobs"))).items
    assert (status.waiting, status.dead_letters, status.in_flight, status.lag) == (0, 1, 0, 2)
    assert status.seconds == 34.0


async def test_subscriptions_come_in_pages(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "PAGE_PARTITIONS_MAX", 1)
    await broker.topics.create(WHO, "t", TopicConfig(partitions=1))
    for name in ("a", "b"):
        await broker.subscriptions.subscribe(WHO, "t", 1, name=name)
    items, more = await broker.subscription_admin.statuses(WHO, ALL)
    assert ([each.name for each in items], more) == (["a"], True)
    items, more = await broker.subscription_admin.statuses(WHO, Filter(after=("t", "a")))
    assert ([each.name for each in items], more) == (["b"], False)
