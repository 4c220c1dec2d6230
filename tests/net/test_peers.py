"""Connections between nodes: who knows the secret speaks for a client, and nobody else does."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trustme

from penstock.errors import NotLeading
from penstock.net.limits import TcpLimits
from penstock.net.peers import NONCE_BYTES, Dialer, PeerSession
from penstock.net.session import Connection, Introduction
from penstock.net.tcp import TcpListener
from penstock.net.tls import client_context, server_context
from penstock.testing.clock import ManualClock

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
    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.leads = True
        self.shards = {3}
        self.clock = ManualClock()
        factories = {"blipmq": lambda connection, _: Echo(connection)}
        self.listener = TcpListener(
            "cluster",
            "127.0.0.1:0",
            lambda connection: PeerSession(connection, SECRET, factories, self.serves),
            tls=tls,
            clock=self.clock,
        )

    def serves(self, shard: int | None) -> bool:
        return self.leads if shard is None else shard in self.shards

    def dialer(self, secret: bytes = SECRET, tls: ssl.SSLContext | None = None) -> Dialer:
        return Dialer(secret, lambda _: self.listener.address, tls, dial_s_max=0.3)


@asynccontextmanager
async def running(leader: Leader) -> AsyncIterator[Leader]:
    await leader.listener.start()
    yield leader
    await leader.listener.stop()


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    async with running(Leader()) as leader:
        yield leader


async def test_a_session_is_made_as_if_the_client_had_connected_itself(leader: Leader) -> None:
    reader, writer = await leader.dialer().dial(CLIENT)
    assert await reader.readline() == b"blipmq 192.0.2.7:1234 CN=ada\n"
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    writer.close()


async def test_a_node_that_was_cut_off_without_a_word_is_noticed_from_either_side(leader: Leader) -> None:
    _, writer = await leader.dialer().dial(CLIENT)
    [accepted] = leader.listener._connections
    for transport in (writer.transport, accepted._transport):
        connected = transport.get_extra_info("socket")
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == TcpLimits().keepalive_idle_s
        if transport is writer.transport:  # which waits for answers
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000
    writer.close()


async def test_without_the_secret_nobody_gets_in(leader: Leader) -> None:
    with pytest.raises(NotLeading, match=r"no node that leads is reached: .* check that cluster\.secret is the same"):
        await leader.dialer(b"another secret, as long").dial(CLIENT)


async def test_a_node_that_does_not_lead_takes_no_clients(leader: Leader) -> None:
    leader.leads = False
    with pytest.raises(NotLeading, match="it does not lead"):
        await leader.dialer().dial(CLIENT)


async def test_a_node_serves_a_shard_for_as_long_as_it_owns_it(leader: Leader) -> None:
    for_shard = msgspec.structs.replace(CLIENT, shard=3)
    reader, writer = await leader.dialer().dial(for_shard)
    await reader.readline()
    writer.write(b"hello\n")
    assert await reader.readline() == b"hello\n"
    leader.shards.clear()
    writer.write(b"hello\n")
    assert await reader.read() == b"", "whoever owns it now is asked instead"
    writer.close()
    with pytest.raises(NotLeading, match=r"no node that owns shard 3 is reached: .*it does not own it now"):
        await leader.dialer().dial(for_shard)


async def test_a_connection_that_introduces_nobody_is_closed(leader: Leader) -> None:
    reader, writer = await asyncio.open_connection(*leader.listener.address.split(":"))
    await reader.readexactly(NONCE_BYTES)
    leader.listener.sweep()  # which sees that it waits
    leader.clock.advance(TcpLimits().header_s_max + 1)
    leader.listener.sweep()
    assert await reader.read() == b""
    writer.close()


async def test_a_node_that_was_replaced_while_it_accepted_is_not_returned(leader: Leader) -> None:
    """It may be frozen, and nobody would notice that another leads than the one that is asked."""
    address = leader.listener.address
    known = iter([address, address, "another, for a moment"])
    dialer = Dialer(SECRET, lambda _: next(known, address), None)
    reader, writer = await dialer.dial(CLIENT)
    assert await reader.readline() == b"blipmq 192.0.2.7:1234 CN=ada\n"
    assert leader.listener.stats.connections_total == 2
    writer.close()


async def test_a_node_that_is_frozen_is_waited_for_no_longer_than_it_leads(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.net.peers.LOOK_S", 0.01)
    monkeypatch.setattr("penstock.net.peers.ANSWER_S_MAX", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as frozen:  # its kernel takes connections
        address = "{}:{}".format(*frozen.getsockname())
        dialing = asyncio.ensure_future(Dialer(SECRET, lambda _: address, None, dial_s_max=3600).dial(CLIENT))
        accepted, _ = await asyncio.get_running_loop().run_in_executor(None, frozen.accept)
        address = leader.listener.address
        reader, writer = await dialing
        accepted.close()
    assert await reader.readline() == b"blipmq 192.0.2.7:1234 CN=ada\n"
    writer.close()


# -- TLS -----------------------------------------------------------------------------------------------------------------


class Node:
    """The files of one node: a certificate of an authority, its key, and the authority that it trusts."""

    def __init__(self, directory: Path, authority: trustme.CA, trusted: trustme.CA, host: str = "127.0.0.1") -> None:
        directory.mkdir()
        self.files = directory / "cert.pem", directory / "key.pem", directory / "ca.pem"
        cert, key, ca = self.files
        issued = authority.issue_cert(host)
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        trusted.cert_pem.write_to_path(ca)


async def test_nodes_that_trust_each_others_certificates_talk_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    one, two = (Node(tmp_path / name, authority, authority) for name in ("one", "two"))
    async with running(Leader(server_context(*one.files))) as leader:
        reader, writer = await leader.dialer(tls=client_context(*two.files)).dial(CLIENT)
        assert await reader.readline() == b"blipmq 192.0.2.7:1234 CN=ada\n", "not the subject of the node's certificate"
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.close()


@pytest.mark.parametrize(
    ("issuer", "trusted", "host", "reason"),
    [
        ("theirs", "ours", "127.0.0.1", r"check that all nodes have \[cluster.tls\]"),
        ("ours", "theirs", "127.0.0.1", r"its certificate is not accepted, .* check cluster\.tls\.ca"),
        ("ours", "ours", "127.0.0.2", r"not accepted, IP address mismatch, .* for the name in cluster\.advertise"),
    ],
    ids=["a certificate of others", "an authority of others", "another name"],
)
async def test_over_tls_a_node_of_others_is_refused(
    tmp_path: Path, issuer: str, trusted: str, host: str, reason: str
) -> None:
    authorities = {"ours": trustme.CA(), "theirs": trustme.CA()}
    one = Node(tmp_path / "one", authorities["ours"], authorities["ours"], host)
    two = Node(tmp_path / "two", authorities[issuer], authorities[trusted])
    async with running(Leader(server_context(*one.files))) as leader:
        with pytest.raises(NotLeading, match=reason):
            await leader.dialer(tls=client_context(*two.files)).dial(CLIENT)


async def test_a_node_with_tls_says_what_to_check_if_the_other_has_none(tmp_path: Path) -> None:
    authority = trustme.CA()
    node = Node(tmp_path / "node", authority, authority)
    async with running(Leader()) as leader:
        with pytest.raises(NotLeading, match=r"check that all nodes have \[cluster.tls\] or none"):
            await leader.dialer(tls=client_context(*node.files)).dial(CLIENT)


async def test_descriptors_that_are_reserved_for_the_log_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Leader()
    await leader.listener.start()
    dialer = Dialer(SECRET, lambda _: leader.listener.address, None, descriptors_reserved=64, dial_s_max=0.3)
    with socket.socket() as last, monkeypatch.context() as patched:
        patched.setattr("resource.getrlimit", lambda _: (last.fileno() + 2, last.fileno() + 2))
        with pytest.raises(NotLeading, match="too many files are open here"):
            await dialer.dial(CLIENT)
    _, writer = await dialer.dial(CLIENT)
    writer.close()
    await leader.listener.stop(0)
