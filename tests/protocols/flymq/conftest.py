"""A FlyMQ service over a real broker and a real log, spoken to in memory."""

from __future__ import annotations

import pytest

from penstock.broker.broker import Broker
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.testing.clock import ManualClock
from tests.protocols.flymq.conversation import Conversation


@pytest.fixture
def node() -> Node:
    return Node("node-1", lambda: "192.0.2.9:9092")


@pytest.fixture
async def flymq(broker: Broker, clock: ManualClock, node: Node) -> FlyMQ:
    return FlyMQ(broker, clock=clock, node=node)


@pytest.fixture
async def talk(flymq: FlyMQ) -> Conversation:
    return Conversation(flymq)
