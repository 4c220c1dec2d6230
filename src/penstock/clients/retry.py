"""When to try again: exponential delays with jitter, bounded in number and time; and requests that are sent again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from penstock.clock import Clock
from penstock.errors import ConnectionLost, PenstockError, ShuttingDown, Unreachable

SUBMISSIONS_MAX = 4
"""How often one request is sent, or queued to be, before its caller gets the error of the lost connections."""

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, bounded in attempts and in time. `attempts_max = 1` means no retry."""

    attempts_max: int = 10
    """Attempts, the first one included; each tries all hosts of the address in turn."""
    elapsed_s_max: float = 30.0
    """Time from the first attempt after which no other is made, and no other host tried."""
    delay_s_first: float = 0.05
    """Delay before the second attempt; it doubles with each further one."""
    delay_s_max: float = 2.0
    """The longest delay between two attempts."""

    def delays_s(self, random: Random) -> Iterator[float]:
        """The waits between attempts: each between half and all of a doubling delay, so that clients do not return in step."""
        delay_s = self.delay_s_first
        for _ in range(self.attempts_max - 1):
            yield delay_s * (0.5 + random.random() / 2)
            delay_s = min(delay_s * 2, self.delay_s_max)


class Attempts:
    """The attempts at one action: their number, the time since the first, and whether another is allowed."""

    __slots__ = ("_attempts_max", "_clock", "_delays_s", "_elapsed_s_max", "_sleep", "_started_s", "count")

    def __init__(
        self, policy: RetryPolicy, attempts_max: int | None = None, *, clock: Clock, random: Random, sleep: Sleep
    ) -> None:
        """`attempts_max` is that of the policy if it is None."""
        self._attempts_max = policy.attempts_max if attempts_max is None else attempts_max
        self._elapsed_s_max = policy.elapsed_s_max
        self._delays_s = policy.delays_s(random)
        self._clock = clock
        self._sleep = sleep
        self._started_s = clock.monotonic()
        self.count = 1
        """The one under way included."""

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic() - self._started_s

    @property
    def in_time(self) -> bool:
        return self.elapsed_s <= self._elapsed_s_max

    async def another(self) -> bool:
        """Wait before the next attempt after a failure; return whether there is one."""
        delay_s = next(self._delays_s, None)
        if self.count >= self._attempts_max or delay_s is None or self.elapsed_s + delay_s > self._elapsed_s_max:
            return False
        await self._sleep(delay_s)
        self.count += 1
        return True


NewAttempts = Callable[[int | None], Attempts]
"""Begins the attempts at an action, with a maximum if a number is given."""

NO_RETRY = RetryPolicy(attempts_max=1)


async def resend(request: Callable[[], Awaitable[T]]) -> T:
    """Send a request again if the connection is lost or the broker stops before it replies; for requests that may be carried out twice.

    Raises that failure, and not Unreachable, if there is no connection to send it again on: the request was sent.
    """
    failure: PenstockError | None = None
    for _ in range(SUBMISSIONS_MAX):
        try:
            return await request()
        except Unreachable as unreachable:
            raise failure or unreachable from None
        except (ConnectionLost, ShuttingDown) as error:
            failure = error
    assert failure is not None
    raise failure
