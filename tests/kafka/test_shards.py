"""Engines that share out shards on a log in Kafka: what the owner of one writes, and what one that was replaced cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from bench.kafka import Kafka
from penstock.errors import InvalidRequest, NotLeading, NotWritten, OutcomeUnknown
from penstock.log.api import Batch, BatchFor, TopicConfig
from penstock.log.kafka.client import ProducerId
from penstock.log.kafka.engine import KafkaEngine
from penstock.log.kafka.faults import Unanswered
from penstock.log.kafka.settings import KafkaSettings
from tests.log.records import append, read_values, start_atomic_append

TABLE = "__table"
SHARDS = 4


async def until(engine: KafkaEngine, condition: Callable[[], bool]) -> None:
    """Wait until the nodes are as expected."""
    changed = asyncio.Event()
    stop = engine.watch_nodes(changed.set)
    async with asyncio.timeout(30):
        while not condition():
            await changed.wait()
            changed.clear()
    stop()


async def follow(engine: KafkaEngine, other: KafkaEngine, count: int) -> None:
    """Wait until the second owns so many shards: the first gives up what it is to."""
    changed = asyncio.Event()
    stops = [each.watch_nodes(changed.set) for each in (engine, other)]
    async with asyncio.timeout(30):
        while len(other.given_shards) < count:
            changed.clear()
            for shard in range(SHARDS):
                if shard not in engine.given_shards:
                    await engine.release_shard(shard)
            await changed.wait()
    for stop in stops:
        stop()


def in_shard(engine: KafkaEngine, shard: int) -> list[BatchFor]:
    return [
        BatchFor(engine.partition("orders", 0), Batch([b"dead"])),
        BatchFor(engine.partition(TABLE, shard), Batch([b"state"], [b"k"])),
    ]


@pytest.fixture
async def shared(kafka: Kafka, prefix: str) -> AsyncIterator[list[KafkaEngine]]:
    settings = KafkaSettings(bootstrap=(kafka.bootstrap,), topic_prefix=prefix)
    one, two = (KafkaEngine(settings, node=name, shards=SHARDS) for name in ("one", "two"))
    await one.start()
    await one.create_topic(TABLE, TopicConfig(partitions=SHARDS, cleanup="compact"))
    await one.create_topic("orders", TopicConfig())
    await two.start()
    for node in (one, two):
        node.divide(TABLE)
        node.announce({"cluster": "127.0.0.1:1"})
    await follow(one, two, SHARDS // 2)
    for node in (one, two):
        await until(node, lambda node=node: len(node.given_shards) == SHARDS // 2)  # type: ignore[misc]
        for shard in node.given_shards:
            await node.claim_shard(shard)
    yield [one, two]
    for node in (one, two):
        await node.close()


async def test_each_shard_is_written_by_its_owner_alone(shared: list[KafkaEngine]) -> None:
    one, two = shared
    assert sorted([*one.given_shards, *two.given_shards]) == list(range(SHARDS))
    for owner, other in ((one, two), (two, one)):
        for shard in owner.given_shards:
            await append(owner.partition(TABLE, shard), [b"1"], [b"k"])
            await start_atomic_append(owner, in_shard(owner, shard))
            with pytest.raises(NotLeading, match=f"this node does not own shard {shard}"):
                await append(other.partition(TABLE, shard), [b"2"], [b"k"])
            with pytest.raises(NotLeading, match=f"this node does not own shard {shard}"):
                await start_atomic_append(other, in_shard(other, shard))
            assert await read_values(other.partition(TABLE, shard)) == [b"1", b"state"]
    assert {node.id: tuple(node.shards) for node in one.nodes()} == {
        "one": tuple(sorted(one.given_shards)),
        "two": tuple(sorted(two.given_shards)),
    }


async def test_a_node_that_leaves_is_succeeded_in_its_shards(shared: list[KafkaEngine]) -> None:
    one, two = shared
    await append(one.partition(TABLE, min(one.given_shards)), [b"by one"], [b"k"])
    theirs = min(one.given_shards)
    await one.close()
    await until(two, lambda: len(two.given_shards) == SHARDS)
    await two.claim_shard(theirs)
    await append(two.partition(TABLE, theirs), [b"by two"], [b"k"])
    assert await read_values(two.partition(TABLE, theirs)) == [b"by one", b"by two"]


async def test_a_shard_that_comes_back_is_written_to_again(shared: list[KafkaEngine]) -> None:
    one, two = shared
    theirs = min(two.given_shards)
    for number in range(3):
        await append(two.partition(TABLE, theirs), [b"%d" % number], [b"k"])
        await two._shards.leave(theirs)
        await one.claim_shard(theirs)
        await append(one.partition(TABLE, theirs), [b"%d" % number], [b"k"])
        await one._shards.leave(theirs)
        await two.claim_shard(theirs)
    assert await read_values(two.partition(TABLE, theirs)) == [b"0", b"0", b"1", b"1", b"2", b"2"]


@pytest.mark.parametrize("keep", [False, True], ids=["", "once an hour"])
async def test_an_owner_that_writes_nothing_finds_out_that_it_was_replaced(
    shared: list[KafkaEngine], keep: bool
) -> None:
    one, two = shared
    theirs = min(two.given_shards)
    for loop in two._loops:
        await loop.cancel()
    await one.claim_shard(theirs)
    await two._shards.check(two.partition(TABLE, theirs).place, keep=keep)
    assert two.deposed is not None


async def test_a_shard_is_not_left_while_dead_letters_may_still_be_committed(
    shared: list[KafkaEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = shared[1]
    theirs = min(two.given_shards)
    end, answering = two._client.end_transaction, asyncio.Event()

    async def end_late(name: str, producer: ProducerId, *, commit: bool) -> None:
        if commit and not answering.is_set():
            raise Unanswered("a test")
        await end(name, producer, commit=commit)

    monkeypatch.setattr(two._client, "end_transaction", end_late)
    monkeypatch.setattr(two._sender, "_append_s_max", 0.5)
    with pytest.raises(OutcomeUnknown):
        await start_atomic_append(two, in_shard(two, theirs))
    leaving = asyncio.ensure_future(two._shards.leave(theirs))
    await asyncio.wait([leaving], timeout=0.5)
    assert not leaving.done()
    answering.set()
    await leaving
    monkeypatch.undo()
    await two.claim_shard(theirs)
    await start_atomic_append(two, in_shard(two, theirs))
    assert await read_values(two.partition(TABLE, theirs)) == [b"state", b"state"]


@pytest.mark.parametrize("atomic", [False, True], ids=["a state", "dead letters"])
async def test_an_owner_that_is_taken_for_dead_writes_nothing_more(shared: list[KafkaEngine], atomic: bool) -> None:
    """As one that was frozen for too long: it does not know yet that another node has its shards."""
    one, two = shared
    theirs = min(two.given_shards)
    await append(two.partition(TABLE, theirs), [b"before"], [b"k"])
    membership = two._membership
    assert membership is not None
    assert membership._loop is not None
    await membership._loop.cancel()
    await until(one, lambda: theirs in one.given_shards)
    await one.claim_shard(theirs)
    writing = (
        start_atomic_append(two, in_shard(two, theirs))
        if atomic
        else append(two.partition(TABLE, theirs), [b"late"], [b"k"])
    )
    with pytest.raises(NotWritten, match="another Penstock node"):
        await writing
    assert two.deposed is not None
    await append(one.partition(TABLE, theirs), [b"after"], [b"k"])
    assert await read_values(one.partition(TABLE, theirs)) == [b"before", b"after"]
    assert await read_values(one.partition("orders", 0)) == []


async def test_a_node_with_another_number_of_shards_does_not_join(shared: list[KafkaEngine]) -> None:
    with pytest.raises(InvalidRequest, match=r"cluster\.shards is 5 here and 4 on node (one|two): set the same"):
        await KafkaEngine(shared[0]._settings, node="three", shards=5).start()
