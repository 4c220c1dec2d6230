"""One stream of a Fujin client: what its first command makes it, a writer's or a reader's, the order of commands, and its end.

What it has in common with other protocols is in `penstock.protocols.conversation`. Deployed clients lose what follows certain replies in
the same read; such a reply is sent alone, and for a moment nothing is sent after it (`send_alone`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

from penstock.background import Tasks
from penstock.broker.access.checks import Principal
from penstock.broker.broker import Broker
from penstock.errors import PenstockError
from penstock.net.quic_session import Stream
from penstock.protocols.conversation import INTERNAL_ERROR, REQUEST_BYTES_MIN, Conversation
from penstock.protocols.fujin.codec import reply_encoding
from penstock.protocols.fujin.codec.commands import Decoder, SharedForm
from penstock.protocols.fujin.codec.messages import BadCommand, Command, ConnectReader, ConnectWriter
from penstock.protocols.fujin.server.settings import FujinSettings, FujinStats

ALONE_S: Final = 0.01
"""Back to back, a third of first messages were lost on deployed clients; from a millisecond on, none."""
ALONE_LOOKS_MAX: Final = 20
"""A client that is busy takes longer: it is given the moment again so often while the reply may not have arrived."""
COMMANDS_PER_TURN_MAX: Final = 256
"""Commands, or runs of WRITE, that one stream decodes and starts before it lets others have their turn of the loop."""
UNDECIDED_S: Final = 0.05
"""How long the rest of what may be an empty WRITE is waited for."""


class Timer(Protocol):
    def cancel(self) -> None: ...


After = Callable[[float, Callable[[], None]], Timer]


class Role(Protocol):
    """One side of a conversation: a writer, or a reader."""

    def handle(self, command: Command, held_bytes: int) -> None:
        """Carry out a command; `held_bytes` are owed to the stream once it is answered."""
        ...

    def may_start(self, command: Command) -> bool:
        """Whether a command may start now, or must wait for those before it."""
        ...

    def resume(self) -> None:
        """Continue: there is room in the send buffer, or the pause after a reply that is sent alone is over."""
        ...

    @property
    def idle(self) -> bool:
        """Whether everything that was begun is answered."""
        ...

    def stopping(self) -> None:
        """The server stops: end what would wait for long."""
        ...

    def ended(self) -> None:
        """The stream is over, in good order or not."""
        ...


class FujinStream(Conversation[Command]):
    """Implements `penstock.net.quic_session.StreamSession`; both roles use it."""

    __slots__ = (
        "_after",
        "_alone",
        "_disconnecting",
        "_forget",
        "_form",
        "_input_ended",
        "_over",
        "_reader",
        "_role",
        "_stop_due",
        "_stop_wanted",
        "_tasks",
        "_undecided",
        "_writer",
        "broker",
        "principal",
        "sent_bytes",
        "settings",
        "stats",
        "stream",
    )

    _decoder: Decoder

    def __init__(
        self,
        stream: Stream,
        broker: Broker,
        principal: Principal,
        settings: FujinSettings,
        stats: FujinStats,
        after: After,
        form: SharedForm,
        *,
        writer: Callable[[FujinStream], Role],
        reader: Callable[[FujinStream, ConnectReader, int], Role],
        forget: Callable[[FujinStream], None],
    ) -> None:
        decoder = Decoder(body_bytes_max=settings.body_bytes_max, shared=form, commands_max=COMMANDS_PER_TURN_MAX)
        super().__init__(broker, stream, decoder, stats)
        self._form = form
        self._after = after
        self._writer = writer
        self._reader = reader
        self._forget = forget
        self.stream = stream
        self.broker = broker
        self.principal = principal
        self.settings = settings
        self.stats = stats
        self.sent_bytes = 0
        """Everything that was given to the stream."""
        self._role: Role | None = None
        self._tasks = Tasks()
        self._undecided: Timer | None = None
        self._alone: Timer | None = None
        self._input_ended = False
        self._disconnecting = False
        """DISCONNECT is due once everything is answered."""
        self._stop_wanted = False
        self._stop_due = False
        self._over = False

    @property
    def is_deployed(self) -> bool:
        """Whether replies must avoid the faults of deployed clients: true until the connection has shown that it follows the contract.

        Nothing that a reader sends tells the two apart, and every client can take what deployed ones can.
        """
        dialect = self.settings.dialect
        return dialect == "native" or (dialect == "auto" and not self._form.follows_contract)

    @property
    def over(self) -> bool:
        """Nothing is sent any more."""
        return self._over

    @property
    def alone(self) -> bool:
        """The moment after a reply that travels alone is not over."""
        return self._alone is not None

    @property
    def quiet(self) -> bool:
        """Nothing may be sent just now that was not asked for."""
        return self._alone is not None or self._disconnecting or self._stop_due or self._over

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._after(delay_s, callback)

    # -- what the network calls -------------------------------------------------------------------------------------------

    def resume(self) -> None:
        if self._role is not None:
            self._role.resume()

    def ended(self) -> None:
        if self._undecided is not None:
            self._cancel_decision()
            self._decide()
        if self._role is None and self._decoder.announces_writer:
            self._begin(self._writer(self))
        if self._role is None:
            self._end_fresh()
        else:
            self._input_ended = True  # which is a DISCONNECT that was not said
            self.advance()

    def aborted(self, code: int) -> None:
        self.end()

    def closed(self) -> None:
        self.end()
        self._forget(self)
        super().closed()

    # -- the order of commands --------------------------------------------------------------------------------------------

    def _held_bytes(self, command: Command) -> int:
        return max(command.size_bytes, REQUEST_BYTES_MIN)

    def _must_wait(self, command: Command) -> bool:
        return self._role is not None and not self._role.may_start(command)

    def _decode(self, data: bytes) -> None:
        self._cancel_decision()
        super()._decode(data)
        if self._decoder.is_undecided and not self._backlog_bytes:
            self._undecided = self._after(UNDECIDED_S, self._decide)

    def _decide(self) -> None:
        """Take an empty WRITE for one: nothing has followed that would make it another command."""
        self._undecided = None
        commands = self._decoder.decide_empty()
        if commands:
            self.stream.hold(sum(map(self._held_bytes, commands)))
            self._waiting_behind += commands
            if not self._waiting:
                self._refill()
            self.advance()
            self.stream.frame_pending(self._decoder.partial, self._decoder.kept_bytes)

    def _cancel_decision(self) -> None:
        if self._undecided is not None:
            self._undecided.cancel()
            self._undecided = None

    def advance(self) -> None:
        waiting = self._waiting
        while waiting and not self._busy and self.stream.writable:
            if self._over or self._disconnecting or self._stop_due or self._must_wait(waiting[-1]):
                break
            command = waiting.pop()
            if self._waiting_behind and not waiting:
                self._refill()
            self._start(command)
        if self._backlog_bytes and not waiting:
            self.advance_soon()
        elif self._input_ended and not waiting:
            self._disconnecting = True
        if self._disconnecting or self._stop_due:
            self._end_where_due()

    @property
    def has_more(self) -> bool:
        """Whether there is something to do once everything that was begun is answered."""
        return bool(self._waiting or self._backlog_bytes or self._input_ended or self._disconnecting or self._stop_due)

    def _start(self, command: Command) -> None:
        held_bytes = self._held_bytes(command)
        if self._role is not None and not isinstance(command, ConnectWriter):
            self._role.handle(command, held_bytes)
        elif isinstance(command, ConnectReader):
            self._begin(self._reader(self, command, held_bytes))
        else:
            self.stream.release(held_bytes)
            if isinstance(command, BadCommand):
                self.stats.requests[0] += 1
                self._end_fresh()
            elif self._role is None:
                self._begin(self._writer(self))

    def _begin(self, role: Role) -> None:
        self._role = role
        if self._stop_wanted:
            self.stop()

    def _refusal(self, command: Command, error: Exception) -> bytes:
        raise AssertionError("roles answer their commands themselves")

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what must wait, alongside the commands."""
        _ = self._tasks.run(work)

    # -- sending ----------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send what is ready, unless it waits for the moment after a reply that travels alone."""
        if self._alone is None and not self._over:
            self.sent_bytes += self._ready_bytes
            super().flush()

    def send(self, data: bytes) -> None:
        """Send this behind what is ready."""
        if data:
            self._ready.append(data)
            self._ready_bytes += len(data)
            self.flush()

    def send_alone(self, data: bytes) -> None:
        """Send a reply behind which nothing may arrive in the same read."""
        self.send(data)
        self._stay_alone(ALONE_LOOKS_MAX)

    def _stay_alone(self, looks: int) -> None:
        if not self._over:
            self._alone = self._after(ALONE_S, partial(self._look_alone, looks))

    def _look_alone(self, looks: int) -> None:
        if looks and self.stream.unacknowledged_bytes:
            self._stay_alone(looks - 1)
        else:
            self._not_alone()

    def _not_alone(self) -> None:
        self._alone = None
        self.flush()
        self._end_where_due()
        if self._role is not None and not self._over:
            self._role.resume()

    # -- the end ----------------------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Answer what was begun, say DISCONNECT, and end our side."""
        self._disconnecting = True
        self._end_where_due()

    def stop(self) -> None:
        """The server stops: say so once everything that was begun is answered."""
        self._stop_wanted = True
        if self._role is None:
            if self._decoder.announces_writer:
                self._begin(self._writer(self))  # its id, if it has one, is not needed for that
        elif not self._over and not self._disconnecting:
            self._stop_due = True
            self._role.stopping()
            self._end_where_due()

    def _end_fresh(self) -> None:
        """End a stream on which nothing was agreed on, so nothing is said."""
        self.stream.end()
        self.stream.stop_receiving()
        self.end()

    def _end_where_due(self) -> None:
        if not (self._disconnecting or self._stop_due) or self._over or self._busy or self._alone is not None:
            return
        if self._role is not None and not self._role.idle:
            return
        if self._disconnecting:
            self.sent_bytes += 1
            self.stream.send(reply_encoding.DISCONNECTED, end=True)
            self.stream.stop_receiving()
            self.end()
        else:
            self._stop_due = False
            self.send_alone(reply_encoding.STOP)
            self.advance_soon()

    def end(self) -> None:
        """The stream is over: nothing is sent any more, and what waits is forgotten."""
        self._cancel_decision()
        if self._over:
            return
        self._over = True
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None
        self._forget_waiting()
        if self._role is not None:
            self._role.ended()

    # -- refusing ---------------------------------------------------------------------------------------------------------

    def reason(self, error: Exception, count: int = 1) -> str:
        """Return the words for an error, counted as that of `count` requests."""
        self.stats.errors += count
        if isinstance(error, PenstockError):
            return str(error)
        self._log_bug(error, count)
        return INTERNAL_ERROR
