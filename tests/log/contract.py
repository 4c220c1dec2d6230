"""What every engine must do, as tests.

A test module derives a class `Test...` from `EngineContract` and has a fixture `storage` that gives a `Storage` of its engine.
"""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import InvalidRequest, OffsetOutOfRange, PenstockError, ShuttingDown, TopicNotFound
from penstock.log.api import Appended, Batch, BatchFor, BlockBatch, Durability, TopicConfig
from penstock.log.appending import start_append
from penstock.log.block import Block, encode_block
from penstock.record_headers import encode_headers
from tests.log.contract_atomic import AtomicContract
from tests.log.contract_changes import ChangeContract
from tests.log.contract_topics import TopicContract
from tests.log.records import Record, append, read_all, read_from, read_values, start_atomic_append
from tests.log.storage import Storage, fill, fill_at, followed, make_partition


class EngineContract(TopicContract, ChangeContract, AtomicContract):
    # -- appending and reading -----------------------------------------------------------------------------------------

    async def test_offsets_rise_and_those_of_one_append_follow_one_another(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        expected: list[int] = []
        for count in (1, 2, 1, 7):
            appended = await append(partition, [b"x"] * count)
            assert appended.base_offset > max(expected, default=-1)
            expected += range(appended.base_offset, appended.base_offset + count)
            assert partition.committed_end == expected[-1] + 1
        assert [record.offset for record in await read_all(partition)] == expected

    async def test_appends_of_one_turn_keep_their_order(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        answered: list[int] = []
        offsets: dict[int, int] = {}
        all_answered = asyncio.Event()

        def done_for(number: int) -> None:
            def done(result: Appended | PenstockError) -> None:
                assert isinstance(result, Appended)
                answered.append(number)
                offsets[number] = result.base_offset
                if len(answered) == 50:
                    all_answered.set()

            partition.append(Batch([b"%d" % number] * 2), done)

        for number in range(50):
            done_for(number)
        await all_answered.wait()
        assert sorted(answered) == list(range(50))
        in_order = [offsets[number] for number in range(50)]
        assert in_order == sorted(in_order)
        assert await read_values(partition) == [b"%d" % number for number in range(50) for _ in range(2)]

    async def test_done_is_called_later_and_once(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        calls: list[Appended | PenstockError] = []
        partition.append(Batch([b"x"]), calls.append)
        assert calls == []
        await append(partition, [b"y"])
        await append(partition, [b"z"])
        assert len(calls) == 1
        await storage.close()
        assert len(calls) == 1

    async def test_nothing_is_readable_before_it_is_committed(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await append(partition, [b"before"])
        end = partition.committed_end
        pending = start_append(partition, Batch([b"x"]))
        while not pending.done():
            assert partition.read_cached(end) == []
            with pytest.raises(OffsetOutOfRange):
                partition.read_cached(end + 1)
            await asyncio.sleep(0)
            if partition.committed_end > end:
                break  # committed, and `done` is about to be called
        assert partition.committed_end == (await pending).base_offset + 1
        assert await read_values(partition) == [b"before", b"x"]

    async def test_what_was_acknowledged_is_readable_in_the_callback(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        seen: asyncio.Future[tuple[Appended, int]] = asyncio.get_running_loop().create_future()

        def done(result: Appended | PenstockError) -> None:
            assert isinstance(result, Appended)
            seen.set_result((result, partition.committed_end))

        partition.append(Batch([b"a", b"b"]), done)
        appended, end = await seen
        assert end == appended.base_offset + 2

    async def test_bounds_are_current_once_a_partition_is_followed(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await fill(partition)
        await engine.truncate_topic("orders", {0: partition.committed_end - 1})
        bounds = partition.start_offset, partition.committed_end
        assert partition.followed
        engine = await storage.reopen()
        partition = engine.partition("orders", 0)
        await partition.follow()
        assert partition.followed
        assert (partition.start_offset, partition.committed_end) == bounds
        await engine.delete_topic("orders")
        with pytest.raises(TopicNotFound):
            await partition.follow()

    async def test_a_read_and_a_watcher_follow_a_partition(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=2))
        for index in range(2):
            await fill(engine.partition("orders", index))
        engine = await storage.reopen()
        read, watched = engine.partition("orders", 0), engine.partition("orders", 1)
        blocks = await read.read(0)
        assert [value for block in blocks for value in block.values()][:3] == [b"0-0", b"0-1", b"0-2"]
        assert read.followed
        moved = asyncio.Event()
        watched.watch(moved.set)
        if not watched.followed:
            await asyncio.wait_for(moved.wait(), 10)
        assert watched.committed_end == (await read_all(watched))[-1].offset + 1

    @pytest.mark.parametrize("durability", ["fsync", "interval:100", "none"])
    async def test_a_log_that_was_stopped_in_order_was_not_cut(self, storage: Storage, durability: str) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(durability=Durability.parse(durability)))
        await append(partition, [b"x"])
        epoch = partition.epoch
        assert partition.cut_since(epoch) is None
        engine = await storage.reopen()
        assert engine.partition("orders", 0).epoch == epoch
        assert engine.partition("orders", 0).cut_since(epoch) is None

    async def test_every_column_comes_back_as_it_was_given(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        headers = encode_headers([("trace", b"\x00\xff"), ("empty", b""), ("null", None)])
        values = [b"v", None, b"", bytes(range(256))]
        keys = [b"k", b"k", None, b""]
        appended = await append(partition, values, keys, [headers, None, None, headers], [0, 5, 1 << 50, 0])
        first = appended.base_offset
        expected = [
            Record(first, appended.timestamp_ms, b"k", b"v", headers, 0),
            Record(first + 1, appended.timestamp_ms, b"k", None, None, 5),
            Record(first + 2, appended.timestamp_ms, None, b"", None, 1 << 50),
            Record(first + 3, appended.timestamp_ms, b"", bytes(range(256)), headers, 0),
        ]
        assert await read_all(partition) == expected
        engine = await storage.reopen()
        assert await read_all(engine.partition("orders", 0)) == expected

    async def test_appends_with_and_without_keys_share_a_commit_without_mixing(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        header = encode_headers([("h", b"1")])
        pending = [
            start_append(partition, Batch([b"plain"])),
            start_append(partition, Batch([b"keyed", None], keys=[b"k", b"gone"])),
            start_append(partition, Batch([b"with headers"], headers=[header])),
            start_append(partition, Batch([b"expiring"], expiries=[77])),
            start_append(partition, Batch([b"plain again"])),
        ]
        results = await asyncio.gather(*pending)
        offsets = [record.offset for record in await read_all(partition)]
        assert [result.base_offset for result in results] == [offsets[row] for row in (0, 1, 3, 4, 5)]
        assert [record[2:] for record in await read_all(partition)] == [
            (None, b"plain", None, 0),
            (b"k", b"keyed", None, 0),
            (b"gone", None, None, 0),
            (None, b"with headers", header, 0),
            (None, b"expiring", None, 77),
            (None, b"plain again", None, 0),
        ]

    @pytest.mark.parametrize("reopened", [False, True])
    async def test_reading_begins_at_any_offset(self, storage: Storage, reopened: bool) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        offsets = await fill_at(partition, appends=6, records=4)
        if reopened:
            engine = await storage.reopen()
            partition = await followed(engine)
        for offset in range(partition.committed_end + 1):
            records = await read_from(partition, offset)
            assert {record.value: record.offset for record in records} == {
                value: at for value, at in offsets.items() if at >= offset
            }
            assert [record.offset for record in records] == sorted(record.offset for record in records)

    @pytest.mark.parametrize("reopened", [False, True])
    async def test_a_read_gives_at_least_one_block_and_more_while_they_fit(
        self, storage: Storage, reopened: bool
    ) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        offsets = [(await append(partition, [b"x" * 1000])).base_offset for _ in range(4)]
        if reopened:
            engine = await storage.reopen()
            partition = engine.partition("orders", 0)
        assert [block.base_offset for block in await partition.read(offsets[1], 1)] == offsets[1:2]
        assert [block.base_offset for block in await partition.read(offsets[0], 2500)] == offsets[:2]
        assert [block.base_offset for block in await partition.read(offsets[2], 1 << 20)] == offsets[2:]

    async def test_what_is_read_from_memory_is_what_is_read_from_disk(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await fill(partition)
        end = partition.committed_end
        recent = [record for offset in range(end) for record in await read_from(partition, offset)]
        assert partition.read_cached(end) == [], "the end of the log is known without I/O"
        engine = await storage.reopen()
        partition = engine.partition("orders", 0)
        assert [record for offset in range(end) for record in await read_from(partition, offset)] == recent

    async def test_reading_outside_the_log_says_where_the_log_is(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        assert await partition.read(0) == []
        await fill(partition, appends=1)
        end = partition.committed_end
        assert await partition.read(end) == []
        for offset in (end + 1, -1, 1 << 62):
            with pytest.raises(OffsetOutOfRange, match=f"{offset}.* 0 to {end}"):
                await partition.read(offset)
            with pytest.raises(OffsetOutOfRange):
                partition.read_cached(offset)

    async def test_a_large_append_is_read_from_its_middle(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        values = [b"%d" % number + bytes(10_000) for number in range(400)]
        appended = await append(partition, values)
        assert partition.committed_end == appended.base_offset + 400
        offset = appended.base_offset + 333
        assert [record.value for record in await read_from(partition, offset)] == values[333:]
        engine = await storage.reopen()
        assert [record.value for record in await read_from(engine.partition("orders", 0), offset)] == values[333:]

    async def test_one_record_larger_than_a_read_comes_whole(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        large = bytes(5 << 20)
        await append(partition, [b"small", large, b"small"])
        assert [record.value for record in await read_from(partition, 0, 1000)] == [b"small", large, b"small"]

    @pytest.mark.parametrize("durability", ["fsync", "interval:20", "none"])
    @pytest.mark.parametrize("compression", ["none", "zstd"])
    async def test_every_kind_of_topic_keeps_its_records_over_a_restart(
        self, storage: Storage, durability: str, compression: str
    ) -> None:
        engine = await storage.open()
        config = TopicConfig(durability=Durability.parse(durability), compression=compression)  # type: ignore[arg-type]
        partition = await make_partition(engine, config=config)
        values: list[bytes | None] = [b"compressible " * 50, b"x", None, b""]
        await append(partition, values, [b"k"] * 4)
        before = await read_all(partition)
        engine = await storage.reopen()
        assert engine.topics()["orders"].config == config
        assert await read_all(engine.partition("orders", 0)) == before
        assert [record.value for record in before] == values

    async def test_a_restart_keeps_offsets_timestamps_ids_and_continues_after_them(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=3))
        await fill(engine.partition("orders", 0))
        await fill(engine.partition("orders", 2), appends=1)
        info = engine.topics()["orders"]
        before = [await read_all(engine.partition("orders", index)) for index in range(3)]
        for _ in range(3):
            engine = await storage.reopen()
            assert engine.topics()["orders"] == info
            assert [await read_all(engine.partition("orders", index)) for index in range(3)] == before
            appended = await append(engine.partition("orders", 2), [b"more"])
            assert appended.base_offset > before[2][-1].offset
            assert appended.timestamp_ms >= before[2][-1].timestamp_ms
            before[2].append(Record(appended.base_offset, appended.timestamp_ms, None, b"more", None, 0))

    async def test_a_watcher_is_called_after_each_commit_until_it_stops(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=2))
        partition = await followed(engine)
        ends: list[int] = []
        others: list[int] = []
        stop = partition.watch(lambda: ends.append(partition.committed_end))
        partition.watch(lambda: others.append(partition.committed_end))
        expected = [
            (await append(partition, [b"a"])).base_offset + 1,
            (await append(partition, [b"b", b"c"])).base_offset + 2,
        ]
        await append(engine.partition("orders", 1), [b"elsewhere"])
        assert ends == expected
        stop()
        stop()  # stopping twice is harmless
        expected.append((await append(partition, [b"d"])).base_offset + 1)
        assert ends == expected[:2]
        assert others == expected

    # -- blocks that somebody laid out -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("compression", ["none", "zstd"])
    async def test_blocks_are_appended_as_they_are_at_the_offsets_of_their_turn(
        self, storage: Storage, compression: str
    ) -> None:
        engine = await storage.open()
        config = TopicConfig(compression=compression)  # type: ignore[arg-type]
        partition = await make_partition(engine, config=config)
        header = encode_headers([("h", b"1")])
        full = Block(encode_block(0, 0, [b"v" * 400, None, b""], [b"k", None, b""], [header, None, None], [0, 7, 0]))
        plain = Block(encode_block(0, 0, [b"x", b"y"]))
        pending = [
            start_append(partition, Batch([b"before"])),
            start_append(partition, BlockBatch([full, plain])),
            start_append(partition, BlockBatch([plain])),
            start_append(partition, Batch([b"after"], keys=[b"k"])),
        ]
        results = await asyncio.gather(*pending)
        stamps = {result.timestamp_ms for result in results}
        records = await read_all(partition)
        assert [result.base_offset for result in results] == [records[row].offset for row in (0, 1, 6, 8)]
        assert records[5].offset == records[1].offset + 4
        assert {record.timestamp_ms for record in records} == stamps
        assert [record[2:] for record in records] == [
            (None, b"before", None, 0),
            (b"k", b"v" * 400, header, 0),
            (None, None, None, 7),
            (b"", b"", None, 0),
            *[(None, b"x", None, 0), (None, b"y", None, 0)] * 2,
            (b"k", b"after", None, 0),
        ]
        engine = await storage.reopen()
        assert await read_all(engine.partition("orders", 0)) == records
        for row, record in enumerate(records):
            assert await read_from(engine.partition("orders", 0), record.offset) == records[row:]

    async def test_blocks_are_part_of_an_atomic_append_like_other_records(self, storage: Storage) -> None:
        engine = await storage.open()
        one, two = await make_partition(engine, "one"), await make_partition(engine, "two")
        await append(one, [b"first"])
        blocks = BlockBatch([Block(encode_block(0, 0, [b"a", b"b"])), Block(encode_block(0, 0, [b"c"]))])
        assert (len(blocks), blocks.size_bytes) == (3, 3)
        results = await start_atomic_append(engine, [BatchFor(one, blocks), BatchFor(two, Batch([b"x"]))])
        assert [result.base_offset for result in results] == [
            (await read_all(one))[1].offset,
            (await read_all(two))[0].offset,
        ]
        assert await read_values(one) == [b"first", b"a", b"b", b"c"]

    async def test_blocks_with_places_of_their_own_are_not_appended(self, storage: Storage) -> None:
        for block in (
            encode_block(0, 0, [b"a", b"b"], timestamps=[1, 2]),
            encode_block(0, 0, [b"a", b"b"], offsets=[0, 5]),
        ):
            with pytest.raises(InvalidRequest, match="of its own"):
                BlockBatch([Block(block)])

    # -- time ----------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("reopened", [False, True])
    async def test_an_offset_is_found_by_time(self, storage: Storage, reopened: bool) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        assert await partition.offset_at(0) == 0
        stamps: list[int] = []
        offsets: list[int] = []
        for _ in range(4):
            await storage.pass_time()
            appended = await append(partition, [b"a", b"b"])
            stamps.append(appended.timestamp_ms)
            offsets.append(appended.base_offset)
        end = partition.committed_end
        assert stamps == sorted(set(stamps))
        if reopened:
            engine = await storage.reopen()
            partition = engine.partition("orders", 0)
        for number, stamp in enumerate(stamps):
            assert await partition.offset_at(stamp) == offsets[number]
            assert await partition.offset_at(stamp - 1) == offsets[number] or stamps[number - 1] == stamp - 1
            assert await partition.timestamp_of(offsets[number]) == stamp
            assert await partition.timestamp_of(offsets[number] + 1) == stamp
        assert await partition.offset_at(0) == offsets[0]
        assert await partition.offset_at(stamps[-1] + 1) == end
        assert await partition.timestamp_of(end) is None

    # -- removing the oldest -------------------------------------------------------------------------------------------

    async def test_what_is_deleted_from_the_start_is_out_of_range(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(segment_bytes=1024))
        for number in range(20):
            appended = await append(partition, [b"%d" % number + bytes(400)])
            assert partition.committed_end == appended.base_offset + 1
        before = await read_all(partition)
        start = await partition.delete_before(before[10].offset)
        assert before[0].offset < start <= before[10].offset
        assert partition.start_offset == start
        left = [record for record in before if record.offset >= start]
        assert await read_all(partition) == left
        with pytest.raises(OffsetOutOfRange):
            await partition.read(start - 1)
        assert await partition.delete_before(0) == start
        engine = await storage.reopen()
        partition = await followed(engine)
        assert partition.start_offset == start
        assert await read_all(partition) == left
        assert start <= await partition.offset_at(0) <= left[0].offset

    async def test_deleting_everything_leaves_the_offsets_to_continue(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(segment_bytes=1024))
        for number in range(10):
            await append(partition, [b"%d" % number + bytes(400)])
        end = partition.committed_end
        assert await partition.delete_before(1 << 60) <= end == partition.committed_end
        engine = await storage.reopen()
        assert (await append(engine.partition("orders", 0), [b"next"])).base_offset >= end

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def test_closing_commits_what_was_appended(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=4))
        pending = [start_append(engine.partition("orders", n % 4), Batch([b"%d" % n])) for n in range(40)]
        await storage.close()
        assert all(future.done() for future in pending)
        assert all(isinstance(future.result(), Appended) for future in pending)
        engine = await storage.open()
        for index in range(4):
            values = [b"%d" % number for number in range(40) if number % 4 == index]
            assert await read_values(engine.partition("orders", index)) == values

    async def test_an_append_after_closing_began_is_refused(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await storage.close()
        with pytest.raises(ShuttingDown):
            await append(partition, [b"late"])
        with pytest.raises(ShuttingDown):
            await start_atomic_append(engine, [BatchFor(partition, Batch([b"late"]))])
        engine = await storage.open()
        assert await read_values(engine.partition("orders", 0)) == []

    async def test_closing_ends_although_appends_keep_coming(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        acknowledged = 0

        def again(result: Appended | PenstockError) -> None:
            nonlocal acknowledged
            if isinstance(result, Appended):
                acknowledged += 1
                partition.append(Batch([b"x"]), again)
            else:
                assert isinstance(result, ShuttingDown)

        for _ in range(4):
            partition.append(Batch([b"x"]), again)
            await asyncio.sleep(0)
        await asyncio.wait_for(storage.close(), 10)
        engine = await storage.open()
        assert len(await read_all(engine.partition("orders", 0))) == acknowledged
