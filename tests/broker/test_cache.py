"""The cache: what was put is there until its time is over or there is no more room."""

from __future__ import annotations

import pytest

from penstock.broker.access import ANONYMOUS, OpenAccess
from penstock.broker.cache import ENTRY_BYTES, KEY_BYTES_MAX, Cache
from penstock.broker.limits import BrokerLimits
from penstock.errors import InvalidRequest, InvalidTopicName, LimitExceeded
from penstock.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def cache_of(clock: ManualClock, **limits: int) -> Cache:
    return Cache(clock=clock, limits=BrokerLimits(**limits), access=OpenAccess())


def test_a_value_is_found_under_its_cache_and_key_only(clock: ManualClock) -> None:
    cache = cache_of(clock)
    cache.put(ANONYMOUS, "prices", "k", b"1")
    cache.put(ANONYMOUS, "prices", "k", b"2")
    assert cache.get(ANONYMOUS, "prices", "k") == b"2"
    assert cache.get(ANONYMOUS, "prices", "other") is None
    assert cache.get(ANONYMOUS, "other", "k") is None
    assert (len(cache), cache.stats.puts, cache.stats.hits, cache.stats.misses) == (1, 2, 1, 2)


def test_a_time_to_live_is_looked_at_when_the_value_is_asked_for(clock: ManualClock) -> None:
    cache = cache_of(clock)
    cache.put(ANONYMOUS, "c", "short", b"v", 100)
    cache.put(ANONYMOUS, "c", "long", b"v")
    cache.put(ANONYMOUS, "c", "none", b"v", 0)
    assert cache.get(ANONYMOUS, "c", "none") is None
    clock.advance(0.099)
    assert cache.get(ANONYMOUS, "c", "short") == b"v"
    clock.jump(3600)  # the wall clock has no say in it
    assert cache.get(ANONYMOUS, "c", "short") == b"v"
    clock.advance(0.001)
    assert len(cache) == 2
    assert cache.get(ANONYMOUS, "c", "short") is None
    assert cache.get(ANONYMOUS, "c", "long") == b"v"
    assert (len(cache), cache.stats.expired) == (1, 2)


def test_a_value_that_is_put_again_lives_anew(clock: ManualClock) -> None:
    cache = cache_of(clock)
    cache.put(ANONYMOUS, "c", "k", b"v", 100)
    clock.advance(0.09)
    cache.put(ANONYMOUS, "c", "k", b"v", 100)
    clock.advance(0.09)
    assert cache.get(ANONYMOUS, "c", "k") == b"v"
    cache.put(ANONYMOUS, "c", "k", b"v")
    clock.advance(1e6)
    assert cache.get(ANONYMOUS, "c", "k") == b"v"


def test_what_was_not_used_for_longest_makes_way_for_bytes(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_bytes_max=3 * (ENTRY_BYTES + 101))
    for key in "abc":
        cache.put(ANONYMOUS, "c", key, bytes(100))
    assert cache.get(ANONYMOUS, "c", "a") is not None
    cache.put(ANONYMOUS, "c", "d", bytes(100))
    assert [key for key in "abcd" if cache.get(ANONYMOUS, "c", key) is not None] == ["a", "c", "d"]
    cache.put(ANONYMOUS, "c", "e", bytes(2 * (ENTRY_BYTES + 101)))
    assert [key for key in "abcde" if cache.get(ANONYMOUS, "c", key) is not None] == ["e"]
    assert cache.stats.evicted == 4
    assert cache.size_bytes <= 3 * (ENTRY_BYTES + 101)


def test_what_was_not_used_for_longest_makes_way_for_entries(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_entries_max=2)
    for key in "abc":
        cache.put(ANONYMOUS, "c", key, b"")
    assert [key for key in "abc" if cache.get(ANONYMOUS, "c", key) is not None] == ["b", "c"]


def test_a_value_larger_than_the_room_is_refused_and_leaves_the_old_one(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_bytes_max=1000)
    cache.put(ANONYMOUS, "c", "k", b"old")
    with pytest.raises(LimitExceeded, match="cache_bytes_max is 1000"):
        cache.put(ANONYMOUS, "c", "k", bytes(1000))
    assert cache.get(ANONYMOUS, "c", "k") == b"old"


def test_memory_is_given_back(clock: ManualClock) -> None:
    cache = cache_of(clock)
    for size in (10, 1000, 0):
        cache.put(ANONYMOUS, "c", "k", bytes(size), 10)
    assert cache.size_bytes == ENTRY_BYTES + 1
    clock.advance(1)
    cache.get(ANONYMOUS, "c", "k")
    assert cache.size_bytes == 0


def test_a_key_counts_for_what_it_takes_in_memory(clock: ManualClock) -> None:
    cache = cache_of(clock)
    cache.put(ANONYMOUS, "c", "\N{GRINNING FACE}" + "k" * 1000, b"")
    assert cache.size_bytes >= ENTRY_BYTES + 4 * 1001


def test_names_and_times_that_make_no_sense_are_refused(clock: ManualClock) -> None:
    cache = cache_of(clock)
    with pytest.raises(InvalidTopicName):
        cache.put(ANONYMOUS, "a//b", "k", b"")
    with pytest.raises(InvalidRequest, match="too long"):
        cache.put(ANONYMOUS, "c", "k" * (KEY_BYTES_MAX + 1), b"")
    with pytest.raises(InvalidRequest, match="ttl_ms is -1"):
        cache.put(ANONYMOUS, "c", "k", b"", -1)
    assert len(cache) == 0
