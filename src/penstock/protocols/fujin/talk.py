"""What the writer's and the reader's side of a stream have in common: the order of commands, answers, and the end.

Commands wait in a queue that the stream bounds (`hold`). What must wait for a disk runs in the background, and what comes behind it waits
too. Deployed clients lose what follows certain replies in the same read; such a reply is sent alone, and for a moment nothing
leaves behind it (`send_alone`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol

import structlog

from penstock.broker.access.checks import Principal
from penstock.broker.broker import Broker
from penstock.errors import PenstockError
from penstock.net.quic_session import Stream
from penstock.protocols.fujin import reply_encoding
from penstock.protocols.fujin.codec import SharedForm
from penstock.protocols.fujin.messages import Command, WriteRun
from penstock.protocols.fujin.settings import FujinSettings, FujinStats
from penstock.protocols.fujin.wire import INTERNAL_ERROR

ALONE_S: Final = 0.01
"""Back to back, a third of first messages were lost on deployed clients; from a millisecond on, none."""
ALONE_LOOKS_MAX: Final = 20
"""A client that is busy takes longer: it is given the moment again so often while the reply may not have arrived."""
COMMAND_BYTES_MIN: Final = 256
"""What a waiting command counts for at least: a FETCH takes 9 bytes on the wire, its message some 200 in memory."""
COMMANDS_PER_TURN_MAX: Final = 256
"""Commands other than WRITE that one stream deals with before it lets others have their turn of the loop."""

log = structlog.get_logger("penstock.protocols.fujin")


class Timer(Protocol):
    def cancel(self) -> None: ...


After = Callable[[float, Callable[[], None]], Timer]


class Role(Protocol):
    """One side of a conversation: a writer, or a reader."""

    def deal_with(self, command: Command, held_bytes: int) -> None:
        """Carry out a command; `held_bytes` are owed to the stream once it is answered."""
        ...

    def may_begin(self, command: Command) -> bool:
        """Whether it may be dealt with now, or must wait for what was begun before."""
        ...

    def go_on(self) -> None:
        """There is room in the send buffer, or the moment after a reply that travels alone is over."""
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


class Talk:
    """One stream, as both roles use it."""

    __slots__ = (
        "_after",
        "_alone",
        "_bug_logged",
        "_form",
        "_gathered",
        "_goodbye",
        "_input_ended",
        "_loop",
        "_over",
        "_role",
        "_stop_due",
        "_tasks",
        "_turn_scheduled",
        "_waiting",
        "_waits",
        "broker",
        "principal",
        "sent_bytes",
        "settings",
        "stats",
        "stream",
    )

    def __init__(
        self,
        stream: Stream,
        broker: Broker,
        principal: Principal,
        settings: FujinSettings,
        stats: FujinStats,
        after: After,
        form: SharedForm,
    ) -> None:
        self._form = form
        self._loop = asyncio.get_running_loop()
        self._after = after
        self.stream = stream
        self.broker = broker
        self.principal = principal
        self.settings = settings
        self.stats = stats
        self.sent_bytes = 0
        """Everything that was given to the stream."""
        self._role: Role | None = None
        self._waiting: deque[Command] = deque()
        self._waits = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn_scheduled = False
        self._alone: Timer | None = None
        self._gathered: list[bytes] = []
        """What waits for the moment after a reply that travels alone."""
        self._input_ended = False
        self._goodbye = False
        """DISCONNECT is due once everything is answered."""
        self._stop_due = False
        self._over = False
        self._bug_logged = False

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
        return self._alone is not None or self._goodbye or self._stop_due or self._over

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._after(delay_s, callback)

    def begin(self, role: Role) -> None:
        self._role = role

    # -- the order of things ----------------------------------------------------------------------------------------------

    def take(self, commands: list[Command]) -> None:
        """Commands that have come, in order; the stream holds them."""
        if self._over or self._goodbye:
            return
        self.stream.hold(sum(map(held_bytes, commands)))
        self._waiting += commands
        self.advance()

    def advance(self) -> None:
        """Deal with what may be dealt with."""
        dealt = 0
        role = self._role
        while self._waiting and role is not None and not self._waits and self.stream.writable:
            command = self._waiting[0]
            if self._over or self._goodbye or self._stop_due or not role.may_begin(command):
                break
            if not isinstance(command, WriteRun):
                if dealt == COMMANDS_PER_TURN_MAX:
                    self.advance_soon()
                    break
                dealt += 1
            self._waiting.popleft()
            role.deal_with(command, held_bytes(command))
        if self._input_ended and not self._waiting:
            self._goodbye = True
        self._end_where_due()

    def advance_soon(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self.advance()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what must wait. No command is begun meanwhile, and it is not cancelled: half a commit helps no one."""
        self._waits = True
        self.run(self._until_done(work))

    async def _until_done(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  an exception that escapes must not leave the commands behind it waiting
            self.reason(error)
        finally:
            self._waits = False
        self.advance()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what must wait, beside the commands."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- sending ----------------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        if self._over or not data:
            return
        if self._alone is not None:
            self._gathered.append(data)
            return
        self.sent_bytes += len(data)
        self.stream.send(data)

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
        gathered, self._gathered = self._gathered, []
        self.send(b"".join(gathered))
        self._end_where_due()
        if self._role is not None and not self._over:
            self._role.go_on()

    # -- the end ----------------------------------------------------------------------------------------------------------

    def input_ended(self) -> None:
        """No more commands will come; that is a DISCONNECT that was not said."""
        self._input_ended = True
        self.advance()

    def disconnect(self) -> None:
        """Answer what was begun, say DISCONNECT, and end our side."""
        self._goodbye = True
        self._end_where_due()

    def stop(self) -> None:
        """The server stops: say so once everything that was begun is answered."""
        if self._role is not None and not self._over and not self._goodbye:
            self._stop_due = True
            self._role.stopping()
            self._end_where_due()

    def _end_where_due(self) -> None:
        if not (self._goodbye or self._stop_due) or self._over or self._waits or self._alone is not None:
            return
        if self._role is not None and not self._role.idle:
            return
        if self._goodbye:
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
        if self._over:
            return
        self._over = True
        if self._alone is not None:
            self._alone.cancel()
            self._alone = None
        waiting, self._waiting = self._waiting, deque()
        if waiting:
            self.stream.release(sum(map(held_bytes, waiting)))
        if self._role is not None:
            self._role.ended()

    # -- refusing ---------------------------------------------------------------------------------------------------------

    def reason(self, error: Exception, count: int = 1) -> str:
        """The words for an error, counted as that of `count` requests."""
        self.stats.errors += count
        if isinstance(error, PenstockError):
            return str(error)
        self.stats.internal_errors += count
        if not self._bug_logged:
            self._bug_logged = True
            log.error("request_failed", listener=self.stream.listener, peer=self.stream.peer, exc_info=error)
        return INTERNAL_ERROR


def held_bytes(command: Command) -> int:
    return max(command.size_bytes, COMMAND_BYTES_MIN)
