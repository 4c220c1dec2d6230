"""Fujin on several nodes: a client writes on the node that it is connected to; its readers and transactions are on the one that leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.deliveries.subscription import Subscription
from penstock.errors import PenstockError
from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.protocols.node_link import READ_BYTES
from penstock.record_headers import decode_headers
from penstock.testing.shared_log import SharedLog
from tests.protocols.fujin.memory import MemoryConnection, MemoryStream
from tests.shared_nodes import SharedNode


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[SharedNode]]:
    log = SharedLog(elects=True, shards=1)
    nodes = [await SharedNode(log, name, tmp_path, {"fujin": {}}).start() for name in ("one", "two")]
    yield nodes
    for node in reversed(nodes):
        await node.stop()


@asynccontextmanager
async def connected(node: SharedNode) -> AsyncIterator[AsyncFujinClient]:
    certificate = node.server.config.data_dir / "dev-certificate.pem"
    async with AsyncFujinClient(f"fujin://{node.addresses['fujin']}?ca={certificate}") as client:
        yield client


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


@pytest.mark.parametrize("pull", [False, True], ids=["pushed", "fetched"])
async def test_a_client_reads_what_it_has_written_on_a_node_that_follows(nodes: list[SharedNode], pull: bool) -> None:
    values = [b"%d" % number for number in range(2000)]
    async with connected(nodes[1]) as client:
        await client.send_many("orders", values)
        async with client.reader("orders", pull=pull) as reader:
            seen: list[bytes] = []
            while len(seen) < len(values):
                batch = await (reader.fetch(300) if pull else reader.next_batch(300))
                await reader.ack(*batch)
                seen += [message.value for message in batch]
    assert seen == values
    group = group_of(nodes[0], "orders")
    assert (group.in_flight, group.lag) == (0, 0)


def group_of(node: SharedNode, topic: str) -> Subscription:
    found = node.broker.subscriptions.find_named(topic, "fujin")
    assert found is not None
    return found


async def test_records_that_nobody_acknowledges_are_settled_as_they_arrive(nodes: list[SharedNode]) -> None:
    values = [b"%d" % number for number in range(6000)]  # more than may be on their way
    async with connected(nodes[1]) as client:
        await client.send_many("orders", values)
        async with client.reader("orders", auto_commit=True) as reader:
            assert [(await reader.next()).value for _ in values] == values
            group = group_of(nodes[0], "orders")
            await until(lambda: (group.in_flight, group.lag) == (0, 0))


async def test_what_a_reader_leaves_goes_to_the_next_one_on_any_node(nodes: list[SharedNode]) -> None:
    async with connected(nodes[0]) as one, connected(nodes[1]) as two:
        await one.send_many("orders", [b"a", b"b", b"c"])
        async with two.reader("orders", pull=True) as reader:
            batch = await reader.fetch()
            assert [message.value for message in batch] == [b"a", b"b", b"c"]
            await reader.ack(batch[1])
            await reader.nack(batch[2])
        async with one.reader("orders", pull=True) as reader:
            assert sorted([message.value for _ in range(2) for message in await reader.fetch(1)]) == [b"a", b"c"]


async def test_a_transaction_of_a_client_elsewhere_is_committed_whole_or_not_at_all(nodes: list[SharedNode]) -> None:
    two = nodes[1].broker
    async with connected(nodes[1]) as client:
        await client.send("orders", b"before")
        async with client.transaction() as transaction:
            await transaction.send("orders", b"with headers", headers={"trace": b"4711"})
            await transaction.send_many("orders", [b"%d" % number for number in range(300)])
            await transaction.send("payments", b"made")
            assert two.records.partition(ANONYMOUS, "orders", 0).committed_end <= 6
        transaction = client.transaction()
        await transaction.__aenter__()
        await transaction.send("orders", b"never")
        await transaction.rollback()
        await client.send("orders", b"after")
        async with client.reader("orders", auto_commit=True) as reader:
            seen = [(await reader.next()).value for _ in range(303)]
    assert seen == [b"before", b"with headers", *(b"%d" % number for number in range(300)), b"after"]
    partition = nodes[0].broker.records.partition(ANONYMOUS, "orders", 0)
    headers = [header for block in await partition.read(0, 1 << 20) for header in block.headers() or ()]
    assert [decode_headers(header) for header in headers if header] == [[("trace", b"4711")]]
    assert nodes[0].broker.transactions.stats.rolled_back == 1


async def test_a_transaction_ends_with_the_stream_that_began_it(nodes: list[SharedNode]) -> None:
    stats = nodes[0].broker.transactions.stats
    async with connected(nodes[1]) as client:
        transaction = client.transaction()
        await transaction.__aenter__()
        await transaction.send("orders", b"never")
        assert stats.open == 1
    await until(lambda: stats.open == 0)
    assert stats.rolled_back == 1


async def test_only_readers_notice_that_another_node_leads(nodes: list[SharedNode]) -> None:
    one, two = nodes
    async with connected(two) as client, connected(two) as writer:
        await writer.send_many("orders", [b"a", b"b"])
        connections = two.server.listeners["fujin"].stats.connections_total
        async with client.reader("orders") as reader:
            first = await reader.next()
            await reader.ack(first)
            assert (await reader.next()).value == b"b"
            await one.stop()
            await until(lambda: two.broker.leading.leads)
            await writer.send("orders", b"c")
            again = await reader.next_batch(2)
            while len(again) < 2:
                again += await reader.next_batch(2)
            assert [message.value for message in again] == [b"b", b"c"]
            await reader.ack(*again)
        # The node that stopped may have asked its readers to leave; the writer has stayed.
        assert two.server.listeners["fujin"].stats.connections_total <= connections + 1


async def test_readers_are_asked_to_leave_a_node_that_stops(nodes: list[SharedNode]) -> None:
    one, two = nodes
    async with connected(two) as client:
        await client.send("orders", b"a")
        async with client.reader("orders") as reader:
            message = await reader.next()
            await reader.ack(message)
            await two.stop()
            group = group_of(one, "orders")
            await until(lambda: not group.watched)
            assert group.in_flight == 0


async def test_what_a_client_may_not_do_is_refused_on_either_node(nodes: list[SharedNode]) -> None:
    async with connected(nodes[1]) as client:
        with pytest.raises(PenstockError, match="__groups"):
            await client.send("__groups", b"1")
        with pytest.raises(PenstockError, match="__groups"):
            async with client.reader("__groups"):
                pass
        with pytest.raises(PenstockError, match="__groups"):
            async with client.transaction() as transaction:
                await transaction.send("__groups", b"1")
        await client.send("orders", b"goes on")


async def test_an_answer_to_a_reader_is_sent_on_as_it_comes(nodes: list[SharedNode]) -> None:
    """Of many that are large, and whose clients take nothing, no node keeps whole ones that are counted nowhere."""
    async with connected(nodes[1]) as client:
        await client.send("orders", bytes(1_000_000))
    fujin: Any = nodes[1].server._sources["fujin"]
    stream = MemoryStream(0, MemoryConnection())
    session = fujin(MemoryConnection()).stream_opened(stream)
    session.receive(b"\2\2\0\0\0\0\6orders" + b"\7\0\0\0\1\0\0\0\1")
    async with asyncio.timeout(10):
        while len(stream.sent) < 1_000_000:
            await asyncio.sleep(0)
    assert max(len(data) for data, _ in stream.sends) <= READ_BYTES
    session.closed()


async def test_a_writer_is_told_once_that_its_node_stops(nodes: list[SharedNode]) -> None:
    for node in nodes:
        fujin: Any = node.server._sources["fujin"]
        stream = MemoryStream(0, MemoryConnection())
        session = fujin(MemoryConnection()).stream_opened(stream)
        session.receive(b"\1\0\0\0\0" + b"\3\0\0\0\1\0\0\0\6orders\0\0\0\1a")
        session.stop()
        session.receive(b"\4\0\0\0\2" + b"\5\0\0\0\3" + b"\n")
        async with asyncio.timeout(10):
            while not stream.has_ended:
                await asyncio.sleep(0)
        assert stream.sent == b"\2\0\0\0\1\0" + b"\x0c" + b"\3\0\0\0\2\0" + b"\4\0\0\0\3\0" + b"\n"
        session.closed()


async def test_a_topic_name_is_refused_in_the_same_words_on_either_node(nodes: list[SharedNode]) -> None:
    for node in nodes:
        fujin: Any = node.server._sources["fujin"]
        stream = MemoryStream(0, MemoryConnection())
        session = fujin(MemoryConnection()).stream_opened(stream)
        session.receive(b"\1\0\0\0\0" + b"\3\0\0\0\1\0\0\1\x2c" + b"x" * 300 + b"\0\0\0\1a" + b"\n")
        async with asyncio.timeout(10):
            while not stream.has_ended:
                await asyncio.sleep(0)
        assert stream.sent[10:].startswith(b"topic name has 300 bytes")
        session.closed()


async def test_nothing_is_passed_on_for_clients_that_must_log_in_and_have_not(tmp_path: Path) -> None:
    log = SharedLog(elects=True, shards=1)
    required = {"fujin": {"auth": "required"}}
    nodes = [await SharedNode(log, name, tmp_path, required).start() for name in ("one", "two")]
    peers: Any = nodes[0].server._peers
    async with connected(nodes[1]) as client:
        with pytest.raises(PenstockError, match="authentication required"):
            async with client.reader("orders"):
                pass
        with pytest.raises(PenstockError, match="authentication required"):
            async with client.transaction():
                pass
    assert peers.stats.connections_total == 0
    for node in reversed(nodes):
        await node.stop()


async def test_headers_are_taken_in_a_transaction_on_either_node(tmp_path: Path) -> None:
    log = SharedLog(elects=True, shards=1)
    table = {"fujin": {"write_form": "table"}}
    nodes = [await SharedNode(log, name, tmp_path, table).start() for name in ("one", "two")]
    names = (b"", b"trace", b"x" * 2000)
    headers = b"".join(len(each).to_bytes(4, "big") + each for name in names for each in (name, b"4711"))
    write = b"\3\0\0\0\2\0\0\0\6orders" + (2 * len(names)).to_bytes(2, "big") + headers + b"\0\0\0\1a"
    for node in nodes:
        fujin: Any = node.server._sources["fujin"]
        connection = MemoryConnection()
        stream = MemoryStream(0, connection)
        session = fujin(connection).stream_opened(stream)
        session.receive(b"\1\0\0\0\0" + b"\4\0\0\0\1" + write + b"\5\0\0\0\3\n")
        async with asyncio.timeout(10):
            while not stream.has_ended:
                await asyncio.sleep(0)
        assert stream.sent == b"\3\0\0\0\1\0" + b"\2\0\0\0\2\0" + b"\4\0\0\0\3\0\n"
        session.closed()
    for node in reversed(nodes):
        await node.stop()
