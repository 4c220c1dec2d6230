"""Which partition a record goes to: the one asked for, else the hash of its key, else the next one in turn.

The hash is 32-bit FNV-1a, which every FlyMQ client library computes too, so it must never change. It works byte by byte, about
85 ns a byte in Python, hence three ways to the same number, measured on 16-byte keys (ns per key):

    plain loop                                    1 400
    cache of recent short keys, when it hits         75
    numpy over a whole run of 100 / 1 000 / 10 000   580 / 150 / 100

Small runs use the cache, because keys repeat; large runs use numpy, which is as fast for keys never seen before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

_OFFSET_BASIS: Final = 0x811C9DC5
_PRIME: Final = 0x01000193

# From here on numpy wins over a cache that misses half of the time.
VECTOR_RUN_MIN: Final = 128
# numpy takes one step per byte position, so one long key would make every key of the run pay.
VECTOR_KEY_BYTES_MAX: Final = 128
# 16 384 keys of at most 64 bytes: some 3 MB.
CACHED_KEYS_MAX: Final = 1 << 14
CACHED_KEY_BYTES_MAX: Final = 64

ALL_ROWS: Final = slice(None)
Rows = slice | list[int]


class Share(NamedTuple):
    """The records of a run that go to one partition."""

    partition: int
    rows: Rows


def fnv1a(key: bytes) -> int:
    digest = _OFFSET_BASIS
    for byte in key:
        digest = ((digest ^ byte) * _PRIME) & 0xFFFFFFFF
    return digest


_fnv1a_cached = lru_cache(CACHED_KEYS_MAX)(fnv1a)


def _fnv1a_run(keys: Sequence[bytes]) -> list[int]:
    """FNV-1a of each key, one byte position of all keys at a time; longest keys first, so that each step takes a prefix."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths = lengths[order]
    starts = (np.cumsum(lengths) - lengths)[order]
    data = np.frombuffer(b"".join(keys), np.uint8)
    digests = np.full(len(keys), _OFFSET_BASIS, np.uint32)
    positions = np.arange(int(sorted_lengths[0]))
    for position, alive in enumerate(np.searchsorted(-sorted_lengths, -positions, side="left").tolist()):
        step = digests[:alive]
        step ^= data[starts[:alive] + position]
        step *= np.uint32(_PRIME)
    unsorted = np.empty_like(digests)
    unsorted[order] = digests
    return unsorted.tolist()


def key_hashes(keys: Sequence[bytes]) -> list[int]:
    if len(keys) >= VECTOR_RUN_MIN and max(map(len, keys)) <= VECTOR_KEY_BYTES_MAX:
        return _fnv1a_run(keys)
    return [_fnv1a_cached(key) if len(key) <= CACHED_KEY_BYTES_MAX else fnv1a(key) for key in keys]


def split_by_turn(count: int, turn: int, partitions: int) -> list[Share]:
    """Records without keys: the first goes to partition `turn` modulo the partitions, each next one to the partition after."""
    return [
        Share((turn + first) % partitions, slice(first, None, partitions)) for first in range(min(count, partitions))
    ]


def split_by_key(keys: Sequence[bytes | None], turn: int, partitions: int) -> tuple[list[Share], int]:
    """Records of which some have keys. Returns the shares and the next turn: records without a key take turns."""
    hashes = iter(key_hashes([key for key in keys if key is not None]))
    shares: defaultdict[int, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        if key is None:
            shares[turn % partitions].append(row)
            turn += 1
        else:
            shares[next(hashes) % partitions].append(row)
    return [Share(partition, rows) for partition, rows in shares.items()], turn
