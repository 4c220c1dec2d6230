"""Connections between nodes: who knows the secret speaks for a client, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.net.peers import Dialer, Introduction, PeerSession
from penstock.net.relay import RelaySession
from penstock.net.session import Connection
from penstock.net.tcp import TcpListener

SECRET = b"the secret of this cluster"
CLIENT = Introduction("blipmq", "192.0.2.7:1234", "CN=ada")


class Echo:
    """A session that says who it is for, and then what it is told."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(f"{connection.listener} {connection.peer} {connection.principal_hint}\n".encode())

    def receive(self, data: bytes) -> None:
        self._connection.send(data)

    def resume(self) -> None:
        pass

    def closed(self) -> None:
        pass


class Leader:
    def __init__(self) -> None:
        self.leads = True
        factories = {"blipmq": lambda connection, _: Echo(connection)}
        self.listener = TcpListener(
            "cluster",
            "127.0.0.1:0",
            lambda connection: PeerSession(connection, SECRET, factories, lambda: self.leads),
        )

    def dialer(self, secret: bytes = SECRET) -> Dialer:
        return Dialer(secret, lambda: self.listener.address, None, dial_s_max=0.3)


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    leader = Leader()
    await leader.listener.start()
    yield leader
    await leader.listener.stop()


async def test_a_session_is_made_as_if_the_client_had_connected_itself(leader: Leader) -> None:
    reader, writer = await leader.dialer().dial(CLIENT)
    assert await reader.readline() == b"blipmq 192.0.2.7:1234 CN=ada\n"
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    writer.close()


async def test_without_the_secret_nobody_gets_in(leader: Leader) -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        await leader.dialer(b"another secret, as long")._dial(leader.listener.address, CLIENT)
    with pytest.raises(Exception, match="no node that leads is reached"):
        await leader.dialer(b"another secret, as long").dial(CLIENT)


async def test_a_node_that_does_not_lead_takes_no_clients(leader: Leader) -> None:
    leader.leads = False
    with pytest.raises(Exception, match="it does not lead"):
        await leader.dialer().dial(CLIENT)


async def test_a_relay_passes_on_what_comes_both_ways(leader: Leader) -> None:
    relay = TcpListener("blipmq", "127.0.0.1:0", lambda connection: RelaySession(connection, leader.dialer()))
    await relay.start()
    host, port = relay.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    large = b"x" * 300_000 + b"\n"
    writer.write(large)
    name, peer, _ = (await reader.readline()).split()
    assert (name, peer.decode()) == (b"blipmq", "{}:{}".format(*writer.get_extra_info("sockname")))
    assert await reader.readexactly(len(large)) == large
    await leader.listener.stop()
    assert await reader.read() == b""  # as the node that leads is gone
    writer.close()
    await relay.stop()
