"""The key hash against published vectors and against itself, and how partitions are chosen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.records.keys import (
    VECTOR_KEY_BYTES_MAX,
    VECTOR_RUN_MIN,
    fnv1a,
    key_hashes,
    partition_by_key,
    round_robin,
)

# What FlyMQ's own clients compute for these keys, and the partition of three that follows.
VECTORS = [
    (b"a", 0xE40C292C, 1),
    (b"b", 0xE70C2DE5, 1),
    (b"k1", 0x983D80C1, 0),
    (b"user-123", 0x8C93CC93, 2),
    (b"user-0", 0xF6537B07, 0),
    (b"user-1", 0xF5537974, 1),
    (b"user-2", 0xF8537E2D, 1),
    (b"order-1", 0x2B7FCD6D, 1),
]


@pytest.mark.parametrize(("key", "digest", "partition_of_three"), VECTORS)
def test_the_hash_is_the_one_that_clients_compute(key: bytes, digest: int, partition_of_three: int) -> None:
    assert fnv1a(key) == digest
    chosen, turn = partition_by_key([key], 7, 3)
    assert (chosen.tolist(), turn) == ([partition_of_three], 7)


def test_the_hash_of_nothing_is_the_offset_basis() -> None:
    assert fnv1a(b"") == 0x811C9DC5
    assert key_hashes([b""] * VECTOR_RUN_MIN) == [0x811C9DC5] * VECTOR_RUN_MIN


@given(
    st.lists(st.binary(max_size=VECTOR_KEY_BYTES_MAX + 1), min_size=1, max_size=8), st.integers(1, VECTOR_RUN_MIN * 2)
)
def test_every_way_of_hashing_gives_the_same_numbers(keys: list[bytes], count: int) -> None:
    run = (keys * count)[:count]
    assert key_hashes(run) == [fnv1a(key) for key in run]


def test_records_without_keys_take_turns() -> None:
    assert round_robin(5, 0, 3).tolist() == [0, 1, 2, 0, 1]
    assert round_robin(2, 2, 3).tolist() == [2, 0]


def test_records_without_keys_among_others_take_turns_between_them() -> None:
    chosen, turn = partition_by_key([None, b"k1", None, b"a"], 1, 3)
    assert (chosen.tolist(), turn) == ([1, 0, 2, 1], 3)
    chosen, turn = partition_by_key([None, None], 1, 3)
    assert (chosen.tolist(), turn) == ([1, 2], 3)
