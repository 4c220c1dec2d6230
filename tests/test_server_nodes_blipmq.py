"""BlipMQ on several nodes: a client publishes on the node that it is connected to, and reads subscriptions of the one that leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import accumulate
from pathlib import Path

import pytest

from penstock.broker.access.api_keys import CONFIGURED_KEY, DEFAULT_ROLES
from penstock.broker.access.checks import SYSTEM, Operation, Principal, Resource, ResourceKind, is_allowed
from penstock.errors import EntryNotFound, PenstockError
from penstock.protocols.blipmq.client import AsyncBlipMQClient
from penstock.protocols.blipmq.codec import (
    encode_auth,
    encode_hello,
    encode_ping,
    encode_poll,
    encode_pong,
    encode_publish,
)
from penstock.protocols.blipmq.following import FrameCounter
from penstock.protocols.blipmq.wire import PROTOCOL_VERSION
from penstock.testing.shared_log import SharedLog
from tests.shared_nodes import API_KEY, SharedNode

WRITER = Principal(CONFIGURED_KEY, frozenset(DEFAULT_ROLES))


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[SharedNode]]:
    log = SharedLog(elects=True)
    nodes = [await SharedNode(log, name, tmp_path, {"blipmq": {}}).start() for name in ("one", "two")]
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
        await until(lambda: two.broker.leads)
        writer[1].write(encode_publish(6, 1, "orders", b"after") + encode_ping(7))
        assert await writer[0].readexactly(len(encode_pong(7))) == encode_pong(7)
        assert [message.value for message in await client.poll(subscription, 9)] == [
            b"before",
            b"by the writer",
            b"after",
        ]
    for _, writing in (reader, writer):
        writing.close()


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


@pytest.mark.parametrize("piece_bytes", [1, 3, 13, 14, 1000])
def test_frames_of_the_leader_are_counted_however_they_are_cut(piece_bytes: int) -> None:
    frames = [encode_publish(number, 1, "orders", bytes(number)) for number in range(30)] + [encode_pong(1)]
    data, counter = b"".join(frames), FrameCounter()
    ends, counted = set(accumulate(map(len, frames))), 0
    for at in range(0, len(data), piece_bytes):
        counted += counter.count(data[at : at + piece_bytes])
        assert counter.inside is (min(at + piece_bytes, len(data)) not in ends)
    assert counted == 30


def test_a_frame_that_is_too_long_for_one_ends_the_link() -> None:
    with pytest.raises(OSError, match="a frame of"):
        FrameCounter().count(b"\xff" * 13)


async def test_a_publish_makes_its_topic_for_whoever_may_write_to_it(nodes: list[SharedNode]) -> None:
    one, two = nodes
    async with connected(two) as client:
        await client.send_many("orders", [b"a", b"b"])
    assert one.broker.has_topic("orders")
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
        while len(seen) < len(values):  # those that take too long on their way come again
            seen |= {message.value for message in await client.poll(subscription, len(values))}
    assert seen == set(values)


async def test_no_poll_of_several_is_silent_while_what_its_client_has_published_is_there(
    nodes: list[SharedNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = nodes[0]
    async with connected(nodes[1]) as client:
        subscription = await client.subscribe("orders")
        await client.send_many("orders", [b"a", b"b"])
        await leader.broker.leading.show_ends(["orders"])
        monkeypatch.setattr(leader.engine, "follow_soon", lambda _: None)  # it sees what it looks for
        await client.send_many("orders", [b"c", b"d", b"e"])
        polled = await client.poll(subscription, 6)
        monkeypatch.undo()
    assert [message.value for message in polled] == [b"a", b"b", b"c", b"d", b"e"]
