"""Several brokers on one log: one leads, the others follow it, and one of them takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import NotLeading, NotWritten, PenstockError, TopicExists
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog
from tests.broker.producing import produce, read_values
from tests.broker.subscribing import subscribe, take_values
from tests.open_access import OpenAccess

WHO = ANONYMOUS


class Node:
    def __init__(self, log: SharedLog, clock: ManualClock, seed: int) -> None:
        self.engine = SharedEngine(log, clock=clock, seed=seed)
        self.broker = Broker(self.engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())

    async def stop(self) -> None:
        await self.broker.close()
        await self.engine.close()


class Direct:
    """The node that leads, without a network in between."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def create_topic(self, principal: Principal, name: str, config: TopicConfig, schema: str | None) -> None:
        await self.broker.topics.create(principal, name, config, schema)


@pytest.fixture(params=range(3), ids="seed {}".format)
async def nodes(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[list[Node]]:
    log = SharedLog(elects=True, shards=1)
    nodes = [Node(log, clock, 3 * request.param + number) for number in range(3)]
    for node in nodes:
        await node.engine.start()
    await asyncio.gather(*(node.broker.start() for node in reversed(nodes)))
    for node in nodes:
        node.engine.announce({"cluster": "here"})
    await until(lambda: nodes[0].broker.subscriptions.owns(0))
    yield nodes
    for node in nodes:
        await node.stop()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_the_first_leads_and_the_others_begin_as_it_has_made_the_tables(nodes: list[Node]) -> None:
    assert [node.broker.leading.leads for node in nodes] == [True, False, False]
    for node in nodes[1:]:
        await node.broker.leading.catch_up()
        assert node.engine.topics() == nodes[0].engine.topics()


async def test_users_rights_keys_schemas_and_offsets_show_everywhere(nodes: list[Node]) -> None:
    one, two, three = (node.broker for node in nodes)
    await one.topics.create(WHO, "orders", TopicConfig())
    await one.users.create_user(WHO, "ada", "a good password", ["consumer"])
    await one.api_keys.create(WHO, "meter", ["producer"])
    await one.schemas.register(WHO, "order", "json", '{"type": "object"}')
    await two.leading.catch_up()
    assert [user.name for user in two.users.list_users(WHO)] == ["ada"]
    assert two.api_keys.roles_of("meter") == ("producer",)
    assert two.schemas.get(WHO, "order", 1).version == 1
    await two.groups.commit(WHO, "orders", "g", 0, 7)
    assert two.groups.committed(WHO, "orders", "g", 0) == 7
    await three.leading.catch_up()
    assert three.groups.committed(WHO, "orders", "g", 0) == 7
    await one.api_keys.revoke(WHO, "meter")
    await until(lambda: two.api_keys.roles_of("meter") is None)


async def test_a_node_that_follows_has_the_one_that_leads_create_topics(nodes: list[Node]) -> None:
    one, two, _ = (node.broker for node in nodes)
    with pytest.raises(NotLeading):
        await two.topics.create(WHO, "orders", TopicConfig())
    two.topics.leader = Direct(one)
    assert (await two.topics.create(WHO, "orders", TopicConfig(partitions=2))).config.partitions == 2
    with pytest.raises(TopicExists):
        await two.topics.create(WHO, "orders", TopicConfig())
    await two.topics.ensure(WHO, "orders")
    await two.topics.ensure(WHO, "missing")
    await produce(two, "missing", [b"x"])
    assert await read_values(one.records.partition(WHO, "missing", 0)) == [b"x"]


async def test_deliveries_and_delayed_records_continue_at_the_successor(nodes: list[Node], clock: ManualClock) -> None:
    one, two, _ = (node.broker for node in nodes)
    await one.topics.create(WHO, "orders", TopicConfig())
    subscription = await subscribe(one, name="shop")
    await produce(one, "orders", [b"a", b"b"])
    assert await take_values(one, subscription, acknowledge=False) == [b"a", b"b"]
    accepted = asyncio.Event()
    one.schedule.add(WHO, "orders", 0, b"later", delay_ms=1000, done=lambda _: accepted.set())
    await accepted.wait()
    await nodes[0].stop()
    await until(lambda: two.leading.leads and two.subscriptions.owns(0))
    again = await subscribe(two, name="shop")
    assert again.id == subscription.id
    clock.advance(2)
    two.schedule.look()
    await until(lambda: two.schedule.stats.delivered == 1)
    await two.topics.follow(WHO, "orders")
    assert await take_values(two, again) == [b"a", b"b", b"later"]


async def test_what_a_node_decides_that_was_replaced_is_refused(nodes: list[Node]) -> None:
    one, two, _ = (node.broker for node in nodes)
    await one.topics.create(WHO, "orders", TopicConfig())
    subscription = await subscribe(one, name="shop")
    await produce(one, "orders", [b"a"])
    transaction = one.transactions.begin(WHO)
    one.transactions.produce(WHO, "orders", transaction, 0, [b"never"], done=lambda _: None)
    nodes[0].engine.log.depose(nodes[0].engine)
    await until(lambda: two.leading.leads and two.subscriptions.owns(0))
    assert not one.leading.leads
    with pytest.raises(NotWritten):
        await one.transactions.commit(WHO, transaction)
    with pytest.raises(NotWritten):
        await one.topics.create(WHO, "more", TopicConfig())
    with pytest.raises(PenstockError):
        await one.users.create_user(WHO, "eve", "a good password", ["admin"])
    assert await take_values(one, subscription) == [b"a"]
    answered: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    one.subscriptions.when_durable(answered.set_result)
    assert isinstance(await answered, PenstockError)
    again = await subscribe(two, name="shop")
    assert await take_values(two, again) == [b"a"]
    assert await read_values(two.records.partition(WHO, "orders", 0)) == [b"a"]
    assert list(two.users.list_users(WHO)) == []
