"""Engines that share a log in Kafka: one of them leads, and the others follow it and take its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Literal

import pytest

from bench.kafka import Kafka
from penstock.errors import InvalidRequest, NotLeading, NotWritten, TopicNotFound
from penstock.log.api import Batch, BatchFor, TopicConfig
from penstock.log.kafka.engine import KafkaEngine
from penstock.log.kafka.settings import KafkaSettings
from tests.log.records import append, read_values, start_atomic_append


def in_both(engine: KafkaEngine) -> list[BatchFor]:
    return [BatchFor(engine.partition("orders", index), Batch([b"x"])) for index in range(2)]


@pytest.fixture
async def nodes(kafka: Kafka, prefix: str) -> AsyncIterator[list[KafkaEngine]]:
    settings = KafkaSettings(bootstrap=(kafka.bootstrap,), topic_prefix=prefix)
    nodes = [KafkaEngine(settings, node=name) for name in ("one", "two")]
    for node in nodes:
        node.share("__shared")
        await node.start()
    yield nodes
    for node in nodes:
        await node.close()


async def until(engine: KafkaEngine, condition: Callable[[], bool]) -> None:
    """Wait until the nodes are as expected."""
    changed = asyncio.Event()
    stop = engine.watch_nodes(changed.set)
    while not condition():
        await changed.wait()
        changed.clear()
    stop()


async def test_the_first_leads_and_the_second_follows_what_it_decides(nodes: list[KafkaEngine]) -> None:
    one, two = nodes
    assert (one.leads, two.leads) == (True, False)
    await until(one, lambda: len(one.nodes()) == 2)
    assert [(node.id, node.leads) for node in one.nodes()] == [("one", True), ("two", False)]
    assert list(two.nodes()) == list(one.nodes())
    await one.create_topic("orders", TopicConfig(partitions=2))
    await two.catch_up()
    assert two.topics()["orders"] == one.topics()["orders"]
    await append(two.partition("orders", 1), [b"x"])
    assert await read_values(one.partition("orders", 1)) == [b"x"]
    await one.alter_topic("orders", TopicConfig(partitions=3))
    await two.catch_up()
    assert await read_values(two.partition("orders", 2)) == []
    await one.delete_topic("orders")
    await two.catch_up()
    with pytest.raises(TopicNotFound):
        two.partition("orders", 0)


async def test_a_node_that_does_not_lead_decides_nothing(nodes: list[KafkaEngine]) -> None:
    one, two = nodes
    await one.create_topic("orders", TopicConfig(partitions=2))
    for name in ("__claimed", "__shared"):
        await one.create_topic(name, TopicConfig())
    await two.catch_up()
    for change in (
        two.create_topic("more", TopicConfig()),
        two.delete_topic("orders"),
        two.alter_topic("orders", TopicConfig(partitions=3)),
        append(two.partition("__claimed", 0), [b"x"]),
        start_atomic_append(two, in_both(two)),
    ):
        with pytest.raises(NotLeading):
            await change
    await append(two.partition("__shared", 0), [b"from two"])
    await append(one.partition("__shared", 0), [b"from one"])
    assert await read_values(one.partition("__shared", 0)) == [b"from two", b"from one"]


async def test_a_node_that_leaves_is_succeeded_and_what_it_began_is_completed(nodes: list[KafkaEngine]) -> None:
    one, two = nodes
    await one.create_topic("orders", TopicConfig(partitions=2))
    await one.create_topic("__claimed", TopicConfig())
    await append(one.partition("__claimed", 0), [b"by one"])
    await one.close()
    await until(two, lambda: two.leads)
    await append(two.partition("__claimed", 0), [b"by two"])
    assert await read_values(two.partition("__claimed", 0)) == [b"by one", b"by two"]
    await start_atomic_append(two, in_both(two))
    await two.create_topic("more", TopicConfig())
    assert [node.id for node in two.nodes()] == ["two"]


async def test_a_node_that_is_taken_for_dead_is_fenced(nodes: list[KafkaEngine]) -> None:
    """As one that was frozen for too long: it does not know yet that another leads."""
    one, two = nodes
    await one.create_topic("__claimed", TopicConfig())
    membership = one._membership
    assert membership is not None
    assert membership._loop is not None
    await membership._loop.cancel()
    await until(two, lambda: two.leads)
    with pytest.raises(
        NotWritten, match=r"another Penstock node has the place of this one.*connect again, to any node$"
    ):
        await append(one.partition("__claimed", 0), [b"too late"])
    assert one.deposed is not None
    assert not one.leads
    with pytest.raises(NotWritten):
        await one.create_topic("more", TopicConfig())
    await append(two.partition("__claimed", 0), [b"in time"])
    assert await read_values(two.partition("__claimed", 0)) == [b"in time"]


@pytest.mark.parametrize("role", ["serve", "import", "retire"])
async def test_nobody_claims_the_topics_of_nodes_for_himself(
    nodes: list[KafkaEngine], role: Literal["serve", "import", "retire"]
) -> None:
    """They would continue to write to users' topics: what is moved away meanwhile, or decided beside them, would lack that."""
    one, _ = nodes
    await until(one, lambda: len(one.nodes()) == 2)
    with pytest.raises(InvalidRequest, match=r"nodes of a cluster run on these topics in Kafka \(one, two\): stop all"):
        await KafkaEngine(one._settings, role=role).start()
    await one.create_topic("undisturbed", TopicConfig())


async def test_a_node_that_is_taken_for_dead_before_it_leads_starts_again(
    nodes: list[KafkaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would neither lead nor follow, and tell its clients forever that it is the one that leads."""
    one, two = nodes
    membership = two._membership
    assert membership is not None
    reached = asyncio.Event()

    async def take_over(_: str) -> None:
        reached.set()
        raise NotWritten("Kafka is slow")

    monkeypatch.setattr(two, "_take_over", take_over)
    await one.close()
    await reached.wait()
    membership._lose("Kafka has not heard of this node for too long")
    await until(two, lambda: two.deposed is not None)
    assert not two.leads
