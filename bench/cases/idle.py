"""What a connection costs that does nothing: over TCP, over TLS, and over QUIC."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from bench.processes import HOST, Broker
from bench.rounds import Plan, Row, alone
from penstock.clients.quic import QuicStream, connect_quic
from penstock.clock import SystemClock
from penstock.net.certificates import own_certificate
from penstock.protocols.bytes import blob32
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.operations.topics import ListTopics
from penstock.protocols.fujin.wire import ALPN, CORRELATED, Request

TCP, TCP_QUICK = 5_000, 500
TLS, TLS_QUICK = 2_000, 100
QUIC, QUIC_QUICK = 1_000, 50
"""Fewer, because handshakes take a while."""
WARM_UP = 100
"""Connections before: buffers that are made once."""
DESCRIPTORS_BESIDE = 200
KB_MAX = {"TCP": 4.0, "TLS": 20.0, "QUIC": 30.0}
FUJIN_CONFIG = f'[listeners.fujin]\nbind = "{HOST}:0"\nidle_s_max = "10m"\n'


def measure(plan: Plan) -> list[Row]:
    tcp, tls, quic = plan.volume(TCP, TCP_QUICK), plan.volume(TLS, TLS_QUICK), plan.volume(QUIC, QUIC_QUICK)
    allow_descriptors(max(tcp, tls, quic) + WARM_UP + DESCRIPTORS_BESIDE)
    plan.say(f"idle: {tcp:,} connections over TCP")
    with Broker(plan.directory / "idle-tcp") as broker:
        rows = [_row("TCP", tcp, _bytes_over_tcp(broker, tcp))]
    plan.say(f"idle: {tls:,} connections over TLS")
    (plan.directory / "idle-certificate").mkdir()
    files = own_certificate(plan.directory / "idle-certificate", SystemClock())
    flags = ("--set", f"listeners.flymq.tls.cert={files.cert}", "--set", f"listeners.flymq.tls.key={files.key}")
    with Broker(plan.directory / "idle-tls", *flags) as broker:
        rows.append(_row("TLS", tls, _bytes_over_tcp(broker, tls, files.cert)))
    plan.say(f"idle: {quic:,} connections over QUIC")
    with Broker(plan.directory / "idle-quic", config=FUJIN_CONFIG) as broker:
        with broker.client() as client:
            client.create_topic("idle", 1)
        rows.append(_row("QUIC", quic, asyncio.run(_bytes_over_quic(broker, quic))))
    return rows


def _row(over: str, connections: int, grown_bytes: int) -> Row:
    return alone(
        f"idle connections over {over}",
        f"{connections:,} connections, each after one request",
        "KB each",
        [grown_bytes / connections / 1000],
        below=KB_MAX[over],
        note="resident memory of the broker; the kernel's own is not in it",
    )


def _bytes_over_tcp(broker: Broker, count: int, certificate: Path | None = None) -> int:
    """Return how much the broker's memory grows with this number of connections."""
    with contextlib.ExitStack() as opened:
        talk(opened, broker.port, WARM_UP, certificate)
        before = broker.resident_bytes()
        talk(opened, broker.port, count, certificate)
        return broker.resident_bytes() - before


async def _bytes_over_quic(broker: Broker, count: int) -> int:
    async with contextlib.AsyncExitStack() as opened:
        for _ in range(WARM_UP):
            await opened.enter_async_context(_written_once(broker))
        before = broker.resident_bytes()
        for _ in range(count):
            await opened.enter_async_context(_written_once(broker))
        return broker.resident_bytes() - before


@contextlib.asynccontextmanager
async def _written_once(broker: Broker) -> AsyncIterator[QuicStream]:
    """A connection and a stream of it, on which a WRITE was answered."""
    connection = await connect_quic(HOST, broker.ports["fujin"], alpn=ALPN, verify=False)
    stream = connection.open_stream()
    request = bytes((Request.CONNECT_WRITER,)) + blob32(b"")
    request += CORRELATED.pack(Request.WRITE, 1) + blob32(b"idle") + blob32(b"x")
    await stream.write(request)
    if not await stream.read():
        raise ConnectionError("the broker ended a stream")
    try:
        yield stream
    finally:
        connection.close()


def talk(opened: contextlib.ExitStack, port: int, count: int, certificate: Path | None = None) -> None:
    """Open connections, over TLS if there is a certificate to trust, have each answered once, and leave them open."""
    context = None if certificate is None else ssl.create_default_context(cafile=certificate)
    for _ in range(count):
        connection = socket.create_connection((HOST, port))
        if context is not None:
            connection = context.wrap_socket(connection, server_hostname=HOST)
        opened.enter_context(connection)
        connection.sendall(encode_request(ListTopics()))
        if not connection.recv(4096):
            raise ConnectionError("the broker closed an idle connection")


def allow_descriptors(wanted: int) -> None:
    """For this process and the broker it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
