"""Subscriptions over a log that lost its tail: they read what is written next, and old acknowledgements do not settle it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.shards import SUBSCRIPTIONS_TOPIC
from penstock.broker.deliveries.stored import TAG_GAP, StoredCursor, StoredSubscription, Unsettled
from penstock.broker.deliveries.subscription import Subscription
from penstock.log.api import Durability, TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce
from tests.broker.subscribing import a_broker, ack, durable, subscribe, take, take_values
from tests.engines import make_engine
from tests.log.embedded.storage import crash_image, cut_log, path_of
from tests.log.records import append

pytestmark = pytest.mark.embedded  # a power cut takes from its files


LOOSE = TopicConfig(durability=Durability("none"))
POLICY = DeliveryPolicy(backoff_ms=100, in_flight_max=100)


async def produce_one_by_one(broker: Broker, values: list[bytes], partition: int = 0) -> None:
    """A block each, so that the log can be cut between any two."""
    for value in values:
        await produce(broker, "orders", [value], partition=partition)


def found(broker: Broker, before: Subscription) -> Subscription:
    subscription = broker.subscriptions.find(before.id)
    assert subscription is not None
    return subscription


async def test_a_subscription_beyond_the_cut_continues_at_the_cut(tmp_path: Path) -> None:
    clock = ManualClock()
    async with a_broker(tmp_path / "data", clock, POLICY) as broker:
        await broker.topics.create(ANONYMOUS, "orders", LOOSE)
        subscription = await subscribe(broker)
        await produce_one_by_one(broker, [b"a", b"b", b"c", b"d"])
        assert await take_values(broker, subscription) == [b"a", b"b", b"c", b"d"]
        await durable(broker)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders", 2)
    with capture_logs() as lines:
        async with a_broker(image, clock, POLICY) as broker:
            await produce_one_by_one(broker, [b"x", b"y", b"z"])
            subscription = found(broker, subscription)
            assert subscription.lag == 3
            assert await take_values(broker, subscription) == [b"x", b"y", b"z"]
            assert broker.subscriptions.stats.truncated == 1
    [line] = [line for line in lines if line["event"] == "subscription_truncated"]
    assert (line["topic"], line["partition"], line["subscription"], line["read_to"], line["cut"]) == (
        "orders",
        0,
        subscription.id,
        4,
        2,
    )
    async with a_broker(image, clock, POLICY) as broker:
        assert await take_values(broker, found(broker, subscription)) == []
        assert broker.subscriptions.stats.truncated == 0


async def test_what_was_unsettled_is_delivered_again_up_to_the_cut_and_forgotten_beyond_it(tmp_path: Path) -> None:
    clock = ManualClock()
    async with a_broker(tmp_path / "data", clock, POLICY) as broker:
        await broker.topics.create(ANONYMOUS, "orders", LOOSE)
        subscription = await subscribe(broker)
        await produce_one_by_one(broker, [b"a", b"b", b"c", b"d", b"e"])
        tags = [delivery.tag for _ in range(5) if (delivery := await take(broker, subscription))]
        assert ack(broker, subscription, tags[1])
        await durable(broker)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders", 3)
    async with a_broker(image, clock, POLICY) as broker:
        await produce_one_by_one(broker, [b"x"])
        subscription = found(broker, subscription)
        assert subscription.lag == 3
        assert await take_values(broker, subscription) == [b"a", b"c", b"x"]


@pytest.mark.parametrize("stored", [True, False])
async def test_an_acknowledgement_of_a_lost_record_does_not_settle_another(tmp_path: Path, stored: bool) -> None:
    """Also if the deliveries were not stored: the acknowledgement of the first record is what stores them."""
    clock = ManualClock()
    async with a_broker(tmp_path / "data", clock, POLICY) as broker:
        await broker.topics.create(ANONYMOUS, "orders", LOOSE)
        subscription = await subscribe(broker)
        await produce_one_by_one(broker, [b"a", b"b", b"c"])
        old = [delivery.tag for _ in range(3) if (delivery := await take(broker, subscription))]
        assert old == [1, 2, 3]
        if stored:
            assert ack(broker, subscription, old[0])
            await durable(broker)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders", 1)
    seen = set(old)
    for turn in range(3):
        async with a_broker(image, clock, POLICY) as broker:
            await produce_one_by_one(broker, [b"x%d" % turn])
            subscription = found(broker, subscription)
            deliveries = [delivery for _ in range(turn + 3) if (delivery := await take(broker, subscription))]
            assert len(deliveries) == turn + (1 if stored else 2)
            assert not any(ack(broker, subscription, tag) for tag in seen)
            assert not any(subscription.is_settled(tag) for tag in seen)
            tags = {delivery.tag for delivery in deliveries}
            assert tags.isdisjoint(seen)
            seen |= tags
            image = crash_image(image, tmp_path / f"image-{turn}")


async def test_a_subscription_that_began_beyond_the_cut_reads_from_the_cut(tmp_path: Path) -> None:
    clock = ManualClock()
    async with a_broker(tmp_path / "data", clock, POLICY) as broker:
        await broker.topics.create(ANONYMOUS, "orders", LOOSE)
        await produce_one_by_one(broker, [b"a", b"b", b"c"])
        subscription = await subscribe(broker)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders", 1)
    async with a_broker(image, clock, POLICY) as broker:
        await produce_one_by_one(broker, [b"x", b"y", b"z"])
        assert await take_values(broker, found(broker, subscription)) == [b"x", b"y", b"z"]


async def test_each_partition_has_its_own_cut(tmp_path: Path) -> None:
    clock = ManualClock()
    async with a_broker(tmp_path / "data", clock, POLICY) as broker:
        await broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=2, durability=Durability("none")))
        subscription = await subscribe(broker)
        for partition in (0, 1):
            await produce_one_by_one(broker, [b"a", b"b", b"c"], partition)
        assert len(await take_values(broker, subscription)) == 6
        await durable(broker)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders", 1, partition=1)
    async with a_broker(image, clock, POLICY) as broker:
        for partition in (0, 1):
            await produce_one_by_one(broker, [b"x%d" % partition], partition)
        subscription = found(broker, subscription)
        deliveries = [delivery for _ in range(3) if (delivery := await take(broker, subscription))]
        assert sorted((each.partition, each.offset, each.value) for each in deliveries) == [
            (0, 3, b"x0"),
            (1, 1, b"x1"),
        ]
        assert [subscription.place(each.tag) for each in deliveries] == [
            (each.partition, each.offset) for each in deliveries
        ]


async def test_a_cursor_without_an_epoch_is_compared_with_the_end_of_the_log(tmp_path: Path) -> None:
    """As releases stored it that did not know epochs."""
    clock = ManualClock()
    async with a_broker(tmp_path / "data", clock, POLICY) as broker:
        await broker.topics.create(ANONYMOUS, "orders", LOOSE)
        subscription = await subscribe(broker)
        await produce_one_by_one(broker, [b"a", b"b"])
        image = crash_image(tmp_path / "data", tmp_path / "image")
    engine = make_engine(image, clock=clock)
    await engine.start()
    old = ["orders", engine.topics()["orders"].id, 1, [[0, 9, [[1, 1, 1], [5, 4, 1]]]]]
    table = engine.partition(SUBSCRIPTIONS_TOPIC, 0)
    await append(table, [msgspec.msgpack.encode(old)], [msgspec.msgpack.encode(subscription.id)])
    await engine.close()
    async with a_broker(image, clock, POLICY) as broker:
        await produce_one_by_one(broker, [b"x"])
        assert await take_values(broker, found(broker, subscription)) == [b"b", b"x"]


async def test_a_cursor_without_an_epoch_is_taken_as_it_is_if_no_log_was_cut(tmp_path: Path) -> None:
    clock = ManualClock()
    async with a_broker(tmp_path / "data", clock, POLICY) as broker:
        await broker.topics.create(ANONYMOUS, "orders", LOOSE)
        partition = broker.records.partition(ANONYMOUS, "orders", 0)
        cursor = StoredCursor(0, 9, (Unsettled(5, 4, 1),))
        stored = StoredSubscription("orders", "id", 1, (cursor,))
        assert stored.continued([partition]) == stored


class Full(FaultyDisk):
    """No space for subscriptions while `full` is set."""

    full = True

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if self.full and SUBSCRIPTIONS_TOPIC in str(path_of(fd)):
            raise OSError(28, "No space left on device")
        return super().pwrite(fd, data, position)


async def test_a_full_disk_keeps_no_subscription_beyond_the_cut_and_its_state_is_stored_later(tmp_path: Path) -> None:
    clock = ManualClock()
    async with a_broker(tmp_path / "data", clock, POLICY) as broker:
        await broker.topics.create(ANONYMOUS, "orders", LOOSE)
        subscription = await subscribe(broker)
        await produce_one_by_one(broker, [b"a", b"b"])
        assert await take_values(broker, subscription) == [b"a", b"b"]
        await durable(broker)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders", 1)
    disk = Full()
    async with a_broker(image, clock, POLICY, disk=disk) as broker:
        await produce_one_by_one(broker, [b"x"])
        assert found(broker, subscription).lag == 1
        disk.full = False
    async with a_broker(image, clock, POLICY) as broker:
        delivery = await take(broker, found(broker, subscription))
        assert delivery is not None
        assert (delivery.value, delivery.tag) == (b"x", 2 + TAG_GAP + 2)
