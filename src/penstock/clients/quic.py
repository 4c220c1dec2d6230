"""The QUIC side of a client: connect, open streams, write with back-pressure, read.

A stream is read in one of two ways: `await stream.read()` takes what has come, or a callable given as `on_data` is handed bytes as they
arrive (`b""` at their end), without a task or a future per read. Whatever is not read waits, up to a bound; then the server is given
no more credit.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from penstock.errors import ConnectionLost, InvalidRequest, LimitExceeded, Unreachable
from penstock.futures import shield
from penstock.quic.connection import Connection
from penstock.quic.core import QuicCore
from penstock.quic.outbox import StreamRefused
from penstock.quic.settings import DATAGRAM_BYTES, DATAGRAM_BYTES_LOOPBACK, QuicSettings
from penstock.quic.stream import Stream
from penstock.quic.tls import TlsSettings, load_identity
from penstock.quic.udp import UdpEndpoint, open_socket
from penstock.units import Address, is_loopback

READ_AHEAD_BYTES: Final = 1024 * 1024
"""What waits to be read on one stream before the server is held back."""
ACCEPTED_MAX: Final = 1024
"""Streams of the server that wait for `accept_stream`; one more is refused."""
ADDRESSES_MAX: Final = 8
"""Of one name; further ones are not tried."""
KEEP_ALIVE_OF_IDLE: Final = 3
"""How many keep-alive packets are sent within the idle timeout."""
NOBODY_THERE: Final = "nothing listens there"
ADVICE: Final = {
    NOBODY_THERE: "; is the broker running?",
    "unable to get local issuer certificate": "; name a trusted CA with ?ca=FILE, or the server's certificate itself "
    "(one that a broker made is dev-certificate.pem in its data directory)",
}
"""What to do, by how the reason begins why there is no connection; some of these texts are the library's."""

OnData = Callable[[bytes], None]


class QuicStream(Stream):
    """One stream, as a client uses it."""

    __slots__ = (
        "_chunks",
        "_chunks_bytes",
        "_cut_off",
        "_drained",
        "_on_data",
        "_readable",
        "_refused",
        "_waits_for_end",
    )

    _connection: QuicConnection

    def __init__(
        self, connection: QuicConnection, stream_id: int, *, is_ours: bool, on_data: OnData | None = None
    ) -> None:
        super().__init__(connection, stream_id, is_ours=is_ours)
        self._chunks: deque[bytes] = deque()
        self._chunks_bytes = 0
        self._on_data = on_data
        self._readable: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._waits_for_end = self.can_receive
        self._cut_off: ConnectionLost | None = None
        """Why reading failed, if the server did not end its side of the stream."""
        self._refused: ConnectionLost | None = None
        """Why writing failed, if we did not end our side of the stream."""

    @property
    def is_one_way(self) -> bool:
        return bool(self.id & 2)

    @property
    def is_over(self) -> bool:
        """Whether both sides have ended, or the connection has."""
        return self._is_closed

    # -- writing -----------------------------------------------------------------------------------------------------------

    async def write(self, data: bytes, *, end: bool = False) -> None:
        """Send data, waiting while too much is in flight. Raises ConnectionLost if the server accepts no more."""
        if not self.can_send:
            raise self._refused or ConnectionLost("this side of the stream has ended")
        self.send(data, end=end)
        if not self.writable and not end:
            await self.drain()

    async def drain(self) -> None:
        """Wait until the stream is writable."""
        while not self.writable and self.can_send:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await shield(self._drained)
        if self._refused is not None:
            raise self._refused

    # -- reading -----------------------------------------------------------------------------------------------------------

    def on_data(self, on_data: OnData) -> None:
        """Pass bytes to a callback as they arrive, those already buffered first, and `b""` at the end of the stream."""
        self._on_data = on_data
        while self._chunks:
            data = self._chunks.popleft()
            self._chunks_bytes -= len(data)
            on_data(data)
        if not self._waits_for_end:
            on_data(b"")
        self.resume_receiving()

    async def read(self) -> bytes:
        """Return received bytes, waiting for some; `b""` after the end of the stream. Raises ConnectionLost if it was reset."""
        while not self._chunks:
            if self._cut_off is not None:
                raise self._cut_off
            if not self._waits_for_end:
                return b""
            if self._readable is None:
                self._readable = asyncio.get_running_loop().create_future()
            await shield(self._readable)
        data = self._chunks.popleft() if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._chunks_bytes = 0
        self.resume_receiving()
        return data

    # -- what happens ------------------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        if self._on_data is not None:
            self._on_data(data)
            return
        self._chunks.append(data)
        self._chunks_bytes += len(data)
        if self._chunks_bytes > READ_AHEAD_BYTES:
            self.pause_receiving()
        self._wake_reader()

    def ended(self) -> None:
        self._waits_for_end = False
        if self._on_data is not None:
            self._on_data(b"")
        self._wake_reader()

    def aborted(self, code: int) -> None:
        self._cut(ConnectionLost(f"the server cut stream {self.id} off (code {code})"))

    def stopped(self, code: int) -> None:
        self._refused = ConnectionLost(f"the server takes no more on stream {self.id} (code {code})")
        self.drained()

    def drained(self) -> None:
        future, self._drained = self._drained, None
        if future is not None and not future.done():
            future.set_result(None)

    def closed(self) -> None:
        loss = self._connection.loss
        if loss is not None and self._refused is None:
            self._refused = loss
        if self._waits_for_end:
            self._cut(loss or ConnectionLost("the stream was closed"))
        self.drained()

    def _cut(self, error: ConnectionLost) -> None:
        self._cut_off = error
        self._waits_for_end = False
        if self._on_data is not None:
            self._on_data(b"")
        self._wake_reader()

    def _wake_reader(self) -> None:
        future, self._readable = self._readable, None
        if future is not None and not future.done():
            future.set_result(None)


