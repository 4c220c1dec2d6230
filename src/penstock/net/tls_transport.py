"""TLS between a TCP transport and its connection: what the event loop's own TLS does, in less than half of the memory.

The event loop's keeps 256 KiB of address space for each connection to read to, and what was ever used of it stays resident. Here all
connections of a listener read to the same buffers. OpenSSL's own buffers for a connection stay as large as the most that they ever held,
so it is given and asked for little at a time.

Nothing waits here. What is written is encrypted and handed to the TCP transport at once, so what that one holds is all that is unsent, and
its marks are those of the connection. What was read is decrypted and passed on at once, except for an incomplete TLS record.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final, Protocol, cast

RECORD_BYTES_MAX: Final = 17 * 1024
"""A TLS record with all that belongs to it: 16 KiB of data, at most."""
HANDSHAKE_BYTES: Final = 128
DECRYPTED_AT_ONCE_BYTES: Final = 64 * 1024
ENCRYPTED_AT_ONCE_BYTES: Final = 64 * 1024
"""What is given to OpenSSL before the result is taken. Of what follows the handshake, less would cost more processor time."""


class TlsUser(Protocol):
    """A connection, as its transport sees it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def get_buffer(self, sizehint: int) -> memoryview: ...

    def buffer_updated(self, nbytes: int) -> None: ...

    def eof_received(self) -> bool: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, error: Exception | None) -> None: ...


class TlsBuffers:
    """What the connections of a listener read to: each takes out what it has read before another one reads."""

    __slots__ = ("encrypted", "plain")

    def __init__(self, plain: memoryview) -> None:
        self.plain = plain
        # The records that a read completes may have begun before it.
        self.encrypted = memoryview(bytearray(len(plain) - RECORD_BYTES_MAX))


