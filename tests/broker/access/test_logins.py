from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.broker.access.audit import Audit
from penstock.broker.access.logins import Logins
from penstock.broker.access.throttle import DELAY_S_FIRST, Throttle
from penstock.broker.limits import BrokerLimits
from penstock.errors import AuthenticationFailed, LimitExceeded
from penstock.log.api import Engine
from penstock.testing.clock import ManualClock
from penstock.workers import WorkerPool
from tests.open_access import OpenAccess

LIMITS = BrokerLimits()

HERE, THERE = "192.0.2.1:50000", "198.51.100.9:40000"


async def no_sleep(seconds: float) -> None:
    pass


@pytest.fixture
async def logins(engine: Engine, clock: ManualClock) -> AsyncIterator[Logins]:
    audit = Audit(engine, clock, BrokerLimits(), OpenAccess(), WorkerPool())
    await audit.start()
    yield Logins(Throttle(clock, LIMITS), audit, LIMITS.logins_in_flight_max, sleep=no_sleep)
    await audit.close()


class Guesses:
    """Passwords that are all wrong, each checked when the test says so."""

    def __init__(self) -> None:
        self.looked_at = 0
        self.answered = asyncio.Event()

    def __call__(self) -> Awaitable[str | None]:
        return self._verify()

    async def _verify(self) -> str | None:
        self.looked_at += 1
        await self.answered.wait()
        return None


def address_of(number: int) -> str:
    return f"10.0.0.{number}:1"


@pytest.mark.parametrize(
    ("name_of", "address", "looked_at"),
    [
        (lambda number: "ann", address_of, LIMITS.login_failures_per_user_max + 1),
        (lambda number: f"user-{number}", lambda number: HERE, LIMITS.login_failures_per_address_max + 1),
        (lambda number: "ann", lambda number: HERE, LIMITS.login_failures_per_user_max + 1),
    ],
    ids=["of one user", "from one address", "of one user from one address"],
)
async def test_guesses_in_parallel_are_checked_no_more_often_than_one_after_the_other(
    logins: Logins,
    clock: ManualClock,
    name_of: Callable[[int], str],
    address: Callable[[int], str],
    looked_at: int,
) -> None:
    guesses = Guesses()
    for expected in (looked_at, looked_at + 1):
        attempts = [asyncio.create_task(logins.prove(name_of(n), address(n), guesses)) for n in range(200)]
        for _ in range(20):
            await asyncio.sleep(0)
        guesses.answered.set()
        results = await asyncio.gather(*attempts, return_exceptions=True)
        assert guesses.looked_at == expected
        assert sum(isinstance(result, AuthenticationFailed) for result in results) == 200 - results.count(None)
        guesses.answered.clear()
        clock.advance(DELAY_S_FIRST)


async def test_many_logins_of_one_user_with_the_right_password_all_succeed(logins: Logins) -> None:
    async def right() -> str:
        await asyncio.sleep(0)
        return "proved"

    for _ in range(LIMITS.login_failures_per_user_max):
        assert await logins.prove("ann", HERE, wrong) is None
    results = await asyncio.gather(*(logins.prove("ann", HERE, right) for _ in range(100)))
    assert results == ["proved"] * 100


async def wrong() -> str | None:
    return None


async def test_an_attempt_that_is_cancelled_lets_the_next_have_its_turn(logins: Logins) -> None:
    for _ in range(LIMITS.login_failures_per_user_max):
        await logins.prove("ann", HERE, wrong)
    stuck = Guesses()
    first, second = (asyncio.create_task(logins.prove("ann", HERE, stuck)) for _ in range(2))
    while not stuck.looked_at:
        await asyncio.sleep(0)
    for task in (second, first):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert await asyncio.wait_for(logins.prove("ann", HERE, wrong), 30) is None


async def test_more_attempts_at_once_than_may_wait_are_refused(logins: Logins) -> None:
    guesses = Guesses()
    attempts = [asyncio.create_task(logins.prove("ann", HERE, guesses)) for _ in range(LIMITS.logins_in_flight_max)]
    await asyncio.sleep(0)
    with pytest.raises(LimitExceeded, match=f"{LIMITS.logins_in_flight_max} logins at once"):
        await logins.prove("bob", THERE, guesses)
    guesses.answered.set()
    await asyncio.gather(*attempts, return_exceptions=True)
    assert await logins.prove("bob", THERE, wrong) is None
