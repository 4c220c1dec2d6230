"""Which partition a record goes to: the one asked for, else the hash of its key, else the next one in turn.

The hash is 32-bit FNV-1a, which every FlyMQ client library computes too, so it must never change. It works byte by byte, about
85 ns a byte in Python, hence three ways to the same number, measured on 16-byte keys (ns per key):

    plain loop                                    1 400
    cache of recent short keys, when it hits         75
    numpy over a whole run of 100 / 1 000 / 10 000   580 / 150 / 100

Small runs use the cache, because keys repeat; large runs use numpy, which is as fast for keys never seen before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

_OFFSET_BASIS: Final = 0x811C9DC5
_PRIME: Final = 0x01000193

# From here on numpy wins over a cache that misses half of the time.
VECTOR_RUN_MIN: Final = 128
# numpy takes one step per byte position, so one long key would make every key of the run pay.
VECTOR_KEY_BYTES_MAX: Final = 128
# 16 384 keys of at most 64 bytes: some 3 MB.
CACHED_KEYS_MAX: Final = 1 << 14
CACHED_KEY_BYTES_MAX: Final = 64

Int64s = npt.NDArray[np.int64]
Partitions = npt.NDArray[np.int64]
"""The partition of each record of a run."""


def fnv1a(key: bytes) -> int:
    digest = _OFFSET_BASIS
    for byte in key:
        digest = ((digest ^ byte) * _PRIME) & 0xFFFFFFFF
    return digest


_fnv1a_cached = lru_cache(CACHED_KEYS_MAX)(fnv1a)


def _fnv1a_run(keys: Sequence[bytes]) -> list[int]:
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    data = np.frombuffer(b"".join(keys), np.uint8)
    return hashes_of_column(data, np.cumsum(lengths) - lengths, lengths).tolist()  # type: ignore[no-any-return]


def hashes_of_column(data: npt.NDArray[np.uint8], starts: Int64s, lengths: Int64s) -> npt.NDArray[np.uint32]:
    """FNV-1a of each key `data[start:start + length]`, one byte position of all keys at a time.

    Longest keys come first, so that each step takes a prefix; where all have one length, they need no sorting.
    """
    digests = np.full(len(lengths), _OFFSET_BASIS, np.uint32)
    if not len(lengths):
        return digests
    longest = int(lengths.max())
    if longest == int(lengths.min()):
        for position in range(longest):
            digests ^= data[starts + position]
            digests *= np.uint32(_PRIME)
        return digests
    order = np.argsort(-lengths, kind="stable")
    sorted_lengths, starts = lengths[order], starts[order]
    alive_at = np.searchsorted(-sorted_lengths, -np.arange(longest), side="left").tolist()
    for position, alive in enumerate(alive_at):
        step = digests[:alive]
        step ^= data[starts[:alive] + position]
        step *= np.uint32(_PRIME)
    unsorted = np.empty_like(digests)
    unsorted[order] = digests
    return unsorted


def key_hashes(keys: Sequence[bytes]) -> list[int]:
    if len(keys) >= VECTOR_RUN_MIN and max(map(len, keys)) <= VECTOR_KEY_BYTES_MAX:
        return _fnv1a_run(keys)
    return [_fnv1a_cached(key) if len(key) <= CACHED_KEY_BYTES_MAX else fnv1a(key) for key in keys]


def round_robin(count: int, turn: int, partitions: int) -> Partitions:
    """Records without keys: the first goes to partition `turn` modulo the partitions, each next one to the partition after."""
    return np.arange(turn, turn + count) % partitions


def partition_by_key(keys: Sequence[bytes | None], turn: int, partitions: int) -> tuple[Partitions, int]:
    """Records of which some have keys. Returns where they go and the next turn: records without a key take turns."""
    hashes = np.array(key_hashes([key for key in keys if key is not None]), np.int64)
    if len(hashes) == len(keys):
        return hashes % partitions, turn
    keyless = np.fromiter((key is None for key in keys), np.bool_, len(keys))
    chosen = np.empty(len(keys), np.int64)
    chosen[~keyless] = hashes % partitions
    without = len(keys) - len(hashes)
    chosen[keyless] = round_robin(without, turn, partitions)
    return chosen, turn + without
