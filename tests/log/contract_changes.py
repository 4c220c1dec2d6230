"""What every engine must do when a topic is altered or truncated, as tests; a part of `EngineContract`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.errors import InvalidRequest, OffsetOutOfRange, PartitionNotFound, TopicNotFound
from penstock.log.api import Appended, Batch, Durability, TopicConfig
from penstock.log.appending import start_append
from tests.log.records import append, read_all, read_from, read_values
from tests.log.storage import Storage, fill, fill_at, followed, make_partition

ALTERED = TopicConfig(
    durability=Durability("interval", 50),
    retention_ms=86_400_000,
    retention_bytes=1 << 30,
    cleanup="compact",
    compression="zstd",
    segment_bytes=1 << 20,
    segment_ms=60_000,
)


class ChangeContract:
    # -- settings and partitions ---------------------------------------------------------------------------------------------

    async def test_altered_settings_hold_at_once_and_after_a_restart(self, storage: Storage) -> None:
        engine = await storage.open()
        created = await engine.create_topic("orders", TopicConfig())
        altered = await engine.alter_topic("orders", ALTERED)
        assert altered == replace(created, config=ALTERED)
        assert engine.topics()["orders"] == altered
        engine = await storage.reopen()
        assert engine.topics()["orders"] == altered

    @pytest.mark.parametrize("before", ["none", "interval:50", "fsync"])
    @pytest.mark.parametrize("after", ["none", "interval:50", "fsync"])
    async def test_records_survive_a_change_of_durability(self, storage: Storage, before: str, after: str) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(durability=Durability.parse(before)))
        values = await fill(partition)
        await engine.alter_topic("orders", TopicConfig(durability=Durability.parse(after)))
        values += await fill(partition)
        assert await read_values(partition) == values
        engine = await storage.reopen()
        assert await read_values(engine.partition("orders", 0)) == values

    async def test_added_partitions_are_empty_and_the_others_keep_their_records(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        values = await fill(partition)
        await engine.alter_topic("orders", TopicConfig(partitions=3))
        assert engine.topics()["orders"].config.partitions == 3
        assert engine.partition("orders", 0) is partition
        added = await followed(engine, "orders", 2)
        assert (added.index, added.start_offset, added.committed_end) == (2, 0, 0)
        await append(added, [b"new"])
        await append(partition, [b"last"])
        engine = await storage.reopen()
        assert await read_values(engine.partition("orders", 0)) == [*values, b"last"]
        assert await read_values(engine.partition("orders", 1)) == []
        assert await read_values(engine.partition("orders", 2)) == [b"new"]

    async def test_a_topic_cannot_have_fewer_partitions_than_it_has(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=3))
        with pytest.raises(InvalidRequest, match="has 3 partitions, and cannot have fewer"):
            await engine.alter_topic("orders", TopicConfig(partitions=2))
        assert engine.topics()["orders"].config == TopicConfig(partitions=3)
        engine.partition("orders", 2)

    async def test_a_topic_that_does_not_exist_cannot_be_changed(self, storage: Storage) -> None:
        engine = await storage.open()
        with pytest.raises(TopicNotFound, match="missing"):
            await engine.alter_topic("missing", TopicConfig())
        with pytest.raises(TopicNotFound, match="missing"):
            await engine.truncate_topic("missing", {0: 0})

    async def test_appends_under_way_are_all_stored_while_a_topic_is_altered(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine, config=TopicConfig(durability=Durability("none")))
        results: list[asyncio.Future[Appended]] = []
        for config in (TopicConfig(partitions=2), ALTERED, TopicConfig(), TopicConfig(compression="zstd")):
            changing = asyncio.ensure_future(engine.alter_topic("orders", replace(config, partitions=2)))
            while not changing.done():
                results.append(start_append(partition, Batch([b"%d" % len(results)], [b"k"])))
                await asyncio.sleep(0)
            await changing
        places = await asyncio.gather(*results)
        offsets = [each.base_offset for each in places]
        assert offsets == sorted(set(offsets))
        assert await read_values(partition) == [b"%d" % number for number in range(len(results))]

    async def test_partitions_added_after_an_epoch_began_have_their_cuts_at_zero(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig())
        await engine.alter_topic("orders", TopicConfig(partitions=2))
        added = engine.partition("orders", 1)
        assert added.epoch == engine.partition("orders", 0).epoch
        assert added.cut_since(added.epoch) is None

    # -- truncation -----------------------------------------------------------------------------------------------------------

    async def test_a_truncated_partition_starts_at_the_offset_at_once_and_after_a_restart(
        self, storage: Storage
    ) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        offsets = await fill_at(partition, appends=4, records=5)
        start, end = list(offsets.values())[7], partition.committed_end
        await engine.truncate_topic("orders", {0: start})  # in the middle of a block
        assert (partition.start_offset, partition.committed_end) == (start, end)
        assert [record.offset for record in await read_all(partition)] == list(offsets.values())[7:]
        with pytest.raises(OffsetOutOfRange, match=str(start - 1)):
            await partition.read(start - 1)
        with pytest.raises(OffsetOutOfRange, match=str(start - 1)):
            partition.read_cached(start - 1)
        engine = await storage.reopen()
        partition = await followed(engine)
        assert partition.start_offset == start
        assert await read_values(partition) == list(offsets)[7:]
        assert (await append(partition, [b"next"])).base_offset >= end

    async def test_truncating_to_the_end_leaves_an_empty_partition_that_continues_its_offsets(
        self, storage: Storage
    ) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await fill(partition, appends=4, records=5)
        end = partition.committed_end
        await engine.truncate_topic("orders", {0: end})
        assert (partition.start_offset, partition.committed_end) == (end, end)
        assert await partition.read(end) == []
        engine = await storage.reopen()
        partition = await followed(engine)
        assert (partition.start_offset, partition.committed_end) == (end, end)
        assert (await append(partition, [b"next"])).base_offset >= end
        assert await read_values(partition) == [b"next"]

    async def test_a_start_offset_never_moves_back(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await fill(partition)
        await engine.truncate_topic("orders", {0: 9})
        await engine.truncate_topic("orders", {0: 4})
        assert partition.start_offset == 9
        engine = await storage.reopen()
        assert (await followed(engine)).start_offset == 9

    async def test_partitions_are_truncated_one_by_one_or_together(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=3))
        for index in range(3):
            await fill(engine.partition("orders", index))
        await engine.truncate_topic("orders", {1: 3})
        assert [(await followed(engine, "orders", index)).start_offset for index in range(3)] == [0, 3, 0]
        await engine.truncate_topic("orders", {0: 5, 2: 6})
        engine = await storage.reopen()
        assert [(await followed(engine, "orders", index)).start_offset for index in range(3)] == [5, 3, 6]

    async def test_an_offset_beyond_the_end_deletes_nothing_in_any_partition(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=2))
        for index in range(2):
            await fill(engine.partition("orders", index))
        beyond = engine.partition("orders", 1).committed_end + 1
        for wrong in ({0: 3, 1: beyond}, {0: 3, 1: -1}):
            with pytest.raises(OffsetOutOfRange, match="nothing was deleted"):
                await engine.truncate_topic("orders", wrong)
        with pytest.raises(PartitionNotFound, match="partition 2 not found"):
            await engine.truncate_topic("orders", {0: 3, 2: 0})
        assert [engine.partition("orders", index).start_offset for index in range(2)] == [0, 0]

    async def test_no_record_before_the_start_is_found_by_its_time(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        first = await append(partition, [b"a", b"b", b"c"])
        await storage.pass_time()
        await append(partition, [b"d"])
        last = first.base_offset + 2
        await engine.truncate_topic("orders", {0: last})
        assert await partition.offset_at(first.timestamp_ms) == last
        assert await partition.timestamp_of(last) == first.timestamp_ms

    async def test_records_that_were_deleted_unread_make_a_partition_retained(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await fill(partition)
        before = partition.retained
        await engine.truncate_topic("orders", {0: partition.committed_end - 1})
        after = partition.retained
        engine = await storage.reopen()
        assert (before, after, engine.partition("orders", 0).retained) == (False, True, True)

    async def test_a_reader_that_was_given_blocks_before_a_truncation_can_use_them(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        values = await fill(partition)
        blocks = await partition.read(0)
        end = partition.committed_end
        await engine.truncate_topic("orders", {0: end})
        assert [value for block in blocks for value in block.values()] == values
        assert await read_from(partition, end) == []
