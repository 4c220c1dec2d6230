"""The two sides of a QUIC connection: what the network is handed, and what it hands out.

A QUIC connection carries many streams, and each is a session of its own: to that session, a stream is a
`penstock.net.session.Connection` with the few things that only QUIC has, and who talks is a `Session` with two more calls. A protocol
hands the network one factory, called once for each connection with the finished handshake; what that returns is asked for a session for
each stream the peer opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.net.session import Connection, Session


class Stream(Connection, Protocol):
    """One stream, as a session sees it. Its own `writable`, `hold` and `frame_pending`; the connection's `peer` and `principal_hint`.

    `close` (from Connection) takes no more input, sends what was queued, and ends our side; answers still held are waited for.
    """

    @property
    def id(self) -> int:
        """The number QUIC gave it."""
        ...

    @property
    def can_receive(self) -> bool:
        """False for a one-way stream that we opened."""
        ...

    @property
    def can_send(self) -> bool:
        """False for a one-way stream that the peer opened, and once our side has ended."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and is not on the wire yet."""
        ...

    @property
    def unacknowledged_bytes(self) -> int:
        """No more than this of what was given to `send` has yet to arrive; what else the connection has in flight counts too."""
        ...

    def send(self, data: bytes, *, end: bool = False) -> None:
        """Queue bytes for the peer; with `end` they are our last, in the same frame where they fit one."""
        ...

    def end(self) -> None:
        """Our side ends once what was queued is sent."""
        ...

    def stop_receiving(self, code: int = 0) -> None:
        """Ask the peer to send no more; what comes nevertheless is thrown away."""
        ...

    def reset(self, code: int = 0) -> None:
        """End our side at once; what was queued is lost."""
        ...


class StreamSession(Session, Protocol):
    """One conversation on one stream. `closed` comes once, when both sides have ended or the connection is gone."""

    def ended(self) -> None:
        """The peer's side has ended in good order: no more `receive`. Our side may still send."""
        ...

    def aborted(self, code: int) -> None:
        """The peer reset its side, or refuses ours (STOP_SENDING). What it waits for need not be answered; `closed` follows."""
        ...


class QuicConnection(Protocol):
    """One connection, as a protocol sees it."""

    @property
    def peer(self) -> str:
        """Where the peer is now, as `host:port`; changes when it migrates."""
        ...

    @property
    def listener(self) -> str: ...

    @property
    def principal_hint(self) -> str | None:
        """The subject of the peer's verified TLS certificate, as in `CN=alice,O=Example`."""
        ...

    @property
    def alpn(self) -> str | None:
        """The application protocol that was agreed on."""
        ...

    @property
    def reading(self) -> bool:
        """Whether what the peer says is taken just now; False if it waits because too much is unanswered."""
        ...

    def open_stream(self, begin: Callable[[Stream], StreamSession], *, one_way: bool = False) -> Stream:
        """Open a stream of ours. Raises LimitExceeded if the peer allows no more."""
        ...

    def close(self, code: int = 0, reason: str = "") -> None:
        """End every stream and the connection, with CONNECTION_CLOSE."""
        ...


class QuicSession(Protocol):
    """What a protocol makes of one connection."""

    def stream_opened(self, stream: Stream) -> StreamSession:
        """The peer opened a stream."""
        ...

    def stopping(self) -> None:
        """The server stops. Announce it to the peer; the connection is closed when its streams have ended, or when the grace is over."""
        ...

    def closed(self) -> None:
        """The connection is gone; every stream's `closed` came before."""
        ...


QuicSessionFactory = Callable[[QuicConnection], QuicSession]
