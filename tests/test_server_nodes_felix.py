"""Felix on several nodes: a client publishes and subscribes on the node that it is connected to; groups are on the owner of their stream,
and the cache on the node that leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.errors import PenstockError
from penstock.log.api import TopicConfig
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.protocols.felix.codec.messages import (
    Auth,
    CacheGet,
    CacheOk,
    CachePut,
    CacheValue,
    Error,
    GroupAck,
    GroupNack,
    GroupPoll,
    GroupRecords,
    Subscribe,
)
from penstock.protocols.felix.wire import ERROR_CODES
from penstock.testing.shared_log import SharedLog
from tests.protocols.felix.conversation import Peer, Talk
from tests.shared_nodes import SharedNode

GROUP: dict[str, Any] = {"tenant_id": "t1", "namespace": "default", "stream": "orders", "group": "workers"}
TOPIC = "t1/orders"


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[SharedNode]]:
    log = SharedLog(elects=True, shards=1)
    felix = {"felix": {"tokens": {"t1": "secret"}, "auth": "required"}}
    nodes = [await SharedNode(log, name, tmp_path, felix).start() for name in ("one", "two")]
    await nodes[0].broker.topics.create(ANONYMOUS, TOPIC, TopicConfig())
    yield nodes
    for node in reversed(nodes):
        await node.stop()


@asynccontextmanager
async def connected(node: SharedNode) -> AsyncIterator[AsyncFelixClient]:
    certificate = node.server.config.data_dir / "dev-certificate.pem"
    url = f"felix://t1:secret@{node.addresses['felix']}?ca={certificate}"
    async with AsyncFelixClient(url) as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def talk_to(node: SharedNode) -> Talk:
    felix: Any = node.server._sources["felix"]
    return await Peer(felix).log_in("t1", "secret")


def poll(number: int, **given: Any) -> GroupPoll:
    return GroupPoll(**{**GROUP, **given}, max_records=10, request_id=number)


def settle(kind: type[GroupAck | GroupNack], offset: int | None, number: int, **given: Any) -> GroupAck | GroupNack:
    assert offset is not None
    return kind(**{**GROUP, **given}, offset=offset, request_id=number)


async def records(talk: Talk, request: GroupPoll) -> dict[int, bytes]:
    """What was polled, by offset."""
    reply = await talk.ask(request)
    assert isinstance(reply, GroupRecords)
    assert reply.request_id == request.request_id
    return {record.offset: record.payload for record in reply.records}


async def test_a_client_publishes_and_subscribes_on_a_node_that_follows(nodes: list[SharedNode]) -> None:
    async with connected(nodes[0]) as one, connected(nodes[1]) as two:
        await two.send("orders", b"first")
        here, elsewhere = await two.subscribe("orders"), await one.subscribe("orders")
        values = [b"%d" % number for number in range(500)]
        await two.send_many("orders", values)
        for subscription in (here, elsewhere):
            seen: list[bytes] = []
            while len(seen) < len(values):
                seen += [event.value for event in await subscription.next_batch()]
            assert seen == values
    assert nodes[1].server.sessions["felix"].received_records == 501
    assert nodes[0].server.sessions["felix"].received_records == 0


async def test_a_group_named_like_a_number_is_on_the_owner_of_its_stream(tmp_path: Path) -> None:
    log = SharedLog(elects=True, shards=4)
    felix = {"felix": {"tokens": {"t1": "secret"}, "auth": "required"}}
    nodes = [await SharedNode(log, name, tmp_path, felix).start() for name in ("one", "two")]
    await until(lambda: sum(len(set(node.broker.subscriptions.owned)) for node in nodes) == 4)
    talks = [await talk_to(node) for node in nodes]
    for stream in ("a", "b", "c", "d"):
        await nodes[0].broker.topics.create(ANONYMOUS, f"t1/{stream}", TopicConfig())
        async with connected(nodes[0]) as client:
            await client.send(stream, b"x")
        for talk in talks:
            seen = await records(talk, poll(1, stream=stream, group="#5"))
            assert list(seen.values()) == ([b"x"] if talk is talks[0] else [])
    for node in reversed(nodes):
        await node.stop()


async def test_all_nodes_show_one_cache(nodes: list[SharedNode]) -> None:
    async with connected(nodes[0]) as one, connected(nodes[1]) as two:
        large = bytes(range(256)) * 8000
        await two.cache_put("colour", b"red")
        await one.cache_put("picture", large)
        assert (await one.cache_get("colour"), await two.cache_get("picture")) == (b"red", large)
        assert await two.cache_delete("colour") == b"red"
        assert await one.cache_get("colour") is None


async def test_the_members_of_a_group_are_connected_to_any_node(nodes: list[SharedNode]) -> None:
    one, two = [await talk_to(node) for node in nodes]
    async with connected(nodes[1]) as client:
        offsets = [await client.send("orders", value) for value in (b"a", b"b", b"c")]
        found = await records(two, poll(1))
        assert found == dict(zip(offsets, (b"a", b"b", b"c"), strict=True))
        assert await records(one, poll(2)) == {}
        first, second, third = found
        assert isinstance(await two.ask(settle(GroupAck, first, 3)), CacheOk)
        assert isinstance(await one.ask(settle(GroupAck, second, 4)), CacheOk)
        assert isinstance(await two.ask(settle(GroupNack, third, 5)), CacheOk)
        again = await one.ask(poll(6, wait_ms=20_000))
        assert isinstance(again, GroupRecords)
        assert [(record.offset, record.payload, record.attempts) for record in again.records] == [(third, b"c", 2)]
        stale = await two.ask(settle(GroupNack, first, 7))
        assert isinstance(stale, Error)
        assert "stale claim" in stale.message
    one.close()
    two.close()


async def test_a_client_finds_at_once_what_it_has_published(nodes: list[SharedNode]) -> None:
    two = await talk_to(nodes[1])
    async with connected(nodes[1]) as client:
        for number in range(20):
            offset = await client.send("orders", b"%d" % number)
            assert await records(two, poll(number)) == {offset: b"%d" % number}
    two.close()


async def test_a_poll_waits_for_what_is_published_on_any_node(nodes: list[SharedNode]) -> None:
    two = await talk_to(nodes[1])
    await records(two, poll(1))
    group = nodes[0].broker.subscriptions.find_named(TOPIC, "workers")
    assert group is not None
    two.say(poll(2, wait_ms=30_000))
    await until(lambda: group.watched)
    async with connected(nodes[1]) as client:
        await client.send("orders", b"late")
    reply = await two.reply()
    assert isinstance(reply, GroupRecords)
    assert [record.payload for record in reply.records] == [b"late"]
    two.say(poll(3, wait_ms=30_000))
    await until(lambda: group.watched)
    two.session.closed()
    await until(lambda: not group.watched)


async def test_a_poll_is_answered_before_its_node_stops(nodes: list[SharedNode]) -> None:
    two = await talk_to(nodes[1])
    await records(two, poll(1))
    group = nodes[0].broker.subscriptions.find_named(TOPIC, "workers")
    assert group is not None
    two.say(poll(2, wait_ms=30_000))
    await until(lambda: group.watched)
    stream: Any = two.session
    stream.finish()
    reply = await two.reply()
    assert isinstance(reply, GroupRecords)
    assert reply.records == []
    two.close()


@pytest.mark.parametrize("polls", [1, 3])
async def test_what_waits_behind_a_poll_is_answered_before_its_node_stops(nodes: list[SharedNode], polls: int) -> None:
    two = await talk_to(nodes[1])
    await records(two, poll(1))
    two.say(*(poll(2, wait_ms=30_000) for _ in range(polls)))
    two.say(CachePut(key="colour", value=b"red", request_id=3), CacheGet(key="colour", request_id=4))
    stream: Any = two.session
    stream.finish()
    async with asyncio.timeout(10):
        replies = [await two.reply() for _ in range(polls + 2)]
    assert [type(reply) for reply in replies] == [GroupRecords] * polls + [CacheOk, CacheValue]
    assert two.stream.held_bytes == 0
    two.close()


async def test_a_poll_is_answered_before_the_node_that_leads_stops(nodes: list[SharedNode]) -> None:
    one, two = nodes
    talk = await talk_to(two)
    await records(talk, poll(1))
    group = one.broker.subscriptions.find_named(TOPIC, "workers")
    assert group is not None
    talk.say(poll(2, wait_ms=30_000))
    await until(lambda: group.watched)
    await one.stop()
    reply = await talk.reply()
    assert isinstance(reply, GroupRecords)
    assert reply.records == []
    await until(lambda: two.broker.leading.leads)
    assert await records(talk, poll(3)) == {}
    talk.close()


async def test_a_request_fails_whose_leader_is_lost_and_the_next_one_is_answered(nodes: list[SharedNode]) -> None:
    one, two = nodes
    async with connected(two) as client:
        talk = await talk_to(two)
        offset = await client.send("orders", b"a")
        assert await records(talk, poll(1)) == {offset: b"a"}
        group = one.broker.subscriptions.find_named(TOPIC, "workers")
        assert group is not None
        talk.say(poll(2, wait_ms=30_000))
        await until(lambda: group.watched)
        subscription = await client.subscribe("orders")
        peers: Any = one.server._peers
        for connection in list(peers._connections):
            connection.abort()  # as if it was killed
        await one.stop()
        lost = await talk.reply()
        assert isinstance(lost, Error)
        assert "no answer came from the node that was asked" in lost.message
        await until(lambda: two.broker.leading.leads)
        assert await records(talk, poll(3)) == {offset: b"a"}
        await client.send("orders", b"b")
        event = await subscription.next()
        assert event is not None
        assert event.value == b"b"  # over the connection and the subscription of before
        talk.close()


async def test_a_topic_is_found_that_was_created_elsewhere_a_moment_ago(nodes: list[SharedNode]) -> None:
    one, two = nodes
    async with connected(two) as client:
        for number in range(20):
            await one.broker.topics.create(ANONYMOUS, f"t1/{number}", TopicConfig(partitions=2))
            await (client.send(str(number), b"a") if number % 2 else client.subscribe(str(number)))


async def test_a_request_is_answered_though_a_bug_keeps_its_node_from_catching_up(
    nodes: list[SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def catch_up() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(nodes[1].broker.leading, "catch_up", catch_up)
    talk = await talk_to(nodes[1])
    async with asyncio.timeout(10):
        answer = await talk.ask(Subscribe(tenant_id="t1", namespace="default", stream="nowhere"))
    assert isinstance(answer, Error)
    assert talk.stream.held_bytes == 0
    talk.close()


async def test_a_tenant_is_kept_from_others_on_any_node(nodes: list[SharedNode]) -> None:
    two = await talk_to(nodes[1])
    refused = await two.ask(poll(1, tenant_id="t2"))
    assert isinstance(refused, Error)
    assert "tenant mismatch" in refused.message
    async with connected(nodes[1]) as client:
        with pytest.raises(PenstockError, match="__groups"):
            await client.send("x", b"1", namespace="__groups")
    two.close()


async def test_an_answer_has_the_form_that_its_client_takes_by_then(tmp_path: Path) -> None:
    log = SharedLog(elects=True, shards=1)
    nodes = [await SharedNode(log, name, tmp_path, {"felix": {"auth": "none"}}).start() for name in ("one", "two")]
    answers: list[list[Any]] = []
    for node in nodes:
        felix: Any = node.server._sources["felix"]
        talk = Peer(felix).open()
        get = CacheGet(key="colour", request_id="a")
        put = CachePut(key="colour", value=b"red", request_id="b")
        auth = Auth(tenant_id="t1", token="x", client_features=ERROR_CODES)
        answers.append([await talk.ask_raw(each) for each in (put, get, auth, get, put, settle(GroupAck, 3, 5))])
        talk.close()
    for node in reversed(nodes):
        await node.stop()
    assert answers[1] == answers[0]


async def test_what_a_client_asks_for_without_reading_the_answer_is_done(nodes: list[SharedNode]) -> None:
    seen = await talk_to(nodes[0])
    for node in nodes:
        talk = await talk_to(node)
        talk.session.aborted(0)  # as a client does that forgets the stream
        talk.say(CachePut(key=node.server.node, value=b"red", request_id=1))
        async with asyncio.timeout(5):
            while b'"value":null' in await seen.ask_raw(CacheGet(key=node.server.node, request_id=2)):
                await asyncio.sleep(0)
            while talk.stream.held_bytes:
                await asyncio.sleep(0)
        talk.close()
    seen.close()


async def test_a_value_that_there_is_no_room_for_is_asked_for_again(
    nodes: list[SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = await talk_to(nodes[1])
    large = bytes(100_000)
    await talk.ask(CachePut(key="large", value=large, request_id=1))
    has_room, asked = False, asyncio.Event()

    def room_for(size_bytes: int) -> bool:
        asked.set()
        talk.stream.unsent_bytes = 0 if has_room else 1 << 20
        return has_room

    monkeypatch.setattr(talk.stream, "room_for", room_for)
    talk.say(CacheGet(key="large", request_id=2))
    await asyncio.wait_for(asked.wait(), 5)
    assert talk.silent()
    has_room = True
    talk.drain()
    reply = await talk.reply()
    assert isinstance(reply, CacheValue)
    assert reply.value == large
    talk.close()


async def test_nothing_is_passed_on_for_clients_that_must_log_in_and_have_not(nodes: list[SharedNode]) -> None:
    peers: Any = nodes[0].server._peers
    answers: list[list[Any]] = []
    for node in nodes:
        felix: Any = node.server._sources["felix"]
        talk = Peer(felix).open()
        requests = (CachePut(key="a", value=b"1"), CacheGet(key="a"), poll(1), settle(GroupAck, 1, 2))
        answers.append([await talk.ask(each) for each in requests])
        talk.close()
    assert answers[1] == answers[0]
    assert all(isinstance(each, Error) and "authentication required" in each.message for each in answers[1])
    assert peers.stats.connections_total == 0


async def test_a_value_that_nobody_reads_needs_no_room(
    nodes: list[SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in nodes:
        talk = await talk_to(node)
        await talk.ask(CachePut(key="large", value=bytes(100_000), request_id=1))
        monkeypatch.setattr(talk.stream, "room_for", lambda _: False)
        talk.session.aborted(0)
        talk.say(CacheGet(key="large", request_id=2))
        async with asyncio.timeout(10):
            while talk.stream.held_bytes:
                await asyncio.sleep(0)
        talk.close()


async def test_a_stream_asks_the_owners_of_all_its_groups(tmp_path: Path) -> None:
    log = SharedLog(elects=True, shards=4)
    felix = {"felix": {"tokens": {"t1": "secret"}, "auth": "required"}}
    nodes = [await SharedNode(log, name, tmp_path, felix).start() for name in ("one", "two")]
    for node in nodes:
        await until(lambda node=node: len(node.broker.subscriptions.owned) == 2)  # type: ignore[misc]
    streams = [f"s{number}" for number in range(8)]
    for stream in streams:
        await nodes[0].broker.topics.create(ANONYMOUS, f"t1/{stream}", TopicConfig())
    async with connected(nodes[0]) as client:
        offsets = {stream: await client.send(stream, stream.encode()) for stream in streams}
    for number, node in enumerate(nodes):
        talk = await talk_to(node)
        for stream, offset in offsets.items():
            group: dict[str, Any] = {"stream": stream, "group": f"g{number}"}
            assert await records(talk, poll(2, **group, wait_ms=20_000)) == {offset: stream.encode()}
            assert isinstance(await talk.ask(settle(GroupAck, offset, 3, **group)), CacheOk)
        talk.close()
    assert [len(node.broker.subscriptions) > 0 for node in nodes] == [True, True]
    assert sum(len(node.broker.subscriptions) for node in nodes) == 16
    for node in reversed(nodes):
        await node.stop()
