"""Which rows of a block a reader may see."""

from __future__ import annotations

import pytest

from penstock.broker.records.visibility import is_visible, visible_rows
from penstock.log.block import Block, encode_block

NOW_MS = 1000


def block(*expiries: int) -> Block:
    return Block(encode_block(10, NOW_MS, [b"v"] * len(expiries), expiries=expiries))


def test_all_rows_of_a_block_without_expiries_are_visible() -> None:
    assert visible_rows(block(0, 0, 0), 0, 3, NOW_MS) is None
    assert is_visible(block(0), 0, NOW_MS)


def test_a_record_is_visible_until_the_millisecond_it_expires() -> None:
    rows = block(NOW_MS - 1, NOW_MS, NOW_MS + 1, 0)
    assert visible_rows(rows, 0, 4, NOW_MS) == [2, 3]
    assert [is_visible(rows, row, NOW_MS) for row in range(4)] == [False, False, True, True]
    assert visible_rows(rows, 0, 4, NOW_MS - 2) is None


@pytest.mark.parametrize(("start", "stop", "rows"), [(0, 2, [0]), (1, 4, [2]), (1, 2, []), (2, 3, None), (4, 4, None)])
def test_only_the_rows_asked_for_are_checked(start: int, stop: int, rows: list[int] | None) -> None:
    assert visible_rows(block(0, NOW_MS, 0, NOW_MS), start, stop, NOW_MS) == rows
