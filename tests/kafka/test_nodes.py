"""One node at a time: a later one takes over, ends what the other left, and the other writes nothing more."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import NotWritten, TopicNotFound
from penstock.log.api import Batch, BatchFor, TopicConfig
from penstock.log.appending import start_append
from penstock.log.kafka.engine import KafkaEngine
from tests.kafka.cluster import Cluster, until
from tests.log.records import append, read_values, start_atomic_append
from tests.log.storage import make_partition


async def second_node(storage: Cluster) -> KafkaEngine:
    node = KafkaEngine(storage.settings)
    await node.start()
    return node


async def test_a_node_that_was_replaced_writes_to_no_internal_topic(storage: Cluster) -> None:
    first = await storage.open()
    table = await make_partition(first, "__table", TopicConfig(cleanup="compact"))
    orders = await make_partition(first)
    await append(table, [b"1"], [b"k"])
    second = await second_node(storage)
    try:
        with pytest.raises(NotWritten, match="another Penstock node has taken over"):
            await append(table, [b"2"], [b"k"])
        with pytest.raises(NotWritten, match="another Penstock node has taken over"):
            await start_append(orders, Batch([b"x"]))  # known by now, so topics of users are refused too
        with pytest.raises(NotWritten, match="another Penstock node has taken over"):
            await first.create_topic("more", TopicConfig())
        assert orders.failure is not None
        assert await read_values(second.partition("__table", 0)) == [b"1"]
        await append(second.partition("__table", 0), [b"3"], [b"k"])
    finally:
        await second.close()


async def test_a_node_that_was_replaced_commits_no_transaction(storage: Cluster) -> None:
    first = await storage.open()
    one, two = await make_partition(first, "one"), await make_partition(first, "two")
    await start_atomic_append(first, [BatchFor(one, Batch([b"1"])), BatchFor(two, Batch([b"1"]))])
    second = await second_node(storage)
    try:
        with pytest.raises(NotWritten, match="another Penstock node has"):
            await start_atomic_append(first, [BatchFor(one, Batch([b"2"])), BatchFor(two, Batch([b"2"]))])
        assert await read_values(second.partition("one", 0)) == [b"1"]
        assert await read_values(second.partition("two", 0)) == [b"1"]
    finally:
        await second.close()


async def test_a_node_that_was_replaced_does_not_take_its_transactions_back(
    storage: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each needs a transactional id, and one that was refused is taken again: from the node that leads now, if it did not look."""
    monkeypatch.setattr("penstock.log.kafka.engine.CHECK_S", 3600.0)  # so that it finds out by nothing else
    first = await storage.open()
    one, two = await make_partition(first, "one"), await make_partition(first, "__two")
    await start_atomic_append(first, [BatchFor(one, Batch([b"1"])), BatchFor(two, Batch([b"1"]))])
    second = await second_node(storage)
    try:
        for _ in range(3):
            with pytest.raises(NotWritten, match="another Penstock node has"):
                await start_atomic_append(first, [BatchFor(one, Batch([b"2"])), BatchFor(two, Batch([b"2"]))])
        assert first.deposed is not None
        assert await read_values(second.partition("__two", 0)) == [b"1"]
        assert await read_values(second.partition("one", 0)) == [b"1"]
    finally:
        await second.close()


async def test_a_log_that_is_moved_for_good_gets_no_more_records_from_a_node_that_still_runs(
    storage: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.kafka.engine.CHECK_S", 3600.0)  # so that it finds out by nothing else
    first = await storage.open()
    orders = await make_partition(first)
    await append(orders, [b"moved"])
    retired = KafkaEngine(storage.settings, role="retire")
    await retired.start()
    try:
        with pytest.raises(NotWritten, match="another Penstock node has taken over"):
            await append(orders, [b"lost, if it were acknowledged"])
        assert await read_values(retired.partition("orders", 0)) == [b"moved"]
    finally:
        await retired.close()


async def test_a_node_that_writes_nothing_finds_out_that_it_was_replaced(
    storage: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.log.kafka.engine.CHECK_S", 0.05)
    first = await storage.open()
    partition = await make_partition(first)
    second = await second_node(storage)
    await until(lambda: partition.failure is not None)
    assert "kafka claim" in first.background.failing, "it is not ready any more"
    await second.close()


async def test_what_a_dead_node_left_open_holds_nobody_up(storage: Cluster) -> None:
    engine = await storage.open()
    one, two = await make_partition(engine, "one"), await make_partition(engine, "two")
    await append(one, [b"before"])
    dying = engine._lead.transactions

    replaced = asyncio.Event()

    async def sleep(*_: object) -> bool:
        await replaced.wait()
        return False

    dying._end = sleep  # type: ignore[method-assign, assignment]
    pending = start_atomic_append(engine, [BatchFor(one, Batch([b"lost"])), BatchFor(two, Batch([b"lost"]))])
    await until(lambda: bool(dying._endings))  # the records are written, and the end will not be asked for
    second = await second_node(storage)
    try:
        assert (await append(second.partition("one", 0), [b"after"])).base_offset > 1
        assert await read_values(second.partition("one", 0)) == [b"before", b"after"]
        assert await read_values(second.partition("two", 0)) == []
    finally:
        replaced.set()
        with pytest.raises(NotWritten, match="another Penstock node has"):
            await pending
        await second.close()


async def test_a_change_of_topics_that_was_cut_short_is_completed_at_the_next_start(
    storage: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await storage.open()
    await append(await make_partition(engine, "doomed"), [b"x"])
    partition = await make_partition(engine, "cut")
    await append(partition, [b"1", b"2", b"3"])
    await engine.create_topic("altered", TopicConfig())
    store = engine._store

    class Crash(Exception):
        pass

    async def crash(*_: object) -> None:
        raise Crash

    for step in ("_create", "_delete", "_alter", "_truncate"):
        monkeypatch.setattr(store, step, crash)
    for change in (
        engine.create_topic("odd/name", TopicConfig(partitions=2)),
        engine.delete_topic("doomed"),
        engine.alter_topic("altered", TopicConfig(partitions=3, retention_ms=1000)),
        engine.truncate_topic("cut", {0: 2}),
    ):
        with pytest.raises(Crash):
            await change
    engine = await storage.reopen()
    assert engine.topics()["odd/name"].config.partitions == 2
    assert engine.topics()["altered"].config == TopicConfig(partitions=3, retention_ms=1000)
    assert await read_values(engine.partition("altered", 2)) == []
    with pytest.raises(TopicNotFound):
        engine.partition("doomed", 0)
    assert await read_values(engine.partition("cut", 0)) == [b"3"]


async def test_names_that_kafka_takes_for_one_are_two_topics(storage: Cluster) -> None:
    engine = await storage.open()
    await append(await make_partition(engine, "a.b"), [b"dot"])
    await append(await make_partition(engine, "a_b"), [b"low line"])
    engine = await storage.reopen()
    assert await read_values(engine.partition("a.b", 0)) == [b"dot"]
    assert await read_values(engine.partition("a_b", 0)) == [b"low line"]
