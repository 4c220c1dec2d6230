"""What fails in one subscription stays there: the others' acknowledgements are stored, and the loops continue."""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries import subscription_writer
from penstock.broker.deliveries.cursor import Row
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.limits import BrokerLimits
from penstock.errors import LimitExceeded, PenstockError, ServerError, TopicNotFound
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce
from tests.broker.subscribing import POLICY, a_broker, ack, durable, subscribe, take, take_values, write_dead_letters
from tests.log.embedded.storage import TimedDisk


@pytest.fixture
async def broker(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Broker]:
    async with a_broker(tmp_path / "data", clock) as broker:
        yield broker


async def exhaust(broker: Broker, subscription: Subscription, clock: ManualClock) -> None:
    """Refuse the next record until it has no delivery left."""
    for _ in range(subscription.policy.deliveries_max):
        delivery = await take(broker, subscription)
        assert delivery is not None
        assert broker.subscriptions.refuse(ANONYMOUS, subscription.topic, subscription, delivery.tag)
        clock.advance(10)


def crashed_copy(directory: Path, copy: Path) -> Path:
    shutil.copytree(directory, copy)
    (copy / "clean-shutdown").unlink(missing_ok=True)
    return copy


@pytest.mark.embedded
async def test_a_dead_letter_topic_that_cannot_be_created_holds_up_no_other_subscription(
    tmp_path: Path, clock: ManualClock
) -> None:
    limits = BrokerLimits(topics_max=2)
    async with a_broker(tmp_path / "d", clock, limits=limits) as broker:
        bad, good = await subscribe(broker, "a"), await subscribe(broker, "b")
        await produce(broker, "a", [b"poison"])
        await produce(broker, "b", [b"fine"])
        await exhaust(broker, bad, clock)
        await write_dead_letters(broker)
        assert await take_values(broker, good) == [b"fine"]
        await durable(broker)
        image = crashed_copy(tmp_path / "d", tmp_path / "image")
        assert broker.subscriptions.exhausted == 1
        assert broker.background.failing == {}
    async with a_broker(image, clock, limits=limits) as broker:
        again = broker.subscriptions.find(good.id)
        assert again is not None
        assert await take_values(broker, again) == []


async def test_records_that_wait_to_become_dead_letters_count_as_in_flight(tmp_path: Path, clock: ManualClock) -> None:
    policy = DeliveryPolicy(deliveries_max=1, in_flight_max=4)
    async with a_broker(tmp_path / "d", clock, policy, BrokerLimits(topics_max=1)) as broker:
        subscription = await subscribe(broker, "a")
        await produce(broker, "a", [b"v"] * 20)
        while (delivery := await take(broker, subscription)) is not None:
            broker.subscriptions.refuse(ANONYMOUS, "a", subscription, delivery.tag)
        assert subscription.exhausted == 4
        assert subscription.lag == 20


async def test_dead_letters_that_were_held_up_are_written_once_there_is_room_and_reading_resumes(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_writer, "DEAD_LETTER_RETRY_S", 0.0)
    policy = DeliveryPolicy(deliveries_max=1, in_flight_max=2)
    async with a_broker(tmp_path / "d", clock, policy, BrokerLimits(topics_max=2)) as broker:
        await broker.topics.ensure(ANONYMOUS, "in the way")
        subscription = await subscribe(broker, "a")
        await produce(broker, "a", [b"1", b"2", b"3"])
        for _ in range(2):
            await exhaust(broker, subscription, clock)
        assert await take(broker, subscription) is None
        await write_dead_letters(broker)
        resumed = asyncio.Event()
        subscription.watch(resumed.set)
        await broker.topics.delete(ANONYMOUS, "in the way")
        await resumed.wait()
        assert await take_values(broker, subscription) == [b"3"]
        assert [letter.value for letter in await broker.dead_letters.letters(ANONYMOUS, "a", 10)] == [b"1", b"2"]
        assert broker.subscriptions.exhausted == 0


async def test_a_record_that_cannot_be_read_holds_up_the_dead_letters_of_its_subscription_only(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_writer, "DEAD_LETTER_RETRY_S", 0.0)
    bad, good = await subscribe(broker, "a"), await subscribe(broker, "b")
    await produce(broker, "a", [b"1"])
    await produce(broker, "b", [b"2"])
    original = Subscription.record

    async def without_descriptors(self: Subscription, tag: int) -> Row | None:
        if self is bad:
            raise OSError(errno.EMFILE, "Too many open files")
        return await original(self, tag)

    monkeypatch.setattr(Subscription, "record", without_descriptors)
    for each in (bad, good):
        await exhaust(broker, each, clock)
    await write_dead_letters(broker)
    assert broker.background.failing == {"dead_letter_records": "OSError: [Errno 24] Too many open files"}
    assert [letter.value for letter in await broker.dead_letters.letters(ANONYMOUS, "b", 10)] == [b"2"]
    assert bad.exhausted == 1
    monkeypatch.setattr(Subscription, "record", original)
    await write_dead_letters(broker)
    assert [letter.value for letter in await broker.dead_letters.letters(ANONYMOUS, "a", 10)] == [b"1"]
    assert broker.background.failing == {}


