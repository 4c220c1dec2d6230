"""One TCP or TLS connection: the bridge between an asyncio transport and a session.

Bytes go up as they come (`buffer_updated` to `Session.receive`) and down as they are given (`send` to the transport, which writes at once
when it can). Nothing here parses, and nothing here waits.

A connection ends in one of two ways. `finish` is for everything foreseen (the peer is done, it broke its protocol, the server stops):
no more input is taken, what is in flight is answered, then it closes. If the peer may still be sending, only our half is closed and its
bytes are thrown away for a moment, because closing on top of unread input makes the kernel send a reset that can destroy answers under
way. `abort` is for everything else.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, cast

import structlog

from penstock.clock import Clock
from penstock.errors import ProtocolViolation
from penstock.net.deadlines import ConnectionWatch, Expiry
from penstock.net.flow import ENDING, PARTIAL_FRAMES, SEND_BUFFER, UNSENT_BYTES_FREE, InFlightBudget, ReadFlow
from penstock.net.limits import TcpLimits
from penstock.net.session import Session, SessionFactory
from penstock.net.stats import ListenerStats
from penstock.net.tap import Tap
from penstock.net.tls import subject_of

LOGGED_PREFIX_BYTES = 16
LOGGED_REASON_CHARS = 200

log = structlog.get_logger(__name__)


READ_BYTES_MAX = 256 * 1024
"""What one read brings at most."""
READ_BYTES_UNDER_PRESSURE = 16 * 1024
"""The same while partial frames have more than their share: a connection can be stopped only after a read."""


class State(IntEnum):
    """What happens to a connection, in this order; some skip a step."""

    OPEN = 0
    FINISHING = 1  # no more input is taken; what is in flight is being answered
    LINGERING = 2  # everything is answered and our half closed; what the peer still sends is thrown away
    CLOSING = 3  # the transport flushes what was sent and closes
    GONE = 4


class ConnectionOwner(Protocol):
    """The listener, as its connections see it."""

    name: str
    limits: TcpLimits
    stats: ListenerStats
    clock: Clock
    budget: InFlightBudget
    factory: SessionFactory
    read_buffer: memoryview
    """Of READ_BYTES_MAX, for all connections: what was read is taken out before the next one reads."""
    half_closes: bool
    """Whether a peer that sends no more may still wait for answers."""

    def opened(self, connection: TcpConnection) -> None: ...

    def answered(self, connection: TcpConnection) -> None:
        """A connection that was told to finish owes its peer no more answers."""
        ...

    def lost(self, connection: TcpConnection) -> None: ...


class TcpConnection(asyncio.BufferedProtocol):
    """Implements `penstock.net.session.Connection` for its session."""

    __slots__ = (
        "_encrypted",
        "_flow",
        "_fresh",
        "_largest_write_bytes",
        "_linger",
        "_linger_until_s",
        "_owner",
        "_peer_done",
        "_queued_bytes",
        "_quickack_socket",
        "_receiving",
        "_send_paused",
        "_sent_bytes",
        "_session",
        "_state",
        "_transport",
        "_waits_for_room",
        "_watch",
        "listener",
        "made",
        "peer",
        "principal_hint",
        "tap",
        "writable",
    )

    _flow: ReadFlow
    _transport: asyncio.Transport
    _watch: ConnectionWatch

    def __init__(self, owner: ConnectionOwner, peer: str, quickack_socket: socket.socket | None = None) -> None:
        self._owner = owner
        self._quickack_socket = quickack_socket
        self._session: Session | None = None
        self._state = State.OPEN
        self._encrypted = False
        self._fresh = True
        self._linger = False
        self._linger_until_s: float | None = None
        self._peer_done = False
        self._queued_bytes = 0
        """What was written since the send buffer was last found empty, and the largest of these writes."""
        self._largest_write_bytes = 0
        self._receiving = False
        self._send_paused = False
        self._sent_bytes = 0
        self._waits_for_room = False
        self.listener = owner.name
        self.made = False
        self.peer = peer
        self.principal_hint: str | None = None
        self.tap: Tap | None = None
        self.writable = True

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        owner = self._owner
        limits = owner.limits
        self._transport = cast(asyncio.Transport, transport)
        self._encrypted = transport.get_extra_info("sslcontext") is not None
        if self._encrypted:
            self.principal_hint = subject_of(transport.get_extra_info("peercert"))
        self._flow = ReadFlow(
            self._transport, limits.in_flight_bytes_max, owner.budget, owner.stats, self._room_granted
        )
        self._watch = ConnectionWatch(owner.clock.monotonic())
        self._transport.set_write_buffer_limits(limits.send_buffer_bytes_max, limits.send_buffer_low_bytes)
        self.made = True
        owner.opened(self)
        if self._state is State.OPEN:
            self._run(self._open_session)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the transport reads to, before `buffer_updated`: one buffer for all connections, of which little is used while
        partial frames have too much."""
        buffer = self._owner.read_buffer
        return buffer[:READ_BYTES_UNDER_PRESSURE] if self._flow.budget.partial.is_over else buffer

    def buffer_updated(self, nbytes: int) -> None:
        owner = self._owner
        owner.stats.bytes_in += nbytes
        if self._state is not State.OPEN:
            return
        data = owner.read_buffer[:nbytes].tobytes()
        if self.tap is not None:
            self.tap.received(data, 0, at_start=self._fresh, at_frame=not self._watch.is_frame_pending)
        self._watch.received = True
        assert self._session is not None
        self._receiving = True
        try:
            self._session.receive(data)
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._step_failed(error, data if self._fresh else b"")
        self._receiving = False
        self._fresh = False
        if self._quickack_socket is not None:
            # The kernel forgets the wish after a while, and a peer that sends a frame in two writes then waits 40 ms for each.
            self._quickack_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def eof_received(self) -> bool:
        self._peer_done = True
        if self._encrypted:
            return False  # one half of a TLS connection is not kept open
        if self._state is State.LINGERING or not self._owner.half_closes:
            return False
        self.finish()
        return True

    def pause_writing(self) -> None:
        self._send_paused = True
        self.writable = False
        self._flow.block(SEND_BUFFER)

    def resume_writing(self) -> None:
        limits = self._owner.limits
        self._transport.set_write_buffer_limits(limits.send_buffer_bytes_max, limits.send_buffer_low_bytes)
        self._note_unsent(self._transport.get_write_buffer_size())
        self._send_paused = False
        if not self._waits_for_room:
            self._resume_session()

    def _room_granted(self) -> None:
        self._waits_for_room = False
        if not self._send_paused:
            self._resume_session()

    def _resume_session(self) -> None:
        self.writable = True
        if self._session is not None:
            self._run(self._session.resume)
        if self.writable:
            self._flow.unblock(SEND_BUFFER)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.made:
            return  # `connection_made` has failed; the listener counts it out
        if isinstance(error, ConnectionError):
            self._owner.stats.resets += 1
        self._state = State.GONE
        self._quickack_socket = None
        self.writable = False
        self._flow.lost()
        session, self._session = self._session, None
        if session is not None:
            self._run(session.closed)
        if self.tap is not None:
            self.tap.closed()
        self._owner.lost(self)

    # What the session calls.

    def room_for(self, size_bytes: int) -> bool:
        if self._state > State.FINISHING:
            return True  # nothing is sent any more
        unsent_bytes, flow = self._transport.get_write_buffer_size(), self._flow
        if unsent_bytes or flow.unsent_bytes:
            self._note_unsent(unsent_bytes)
        return flow.room_for(size_bytes) or self._wait_for_room()

    def promise_room(self, size_bytes: int) -> bool:
        return self._flow.promise_room(size_bytes) or self._wait_for_room()

    def _note_unsent(self, unsent_bytes: int, written_bytes: int = 0) -> None:
        """Note what is held for the peer: what it has not taken, and all of a write of which it has taken a part."""
        if unsent_bytes:
            self._queued_bytes += written_bytes
            self._largest_write_bytes = max(self._largest_write_bytes, written_bytes)
            self._flow.update_unsent(min(self._queued_bytes, unsent_bytes + self._largest_write_bytes))
        else:
            self._queued_bytes = self._largest_write_bytes = 0
            self._flow.update_unsent(0)

    def _wait_for_room(self) -> bool:
        self._waits_for_room = True
        self.writable = False
        self._flow.block(SEND_BUFFER)
        return False

    def send(self, data: bytes) -> None:
        transport = self._transport
        if self._state <= State.FINISHING and not transport.is_closing():
            size = len(data)
            if self.tap is not None:
                self.tap.sent(data, 0)
            self._sent_bytes += size
            self._owner.stats.bytes_out += size
            transport.write(data)
            unsent_bytes, flow = transport.get_write_buffer_size(), self._flow
            if unsent_bytes or flow.unsent_bytes:
                self._note_unsent(unsent_bytes, size)
                if flow.is_under_pressure and self.writable:
                    transport.set_write_buffer_limits(UNSENT_BYTES_FREE, UNSENT_BYTES_FREE // 4)  # calls pause_writing
            if flow.promised_bytes:
                flow.give_up_promise()

    def close(self) -> None:
        self.finish(linger=True)

    def hold(self, size_bytes: int) -> None:
        self._flow.hold(size_bytes)
        if self._receiving and self._watch.is_frame_pending:
            # A frame was completed, so one that is pending began after it.
            self._watch.frame_completed()

    def release(self, size_bytes: int) -> None:
        self._flow.release(size_bytes)
        if self._state is State.FINISHING and not self._flow.held_bytes:
            asyncio.get_running_loop().call_soon(self._conclude)

    def frame_pending(self, pending: bool, kept_bytes: int = 0) -> None:
        self._flow.update_partial(kept_bytes)
        self._watch.frame_pending(pending)

    def call_soon(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self._run, step)

    def set_authenticated(self, authenticated: bool) -> None:
        budget = self._owner.budget
        self._flow.use(budget if authenticated else budget.unauthenticated)

    # What the listener calls.

    def sweep(self, now_s: float) -> None:
        """Look at the deadlines."""
        if self._state is State.GONE:
            return
        unsent_bytes = self._transport.get_write_buffer_size()
        self._note_unsent(unsent_bytes)
        if self._state is State.LINGERING and not unsent_bytes:
            if self._linger_until_s is None:
                self._linger_until_s = now_s + self._owner.limits.linger_s_max
            elif now_s >= self._linger_until_s:
                self.abort()
            return
        expiry = self._watch.judge(
            now_s,
            self._owner.limits,
            reading=self._flow.reading,
            frame_waits=self._flow.is_blocked_at_most_by(PARTIAL_FRAMES),
            frames_wait=self._flow.frames_wait,
            owed=self._flow.held_bytes > 0,
            unsent_bytes=unsent_bytes,
            delivered_bytes=self._sent_bytes - unsent_bytes,
            under_pressure=self._flow.is_under_pressure or self._flow.keeps_others_waiting,
        )
        if expiry is not None:
            self._expired(expiry)

    def finish(self, *, linger: bool = False) -> None:
        """Take no more input, answer what is in flight, then close; with `linger`, give the peer time to take the answers."""
        if self._state is State.OPEN:
            self._state = State.FINISHING
            self._linger = linger
            self._flow.block(ENDING)
            # Later, because the caller may be about to send.
            asyncio.get_running_loop().call_soon(self._conclude)

    def stop(self) -> None:
        """Finish because the server stops. A peer that waits for nothing needs no time to take it."""
        self.finish(linger=self._flow.held_bytes > 0)

    def abort(self) -> None:
        """End at once; what is not sent yet is lost."""
        self._state = State.GONE
        self._flow.update_unsent(0)
        self._transport.abort()

    def _open_session(self) -> None:
        self._session = self._owner.factory(self)

    def _run(self, step: Callable[[], None]) -> None:
        """Run a step of the session. Whatever it raises ends this connection and no other."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._step_failed(error)

    def _step_failed(self, error: Exception, received: bytes = b"") -> None:
        if isinstance(error, ProtocolViolation):
            self._violated(error, received)
            return
        self._owner.stats.session_errors += 1
        log.error("session_failed", listener=self.listener, peer=self.peer, exc_info=error)
        self.abort()

    def _conclude(self) -> None:
        if self._state is not State.FINISHING or self._flow.held_bytes:
            return
        self._owner.answered(self)
        if self._linger and not self._peer_done and self._transport.can_write_eof():
            self._state = State.LINGERING
            self._transport.write_eof()
            self._transport.resume_reading()
        else:
            self._state = State.CLOSING
            self._transport.close()

    def _violated(self, violation: ProtocolViolation, received: bytes) -> None:
        """One line says what happened. Only the start of a conversation is shown: it tells which protocol the peer speaks."""
        self._owner.stats.protocol_errors += 1
        log.warning(
            "protocol_violation",
            listener=self.listener,
            peer=self.peer,
            reason=str(violation)[:LOGGED_REASON_CHARS],
            **({"starts_with": repr(received[:LOGGED_PREFIX_BYTES])[2:-1]} if received else {}),
        )
        self.finish(linger=self._sent_bytes > 0 or self._flow.held_bytes > 0)

    def _expired(self, expiry: Expiry) -> None:
        stats = self._owner.stats
        if expiry is Expiry.IDLE:
            stats.closed_idle += 1
            log.debug("connection_expired", listener=self.listener, peer=self.peer, reason=expiry.value)
            self.finish()
            return
        log.info("connection_expired", listener=self.listener, peer=self.peer, reason=expiry.value)
        if expiry is Expiry.PARTIAL_FRAME:
            stats.closed_header += 1
            self.finish()
        else:
            stats.closed_unread += 1
            self.abort()
