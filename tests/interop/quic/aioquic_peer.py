"""aioquic as a client. Nothing of it is changed but what a test names: transport parameters, key shares, and one fault of its own."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aioquic import tls
from aioquic._buffer import Buffer
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import MAX_EARLY_DATA, QuicConnection
from aioquic.quic.events import ConnectionTerminated, QuicEvent, StreamDataReceived
from aioquic.quic.packet import (
    QuicTransportParameters,
    pull_quic_transport_parameters,
    push_quic_transport_parameters,
)

WAIT_S_MAX: Final = 20.0
STREAMS_MAX: Final = 1_000
PARAMETERS_BYTES_MAX: Final = 8_192
PING: Final = b"\x0b"


class Connection(QuicConnection):
    """`parameters` are set over aioquic's own; `raw_parameters` are added as they are, by their number."""

    def __init__(
        self, configuration: QuicConfiguration, parameters: Mapping[str, object], raw_parameters: Mapping[int, bytes]
    ) -> None:
        super().__init__(configuration=configuration)
        self._parameters = parameters
        self._raw_parameters = raw_parameters

    def _serialize_transport_parameters(self) -> bytes:
        parameters = pull_quic_transport_parameters(Buffer(data=super()._serialize_transport_parameters()))
        for name, value in self._parameters.items():
            setattr(parameters, name, value)
        buffer = Buffer(capacity=PARAMETERS_BYTES_MAX)
        push_quic_transport_parameters(buffer, parameters)
        for number, content in self._raw_parameters.items():
            buffer.push_uint_var(number)
            buffer.push_uint_var(len(content))
            buffer.push_bytes(content)
        return buffer.data

    def _replenish_connection_ids(self) -> None:
        # aioquic would offer further ids of zero length, which no endpoint may (RFC 9000, section 19.15).
        if self.configuration.connection_id_length:
            super()._replenish_connection_ids()


class AioquicPeer(QuicConnectionProtocol):
    """One connection, with the streams that the server opened and why it ended."""

    def __init__(self, quic: QuicConnection) -> None:
        super().__init__(quic, stream_handler=self._stream_opened)
        self.quic = quic
        self.accepted: asyncio.Queue[asyncio.StreamReader] = asyncio.Queue(STREAMS_MAX)
        self.terminated: ConnectionTerminated | None = None
        self.pings = 0
        self.answers_pings = False
        self._writers: list[asyncio.StreamWriter] = []
        self._pinging: dict[int, bytes] = {}

    def quic_event_received(self, event: QuicEvent) -> None:
        if isinstance(event, ConnectionTerminated):
            self.terminated = event
        if self.answers_pings and isinstance(event, StreamDataReceived) and event.stream_id % 4 == 1:
            self._answer_ping(event)
        else:
            super().quic_event_received(event)

    def _answer_ping(self, event: StreamDataReceived) -> None:
        data = self._pinging.pop(event.stream_id, b"") + event.data
        if not event.end_stream:
            self._pinging[event.stream_id] = data
            return
        assert data == PING
        self.pings += 1
        self.quic.send_stream_data(event.stream_id, PING, end_stream=True)

    def _stream_opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.accepted.put_nowait(reader)

    async def open_stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await self.create_stream()
        self._writers.append(writer)
        return reader, writer

    async def accept_stream(self) -> asyncio.StreamReader:
        """Return the next stream that the server opened."""
        return await asyncio.wait_for(self.accepted.get(), WAIT_S_MAX)

    async def rebind(self) -> None:
        """Continue from another local port."""
        before = self._transport
        assert before is not None
        await self._loop.create_datagram_endpoint(lambda: self, local_addr=("127.0.0.1", 0))
        before.close()

    async def hang_up(self) -> None:
        """Close the connection with code 0, if it is still open, and the socket."""
        for writer in self._writers:
            try:
                writer.close()
            except RuntimeError:
                pass  # the server has ended this stream
        self.close()
        await self.wait_closed()
        await asyncio.sleep(0)  # a transmission that a writer scheduled must find the socket open
        assert self._transport is not None
        self._transport.close()

    async def ended(self) -> ConnectionTerminated:
        """Wait until the connection has ended and return why."""
        await asyncio.wait_for(self.wait_closed(), WAIT_S_MAX)
        assert self.terminated is not None
        return self.terminated


def aioquic_connection(
    *,
    alpn: str | None = None,
    parameters: Mapping[str, object] | None = None,
    raw_parameters: Mapping[int, bytes] | None = None,
    **configuration: Any,
) -> Connection:
    """Return a connection that was not dialled yet. `configuration` is aioquic's."""
    settings = QuicConfiguration(
        is_client=True,
        alpn_protocols=None if alpn is None else alpn.split(","),
        verify_mode=ssl.CERT_NONE,
        server_name="localhost",
        **configuration,
    )
    return Connection(settings, parameters or {}, raw_parameters or {})


@asynccontextmanager
async def aioquic_peer(
    address: str, *, connection: Connection | None = None, wait_connected: bool = True, **options: Any
) -> AsyncIterator[AioquicPeer]:
    """Connect to host:port; the options are those of `aioquic_connection`. Closes the connection with code 0 at the end."""
    host, _, port = address.rpartition(":")
    quic = connection or aioquic_connection(**options)
    loop = asyncio.get_running_loop()
    _, peer = await loop.create_datagram_endpoint(lambda: AioquicPeer(quic), local_addr=("127.0.0.1", 0))
    try:
        peer.connect((host, int(port)), transmit=wait_connected)
        if wait_connected:
            async with asyncio.timeout(WAIT_S_MAX):  # not wait_for, in whose task aioquic would miss an early end
                await peer.wait_connected()
        yield peer
    finally:
        await peer.hang_up()


def foreign_ticket() -> tls.SessionTicket:
    """Return a session ticket that allows 0-RTT and that this server never issued."""
    remembered = Buffer(capacity=PARAMETERS_BYTES_MAX)
    limits: dict[str, Any] = {
        f"initial_max_{name}": 1 << 20 for name in ("data", "stream_data_bidi_remote", "stream_data_uni")
    }
    push_quic_transport_parameters(
        remembered,
        QuicTransportParameters(initial_max_streams_bidi=100, initial_max_streams_uni=100, **limits),
    )
    now = dt.datetime.now(dt.UTC)
    return tls.SessionTicket(
        age_add=1,
        cipher_suite=tls.CipherSuite.AES_128_GCM_SHA256,
        not_valid_before=now - dt.timedelta(minutes=1),
        not_valid_after=now + dt.timedelta(minutes=60),
        resumption_secret=bytes(range(32)),
        server_name="localhost",
        ticket=b"a ticket of another server",
        max_early_data_size=MAX_EARLY_DATA,
        other_extensions=[(tls.ExtensionType.QUIC_TRANSPORT_PARAMETERS, remembered.data)],
    )
