"""The cache: values by key, in memory, for as long as there is room and they have not expired.

It is no log: nothing of it is on disk, and a restart begins with an empty one. A cache is a name, guarded as a topic of that name would
be (READ to get, WRITE to put and to delete), and comes into being with its first value. All caches share one room, bounded in bytes
and in entries.

The room is shared fairly between tenants, which are the first levels of names: when it is full, the tenant that has the largest part of
it makes way, with what it neither read nor wrote for longest. So of n tenants, one that has less than the n-th part of the bytes and
of the entries loses nothing, whatever the others put. A value is refused that would not fit into the empty room, or not next to what
such tenants have.

Expiry is checked when a value is read, on a clock that never goes back: nothing runs in the background.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.broker.access.checks import AccessPolicy, Operation, Principal, on_topic
from penstock.broker.cache.largest import Largest
from penstock.broker.limits import BrokerLimits
from penstock.clock import Clock
from penstock.errors import InvalidRequest, LimitExceeded
from penstock.names import validate_topic_name

ENTRY_BYTES: Final = 450
"""What an entry takes in memory besides the characters of its names and the bytes of its value."""
PART_BYTES: Final = 800
"""What a tenant takes besides its entries."""
KEY_BYTES_MAX: Final = 4096
TTL_MS_MAX: Final = (1 << 64) - 1
_NO_TEXT_BYTES: Final = sys.getsizeof("")


class _Entry(NamedTuple):
    value: bytes
    expires_s: float | None
    """On the monotonic clock; None for never."""
    size_bytes: int


class _Evicted(NamedTuple):
    tenant: str
    place: tuple[str, str]
    entry: _Entry


class _Part:
    """What one tenant has."""

    __slots__ = ("entries", "size_bytes")

    def __init__(self) -> None:
        self.entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        """By cache and key; what was used last stands last."""
        self.size_bytes = PART_BYTES


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
        self._parts: dict[str, _Part] = {}
        """By tenant."""
        self._largest = Largest(self._weight_of)
        self._size_bytes = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size_bytes(self) -> int:
        """What the values take in memory, about."""
        return self._size_bytes

    @on_topic(Operation.WRITE)
    def put(self, principal: Principal, cache: str, key: str, value: bytes, ttl_ms: int | None = None) -> None:
        """Keep a value under a key, in place of what was there; without `ttl_ms` it does not expire. Where it is refused, what was there
        stays.

        Raises InvalidTopicName, InvalidRequest, or LimitExceeded where the value is larger than the room, or than what others leave of it.
        """
        if ttl_ms is not None and not 0 <= ttl_ms <= TTL_MS_MAX:
            raise InvalidRequest(f"ttl_ms is {ttl_ms}: give a number of milliseconds from 0 on, or none at all")
        place, tenant = (cache, key), _tenant_of(cache)
        part = self._parts.get(tenant)
        before = None if part is None else part.entries.get(place)
        if before is None:
            _check_names(cache, key)
        size_bytes = len(value) + _text_bytes(cache) + _text_bytes(key) + ENTRY_BYTES
        if size_bytes + PART_BYTES > self._limits.cache_bytes_max:
            raise LimitExceeded(
                f"a value of {len(value)} bytes does not fit into the cache: limits.cache_bytes_max is {self._limits.cache_bytes_max}"
            )
        if before is not None:
            self._remove(tenant, place, before)
        expires_s = None if ttl_ms is None else self._clock.monotonic() + ttl_ms / 1000
        self._add(tenant, place, _Entry(value, expires_s, size_bytes))
        evicted: list[_Evicted] = []
        while self._size_bytes > self._limits.cache_bytes_max or self._count > self._limits.cache_entries_max:
            made_way = self._make_way(place)
            if made_way is None:
                self._remove(tenant, place, self._parts[tenant].entries[place])
                self._restore(evicted)
                if before is not None:
                    self._add(tenant, place, before)
                raise LimitExceeded(
                    f"a value of {len(value)} bytes does not fit into the cache next to what other tenants keep: put a smaller one"
                )
            evicted.append(made_way)
        self.stats.puts += 1
        self.stats.evicted += len(evicted)

    def _make_way(self, kept: tuple[str, str]) -> _Evicted | None:
        """Evict one value, but not the one that was put just now; None if all others are of tenants that keep to their part."""
        largest = self._largest.find()
        assert largest is not None
        place, entry = next(iter(self._parts[largest].entries.items()))
        if place == kept:
            largest = self._largest.find(besides=largest)
            if largest is None or not self._has_its_part(largest):
                return None
            place, entry = next(iter(self._parts[largest].entries.items()))
        self._remove(largest, place, entry)
        return _Evicted(largest, place, entry)

    def _restore(self, evicted: Sequence[_Evicted]) -> None:
        """Put evicted values back as the least recently used ones of their tenants."""
        for tenant, place, entry in reversed(evicted):
            self._add(tenant, place, entry)
            self._parts[tenant].entries.move_to_end(place, last=False)

    @on_topic(Operation.READ)
    def get(self, principal: Principal, cache: str, key: str) -> bytes | None:
        """The value, None if there is none or its time is over."""
        place, tenant = (cache, key), _tenant_of(cache)
        part = self._parts.get(tenant)
        entry = None if part is None else part.entries.get(place)
        if part is None or entry is None:
            self.stats.misses += 1
            return None
        if entry.expires_s is not None and self._clock.monotonic() >= entry.expires_s:
            self._remove(tenant, place, entry)
            self.stats.expired += 1
            self.stats.misses += 1
            return None
        part.entries.move_to_end(place)
        self.stats.hits += 1
        return entry.value

    @on_topic(Operation.WRITE)
    def delete(self, principal: Principal, cache: str, key: str) -> None:
        """Remove a value; if there is none, nothing happens."""
        place, tenant = (cache, key), _tenant_of(cache)
        part = self._parts.get(tenant)
        entry = None if part is None else part.entries.get(place)
        if entry is not None:
            self._remove(tenant, place, entry)

    def _add(self, tenant: str, place: tuple[str, str], entry: _Entry) -> None:
        part = self._parts.get(tenant)
        if part is None:
            part = self._parts[tenant] = _Part()
            self._size_bytes += PART_BYTES
        part.entries[place] = entry
        part.size_bytes += entry.size_bytes
        self._size_bytes += entry.size_bytes
        self._count += 1
        self._largest.note(tenant)

    def _remove(self, tenant: str, place: tuple[str, str], entry: _Entry) -> None:
        part = self._parts[tenant]
        del part.entries[place]
        part.size_bytes -= entry.size_bytes
        self._size_bytes -= entry.size_bytes
        self._count -= 1
        if not part.entries:
            del self._parts[tenant]
            self._size_bytes -= PART_BYTES
            self._largest.forget(tenant)

    def _weight_of(self, tenant: str) -> int:
        """What part of the room a tenant has, of the bytes or of the entries, whichever is more; to be compared only."""
        part, limits = self._parts[tenant], self._limits
        return max(part.size_bytes * limits.cache_entries_max, len(part.entries) * limits.cache_bytes_max)

    def _has_its_part(self, tenant: str) -> bool:
        """Whether it has what it would have if all had the same, or more."""
        limits = self._limits
        return self._weight_of(tenant) * len(self._parts) >= limits.cache_bytes_max * limits.cache_entries_max


def _tenant_of(cache: str) -> str:
    """What has only one level is the broker's own."""
    tenant, slash, _ = cache.partition("/")
    return tenant if slash else ""


def _text_bytes(text: str) -> int:
    """One rare character makes a text take four bytes for each of all its characters."""
    return sys.getsizeof(text) - _NO_TEXT_BYTES


def _check_names(cache: str, key: str) -> None:
    validate_topic_name(cache)
    size_bytes = len(key.encode(errors="surrogatepass"))
    if size_bytes > KEY_BYTES_MAX:
        raise InvalidRequest(f"a cache key of {size_bytes} bytes is too long: use at most {KEY_BYTES_MAX}")
