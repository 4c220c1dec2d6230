"""Failed logins make the next ones wait: longer with each failure, by user and by source address, in bounded memory.

The first few failures cost nothing, because people mistype. After that an attempt that comes too early is refused without looking at
its password, so that a flood costs a dictionary lookup each and not an argon2 each.

A user under attack must still get in. An address from which the user has logged in before is exempt from the user's delay (never
from its own), so guessing from elsewhere does not lock the user out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.limits import BrokerLimits
from penstock.clock import Clock
from penstock.names import NAME_BYTES_MAX
from penstock.units import network_of

TRACKED_MAX: Final = 10_000
"""Users and addresses with failures, each; the one that failed longest ago is forgotten first."""
DELAY_S_FIRST: Final = 0.25
FORGET_S: Final = 900.0


class _Failures(NamedTuple):
    failures: int
    last_s: float
    not_before_s: float


class Budget(NamedTuple):
    """How many attempts of one user or address may be checked together."""

    key: tuple[str, str]
    attempts_max: Callable[[], int]
    """As many as have to fail for the next to wait, and at least one."""


class Throttle:
    def __init__(self, clock: Clock, limits: BrokerLimits, *, tracked_max: int = TRACKED_MAX) -> None:
        self._clock = clock
        self._free_of_user = limits.login_failures_per_user_max
        self._free_of_address = limits.login_failures_per_address_max
        self._delay_s_max = limits.login_delay_s_max
        self._tracked_max = tracked_max
        self._users: OrderedDict[str, _Failures] = OrderedDict()
        self._sources: OrderedDict[str, _Failures] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()

    def wait_s(self, user: str | None, address: str) -> float:
        """Return how long until credentials of this user from this address are checked; 0 for now.

        The user is None if a secret comes without a name, as an API key does: then the address alone counts.
        """
        source = source_of(address)
        wait_s = self._left_s(self._sources.get(source))
        if user is None or (_bounded(user), source) in self._known:
            return wait_s
        return max(wait_s, self._left_s(self._users.get(_bounded(user))))

    def failed(self, user: str | None, address: str) -> float:
        """Count a failure; returns how long the next attempt has to wait."""
        if user is not None:
            self._count(self._users, _bounded(user), self._free_of_user)
        self._count(self._sources, source_of(address), self._free_of_address)
        return self.wait_s(user, address)

    def user_budget(self, user: str) -> Budget:
        name = _bounded(user)
        return Budget(("user", name), lambda: self._left_free(self._users.get(name), self._free_of_user))

    def source_budget(self, address: str) -> Budget:
        source = source_of(address)
        return Budget(("source", source), lambda: self._left_free(self._sources.get(source), self._free_of_address))

    def succeeded(self, user: str, address: str) -> None:
        """The user's failures are forgiven; those of the address are not, or an account of one's own would buy more guesses."""
        user = _bounded(user)
        self._users.pop(user, None)
        key = (user, source_of(address))
        self._known[key] = None
        self._known.move_to_end(key)
        if len(self._known) > self._tracked_max:
            self._known.popitem(last=False)

    def forget(self, user: str) -> None:
        """The user is gone or has a new password: no address is known for it any more."""
        user = _bounded(user)
        self._users.pop(user, None)
        for key in [key for key in self._known if key[0] == user]:
            del self._known[key]

    def _left_free(self, failures: _Failures | None, free: int) -> int:
        counted = 0 if failures is None or self._is_old(failures) else failures.failures
        return max(1, free + 1 - counted)

    def _is_old(self, failures: _Failures) -> bool:
        return self._clock.monotonic() - failures.last_s > FORGET_S

    def _left_s(self, failures: _Failures | None) -> float:
        return 0.0 if failures is None else max(0.0, failures.not_before_s - self._clock.monotonic())

    def _count(self, tracked: OrderedDict[str, _Failures], name: str, free: int) -> None:
        now_s = self._clock.monotonic()
        before = tracked.pop(name, None)
        count = 1 if before is None or self._is_old(before) else before.failures + 1
        beyond = count - free
        # The exponent is bounded where the delay has reached its maximum long since.
        delay_s = min(self._delay_s_max, DELAY_S_FIRST * 2 ** min(beyond - 1, 16)) if beyond > 0 else 0.0
        tracked[name] = _Failures(count, now_s, now_s + delay_s)
        if len(tracked) > self._tracked_max:
            tracked.popitem(last=False)


def _bounded(user: str) -> str:
    """Names can be tried that are longer than any user's; what is kept of them must not be."""
    return user[:NAME_BYTES_MAX]


def source_of(address: str) -> str:
    """The host of a `host:port`; of an IPv6 address only its network."""
    host = address.rpartition(":")[0].strip("[]") if ":" in address else address
    return network_of(host)
