from __future__ import annotations

from random import Random

from penstock.clients.retry import NO_RETRY, Attempts, RetryPolicy
from penstock.testing.clock import ManualClock


def test_delays_double_up_to_their_bound_and_stay_within_their_jitter() -> None:
    policy = RetryPolicy(attempts_max=8, delay_s_first=0.1, delay_s_max=1.0)
    full = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]
    delays = list(policy.delays_s(Random(7)))
    assert len(delays) == len(full)
    assert all(limit / 2 <= delay <= limit for delay, limit in zip(delays, full, strict=True))


def test_the_same_seed_gives_the_same_delays_and_another_seed_others() -> None:
    policy = RetryPolicy()
    assert list(policy.delays_s(Random(1))) == list(policy.delays_s(Random(1)))
    assert list(policy.delays_s(Random(1))) != list(policy.delays_s(Random(2)))


def test_without_retry_there_is_no_second_attempt() -> None:
    assert list(NO_RETRY.delays_s(Random(1))) == []


def attempts(policy: RetryPolicy, *, attempts_max: int | None = None) -> Attempts:
    clock = ManualClock()

    async def sleep(delay_s: float) -> None:
        clock.advance(delay_s)

    return Attempts(policy, clock=clock, random=Random(1), sleep=sleep, attempts_max=attempts_max)


async def test_attempts_end_with_their_number() -> None:
    trying = attempts(RetryPolicy(attempts_max=3))
    assert [await trying.another() for _ in range(3)] == [True, True, False]
    assert trying.count == 3
    assert 0.075 <= trying.elapsed_s <= 0.15


async def test_attempts_end_with_their_time() -> None:
    trying = attempts(RetryPolicy(elapsed_s_max=0.3))
    while await trying.another():
        pass
    assert 2 <= trying.count <= 5
    assert trying.elapsed_s <= 0.3


async def test_a_caller_may_want_fewer() -> None:
    assert not await attempts(RetryPolicy(), attempts_max=1).another()
