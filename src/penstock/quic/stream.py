"""One stream of a connection, with bounds in both directions.

Sending: what is given goes to the core at once and waits there for its turn; above a mark the stream says that it is not writable, and
once it has drained below a lower one `drained` is called. Receiving: data comes as it arrives, unless the stream is paused; then it
waits here, up to a bound, above which the whole connection is not read (the core grants credit as events are taken, and they come in
order for all streams).

Subclasses say what happens: `received`, `ended`, `aborted`, `stopped`, `drained`, `closed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.quic.outbox import StreamRefused

if TYPE_CHECKING:
    from penstock.quic.connection import Connection

ONE_WAY = 2


class Stream:
    """See the module. `id`s say who opened a stream (bit 0: the server) and whether it is one-way (bit 1)."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_connection",
        "_finished",
        "_is_closed",
        "_paused",
        "_peer_ended",
        "_queue_dropped",
        "_sent_bytes",
        "_unsent_bytes_max",
        "_writable",
        "can_receive",
        "can_send",
        "id",
    )

    def __init__(self, connection: Connection, stream_id: int, *, is_ours: bool) -> None:
        self._connection = connection
        self.id = stream_id
        two_way = not stream_id & ONE_WAY
        self.can_send = two_way or is_ours
        self.can_receive = two_way or not is_ours
        self._writable = True
        self._unsent_bytes_max = 0
        """What was given to `send` since it was last found out how much of that is not on the wire, and what that was."""
        self._sent_bytes = 0
        self._queue_dropped = False
        self._paused = False
        self._backlog: list[bytes] = []
        self._backlog_bytes = 0
        self._peer_ended = False
        self._finished = False
        self._is_closed = False

    # -- what happens; for subclasses --------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Bytes came, in order."""

    def ended(self) -> None:
        """The peer's side has ended in good order."""

    def aborted(self, code: int) -> None:
        """The peer ended its side at once; bytes may be missing."""

    def stopped(self, code: int) -> None:
        """The peer takes no more of what we send."""

    def drained(self) -> None:
        """Writable again."""

    def closed(self) -> None:
        """Both sides have ended, or the connection has."""

    @property
    def is_finished(self) -> bool:
        """Whether QUIC has nothing more to say about it."""
        return self._finished

    # -- sending -----------------------------------------------------------------------------------------------------------

    @property
    def writable(self) -> bool:
        return self._writable and not self._connection.congested

    @property
    def unsent_bytes(self) -> int:
        """What was given to `send` and is not on the wire yet."""
        return 0 if self._queue_dropped else self._connection.core.unsent_bytes(self.id)

    @property
    def unacknowledged_bytes(self) -> int:
        """No more than this of what was given to `send` has yet to arrive: what is not on the wire, and what the connection has there.

        What was lost is in neither until it is sent again. So after a loss it is everything, until the connection has been quiet. The
        same where what waited was thrown away, because we or the peer cut the stream off, and where the peer may have done so: the core
        throws it away when it hears of it, we hear of it with the next events.
        """
        connection = self._connection
        if self._queue_dropped or connection.may_have_losses or not connection.reading:
            return self._sent_bytes
        return self.unsent_bytes + connection.core.in_flight_bytes

    def send(self, data: bytes, *, end: bool = False) -> None:
        """Queue bytes; with `end` they are our last. Dropped without a word once our side has ended."""
        if not self.can_send or self._is_closed:
            return
        connection = self._connection
        try:
            connection.core.send(self.id, data, end)
        except StreamRefused:
            self.can_send = False
            return
        if end:
            self.can_send = False
        size_bytes = len(data)
        self._sent_bytes += size_bytes
        self._unsent_bytes_max += size_bytes
        if self._unsent_bytes_max > connection.settings.send_high_bytes and self._writable:
            self._unsent_bytes_max = self.unsent_bytes
            if self._unsent_bytes_max > connection.settings.send_high_bytes:
                self._writable = False
                connection.stream_is_not_writable(self)
        connection.stream_sent(size_bytes)

    def end(self) -> None:
        """Our side ends once what was queued is sent."""
        self.send(b"", end=True)

    def reset(self, code: int = 0) -> None:
        """Our side ends at once; what was queued is lost."""
        if not self._is_closed:
            self.can_send = False
            self._queue_dropped = True
            self._connection.core.reset(self.id, code)
            self._connection.touch()

    # -- receiving ---------------------------------------------------------------------------------------------------------

    def stop_receiving(self, code: int = 0) -> None:
        """Ask the peer to send no more, and throw away what comes nevertheless."""
        if self.can_receive and not self._is_closed:
            self.can_receive = False
            self._drop_backlog()
            if not self._peer_ended:
                self._connection.core.stop(self.id, code)
                self._connection.touch()

    @property
    def is_paused(self) -> bool:
        return self._paused

    def pause_receiving(self) -> None:
        """`received` and `ended` are not called until `resume_receiving`."""
        self._paused = True

    def resume_receiving(self) -> None:
        """What waited comes at once."""
        if not self._paused:
            return
        self._paused = False
        while self._backlog and not self._paused:
            data = self._backlog.pop(0) if len(self._backlog) == 1 else b"".join(self._take_backlog())
            self._backlog_bytes = 0
            self.received(data)
        if not self._paused:
            self._connection.stream_has_room(self)
            if self._peer_ended:
                self._tell_end()
            if self._finished:
                self.close_now()

    # -- what the connection calls ------------------------------------------------------------------------------------------

    def take_data(self, data: bytes, end: bool) -> None:
        if end:
            self._peer_ended = True
        if not self.can_receive:
            return
        if self._paused:
            if data:
                self._backlog.append(data)
                self._backlog_bytes += len(data)
                if self._backlog_bytes > self._connection.settings.stream_backlog_bytes:
                    self._connection.stream_is_full(self)
            return
        if data:
            self.received(data)
        if end:
            self._tell_end()

    def take_reset(self, code: int) -> None:
        self._peer_ended = True
        self._drop_backlog()
        if self.can_receive:
            self.can_receive = False
            self.aborted(code)

    def take_stop(self, code: int) -> None:
        self.can_send = False
        self._queue_dropped = True
        self.stopped(code)

    def take_finished(self) -> None:
        """Both sides have ended for QUIC; for us once what waits was taken."""
        self._finished = True
        if self._is_closed:
            self._connection.stream_closed(self)
        elif not (self._paused and self.can_receive):
            self.close_now()

    def check_writable(self) -> bool:
        """Find out whether enough was sent for the stream to be writable again; return that."""
        self._unsent_bytes_max = self.unsent_bytes
        if self._unsent_bytes_max > self._connection.settings.send_low_bytes:
            return False
        self._writable = True
        if not self._connection.congested:
            self.drained()  # which may send as much again
        return self._writable

    def close_now(self) -> None:
        """The end, told once."""
        if not self._is_closed:
            self._is_closed = True
            self.can_send = self.can_receive = False
            self._drop_backlog()
            self._connection.stream_closed(self)
            self.closed()

    def _tell_end(self) -> None:
        """Unless it was paused, stopped or closed by what was received before."""
        if self.can_receive and not self._paused:
            self.can_receive = False
            self.ended()

    def _take_backlog(self) -> list[bytes]:
        taken, self._backlog = self._backlog, []
        return taken

    def _drop_backlog(self) -> None:
        if self._backlog:
            self._backlog.clear()
            self._backlog_bytes = 0
            self._connection.stream_has_room(self)
