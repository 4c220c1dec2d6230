"""Several nodes that share out subscriptions: two owners at work at once, a node that is added, stopped or replaced, and lists of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.deliveries import elsewhere
from penstock.broker.deliveries.shards import SUBSCRIPTIONS_TOPIC, shard_of_topic
from penstock.broker.deliveries.stored import StoredSubscription
from penstock.broker.deliveries.subscription import Delivery, Subscription
from penstock.broker.deliveries.subscription_writer import SubscriptionWriter
from penstock.broker.table import Table
from penstock.errors import GroupNotFound, PenstockError
from penstock.log.api import TopicConfig
from penstock.protocols.blipmq.client import AsyncBlipMQClient
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.fujin.client import AsyncFujinClient
from penstock.testing.shared_log import SharedLog
from tests.shared_nodes import API_KEY, SharedNode

SHARDS = 4
LISTENERS: dict[str, dict[str, str]] = {"blipmq": {}, "flymq": {}, "fujin": {}}
TOPICS = [f"t{number}" for number in range(8)]


class Nodes:
    def __init__(self, directory: Path) -> None:
        self.log = SharedLog(elects=True, shards=SHARDS)
        self.running: list[SharedNode] = []
        self._directory = directory

    async def add(self, name: str) -> SharedNode:
        patient = {"backoff_ms": 60_000}  # nothing comes again because a test took its time
        node = SharedNode(self.log, name, self._directory, LISTENERS, subscriptions=patient)
        self.running.append(await node.start())
        await self.settled()
        return node

    async def stop(self, node: SharedNode) -> None:
        self.running.remove(node)
        await node.stop()
        await self.settled()

    async def settled(self) -> None:
        """Wait until every shard has an owner that has loaded it."""
        await until(
            lambda: (
                sum(len(node.engine.given_shards) for node in self.running) == SHARDS
                and all(set(node.broker.subscriptions.owned) == set(node.engine.given_shards) for node in self.running)
            )
        )

    def owner(self, topic: str) -> SharedNode:
        shard = shard_of_topic(topic, SHARDS)
        [owner] = [node for node in self.running if node.broker.subscriptions.owns(shard)]
        return owner


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path)
    for name in ("one", "two"):
        await nodes.add(name)
    yield nodes
    for node in reversed(nodes.running):
        await node.stop()


@asynccontextmanager
async def blipmq(node: SharedNode) -> AsyncIterator[AsyncBlipMQClient]:
    async with AsyncBlipMQClient(f"blipmq://{API_KEY}@{node.addresses['blipmq']}") as client:
        yield client


@asynccontextmanager
async def flymq(node: SharedNode) -> AsyncIterator[AsyncFlyMQClient]:
    async with AsyncFlyMQClient(f"flymq://{node.addresses['flymq']}") as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


async def test_both_nodes_own_shards_and_a_client_of_either_reads_all_topics(nodes: Nodes) -> None:
    assert {nodes.owner(topic).engine.node for topic in TOPICS} == {"one", "two"}
    for node in nodes.running:
        async with blipmq(node) as client:
            subscriptions = {topic: await client.subscribe(topic) for topic in TOPICS}
            for topic in TOPICS:
                await client.send_many(topic, [b"%d" % number for number in range(20)])
            for subscription in subscriptions.values():
                messages = await client.poll(subscription, 20)
                assert [message.value for message in messages] == [b"%d" % number for number in range(20)]
                await client.ack(subscription, *(message.tag for message in messages if message.tag is not None))
            await client.ping()
    for node in nodes.running:
        assert len(node.broker.subscriptions) > 0
        assert node.broker.subscriptions.in_flight == 0


async def test_large_frames_of_several_owners_reach_a_client_whole(nodes: Nodes) -> None:
    three = await nodes.add("three")
    topics = {nodes.owner(topic).engine.node: topic for topic in TOPICS}
    assert topics.keys() == {"one", "two", "three"}
    async with blipmq(three) as client:
        subscriptions = {topic: await client.subscribe(topic) for topic in topics.values()}
        for topic in subscriptions:
            await client.send_many(topic, [topic.encode() * 100_000] * 10)
        seen = dict.fromkeys(subscriptions, 0)

        async def read(topic: str) -> None:
            while seen[topic] < 10:
                for message in await client.poll(subscriptions[topic], 10):
                    assert message.value == topic.encode() * 100_000
                    seen[topic] += 1
                    await client.ack(subscriptions[topic], message.tag or 0)
                await client.ping()

        await asyncio.gather(*map(read, subscriptions))
    for node in nodes.running:
        assert node.broker.subscriptions.in_flight == 0


async def test_a_reader_of_fujin_is_served_by_the_owner_of_its_topic(nodes: Nodes) -> None:
    for node, topic in zip(nodes.running * 4, TOPICS, strict=True):
        certificate = node.server.config.data_dir / "dev-certificate.pem"
        async with AsyncFujinClient(f"fujin://{node.addresses['fujin']}?ca={certificate}") as client:
            await client.send_many(topic, [b"a", b"b"])
            async with client.reader(topic) as reader:
                batch = await reader.next_batch(2)
                await reader.ack(*batch)
                assert len(batch) > 0
        assert nodes.owner(topic).broker.subscriptions.find_named(topic, "fujin") is not None


async def test_a_node_that_is_added_gets_shards_and_delivers_nothing_again_that_was_acknowledged(
    nodes: Nodes,
) -> None:
    one = nodes.running[0]
    async with blipmq(one) as client:
        subscriptions = {topic: await client.subscribe(topic) for topic in TOPICS}
        for topic, subscription in subscriptions.items():
            await client.send_many(topic, [b"done", b"not yet", b"new"])
            done, _ = await client.poll(subscription, 2)
            assert done.tag is not None
            await client.ack(subscription, done.tag)
        before = {topic: nodes.owner(topic) for topic in TOPICS}
        three = await nodes.add("three")
        moved = [topic for topic in TOPICS if nodes.owner(topic) is three]
        assert moved
        assert all(nodes.owner(topic) is before[topic] for topic in TOPICS if topic not in moved)
    async with blipmq(three) as client:
        for topic, subscription in subscriptions.items():
            values = [message.value for message in await client.poll(subscription, 9)]
            assert values == ([b"not yet", b"new"] if topic in moved else [b"new"])


async def test_a_subscription_that_is_being_made_goes_along_with_its_shard(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = nodes.running[0]
    topic = next(topic for topic in TOPICS if nodes.owner(topic) is one)
    await one.broker.topics.create(ANONYMOUS, topic, TopicConfig())
    subscriptions = one.broker.subscriptions
    await stay(one)
    shard = shard_of_topic(topic, SHARDS)
    add, going_on = subscriptions._shards[shard].add, asyncio.Event()

    async def slow_add(stored: StoredSubscription) -> int:
        await going_on.wait()
        return await add(stored)

    monkeypatch.setattr(subscriptions._shards[shard], "add", slow_add)
    making = asyncio.ensure_future(subscriptions.subscribe(ANONYMOUS, topic, 1, name="group"))
    await until(lambda: bool(subscriptions._arriving[shard]))
    losing = asyncio.ensure_future(subscriptions.lose(shard))
    await until(lambda: not subscriptions.owns(shard))
    going_on.set()
    made = await making
    await losing
    assert made.deleted
    await one.engine.claim_shard(shard)
    await subscriptions.gain(shard)
    kept = subscriptions.find_named(topic, "group")
    assert kept is not None
    assert kept.id == made.id


async def test_a_shard_that_comes_back_before_it_could_go_is_owned_again(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with blipmq(nodes.running[0]) as client:
        for topic in TOPICS:
            await client.subscribe(topic)
        with monkeypatch.context() as stuck:
            stuck.setattr(SubscriptionWriter, "unwritten", True)
            three = await SharedNode(nodes.log, "three", tmp_path, LISTENERS).start()
            await until(lambda: any(node.broker.subscriptions._leaving for node in nodes.running))
            await three.stop()
            await until(lambda: sum(len(node.engine.given_shards) for node in nodes.running) == SHARDS)
        await nodes.settled()
        for topic in TOPICS:
            number = await client.subscribe(topic)
            await client.send(topic, b"x")
            [message] = await client.poll(number)
            assert message.value == b"x"
    for node in nodes.running:
        subscriptions = node.broker.subscriptions
        assert subscriptions._subscribed.total() == len(subscriptions)


async def test_the_shards_of_a_node_that_stops_go_to_the_others(nodes: Nodes) -> None:
    one, two = nodes.running
    async with blipmq(one) as client:
        subscriptions = {topic: await client.subscribe(topic) for topic in TOPICS}
        for topic, subscription in subscriptions.items():
            await client.send_many(topic, [b"done", b"left"])
            [done] = await client.poll(subscription)
            await client.ack(subscription, done.tag or 0)
        await client.ping()
    await nodes.stop(one)
    async with blipmq(two) as client:
        for subscription in subscriptions.values():
            assert [message.value for message in await client.poll(subscription, 9)] == [b"left"]


async def test_an_owner_that_was_replaced_acknowledges_nothing_and_is_to_start_again(nodes: Nodes) -> None:
    """As one that was frozen for too long, and does not know yet that another node has its shards."""
    one, two = nodes.running
    topic = next(topic for topic in TOPICS if nodes.owner(topic) is two)
    subscriptions = two.broker.subscriptions
    await one.broker.topics.create(ANONYMOUS, topic, TopicConfig())
    await two.broker.leading.catch_up()
    subscription = await subscriptions.subscribe(ANONYMOUS, topic, 1, name="group")
    async with blipmq(two) as client:
        await client.send_many(topic, [b"a", b"b"])
    taken = await take(two, subscription, 2)
    await stay(two)
    nodes.log.depose(two.engine)
    await until(lambda: one.broker.subscriptions.owns(subscription.shard))
    assert subscriptions.acknowledge(ANONYMOUS, topic, subscription, taken[0].tag), "it does not know yet"
    durable: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
    subscriptions.when_durable(durable.set_result)
    assert await durable is not None
    assert two.engine.deposed is not None
    there = one.broker.subscriptions.find_named(topic, "group")
    assert there is not None
    await there.follow()
    assert [await value_of(one, topic, "group") for _ in range(2)] == [b"a", b"b"]


async def take(node: SharedNode, subscription: Subscription, count: int) -> list[Delivery]:
    """Take so many deliveries, which are there."""
    taken: list[Delivery] = []
    await subscription.follow()
    async with asyncio.timeout(20):
        while len(taken) < count:
            more = node.broker.subscriptions.take_many(ANONYMOUS, subscription.topic, subscription, count, 1000)
            if isinstance(more, list):
                taken += more
            else:
                await node.broker.subscriptions.load(ANONYMOUS, subscription.topic, subscription)
            await asyncio.sleep(0)
    return taken


async def stay(node: SharedNode) -> None:
    """Keep the shards of a node as they are until a test changes them."""
    loop = node.broker.leading._owning
    assert loop is not None
    await loop.cancel()


async def value_of(node: SharedNode, topic: str, name: str) -> bytes | None:
    subscriptions = node.broker.subscriptions
    found = subscriptions.find_named(topic, name)
    assert found is not None
    while True:
        taken = subscriptions.take_many(ANONYMOUS, topic, found, 1, 1000)
        if isinstance(taken, list):
            return taken[0].value if taken else None
        await subscriptions.load(ANONYMOUS, topic, found)


async def test_an_owner_that_does_not_lead_writes_dead_letters(nodes: Nodes) -> None:
    one, two = nodes.running
    topic = next(topic for topic in TOPICS if nodes.owner(topic) is two)
    await one.broker.topics.create(ANONYMOUS, topic, TopicConfig())
    await two.broker.leading.catch_up()
    subscriptions = two.broker.subscriptions
    subscription = await subscriptions.subscribe(ANONYMOUS, topic, 1, name="group")
    async with blipmq(two) as client:
        await client.send(topic, b"poison")
    taken = await take(two, subscription, 1)
    subscriptions.dead_letter(ANONYMOUS, topic, subscription, taken[0].tag, "a test")
    await until(lambda: subscription.dead_letters == 1)
    await one.broker.leading.catch_up()
    [letter] = await one.broker.dead_letters.letters(ANONYMOUS, topic, 9)
    assert (letter.value, letter.reason) == (b"poison", "a test")


async def test_what_was_acknowledged_before_a_shard_left_is_stored_and_nothing_is_after(nodes: Nodes) -> None:
    one = nodes.running[0]
    topic = next(topic for topic in TOPICS if nodes.owner(topic) is one)
    await one.broker.topics.create(ANONYMOUS, topic, TopicConfig())
    subscriptions = one.broker.subscriptions
    subscription = await subscriptions.subscribe(ANONYMOUS, topic, 1, name="group")
    async with blipmq(one) as client:
        await client.send_many(topic, [b"a", b"b", b"c"])
    taken = await take(one, subscription, 2)
    assert subscriptions.acknowledge(ANONYMOUS, topic, subscription, taken[0].tag)
    await stay(one)
    await subscriptions.lose(subscription.shard)
    assert not subscriptions.acknowledge(ANONYMOUS, topic, subscription, taken[1].tag)
    assert subscriptions.take_many(ANONYMOUS, topic, subscription, 1, 1000) == []
    await one.engine.claim_shard(subscription.shard)
    await subscriptions.gain(subscription.shard)
    assert [await value_of(one, topic, "group") for _ in range(3)] == [b"b", b"c", None]


async def test_a_topic_that_is_deleted_ends_its_subscriptions_on_their_owners(nodes: Nodes) -> None:
    one, two = nodes.running
    topics = {nodes.owner(topic).engine.node: topic for topic in TOPICS}
    async with blipmq(two) as client, flymq(two) as admin:
        for topic in topics.values():
            await client.subscribe(topic)
            await admin.delete_topic(topic)
        for node in (one, two):
            await until(lambda node=node: not len(node.broker.subscriptions))  # type: ignore[misc]
        for node in (one, two):
            await node.broker.subscriptions.forget_topic("any")
            assert all(not list(shard.stored()) for shard in node.broker.subscriptions._shards.values())
        assert await admin.monitoring.subscriptions() == []


async def test_any_node_lists_resets_and_deletes_the_subscriptions_of_all(nodes: Nodes) -> None:
    by_owner = {nodes.owner(topic).engine.node: topic for topic in TOPICS}
    for node in nodes.running:
        async with flymq(node) as admin, blipmq(node) as client:
            names = []
            for topic in by_owner.values():
                await client.send_many(topic, [b"a", b"b"])
                number = await client.subscribe(topic)
                names.append((topic, f"#{number}"))
                await client.send_many(topic, [b"c"])
            await until_listed(admin, set(names))
            for topic, name in names:
                [found] = await admin.monitoring.subscriptions(topic=topic, name=name)
                assert (found.lag > 0, found.in_flight) == (True, 0)
                await admin.monitoring.reset_subscription(name, topic, to="earliest")
                assert len(await client.poll(int(name[1:]), 9)) > 2
                await admin.delete_group(name, topic)
                with pytest.raises(GroupNotFound):
                    await admin.delete_group(name, topic)


async def test_a_group_that_is_named_like_a_number_is_reset_where_it_is(nodes: Nodes) -> None:
    for node in nodes.running:
        async with flymq(node) as admin:
            for topic in TOPICS:
                owner = nodes.owner(topic)
                await owner.broker.subscriptions.subscribe(ANONYMOUS, topic, 1, name="#5", start="earliest")
                await until_listed(admin, {(topic, "#5")})
                [moved] = await admin.monitoring.reset_subscription("#5", topic, to="latest")
                assert (moved.partition, moved.after) == (0, 0)
    assert {nodes.owner(topic).engine.node for topic in TOPICS} == {"one", "two"}


async def test_a_group_that_is_looked_for_costs_no_look_at_all_subscriptions(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes.running
    topics = [topic for topic in TOPICS if nodes.owner(topic) is two]
    async with blipmq(two) as client, flymq(two) as admin:
        numbers = {topic: await client.subscribe(topic) for topic in topics}
        asked: list[str] = []
        catch_up = Table.catch_up

        async def counted(table: Table[Any, Any]) -> None:
            if table.topic == SUBSCRIPTIONS_TOPIC:
                asked.append(table.topic)
            await catch_up(table)

        monkeypatch.setattr(Table, "catch_up", counted)
        made: list[int] = []
        monkeypatch.setattr(elsewhere, "Subscription", lambda number, *_, **__: made.append(number))
        with pytest.raises(GroupNotFound):
            await one.broker.groups.lag(ANONYMOUS, topics[0], "unknown", 0)
        assert (len(asked), made) == (1, [])
        monkeypatch.undo()
        for topic, number in numbers.items():
            assert (await one.broker.groups.lag(ANONYMOUS, topic, f"#{number}", 0)).records == 0
            assert [each.name for each in await admin.monitoring.subscriptions(topic=topic)] == [f"#{number}"]


async def until_listed(admin: AsyncFlyMQClient, names: set[tuple[str, str]]) -> None:
    while not names <= {(each.topic, each.name) for each in await admin.monitoring.subscriptions()}:
        await asyncio.sleep(0)
