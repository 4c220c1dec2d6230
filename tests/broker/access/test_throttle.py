from __future__ import annotations

import pytest

from penstock.broker.access.throttle import DELAY_S_FIRST, FORGET_S, Throttle, source_of
from penstock.broker.limits import BrokerLimits
from penstock.testing.clock import ManualClock

LIMITS = BrokerLimits()

HOME, AWAY = "192.0.2.1:50000", "198.51.100.9:40000"


def test_the_first_failures_cost_nothing_and_the_next_ever_more() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, LIMITS)
    waits = []
    for _ in range(LIMITS.login_failures_per_user_max + 12):
        waits.append(throttle.failed("ann", HOME))
        clock.advance(waits[-1])
    free, growing = waits[: LIMITS.login_failures_per_user_max], waits[LIMITS.login_failures_per_user_max :]
    assert free == [0] * LIMITS.login_failures_per_user_max
    assert growing[:4] == [DELAY_S_FIRST, DELAY_S_FIRST * 2, DELAY_S_FIRST * 4, DELAY_S_FIRST * 8]
    assert growing[-1] == LIMITS.login_delay_s_max


def test_the_delay_passes_with_time_and_counts_for_that_user_only() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, LIMITS)
    for _ in range(LIMITS.login_failures_per_user_max + 1):
        throttle.failed("ann", HOME)
    assert throttle.wait_s("ann", HOME) == DELAY_S_FIRST
    assert throttle.wait_s("ann", AWAY) == DELAY_S_FIRST
    assert throttle.wait_s("bob", HOME) == 0
    clock.advance(DELAY_S_FIRST)
    assert throttle.wait_s("ann", HOME) == 0


def test_an_address_that_guesses_at_many_users_has_to_wait_too() -> None:
    throttle = Throttle(ManualClock(), LIMITS)
    for guess in range(LIMITS.login_failures_per_address_max + 1):
        throttle.failed(f"user-{guess}", AWAY)
    assert throttle.wait_s("somebody", AWAY) > 0
    assert throttle.wait_s("somebody", AWAY.replace(":40000", ":40001")) > 0
    assert throttle.wait_s("somebody", HOME) == 0


def test_who_guesses_elsewhere_does_not_keep_a_user_out_where_it_has_logged_in() -> None:
    throttle = Throttle(ManualClock(), LIMITS)
    throttle.succeeded("ann", HOME)
    for _ in range(50):
        throttle.failed("ann", AWAY)
    assert throttle.wait_s("ann", AWAY) > 0
    assert throttle.wait_s("ann", HOME) == 0
    throttle.forget("ann")
    assert throttle.wait_s("ann", HOME) == 0, "a new password starts afresh"
    for _ in range(50):
        throttle.failed("ann", AWAY)
    assert throttle.wait_s("ann", HOME) > 0, "and no address is known for it"


def test_a_login_forgives_the_user_but_not_the_address() -> None:
    throttle = Throttle(ManualClock(), LIMITS)
    for _ in range(LIMITS.login_failures_per_address_max + 1):
        throttle.failed("ann", AWAY)
    throttle.succeeded("ann", AWAY)
    assert throttle.wait_s("ann", HOME) == 0
    assert throttle.wait_s("bob", AWAY) > 0


def test_failures_of_long_ago_are_forgotten() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, LIMITS)
    for _ in range(20):
        throttle.failed("ann", HOME)
    clock.advance(FORGET_S + 1)
    assert throttle.failed("ann", HOME) == 0


def test_memory_is_bounded_whatever_names_are_tried() -> None:
    throttle = Throttle(ManualClock(), LIMITS, tracked_max=10)
    for number in range(1000):
        throttle.failed(f"user-{number}", f"10.0.{number // 256}.{number % 256}:1")
        throttle.succeeded(f"user-{number}", f"10.0.{number // 256}.{number % 256}:1")
        throttle.failed(f"user-{number}", "10.0.0.1:1")
        throttle.failed("x" * 60_000 + str(number), "10.0.0.2:1")
    assert len(throttle._users) <= 10
    assert max(map(len, throttle._users)) < 1_000
    assert len(throttle._sources) <= 10
    assert len(throttle._known) <= 10


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1:50000", "192.0.2.1"),
        ("[2001:db8:1:2:3:4:5:6]:50000", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:aaaa::1:50000", "2001:db8:1:2::/64"),
        ("[::ffff:192.0.2.1]:50000", "192.0.2.1"),
        ("[fe80::1%eth0]:50000", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_a_source_is_a_host_or_an_ipv6_network(address: str, source: str) -> None:
    assert source_of(address) == source


def test_secrets_without_a_name_count_for_their_address_alone() -> None:
    clock = ManualClock()
    throttle = Throttle(clock, LIMITS)
    for _ in range(LIMITS.login_failures_per_address_max):
        assert throttle.failed(None, HOME) == 0
    assert throttle.failed(None, HOME) == DELAY_S_FIRST
    assert throttle.wait_s(None, HOME) == throttle.wait_s("ann", HOME) == DELAY_S_FIRST
    assert throttle.wait_s(None, AWAY) == throttle.wait_s("ann", AWAY) == 0
    clock.advance(DELAY_S_FIRST)
    assert throttle.wait_s(None, HOME) == 0
