"""The cache: values by key, in memory, for as long as there is room and they have not expired.

It is no log: nothing of it is on disk, and a restart begins with an empty one. A cache is a name, guarded as a topic of that name would
be (READ to get, WRITE to put), and comes into being with its first value. All caches share one room, bounded in bytes and in entries;
when it is full, what was neither read nor written for longest makes way, and is counted. A value that would not fit into the empty
room is refused.

A time to live is looked at when its value is asked for, on a clock that never goes back: nothing runs in the background.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.broker.access import AccessPolicy, Operation, Principal, on_topic
from penstock.broker.limits import BrokerLimits
from penstock.broker.topics import validate_topic_name
from penstock.clock import Clock
from penstock.errors import InvalidRequest, LimitExceeded

ENTRY_BYTES: Final = 400
"""What an entry takes in memory beside the bytes of its key and value: measured 370 with a short name of its cache."""
KEY_BYTES_MAX: Final = 4096
_NO_TEXT_BYTES: Final = sys.getsizeof("")


class _Entry(NamedTuple):
    value: bytes
    expires_s: float | None
    """On the monotonic clock; None for never."""
    size_bytes: int


@dataclass(slots=True)
class CacheStats:
    """Plain numbers, exported on scrape."""

    hits: int = 0
    misses: int = 0
    """Expired values among them."""
    puts: int = 0
    expired: int = 0
    """Values that were found past their time."""
    evicted: int = 0
    """Values that made way for others."""


class Cache:
    def __init__(self, *, clock: Clock, limits: BrokerLimits, access: AccessPolicy) -> None:
        self.access = access
        self.stats = CacheStats()
        self._clock = clock
        self._limits = limits
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        """By cache and key; what was used last stands last."""
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """What the values take in memory, about."""
        return self._size_bytes

    @on_topic(Operation.WRITE)
    def put(self, principal: Principal, cache: str, key: str, value: bytes, ttl_ms: int | None = None) -> None:
        """Keep a value under a key, in place of what was there; without `ttl_ms` it does not expire.

        Raises InvalidTopicName, InvalidRequest, or LimitExceeded where the value is larger than the whole room.
        """
        if ttl_ms is not None and ttl_ms < 0:
            raise InvalidRequest(f"ttl_ms is {ttl_ms}: give a number of milliseconds from 0 on, or none at all")
        place = (cache, key)
        before = self._entries.get(place)
        if before is None:
            _check_names(cache, key)
        # One rare character makes a text take four bytes for each of all its characters.
        size_bytes = len(value) + sys.getsizeof(key) - _NO_TEXT_BYTES + ENTRY_BYTES
        if size_bytes > self._limits.cache_bytes_max:
            raise LimitExceeded(
                f"a value of {len(value)} bytes does not fit into the cache: limits.cache_bytes_max is {self._limits.cache_bytes_max}"
            )
        if before is not None:
            self._remove(place, before)
        expires_s = None if ttl_ms is None else self._clock.monotonic() + ttl_ms / 1000
        self._entries[place] = _Entry(value, expires_s, size_bytes)
        self._size_bytes += size_bytes
        self.stats.puts += 1
        while self._size_bytes > self._limits.cache_bytes_max or len(self._entries) > self._limits.cache_entries_max:
            self._remove(*next(iter(self._entries.items())))
            self.stats.evicted += 1

    @on_topic(Operation.READ)
    def get(self, principal: Principal, cache: str, key: str) -> bytes | None:
        """The value, None where there is none or its time is over."""
        place = (cache, key)
        entry = self._entries.get(place)
        if entry is None:
            self.stats.misses += 1
            return None
        if entry.expires_s is not None and self._clock.monotonic() >= entry.expires_s:
            self._remove(place, entry)
            self.stats.expired += 1
            self.stats.misses += 1
            return None
        self._entries.move_to_end(place)
        self.stats.hits += 1
        return entry.value

    def _remove(self, place: tuple[str, str], entry: _Entry) -> None:
        del self._entries[place]
        self._size_bytes -= entry.size_bytes


def _check_names(cache: str, key: str) -> None:
    validate_topic_name(cache)
    size_bytes = len(key.encode(errors="surrogatepass"))
    if size_bytes > KEY_BYTES_MAX:
        raise InvalidRequest(f"a cache key of {size_bytes} bytes is too long: use at most {KEY_BYTES_MAX}")
