"""Where one partition is read, over blocks with holes as a rewrite leaves them."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.broker.deliveries.cursor import NOT_IN_MEMORY, Cursor, NotInMemory, Row, cells_of
from penstock.errors import OffsetOutOfRange
from penstock.log.api import Partition
from penstock.log.block import Block, encode_block


class OnDisk:
    """A partition of which nothing is in memory: blocks of these offsets, with the offset for a value."""

    def __init__(self, *blocks: list[int], start_offset: int = 0) -> None:
        self.blocks = [
            Block(encode_block(offsets[0], 0, [b"%d" % each for each in offsets], offsets=offsets))
            for offsets in blocks
        ]
        self.start_offset = start_offset
        self.committed_end = 100
        self.followed = True
        self.reads = 0

    def read_cached(self, offset: int, max_bytes: int) -> list[Block] | None:
        self._check(offset)
        return None

    async def read(self, offset: int, max_bytes: int) -> list[Block]:
        self._check(offset)
        self.reads += 1
        return [block for block in self.blocks if block.next_offset > offset][:1]

    def _check(self, offset: int) -> None:
        if not self.start_offset <= offset <= self.committed_end:
            raise OffsetOutOfRange("not there")


def cursor_over(partition: OnDisk, read_to: int = 0) -> Cursor:
    return Cursor(cast("Partition", partition), 0, read_to, 0)


async def read_all(cursor: Cursor, now_ms: int = 0) -> list[bytes | None]:
    found: list[bytes | None] = []
    while (taken := cursor.take(now_ms)) is not None:
        if isinstance(taken, NotInMemory):
            await cursor.load()
        else:
            offset, value, _ = taken
            assert value == b"%d" % offset
            assert cursor.read_to == offset + 1
            found.append(value)
    return found


async def test_holes_are_passed_over() -> None:
    """Before the first block, within one, between two, and behind the last."""
    partition = OnDisk([3, 4, 9], [20, 21])
    cursor = cursor_over(partition)
    assert await read_all(cursor) == [b"3", b"4", b"9", b"20", b"21"]
    assert (cursor.read_to, partition.reads) == (100, 3)


async def test_records_whose_time_is_over_are_passed_over() -> None:
    partition = OnDisk([3, 4, 9])
    partition.blocks = [Block(encode_block(3, 0, [b"3", b"4", b"5"], expiries=[50, 0, 51]))]
    assert await read_all(cursor_over(partition), now_ms=50) == [b"4", b"5"]


@pytest.mark.parametrize(("offset", "value"), [(3, b"3"), (9, b"9"), (20, b"20")])
async def test_a_record_is_found_again(offset: int, value: bytes) -> None:
    cursor = cursor_over(OnDisk([3, 4, 9], [20, 21]), read_to=50)
    assert cursor.find(offset) is NOT_IN_MEMORY
    await cursor.load_again(offset)
    found = cursor.find(offset)
    assert isinstance(found, Row)
    assert cells_of(found) == (value, None)
    assert await cursor.record(offset) == found


@pytest.mark.parametrize("offset", [0, 5, 12, 30])
async def test_a_record_that_a_rewrite_left_out_is_gone_and_not_looked_for_again(offset: int) -> None:
    """Before all blocks, within one, between two, and behind the last."""
    partition = OnDisk([3, 4, 9], [20, 21])
    cursor = cursor_over(partition, read_to=50)
    await cursor.load_again(offset)
    assert cursor.find(offset) is None
    assert await cursor.record(offset) is None
    assert partition.reads == 1


async def test_a_record_that_retention_took_is_gone() -> None:
    cursor = cursor_over(OnDisk([20, 21], start_offset=10), read_to=50)
    assert cursor.find(3) is None
    assert await cursor.record(3) is None


async def test_what_is_forgotten_is_looked_for_again() -> None:
    partition = OnDisk([3])
    cursor = cursor_over(partition, read_to=50)
    assert await cursor.record(3) is not None
    cursor.forget()
    assert await cursor.record(3) is not None
    assert partition.reads == 2
