"""Links to the node that leads: bytes in both directions, within bounds, until one side is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.errors import NotLeading
from penstock.net.limits import TcpLimits
from penstock.net.session import Connection, Introduction, Streams
from penstock.net.tcp import TcpListener
from penstock.protocols.node_link import NodeLink

CLIENT = Introduction("blipmq", "192.0.2.7:1234")


class Leader:
    """A node that says again what it is told, as long as it is not frozen."""

    def __init__(self) -> None:
        self.address = ""
        self.frozen = False
        self.looks = 0
        """How often it was asked who leads."""
        self.unknown_at: int | None = None
        """The one time at which nobody knows."""
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._echo, "127.0.0.1", 0)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname())

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while (data := await reader.read(1 << 16)) and not self.frozen:
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the other side is gone
        if not self.frozen:
            writer.close()

    def owner(self, shard: int | None) -> str | None:
        self.looks += 1
        return None if self.looks == self.unknown_at else self.address

    async def dial(self, introduction: Introduction) -> Streams:
        if not self.address:
            raise NotLeading("no node that leads is reached: try again")
        host, port = self.address.split(":")
        return await asyncio.open_connection(host, int(port))

    async def stop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._server.close()
        await self._server.wait_closed()


class Following:
    """A session that passes on everything."""

    def __init__(self, connection: Connection, leader: Leader) -> None:
        self._connection = connection
        self._link = NodeLink(connection, leader, CLIENT, received=connection.send, ended=connection.close)

    def receive(self, data: bytes) -> None:
        self._connection.hold(len(data))
        self._link.send(data, len(data))

    def resume(self) -> None:
        self._link.resume()

    def closed(self) -> None:
        self._link.close()


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    leader = Leader()
    await leader.start()
    yield leader
    await leader.stop()


@pytest.fixture
async def follower(leader: Leader) -> AsyncIterator[TcpListener]:
    follower = TcpListener("blipmq", "127.0.0.1:0", lambda connection: Following(connection, leader))
    await follower.start()
    yield follower
    await follower.stop()


@pytest.fixture
async def client(follower: TcpListener) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(*follower.address.split(":"))
    yield reader, writer
    writer.close()


async def test_what_comes_is_passed_on_both_ways_until_the_leader_is_gone(leader: Leader, client: Streams) -> None:
    reader, writer = client
    large = b"x" * 300_000
    writer.write(large)
    assert await reader.readexactly(len(large)) == large
    await leader.stop()
    assert await reader.read() == b""


async def test_a_client_whose_request_nobody_takes_is_disconnected(leader: Leader, follower: TcpListener) -> None:
    leader.address = ""
    reader, writer = await asyncio.open_connection(*follower.address.split(":"))
    writer.write(b"nobody will answer this")
    assert await reader.read() == b""
    writer.close()


async def test_a_client_is_disconnected_if_another_node_leads_than_one_that_is_frozen(
    leader: Leader, follower: TcpListener, client: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one takes what its socket holds, and neither answers nor closes the connection."""
    monkeypatch.setattr("penstock.protocols.node_link.LOOK_S", 0.01)
    leader.frozen = True
    reader, writer = client
    writer.write(bytes(64 << 20))  # more than all buffers on the way hold
    while follower.budget.held_bytes < TcpLimits().in_flight_bytes_max:
        await asyncio.sleep(0)
    leader.address = "127.0.0.1:1"
    assert await reader.read() == b""
    while follower.budget.held_bytes:
        await asyncio.sleep(0)


async def test_a_client_is_disconnected_from_one_that_answers_all_the_time_and_does_not_lead(
    leader: Leader, follower: TcpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one is cut off from the log, and has not noticed."""
    monkeypatch.setattr("penstock.protocols.node_link.LOOK_S", 1000)
    reader, writer = await asyncio.open_connection(*follower.address.split(":"))
    writer.write(b"a")
    assert await reader.readexactly(1) == b"a"
    leader.address = "127.0.0.1:1"
    writer.write(b"b")
    assert await reader.read() == b"b"
    writer.close()


async def test_a_leader_sends_no_more_than_the_client_takes(
    leader: Leader, follower: TcpListener, client: Streams
) -> None:
    """What it echoes fills all buffers on the way, until nobody reads on. In the end nothing is missing."""
    reader, writer = client
    piece, pieces = bytes(range(256)) * 1024, 0
    while all(connection.writable for connection in follower._connections):
        writer.write(piece)
        pieces += 1
        await asyncio.sleep(0)
    for _ in range(pieces):
        assert await reader.readexactly(len(piece)) == piece
    while follower.budget.held_bytes:
        await asyncio.sleep(0)


async def test_a_link_outlives_that_nobody_knows_for_a_moment_who_leads(
    leader: Leader, follower: TcpListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.protocols.node_link.LOOK_S", 0.01)
    for unknown_at in range(1, 6):
        leader.looks, leader.unknown_at = 0, unknown_at
        reader, writer = await asyncio.open_connection(*follower.address.split(":"))
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        async with asyncio.timeout(10):
            while leader.looks < 8:
                await asyncio.sleep(0)
        writer.write(b"b")
        assert await reader.read(1) == b"b"
        writer.close()
