"""TLS between a TCP transport and its connection: what the event loop's own TLS does, in less than half of the memory.

The event loop's keeps 256 KiB of address space for each connection to read to, and what was ever used of it stays resident. Here all
connections of a listener read to the same buffers. OpenSSL's own buffers for a connection stay as large as the most that they ever held,
so it is given and asked for little at a time.

Hardly anything waits here. What is written is encrypted and handed to the TCP transport at once, so what that one holds is what is unsent,
and its marks are those of the connection. What was read is decrypted and passed on at once, except for an incomplete TLS record.

There is one exception: OpenSSL encrypts nothing while the peer has sent a part of a handshake message (a renegotiation of TLS 1.2, a
KeyUpdate of TLS 1.3). What is written meanwhile is kept until the rest of that message is here; to the connection this is a full send
buffer. So a peer that never sends the rest is disconnected as one that reads no replies is. Only here the peer is read although the
connection is not: by few bytes at a time, so that hardly any of what follows the message comes with it.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Final, Protocol, cast

from penstock.net.limits import TcpConnectionLimits

RECORD_BYTES_MAX: Final = 17 * 1024
"""A TLS record with all that belongs to it: 16 KiB of data, at most."""
HANDSHAKE_BYTES: Final = 128
HANDSHAKE_READ_BYTES: Final = 4 * 1024
"""What one read brings before the handshake is complete: with few bytes a step, the rest of a long one is for later turns."""
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
        "_delayed",
        "_handshake",
        "_handshake_bytes",
        "_has_peer_ended",
        "_incoming",
        "_is_closing",
        "_is_end_due",
        "_is_reading_paused",
        "_is_tcp_full",
        "_limits",
        "_linger_timer",
        "_outgoing",
        "_peer_certificate",
        "_ssl",
        "_tcp",
        "_user",
    )

    _tcp: asyncio.Transport

    def __init__(
        self, user: TlsUser, context: ssl.SSLContext, buffers: TlsBuffers, limits: TcpConnectionLimits
    ) -> None:
        self._user = user
        self._context = context
        self._buffers = buffers
        self._limits = limits
        self._linger_timer: asyncio.TimerHandle | None = None
        self._peer_certificate: dict[str, Any] | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl: ssl.SSLObject | None = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake: asyncio.Future[Exception | None] | None = asyncio.get_running_loop().create_future()
        """Why it failed, if it did. None once it is complete."""
        self._handshake_bytes = 0
        """What it has taken so far."""
        self._delayed: bytearray | None = None
        """What OpenSSL does not encrypt yet."""
        self._is_tcp_full = False
        self._is_reading_paused = False
        """The connection wants no more; the TCP transport is read all the same while something is delayed."""
        self._is_closing = False
        self._is_end_due = False
        """The connection is closed, and the peer is not told yet: OpenSSL does not say that either while it does not encrypt."""
        self._has_peer_ended = False
        """Nothing more comes: the peer has said so, or what it sends is no TLS."""

    async def established(self) -> None:
        """Wait for the handshake. Raises OSError if it fails or takes too long."""
        handshake, handshake_s_max = self._handshake, self._limits.handshake_s_max
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
        if self._handshake is not None:
            size_bytes = HANDSHAKE_READ_BYTES
        elif self._delayed is not None:
            size_bytes = HANDSHAKE_BYTES
        else:
            size_bytes = len(self._user.get_buffer(sizehint))
        return self._buffers.encrypted[:size_bytes]

    def buffer_updated(self, nbytes: int) -> None:
        if self._ssl is None:
            return
        received, start, size = self._buffers.encrypted[:nbytes], 0, 0
        while start < nbytes and not self._has_peer_ended:
            end = start + (DECRYPTED_AT_ONCE_BYTES if self._handshake is None else HANDSHAKE_BYTES)
            taken = self._incoming.write(received[start:end])
            start = end
            if self._handshake is not None:
                self._handshake_bytes += taken
                self._shake_hands(self._ssl, self._handshake)
            if self._handshake is None:
                size = self._decrypt(self._ssl, size)
        if self._delayed is not None:
            self._write_delayed(self._delayed)
        if self._is_end_due and self._delayed is None:
            self._say_end(self._ssl)
        if self._is_closing and self._has_peer_ended:
            self._tcp.close()
        if self._handshake is not None and nbytes == HANDSHAKE_READ_BYTES and not self._has_peer_ended:
            self._tcp.pause_reading()  # uvloop reads up to 32 times in a turn
            asyncio.get_running_loop().call_soon(self._read_on)
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
        self._is_tcp_full = True
        if self._handshake is None:
            self._user.pause_writing()

    def resume_writing(self) -> None:
        self._is_tcp_full = False
        if self._handshake is None and self._delayed is None:
            self._user.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closing = True
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        # The connection and its parts know each other, so the rest goes with the next garbage collection.
        self._ssl = self._delayed = None
        del self._incoming, self._outgoing
        if self._handshake is None:
            self._user.connection_lost(error)
        elif not self._handshake.done():
            self._handshake.set_result(error or ConnectionResetError("the client ended the connection"))

    def _read_on(self) -> None:
        if not self._tcp.is_closing():
            self._tcp.resume_reading()

    def _shake_hands(self, tls: ssl.SSLObject, handshake: asyncio.Future[Exception | None]) -> None:
        failure: OSError | None = None
        try:
            tls.do_handshake()
            self._peer_certificate = tls.getpeercert()
        except ssl.SSLWantReadError:
            self._tcp.write(self._outgoing.read())
            if self._handshake_bytes < self._limits.handshake_bytes_max:
                return
            failure = ConnectionError(
                f"the handshake has more than handshake_bytes_max = {self._limits.handshake_bytes_max} bytes: shorten the certificate"
                " chain of the client, or raise handshake_bytes_max of the listener"
            )
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
        self._linger_timer = asyncio.get_running_loop().call_later(self._limits.linger_s_max, self._tcp.abort)

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
        if self._delayed is not None:
            self._delayed += data
            return
        view = memoryview(data)
        done = self._encrypt(self._ssl, view)
        if done < len(view) and not self._is_closing:
            self._delayed = bytearray(view[done:])
            self._tcp.resume_reading()
            self._user.pause_writing()

    def _encrypt(self, tls: ssl.SSLObject, view: memoryview) -> int:
        """Hand data to the TCP transport, and return how much of it: all, unless a part of a handshake message has arrived."""
        done = 0
        try:
            while done < len(view):
                done += tls.write(view[done : done + ENCRYPTED_AT_ONCE_BYTES])
                self._tcp.write(self._outgoing.read())
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            self.abort()
        return done

    def _write_delayed(self, delayed: bytearray) -> None:
        """Write what was kept, if the rest of the handshake message is here, and let the connection go on."""
        assert self._ssl is not None
        with memoryview(delayed) as view:
            done = self._encrypt(self._ssl, view)
        if done < len(delayed):
            del delayed[:done]
            return
        self._delayed = None
        if self._is_reading_paused and not self._is_closing:
            self._tcp.pause_reading()
        if not self._is_tcp_full and not self._is_closing:
            self._user.resume_writing()

    def is_closing(self) -> bool:
        return self._is_closing or self._tcp.is_closing()

    def close(self) -> None:
        """Say that nothing more comes, and close the connection when the peer has said so too, or after `linger_s`."""
        if self._is_closing or self._ssl is None:
            return
        self._is_closing = True
        self._linger()
        # The peer may not have said so yet. Closing on top of what it sends would be a reset, which may overtake replies.
        self._tcp.resume_reading()
        if self._delayed is None:
            self._say_end(self._ssl)
        else:
            self._is_end_due = True
        if self._has_peer_ended:
            self._tcp.close()

    def _say_end(self, tls: ssl.SSLObject) -> None:
        before_bytes = self._outgoing.pending
        try:
            tls.unwrap()
        except ssl.SSLError:
            pass  # it waits for what the peer says
        self._is_end_due = self._outgoing.pending == before_bytes
        self._tcp.write(self._outgoing.read())

    def abort(self) -> None:
        self._is_closing = True
        self._tcp.abort()

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._is_reading_paused = True
        if self._delayed is None:
            self._tcp.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading_paused = False
        self._tcp.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._tcp.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        unsent_bytes = self._tcp.get_write_buffer_size()
        return unsent_bytes if self._delayed is None else unsent_bytes + len(self._delayed)
