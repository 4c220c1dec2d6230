"""What every engine must do, as tests.

A test module derives a class `Test...` from `EngineContract` and has a fixture `storage` that gives a `Storage` of its engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from penstock.errors import InvalidRequest, OffsetOutOfRange, PenstockError, ShuttingDown, TopicNotFound
from penstock.log.api import Appended, Batch, BatchFor, BlockBatch, Durability, LateBatch, Partition, TopicConfig
from penstock.log.block import Block, encode_block
from penstock.record_headers import encode_headers
from tests.log.contract_changes import ChangeContract
from tests.log.contract_extents import ExtentContract
from tests.log.contract_topics import TopicContract
from tests.log.records import Record, append, read_all, read_from, read_values, start_append, start_atomic_append
from tests.log.storage import Storage, fill, make_partition


class EngineContract(TopicContract, ChangeContract, ExtentContract):
    # -- appending and reading -----------------------------------------------------------------------------------------

    async def test_offsets_are_dense_from_zero(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        assert (await append(partition, [b"a"])).base_offset == 0
        assert (await append(partition, [b"b", b"c"])).base_offset == 1
        assert (await append(partition, [b"d"])).base_offset == 3
        assert partition.committed_end == 4
        assert [record.offset for record in await read_all(partition)] == [0, 1, 2, 3]

    async def test_appends_of_one_turn_keep_their_order_and_are_answered_in_it(self, storage: Storage) -> None:
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
        assert answered == list(range(50))
        assert offsets == {number: 2 * number for number in range(50)}
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
        pending = start_append(partition, Batch([b"x"]))
        while not pending.done():
            assert partition.committed_end == 1
            assert partition.read_cached(1) == []
            with pytest.raises(OffsetOutOfRange):
                partition.read_cached(2)
            await asyncio.sleep(0)
            if partition.committed_end == 2:
                break  # committed, and `done` is about to be called
        await pending
        assert partition.committed_end == 2
        assert await read_values(partition) == [b"before", b"x"]

    async def test_what_was_acknowledged_is_readable_in_the_callback(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        seen: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        partition.append(Batch([b"a", b"b"]), lambda _: seen.set_result(partition.committed_end))
        assert await seen == 2

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
        expected = [
            Record(0, appended.timestamp_ms, b"k", b"v", headers, 0),
            Record(1, appended.timestamp_ms, b"k", None, None, 5),
            Record(2, appended.timestamp_ms, None, b"", None, 1 << 50),
            Record(3, appended.timestamp_ms, b"", bytes(range(256)), headers, 0),
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
        assert [result.base_offset for result in results] == [0, 1, 3, 4, 5]
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
        values = await fill(partition, appends=6, records=4)
        if reopened:
            engine = await storage.reopen()
            partition = engine.partition("orders", 0)
        for offset in range(len(values) + 1):
            records = await read_from(partition, offset)
            assert [record.value for record in records] == values[offset:]
            assert [record.offset for record in records] == list(range(offset, len(values)))

    @pytest.mark.parametrize("reopened", [False, True])
    async def test_a_read_gives_at_least_one_block_and_more_while_they_fit(
        self, storage: Storage, reopened: bool
    ) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        for _ in range(4):
            await append(partition, [b"x" * 1000])
        if reopened:
            engine = await storage.reopen()
            partition = engine.partition("orders", 0)
        assert [block.base_offset for block in await partition.read(1, 1)] == [1]
        assert [block.base_offset for block in await partition.read(0, 2500)] == [0, 1]
        assert [block.base_offset for block in await partition.read(2, 1 << 20)] == [2, 3]

    async def test_what_is_read_from_memory_is_what_is_read_from_disk(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await fill(partition)
        recent = [record for offset in range(15) for record in await read_from(partition, offset)]
        cached = partition.read_cached(14)
        assert cached is not None, "the end of the log is answered without the disk"
        engine = await storage.reopen()
        partition = engine.partition("orders", 0)
        assert [record for offset in range(15) for record in await read_from(partition, offset)] == recent

    async def test_reading_outside_the_log_says_where_the_log_is(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        assert await partition.read(0) == []
        await fill(partition, appends=1)
        assert await partition.read(3) == []
        for offset in (4, -1, 1 << 62):
            with pytest.raises(OffsetOutOfRange, match=f"{offset}.* 0 to 3"):
                await partition.read(offset)
            with pytest.raises(OffsetOutOfRange):
                partition.read_cached(offset)

    async def test_a_large_append_is_read_from_its_middle(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        values = [b"%d" % number + bytes(10_000) for number in range(400)]
        appended = await append(partition, values)
        assert (appended.base_offset, partition.committed_end) == (0, 400)
        assert [record.value for record in await read_from(partition, 333)] == values[333:]
        engine = await storage.reopen()
        assert [record.value for record in await read_from(engine.partition("orders", 0), 333)] == values[333:]

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

    async def test_a_restart_keeps_offsets_timestamps_ids_and_goes_on_after_them(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=3))
        await fill(engine.partition("orders", 0))
        await fill(engine.partition("orders", 2), appends=1)
        info = engine.topics()["orders"]
        before = [await read_all(engine.partition("orders", index)) for index in range(3)]
        for round_number in range(3):
            engine = await storage.reopen()
            assert engine.topics()["orders"] == info
            assert [await read_all(engine.partition("orders", index)) for index in range(3)] == before
            appended = await append(engine.partition("orders", 2), [b"more"])
            assert appended.base_offset == 3 + round_number
            assert appended.timestamp_ms >= before[2][-1].timestamp_ms
            before[2].append(Record(appended.base_offset, appended.timestamp_ms, None, b"more", None, 0))

    async def test_a_watcher_is_called_after_each_commit_until_it_stops(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=2))
        partition = engine.partition("orders", 0)
        ends: list[int] = []
        others: list[int] = []
        stop = partition.watch(lambda: ends.append(partition.committed_end))
        partition.watch(lambda: others.append(partition.committed_end))
        await append(partition, [b"a"])
        await append(partition, [b"b", b"c"])
        await append(engine.partition("orders", 1), [b"elsewhere"])
        assert ends == [1, 3]
        stop()
        stop()  # stopping twice is harmless
        await append(partition, [b"d"])
        assert ends == [1, 3]
        assert others == [1, 3, 4]

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
        assert [result.base_offset for result in results] == [0, 1, 6, 8]
        stamps = {result.timestamp_ms for result in results}
        records = await read_all(partition)
        assert [record.offset for record in records] == list(range(9))
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
        for offset in range(10):
            assert await read_from(engine.partition("orders", 0), offset) == records[offset:]

    async def test_blocks_are_part_of_an_atomic_append_like_other_records(self, storage: Storage) -> None:
        engine = await storage.open()
        one, two = await make_partition(engine, "one"), await make_partition(engine, "two")
        await append(one, [b"first"])
        blocks = BlockBatch([Block(encode_block(0, 0, [b"a", b"b"])), Block(encode_block(0, 0, [b"c"]))])
        assert (len(blocks), blocks.size_bytes) == (3, 3)
        results = await start_atomic_append(engine, [BatchFor(one, blocks), BatchFor(two, Batch([b"x"]))])
        assert [result.base_offset for result in results] == [1, 0]
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
        for _ in range(4):
            await storage.pass_time()
            stamps.append((await append(partition, [b"a", b"b"])).timestamp_ms)
        assert stamps == sorted(set(stamps))
        if reopened:
            engine = await storage.reopen()
            partition = engine.partition("orders", 0)
        for number, stamp in enumerate(stamps):
            assert await partition.offset_at(stamp) == 2 * number
            assert await partition.offset_at(stamp - 1) == 2 * number or stamps[number - 1] == stamp - 1
            assert await partition.timestamp_of(2 * number) == stamp
            assert await partition.timestamp_of(2 * number + 1) == stamp
        assert await partition.offset_at(0) == 0
        assert await partition.offset_at(stamps[-1] + 1) == 8
        assert await partition.timestamp_of(8) is None

    # -- several partitions at once ------------------------------------------------------------------------------------

    async def test_an_atomic_append_lands_in_every_partition(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=3))
        other = await make_partition(engine, "other", TopicConfig(durability=Durability("none")))
        await append(other, [b"first"])
        results = await start_atomic_append(
            engine,
            [
                BatchFor(engine.partition("orders", 2), Batch([b"a", b"b"])),
                BatchFor(other, Batch([b"c"], keys=[b"k"])),
                BatchFor(engine.partition("orders", 0), Batch([None])),
            ],
        )
        assert [result.base_offset for result in results] == [0, 1, 0]
        for _ in range(2):
            assert await read_values(engine.partition("orders", 2)) == [b"a", b"b"]
            assert await read_values(engine.partition("other", 0)) == [b"first", b"c"]
            assert await read_values(engine.partition("orders", 0)) == [None]
            assert await read_values(engine.partition("orders", 1)) == []
            engine = await storage.reopen()

    async def test_an_atomic_append_keeps_its_place_among_plain_ones(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=2))
        one, two = engine.partition("orders", 0), engine.partition("orders", 1)
        pending: list[asyncio.Future[Appended]] = [start_append(one, Batch([b"before"]))]
        atomic = start_atomic_append(engine, [BatchFor(one, Batch([b"1"])), BatchFor(two, Batch([b"1"]))])
        pending += [start_append(one, Batch([b"between"]))]
        second = start_atomic_append(engine, [BatchFor(two, Batch([b"2"])), BatchFor(one, Batch([b"2"]))])
        pending += [start_append(one, Batch([b"after"]))]
        await asyncio.gather(*pending)
        assert [result.base_offset for result in await atomic] == [1, 0]
        assert [result.base_offset for result in await second] == [1, 3]
        assert await read_values(one) == [b"before", b"1", b"between", b"2", b"after"]
        assert await read_values(two) == [b"1", b"2"]

    async def test_an_atomic_append_to_one_partition_is_an_append(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        [result] = await start_atomic_append(engine, [BatchFor(partition, Batch([b"x"] * 3))])
        assert result.base_offset == 0
        assert await read_values(partition) == [b"x"] * 3

    async def test_a_late_batch_tells_where_the_other_parts_of_its_append_are(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=2))
        one, two = engine.partition("orders", 0), engine.partition("orders", 1)
        table = await make_partition(engine, "table")

        def telling(places: Mapping[Partition, Appended]) -> Batch:
            told = [f"{part.index}@{places[part].base_offset}" for part in (one, two) if part in places]
            return Batch([" ".join(told).encode()], [b"key"])

        def start(*parts: BatchFor) -> asyncio.Future[Sequence[Appended]]:
            # Named first, and made last all the same.
            return start_atomic_append(engine, [BatchFor(table, LateBatch(telling, 100)), *parts])

        pending = start_append(one, Batch([b"plain"] * 3))
        started = [
            start(BatchFor(one, Batch([b"a", b"b"])), BatchFor(two, Batch([b"c"]))),
            start(BatchFor(two, Batch([b"d"])), BatchFor(one, Batch([b"e"]))),
            start(BatchFor(two, Batch([b"f"]))),
        ]
        results = [await each for each in started]
        assert (await pending).base_offset == 0
        assert [[each.base_offset for each in result] for result in results] == [[0, 3, 0], [1, 1, 5], [2, 2]]
        for _ in range(2):
            assert await read_values(engine.partition("table", 0)) == [b"0@3 1@0", b"0@5 1@1", b"1@2"]
            engine = await storage.reopen()

    async def test_a_late_batch_is_made_again_if_a_part_before_it_is_left_out(self, storage: Storage) -> None:
        engine = await storage.open()
        one, gone = await make_partition(engine, "one"), await make_partition(engine, "gone")
        table = await make_partition(engine, "table")
        made: list[int] = []

        def telling(places: Mapping[Partition, Appended]) -> Batch:
            made.append(places[one].base_offset)
            return Batch([b"%d" % made[-1]])

        # What cannot be encoded is found when the part is laid out, and takes its other part with it.
        wrong = Batch([b"x"], headers=["no bytes"], size_bytes=1)  # type: ignore[list-item]
        refused = start_atomic_append(engine, [BatchFor(one, Batch([b"left out"])), BatchFor(gone, wrong)])
        kept = start_atomic_append(engine, [BatchFor(one, Batch([b"a"])), BatchFor(table, LateBatch(telling, 10))])
        with pytest.raises(InvalidRequest):
            await refused
        assert [each.base_offset for each in await kept] == [0, 0]
        assert (await read_values(one), await read_values(table)) == ([b"a"], [b"0"])

    async def test_an_atomic_append_names_each_partition_once(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        with pytest.raises(InvalidRequest):
            engine.append_atomic([BatchFor(partition, Batch([b"x"]))] * 2, lambda _: None)
        with pytest.raises(InvalidRequest):
            engine.append_atomic([], lambda _: None)
        assert await read_values(partition) == []

    async def test_an_atomic_append_to_a_deleted_topic_writes_nowhere(self, storage: Storage) -> None:
        engine = await storage.open()
        alive = await make_partition(engine, "alive")
        gone = await make_partition(engine, "gone")
        await engine.delete_topic("gone")
        with pytest.raises(TopicNotFound):
            await start_atomic_append(engine, [BatchFor(alive, Batch([b"x"])), BatchFor(gone, Batch([b"x"]))])
        assert (await append(alive, [b"y"])).base_offset == 0
        assert await read_values(alive) == [b"y"]

    async def test_an_atomic_append_whose_topic_is_deleted_while_it_waits_writes_everywhere_or_nowhere(
        self, storage: Storage
    ) -> None:
        engine = await storage.open()
        alive = await make_partition(engine, "alive")
        gone = await make_partition(engine, "gone")
        first = start_append(alive, Batch([b"busy"]))
        await asyncio.sleep(0)  # the commit of the first is under way: what comes now waits
        atomic = start_atomic_append(engine, [BatchFor(alive, Batch([b"x"])), BatchFor(gone, Batch([b"x"]))])
        plain = start_append(alive, Batch([b"plain"]))
        await engine.delete_topic("gone")
        await asyncio.gather(first, plain)
        try:
            await atomic
        except TopicNotFound:
            assert await read_values(alive) == [b"busy", b"plain"]
        else:
            assert await read_values(alive) == [b"busy", b"x", b"plain"]

    # -- removing the oldest -------------------------------------------------------------------------------------------

    async def test_what_is_deleted_from_the_start_is_out_of_range(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(segment_bytes=1024))
        for number in range(20):
            appended = await append(partition, [b"%d" % number + bytes(400)])
            assert (appended.base_offset, partition.committed_end) == (number, number + 1)
        before = await read_all(partition)
        start = await partition.delete_before(10)
        assert 0 < start <= 10
        assert partition.start_offset == start
        assert await read_all(partition) == before[start:]
        with pytest.raises(OffsetOutOfRange):
            await partition.read(start - 1)
        assert await partition.delete_before(0) == start
        engine = await storage.reopen()
        partition = engine.partition("orders", 0)
        assert partition.start_offset == start
        assert await read_all(partition) == before[start:]
        assert await partition.offset_at(0) == start

    async def test_deleting_everything_leaves_the_offsets_to_go_on(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(segment_bytes=1024))
        for number in range(10):
            await append(partition, [b"%d" % number + bytes(400)])
        start = await partition.delete_before(1 << 60)
        assert start <= partition.committed_end == 10
        engine = await storage.reopen()
        assert (await append(engine.partition("orders", 0), [b"next"])).base_offset == 10

    # -- stopping ------------------------------------------------------------------------------------------------------

    async def test_closing_commits_what_was_appended(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=4))
        pending = [start_append(engine.partition("orders", n % 4), Batch([b"%d" % n])) for n in range(40)]
        await storage.close()
        assert all(future.done() for future in pending)
        assert sorted(future.result().base_offset for future in pending) == sorted(list(range(10)) * 4)
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
        assert engine.partition("orders", 0).committed_end == acknowledged