class TlsTransport(asyncio.Transport, asyncio.BufferedProtocol):
    """The protocol of a TCP transport, and the transport of a connection once the handshake is complete. The server's side."""

    __slots__ = (
        "_buffers",
        "_context",
        "_handshake",
        "_has_peer_ended",
        "_incoming",
        "_is_closing",
        "_linger_s",
        "_linger_timer",
        "_outgoing",
        "_peer_certificate",
        "_ssl",
        "_tcp",
        "_user",
    )

    _tcp: asyncio.Transport

    def __init__(self, user: TlsUser, context: ssl.SSLContext, buffers: TlsBuffers, linger_s: float) -> None:
        """After `close`, the peer has `linger_s` to end its side."""
        self._user = user
        self._context = context
        self._buffers = buffers
        self._linger_s = linger_s
        self._linger_timer: asyncio.TimerHandle | None = None
        self._peer_certificate: dict[str, Any] | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl: ssl.SSLObject | None = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake: asyncio.Future[Exception | None] | None = asyncio.get_running_loop().create_future()
        """Why it failed, if it did. None once it is complete."""
        self._is_closing = False
        self._has_peer_ended = False
        """Nothing more comes: the peer has said so, or what it sends is no TLS."""

    async def established(self, handshake_s_max: float) -> None:
        """Wait for the handshake. Raises OSError if it fails or takes too long."""
        handshake = self._handshake
        if handshake is None:
            return
        try:
            async with asyncio.timeout(handshake_s_max):
                failure = await handshake
        except TimeoutError:
            raise TimeoutError(f"the TLS handshake took longer than {handshake_s_max:g} s") from None
        finally:
            if handshake.cancelled():
                self._tcp.abort()
        if failure is not None:
            raise failure

    # What the TCP transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._tcp = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        encrypted = self._buffers.encrypted
        return encrypted if self._handshake is not None else encrypted[: len(self._user.get_buffer(sizehint))]

    def buffer_updated(self, nbytes: int) -> None:
        if self._ssl is None:
            return
        received, start, size = self._buffers.encrypted[:nbytes], 0, 0
        while start < nbytes and not self._has_peer_ended:
            end = start + (DECRYPTED_AT_ONCE_BYTES if self._handshake is None else HANDSHAKE_BYTES)
            self._incoming.write(received[start:end])
            start = end
            if self._handshake is not None:
                self._shake_hands(self._ssl, self._handshake)
            if self._handshake is None:
                size = self._decrypt(self._ssl, size)
        if self._is_closing and self._has_peer_ended:
            self._tcp.close()
        if self._is_closing or self._handshake is not None:
            return
        if size:
            self._user.buffer_updated(size)
        if self._outgoing.pending:
            self._tcp.write(self._outgoing.read())
        if self._has_peer_ended:
            self._user.eof_received()
            self.close()

    def eof_received(self) -> bool:
        if self._handshake is None and not self._is_closing:
            self._user.eof_received()
        return False

    def pause_writing(self) -> None:
        if self._handshake is None:
            self._user.pause_writing()

    def resume_writing(self) -> None:
        if self._handshake is None:
            self._user.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        # The connection and its parts know each other, so the rest goes with the next garbage collection.
        self._ssl = None
        del self._incoming, self._outgoing
        if self._handshake is None:
            self._user.connection_lost(error)
        elif not self._handshake.done():
            self._handshake.set_result(error or ConnectionResetError("the client ended the connection"))

    def _shake_hands(self, tls: ssl.SSLObject, handshake: asyncio.Future[Exception | None]) -> None:
        failure: OSError | None = None
        try:
            tls.do_handshake()
            self._peer_certificate = tls.getpeercert()
        except ssl.SSLWantReadError:
            self._tcp.write(self._outgoing.read())
            return
        except ssl.SSLError as error:
            failure = error
        except ValueError as error:  # a name that is no UTF-8
            failure = ConnectionError(f"the certificate of the client cannot be read: {error}")
        self._tcp.write(self._outgoing.read())  # an alert, if it failed
        if handshake.done():
            return  # it was given up
        handshake.set_result(failure)
        if failure is None:
            self._handshake = None
            self._user.connection_made(self)
        else:
            self._has_peer_ended = True
            self._linger()
            self._tcp.close()

    def _linger(self) -> None:
        """Give the peer a while to take what is sent and to end its side."""
        self._linger_timer = asyncio.get_running_loop().call_later(self._linger_s, self._tcp.abort)

    def _decrypt(self, tls: ssl.SSLObject, size: int) -> int:
        """Put records that are complete after the first `size` bytes of plain text; return how much there is then."""
        incoming, plain = self._incoming, self._buffers.plain
        try:
            while incoming.pending or tls.pending():  # asking for more than there is would cost an exception
                count: int = tls.read(len(plain), plain[size:] if size else plain)  # type: ignore[assignment]
                if not count:
                    self._has_peer_ended = True
                    break
                size += count
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self._has_peer_ended = True
        return size

    # What the connection calls.

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._context
        if name == "peercert":
            return self._peer_certificate
        return self._tcp.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._ssl is None or self._is_closing:
            return
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                done += self._ssl.write(view[done : done + ENCRYPTED_AT_ONCE_BYTES])
                self._tcp.write(self._outgoing.read())
        except ssl.SSLError:
            self.abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._tcp.is_closing()

    def close(self) -> None:
        """Say that nothing more comes, and close the connection when the peer has said so too, or after `linger_s`."""
        if self._is_closing or self._ssl is None:
            return
        self._is_closing = True
        self._linger()
        try:
            self._ssl.unwrap()
        except ssl.SSLError:
            # The peer has not said so yet. Closing on top of what it sends would be a reset, which may overtake replies.
            self._tcp.resume_reading()
        self._tcp.write(self._outgoing.read())
        if self._has_peer_ended:
            self._tcp.close()

    def abort(self) -> None:
        self._is_closing = True
        self._tcp.abort()

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._tcp.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._tcp.get_write_buffer_size()
