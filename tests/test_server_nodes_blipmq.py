"""BlipMQ on several nodes: a client publishes on the node that it is connected to, and reads subscriptions of their owner."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.access.api_keys import CONFIGURED_KEY, DEFAULT_ROLES
from penstock.broker.access.checks import SYSTEM, Operation, Principal, Resource, ResourceKind, is_allowed
from penstock.errors import EntryNotFound, PenstockError
from penstock.protocols.blipmq.client import AsyncBlipMQClient
from penstock.protocols.blipmq.codec import (
    encode_ack,
    encode_auth,
    encode_hello,
    encode_nack,
    encode_ping,
    encode_poll,
    encode_pong,
    encode_publish,
    encode_subscribe,
    parse_id,
)
from penstock.protocols.blipmq.following import DRAIN, FrameFilter
from penstock.protocols.blipmq.wire import PROTOCOL_VERSION, FrameType
from penstock.testing.shared_log import SharedLog
from tests.protocols.blipmq.conversation import Conversation
from tests.shared_nodes import API_KEY, SharedNode

WRITER = Principal(CONFIGURED_KEY, frozenset(DEFAULT_ROLES))


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[SharedNode]]:
    log = SharedLog(elects=True, shards=1)
    patient = {"backoff_ms": 60_000}  # nothing comes again because a test took its time
    listeners: dict[str, Any] = {"blipmq": {}}
    nodes = [await SharedNode(log, name, tmp_path, listeners, subscriptions=patient).start() for name in ("one", "two")]
    yield nodes
    for node in reversed(nodes):
        await node.stop()


@asynccontextmanager
async def connected(node: SharedNode) -> AsyncIterator[AsyncBlipMQClient]:
    async with AsyncBlipMQClient(f"blipmq://{API_KEY}@{node.addresses['blipmq']}") as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


async def test_a_client_reads_what_it_has_published_on_a_node_that_follows(nodes: list[SharedNode]) -> None:
    async with connected(nodes[1]) as client:
        subscription = await client.subscribe("orders")
        for number in range(20):
            value = b"%d" % number
            await client.send("orders", value)
            [message] = await client.poll(subscription)
            assert message.value == value
            assert message.tag is not None
            await client.ack(subscription, message.tag)
        assert await client.poll(subscription) == []


async def test_what_is_published_right_behind_a_subscribe_is_delivered_to_it(nodes: list[SharedNode]) -> None:
    for node in nodes:
        source: Any = node.server._sources["blipmq"]
        talk = Conversation(source)
        await talk.log_in()
        await talk.publish("orders", b"past")
        for value in (b"one", b"another"):
            [frame] = await talk.answers(encode_subscribe(3, "orders", 1), encode_publish(4, 1, "orders", value))
            assert await talk.message(parse_id(frame.payload) or 0) == value
        [frame] = await talk.answers(encode_subscribe(5, "__groups", 1), encode_publish(6, 1, "orders", b"goes on"))
        assert (frame.type, frame.correlation_id) == (FrameType.NACK, 5)
        talk.session.closed()


async def test_nodes_share_a_subscription_whatever_node_its_readers_are_connected_to(nodes: list[SharedNode]) -> None:
    async with connected(nodes[0]) as one, connected(nodes[1]) as two:
        subscription = await two.subscribe("orders")
        for client in (one, two):
            await client.send_many("orders", [b"%d" % number for number in range(50)])
        taken = [*await one.poll(subscription, 30), *await two.poll(subscription, 256)]
        assert sorted(int(message.value) for message in taken) == sorted([*range(50)] * 2)
        await one.ack(subscription, *(message.tag for message in taken if message.tag is not None))
        with pytest.raises(EntryNotFound, match="unknown subscription or delivery tag"):
            await two.ack(subscription, taken[0].tag or 0)


async def test_what_a_client_may_not_do_is_refused_on_either_node(nodes: list[SharedNode]) -> None:
    async with connected(nodes[1]) as client:
        await client.subscribe("orders")
        with pytest.raises(PenstockError, match="__groups"):
            await client.send("__groups", b"1")
        with pytest.raises(PenstockError, match="__groups"):
            await client.subscribe("__groups")
        await client.send("orders", b"goes on")


async def test_only_clients_with_subscriptions_notice_that_another_node_leads(nodes: list[SharedNode]) -> None:
    one, two = nodes
    reader, writer = [(await asyncio.open_connection(*two.addresses["blipmq"].split(":"))) for _ in range(2)]
    async with connected(two) as client:
        subscription = await client.subscribe("orders")
        await client.send("orders", b"before")
        for _, writing in (reader, writer):
            writing.write(encode_hello(1, PROTOCOL_VERSION) + encode_auth(2, API_KEY))
        reader[1].write(encode_ping(3) + encode_poll(4, 1 << 60) + encode_ping(5))
        writer[1].write(encode_publish(3, 1, "orders", b"by the writer") + encode_ping(5))
        for reading, _ in (reader, writer):
            await reading.readuntil(encode_pong(5))
        await one.stop()
        assert await reader[0].read() == b""
        await until(lambda: two.broker.leading.leads)
        writer[1].write(encode_publish(6, 1, "orders", b"after") + encode_ping(7))
        assert await writer[0].readexactly(len(encode_pong(7))) == encode_pong(7)
        assert [message.value for message in await client.poll(subscription, 9)] == [
            b"before",
            b"by the writer",
            b"after",
        ]
    for _, writing in (reader, writer):
        writing.close()


async def test_a_client_is_disconnected_whose_subscribe_is_never_answered(
    nodes: list[SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    asked = asyncio.Event()

    async def subscribe(*_: object) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(one.broker.subscriptions, "subscribe", subscribe)
    reader, writer = await asyncio.open_connection(*two.addresses["blipmq"].split(":"))
    writer.write(encode_hello(1, PROTOCOL_VERSION) + encode_auth(2, API_KEY) + encode_subscribe(3, "orders", 1))
    writer.write(encode_publish(4, 1, "orders", b"behind it") + encode_subscribe(5, "orders", 1) + encode_ping(6))
    await asked.wait()
    peers: Any = one.server._peers
    for connection in list(peers._connections):
        connection.abort()  # as if it was killed
    async with asyncio.timeout(20):
        assert (await reader.read()).endswith(encode_ack(2))
    writer.close()


async def test_a_client_with_a_revoked_key_reads_nothing_more(nodes: list[SharedNode]) -> None:
    one, two = nodes
    secret = await one.broker.api_keys.create(SYSTEM, "sensor", ["consumer", "producer"])
    await two.broker.leading.catch_up()
    async with AsyncBlipMQClient(f"blipmq://{secret}@{two.addresses['blipmq']}") as client:
        subscription = await client.subscribe("orders")
        await client.send("orders", b"one")
        await one.broker.api_keys.revoke(SYSTEM, "sensor")
        await two.broker.leading.catch_up()
        with pytest.raises(PenstockError, match="unauthenticated"):
            await client.poll(subscription)


async def test_a_revoked_key_opens_nothing_on_the_leader_before_the_clients_node_has_heard_of_it(
    nodes: list[SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    secret = await one.broker.api_keys.create(SYSTEM, "sensor", ["consumer", "producer"])
    await two.broker.leading.catch_up()
    async with AsyncBlipMQClient(f"blipmq://{secret}@{two.addresses['blipmq']}") as client:
        subscription = await client.subscribe("orders")
        await client.send("orders", b"one")
        with monkeypatch.context() as cut_off:
            cut_off.setattr(two.engine, "follow_soon", lambda _: None)
            await one.broker.api_keys.revoke(SYSTEM, "sensor")
            with pytest.raises(PenstockError, match="unauthenticated"):
                await client.poll(subscription)


@pytest.mark.parametrize("piece_bytes", [1, 3, 13, 14, 1000])
def test_frames_of_an_owner_are_sent_on_however_they_are_cut_without_the_pong_of_its_drain(
    piece_bytes: int,
) -> None:
    frames = [encode_publish(number, 1, "orders", bytes(number)) for number in range(30)]
    frames[10:10] = [encode_pong(1), encode_pong(DRAIN)]
    data, wanted = b"".join(frames), [*frames[:11], *frames[12:]]
    counter = FrameFilter()
    counter.is_draining = True
    ends, counted, seen = {0, *accumulate(map(len, wanted))}, 0, b""
    for at in range(0, len(data), piece_bytes):
        begun, rest, deliveries = counter.feed(data[at : at + piece_bytes])
        seen += begun + rest
        counted += deliveries
        assert counter.inside is (len(seen) not in ends)
    assert (counted, seen) == (30, b"".join(wanted))


@pytest.mark.parametrize("piece_bytes", [1, 3, 13, 14, 30, 1000])
def test_it_is_known_where_a_frame_ends_that_has_begun(piece_bytes: int) -> None:
    frames = [encode_publish(number, 1, "orders", bytes(number)) for number in range(30)] + [encode_pong(1)]
    data, counter = b"".join(frames), FrameFilter()
    ends, seen_bytes = [0, *accumulate(map(len, frames))], 0
    for at in range(0, len(data), piece_bytes):
        begun, rest, _ = counter.feed(data[at : at + piece_bytes])
        assert len(begun) == 0 or seen_bytes not in ends
        assert len(rest) == 0 or seen_bytes + len(begun) in ends
        seen_bytes += len(begun) + len(rest)
    assert seen_bytes == len(data)


def test_an_owner_that_could_not_store_what_was_acknowledged_is_asked_nothing_more() -> None:
    frames = FrameFilter()
    frames.is_draining = True
    with pytest.raises(OSError, match="could not be stored"):
        frames.feed(encode_nack(DRAIN, 1, "a full disk"))


def test_a_frame_that_is_too_long_for_one_ends_the_link() -> None:
    with pytest.raises(OSError, match="a frame of"):
        FrameFilter().feed(b"\xff" * 13)


async def test_a_publish_makes_its_topic_for_whoever_may_write_to_it(nodes: list[SharedNode]) -> None:
    one, two = nodes
    async with connected(two) as client:
        await client.send_many("orders", [b"a", b"b"])
    assert one.broker.topics.exists("orders")
    assert not is_allowed(one.broker._accounts.rules, WRITER, Operation.CREATE, Resource(ResourceKind.TOPIC, "orders"))
    async with connected(one) as client:
        subscription = await client.subscribe("orders")
        assert await client.poll(subscription) == []


async def test_polls_in_a_row_get_more_than_fits_in_the_buffers_of_both_nodes(nodes: list[SharedNode]) -> None:
    values = [bytes([number]) * 300_000 for number in range(200)]
    async with connected(nodes[1]) as client:
        subscription = await client.subscribe("orders")
        await client.send_many("orders", values)
        seen: set[bytes] = set()
        while len(seen) < len(values):
            seen |= {message.value for message in await client.poll(subscription, len(values))}
    assert seen == set(values)


async def test_no_poll_of_several_is_silent_while_what_its_client_has_published_is_there(
    nodes: list[SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = nodes[0]
    async with connected(nodes[1]) as client:
        subscription = await client.subscribe("orders")
        await client.send_many("orders", [b"a", b"b"])
        await leader.broker.leading.refresh_ends(["orders"])
        monkeypatch.setattr(leader.engine, "follow_soon", lambda _: None)  # it sees what it looks for
        await client.send_many("orders", [b"c", b"d", b"e"])
        polled = await client.poll(subscription, 6)
        monkeypatch.undo()
    assert [message.value for message in polled] == [b"a", b"b", b"c", b"d", b"e"]


async def heads(talk: Conversation, count: int) -> list[tuple[int, int]]:
    """Types and correlation ids of the next frames."""
    replies = [await talk.reply() for _ in range(count)]
    return [(reply[4], int.from_bytes(reply[5:13], "big")) for reply in replies]


async def test_a_pong_says_nothing_of_a_publish_before_its_nack(nodes: list[SharedNode]) -> None:
    """Also if the publish is refused while a large delivery is on its way, behind which the PONG comes in the same read."""
    two = nodes[1]
    source: Any = two.server._sources["blipmq"]
    talk = Conversation(source)
    await talk.log_in()
    subscription = await talk.subscribe("orders")
    await talk.publish("orders", bytes(1_000_000))
    session: Any = talk.session
    link = session._ways[0].link
    receive, published = link._received, False

    def received(data: bytes) -> None:
        nonlocal published
        receive(data)
        if session._is_inside and not published:
            published = True
            talk.say(encode_publish(77, 1, "__groups", b"never"), encode_ping(78))

    link._received = received
    talk.say(encode_poll(5, subscription))
    assert (await heads(talk, 3))[1:] == [(FrameType.NACK, 77), (FrameType.PONG, 78)]


async def test_a_ping_is_passed_on_behind_the_nacks_in_front_of_it(
    nodes: list[SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of QoS 0, whose commit it does not wait for, if it is known that something is refused."""
    two = nodes[1]
    source: Any = two.server._sources["blipmq"]
    producer: Any = two.broker._producer
    talk = Conversation(source)
    await talk.log_in()
    await talk.subscribe("orders")
    monkeypatch.setattr(producer, "_limits", two.broker.limits.model_copy(update={"record_bytes_max": 1000}))
    with monkeypatch.context() as held:
        held.setattr(two.engine, "_turn_soon", lambda: None)  # nothing is committed
        talk.say(encode_publish(1, 0, "orders", bytes(2000)), encode_publish(2, 0, "orders", b"a"), encode_ping(3))
        for _ in range(200):  # enough for an answer of the other node
            await asyncio.sleep(0)
    two.engine._turn_soon()
    assert await heads(talk, 2) == [(FrameType.NACK, 1), (FrameType.PONG, 3)]
