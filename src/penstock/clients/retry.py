"""How long to wait before trying again: exponential delays with jitter, bounded in number and in total time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from random import Random

from penstock.clock import Clock

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with jitter, bounded in attempts and in time. `attempts_max = 1` means no retry."""

    attempts_max: int = 10
    """Attempts, the first one included."""
    elapsed_s_max: float = 30.0
    """Time from the first attempt after which no other is made."""
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
    """One thing that is tried again and again: how often and for how long by now, and whether once more is allowed."""

    __slots__ = ("_attempts_max", "_clock", "_delays_s", "_elapsed_s_max", "_sleep", "_started_s", "count")

    def __init__(
        self, policy: RetryPolicy, *, clock: Clock, random: Random, sleep: Sleep, attempts_max: int | None = None
    ) -> None:
        """`attempts_max` is that of the policy where it is not given."""
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

    async def another(self) -> bool:
        """The last one failed: wait for the next, or say that there is none."""
        delay_s = next(self._delays_s, None)
        if self.count >= self._attempts_max or delay_s is None or self.elapsed_s + delay_s > self._elapsed_s_max:
            return False
        await self._sleep(delay_s)
        self.count += 1
        return True


NO_RETRY = RetryPolicy(attempts_max=1)
