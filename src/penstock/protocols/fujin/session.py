"""One Fujin connection: its streams, its pings, and its end.

Each stream that a client opens is a conversation of its own, a writer's or a reader's, which its first command says. Whether the client
is alive is asked on streams that the server opens, one at a time; any end of such a stream is an answer, because deployed clients often
leave out the byte.

Nothing a client says on one stream ends the connection: an invalid stream is ended, and the others continue. Only pings end
them all: one that is not answered, or many whose streams are never ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.errors import LimitExceeded
from penstock.net.quic_session import QuicConnection, Stream
from penstock.protocols.fujin.codec.commands import SharedForm, WriteForm
from penstock.protocols.fujin.server.reader import Reader
from penstock.protocols.fujin.server.settings import FujinSettings, FujinStats
from penstock.protocols.fujin.server.stream import After, FujinStream, Timer
from penstock.protocols.fujin.server.writer import Writer
from penstock.protocols.fujin.wire import CLOSED_BY_PING, LOGIN_BODY_BYTES_MAX, PING

PINGS_OPEN_MAX: Final = 16
"""Pings that were answered and whose streams the client leaves open, though it was asked to stop sending."""


class Fujin:
    """What all connections of one listener share. Called with a connection, it makes a session: it is the listener's factory."""

    def __init__(
        self,
        broker: Broker,
        *,
        settings: FujinSettings | None = None,
        principal: Principal = ANONYMOUS,
        login_required: bool = False,
        after: After | None = None,
    ) -> None:
        """Where `login_required`, messages of clients that nothing identifies have at most `LOGIN_BODY_BYTES_MAX`.

        `after` calls something later, as `loop.call_later` does, which it is by default.
        """
        self.broker = broker
        self.settings = settings = settings or FujinSettings()
        body_bytes_max = min(settings.body_bytes_max, LOGIN_BODY_BYTES_MAX)
        self.login_settings = settings.model_copy(update={"body_bytes_max": body_bytes_max})
        """The settings for clients that nothing identifies."""
        self.write_form = None if settings.write_form == "auto" else WriteForm(settings.write_form)
        self.principal = principal
        self.login_required = login_required
        self.stats = FujinStats()
        self.session: Callable[..., FujinStream] = FujinStream
        """What makes the session of a stream."""
        self._after = after

    @property
    def after(self) -> After:
        return self._after or asyncio.get_running_loop().call_later

    def __call__(self, connection: QuicConnection) -> FujinConnection:
        return FujinConnection(self, connection)


class FujinConnection:
    """Implements `penstock.net.quic_session.QuicSession`."""

    __slots__ = ("_connection", "_form", "_ping_timer", "_pings_open", "_shared", "_stopping", "_streams")

    def __init__(self, shared: Fujin, connection: QuicConnection) -> None:
        self._shared = shared
        self._connection = connection
        self._form = SharedForm(shared.write_form)
        self._streams: set[FujinStream] = set()
        self._stopping = False
        self._pings_open = 0
        self._ping_timer: Timer = shared.after(shared.settings.ping_interval_s, self._ping)

    def stream_opened(self, stream: Stream) -> FujinStream:
        shared = self._shared
        principal = shared.principal.seen_at(stream.peer, stream.principal_hint)  # where a client that moves is by now
        stream.set_authenticated(bool(principal.name))
        is_anonymous = shared.login_required and not principal.name
        settings = shared.login_settings if is_anonymous else shared.settings
        opened = shared.session(
            stream,
            shared.broker,
            principal,
            settings,
            shared.stats,
            shared.after,
            self._form,
            writer=Writer,
            reader=Reader,
            forget=self._streams.discard,
        )
        self._streams.add(opened)
        if self._stopping:
            opened.stop()
        return opened

    def stopping(self) -> None:
        self._stopping = True
        for stream in list(self._streams):
            stream.stop()

    def closed(self) -> None:
        self._ping_timer.cancel()

    # -- pings ------------------------------------------------------------------------------------------------------------

    def _ping(self) -> None:
        shared = self._shared
        if self._pings_open >= PINGS_OPEN_MAX:
            self._give_up(f"the streams of {self._pings_open} pings were not ended")
            return
        try:
            stream = self._connection.open_stream(lambda stream: PingStream(stream, self._answered, self._ping_ended))
        except LimitExceeded:  # the client allows no more streams for now
            self._ping_timer = shared.after(shared.settings.ping_interval_s, self._ping)
            return
        self._pings_open += 1
        self._ping_timer = shared.after(shared.settings.ping_timeout_s, self._not_answered)
        stream.send(PING, end=True)

    def _answered(self) -> None:
        self._ping_timer.cancel()
        self._ping_timer = self._shared.after(self._shared.settings.ping_interval_s, self._ping)

    def _not_answered(self) -> None:
        if not self._connection.reading:  # the answer may be here: it is we who do not listen
            self._ping_timer = self._shared.after(self._shared.settings.ping_timeout_s, self._not_answered)
            return
        self._give_up("read: deadline exceeded")

    def _ping_ended(self) -> None:
        self._pings_open -= 1

    def _give_up(self, reason: str) -> None:
        self._shared.stats.ping_timeouts += 1
        self._connection.close(CLOSED_BY_PING, reason)


class PingStream:
    """One ping. Implements `penstock.net.quic_session.StreamSession`."""

    __slots__ = ("_answered", "_closed", "_stream")

    def __init__(self, stream: Stream, answered: Callable[[], None], closed: Callable[[], None]) -> None:
        self._stream = stream
        self._answered: Callable[[], None] | None = answered
        self._closed = closed

    def receive(self, data: bytes) -> None:
        if PING in data:
            self._stream.stop_receiving()
            self._answer()

    def ended(self) -> None:
        self._answer()

    def aborted(self, code: int) -> None:
        self._answer()

    def resume(self) -> None:
        """A ping never waits for the send buffer."""

    def closed(self) -> None:
        self._answered = None
        self._closed()

    def _answer(self) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered()
