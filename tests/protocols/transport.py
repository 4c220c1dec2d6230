"""Connections in memory: what a session sees of its transport, and an account of what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PEER = "192.0.2.1:50000"


class MemoryTransport:
    """What connections and streams have in common."""

    def __init__(self, listener: str, peer: str = PEER, principal_hint: str | None = None) -> None:
        self.peer = peer
        self.listener = listener
        self.principal_hint = principal_hint
        self.held_bytes = 0
        self.held_bytes_peak = 0
        self.pending_calls: list[bool] = []
        """What it was told of partial frames."""
        self.authenticated: bool | None = None

    def room_for(self, size_bytes: int) -> bool:
        return True

    def promise_room(self, size_bytes: int) -> bool:
        return self.room_for(size_bytes)

    def hold(self, size_bytes: int) -> None:
        assert size_bytes >= 0
        self.held_bytes += size_bytes
        self.held_bytes_peak = max(self.held_bytes_peak, self.held_bytes)

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0

    def set_authenticated(self, authenticated: bool) -> None:
        self.authenticated = authenticated

    def frame_pending(self, pending: bool, kept_bytes: int = 0) -> None:
        self.pending_calls.append(pending)

    @property
    def pending(self) -> bool:
        """Whether a frame is partial."""
        return bool(self.pending_calls) and self.pending_calls[-1]

    def call_soon(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(step)


class MemoryConnection(MemoryTransport):
    """A TCP connection."""

    def __init__(self, listener: str, peer: str = PEER) -> None:
        super().__init__(listener, peer)
        self.writable = True
        self.has_room = True
        self.sends: list[bytes] = []
        self.closing = False
        self.arrived = asyncio.Event()

    def room_for(self, size_bytes: int) -> bool:
        self.writable = self.writable and self.has_room
        return self.has_room

    def send(self, data: bytes) -> None:
        assert data
        self.sends.append(data)
        self.arrived.set()

    def close(self) -> None:
        self.closing = True
