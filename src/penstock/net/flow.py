"""Back-pressure: when a socket may be read.

A socket is not read while the connection has too many request bytes waiting for their answer, the whole server has, the whole server has
too many bytes of frames that are not received whole yet, the peer does not take its answers, or the connection is ending. Each is one bit;
the socket is read while no bit is set. Overload thus ends up in the peers' send buffers instead of our memory, and nothing is dropped or
refused.

Requests and partial frames share one budget. Partial frames take a quarter of it at most: what peers begin and never finish cannot keep
others from being served. Of the connections that wait for room for their frame, the one that began first is always read, so that frames
are finished one after another; those that wait for long expire (`penstock.net.deadlines`).

While there are too many requests, a connection is read again as soon as all of its own are answered, so one that keeps up is served at
one read at a time. Peers that have not authenticated where they must share a smaller budget of their own, so they cannot use up that of
the others.

Replies that peers do not take have a bound over all connections too. A reply above the little that each connection may have unsent is
queued only if there is room for it (`room_for`). If there is none, the reply is dropped, its connection starts nothing more, and it is
resumed in the order of waiting when there is; then the room is promised to it until it has the reply, so that nobody else takes it. So
is the room for replies that are read from disk, as long as they are being read (`promise_room`). Small replies are
queued in any case, so peers that read are served. Peers that take too little while others wait are closed much sooner
(`penstock.net.deadlines`).

After a server-wide bound was crossed, connections are resumed a few per turn of the loop, because each may bring a full read with it;
resuming all of them at once would cross the bound by thousands of reads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Protocol

from penstock.net.stats import ListenerStats
from penstock.net.windows import ReceiveWindows, SendWindows

OWN_REQUESTS = 1
SERVER_REQUESTS = 2
SEND_BUFFER = 4
ENDING = 8
PARTIAL_FRAMES = 16

RESUMED_PER_TURN_MAX = 32
PARTIAL_BYTES_FREE = 64 * 1024
"""What a connection may have of a partial frame whatever the others have, so that small requests are always received."""
PARTIAL_SHARE = 4
"""Partial frames may use 1/PARTIAL_SHARE of the budget. They take more memory than that, because each connection may have some."""
WINDOWS_SHARE = 4
"""Receive windows of QUIC connections have 1/WINDOWS_SHARE of the budget, on top of it."""
SEND_WINDOWS_SHARE = 8
"""Their send windows have, beyond their minimum, 1/SEND_WINDOWS_SHARE of the budget, on top of it."""
UNAUTHENTICATED_SHARE = 4
"""Peers that have not authenticated have 1/UNAUTHENTICATED_SHARE of the budget, on top of it."""
ROOM_GRANTED_PER_TURN_MAX = 4
"""Connections that are told in one turn of the loop that there is room for their reply: each makes a large reply at once."""
UNSENT_BYTES_FREE = 64 * 1024
"""Unsent replies that a connection may have and still be served, whatever the others have."""


class Readable(Protocol):
    """The part of a transport that flow control needs."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class PartialFrames:
    """Bytes of frames that are not received whole yet, on all connections together."""

    __slots__ = ("_began", "_call_soon", "_resume_scheduled", "_waiting", "bytes_max", "is_over", "total_bytes")

    def __init__(self, bytes_max: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.bytes_max = bytes_max
        self.total_bytes = 0
        self.is_over = False
        """Whether there is too much of them. Kept up to date, because every read asks."""
        self._call_soon = call_soon
        self._began: dict[ReadFlow, None] = {}
        """Connections with more of a partial frame than is free, in the order in which they began it."""
        self._waiting: dict[ReadFlow, None] = {}
        """Those of them that are not read because of this bound."""
        self._resume_scheduled = False

    @property
    def waiting(self) -> int:
        """Connections that are not read because of this bound."""
        return len(self._waiting)

    def changed(self, flow: ReadFlow, before_bytes: int) -> None:
        """Note how much a connection has of a partial frame, and stop it, or resume others, as the bound demands."""
        self.total_bytes += flow.partial_bytes - before_bytes
        self.is_over = self.total_bytes > self.bytes_max
        if flow.partial_bytes < before_bytes:
            self.resume_soon()
        if flow.partial_bytes <= PARTIAL_BYTES_FREE:
            self.forget(flow)
            return
        self._began[flow] = None
        if self.is_over and self._first() is not flow:
            self._waiting[flow] = None
            flow.block(PARTIAL_FRAMES)

    def forget(self, flow: ReadFlow) -> None:
        """Note that a connection has no partial frame of any size, or is gone."""
        if flow in self._began:
            del self._began[flow]
            self._waiting.pop(flow, None)
            flow.unblock(PARTIAL_FRAMES)

    def resume_soon(self) -> None:
        """Look for connections to resume, once whatever is continuing is done."""
        if self._waiting and not self._resume_scheduled:
            self._resume_scheduled = True
            self._call_soon(self._resume)

    def _first(self) -> ReadFlow | None:
        """Return the connection that began its frame first, of those that nothing but this bound stops."""
        return next((flow for flow in self._began if flow.is_blocked_at_most_by(PARTIAL_FRAMES)), None)

    def _resume(self) -> None:
        self._resume_scheduled = False
        if self.total_bytes * 2 <= self.bytes_max:
            resumed = list(islice(self._waiting, RESUMED_PER_TURN_MAX))
        else:
            first = self._first()
            resumed = [first] if first in self._waiting else []
        for flow in resumed:
            del self._waiting[flow]
            flow.unblock(PARTIAL_FRAMES)
        if resumed:
            self.resume_soon()


class InFlightBudget:
    """Request bytes that wait for their answer, and those of partial frames, on all connections together."""

    __slots__ = (
        "_call_soon",
        "_grant_scheduled",
        "_resume_scheduled",
        "_unauthenticated",
        "_waiting_for_room",
        "bytes_max",
        "held_bytes",
        "hold_bytes_max",
        "partial",
        "promised_bytes",
        "resume_bytes",
        "send_windows",
        "stopped",
        "unsent_bytes",
        "windows",
    )

    def __init__(self, bytes_max: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.bytes_max = bytes_max
        self.hold_bytes_max = bytes_max + bytes_max // 4
        """Above this many bytes of requests, connections wait even if all of their own requests are answered."""
        self.resume_bytes = bytes_max // 2
        self.held_bytes = 0
        self.partial = PartialFrames(bytes_max // PARTIAL_SHARE, call_soon)
        self.windows = ReceiveWindows(bytes_max // WINDOWS_SHARE)
        self.send_windows = SendWindows(bytes_max // SEND_WINDOWS_SHARE)
        self.unsent_bytes = 0
        """Replies that peers have not taken."""
        self.promised_bytes = 0
        """Room that is kept for replies that are being made again."""
        self._waiting_for_room: dict[ReadFlow, int] = {}
        """Connections with the sizes of their replies, in the order in which they began to wait."""
        self._grant_scheduled = False
        self._call_soon = call_soon
        self.stopped: dict[ReadFlow, None] = {}
        """Connections that are not read because too many requests are in flight."""
        self._resume_scheduled = False
        self._unauthenticated: InFlightBudget | None = None

    @property
    def unauthenticated(self) -> InFlightBudget:
        """The budget that peers share until they have authenticated."""
        if self._unauthenticated is None:
            self._unauthenticated = InFlightBudget(self.bytes_max // UNAUTHENTICATED_SHARE, self._call_soon)
        return self._unauthenticated

    @property
    def is_over(self) -> bool:
        """Whether there are too many requests: they may use what partial frames leave, and half of the budget in any case."""
        return self.held_bytes > self.resume_bytes and self.held_bytes + self.partial.total_bytes > self.bytes_max

    @property
    def waiting_for_room(self) -> int:
        """Connections that wait for room for a reply."""
        return len(self._waiting_for_room)

    @property
    def is_unsent_over(self) -> bool:
        """Whether there are too many bytes of unsent replies, or connections wait for room for theirs."""
        return bool(self._waiting_for_room) or self.unsent_bytes + self.promised_bytes > self.bytes_max

    def room_for(self, flow: ReadFlow, size_bytes: int) -> bool:
        """Return whether a reply may be queued; if not, its connection waits, after those that wait already."""
        size_bytes = min(size_bytes, self.bytes_max)  # what is larger waits until nothing else is unsent
        if not self._waiting_for_room and self._fits(size_bytes):
            return True
        self._waiting_for_room[flow] = size_bytes
        return False

    def promise(self, change_bytes: int) -> None:
        self.promised_bytes += change_bytes
        if change_bytes < 0:
            self.grant_soon()

    def grant_soon(self) -> None:
        """Look for connections that there is room for now, once whatever is continuing is done."""
        if self._waiting_for_room and not self._grant_scheduled:
            self._grant_scheduled = True
            self._call_soon(self._grant_some)

    def _fits(self, size_bytes: int) -> bool:
        return self.unsent_bytes + self.promised_bytes + size_bytes <= self.bytes_max

    def _grant_some(self) -> None:
        self._grant_scheduled = False
        for flow, size_bytes in list(islice(self._waiting_for_room.items(), ROOM_GRANTED_PER_TURN_MAX)):
            if not self._fits(size_bytes):
                return
            del self._waiting_for_room[flow]
            flow.grant(size_bytes)
        self.grant_soon()

    def check(self, flow: ReadFlow) -> None:
        """Let a connection that holds more than before wait, if there are too many requests."""
        if self.is_over:
            self.stopped[flow] = None
            flow.block(SERVER_REQUESTS)

    def forget(self, flow: ReadFlow) -> bool:
        """Note that a connection does not wait for others any more. Returns whether it waited for room for a reply."""
        self.stopped.pop(flow, None)
        waited = self._waiting_for_room.pop(flow, None) is not None
        self.grant_soon()
        return waited

    def released(self, flow: ReadFlow, size_bytes: int) -> None:
        """Resume connections that wait, as far as the requests that a connection released make room."""
        held_bytes = self.held_bytes
        if held_bytes <= self.resume_bytes or held_bytes + size_bytes > self.hold_bytes_max >= held_bytes:
            self._resume_soon()
        elif not flow.held_bytes and held_bytes <= self.hold_bytes_max and flow in self.stopped:
            del self.stopped[flow]
            flow.unblock(SERVER_REQUESTS)

    def _resume_soon(self) -> None:
        if self.stopped and not self._resume_scheduled:
            self._resume_scheduled = True
            self._call_soon(self._resume_some)

    def _resume_some(self) -> None:
        """Resume connections: those without requests of their own first, and the others once there is much room."""
        self._resume_scheduled = False
        if self.held_bytes <= self.resume_bytes:
            resumed = list(islice(self.stopped, RESUMED_PER_TURN_MAX))
        elif self.held_bytes <= self.hold_bytes_max:
            resumed = list(islice((flow for flow in self.stopped if not flow.held_bytes), RESUMED_PER_TURN_MAX))
        else:
            resumed = []
        for flow in resumed:
            del self.stopped[flow]
            flow.unblock(SERVER_REQUESTS)
        if resumed:
            self._resume_soon()


class ReadFlow:
    """Whether one connection is read, and the request bytes it has in flight."""

    __slots__ = (
        "_blocked_by",
        "_bytes_max",
        "_on_room",
        "_stats",
        "_transport",
        "budget",
        "held_bytes",
        "partial_bytes",
        "promised_bytes",
        "unsent_bytes",
    )

    def __init__(
        self,
        transport: Readable,
        bytes_max: int,
        budget: InFlightBudget,
        stats: ListenerStats,
        on_room: Callable[[], None] | None = None,
    ) -> None:
        """`on_room` is called when there is room for a reply that there was none for."""
        self._transport = transport
        self._on_room = on_room
        self._bytes_max = bytes_max
        self.budget = budget
        """Of this and other connections together."""
        self._stats = stats
        self._blocked_by = 0
        self.held_bytes = 0
        self.partial_bytes = 0
        """What is kept of frames that are not received whole."""
        self.unsent_bytes = 0
        """What the peer had not taken at the last check."""
        self.promised_bytes = 0
        """Room that is kept for a reply."""

    @property
    def reading(self) -> bool:
        return not self._blocked_by

    def is_blocked_at_most_by(self, reason: int) -> bool:
        return not self._blocked_by & ~reason

    def update_partial(self, partial_bytes: int) -> None:
        """Note how much was received of frames that are not whole."""
        before_bytes, self.partial_bytes = self.partial_bytes, partial_bytes
        if partial_bytes != before_bytes:
            self.budget.partial.changed(self, before_bytes)

    def update_unsent(self, size_bytes: int) -> None:
        """Note how much the peer has not taken."""
        change_bytes = size_bytes - self.unsent_bytes
        self.unsent_bytes = size_bytes
        self.budget.unsent_bytes += change_bytes
        if change_bytes < 0:
            self.budget.grant_soon()

    def room_for(self, size_bytes: int) -> bool:
        """Return whether a reply may be queued. If not, `on_room` is called when it may."""
        if size_bytes <= self.promised_bytes or self.unsent_bytes + size_bytes <= UNSENT_BYTES_FREE:
            return True
        if self.promised_bytes:
            self.give_up_promise()
        return self.budget.room_for(self, size_bytes)

    def promise_room(self, size_bytes: int) -> bool:
        """Return whether room is kept for a reply of at most this size. If not, `on_room` is called when it is."""
        if self.promised_bytes:
            return True
        if not self.budget.room_for(self, size_bytes):
            return False
        self._promise(min(size_bytes, self.budget.bytes_max))
        return True

    def grant(self, size_bytes: int) -> None:
        """Keep room for the reply that there was none for."""
        self._promise(size_bytes)
        if self._on_room is not None:
            self._on_room()

    def _promise(self, size_bytes: int) -> None:
        self.promised_bytes = size_bytes
        self.budget.promise(size_bytes)

    def give_up_promise(self) -> None:
        """Note that the reply is queued, or will not be."""
        if self.promised_bytes:
            size_bytes, self.promised_bytes = self.promised_bytes, 0
            self.budget.promise(-size_bytes)

    @property
    def is_server_under_pressure(self) -> bool:
        """Whether the unsent replies of all peers together exceed the bound."""
        return self.budget.is_unsent_over

    @property
    def is_under_pressure(self) -> bool:
        """Whether they do, and this peer has more than its free share of them."""
        return self.unsent_bytes > UNSENT_BYTES_FREE and self.budget.is_unsent_over

    @property
    def keeps_others_waiting(self) -> bool:
        """Whether the peer takes too little of its replies, while others wait for room, or because too many requests are in flight."""
        budget = self.budget
        if not self.unsent_bytes:
            return False
        return budget.waiting_for_room > 0 or (self.held_bytes > 0 and (bool(budget.stopped) or budget.is_over))

    @property
    def frames_wait(self) -> bool:
        """Whether some connections are not read because there is too much of partial frames."""
        return self.budget.partial.waiting > 0

    def use(self, budget: InFlightBudget) -> None:
        """Count what the connection has against another budget from now on."""
        before = self.budget
        if budget is before:
            return
        partial_bytes, unsent_bytes = self.partial_bytes, self.unsent_bytes
        self.update_partial(0)
        self.update_unsent(0)
        self.give_up_promise()
        waited_for_room = before.forget(self)
        self.unblock(SERVER_REQUESTS)
        before.held_bytes -= self.held_bytes
        before.released(self, self.held_bytes)
        self.budget = budget
        budget.held_bytes += self.held_bytes
        budget.check(self)
        self.update_partial(partial_bytes)
        self.update_unsent(unsent_bytes)
        if waited_for_room and self._on_room is not None:
            self._on_room()  # which may ask for room again, in the new budget

    def hold(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        if self.held_bytes > self._bytes_max:
            self.block(OWN_REQUESTS)
        budget = self.budget
        budget.held_bytes += size_bytes
        if budget.held_bytes > budget.resume_bytes:
            budget.check(self)

    def release(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        assert self.held_bytes >= 0, "a connection released more request bytes than it held"
        if self._blocked_by & OWN_REQUESTS and self.held_bytes * 2 <= self._bytes_max:
            self.unblock(OWN_REQUESTS)
        if self.promised_bytes and not self.held_bytes:
            self.give_up_promise()  # everything is answered, and it was not needed
        budget = self.budget
        budget.held_bytes -= size_bytes
        if budget.stopped:
            budget.released(self, size_bytes)

    def block(self, reason: int) -> None:
        if not self._blocked_by:
            self._transport.pause_reading()
            if reason != ENDING:
                self._stats.read_pauses += 1
        self._blocked_by |= reason
        if self.partial_bytes and reason != PARTIAL_FRAMES:
            self.budget.partial.resume_soon()  # it may have been the one that is always read

    def unblock(self, reason: int) -> None:
        if self._blocked_by:
            self._blocked_by &= ~reason
            if not self._blocked_by:
                self._transport.resume_reading()
            elif self._blocked_by == PARTIAL_FRAMES:
                self.budget.partial.resume_soon()  # it may be the first now

    def lost(self) -> None:
        """The connection is gone: it is never read again, but what it holds stays counted until it is released."""
        self._blocked_by |= ENDING
        self.budget.forget(self)
        self.update_partial(0)
        self.update_unsent(0)
        self.give_up_promise()
        self._on_room = None
