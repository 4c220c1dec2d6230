"""Resets of groups and subscriptions: what moves, what is delivered after it, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.access.audit import AuditQuery
from penstock.broker.access.checks import ANONYMOUS, SYSTEM
from penstock.broker.broker import Broker
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.groups.resets import ResetTarget, parse_mode
from penstock.errors import GroupNotFound, InvalidRequest, NoSpace, PartitionNotFound, TopicNotFound
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce
from tests.broker.subscribing import a_broker, ack, durable, subscribe, take, take_values, write_dead_letters

VALUES = [b"%d" % number for number in range(5)]
EARLIEST = ResetTarget("earliest")


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    async with a_broker(tmp_path / "data", clock) as broker:
        yield broker


async def filled(broker: Broker, *, partitions: int = 1, name: str = "jobs") -> Subscription:
    """A subscription to a topic with five records in each partition, one second after another."""
    await broker.topics.create(SYSTEM, "orders", TopicConfig(partitions=partitions))
    subscription = await subscribe(broker, name=name)
    for value in VALUES:
        broker.groups._clock.advance(1)  # type: ignore[attr-defined]
        for partition in range(partitions):
            await produce(broker, "orders", [value], partition=partition)
    return subscription


async def with_one_acknowledged(broker: Broker) -> Subscription:
    subscription = await filled(broker)
    first = await take(broker, subscription)
    assert first is not None
    assert ack(broker, subscription, first.tag)
    await durable(broker)
    return subscription


async def reset(broker: Broker, target: ResetTarget, partition: int | None = None, name: str = "jobs") -> list[int]:
    """Reset a subscription as its preview says, and return where it is."""
    preview = await broker.subscription_admin.reset(ANONYMOUS, "orders", name, target, partition, preview=True)
    before = broker.subscriptions.find_in_topic("orders", name).positions
    assert [each.before for each in preview] == [before[each.partition] for each in preview]
    assert await broker.subscription_admin.reset(ANONYMOUS, "orders", name, target, partition) == preview
    after = broker.subscriptions.find_in_topic("orders", name).positions
    assert [each.after for each in preview] == [after[each.partition] for each in preview]
    return after


@pytest.mark.dense
async def test_a_subscription_continues_where_it_is_reset_to(broker: Broker, clock: ManualClock) -> None:
    subscription = await filled(broker)
    assert await take_values(broker, subscription) == VALUES
    third_ms = clock.now_ms() - 2000
    for target, left in (
        (EARLIEST, 5),
        (ResetTarget("shift", -1), 1),
        (ResetTarget("shift", -100), 5),
        (ResetTarget("latest"), 0),
        (ResetTarget("offset", 3), 2),
        (ResetTarget("offset", 300), 0),
        (ResetTarget("time", third_ms), 3),
        (ResetTarget("shift", 100), 0),
    ):
        assert await reset(broker, target) == [5 - left], target
        assert subscription.lag == left
        assert await take_values(broker, subscription) == VALUES[5 - left :], target


@pytest.mark.dense
async def test_other_partitions_keep_what_they_have(broker: Broker, clock: ManualClock) -> None:
    subscription = await filled(broker, partitions=2)
    first, second = await take(broker, subscription), await take(broker, subscription)
    assert first is not None
    assert second is not None
    assert (first.partition, second.partition) == (0, 1)
    clock.advance(0.1)  # both are due again
    assert await reset(broker, ResetTarget("latest"), 0) == [5, 1]
    assert subscription.lag == 5
    again = await take(broker, subscription)
    assert again is not None
    assert (again.tag, again.deliveries, again.value) == (second.tag, 2, b"0")
    assert not ack(broker, subscription, first.tag)
    assert ack(broker, subscription, again.tag)
    assert await take_values(broker, subscription) == VALUES[1:]


async def test_a_tag_from_before_a_reset_settles_nothing_also_after_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with a_broker(tmp_path / "d", clock) as broker:
        subscription = await filled(broker)
        old = await take(broker, subscription)
        assert old is not None
        assert ack(broker, subscription, old.tag)
        clock.advance(1)
        await reset(broker, EARLIEST)
        anew = await take(broker, subscription)
        assert anew is not None
        assert (anew.value, anew.deliveries) == (b"0", 1)
        assert anew.tag != old.tag
        assert not ack(broker, subscription, old.tag)
        assert ack(broker, subscription, anew.tag)
        await durable(broker)
    async with a_broker(tmp_path / "d", clock) as broker:
        found = broker.subscriptions.find_in_topic("orders", "jobs")
        assert not ack(broker, found, old.tag)
        assert await take_values(broker, found) == VALUES[1:]


async def test_a_reset_is_stored_before_it_is_told(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock) as broker:
        assert await take_values(broker, await filled(broker)) == VALUES
        await durable(broker)
        await reset(broker, EARLIEST)
    async with a_broker(tmp_path / "d", clock) as broker:
        assert await take_values(broker, broker.subscriptions.find_in_topic("orders", "jobs")) == VALUES


async def test_a_subscription_without_a_name_is_known_by_its_number(broker: Broker) -> None:
    subscription = await filled(broker, name="")
    assert await take_values(broker, subscription) == VALUES
    await reset(broker, EARLIEST, name=f"#{subscription.id}")
    assert await take_values(broker, subscription) == VALUES
    for name in ("#", "#x", "#99", f"#0{subscription.id}", str(subscription.id), "", "#" + "9" * 5000, "#\u0661"):
        with pytest.raises(GroupNotFound):
            await broker.subscription_admin.reset(ANONYMOUS, "orders", name, EARLIEST)


@pytest.mark.parametrize("preview", [True, False])
async def test_a_subscription_with_readers_is_not_reset(broker: Broker, clock: ManualClock, preview: bool) -> None:
    subscription = await filled(broker)
    stop = subscription.watch(lambda: None)
    with pytest.raises(InvalidRequest, match=r"has readers \(deliveries that are not acknowledged: 0\)"):
        await broker.subscription_admin.reset(ANONYMOUS, "orders", "jobs", EARLIEST, preview=preview)
    stop()
    assert await take(broker, subscription) is not None
    with pytest.raises(InvalidRequest, match=r"has readers \(deliveries that are not acknowledged: 1\)"):
        await broker.subscription_admin.reset(ANONYMOUS, "orders", "jobs", EARLIEST, preview=preview)
    clock.advance(0.1)
    await broker.subscription_admin.reset(ANONYMOUS, "orders", "jobs", EARLIEST, preview=preview)


async def test_records_that_wait_to_become_dead_letters_are_not_forgotten(broker: Broker, clock: ManualClock) -> None:
    subscription = await filled(broker)
    first = await take(broker, subscription)
    assert first is not None
    subscription.dead_letter(first.tag, "too large")
    with pytest.raises(InvalidRequest, match=r"wait to become dead letters \(1\)"):
        await broker.subscription_admin.reset(ANONYMOUS, "orders", "jobs", EARLIEST)
    await write_dead_letters(broker)
    await reset(broker, EARLIEST)
    assert len(await broker.dead_letters.letters(SYSTEM, "orders", 10)) == 1


async def test_what_does_not_exist_is_said(broker: Broker) -> None:
    await filled(broker)
    with pytest.raises(GroupNotFound, match="subscription not found: nobody in topic orders"):
        await broker.subscription_admin.reset(ANONYMOUS, "orders", "nobody", EARLIEST)
    with pytest.raises(GroupNotFound):
        await broker.subscription_admin.reset(ANONYMOUS, "other", "jobs", EARLIEST)
    with pytest.raises(PartitionNotFound):
        await broker.subscription_admin.reset(ANONYMOUS, "orders", "jobs", EARLIEST, 7)
    with pytest.raises(TopicNotFound):
        await broker.groups.reset(ANONYMOUS, "other", "g", EARLIEST)
    with pytest.raises(InvalidRequest, match="offset -1 is out of range"):
        await broker.groups.reset(ANONYMOUS, "orders", "g", ResetTarget("offset", -1))
    with pytest.raises(InvalidRequest, match=r"unknown reset mode: sideways \(use earliest, latest, offset"):
        parse_mode("sideways")


@pytest.mark.parametrize("preview", [True, False])
async def test_a_group_is_not_created_where_a_subscription_of_its_name_was_meant(broker: Broker, preview: bool) -> None:
    await filled(broker)
    with pytest.raises(InvalidRequest, match=r"jobs is a subscription .* move it with penstock subscription reset"):
        await broker.groups.reset(ANONYMOUS, "orders", "jobs", EARLIEST, preview=preview)
    await broker.groups.commit(ANONYMOUS, "orders", "jobs", 0, 2)
    [move] = await broker.groups.reset(ANONYMOUS, "orders", "jobs", ResetTarget("latest"), preview=preview)
    assert move.before == 2


async def test_a_subscription_that_is_deleted_meanwhile_is_not_reset(broker: Broker) -> None:
    subscription = await filled(broker)
    await broker.groups.delete(SYSTEM, "jobs")
    with pytest.raises(GroupNotFound):
        await broker.subscriptions.move(subscription, {0: 0})


@pytest.mark.embedded
async def test_nothing_is_delivered_while_a_reset_is_stored(tmp_path: Path, clock: ManualClock) -> None:
    disk = FaultyDisk()
    async with a_broker(tmp_path / "d", clock, disk=disk) as broker:
        subscription = await with_one_acknowledged(broker)
        woken: list[bool] = []
        with disk.fsync_held() as held:
            resetting = asyncio.create_task(
                broker.subscription_admin.reset(ANONYMOUS, "orders", "jobs", ResetTarget("shift", 2))
            )
            await asyncio.to_thread(held.wait)
            assert await take(broker, subscription) is None
            subscription.watch(lambda: woken.append(True))
        await resetting
        assert woken
        assert await take_values(broker, subscription) == VALUES[3:]


@pytest.mark.embedded
async def test_a_reset_that_cannot_be_stored_changes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    disk = FaultyDisk()
    async with a_broker(tmp_path / "d", clock, disk=disk) as broker:
        subscription = await with_one_acknowledged(broker)
        disk.disk_full()
        with pytest.raises(NoSpace):
            await broker.subscription_admin.reset(ANONYMOUS, "orders", "jobs", EARLIEST)
        disk.disk_full_off()
        assert await take_values(broker, subscription) == VALUES[1:]


@pytest.mark.parametrize("preview", [True, False])
async def test_a_preview_refuses_what_the_reset_would(broker: Broker, preview: bool) -> None:
    await filled(broker)
    for group in ("g\0", "", "g" * 1000):
        with pytest.raises(InvalidRequest, match="group name"):
            await broker.groups.reset(ANONYMOUS, "orders", group, EARLIEST, preview=preview)


async def test_a_reset_is_in_the_audit_trail_and_a_preview_is_not(broker: Broker) -> None:
    await filled(broker)
    await reset(broker, ResetTarget("shift", -2), 0)
    await broker.groups.reset(ANONYMOUS, "orders", "billing", ResetTarget("latest"))
    found = await broker.audit.query(SYSTEM, AuditQuery(types=["group.reset", "subscription.reset"]))
    told = [(each.type, each.resource, each.details) for each in found.events]
    assert sorted(told) == [
        ("group.reset", "billing", {"topic": "orders", "partition": "*", "to": "latest"}),
        ("subscription.reset", "jobs", {"topic": "orders", "partition": "0", "to": "shift -2"}),
    ]
