"""A real engine in a temporary directory, and a broker on it, under a clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.api import Engine
from penstock.testing.clock import ManualClock
from tests.broker.transaction_house import House
from tests.engines import make_engine
from tests.open_access import OpenAccess


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def engine(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Engine]:
    engine = make_engine(tmp_path / "data", clock=clock)
    await engine.start()
    yield engine
    await engine.close()


@pytest.fixture
async def broker(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
def house(tmp_path: Path, clock: ManualClock) -> House:
    return House(tmp_path / "data", clock)
