"""What every engine must do with an append to several partitions, as tests; a part of `EngineContract`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from penstock.errors import InvalidRequest, TopicNotFound
from penstock.log.api import Appended, Batch, BatchFor, Durability, LateBatch, Partition, TopicConfig
from penstock.log.appending import start_append
from tests.log.records import append, read_all, read_values, start_atomic_append
from tests.log.storage import Storage, make_partition


class AtomicContract:
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
        last = [
            (await read_all(engine.partition(topic, index)))[-1].offset
            for topic, index in (("orders", 2), ("other", 0), ("orders", 0))
        ]
        assert [result.base_offset for result in results] == [last[0] - 1, last[1], last[2]]
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
        in_one, in_two = [[record.offset for record in await read_all(each)] for each in (one, two)]
        assert [result.base_offset for result in await atomic] == [in_one[1], in_two[0]]
        assert [result.base_offset for result in await second] == [in_two[1], in_one[3]]
        assert await read_values(one) == [b"before", b"1", b"between", b"2", b"after"]
        assert await read_values(two) == [b"1", b"2"]

    async def test_an_atomic_append_to_one_partition_is_an_append(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        [result] = await start_atomic_append(engine, [BatchFor(partition, Batch([b"x"] * 3))])
        assert result.base_offset == (await read_all(partition))[0].offset
        assert await read_values(partition) == [b"x"] * 3

    async def test_a_late_batch_tells_where_the_other_parts_of_its_append_are(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=2))
        one, two = engine.partition("orders", 0), engine.partition("orders", 1)
        table = await make_partition(engine, "table")

        def telling(places: Mapping[Partition, Appended]) -> bytes:
            told = [f"{part.index}@{places[part].base_offset}" for part in (one, two) if part in places]
            return " ".join(told).encode()

        def start(*parts: BatchFor) -> asyncio.Future[Sequence[Appended]]:
            # Named first, and made last all the same.
            return start_atomic_append(engine, [BatchFor(table, LateBatch(b"key", telling, 100)), *parts])

        pending = start_append(one, Batch([b"plain"] * 3))
        started = [
            start(BatchFor(one, Batch([b"a", b"b"])), BatchFor(two, Batch([b"c"]))),
            start(BatchFor(two, Batch([b"d"])), BatchFor(one, Batch([b"e"]))),
            start(BatchFor(two, Batch([b"f"]))),
        ]
        results = [await each for each in started]
        await pending
        [[_, a, c], [_, d, e], [_, f]] = [[each.base_offset for each in result] for result in results]
        assert [record.offset for record in await read_all(one)][3:] == [a, a + 1, e]
        assert [record.offset for record in await read_all(two)] == [c, d, f]
        told = [f"0@{a} 1@{c}".encode(), f"0@{e} 1@{d}".encode(), f"1@{f}".encode()]
        for _ in range(2):
            assert await read_values(engine.partition("table", 0)) == told
            engine = await storage.reopen()

    async def test_a_late_batch_is_made_again_if_a_part_before_it_is_left_out(self, storage: Storage) -> None:
        engine = await storage.open()
        one, gone = await make_partition(engine, "one"), await make_partition(engine, "gone")
        table = await make_partition(engine, "table")
        made: list[int] = []

        def telling(places: Mapping[Partition, Appended]) -> bytes:
            made.append(places[one].base_offset)
            return b"%d" % made[-1]

        # What cannot be encoded is found when the part is laid out, and takes its other part with it.
        wrong = Batch([b"x"], headers=["no bytes"], size_bytes=1)  # type: ignore[list-item]
        refused = start_atomic_append(engine, [BatchFor(one, Batch([b"left out"])), BatchFor(gone, wrong)])
        kept = start_atomic_append(
            engine, [BatchFor(one, Batch([b"a"])), BatchFor(table, LateBatch(None, telling, 10))]
        )
        with pytest.raises(InvalidRequest):
            await refused
        [in_one, _] = await kept
        assert (await read_values(one), await read_values(table)) == ([b"a"], [b"%d" % in_one.base_offset])

    async def test_late_records_of_a_compacted_topic_are_there_when_it_is_opened_again(self, storage: Storage) -> None:
        engine = await storage.open()
        one = await make_partition(engine, "one")
        table = await make_partition(engine, "table", TopicConfig(cleanup="compact"))

        def telling(key: bytes) -> LateBatch:
            return LateBatch(key, lambda places: b"%d" % places[one].base_offset, 100)

        told: dict[bytes | None, bytes | None] = {}
        for number in range(6):
            key = b"key %d" % (number % 2)
            parts = [BatchFor(one, Batch([b"v"])), BatchFor(table, telling(key))]
            told[key] = b"%d" % (await start_atomic_append(engine, parts))[0].base_offset
        engine = await storage.reopen()
        table = engine.partition("table", 0)
        assert {record.key: record.value for record in await read_all(table)} == told
        await append(table, [b"next"], [b"behind"])
        assert (await read_values(table))[-1] == b"next"

    async def test_what_follows_late_records_of_a_compacted_topic_comes_after_them(self, storage: Storage) -> None:
        engine = await storage.open()
        one = await make_partition(engine, "one")
        table = await make_partition(engine, "table", TopicConfig(cleanup="compact"))
        late = LateBatch(b"key", lambda places: b"late", 100)
        await start_atomic_append(engine, [BatchFor(one, Batch([b"v"])), BatchFor(table, late)])
        await append(table, [None], [b"key"])
        assert await read_values(table) == [b"late", None]

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
        await append(alive, [b"y"])
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
