"""One TCP connection with many requests in flight, whose replies come in the order of the requests.

Requests handed over within one turn of the loop leave in one write. A whole read is decoded at once, and its replies are dealt out to
the exchanges that await them, oldest first. One timer watches the oldest exchange: replies come in order, so when it is late nothing
after it can be on time, and the connection is closed.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar, cast

from penstock.errors import ConnectionLost, PenstockError, ProtocolViolation, RequestTimeout

CLOSE_S_MAX = 1.0
"""How long to wait for a peer's part in closing (the close_notify of TLS)."""

Message = TypeVar("Message")
Message_co = TypeVar("Message_co", covariant=True)


class Decoder(Protocol[Message_co]):
    """Decodes replies. One message may represent several consecutive replies."""

    @property
    def violation(self) -> ProtocolViolation | None:
        """What was wrong behind the last messages that `feed` returned."""

    def feed(self, data: bytes) -> Sequence[Message_co]:
        """Every message that is complete. Raises ProtocolViolation."""


class Exchange(ABC, Generic[Message]):
    """One or more requests written together, and the waiter for their replies."""

    __slots__ = ("awaited", "data", "deadline", "finished", "repeatable", "timeout_s", "written")

    def __init__(self, data: bytes, *, replies: int, timeout_s: float, repeatable: bool) -> None:
        self.data = data
        self.awaited = replies
        """Replies that have not come yet."""
        self.timeout_s = timeout_s
        self.repeatable = repeatable
        """Whether sending it again is harmless even though the first copy may have been carried out."""
        self.written = False
        self.deadline = 0.0
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once every reply is in, or with the reason why they will not come."""

    @abstractmethod
    def accept(self, message: Message, first: int, count: int) -> None:
        """Take `count` replies of `message` from its `first` on. Raises ProtocolViolation if they are not replies to these requests."""

    def succeed(self) -> None:
        """Every reply is in."""
        if not self.finished.done():
            self.finished.set_result(None)

    def fail(self, error: PenstockError) -> None:
        if not self.finished.done():
            self.finished.set_exception(error)

    def begin_again(self) -> None:
        """Get ready to be submitted once more after the connection was lost before any reply came."""
        self.written = False
        self.finished = asyncio.get_running_loop().create_future()


class Pipeline(asyncio.Protocol, Generic[Message]):
    """The connection. Made by `loop.create_connection`; dead once `lost` is set."""

    def __init__(
        self,
        peer: str,
        decoder: Decoder[Message],
        replies_in: Callable[[Message], int],
        on_lost: Callable[[Pipeline[Message]], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.peer = peer
        self._decoder = decoder
        self._replies_in = replies_in
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._unwritten: list[Exchange[Message]] = []
        self._awaiting: deque[Exchange[Message]] = deque()
        self._flush_scheduled = False
        self._paused = False
        self._watch: asyncio.TimerHandle | None = None
        self._gone = asyncio.Event()
        self._answered = False
        """Whether a message of this protocol has been received. If not, it may be the wrong port."""
        self.lost: PenstockError | None = None

    # -- what the client calls -------------------------------------------------------------------------------------------

    def submit(self, exchange: Exchange[Message], *, now: bool = False) -> None:
        """Queue an exchange for the next write, or write it `now` with what is queued; its `finished` future tells the rest."""
        if self.lost is not None:
            exchange.fail(_again(self.lost))
            return
        self._unwritten.append(exchange)
        if now:
            self._flush()
        elif not self._flush_scheduled and not self._paused:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    @property
    def is_idle(self) -> bool:
        """Whether everything that was sent is answered, also where nobody waits for the reply any more."""
        return not self._awaiting and not self._unwritten

    async def close(self) -> None:
        """Write what was queued, then close; replies that have not come by now will not."""
        if self._transport is None:
            return
        self._flush()
        self._transport.close()
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._gone.wait()
        except TimeoutError:
            self._transport.abort()
            await self._gone.wait()

    def leave(self) -> None:
        """Close, where nothing is in flight, without waiting for the peer's part in it."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    # -- what the event loop calls ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    def data_received(self, data: bytes) -> None:
        if self.lost is not None:
            return
        try:
            for message in self._decoder.feed(data):
                self._deal_out(message)
                self._answered = True
            if self._decoder.violation is not None:
                raise self._decoder.violation
        except ProtocolViolation as error:
            self._give_up(ProtocolViolation(f"{self.peer} sent an invalid reply: {error}{self._doubt}"))

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()
        reason = f": {error}" if error is not None else " by the broker"
        self._end(
            ConnectionLost(
                f"the connection to {self.peer} was closed{reason}; what was in flight may have been carried out{self._doubt}"
            )
        )

    # -- inside ----------------------------------------------------------------------------------------------------------

    @property
    def _doubt(self) -> str:
        return "" if self._answered else " (wrong port, or TLS on one side only?)"

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._paused or self._transport is None or self.lost is not None:
            return
        exchanges = [
            exchange for exchange in self._unwritten if not exchange.finished.done()
        ]  # the others were cancelled
        self._unwritten.clear()
        if not exchanges:
            return
        now = self._loop.time()
        for exchange in exchanges:
            exchange.written = True
            exchange.deadline = now + exchange.timeout_s
        self._awaiting.extend(exchanges)
        if self._watch is None:
            self._watch = self._loop.call_at(self._awaiting[0].deadline, self._check_deadline)
        data = exchanges[0].data if len(exchanges) == 1 else b"".join([exchange.data for exchange in exchanges])
        self._transport.write(data)

    def _deal_out(self, message: Message) -> None:
        awaiting = self._awaiting
        first, total = 0, self._replies_in(message)
        while first < total:
            if not awaiting:
                raise ProtocolViolation("no request is open")
            exchange = awaiting[0]
            count = min(exchange.awaited, total - first)
            exchange.accept(message, first, count)
            first += count
            exchange.awaited -= count
            if not exchange.awaited:
                awaiting.popleft()
                exchange.succeed()

    def _check_deadline(self) -> None:
        self._watch = None
        if not self._awaiting:
            return
        oldest = self._awaiting[0]
        if oldest.deadline > self._loop.time():
            self._watch = self._loop.call_at(oldest.deadline, self._check_deadline)
            return
        oldest.fail(
            RequestTimeout(
                f"{self.peer} did not answer within {oldest.timeout_s:g} s; the request may have been carried out"
            )
        )
        self._give_up(ConnectionLost(f"the connection to {self.peer} was given up because an answer was late"))

    def _give_up(self, error: PenstockError) -> None:
        self._end(error)
        self.abort()

    def _end(self, error: PenstockError) -> None:
        if self.lost is not None:
            return
        self.lost = error
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        exchanges = [*self._awaiting, *self._unwritten]
        self._awaiting.clear()
        self._unwritten.clear()
        for exchange in exchanges:
            exchange.fail(_again(error))
        self._on_lost(self)


def _again(error: PenstockError) -> PenstockError:
    """The same error for one more caller: an exception that is raised in two places gathers the tracebacks of both."""
    return type(error)(error.message)
