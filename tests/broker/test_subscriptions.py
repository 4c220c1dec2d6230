"""Subscriptions over a real log: what is delivered, what comes again, what is kept, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.broker.access import ANONYMOUS, OpenAccess
from penstock.broker.broker import Broker
from penstock.broker.cursor import NOT_IN_MEMORY
from penstock.broker.limits import BrokerLimits
from penstock.broker.subscription import QOS0_HEADERS, Delivery, DeliveryPolicy, Subscription
from penstock.errors import ConfigError, InvalidRequest, LimitExceeded, NoSpace
from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce

POLICY = DeliveryPolicy(deliveries_max=3, backoff_ms=100, in_flight_max=4)


@asynccontextmanager
async def a_broker(
    directory: Path,
    clock: ManualClock,
    policy: DeliveryPolicy = POLICY,
    limits: BrokerLimits | None = None,
    *,
    disk: FaultyDisk | None = None,
    tail_bytes: int = 4 << 20,
) -> AsyncIterator[Broker]:
    engine = EmbeddedEngine(
        directory, clock=clock, disk=disk, options=EngineOptions(tail_bytes_per_partition=tail_bytes)
    )
    await engine.start()
    broker = Broker(engine, clock=clock, limits=limits or BrokerLimits(), access=OpenAccess(), deliveries=policy)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
        await engine.close()


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    async with a_broker(tmp_path / "data", clock) as broker:
        yield broker


async def subscribe(broker: Broker, topic: str = "orders", qos: int = 1, **more: object) -> Subscription:
    return await broker.subscriptions.subscribe(ANONYMOUS, topic, qos, **more)  # type: ignore[arg-type]


async def take(broker: Broker, subscription: Subscription) -> Delivery | None:
    while True:
        taken = broker.subscriptions.take(ANONYMOUS, subscription.topic, subscription)
        if taken is not NOT_IN_MEMORY:
            assert taken is None or isinstance(taken, Delivery)
            return taken
        await broker.subscriptions.load(ANONYMOUS, subscription.topic, subscription)


async def take_values(broker: Broker, subscription: Subscription, *, acknowledge: bool = True) -> list[bytes | None]:
    values = []
    while (delivery := await take(broker, subscription)) is not None:
        values.append(delivery.value)
        if acknowledge and delivery.qos:
            assert ack(broker, subscription, delivery.tag)
    return values


def ack(broker: Broker, subscription: Subscription, tag: int) -> bool:
    return broker.subscriptions.acknowledge(ANONYMOUS, subscription.topic, subscription, tag)


async def durable(broker: Broker) -> None:
    stored: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    broker.subscriptions.when_durable(stored.set_result)
    error = await stored
    if error is not None:
        raise error


async def publish_qos0(broker: Broker, topic: str, values: list[bytes]) -> None:
    placed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    broker.produce(ANONYMOUS, topic, -1, values, None, [QOS0_HEADERS] * len(values), done=placed.set_result)
    await placed


async def test_a_subscription_sees_what_comes_after_it_and_nothing_older(broker: Broker) -> None:
    await broker.ensure_topic(ANONYMOUS, "orders")
    await produce(broker, "orders", [b"before"])
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a", b"b"])
    assert await take_values(broker, subscription) == [b"a", b"b"]


async def test_subscribing_to_a_missing_topic_creates_it(broker: Broker) -> None:
    await subscribe(broker, "new")
    assert broker.has_topic("new")


async def test_numbers_count_from_one_and_are_never_given_twice(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock) as broker:
        assert [(await subscribe(broker, topic)).id for topic in ("a", "a", "b")] == [1, 2, 3]
        await broker.delete_topic(ANONYMOUS, "b")
        assert broker.subscriptions.find(3) is None
    async with a_broker(tmp_path / "d", clock) as broker:
        assert (await subscribe(broker, "a")).id == 4


async def test_every_subscription_gets_every_record(broker: Broker) -> None:
    one, other = await subscribe(broker), await subscribe(broker)
    await produce(broker, "orders", [b"a", b"b"])
    assert await take_values(broker, one) == await take_values(broker, other) == [b"a", b"b"]


async def test_readers_of_one_name_share_the_records(broker: Broker) -> None:
    one, same = await asyncio.gather(subscribe(broker, name="workers"), subscribe(broker, name="workers"))
    assert one is same
    await produce(broker, "orders", [b"a", b"b"])
    assert (await take(broker, one)).value == b"a"  # type: ignore[union-attr]
    assert (await take(broker, same)).value == b"b"  # type: ignore[union-attr]


async def test_a_subscription_may_begin_at_the_earliest_record(broker: Broker) -> None:
    await broker.ensure_topic(ANONYMOUS, "orders")
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


async def test_tags_count_every_record_from_one(broker: Broker) -> None:
    await broker.ensure_topic(ANONYMOUS, "orders")
    await produce(broker, "orders", [b"before"])
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    await publish_qos0(broker, "orders", [b"zero"])
    await produce(broker, "orders", [b"b"])
    tags = [(await take(broker, subscription)).tag for _ in range(3)]  # type: ignore[union-attr]
    assert tags == [1, 2, 3]


async def test_all_partitions_are_read_and_their_tags_differ(broker: Broker) -> None:
    await broker.create_topic(ANONYMOUS, "wide", TopicConfig(partitions=3))
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
    assert await take(broker, subscription) == first._replace(deliveries=2)
    clock.advance(0.199)
    assert await take(broker, subscription) is None
    clock.advance(0.001)
    assert await take(broker, subscription) == first._replace(deliveries=3)
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
    assert await take(broker, subscription) == first._replace(deliveries=2)


async def test_unknown_and_settled_tags_are_refused(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    delivery = await take(broker, subscription)
    assert delivery is not None
    assert ack(broker, subscription, delivery.tag)
    assert not ack(broker, subscription, delivery.tag)
    assert not ack(broker, subscription, 0)
    assert not ack(broker, subscription, 1 << 63)


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
    assert await take(broker, subscription) == first._replace(deliveries=2)
    assert not broker.subscriptions.refuse(ANONYMOUS, "orders", subscription, 99)


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
        await durable(broker)
        [letter] = await broker.dead_letters.letters(ANONYMOUS, "orders", 10)
        assert (letter.value, letter.key, letter.attempts, letter.origin_offset) == (b"poison", b"k", 3, 0)
        assert letter.reason == "not acknowledged after 3 deliveries"
        assert not subscription.exhausted
    async with a_broker(tmp_path / "d", clock) as broker:
        again = broker.subscriptions.find(1)
        assert again is not None
        assert await take_values(broker, again) == []
        assert len(await broker.dead_letters.letters(ANONYMOUS, "orders", 10)) == 1


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
        broker.subscriptions.give_up(ANONYMOUS, "orders", subscription, 2, "too large")
        await durable(broker)
        letters = await broker.dead_letters.letters(ANONYMOUS, "orders", 10)
        assert [letter.reason for letter in letters] == ["refused by its reader", "too large"]


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


async def test_expired_records_are_neither_delivered_nor_repeated(broker: Broker, clock: ManualClock) -> None:
    subscription = await subscribe(broker)
    placed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    soon_ms = clock.now_ms() + 50
    broker.produce(
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


async def test_blocks_are_let_go_when_nobody_reads(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock, tail_bytes=0) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"a", b"b", b"c"])
        await produce(broker, "orders", [b"d"])
        assert (await take(broker, subscription)).value == b"a"  # type: ignore[union-attr]
        assert ack(broker, subscription, 1)
        clock.advance(2)
        broker.subscriptions.sweep()
        assert broker.subscriptions.take(ANONYMOUS, "orders", subscription) is NOT_IN_MEMORY
        assert await take_values(broker, subscription) == [b"b", b"c", b"d"]


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


@pytest.mark.parametrize(
    "policy", [{"deliveries_max": 0}, {"backoff_ms": 0}, {"in_flight_max": 0}, {"in_flight_max": 50_001}]
)
def test_a_policy_that_cannot_be_kept_is_refused(policy: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(policy))):
        DeliveryPolicy(**policy)


async def test_retention_takes_records_from_under_a_reader(tmp_path: Path, clock: ManualClock) -> None:
    policy = DeliveryPolicy(in_flight_max=100)
    async with a_broker(tmp_path / "d", clock, policy, tail_bytes=0) as broker:
        config = TopicConfig(segment_bytes=1 << 16)
        await broker.create_topic(ANONYMOUS, "orders", config)
        subscription = await subscribe(broker)
        for number in range(20):
            await produce(broker, "orders", [b"%d" % number + bytes(20_000)])
        first = await take(broker, subscription)
        assert first is not None
        partition = broker.partition(ANONYMOUS, "orders", 0)
        start = await partition.delete_before(10)
        assert start > 0
        subscription.forget_blocks()
        clock.advance(0.1)
        values = await take_values(broker, subscription)
        assert [(value or b"").rstrip(b"\0") for value in values] == [b"%d" % number for number in range(start, 20)]
        assert subscription.in_flight == 0


async def test_a_qos_that_does_not_exist_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="QoS 3"):
        await subscribe(broker, qos=3)


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
    await broker.delete_topic(ANONYMOUS, "orders")
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
        broker.subscriptions.give_back(subscription, [(delivery.tag, delivery.deliveries)])
        assert not ack(broker, subscription, delivery.tag)
    assert await take_values(broker, subscription) == [b"1", b"2"]


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
        broker.subscriptions.give_back(subscription, [(done.tag, 1), *given], first_counts=True)
    await durable(broker)
    [letter] = await broker.dead_letters.letters(ANONYMOUS, "orders", 10)
    assert (letter.value, letter.attempts) == (b"poison", 3)
    assert letter.reason == "its reader was gone after 3 deliveries"
    assert await take_values(broker, subscription) == [b"3"]


async def test_what_is_given_up_makes_room_and_readers_are_told(tmp_path: Path, clock: ManualClock) -> None:
    policy = DeliveryPolicy(in_flight_max=1, deliveries_max=1)
    async with a_broker(tmp_path / "d", clock, policy) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"1", b"2"])
        assert await take(broker, subscription) is not None
        assert await take(broker, subscription) is None
        told: list[int] = []
        subscription.watch(lambda: told.append(subscription.in_flight))
        clock.advance(1)
        broker.subscriptions.sweep()
        assert told[-1] == 0
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


async def test_a_watched_subscription_is_never_idle(broker: Broker, clock: ManualClock) -> None:
    subscription = await subscribe(broker)
    stop = subscription.watch(lambda: None)
    clock.advance(POLICY.idle_ms_max / 1000 + 1)
    await broker.subscriptions.end_idle()
    assert not subscription.deleted
    stop()
    clock.advance(POLICY.idle_ms_max / 1000 + 1)
    await broker.subscriptions.end_idle()
    assert subscription.deleted


async def test_what_another_reader_has_meanwhile_is_not_given_back(broker: Broker, clock: ManualClock) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"1"])
    first = await take(broker, subscription)
    clock.advance(0.1)
    second = await take(broker, subscription)
    assert first is not None
    assert second is not None
    assert (first.deliveries, second.deliveries) == (1, 2)
    broker.subscriptions.give_back(subscription, [(first.tag, first.deliveries)])
    assert await take(broker, subscription) is None
    assert ack(broker, subscription, second.tag)