@pytest.mark.dense
async def test_storing_acknowledgements_continues_after_an_unexpected_error(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    await take(broker, subscription)
    original = Subscription.stored
    monkeypatch.setattr(Subscription, "stored", lambda self, **_: 1 / 0)
    assert ack(broker, subscription, 1)
    with pytest.raises(ServerError, match="ZeroDivisionError"):
        await durable(broker)
    assert list(broker.background.failing) == ["subscription_states"]
    monkeypatch.setattr(Subscription, "stored", original)
    await durable(broker)
    # The answer to `durable` comes within the run; the run is over a moment later.
    await asyncio.sleep(0)
    assert broker.background.failing == {}
    assert broker.background.failures["subscription_states"] == 1


async def test_the_sweep_continues_after_an_unexpected_error(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    await take(broker, subscription)
    original = Subscription.expire_deliveries
    failed = asyncio.Event()

    def failing(self: Subscription, now_ms: int) -> None:
        failed.set()
        raise RuntimeError("bug")

    monkeypatch.setattr(Subscription, "expire_deliveries", failing)
    await failed.wait()
    monkeypatch.setattr(Subscription, "expire_deliveries", original)
    woken = asyncio.Event()
    subscription.watch(woken.set)
    clock.advance(10)
    await woken.wait()
    assert broker.background.failures["subscription_sweep"] >= 1


async def test_a_watcher_that_fails_keeps_the_news_from_no_other(broker: Broker) -> None:
    subscription = await subscribe(broker)
    told: list[str] = []
    subscription.watch(lambda: 1 / 0)  # type: ignore[arg-type]
    subscription.watch(lambda: told.append("second"))
    subscription.wake()
    assert told == ["second"]


@pytest.mark.dense
async def test_a_durability_callback_that_fails_keeps_the_answer_from_no_other(broker: Broker) -> None:
    subscription = await subscribe(broker)
    await produce(broker, "orders", [b"a"])
    await take(broker, subscription)
    assert ack(broker, subscription, 1)
    answered: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    broker.subscriptions.when_durable(lambda error: 1 / 0)  # type: ignore[arg-type]
    broker.subscriptions.when_durable(answered.set_result)
    assert await answered is None
    await durable(broker)


@pytest.mark.embedded
@pytest.mark.parametrize("awaited", [False, True])
async def test_an_acknowledgement_holds_the_loop_only_if_somebody_waits_for_it(
    tmp_path: Path, clock: ManualClock, awaited: bool
) -> None:
    disk = TimedDisk()
    async with a_broker(tmp_path / "d", clock, disk=disk) as broker:
        subscription = await subscribe(broker)
        await produce(broker, "orders", [b"a"])
        await take(broker, subscription)
        disk.threads.clear()
        assert ack(broker, subscription, 1)
        if awaited:
            broker.subscriptions.when_durable(lambda _: None)
        while not disk.threads:
            await asyncio.sleep(0)
        assert disk.threads == [threading.current_thread().name if awaited else "penstock-commit"]


@pytest.mark.embedded
async def test_a_topic_deleted_while_it_is_subscribed_to_leaves_no_subscription_of_that_name(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = FaultyDisk()
    async with a_broker(tmp_path / "d", clock, disk=disk) as broker:
        await broker.topics.ensure(ANONYMOUS, "t")
        with disk.fsync_held() as held:
            first = asyncio.create_task(produce(broker, "t", [b"1"]))
            await asyncio.to_thread(held.wait)
            subscribing = asyncio.create_task(subscribe(broker, "t", name="workers", start="earliest"))
            for _ in range(5):
                await asyncio.sleep(0)
            deleting = asyncio.create_task(broker.topics.delete(ANONYMOUS, "t"))
            for _ in range(5):
                await asyncio.sleep(0)
        results = await asyncio.gather(first, subscribing, deleting, return_exceptions=True)
        assert isinstance(results[1], TopicNotFound)
        await broker.topics.ensure(ANONYMOUS, "t")
        subscription = await subscribe(broker, "t", name="workers", start="earliest")
        await produce(broker, "t", [b"new"])
        assert await take_values(broker, subscription) == [b"new"]


async def test_topics_that_are_being_created_count_towards_the_limit(tmp_path: Path, clock: ManualClock) -> None:
    async with a_broker(tmp_path / "d", clock, POLICY, BrokerLimits(topics_max=2)) as broker:
        names = ["a", "b", "c", "d"]
        created = await asyncio.gather(
            *(broker.topics.ensure(ANONYMOUS, name) for name in names), return_exceptions=True
        )
        assert [type(each) for each in created].count(LimitExceeded) == 2
        assert len(broker.topics.names(ANONYMOUS)) == 2
