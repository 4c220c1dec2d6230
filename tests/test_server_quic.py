"""The QUIC listeners of a server: that they are on, with which certificate, and that they stop with the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.clients.quic import QuicConnection, connect_quic
from penstock.config import Config
from penstock.errors import ConfigError, Unreachable
from penstock.net.certificates import CERTIFICATE_FILE, KEY_FILE
from penstock.net.quic import QuicListener
from penstock.server import Server
from penstock.session_sources import QUIC_PROTOCOLS
from penstock.testing import BrokerProcess, RunningBroker
from tests.net.line_session import until

QUIC = {name: {"bind": "127.0.0.1:0"} for name in QUIC_PROTOCOLS}
ALPN = {"fujin": "fujin", "felix": None}


@asynccontextmanager
async def running(directory: Path, **config: Any) -> AsyncIterator[Server]:
    server = Server(Config(data_dir=directory / "data", admin=None, **{"listeners": QUIC, **config}))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def connect(server: Server, name: str, **options: Any) -> QuicConnection:
    host, _, port = server.addresses[name].rpartition(":")
    trusted = server.config.data_dir / CERTIFICATE_FILE
    return await connect_quic(host, int(port), **{"alpn": ALPN[name], "ca_file": trusted, **options})


async def test_on_loopback_both_listen_with_a_certificate_of_the_brokers_own(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        assert set(server.addresses) == {"fujin", "felix"}
        for name in QUIC_PROTOCOLS:
            connection = await connect(server, name)
            assert connection.alpn == ALPN[name]
            connection.close()
        assert ((tmp_path / "data") / KEY_FILE).stat().st_mode & 0o777 == 0o600


async def test_the_certificate_stays_over_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        first = (server.config.data_dir / CERTIFICATE_FILE).read_bytes()
    async with running(tmp_path) as server:
        assert (server.config.data_dir / CERTIFICATE_FILE).read_bytes() == first
        (await connect(server, "felix")).close()


async def test_a_certificate_that_was_given_is_the_one_that_is_shown(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(ca)
    tls = {"cert": cert, "key": key, "client_ca": ca}
    listeners = {"felix": {"bind": "127.0.0.1:0", "tls": tls}}
    async with running(tmp_path, listeners=listeners) as server:
        (await connect(server, "felix", ca_file=ca, cert=cert, key=key)).close()
        assert not (server.config.data_dir / CERTIFICATE_FILE).exists()
        key.unlink()
        with pytest.raises(ConfigError, match="does not exist"):
            await Server(server.config).start()


async def test_settings_reach_the_listener(tmp_path: Path) -> None:
    fujin = {
        "bind": "127.0.0.1:0",
        "max_connections": 7,
        "streams_max": 8,
        "handshakes_max": 9,
        "retry_above": 5,
        "datagram_bytes": 1300,
        "idle_s_max": 11,
        "header_s_max": 12,
        "handshake_s_max": 13,
    }
    async with running(tmp_path, listeners={"fujin": fujin, "felix": QUIC["felix"]}) as server:
        listeners = {
            name: listener for name, listener in server.listeners.items() if isinstance(listener, QuicListener)
        }
        limits = listeners["fujin"].limits
        assert (limits.max_connections, limits.streams_max, limits.handshakes_max, limits.retry_above) == (7, 8, 9, 5)
        assert (limits.datagram_bytes, limits.idle_s_max, limits.header_s_max) == (1300, 11, 12)
        assert limits.handshake_s_max == 13
        assert listeners["felix"].limits.datagram_bytes == 8_900
        assert listeners["felix"].budget is listeners["fujin"].budget


async def test_a_stop_closes_connections_and_frees_the_port(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        connections = [await connect(server, name) for name in QUIC_PROTOCOLS]
        for connection in connections:
            connection.open_stream().send(b"\x00")
        addresses = server.addresses
    for connection in connections:
        await asyncio.wait_for(connection.wait_closed(), 20)
        assert "the server stops" in str(connection.loss)
    listeners = {name: {"bind": address} for name, address in addresses.items()}
    async with running(tmp_path, listeners=listeners) as server:
        assert server.addresses == addresses


async def test_an_address_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        listeners = {"felix": {"bind": server.addresses["felix"]}}
        other = Server(Config(data_dir=tmp_path / "other", admin=None, listeners=listeners))
        with pytest.raises(ConfigError, match=r"listeners\.felix\.bind: cannot listen on .*/udp"):
            await other.start()


def test_a_broker_in_a_test_says_where_they_are_and_which_certificate_to_trust() -> None:
    async def talk(broker: RunningBroker) -> None:
        for name in QUIC_PROTOCOLS:
            host, _, port = broker.addresses[name].rpartition(":")
            (await connect_quic(host, int(port), alpn=ALPN[name], ca_file=broker.certificate)).close()

    with RunningBroker() as broker:
        asyncio.run(talk(broker))


def test_a_broker_process_says_so_too_and_its_clients_notice_its_end(tmp_path: Path) -> None:
    config = '[listeners.fujin]\nbind = "127.0.0.1:0"\n[listeners.felix]\nbind = "127.0.0.1:0"\n'

    async def talk(broker: BrokerProcess) -> None:
        connections = []
        for name in QUIC_PROTOCOLS:
            host, _, port = broker.addresses[name].rpartition(":")
            connections.append(await connect_quic(host, int(port), alpn=ALPN[name], ca_file=broker.certificate))
        streams = [connection.open_stream() for connection in connections]
        broker.kill9()
        for stream, connection in zip(streams, connections, strict=True):
            stream.send(b"anybody there?")
            await until(lambda connection=connection: connection.loss is not None)  # type: ignore[misc]
            with pytest.raises(Unreachable, match="nothing listens"):
                await connect_quic(*connection.core.peer_address[:2])

    with BrokerProcess(tmp_path / "data", config=config) as broker:
        asyncio.run(talk(broker))
