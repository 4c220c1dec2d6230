"""A broker with users, and conversations of those who have logged in."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.access.checks import SYSTEM, UNAUTHENTICATED
from penstock.broker.broker import Broker
from penstock.log.api import Engine, TopicConfig
from penstock.protocols.flymq.operations.access import (
    Auth,
    decode_authenticated,
)
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.server.dispatch import Node
from penstock.protocols.flymq.session import FlyMQ
from penstock.testing.clock import ManualClock
from tests.broker.accounts import broker_with_users, user
from tests.protocols.flymq.conversation import Conversation


@pytest.fixture
async def broker(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    broker = broker_with_users(engine, clock)
    await broker.start()
    await user(broker, "root", "admin")
    await user(broker, "bob", "consumer")
    await broker.topics.create(SYSTEM, "orders", TopicConfig())
    yield broker
    await broker.close()


@pytest.fixture
async def flymq(broker: Broker, clock: ManualClock, node: Node) -> FlyMQ:
    return FlyMQ(broker, clock=clock, node=node, principal=UNAUTHENTICATED)


@pytest.fixture
async def root(flymq: FlyMQ) -> Conversation:
    return await logged_in(flymq, "root")


async def logged_in(flymq: FlyMQ, name: str) -> Conversation:
    talk = Conversation(flymq)
    reply = await talk.ask(encode_request(Auth(name, name)))
    assert decode_authenticated(reply.payload)
    return talk
