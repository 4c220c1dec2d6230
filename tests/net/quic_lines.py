"""The protocol of lines over QUIC: each stream is a conversation of its own; the test holds the sessions in its hands."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from penstock.clients.quic import QuicConnection as ClientConnection
from penstock.clients.quic import QuicStream, connect_quic
from penstock.net.certificates import own_certificate
from penstock.net.limits import QuicLimits
from penstock.net.quic import QuicListener
from penstock.net.quic_session import QuicConnection, Stream
from penstock.net.quic_tls import quic_server_tls
from penstock.quic.tls import TlsSettings
from penstock.quic.udp import UdpEndpoint
from penstock.testing.clock import ManualClock
from tests.net.line_session import LineSession, Served, until

ALPN = "lines"


class LineStream(LineSession):
    """One conversation, which notes how it went."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self.stream = stream
        self.has_ended = False
        self.aborts: list[int] = []
        self.unacknowledged_bytes = 0
        """What may not have arrived when the stream was cut off."""

    def ended(self) -> None:
        self.has_ended = True
        self.stream.close()

    def aborted(self, code: int) -> None:
        self.aborts.append(code)
        self.unacknowledged_bytes = self.stream.unacknowledged_bytes


class Lines:
    """One connection."""

    def __init__(self, connection: QuicConnection) -> None:
        self.connection = connection
        self.streams: list[LineStream] = []
        self.is_closed = False
        self.is_stopping = False

    def stream_opened(self, stream: Stream) -> LineStream:
        self.streams.append(LineStream(stream))
        return self.streams[-1]

    def stopping(self) -> None:
        self.is_stopping = True
        for session in self.streams:
            session.stream.close()

    def closed(self) -> None:
        assert all(session.is_closed for session in self.streams)
        self.is_closed = True


class QuicService(Served):
    """A listener of line sessions; the timers of the protocol run by themselves."""

    listener: QuicListener

    def __init__(self, tls: TlsSettings, limits: QuicLimits | None = None) -> None:
        self.clock = ManualClock()
        self.sessions: list[Lines] = []
        self.listener = QuicListener("lines", "127.0.0.1:0", self._open, tls, limits, clock=self.clock)
        self.stats = self.listener.stats
        self.trusted: Path | None = None
        self.clients: list[ClientConnection] = []

    def _open(self, connection: QuicConnection) -> Lines:
        self.sessions.append(Lines(connection))
        return self.sessions[-1]

    @property
    def endpoint(self) -> UdpEndpoint:
        assert self.listener._endpoint is not None
        return self.listener._endpoint

    @property
    def where(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    async def client(self, **options: Any) -> ClientConnection:
        """A client, whose session is the last one there is."""
        expected = len(self.sessions) + 1
        connection = await connect_quic(
            *self.where, **{"alpn": ALPN, "ca_file": self.trusted, "timeout_s": 20, **options}
        )
        self.clients.append(connection)
        await until(lambda: len(self.sessions) == expected)
        return connection


@asynccontextmanager
async def serving_quic(
    directory: Path, limits: QuicLimits | None = None, *, tls: TlsSettings | None = None, trusted: Path | None = None
) -> AsyncIterator[QuicService]:
    files = own_certificate(directory, ManualClock(now_ms=_now_ms()))
    service = QuicService(tls or quic_server_tls(files.cert, files.key, alpn=(ALPN,)), limits)
    service.trusted = trusted or files.cert
    await service.listener.start()
    try:
        yield service
    finally:
        for connection in service.clients:
            connection.close()
        await service.listener.stop(0)


@asynccontextmanager
async def talking(
    directory: Path, limits: QuicLimits | None = None
) -> AsyncIterator[tuple[QuicService, ClientConnection, QuicStream]]:
    """A service, a client of it, and a stream that the client has opened and said nothing on yet."""
    async with serving_quic(directory, limits) as service:
        client = await service.client()
        yield service, client, client.open_stream()


async def read_line(stream: Any) -> bytes:
    """What comes until the end of a line."""
    data = b""
    async with asyncio.timeout(20):
        while not data.endswith(b"\n"):
            more = await stream.read()
            assert more, f"the stream ended after {data!r}"
            data += more
    return data


async def read_all(stream: Any) -> bytes:
    """What comes until the end."""
    data = b""
    async with asyncio.timeout(30):
        while more := await stream.read():
            data += more
    return data


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
