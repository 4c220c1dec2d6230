"""Power cuts that take the tail of topics without `fsync`: every record that is in the log in the end was seen by every reader."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.subscription import Subscription
from penstock.broker.limits import BrokerLimits
from penstock.errors import NotWritten, OutcomeUnknown, ShuttingDown
from penstock.log.api import Durability, TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.clock import ManualClock
from penstock.testing.powercut import PowerCutDisk
from tests.broker.producing import produce
from tests.broker.subscribing import ack, durable, take
from tests.crash.test_power_cut import close_without_power
from tests.open_access import OpenAccess

SEEDS = 20
CUTS = 2
TURNS = 12
PARTITIONS = 2
LOSS = 0.8
OPTIONS = EngineOptions.model_construct(
    journal_bytes=1 << 20, checkpoint_bytes=1 << 19, reserve_bytes=0, maintenance_interval_s=3600
)
POLICY = DeliveryPolicy(deliveries_max=1000, in_flight_max=1000)


class Seen(NamedTuple):
    partition: int
    offset: int
    value: bytes | None


class Readers:
    """A consumer group and a subscription, and everything they were given."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._number = 0
        self.by_group: set[Seen] = set()
        self.by_subscription: set[Seen] = set()

    async def turn(self, broker: Broker) -> None:
        await self.produce(broker)
        if self._chance.random() < 0.5:
            await self.consume(broker)
        if self._chance.random() < 0.5:
            await self.take_all(broker)

    async def produce(self, broker: Broker) -> None:
        for _ in range(self._chance.randint(1, 4)):
            self._number += 1
            value = b"%d " % self._number + bytes(self._chance.randint(0, 1500))
            await produce(broker, "loose", [value], partition=self._chance.randrange(PARTITIONS))

    async def consume(self, broker: Broker) -> None:
        """Read what the group has not read, and commit it."""
        for index in range(PARTITIONS):
            offset = await broker.groups.start_position(ANONYMOUS, "loose", "g", index, "committed")
            partition = broker.records.partition(ANONYMOUS, "loose", index)
            while offset < partition.committed_end:
                for block in await partition.read(offset):
                    at = block.index_of(offset)
                    self.by_group |= set(map(Seen, [index] * block.count, block.offsets(at), block.values(at)))
                    offset = block.next_offset
            await broker.groups.commit(ANONYMOUS, "loose", "g", index, offset)

    async def take_all(self, broker: Broker) -> None:
        """Take what the subscription has, and acknowledge most of it."""
        subscription = await self.subscription(broker)
        while (delivery := await take(broker, subscription)) is not None:
            self.by_subscription.add(Seen(delivery.partition, delivery.offset, delivery.value))
            if self._chance.random() < 0.8:
                assert ack(broker, subscription, delivery.tag)
        await durable(broker)

    async def subscription(self, broker: Broker) -> Subscription:
        return await broker.subscriptions.subscribe(ANONYMOUS, "loose", 2, name="s", start="earliest")


async def started(directory: Path, disk: PowerCutDisk | None = None) -> tuple[EmbeddedEngine, Broker]:
    clock = ManualClock()
    engine = EmbeddedEngine(directory, clock=clock, disk=disk, options=OPTIONS)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess(), deliveries=POLICY)
    await broker.start()
    return engine, broker


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_no_reader_skips_a_record_that_took_the_offset_of_a_lost_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    readers = Readers(chance)
    directory = tmp_path / "0"
    engine, broker = await started(directory)
    config = TopicConfig(partitions=PARTITIONS, durability=Durability("none"))
    await broker.topics.create(ANONYMOUS, "loose", config)
    await broker.close()
    await engine.close()
    for cut in range(CUTS):
        disk = PowerCutDisk(directory, cut_at=None)
        engine, broker = await started(directory, disk)
        for _ in range(TURNS):
            await readers.turn(broker)
        disk.cut()
        try:
            await broker.close()
        except (NotWritten, OutcomeUnknown, ShuttingDown):
            pass
        await close_without_power(engine)
        directory = tmp_path / str(cut + 1)
        disk.image(directory, chance, LOSS)
    engine, broker = await started(directory)
    await readers.produce(broker)
    await readers.consume(broker)
    await readers.take_all(broker)
    there = {
        Seen(index, offset, value)
        for index in range(PARTITIONS)
        for block in await engine.partition("loose", index).read(0, 1 << 30)
        for offset, value in zip(block.offsets(), block.values(), strict=True)
    }
    assert there <= readers.by_group
    assert there <= readers.by_subscription
    await broker.close()
    await engine.close()
