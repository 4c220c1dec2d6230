"""The two sides of a connection: what the network is handed, and what it hands out.

A session decodes and answers; a connection moves bytes and keeps the limits. Everything happens on one event loop, in callbacks: no
task and no future per message. The network never imports a session; it is given a factory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec


class Session(Protocol):
    """One client's conversation, as the network sees it."""

    def receive(self, data: bytes) -> None:
        """Take a whole read. ProtocolViolation ends the connection once what is in flight is answered."""
        ...

    def resume(self) -> None:
        """The send buffer has drained: continue with requests that were put off."""
        ...

    def closed(self) -> None:
        """The connection is gone. What is still held must be released when its work ends, not before."""
        ...


class Connection(Protocol):
    """One connection, as a session sees it."""

    @property
    def peer(self) -> str:
        """Where the peer is, as `host:port`."""
        ...

    @property
    def listener(self) -> str:
        """The name of the listener that accepted it."""
        ...

    @property
    def principal_hint(self) -> str | None:
        """The subject of the peer's verified TLS certificate, as in `CN=alice,O=Example`."""
        ...

    @property
    def writable(self) -> bool:
        """False while the send buffer is above its high mark: start no work that produces output until `resume`."""
        ...

    def room_for(self, size_bytes: int) -> bool:
        """Return whether there is room for a reply of this size.

        If there is none, drop the reply: the connection is not writable until `resume`, when room is kept for it. Make it again then.
        """
        ...

    def promise_room(self, size_bytes: int) -> bool:
        """Return whether room is kept for a reply that is not made yet, and has at most this size.

        If not, begin nothing: the connection is not writable until `resume`, when room is kept for it.
        """
        ...

    def send(self, data: bytes) -> None:
        """Queue bytes for the peer. Dropped without a word once the connection is ending."""
        ...

    def close(self) -> None:
        """Take no more input, and close once what was sent is flushed."""
        ...

    def hold(self, size_bytes: int) -> None:
        """A request of this size was received whole and waits for its answer. Above the bound the socket is not read."""
        ...

    def release(self, size_bytes: int) -> None:
        """The request was answered. Owed for every hold, also after `closed`."""
        ...

    def frame_pending(self, pending: bool, kept_bytes: int = 0) -> None:
        """Say whether the input ends inside a frame, and how much of that frame is kept.

        The time one frame may take runs from the first True after a False or a hold.
        """
        ...

    def call_soon(self, step: Callable[[], None]) -> None:
        """Run a step of the session in the next turn of the loop. What it raises ends the connection, as what `receive` raises does."""
        ...

    def set_authenticated(self, authenticated: bool) -> None:
        """Say whether the peer is known. Those that are not share a small budget of bytes in flight; all are known until this is called."""
        ...


SessionFactory = Callable[[Connection], Session]


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""A connection to another node."""


class Introduction(msgspec.Struct, frozen=True):
    """The client that a node speaks for. The name and roles are those of a client that has logged in at the node."""

    protocol: str
    peer: str
    subject: str | None = None
    name: str = ""
    roles: tuple[str, ...] = ()
    trusted: bool = False
    native: bool | None = None
    """The dialect that the client has shown, where its protocol has several."""
    tenant: str | None = None
    """For Felix: the only tenant it may name."""
    key: str | None = None
    """For BlipMQ and Felix: the digest of the API key that it has logged in with, which may be revoked."""
    codes: bool = False
    """For Felix: whether it reads error codes."""
    shard: int | None = None
    """The shard that the client asks for; None for what the node that leads has."""
