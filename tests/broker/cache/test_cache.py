"""The cache: what was put is there until its time is over or there is no more room."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.cache.cache import ENTRY_BYTES, KEY_BYTES_MAX, PART_BYTES, TTL_MS_MAX, Cache
from penstock.broker.limits import BrokerLimits
from penstock.errors import InvalidRequest, InvalidTopicName, LimitExceeded
from penstock.testing.clock import ManualClock
from tests.open_access import OpenAccess

ONE = ENTRY_BYTES + 102
"""What a value of 100 bytes under a key of one character takes, in a cache whose name has one."""


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


def test_a_time_to_live_is_checked_when_the_value_is_asked_for(clock: ManualClock) -> None:
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


def test_what_is_deleted_is_gone_and_takes_no_room(clock: ManualClock) -> None:
    cache = cache_of(clock)
    cache.put(ANONYMOUS, "prices", "k", b"1")
    cache.put(ANONYMOUS, "t1/prices", "k", b"2")
    for _ in range(2):  # what is not there is deleted as well
        cache.delete(ANONYMOUS, "prices", "k")
        cache.delete(ANONYMOUS, "t1/prices", "other")
    assert cache.get(ANONYMOUS, "prices", "k") is None
    assert cache.get(ANONYMOUS, "t1/prices", "k") == b"2"
    cache.delete(ANONYMOUS, "t1/prices", "k")
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_a_value_that_is_put_again_lives_again(clock: ManualClock) -> None:
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
    cache = cache_of(clock, cache_bytes_max=PART_BYTES + 3 * ONE)
    for key in "abc":
        cache.put(ANONYMOUS, "c", key, bytes(100))
    assert cache.get(ANONYMOUS, "c", "a") is not None
    cache.put(ANONYMOUS, "c", "d", bytes(100))
    assert [key for key in "abcd" if cache.get(ANONYMOUS, "c", key) is not None] == ["a", "c", "d"]
    cache.put(ANONYMOUS, "c", "e", bytes(2 * ONE))
    assert [key for key in "abcde" if cache.get(ANONYMOUS, "c", key) is not None] == ["e"]
    assert cache.stats.evicted == 4
    assert cache.size_bytes <= PART_BYTES + 3 * ONE


def test_what_was_not_used_for_longest_makes_way_for_entries(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_entries_max=2)
    for key in "abc":
        cache.put(ANONYMOUS, "c", key, b"")
    assert [key for key in "abc" if cache.get(ANONYMOUS, "c", key) is not None] == ["b", "c"]


def test_a_value_larger_than_the_room_is_refused_and_leaves_the_old_one(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_bytes_max=2000)
    cache.put(ANONYMOUS, "c", "k", b"old")
    with pytest.raises(LimitExceeded, match="cache_bytes_max is 2000"):
        cache.put(ANONYMOUS, "c", "k", bytes(2000))
    assert cache.get(ANONYMOUS, "c", "k") == b"old"


def test_memory_is_given_back(clock: ManualClock) -> None:
    cache = cache_of(clock)
    for size in (10, 1000, 0):
        cache.put(ANONYMOUS, "c", "k", bytes(size), 10)
    assert cache.size_bytes == PART_BYTES + ENTRY_BYTES + 2
    clock.advance(1)
    cache.get(ANONYMOUS, "c", "k")
    assert cache.size_bytes == 0


@pytest.mark.parametrize(
    ("name", "key", "characters_bytes"),
    [
        ("c", "\N{GRINNING FACE}" + "k" * 1000, 4 * 1001),
        ("c" * 200, "k", 201),
        ("\N{CYRILLIC SMALL LETTER ZHE}" * 100, "k", 201),
    ],
)
def test_names_count_for_what_they_take_in_memory(
    clock: ManualClock, name: str, key: str, characters_bytes: int
) -> None:
    cache = cache_of(clock)
    cache.put(ANONYMOUS, name, key, b"")
    assert cache.size_bytes >= PART_BYTES + ENTRY_BYTES + characters_bytes


@pytest.mark.parametrize("tenants", [1, 100, 5_000])
def test_no_more_memory_is_taken_than_is_counted(clock: ManualClock, tenants: int) -> None:
    tracemalloc.start()
    try:
        cache = cache_of(clock)
        for number in range(5_000):
            cache.put(ANONYMOUS, f"tenant-{number % tenants}/cache", f"key-{number}", bytes(10), 1000)
        taken_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(cache) == 5_000
    assert 0.5 * cache.size_bytes < taken_bytes < cache.size_bytes


# --- tenants --------------------------------------------------------------------------------------------------------------


def kept(cache: Cache, name: str, keys: Iterable[str]) -> list[str]:
    return [key for key in keys if cache.get(ANONYMOUS, name, key) is not None]


@pytest.mark.parametrize("limits", [{"cache_bytes_max": 4000 + 20 * ONE}, {"cache_entries_max": 20}])
def test_a_tenant_that_floods_the_cache_takes_nothing_from_those_who_keep_to_their_part(
    clock: ManualClock, limits: dict[str, int]
) -> None:
    cache = cache_of(clock, **limits)
    quiet = [chr(ord("a") + row) for row in range(8)]
    for key in quiet:
        cache.put(ANONYMOUS, "t1/c", key, bytes(100))
    for number in range(1000):
        cache.put(ANONYMOUS, "t2/c", f"{number:03}", bytes(100))
    assert kept(cache, "t1/c", quiet) == quiet
    assert kept(cache, "t2/c", ["999", "998", "997", "900"]) == ["999", "998", "997"]
    assert cache.stats.evicted == 1000 - (len(cache) - 8)


def test_a_tenant_that_has_most_of_the_room_gives_it_back_when_others_come(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_entries_max=12)
    for number in range(12):
        cache.put(ANONYMOUS, "t1/c", str(number), b"")
    for tenant in ("t2", "t3"):
        for number in range(4):
            cache.put(ANONYMOUS, f"{tenant}/c", str(number), b"")
    keys = [str(number) for number in range(12)]
    assert kept(cache, "t1/c", keys) == ["8", "9", "10", "11"]
    assert kept(cache, "t2/c", keys) == kept(cache, "t3/c", keys) == ["0", "1", "2", "3"]


def test_caches_of_one_tenant_share_its_part_and_caches_of_none_are_the_brokers_own(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_entries_max=6)
    for name in ("own", "t1/a", "t1/shop/b", "other"):
        for key in "123":
            cache.put(ANONYMOUS, name, key, b"")
    assert [len(kept(cache, name, "123")) for name in ("own", "t1/a", "t1/shop/b", "other")] == [0, 0, 3, 3]


def test_a_part_counts_by_bytes_or_by_entries_whichever_is_more(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_bytes_max=1 << 20, cache_entries_max=100)
    for number in range(4):
        cache.put(ANONYMOUS, "large/c", str(number), bytes(100_000))  # 40 % of the bytes
    for number in range(200):
        cache.put(ANONYMOUS, "many/c", str(number), b"")
    assert len(kept(cache, "large/c", "0123")) == 4
    for number in range(20):
        cache.put(ANONYMOUS, "huge/c", str(number), bytes(100_000))
    assert len(kept(cache, "large/c", "0123")) == 4
    assert len(kept(cache, "many/c", map(str, range(200)))) > 33


@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.integers(0, 9), st.sampled_from([0, 10, 300, 1500, 6000])), max_size=80
    )
)
def test_nobody_who_has_less_than_an_equal_part_loses_anything(puts: list[tuple[str, int, int]]) -> None:
    cache = cache_of(ManualClock(), cache_bytes_max=12_000, cache_entries_max=10)
    for tenant, key, size_bytes in puts:
        before = {name: (len(part.entries), cache._weight_of(name)) for name, part in cache._parts.items()}
        with contextlib.suppress(LimitExceeded):
            cache.put(ANONYMOUS, f"{tenant}/c", str(key), bytes(size_bytes))
        for other in before.keys() - {tenant}:
            entries, weight = before[other]
            if other not in cache._parts or len(cache._parts[other].entries) < entries:
                assert weight * len(before.keys() | {tenant}) >= 12_000 * 10
        assert cache.size_bytes <= 12_000
        assert len(cache) == sum(len(part.entries) for part in cache._parts.values()) <= 10
        assert cache.size_bytes == sum(part.size_bytes for part in cache._parts.values())


def test_a_value_that_would_take_from_smaller_tenants_is_refused(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_bytes_max=100_000)
    for tenant in ("t1", "t2"):
        cache.put(ANONYMOUS, f"{tenant}/c", "k", bytes(30_000))
    with pytest.raises(LimitExceeded, match="next to what other tenants keep"):
        cache.put(ANONYMOUS, "t3/c", "k", bytes(60_000))
    assert kept(cache, "t1/c", "k") == kept(cache, "t2/c", "k") == ["k"]
    cache.put(ANONYMOUS, "t3/c", "k", bytes(30_000))
    assert len(cache) == 3
    with pytest.raises(LimitExceeded, match="next to what other tenants keep"):
        cache.put(ANONYMOUS, "t3/c", "k", bytes(60_000))
    assert cache.get(ANONYMOUS, "t3/c", "k") == bytes(30_000), "what was there stays"
    assert cache.stats.puts == 3, "what is refused is none"


def test_a_refused_value_evicts_nothing(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_bytes_max=1_000_000)
    for number in range(35):
        cache.put(ANONYMOUS, "b/c", f"k{number}", bytes(10_000))
    for number in range(40):
        cache.put(ANONYMOUS, "a/c", f"k{number}", bytes(10_000))
    keys, size_bytes = [f"k{number}" for number in range(40)], cache.size_bytes
    with pytest.raises(LimitExceeded, match="next to what other tenants keep"):
        cache.put(ANONYMOUS, "a/c", "big", bytes(700_000))
    with pytest.raises(LimitExceeded, match="next to what other tenants keep"):
        cache.put(ANONYMOUS, "a/c", "k39", bytes(700_000))
    assert (len(cache), cache.size_bytes, cache.stats.evicted) == (75, size_bytes, 0)
    cache.put(ANONYMOUS, "a/c", "large", bytes(300_000))
    evicted = cache.stats.evicted
    assert evicted > 1
    assert kept(cache, "a/c", keys) == keys[evicted:], "values make way in the order in which they were used"
    assert kept(cache, "b/c", keys) == keys[:35]


def test_newcomers_find_a_place_even_where_they_are_a_little_larger(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_bytes_max=100_000)
    for number in range(2000):
        name = f"t{number}/c"
        cache.put(ANONYMOUS, name, "k", bytes(number % 7))
        assert kept(cache, name, "k") == ["k"]
    assert cache.size_bytes <= 100_000


def test_newcomers_find_a_place_among_any_number_of_equals(clock: ManualClock) -> None:
    cache = cache_of(clock, cache_entries_max=100)
    for number in reversed(range(1000)):
        cache.put(ANONYMOUS, f"t{number:04}/c", "k", b"")
        assert kept(cache, f"t{number:04}/c", "k") == ["k"]
    assert len(cache) == 100
    assert kept(cache, "t0099/c", "k") == ["k"]
    assert kept(cache, "t0100/c", "k") == []


def test_names_and_times_that_make_no_sense_are_refused(clock: ManualClock) -> None:
    cache = cache_of(clock)
    with pytest.raises(InvalidTopicName):
        cache.put(ANONYMOUS, "a//b", "k", b"")
    with pytest.raises(InvalidRequest, match="too long"):
        cache.put(ANONYMOUS, "c", "k" * (KEY_BYTES_MAX + 1), b"")
    for ttl_ms in (-1, TTL_MS_MAX + 1, 10**400):
        with pytest.raises(InvalidRequest, match="ttl_ms is"):
            cache.put(ANONYMOUS, "c", "k", b"", ttl_ms)
    assert len(cache) == 0
    cache.put(ANONYMOUS, "c", "k", b"", TTL_MS_MAX)
    clock.advance(1e9)
    assert cache.get(ANONYMOUS, "c", "k") == b""
