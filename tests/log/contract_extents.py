"""What an engine with its log in files tells readers that share their work out by bytes, as tests."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from penstock.errors import OffsetOutOfRange
from penstock.log.api import Engine, Extent, TopicConfig
from penstock.log.block import Block
from tests.log.records import append
from tests.log.storage import Storage, make_partition

EVERYTHING = 1 << 40


class ExtentContract:
    async def test_extents_lead_to_every_record_once(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(segment_bytes=1 << 16))
        for number in range(40):
            await append(partition, [b"%d" % number * 5000, b"x"])
        extents = await partition.extents(0, 80, 1, EVERYTHING)
        assert extents[0].marks[0].offset == 0
        assert extents[-1].next_offset == 80
        for extent, following in pairwise(extents):
            assert extent.next_offset == following.marks[0].offset
        for extent in extents:
            assert list(extent.marks) == sorted(extent.marks)
            assert extent.marks[-1].position < extent.end
        assert [offset for extent in extents for offset in offsets_in(engine, extent)] == list(range(80))

    async def test_extents_of_some_offsets_begin_at_or_before_the_first_and_end_behind_the_last(
        self, storage: Storage
    ) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        for _ in range(40):
            await append(partition, [b"x" * 20_000])
        [extent] = await partition.extents(17, 23, 1, EVERYTHING)
        assert extent.marks[0].offset <= 17
        assert extent.next_offset == 23
        offsets = offsets_in(engine, extent)
        assert offsets[0] <= 17
        assert offsets[-1] >= 22
        assert len(offsets) < 40

    async def test_a_bound_in_bytes_stops_at_a_mark_but_not_before_the_first(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        for _ in range(20):
            await append(partition, [b"x" * 100_000])
        [small] = await partition.extents(0, 20, 1, 1)
        assert 0 < small.next_offset < 20
        [larger] = await partition.extents(0, 20, 1, 1_000_000)
        assert small.next_offset < larger.next_offset < 20
        assert larger.end <= 1_200_000
        [rest] = await partition.extents(larger.next_offset, 20, 1, EVERYTHING)
        assert rest.marks[0].offset == larger.next_offset
        assert rest.next_offset == 20

    async def test_marks_stand_as_far_apart_as_was_asked(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        for _ in range(30):
            await append(partition, [b"x" * 100_000])
        [fine] = await partition.extents(0, 30, 1, EVERYTHING)
        [coarse] = await partition.extents(0, 30, 1_000_000, EVERYTHING)
        assert len(coarse.marks) < len(fine.marks)
        positions = [mark.position for mark in coarse.marks]
        assert all(after - before >= 1_000_000 for before, after in pairwise(positions))

    async def test_nothing_lies_behind_the_end_and_nothing_below_the_start_is_answered(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        assert await partition.extents(0, 10, 1, EVERYTHING) == []
        await append(partition, [b"x"] * 3)
        assert await partition.extents(3, 10, 1, EVERYTHING) == []
        assert await partition.extents(2, 2, 1, EVERYTHING) == []
        with pytest.raises(OffsetOutOfRange):
            await partition.extents(4, 10, 1, EVERYTHING)

    async def test_extents_are_the_same_after_a_restart(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(segment_bytes=1 << 16))
        for _ in range(12):
            await append(partition, [b"x" * 20_000])
        before = await partition.extents(0, 12, 1, EVERYTHING)
        engine = await storage.reopen()
        assert await engine.partition("orders", 0).extents(0, 12, 1, EVERYTHING) == before

    async def test_each_run_of_an_engine_proves_itself_again(self, storage: Storage) -> None:
        first = (await storage.open()).files
        second = (await storage.reopen()).files
        assert first is not None
        assert second is not None
        assert first.directory == second.directory
        assert first.token != second.token
        assert Path(second.directory, second.proof).read_text() == second.token


def offsets_in(engine: Engine, extent: Extent) -> list[int]:
    files = engine.files
    assert files is not None
    data = Path(files.directory, extent.path).read_bytes()
    offsets: list[int] = []
    position = extent.marks[0].position
    starts: dict[int, int] = {}
    while position < extent.end:
        block = Block(data, position)
        starts[position] = block.base_offset
        offsets += block.offsets()
        position += block.size_bytes
    assert position == extent.end
    assert all(starts[mark.position] == mark.offset for mark in extent.marks)
    return offsets
