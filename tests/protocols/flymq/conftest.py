"""A FlyMQ service over a real broker and a real log, spoken to in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.access import OpenAccess
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.embedded import EmbeddedEngine
from penstock.protocols.flymq.operations import Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.testing.clock import ManualClock
from tests.protocols.flymq.conversation import Conversation


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(tmp_path: Path, clock: ManualClock) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(tmp_path / "data", clock=clock)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
async def broker(engine: EmbeddedEngine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
def node() -> Node:
    return Node("node-1", lambda: "192.0.2.9:9092")


@pytest.fixture
async def flymq(broker: Broker, clock: ManualClock, node: Node) -> FlyMQ:
    return FlyMQ(broker, clock=clock, node=node)


@pytest.fixture
async def talk(flymq: FlyMQ) -> Conversation:
    return Conversation(flymq)
