"""How long to wait before trying again: exponential delays with jitter, bounded in number and in total time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to give up. `attempts_max = 1` tries once and never again."""

    attempts_max: int = 10
    elapsed_s_max: float = 30.0
    delay_s_first: float = 0.05
    delay_s_max: float = 2.0

    def delays_s(self, random: Random) -> Iterator[float]:
        """The waits between attempts: each between half and all of a doubling delay, so that clients do not return in step."""
        delay_s = self.delay_s_first
        for _ in range(self.attempts_max - 1):
            yield delay_s * (0.5 + random.random() / 2)
            delay_s = min(delay_s * 2, self.delay_s_max)


NO_RETRY = RetryPolicy(attempts_max=1)
