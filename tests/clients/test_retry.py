from __future__ import annotations

from random import Random

from penstock.clients.retry import NO_RETRY, RetryPolicy


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
