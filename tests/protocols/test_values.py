"""Values of one size: found where they are, and nowhere else."""

from __future__ import annotations

import pytest

from penstock.log.block import Block, encode_block
from penstock.protocols.values import UNIFORM_ROWS_MIN, uniform_values


def block(values: list[bytes | None]) -> Block:
    return Block(encode_block(0, 0, values))


def test_values_of_one_size_are_found_back_to_back() -> None:
    values: list[bytes | None] = [b"%03d" % number for number in range(200)]
    found = uniform_values(block(values), 100, 200)
    assert found is not None
    size, data = found
    assert (size, bytes(data)) == (3, b"".join(value or b"" for value in values[100:]))


@pytest.mark.parametrize(
    "values",
    [
        [b"x"] * (UNIFORM_ROWS_MIN - 1),
        [b""] * 100,
        [b"x"] * 99 + [b"yy"],
        [b"x"] * 98 + [b"", b"yy"],
        [b"x"] * 99 + [None],
    ],
)
def test_values_of_several_sizes_or_too_few_are_not(values: list[bytes | None]) -> None:
    assert uniform_values(block(values), 0, len(values)) is None


def test_a_small_part_of_a_large_block_is_not_checked() -> None:
    assert uniform_values(block([b"x"] * 1000), 0, 100) is None
