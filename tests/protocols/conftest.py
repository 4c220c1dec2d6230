"""A real broker over a real log, on a clock and a disk that a test can bend; the protocols' own fixtures speak to it in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.api import Engine
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.engines import make_engine
from tests.open_access import OpenAccess


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def limits() -> BrokerLimits:
    return BrokerLimits()


@pytest.fixture
async def engine(tmp_path: Path, clock: ManualClock, disk: FaultyDisk) -> AsyncIterator[Engine]:
    engine = make_engine(tmp_path / "data", clock=clock, disk=disk)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
async def broker(engine: Engine, clock: ManualClock, limits: BrokerLimits) -> AsyncIterator[Broker]:
    broker = Broker(engine, clock=clock, limits=limits, access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()
