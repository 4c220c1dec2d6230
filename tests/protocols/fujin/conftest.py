"""A Fujin service over a real broker and a real log, spoken to in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.access import OpenAccess
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.log.embedded import EmbeddedEngine
from penstock.protocols.fujin.session import Fujin
from penstock.protocols.fujin.settings import FujinSettings
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.protocols.fujin.memory import Client, Timers

Connect = Callable[..., Client]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def timers(clock: ManualClock) -> Timers:
    return Timers(clock)


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
    broker = Broker(engine, clock=clock, limits=BrokerLimits(record_bytes_max=4 << 20), access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()


@pytest.fixture
async def connect(broker: Broker, timers: Timers) -> Connect:
    """A connection to a listener with these settings."""

    def connect(subject: str | None = None, **settings: Any) -> Client:
        return Client(Fujin(broker, settings=FujinSettings(**settings), after=timers.after), timers, subject)

    return connect


@pytest.fixture
async def client(connect: Connect) -> Client:
    return connect()
