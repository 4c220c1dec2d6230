"""What every engine must do with topics, as tests; a part of `EngineContract`."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import PartitionNotFound, PenstockError, TopicExists, TopicNotFound
from penstock.log.api import Appended, Batch, Durability, TopicConfig
from penstock.log.appending import start_append
from tests.log.records import append, read_values
from tests.log.storage import Storage, fill, followed, make_partition

LONG_NAME = "x" * 249
ODD_NAMES = ["orders", "a/b", "Straße/числа/数", "with space", "dots.and-dashes_", "__internal", LONG_NAME]


class TopicContract:
    async def test_a_new_topic_is_listed_with_what_it_was_made_with(self, storage: Storage) -> None:
        engine = await storage.open()
        config = TopicConfig(
            partitions=3,
            durability=Durability("interval", 50),
            retention_ms=1000,
            retention_bytes=2000,
            compression="zstd",
        )
        info = await engine.create_topic("orders", config)
        assert (info.name, info.config) == ("orders", config)
        assert info.id
        assert info.created_ms > 0
        assert engine.topics()["orders"] == info
        for index in range(3):
            partition = await followed(engine, "orders", index)
            assert (partition.topic, partition.index) == ("orders", index)
            assert (partition.start_offset, partition.committed_end, partition.failure) == (0, 0, None)

    async def test_a_topic_name_exists_once(self, storage: Storage) -> None:
        engine = await storage.open()
        first = await engine.create_topic("orders", TopicConfig())
        with pytest.raises(TopicExists):
            await engine.create_topic("orders", TopicConfig(partitions=2))
        assert engine.topics()["orders"] == first

    async def test_of_two_who_create_one_topic_at_once_one_succeeds(self, storage: Storage) -> None:
        engine = await storage.open()
        results = await asyncio.gather(
            *(engine.create_topic("orders", TopicConfig()) for _ in range(3)), return_exceptions=True
        )
        assert sorted(isinstance(result, TopicExists) for result in results) == [False, True, True]

    @pytest.mark.parametrize("name", ODD_NAMES)
    async def test_any_legal_name_makes_a_topic_that_survives_a_restart(self, storage: Storage, name: str) -> None:
        engine = await storage.open()
        await append(await make_partition(engine, name), [b"x"])
        engine = await storage.reopen()
        assert await read_values(engine.partition(name, 0)) == [b"x"]

    async def test_names_that_differ_only_in_odd_characters_are_two_topics(self, storage: Storage) -> None:
        engine = await storage.open()
        await append(await make_partition(engine, "a/b"), [b"slash"])
        await append(await make_partition(engine, "a_b"), [b"low line"])
        engine = await storage.reopen()
        assert await read_values(engine.partition("a/b", 0)) == [b"slash"]
        assert await read_values(engine.partition("a_b", 0)) == [b"low line"]

    async def test_what_is_not_there_is_named_in_the_error(self, storage: Storage) -> None:
        engine = await storage.open()
        await engine.create_topic("orders", TopicConfig(partitions=2))
        with pytest.raises(TopicNotFound, match="missing"):
            engine.partition("missing", 0)
        with pytest.raises(TopicNotFound, match="missing"):
            await engine.delete_topic("missing")
        for index in (2, -1):
            with pytest.raises(PartitionNotFound, match=str(index)):
                engine.partition("orders", index)

    async def test_a_deleted_topic_is_gone_and_stays_gone(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await append(partition, [b"x"])
        await engine.delete_topic("orders")
        assert "orders" not in engine.topics()
        with pytest.raises(TopicNotFound):
            engine.partition("orders", 0)
        engine = await storage.reopen()
        assert "orders" not in engine.topics()

    async def test_a_topic_created_again_is_another_one(self, storage: Storage) -> None:
        engine = await storage.open()
        await fill(await make_partition(engine))
        first = engine.topics()["orders"]
        await engine.delete_topic("orders")
        partition = await make_partition(engine)
        assert engine.topics()["orders"].id != first.id
        assert (partition.start_offset, partition.committed_end) == (0, 0)
        await append(partition, [b"new"])
        engine = await storage.reopen()
        assert await read_values(engine.partition("orders", 0)) == [b"new"]

    async def test_a_handle_of_a_deleted_topic_answers_topic_not_found(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        await append(partition, [b"x"])
        await engine.delete_topic("orders")
        await make_partition(engine)  # a new one of the name changes nothing for the old handle
        with pytest.raises(TopicNotFound):
            await append(partition, [b"y"])
        with pytest.raises(TopicNotFound):
            await partition.read(0)
        with pytest.raises(TopicNotFound):
            await partition.offset_at(0)

    async def test_appends_waiting_when_their_topic_is_deleted_fail(self, storage: Storage) -> None:
        engine = await storage.open()
        partition = await make_partition(engine)
        deleting = asyncio.ensure_future(engine.delete_topic("orders"))
        pending = [start_append(partition, Batch([b"%d" % n])) for n in range(3)]
        await asyncio.sleep(0)
        pending += [start_append(partition, Batch([b"later"]))]
        await deleting
        results = await asyncio.gather(*pending, return_exceptions=True)
        # What was already being written when the topic went may still be acknowledged; nothing may be left unanswered.
        assert all(isinstance(result, Appended | TopicNotFound) for result in results)
        assert isinstance(results[-1], TopicNotFound)

    async def test_deleting_one_topic_does_not_wait_for_the_traffic_of_others(self, storage: Storage) -> None:
        engine = await storage.open()
        busy = await make_partition(engine, "busy")
        await engine.create_topic("doomed", TopicConfig())
        going = True
        appends = 0

        def again(result: Appended | PenstockError) -> None:
            nonlocal appends
            appends += 1
            assert isinstance(result, Appended)
            if going:
                busy.append(Batch([b"x"]), again)

        for _ in range(4):  # so that something is always waiting while a commit runs
            busy.append(Batch([b"x"]), again)
            await asyncio.sleep(0)
        await asyncio.wait_for(engine.delete_topic("doomed"), 10)
        going = False
        assert "doomed" not in engine.topics()

    async def test_a_watcher_of_topics_hears_of_each_change_until_it_stops(self, storage: Storage) -> None:
        engine = await storage.open()
        told: list[tuple[str, int | None]] = []

        def changed(name: str) -> None:
            info = engine.topics().get(name)
            told.append((name, None if info is None else info.config.partitions))

        stop = engine.watch_topics(changed)
        await engine.create_topic("orders", TopicConfig())
        assert told[-1:] == [("orders", 1)]
        await engine.alter_topic("orders", TopicConfig(partitions=2))
        assert told[-1:] == [("orders", 2)]
        await engine.delete_topic("orders")
        assert told[-1:] == [("orders", None)]
        stop()
        stop()  # stopping twice is harmless
        before = list(told)
        await engine.create_topic("orders", TopicConfig())
        assert told == before
