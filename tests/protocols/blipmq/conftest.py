"""A BlipMQ service over a real broker and a real log, spoken to in memory."""

from __future__ import annotations

import pytest

from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.protocols.blipmq.session import BlipMQ
from penstock.testing.clock import ManualClock
from tests.protocols.blipmq.conversation import Conversation


@pytest.fixture
def limits() -> BrokerLimits:
    return BrokerLimits(record_bytes_max=1 << 20)


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


@pytest.fixture
async def other(blipmq: BlipMQ) -> Conversation:
    """Another client that has logged in."""
    other = Conversation(blipmq)
    await other.log_in()
    return other
