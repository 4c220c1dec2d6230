"""Records for readers to find, and how many of them are under way."""

from __future__ import annotations

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from tests.broker.producing import produce


async def make(broker: Broker, topic: str, values: list[bytes]) -> None:
    await broker.topics.ensure(ANONYMOUS, topic)
    await produce(broker, topic, values)


def in_flight(broker: Broker) -> int:
    subscription = broker.subscriptions.find(1)
    assert subscription is not None
    return subscription.in_flight
