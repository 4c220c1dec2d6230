"""A Felix listener over a real broker and a real log, spoken to in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.access import ANONYMOUS, OpenAccess
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.embedded import EmbeddedEngine
from penstock.protocols.felix.session import Felix
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.protocols.felix.conversation import Peer, Talk


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
    for topic in ("demo", "t1/demo"):
        await broker.ensure_topic(ANONYMOUS, topic)
    yield broker
    await broker.close()


@pytest.fixture
async def felix(broker: Broker, clock: ManualClock) -> Felix:
    return Felix(broker, clock=clock)


@pytest.fixture
async def peer(felix: Felix) -> Peer:
    return Peer(felix)


@pytest.fixture
async def talk(peer: Peer) -> Talk:
    """A stream on which nothing was said yet."""
    return peer.open()
