"""Users for tests: a broker that asks who is there, with passwords that cost next to nothing to check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from penstock.broker.access.checks import SYSTEM, Principal
from penstock.broker.access.passwords import Argon2Cost
from penstock.broker.access.policy import AccessSettings
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import NotSupported
from penstock.log.api import Engine
from penstock.testing.clock import ManualClock

CHEAP = Argon2Cost(passes=1, memory_kib=8)


def broker_with_users(
    engine: Engine,
    clock: ManualClock,
    *,
    allow_anonymous: bool = False,
    default_public: bool = False,
    limits: BrokerLimits | None = None,
) -> Broker:
    settings = AccessSettings(
        allow_anonymous=allow_anonymous, default_public=default_public, password_cost=CHEAP, node="node-1"
    )
    return Broker(engine, clock=clock, limits=limits or BrokerLimits(), access_settings=settings)


async def user(broker: Broker, name: str, *roles: str) -> Principal:
    """A user with a password equal to its name."""
    await broker.users.create_user(SYSTEM, name, name, roles)
    return Principal(name, address="192.0.2.7:5000")


async def of_files(operation: Callable[..., Awaitable[object]], *given: object) -> None:
    """An operation that a log without files refuses, but only after the access check."""
    with suppress(NotSupported):
        await operation(*given)
