"""Dividing a log into shards: what was in one partition goes where it belongs, whole, however often it is begun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries import shards
from penstock.broker.deliveries.shards import NUMBERS_PER_SHARD, SUBSCRIPTIONS_TOPIC, shard_of_number, shard_of_topic
from penstock.broker.limits import BrokerLimits
from penstock.broker.table import appended_together
from penstock.errors import CorruptBlock, InvalidRequest, NotWritten
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog
from tests.broker.producing import produce
from tests.broker.subscribing import ack, subscribe, take, take_values
from tests.open_access import OpenAccess

SHARDS = 4
TOPICS = [f"t{number}" for number in range(8)]


class Cluster:
    """Brokers on one log, which begins as that of one node."""

    def __init__(self, clock: ManualClock, seed: int) -> None:
        self.log = SharedLog()
        self._clock = clock
        self._seed = seed
        self._running: list[tuple[Broker, SharedEngine]] = []

    def share(self, count: int | None) -> None:
        self.log.elects, self.log.shards = count is not None, count

    async def add(self, *, announced: bool = True) -> Broker:
        self._seed += 1
        engine = SharedEngine(self.log, clock=self._clock, seed=self._seed)
        broker = Broker(engine, clock=self._clock, limits=BrokerLimits(), access=OpenAccess())
        await engine.start()
        try:
            await broker.start()
        except BaseException:
            await broker.close()
            await engine.close()
            raise
        if announced:
            engine.announce({"cluster": "here"})
        self._running.append((broker, engine))
        return broker

    async def add_alone(self) -> Broker:
        """Add one that owns all shards."""
        broker = await self.add()
        await until(lambda: len(set(broker.subscriptions.owned)) == SHARDS)
        return broker

    async def stop(self) -> None:
        while self._running:
            broker, engine = self._running.pop()
            await broker.close()
            await engine.close()


@pytest.fixture(params=range(3), ids="seed {}".format)
async def cluster(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[Cluster]:
    cluster = Cluster(clock, 10 * request.param)
    yield cluster
    await cluster.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def fill(broker: Broker) -> dict[str, int]:
    """Make subscriptions, with a name and without, that have acknowledged the first of two records; returns those without by topic."""
    numbers = {}
    for topic in TOPICS:
        await broker.topics.create(ANONYMOUS, topic, TopicConfig())
        named, numbered = await subscribe(broker, topic, name="shop"), await subscribe(broker, topic)
        await produce(broker, topic, [b"done", b"left"])
        for each in (named, numbered):
            done = await take(broker, each)
            assert done is not None
            assert ack(broker, each, done.tag)
        numbers[topic] = numbered.id
    return numbers


def owner_of(brokers: list[Broker], shard: int) -> Broker:
    [owner] = [broker for broker in brokers if broker.subscriptions.owns(shard)]
    return owner


async def check(brokers: list[Broker], numbers: dict[str, int]) -> None:
    await until(lambda: sum(len(set(broker.subscriptions.owned)) for broker in brokers) == SHARDS)
    for topic in TOPICS:
        named = owner_of(brokers, shard_of_topic(topic, SHARDS))
        found = named.subscriptions.find_named(topic, "shop")
        assert found is not None
        assert await take_values(named, found) == [b"left"]
        first = owner_of(brokers, 0)
        numbered = first.subscriptions.find(numbers[topic])
        assert numbered is not None
        assert await take_values(first, numbered) == [b"left"]


async def test_the_log_of_one_node_is_divided_among_several_and_read_by_one_again(cluster: Cluster) -> None:
    numbers = await fill(await cluster.add())
    await cluster.stop()
    cluster.share(SHARDS)
    await check([await cluster.add(), await cluster.add()], numbers)
    await cluster.stop()
    cluster.share(None)
    alone = await cluster.add()
    assert len(alone.subscriptions) == 2 * len(TOPICS)
    for topic in TOPICS:
        found = alone.subscriptions.find_named(topic, "shop")
        assert found is not None
        assert await take_values(alone, found) == []


async def test_it_is_completed_by_whoever_leads_next(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = await fill(await cluster.add())
    await cluster.stop()
    cluster.share(SHARDS)
    moved = 0

    async def break_off(*given: object) -> None:
        nonlocal moved
        moved += 1
        if moved == 2:
            raise NotWritten("the node was killed here")
        await appended_together(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(shards, "appended_together", break_off)
        with pytest.raises(NotWritten):
            await cluster.add()
    await check([await cluster.add(), await cluster.add()], numbers)


async def test_a_subscription_whose_topic_its_new_owner_has_not_heard_of_is_kept(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.share(SHARDS)
    one, two = await cluster.add_alone(), await cluster.add(announced=False)
    engine = two._engine
    assert isinstance(engine, SharedEngine)
    monkeypatch.setattr(engine, "_turn_soon", lambda: None)  # it learns what it asks for
    for topic in TOPICS:
        await one.topics.create(ANONYMOUS, topic, TopicConfig())
        await subscribe(one, topic, name="shop")
    assert not two.topics.exists(TOPICS[0])
    engine.announce({"cluster": "here"})
    await until(lambda: len(set(two.subscriptions.owned)) == SHARDS // 2)
    monkeypatch.undo()
    engine._turn_soon()
    await until(lambda: len(one.subscriptions) + len(two.subscriptions) == len(TOPICS))


async def test_a_shard_that_cannot_be_loaded_holds_up_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.share(SHARDS)
    load = shards.Shard.load

    async def load_most(shard: shards.Shard) -> None:
        if shard.number == 1:
            raise CorruptBlock("a test")
        await load(shard)

    with monkeypatch.context() as patched:
        patched.setattr(shards.Shard, "load", load_most)
        broker = await cluster.add()
        async with asyncio.timeout(20):
            await until(lambda: set(broker.subscriptions.owned) == {0, 2, 3})
            await until(lambda: "shards" in broker.background.failing)
    async with asyncio.timeout(20):
        await until(lambda: len(broker.subscriptions.owned) == SHARDS)


async def test_the_number_of_shards_stays_as_it_is(cluster: Cluster) -> None:
    cluster.share(SHARDS)
    await cluster.add()
    await cluster.stop()
    cluster.share(SHARDS + 1)
    with pytest.raises(InvalidRequest, match=r"cluster\.shards is 5, and the log is divided into 4: set that number"):
        await cluster.add()


async def test_new_numbers_tell_the_shard_and_are_never_given_twice(cluster: Cluster) -> None:
    cluster.share(SHARDS)
    given: set[int] = set()
    for _ in range(2):
        broker = await cluster.add_alone()
        for topic in TOPICS:
            number = (await subscribe(broker, topic)).id
            assert shard_of_number(number, SHARDS) == shard_of_topic(topic, SHARDS) == number // NUMBERS_PER_SHARD
            assert number not in given
            given.add(number)
        await cluster.stop()
    broker = await cluster.add_alone()
    assert len(broker.subscriptions) == len(given)
    assert broker._engine.topic(SUBSCRIPTIONS_TOPIC).config.partitions == SHARDS


async def test_a_node_that_others_may_take_for_gone_delivers_nothing_until_they_hear_of_it(
    cluster: Cluster, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.share(SHARDS)
    broker = await cluster.add_alone()
    subscription = await subscribe(broker, "orders")
    await produce(broker, "orders", [b"one"])
    is_heard, woken = False, asyncio.Event()
    monkeypatch.setattr(SharedEngine, "is_heard", property(lambda _: is_heard))
    subscription.watch(woken.set)
    woken.clear()
    await broker.subscriptions._sweep_step()
    assert (await take(broker, subscription), woken.is_set()) == (None, False)
    is_heard = True
    await broker.subscriptions._sweep_step()
    assert woken.is_set()
    assert await take_values(broker, subscription) == [b"one"]


def test_the_shard_of_a_topic_is_the_same_in_every_release() -> None:
    assert [shard_of_topic(topic, 16) for topic in ("orders", "t1/orders", "häuser")] == [14, 12, 5]
