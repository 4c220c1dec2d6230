"""Back-pressure: when a socket may be read.

Three things stop a socket from being read: the connection has too many request bytes waiting for their answer, the whole server has, or
the peer does not take its answers. Each is one bit; the socket is read while no bit is set. Overload thus ends up in the peers' send
buffers instead of our memory, and nothing is dropped or refused.

After the server-wide bound was crossed, connections are let in again a few per turn of the loop, because each may bring a full read with
it; letting all of them in at once would cross the bound by thousands of reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from penstock.net.stats import ListenerStats

OWN_REQUESTS = 1
SERVER_REQUESTS = 2
SEND_BUFFER = 4
ENDING = 8

RESUMED_PER_TURN_MAX = 32


class Readable(Protocol):
    """The part of a transport that flow control needs."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class InFlightBudget:
    """Request bytes that wait for their answer on all connections together."""

    __slots__ = ("_call_soon", "_resume_scheduled", "_waiting", "bytes_max", "held_bytes", "resume_bytes")

    def __init__(self, bytes_max: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.bytes_max = bytes_max
        self.resume_bytes = bytes_max // 2
        self.held_bytes = 0
        self._call_soon = call_soon
        self._waiting: dict[ReadFlow, None] = {}
        self._resume_scheduled = False

    @property
    def waiting(self) -> int:
        """Connections that are not read because of this budget."""
        return len(self._waiting)

    def wait(self, flow: ReadFlow) -> None:
        self._waiting[flow] = None

    def forget(self, flow: ReadFlow) -> None:
        self._waiting.pop(flow, None)

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "more request bytes released than held"
        if self._waiting and not self._resume_scheduled and self.held_bytes <= self.resume_bytes:
            self._resume_scheduled = True
            self._call_soon(self._resume_some)

    def _resume_some(self) -> None:
        self._resume_scheduled = False
        if self.held_bytes > self.resume_bytes:
            return
        for flow in list(self._waiting)[:RESUMED_PER_TURN_MAX]:
            del self._waiting[flow]
            flow.unblock(SERVER_REQUESTS)
        if self._waiting:
            self._resume_scheduled = True
            self._call_soon(self._resume_some)


class ReadFlow:
    """Whether one connection is read, and the request bytes it has in flight."""

    __slots__ = ("_blocked_by", "_budget", "_bytes_max", "_stats", "_transport", "held_bytes")

    def __init__(self, transport: Readable, bytes_max: int, budget: InFlightBudget, stats: ListenerStats) -> None:
        self._transport = transport
        self._bytes_max = bytes_max
        self._budget = budget
        self._stats = stats
        self._blocked_by = 0
        self.held_bytes = 0

    @property
    def reading(self) -> bool:
        return not self._blocked_by

    def hold(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        budget = self._budget
        budget.held_bytes += size_bytes
        if self.held_bytes > self._bytes_max:
            self.block(OWN_REQUESTS)
        if budget.held_bytes > budget.bytes_max:
            budget.wait(self)
            self.block(SERVER_REQUESTS)

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "a connection released more request bytes than it held"
        if self._blocked_by & OWN_REQUESTS and self.held_bytes * 2 <= self._bytes_max:
            self.unblock(OWN_REQUESTS)
        self._budget.release(size_bytes)

    def block(self, reason: int) -> None:
        if not self._blocked_by:
            self._transport.pause_reading()
            if reason != ENDING:
                self._stats.read_pauses += 1
        self._blocked_by |= reason

    def unblock(self, reason: int) -> None:
        if self._blocked_by:
            self._blocked_by &= ~reason
            if not self._blocked_by:
                self._transport.resume_reading()

    def lost(self) -> None:
        """The connection is gone: it is never read again, but what it holds stays counted until it is released."""
        self._blocked_by |= ENDING
        self._budget.forget(self)
