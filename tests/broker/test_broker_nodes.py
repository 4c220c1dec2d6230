"""Brokers on one log: what one does, the other shows; and a log whose answers get lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.idempotence.stored import Written
from penstock.broker.limits import BrokerLimits
from penstock.errors import NotWritten, TopicNotFound
from penstock.log.api import Durability, TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog
from tests.broker.idempotence.sending import client_of
from tests.broker.producing import produce, read_values
from tests.broker.subscribing import subscribe, take_values
from tests.open_access import OpenAccess

WHO = ANONYMOUS


class Node:
    def __init__(self, log: SharedLog, clock: ManualClock, seed: int) -> None:
        self.engine = SharedEngine(log, clock=clock, seed=seed)
        self.broker = Broker(self.engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())

    async def values(self, topic: str) -> list[bytes | None]:
        return await read_values(self.broker.records.partition(WHO, topic, 0))


@pytest.fixture(params=range(3), ids="seed {}".format)
async def nodes(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[list[Node]]:
    log = SharedLog()
    nodes = [Node(log, clock, 2 * request.param + number) for number in range(2)]
    for node in nodes:
        await node.engine.start()
        await node.broker.start()
    yield nodes
    for node in nodes:
        await node.broker.close()
        await node.engine.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def shared_topic(nodes: list[Node], partitions: int = 1) -> None:
    await nodes[0].broker.topics.create(WHO, "orders", TopicConfig(partitions=partitions))
    await until(lambda: nodes[1].broker.topics.exists("orders"))


async def test_a_reader_elsewhere_begins_behind_what_was_acknowledged_here(nodes: list[Node]) -> None:
    one, two = (node.broker for node in nodes)
    await shared_topic(nodes)
    for number in range(5):
        await produce(one, "orders", [b"%d" % number])
    assert await nodes[1].values("orders") == [b"%d" % number for number in range(5)]
    end = await two.groups.start_position(WHO, "orders", "g", 0, "latest")
    assert end == one.records.partition(WHO, "orders", 0).committed_end
    described = await two.topics.follow(WHO, "orders")
    assert described.partitions[0].committed_end == end


async def test_an_offset_that_is_committed_here_is_where_the_group_continues_elsewhere(nodes: list[Node]) -> None:
    one, two = (node.broker for node in nodes)
    await shared_topic(nodes)
    for offset in range(1, 20):
        await one.groups.commit(WHO, "orders", "g", 0, offset)
        assert one.groups.committed(WHO, "orders", "g", 0) == offset
    await until(lambda: any(info.group == "g" for info in two.groups.all(WHO)))
    await until(lambda: two.groups.committed(WHO, "orders", "g", 0) == 19)
    await two.groups.commit(WHO, "orders", "g", 0, 3)
    await until(lambda: one.groups.committed(WHO, "orders", "g", 0) == 3)


async def test_a_subscription_reads_partitions_that_another_node_adds(nodes: list[Node]) -> None:
    one, two = (node.broker for node in nodes)
    await shared_topic(nodes)
    subscription = await subscribe(two)
    await one.topics.add_partitions(WHO, "orders", 3)
    await until(lambda: len(subscription.positions) == 3)
    await produce(one, "orders", [b"new"], partition=2)
    await two.topics.follow(WHO, "orders")
    assert await take_values(two, subscription) == [b"new"]


async def test_a_subscription_ends_with_its_topic_on_whichever_node_that_is_deleted(nodes: list[Node]) -> None:
    one, two = (node.broker for node in nodes)
    await shared_topic(nodes)
    subscription = await subscribe(two)
    await produce(one, "orders", [b"x"])
    await one.topics.delete(WHO, "orders")
    await until(lambda: subscription.deleted)
    assert len(two.subscriptions) == 0
    with pytest.raises(TopicNotFound):
        await produce(two, "orders", [b"y"])


@pytest.mark.parametrize("stored", [True, False])
async def test_a_transaction_whose_commit_was_not_answered_is_committed_once(nodes: list[Node], stored: bool) -> None:
    broker = nodes[0].broker
    await shared_topic(nodes)
    transaction = broker.transactions.begin(WHO)
    broker.transactions.produce(WHO, "orders", transaction, 0, [b"once"], done=lambda _: None)
    await broker.audit.written()  # the lost answer is that of the commit
    nodes[0].engine.lose_answer(stored=stored)
    if stored:
        assert await broker.transactions.commit(WHO, transaction)
    else:
        with pytest.raises(NotWritten, match="nothing was written"):
            await broker.transactions.commit(WHO, transaction)
        assert await broker.transactions.commit(WHO, transaction)
    assert not await broker.transactions.commit(WHO, transaction)
    assert await nodes[0].values("orders") == [b"once"]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_delayed_record_whose_delivery_was_not_answered_is_delivered_once(
    nodes: list[Node], clock: ManualClock, stored: bool
) -> None:
    broker = nodes[0].broker
    await shared_topic(nodes)
    accepted = asyncio.Event()
    broker.schedule.add(WHO, "orders", 0, b"once", delay_ms=1000, done=lambda _: accepted.set())
    await accepted.wait()
    await broker.audit.written()
    nodes[0].engine.lose_answer(stored=stored)
    clock.advance(2)
    broker.schedule.look()
    await until(lambda: broker.schedule.stats.delivered == 1)
    assert broker.schedule.pending == 0
    assert await nodes[0].values("orders") == [b"once"]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
@pytest.mark.parametrize("durability", ["fsync", "none"])
async def test_a_request_of_an_idempotent_producer_is_stored_once_if_its_answer_is_lost(
    nodes: list[Node], durability: str, *, stored: bool
) -> None:
    broker = nodes[0].broker
    await broker.topics.create(WHO, "orders", TopicConfig(durability=Durability.parse(durability)))
    client = await client_of(broker)
    request = client.request("orders", [b"once"])
    await broker.audit.written()  # the lost answer is that of the request
    nodes[0].engine.lose_answer(stored=stored)
    [first] = await asyncio.gather(client.start(broker, request), return_exceptions=True)
    assert isinstance(first, NotWritten) is not stored
    [again] = await asyncio.gather(client.start(broker, request), return_exceptions=True)
    assert await nodes[0].values("orders") == [b"once"]
    if stored:
        assert str(first) == str(again), "it is answered as before"
    else:
        assert isinstance(again, Written)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_a_producer_is_registered_if_the_answer_is_lost(nodes: list[Node], *, stored: bool) -> None:
    broker = nodes[0].broker
    await broker.topics.create(WHO, "orders", TopicConfig())
    await broker.audit.written()
    nodes[0].engine.lose_answer(stored=stored)
    if not stored:
        with pytest.raises(NotWritten):
            await client_of(broker)
        return
    client = await client_of(broker)
    await client.send(broker, client.request("orders", [b"a"]))
    assert await nodes[0].values("orders") == [b"a"]
