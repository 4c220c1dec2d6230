"""The rules that every login follows, whatever it presents: a password, the token of a tenant, an API key.

1. A secret that the broker made of 256 random bits is looked up first and accepted whatever failed before: nobody guesses one, so
   failures of others lock no holder of one out.
2. An attempt that comes too soon after failures (`throttle`) is refused without a look at what it presents. Such attempts are audited by
   address, not by the names that they claim.
3. What people chose is compared. A failure is audited, and counts for the name that it claims and for its address.

Checking a password takes long enough for others to arrive. At most as many are checked at a time as could fail before the first delay; the
rest wait for their turn, and each looks at the throttle when its turn comes. Asking in parallel gains no guesses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypeVar
from weakref import WeakValueDictionary

from penstock.broker.access.audit import Audit
from penstock.broker.access.checks import Principal
from penstock.broker.access.throttle import Budget, Throttle
from penstock.errors import AuthenticationFailed, LimitExceeded

HOLD_S_MAX: Final = 1.0
"""A refusal is held back for as long as the next attempt has to wait, up to this: one connection then guesses about once a second."""

_Proof = TypeVar("_Proof")


@dataclass(slots=True)
class LoginStats:
    succeeded: int = 0
    failed: int = 0
    throttled: int = 0
    """Refused without a look at the credentials: too soon after failures, or too many at once."""


class _Line:
    """Attempts of one name or address: those that are being checked, and those that wait."""

    __slots__ = ("__weakref__", "ended", "in_flight", "lock")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.ended = asyncio.Event()
        self.in_flight = 0


class Logins:
    def __init__(
        self,
        throttle: Throttle,
        audit: Audit,
        attempts_max: int,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """At most `attempts_max` attempts with a password are in flight, those that wait for their turn among them."""
        self.stats = LoginStats()
        self._throttle = throttle
        self._audit = audit
        self._sleep = sleep
        self._attempts = 0
        self._attempts_max = attempts_max
        self._lines: WeakValueDictionary[tuple[str, str], _Line] = WeakValueDictionary()

    def check(self, name: str | None, address: str) -> None:
        """Raise AuthenticationFailed if it is too soon. The name is None if the credentials come without one."""
        if wait_s := self._throttle.wait_s(name, address):
            self.stats.throttled += 1
            self._audit.note_throttled(address)
            raise AuthenticationFailed(f"too many failed attempts: try again in {wait_s:.1f} s")

    def failed(self, claimed: Principal, name: str | None) -> None:
        """Count and audit a failure of someone who claims to be a principal."""
        self.stats.failed += 1
        self._throttle.failed(name, claimed.address)
        self._audit.note_refusal(claimed, "auth.failure", claimed.name, "login", "failure")

    def succeeded(self, principal: Principal, name: str | None) -> None:
        self.stats.succeeded += 1
        if name is not None:
            self._throttle.succeeded(name, principal.address)
        self._audit.note_login(principal)

    def forget(self, name: str) -> None:
        """Drop what is known of a user that is gone or has a new password."""
        self._throttle.forget(name)

    async def prove(self, name: str, address: str, verify: Callable[[], Awaitable[_Proof | None]]) -> _Proof | None:
        """Return what `verify` returns, or None after counting a failure if that is None; hold a refusal back for a while.

        Raises AuthenticationFailed if it is too soon, and LimitExceeded if too many log in at once.
        """
        try:
            proof = await self._proof(name, address, verify)
        except AuthenticationFailed:
            await self._hold(name, address)
            raise
        except LimitExceeded:
            self.stats.throttled += 1
            await self._sleep(HOLD_S_MAX)
            raise
        if proof is None:
            await self._hold(name, address)
        return proof

    async def _proof(self, name: str, address: str, verify: Callable[[], Awaitable[_Proof | None]]) -> _Proof | None:
        if self._attempts >= self._attempts_max:
            raise LimitExceeded(
                f"{self._attempts} logins at once, the most there may be: try again in a moment, or raise limits.logins_in_flight_max"
            )
        self._attempts += 1
        try:
            source, user = self._throttle.source_budget(address), self._throttle.user_budget(name)
            async with self._turn(source), self._turn(user):
                self.check(name, address)
                proof = await verify()
                if proof is None:
                    self.failed(Principal(name, address=address), name)
                return proof
        finally:
            self._attempts -= 1

    @asynccontextmanager
    async def _turn(self, budget: Budget) -> AsyncIterator[None]:
        """Wait until one more attempt may fail before the next has to wait. Only the first of a line waits for others to end."""
        line = self._lines.setdefault(budget.key, _Line())
        async with line.lock:
            while line.in_flight >= budget.attempts_max():
                line.ended.clear()
                await line.ended.wait()
            line.in_flight += 1
        try:
            yield
        finally:
            line.in_flight -= 1
            line.ended.set()

    async def _hold(self, name: str, address: str) -> None:
        if wait_s := self._throttle.wait_s(name, address):
            await self._sleep(min(wait_s, HOLD_S_MAX))
