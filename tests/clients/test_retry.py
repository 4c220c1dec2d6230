from __future__ import annotations

from random import Random

import pytest

from penstock.clients.retry import NO_RETRY, SUBMISSIONS_MAX, Attempts, RetryPolicy, resend
from penstock.errors import ConnectionLost, PenstockError, ShuttingDown, Unreachable
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


class Request:
    """Fails in the ways it is given, one after the other, then succeeds."""

    def __init__(self, *failures: PenstockError) -> None:
        self._failures = list(failures)
        self.sent = 0

    async def __call__(self) -> str:
        self.sent += 1
        if self._failures:
            raise self._failures.pop(0)
        return "reply"


async def test_a_request_is_sent_again_after_a_lost_connection_a_few_times() -> None:
    assert await resend(Request(ConnectionLost("1"), ShuttingDown("2"), ConnectionLost("3"))) == "reply"
    request = Request(*(ConnectionLost(str(number)) for number in range(9)))
    with pytest.raises(ConnectionLost, match=str(SUBMISSIONS_MAX - 1)):
        await resend(request)
    assert request.sent == SUBMISSIONS_MAX


async def test_a_request_that_was_sent_and_cannot_be_sent_again_was_lost() -> None:
    with pytest.raises(ConnectionLost, match="gone"):
        await resend(Request(ConnectionLost("gone"), Unreachable("nobody listens")))


async def test_a_request_that_was_never_sent_is_unreachable() -> None:
    request = Request(Unreachable("nobody listens"))
    with pytest.raises(Unreachable):
        await resend(request)
    assert request.sent == 1