class QuicConnection(Connection):
    """One connection to a server, over a socket of its own. Made by `connect_quic`."""

    def __init__(self, endpoint: UdpEndpoint, core: QuicCore, settings: QuicSettings, peer: str) -> None:
        super().__init__(endpoint, core, settings, time.monotonic)
        endpoint.received, endpoint.refused = self.take_datagrams, self.refused
        self.peer = peer
        self.on_stream: Callable[[QuicStream], None] | None = None
        """Called with each stream that the server opens, before its first bytes; if None, streams wait for `accept_stream`."""
        self.on_lost: Callable[[ConnectionLost], None] | None = None
        self.loss: ConnectionLost | None = None
        """Why the connection is gone, once it is."""
        self.loss_code = 0
        """The error code that the connection was closed with."""
        loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[None] = loop.create_future()
        self._over: asyncio.Future[None] = loop.create_future()
        self._accepted: deque[QuicStream] = deque()
        self._acceptor: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None
        self._keep_alive: asyncio.TimerHandle | None = None

    @property
    def alpn(self) -> str | None:
        """The application protocol that was agreed on."""
        return self.core.alpn

    def open_stream(self, *, one_way: bool = False, on_data: OnData | None = None) -> QuicStream:
        """Open a stream. Raises LimitExceeded if the server allows no more now, and ConnectionLost once the connection is closed."""
        if self.loss is not None:
            raise self.loss
        try:
            stream_id = self.core.open_stream(one_way=one_way)
        except StreamRefused:
            raise LimitExceeded(f"{self.peer} allows no more streams now: end some, or wait for room") from None
        stream = QuicStream(self, stream_id, is_ours=True, on_data=on_data)
        self.streams[stream_id] = stream
        return stream

    async def open_stream_when_allowed(self, *, one_way: bool = False, on_data: OnData | None = None) -> QuicStream:
        """Open a stream, once the server allows one more."""
        while True:
            try:
                return self.open_stream(one_way=one_way, on_data=on_data)
            except LimitExceeded:
                if self._room is None:
                    self._room = asyncio.get_running_loop().create_future()
                await shield(self._room)

    async def accept_stream(self) -> QuicStream:
        """The next stream that the server opened. Raises ConnectionLost."""
        while not self._accepted:
            if self.loss is not None:
                raise self.loss
            if self._acceptor is None:
                self._acceptor = asyncio.get_running_loop().create_future()
            await shield(self._acceptor)
        return self._accepted.popleft()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, for whatever reason."""
        await shield(self._over)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def rebind(self) -> None:
        """Continue from another port, as after a change of network. The server notices by itself."""
        family = socket.AF_INET6 if ":" in self.core.peer_address[0] else socket.AF_INET
        self.endpoint.close()
        self.endpoint = UdpEndpoint(open_socket(family, connect=self.core.peer_address), self._now_s)
        self.endpoint.received, self.endpoint.refused = self.take_datagrams, self.refused
        self.core.ping()
        self.touch()

    # -- what happens ------------------------------------------------------------------------------------------------------

    def established(self) -> None:
        if not self.connected.done():
            self.connected.set_result(None)
        self._stay_alive()

    def stream_opened(self, stream_id: int) -> Stream | None:
        stream = QuicStream(self, stream_id, is_ours=False)
        if self.on_stream is not None:
            self.on_stream(stream)
        elif len(self._accepted) < ACCEPTED_MAX:
            self._accepted.append(stream)
            self._wake(self._acceptor)
            self._acceptor = None
        else:
            self.core.stop(stream_id, 0)
            self.core.reset(stream_id, 0)
            return None
        return stream

    def streams_available(self) -> None:
        self._wake(self._room)
        self._room = None

    def failed(self, error: Exception) -> None:
        self.abandon(f"{type(error).__name__}: {error}")
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"the connection to {self.peer} was closed because of an error", "exception": error}
        )

    def losing(self, code: int, reason: str) -> None:
        words = f": {reason}" if reason else f" (code {code})" if code else ""
        self.loss = ConnectionLost(f"the connection to {self.peer} was closed{words}")
        self.loss_code = code

    def lost(self, code: int, reason: str) -> None:
        assert self.loss is not None
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        self.endpoint.close()
        if not self.connected.done():
            advice = next((text for beginning, text in ADVICE.items() if reason.startswith(beginning)), "")
            words = reason or f"the handshake failed (code {code})"
            self.connected.set_exception(Unreachable(f"cannot connect to {self.peer}: {words}{advice}"))
            self.connected.exception()  # it may be that nobody waits for it any more
        for waiting in (self._acceptor, self._room, self._over):
            self._wake(waiting)
        if self.on_lost is not None:
            self.on_lost(self.loss)

    def refused(self) -> None:
        """Nothing listens there (any more). An attacker on the path could fake this, but could as well drop everything."""
        self.abandon(NOBODY_THERE)

    def _stay_alive(self) -> None:
        if not self.is_lost:
            interval_s = self.core.idle_s_max / KEEP_ALIVE_OF_IDLE
            self._keep_alive = asyncio.get_running_loop().call_later(interval_s, self._show_life)

    def _show_life(self) -> None:
        if not self.is_lost and not self.core.is_closed:
            self.core.ping()
            self.touch()
            self._stay_alive()

    @staticmethod
    def _wake(future: asyncio.Future[None] | None) -> None:
        if future is not None and not future.done():
            future.set_result(None)


async def connect_quic(
    host: str,
    port: int,
    *,
    alpn: str | None = None,
    ca_file: Path | str | None = None,
    verify: bool = True,
    server_name: str | None = None,
    cert: Path | str | None = None,
    key: Path | str | None = None,
    timeout_s: float = 5.0,
    settings: QuicSettings | None = None,
) -> QuicConnection:
    """Connect to a QUIC server, at the first address of its name that answers, IPv4 before IPv6. Raises Unreachable.

    Each address gets an equal share of what is left of `timeout_s`.

    `ca_file` has the trusted CA certificates or the server's own (PEM); without it, those of the system are trusted;
    `verify=False` trusts everybody. `cert` and `key` are what to show a server that asks for a client certificate.
    """
    peer = str(Address(host, port))
    tls = _tls_settings(host, alpn, ca_file, verify, server_name, cert, key)
    try:
        addresses = await resolve(host, port)
    except OSError as error:
        raise Unreachable(f"cannot connect to {peer}: its name cannot be resolved ({error.strerror})") from None
    failure: Unreachable | None = None
    deadline_s = time.monotonic() + timeout_s
    for left, (family, address) in zip(range(len(addresses), 0, -1), addresses, strict=True):
        share_s = (deadline_s - time.monotonic()) / left
        try:
            return await _connect_to(family, address, peer, tls, settings, share_s)
        except Unreachable as error:
            failure = failure or error
    assert failure is not None, "a name that can be resolved has an address"
    raise failure


async def resolve(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the family and the address of each socket address of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    ordered = sorted(found, key=lambda info: info[0] != socket.AF_INET)
    return [(int(family), address) for family, _, _, _, address in ordered[:ADDRESSES_MAX]]


async def _connect_to(
    family: int, address: tuple[Any, ...], peer: str, tls: TlsSettings, settings: QuicSettings | None, timeout_s: float
) -> QuicConnection:
    datagram_bytes = DATAGRAM_BYTES_LOOPBACK if is_loopback(str(address[0])) else DATAGRAM_BYTES
    settings = settings or QuicSettings(datagram_bytes=datagram_bytes)
    try:
        own = open_socket(family, connect=address)
    except OSError as error:
        raise Unreachable(f"cannot connect to {peer}: {error.strerror}") from None

    endpoint = UdpEndpoint(own, time.monotonic)
    core = QuicCore.connect(settings, tls, address, time.monotonic())
    connection = QuicConnection(endpoint, core, settings, peer)
    connection.touch()
    try:
        await asyncio.wait_for(shield(connection.connected), timeout_s)
    except TimeoutError:
        connection.close()
        raise Unreachable(f"cannot connect to {peer}: no answer within {timeout_s:.3g} s") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _tls_settings(
    host: str,
    alpn: str | None,
    ca_file: Path | str | None,
    verify: bool,
    server_name: str | None,
    cert: Path | str | None,
    key: Path | str | None,
) -> TlsSettings:
    if (cert is None) != (key is None):
        raise InvalidRequest("cert and key belong together: give both or neither")
    identity = None
    if cert is not None and key is not None:
        try:
            identity = load_identity(Path(cert), Path(key))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{cert} and {key} cannot be used: {error}") from None
    if ca_file is not None and not Path(ca_file).is_file():
        raise InvalidRequest(f"{ca_file} is not a file: give the path of a PEM file with the certificates to trust")
    return TlsSettings(
        alpn=() if alpn is None else (alpn,),
        identity=identity,
        server_name=server_name or host,
        ca_file=None if ca_file is None else Path(ca_file),
        verify=verify,
    )
