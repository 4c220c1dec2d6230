"""A Felix listener over a real broker and a real log, spoken to in memory."""

from __future__ import annotations

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.protocols.felix.session import Felix
from penstock.testing.clock import ManualClock
from tests.protocols.felix.conversation import Peer, Talk


@pytest.fixture
def limits() -> BrokerLimits:
    return BrokerLimits(record_bytes_max=1 << 20)


@pytest.fixture
async def broker(broker: Broker) -> Broker:
    for topic in ("demo", "t1/demo"):
        await broker.topics.ensure(ANONYMOUS, topic)
    return broker


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
