"""All subscriptions of a broker over a real log: making and finding them, what is kept, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.limits import BrokerLimits
from penstock.errors import GroupNotFound, InvalidRequest, LimitExceeded, NoSpace
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce
from tests.broker.subscribing import (
    POLICY,
    a_broker,
    ack,
    durable,
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


async def test_a_subscription_sees_what_comes_after_it_and_nothing_older(broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "orders")
    await produce(broker, "orders", [b"before"])
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a", b"b"])
    assert await take_values(broker, subscription) == [b"a", b"b"]


async def test_subscribing_to_a_missing_topic_creates_it(broker: Broker) -> None:
    await subscribe(broker, "new")
    assert broker.topics.exists("new")


async def test_numbers_count_from_one_and_are_never_given_twice(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock) as broker:
        assert [(await subscribe(broker, topic)).id for topic in ("a", "a", "b")] == [1, 2, 3]
        await broker.topics.delete(ANONYMOUS, "b")
        assert broker.subscriptions.find(3) is None
    async with a_broker(tmp_path / "d", clock) as broker:
        assert (await subscribe(broker, "a")).id == 4


async def test_every_subscription_gets_every_record(broker: Broker) -> None:
    one, other = await subscribe(broker), await subscribe(broker)
    await produce(broker, "orders", [b"a", b"b"])
    assert await take_values(broker, one) == await take_values(broker, other) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("name", "problem"), [("a\x07b", "contains a control character"), ("x" * 250, "has 250 bytes")]
)
async def test_a_name_that_no_group_may_have_is_refused(broker: Broker, name: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=f"group name .*{problem}"):
        await subscribe(broker, name=name)
    assert len(broker.subscriptions) == 0


async def test_readers_of_one_name_share_the_records(broker: Broker) -> None:
    one, same = await asyncio.gather(subscribe(broker, name="workers"), subscribe(broker, name="workers"))
    assert one is same
    await produce(broker, "orders", [b"a", b"b"])
    assert (await take(broker, one)).value == b"a"  # type: ignore[union-attr]
    assert (await take(broker, same)).value == b"b"  # type: ignore[union-attr]


async def test_a_subscription_may_begin_at_the_earliest_record(broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "orders")
    await produce(broker, "orders", [b"before"])
    assert await take_values(broker, await subscribe(broker, start="earliest")) == [b"before"]


async def test_the_lower_qos_of_record_and_subscription_counts(broker: Broker) -> None:
    careful, careless = await subscribe(broker, qos=1), await subscribe(broker, qos=0)
    await produce(broker, "orders", [b"one"])
    await publish_qos0(broker, "orders", [b"zero"])
    effective = [(await take(broker, careful)).qos for _ in range(2)]  # type: ignore[union-attr]
    assert effective == [1, 0]
    assert [(await take(broker, careless)).qos for _ in range(2)] == [0, 0]  # type: ignore[union-attr]
    assert careful.in_flight == 1
    assert careless.in_flight == 0


@pytest.mark.dense
async def test_a_record_whose_deliveries_are_used_up_becomes_a_dead_letter_once(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with a_broker(tmp_path / "d", clock) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"poison", b"fine"], [b"k", None])
        for _ in range(3):
            delivery = await take(broker, subscription)
            assert delivery is not None
            assert delivery.value == b"poison"
            clock.advance(1)
        assert await take_values(broker, subscription) == [b"fine"]
        broker.subscriptions.sweep()
        await write_dead_letters(broker)
        [letter] = await broker.dead_letters.letters(ANONYMOUS, "orders", 10)
        assert (letter.value, letter.key, letter.attempts, letter.origin_offset) == (b"poison", b"k", 3, 0)
        assert letter.reason == "not acknowledged after 3 deliveries"
        assert not subscription.exhausted
    async with a_broker(tmp_path / "d", clock) as broker:
        again = broker.subscriptions.find(1)
        assert again is not None
        assert await take_values(broker, again) == []
        assert len(await broker.dead_letters.letters(ANONYMOUS, "orders", 10)) == 1


@pytest.mark.dense
async def test_a_refused_last_delivery_and_one_that_cannot_arrive_become_dead_letters(
    tmp_path: Path, clock: ManualClock
) -> None:
    policy = DeliveryPolicy(deliveries_max=1)
    async with a_broker(tmp_path / "d", clock, policy) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"a", b"b"])
        for _ in range(2):
            await take(broker, subscription)
        assert broker.subscriptions.refuse(ANONYMOUS, "orders", subscription, 1)
        broker.subscriptions.dead_letter(ANONYMOUS, "orders", subscription, 2, "too large")
        await write_dead_letters(broker)
        letters = await broker.dead_letters.letters(ANONYMOUS, "orders", 10)
        assert [letter.reason for letter in letters] == ["refused by its reader", "too large"]


@pytest.mark.dense
async def test_what_was_acknowledged_stays_settled_over_a_restart_and_the_rest_comes_again(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with a_broker(tmp_path / "d", clock) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"%d" % n for n in range(6)])
        await take_values(broker, subscription, acknowledge=False)
        assert ack(broker, subscription, 1)
        assert ack(broker, subscription, 3)
    async with a_broker(tmp_path / "d", clock) as broker:
        again = broker.subscriptions.find(1)
        assert again is not None
        assert again.in_flight == 2
        deliveries = [await take(broker, again) for _ in range(4)]
        assert [(d.tag, d.value) for d in deliveries if d] == [(2, b"1"), (4, b"3"), (5, b"4"), (6, b"5")]


@pytest.mark.dense
async def test_a_restart_leaves_every_record_at_least_one_more_delivery(tmp_path: Path, clock: ManualClock) -> None:
    policy = DeliveryPolicy(deliveries_max=1, in_flight_max=4)
    async with a_broker(tmp_path / "d", clock, policy) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"a", b"b"])
        await take(broker, subscription)
        await take(broker, subscription)
        assert ack(broker, subscription, 2)
    async with a_broker(tmp_path / "d", clock, policy) as broker:
        again = broker.subscriptions.find(1)
        assert again is not None
        assert await take_values(broker, again) == [b"a"]


async def test_records_of_qos_0_are_not_delivered_by_a_later_run(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock) as broker:
        await subscribe(broker)
        await publish_qos0(broker, "orders", [b"zero"])
        await produce(broker, "orders", [b"one"])
    async with a_broker(tmp_path / "d", clock) as broker:
        again = broker.subscriptions.find(1)
        assert again is not None
        await publish_qos0(broker, "orders", [b"new zero"])
        assert await take_values(broker, again) == [b"one", b"new zero"]


@pytest.mark.dense
async def test_many_acknowledgements_of_one_turn_are_one_append(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a", b"b", b"c"])
    for _ in range(3):
        await take(broker, subscription)
    partition = broker._engine.partition("__subscriptions", 0)
    before = partition.committed_end
    assert all(ack(broker, subscription, tag) for tag in (1, 2, 3))
    await durable(broker)
    assert partition.committed_end == before + 1


@pytest.mark.embedded
async def test_acknowledgements_that_cannot_be_stored_are_stored_when_they_can(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = FaultyDisk()
    async with a_broker(tmp_path / "d", clock, disk=disk) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"a"])
        await take(broker, subscription)
        disk.disk_full()
        assert ack(broker, subscription, 1)
        with pytest.raises(NoSpace):
            await durable(broker)
        disk.disk_full_off()
        broker.subscriptions.sweep()
        await durable(broker)
    async with a_broker(tmp_path / "d", clock) as broker:
        again = broker.subscriptions.find(1)
        assert again is not None
        assert await take_values(broker, again) == []


async def test_subscriptions_that_nobody_uses_end(tmp_path: Path, clock: ManualClock) -> None:
    policy = DeliveryPolicy(idle_ms_max=1000)
    async with a_broker(tmp_path / "d", clock, policy) as broker:
        await subscribe(broker)
        clock.advance(0.9)
        used = await subscribe(broker)
        clock.advance(0.2)
        await broker.subscriptions.end_idle()
        assert broker.subscriptions.find(1) is None
        assert broker.subscriptions.find(used.id) is used


async def test_there_are_no_more_subscriptions_than_allowed(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock, limits=BrokerLimits(subscriptions_max=1)) as broker:
        await subscribe(broker)
        with pytest.raises(LimitExceeded, match="subscriptions_max"):
            await subscribe(broker)


async def test_one_principal_leaves_room_for_the_others_also_after_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    limits = BrokerLimits(subscriptions_per_principal_max=2)
    greedy, other = Principal("tenant:t1"), Principal("tenant:t2")
    refusal = "tenant:t1 has 2 subscriptions, the most of one principal: raise limits.subscriptions_per_principal_max"
    async with a_broker(tmp_path / "d", clock, limits=limits) as broker:
        attempts = [broker.subscriptions.subscribe(greedy, "orders", 1, name=f"g{number}") for number in range(5)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert sum(isinstance(result, LimitExceeded) for result in results) == 3
        await broker.subscriptions.subscribe(other, "orders", 1)
    async with a_broker(tmp_path / "d", clock, limits=limits) as broker:
        with pytest.raises(LimitExceeded, match=refusal):
            await broker.subscriptions.subscribe(greedy, "orders", 1, name="more")
        await broker.subscriptions.subscribe(other, "orders", 1)
        for _ in range(3):
            await subscribe(broker)
        await broker.groups.delete(ANONYMOUS, "g0")
        await broker.subscriptions.subscribe(greedy, "orders", 1, name="more")


@pytest.mark.dense
async def test_subscriptions_are_listed_and_deleted_as_groups(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock) as broker:
        named, numbered = await subscribe(broker, name="workers"), await subscribe(broker)
        await subscribe(broker, "invoices", name="workers")
        await produce(broker, "orders", [b"a", b"b", b"c"])
        await take(broker, named)
        told = [(info.topic, info.group) for info in broker.groups.all(ANONYMOUS)]
        assert told == [("invoices", "workers"), ("orders", "#2"), ("orders", "workers")]
        assert [info.topic for info in broker.groups.describe(ANONYMOUS, "workers")] == ["invoices", "orders"]
        assert await broker.groups.lag(ANONYMOUS, "orders", "workers", 0) == (1, 3, 2)
        await broker.groups.delete(ANONYMOUS, "workers", "orders")
        await broker.groups.delete(ANONYMOUS, f"#{numbered.id}")
        assert named.deleted
        with pytest.raises(GroupNotFound):
            await broker.groups.delete(ANONYMOUS, "workers", "orders")
    async with a_broker(tmp_path / "d", clock) as broker:
        assert [(info.topic, info.group) for info in broker.groups.all(ANONYMOUS)] == [("invoices", "workers")]


async def test_a_group_that_commits_and_one_that_shares_records_may_have_one_name(broker: Broker) -> None:
    await subscribe(broker, name="workers")
    await broker.groups.commit(ANONYMOUS, "orders", "workers", 0, 7)
    [info] = broker.groups.all(ANONYMOUS)
    assert [each.offset for each in info.offsets] == [7]
    assert broker.groups.describe(ANONYMOUS, "workers") == [info]
    await broker.groups.delete(ANONYMOUS, "workers")
    assert [*broker.groups.all(ANONYMOUS)] == []


@pytest.mark.parametrize(
    "policy", [{"deliveries_max": 0}, {"backoff_ms": 0}, {"in_flight_max": 0}, {"in_flight_max": 50_001}]
)
def test_a_policy_that_cannot_be_kept_is_refused(policy: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(policy))):
        DeliveryPolicy(**policy)


async def test_a_qos_that_does_not_exist_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="QoS 3"):
        await subscribe(broker, qos=3)


async def test_a_watched_subscription_is_never_idle_and_not_at_once_when_that_ends(
    broker: Broker, clock: ManualClock
) -> None:
    """A reader of a quiet topic that is away for a minute must not lose its place."""
    subscription = await subscribe(broker)
    stop = subscription.watch(lambda: None)
    clock.advance(POLICY.idle_ms_max / 1000 + 1)
    await broker.subscriptions.end_idle()
    stop()
    clock.advance(61)
    await broker.subscriptions.end_idle()
    assert not subscription.deleted
    clock.advance(POLICY.idle_ms_max / 1000 + 1)
    await broker.subscriptions.end_idle()
    assert subscription.deleted
