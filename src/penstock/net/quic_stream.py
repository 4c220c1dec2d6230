"""One stream of a QUIC listener: the bridge between the transport's stream and a session.

Like a TCP connection it is not read while its requests wait for too many answers or its peer does not take them, and it ends in one of
two ways: `close` takes no more input, lets what is in flight be answered, and ends our side; everything else is a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from penstock.errors import ProtocolViolation
from penstock.net.connection import LOGGED_PREFIX_BYTES, LOGGED_REASON_CHARS
from penstock.net.flow import OWN_REQUESTS, SEND_BUFFER, UNSENT_BYTES_FREE
from penstock.net.quic_session import StreamSession
from penstock.quic.stream import Stream

if TYPE_CHECKING:
    from penstock.net.quic_connection import QuicServerConnection

INTERNAL_ERROR = 1
"""The code of a reset for which we are to blame."""

log = structlog.get_logger(__name__)


class QuicServerStream(Stream):
    """Implements `penstock.net.quic_session.Stream` for its session."""

    __slots__ = (
        "_blocked_by",
        "_finishing",
        "_fresh",
        "_held_bytes",
        "_partial_bytes",
        "_receiving",
        "_session",
        "partial_since_s",
    )

    _connection: QuicServerConnection

    def __init__(self, connection: QuicServerConnection, stream_id: int, *, is_ours: bool) -> None:
        super().__init__(connection, stream_id, is_ours=is_ours)
        self._session: StreamSession | None = None
        self._held_bytes = 0
        self._blocked_by = 0
        self._fresh = True
        self._finishing = False
        self._receiving = False
        """The session is being given what came."""
        self._partial_bytes = -1
        """What has come of a frame that is not whole; -1 if there is none."""
        self.partial_since_s: float | None = None
        """When a sweep first saw the frame that is pending."""

    def open(self, begin: Callable[[QuicServerStream], StreamSession]) -> None:
        """Begin the conversation."""
        self._connection.stats.streams_open += 1
        self._connection.stats.streams_total += 1
        self.guarded(self._begin, begin)

    def _begin(self, begin: Callable[[QuicServerStream], StreamSession]) -> None:
        self._session = begin(self)

    # -- what the session sees ---------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def listener(self) -> str:
        return self._connection.listener

    @property
    def principal_hint(self) -> str | None:
        return self._connection.principal_hint

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def owes(self) -> bool:
        """Whether the peer is still to get something from us on this stream."""
        return self._held_bytes > 0 or self.can_send or self.unsent_bytes > 0

    def room_for(self, size_bytes: int) -> bool:
        return self._is_closed or self._connection.room_for(size_bytes)

    def promise_room(self, size_bytes: int) -> bool:
        return self.room_for(size_bytes)

    def send(self, data: bytes, *, end: bool = False) -> None:
        if self.can_send:
            self._connection.stats.bytes_out += len(data)
            if self._connection.tap is not None:
                self._connection.tap.sent(data, self.id)
            Stream.send(self, data, end=end)
            flow = self._connection.flow
            if flow.promised_bytes or len(data) > UNSENT_BYTES_FREE:
                self._connection.look_at_congestion()  # so that it counts before anybody else asks for room
                flow.give_up_promise()
            if not self._writable:
                self._block(SEND_BUFFER)

    def close(self) -> None:
        """Take no more input, answer what is in flight, then end our side."""
        if not self._finishing and not self._is_closed:
            self._finishing = True
            self._forget_partial()
            self.stop_receiving()
            # Later, because the caller may be about to send.
            self._connection.conclude_later(self)

    def expire(self) -> None:
        """Close a stream whose frame stayed partial. If nothing is to be answered it is over at once, and what came of it is freed."""
        self.close()
        if not self._held_bytes:
            self.conclude()
            self.close_now()

    def hold(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        connection = self._connection
        connection.flow.hold(size_bytes)
        if self._receiving:
            # A frame was completed, so one that is pending began after it.
            self.partial_since_s = None
        if self._held_bytes > connection.limits.stream_in_flight_bytes_max:
            self._block(OWN_REQUESTS)

    def release(self, size_bytes: int) -> None:
        self._held_bytes -= size_bytes
        assert self._held_bytes >= 0, "a stream released more request bytes than it held"
        connection = self._connection
        connection.flow.release(size_bytes)
        if self._blocked_by & OWN_REQUESTS and self._has_room:
            # Later, because the session may be about to answer more, or to send what it has answered.
            asyncio.get_running_loop().call_soon(self._resume_requests)
        if not self._held_bytes:
            if self._finishing:
                connection.conclude_later(self)
            if connection.is_stopping:
                connection.answered()

    def frame_pending(self, pending: bool, kept_bytes: int = 0) -> None:
        if not pending:
            self._forget_partial()
        elif not self._finishing and not self._is_closed:
            connection = self._connection
            if self._partial_bytes < 0:
                self._partial_bytes = 0
                connection.partial_frames[self] = None
            connection.flow.update_partial(connection.flow.partial_bytes + kept_bytes - self._partial_bytes)
            self._partial_bytes = kept_bytes
            connection.check_partial_frames()

    def call_soon(self, step: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(self.guarded, step)

    def set_authenticated(self, authenticated: bool) -> None:
        self._connection.set_authenticated(authenticated)

    # -- what happens ------------------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        connection = self._connection
        connection.stats.bytes_in += len(data)
        if connection.tap is not None:
            connection.tap.received(data, self.id, at_start=self._fresh, at_frame=self._partial_bytes < 0)
        assert self._session is not None
        self._receiving = True
        try:
            self._session.receive(data)
        except Exception as error:  # noqa: BLE001 - as in `guarded`
            self._failed(error, data)
        self._receiving = False
        self._fresh = False

    def ended(self) -> None:
        self._forget_partial()
        assert self._session is not None
        self.guarded(self._session.ended)
        self._connection.answered()

    def aborted(self, code: int) -> None:
        self._abort(code)

    def stopped(self, code: int) -> None:
        self._abort(code)

    def drained(self) -> None:
        if self._session is not None and not self._is_closed:
            self.guarded(self._session.resume)
        if self._writable:
            self._unblock(SEND_BUFFER)

    def closed(self) -> None:
        self._forget_partial()
        self._connection.stats.streams_open -= 1
        session, self._session = self._session, None
        if session is not None:
            self.guarded(session.closed)
        self._connection.answered()

    # -- inside ------------------------------------------------------------------------------------------------------------

    def guarded(self, step: Callable[..., None], *given: object) -> None:
        """Run a step of the session. Whatever it raises ends this stream and no other."""
        try:
            step(*given)
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends this stream and no other
            self._failed(error, given[0] if given else b"")

    def _failed(self, error: Exception, given: object) -> None:
        if isinstance(error, ProtocolViolation):
            self._violated(error, given if self._fresh else b"")
            return
        self._connection.stats.session_errors += 1
        log.error("session_failed", listener=self.listener, peer=self.peer, stream=self.id, exc_info=error)
        self.reset(INTERNAL_ERROR)
        self.stop_receiving(INTERNAL_ERROR)
        self.close_now()

    def _violated(self, violation: ProtocolViolation, received: object) -> None:
        self._connection.stats.protocol_errors += 1
        start = repr(received[:LOGGED_PREFIX_BYTES])[2:-1] if isinstance(received, bytes) else ""
        log.warning(
            "protocol_violation",
            listener=self.listener,
            peer=self.peer,
            stream=self.id,
            reason=str(violation)[:LOGGED_REASON_CHARS],
            **({"starts_with": start} if start else {}),
        )
        self.close()

    def _abort(self, code: int) -> None:
        """The peer is not interested any more in one direction, so the other is of no use either."""
        if self._is_closed:
            return
        self._connection.stats.streams_aborted += 1
        if self._session is not None:
            self.guarded(self._session.aborted, code)
        if self.can_send:
            self.reset(code)
        self.stop_receiving(code)
        self.close_now()

    def conclude(self) -> None:
        """End our side, if everything is answered."""
        if self._finishing and not self._held_bytes and not self._is_closed:
            self.end()
            self._connection.answered()

    def _block(self, reason: int) -> None:
        if not self._blocked_by:
            self._connection.stats.read_pauses += 1
            self.pause_receiving()
        self._blocked_by |= reason

    def _unblock(self, reason: int) -> None:
        if self._blocked_by:
            self._blocked_by &= ~reason
            if not self._blocked_by:
                self.resume_receiving()

    @property
    def _has_room(self) -> bool:
        return self._held_bytes * 2 <= self._connection.limits.stream_in_flight_bytes_max

    def _resume_requests(self) -> None:
        if self._has_room:
            self._unblock(OWN_REQUESTS)

    def _forget_partial(self) -> None:
        if self._partial_bytes >= 0:
            connection = self._connection
            connection.flow.update_partial(connection.flow.partial_bytes - self._partial_bytes)
            connection.partial_frames.pop(self, None)
            self._partial_bytes = -1
            self.partial_since_s = None
