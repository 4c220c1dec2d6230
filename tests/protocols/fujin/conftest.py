"""A Fujin service over a real broker and a real log, spoken to in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.protocols.fujin.server.settings import FujinSettings
from penstock.protocols.fujin.session import Fujin
from penstock.testing.clock import ManualClock
from tests.protocols.fujin.memory import Client, Timers

Connect = Callable[..., Client]


@pytest.fixture
def limits() -> BrokerLimits:
    return BrokerLimits(record_bytes_max=4 << 20)


@pytest.fixture
def timers(clock: ManualClock) -> Timers:
    return Timers(clock)


@pytest.fixture
async def connect(broker: Broker, timers: Timers) -> Connect:
    """A connection to a listener with these settings."""

    def connect(subject: str | None = None, **settings: Any) -> Client:
        return Client(Fujin(broker, settings=FujinSettings(**settings), after=timers.after), timers, subject)

    return connect


@pytest.fixture
async def client(connect: Connect) -> Client:
    return connect()
