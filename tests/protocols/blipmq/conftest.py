"""A BlipMQ service over a real broker and a real log, spoken to in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.access import OpenAccess
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.embedded import EmbeddedEngine
from penstock.protocols.blipmq.session import BlipMQ
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.protocols.blipmq.conversation import Conversation


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
async def engine(tmp_path: Path, clock: ManualClock, disk: FaultyDisk) -> AsyncIterator[EmbeddedEngine]:
    engine = EmbeddedEngine(tmp_path / "data", clock=clock, disk=disk)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
async def broker(engine: EmbeddedEngine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(record_bytes_max=1 << 20), access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
async def blipmq(broker: Broker, clock: ManualClock) -> BlipMQ:
    return BlipMQ(broker, clock=clock, api_keys=["dev-key", "bench-key"])


@pytest.fixture
async def stranger(blipmq: BlipMQ) -> Conversation:
    """Nothing was said yet."""
    return Conversation(blipmq)


@pytest.fixture
async def talk(blipmq: BlipMQ) -> Conversation:
    """HELLO and AUTH are over."""
    talk = Conversation(blipmq)
    await talk.log_in()
    return talk
