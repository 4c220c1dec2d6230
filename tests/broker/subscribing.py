"""A broker with subscriptions that are soon tired of waiting, and what their readers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.deliveries.cursor import NotInMemory
from penstock.broker.deliveries.policy import DeliveryPolicy
from penstock.broker.deliveries.subscription import QOS0_HEADERS, Delivery, Subscription
from penstock.broker.limits import BrokerLimits
from penstock.log.embedded import EngineOptions
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.engines import make_engine
from tests.open_access import OpenAccess

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
    engine = make_engine(directory, clock=clock, disk=disk, options=EngineOptions(tail_bytes_per_partition=tail_bytes))
    await engine.start()
    broker = Broker(engine, clock=clock, limits=limits or BrokerLimits(), access=OpenAccess(), deliveries=policy)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
        await engine.close()


async def subscribe(broker: Broker, topic: str = "orders", qos: int = 1, **more: object) -> Subscription:
    return await broker.subscriptions.subscribe(ANONYMOUS, topic, qos, **more)  # type: ignore[arg-type]


async def take(broker: Broker, subscription: Subscription, who: Principal = ANONYMOUS) -> Delivery | None:
    while True:
        taken = broker.subscriptions.take_many(who, subscription.topic, subscription, 1, 1)
        if not isinstance(taken, NotInMemory):
            return taken[0] if taken else None
        await broker.subscriptions.load(who, subscription.topic, subscription)


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
    broker.records.produce(ANONYMOUS, topic, -1, values, None, [QOS0_HEADERS] * len(values), done=placed.set_result)
    await placed


async def write_dead_letters(broker: Broker) -> None:
    """Write a batch of dead letters of every subscription that has some to write, as the background loop does."""
    for shard in broker.subscriptions._shards.values():
        await shard.writer.dead_letter_exhausted()
