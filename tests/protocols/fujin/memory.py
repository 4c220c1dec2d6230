"""A Fujin connection in memory: streams that are lists, and timers that a test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from penstock.errors import LimitExceeded
from penstock.net.quic_session import Stream, StreamSession
from penstock.protocols.fujin.session import Fujin
from penstock.testing.clock import ManualClock
from tests.protocols.transport import PEER, MemoryTransport

PATIENCE_S = 30


class Timers:
    """`loop.call_later` under a clock that a test moves."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._numbers = count()
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._cancelled: set[int] = set()

    def after(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        number = next(self._numbers)
        heappush(self._heap, (self._clock.monotonic() + delay_s, number, callback))
        return ManualTimer(self, number)

    def cancel(self, number: int) -> None:
        self._cancelled.add(number)

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due is called at its time."""
        end_s = self._clock.monotonic() + seconds
        while self._heap and self._heap[0][0] <= end_s + 1e-9:
            at_s, number, callback = heappop(self._heap)
            self._clock.advance(max(0.0, at_s - self._clock.monotonic()))
            if number not in self._cancelled:
                callback()
        self._clock.advance(max(0.0, end_s - self._clock.monotonic()))


class ManualTimer:
    def __init__(self, timers: Timers, number: int) -> None:
        self._timers = timers
        self._number = number

    def cancel(self) -> None:
        self._timers.cancel(self._number)


class MemoryStream(MemoryTransport):
    """What a session sees of a stream, and what it did with it."""

    def __init__(self, stream_id: int, connection: MemoryConnection) -> None:
        super().__init__(connection.listener, connection.peer, connection.principal_hint)
        self.id = stream_id
        self.writable = True
        self.can_receive = True
        self.can_send = True
        self.unsent_bytes = 0
        self.unacknowledged_bytes = 0
        self.sends: list[tuple[bytes, bool]] = []
        self.stopped: int | None = None
        self.was_reset: int | None = None

    @property
    def sent(self) -> bytes:
        return b"".join(data for data, _ in self.sends)

    @property
    def has_ended(self) -> bool:
        return not self.can_send

    def send(self, data: bytes, *, end: bool = False) -> None:
        assert self.can_send, "sent after the end"
        assert data
        self.sends.append((data, end))
        self.can_send = not end

    def end(self) -> None:
        if self.can_send:
            self.sends.append((b"", True))
            self.can_send = False

    def close(self) -> None:
        self.end()

    def stop_receiving(self, code: int = 0) -> None:
        self.stopped = code

    def reset(self, code: int = 0) -> None:
        self.was_reset = code
        self.can_send = False


class MemoryConnection:
    def __init__(self, subject: str | None = None) -> None:
        self.peer = PEER
        self.listener = "fujin"
        self.principal_hint = subject
        self.alpn: str | None = "fujin"
        self.reading = True
        self.opened: list[tuple[MemoryStream, StreamSession]] = []
        self.streams_allowed = 1_000
        self.closed_with: tuple[int, str] | None = None

    def open_stream(self, talk: Callable[[Stream], StreamSession], *, one_way: bool = False) -> Stream:
        assert not one_way
        if len(self.opened) >= self.streams_allowed:
            raise LimitExceeded("no more streams")
        stream = MemoryStream(1 + 4 * len(self.opened), self)
        self.opened.append((stream, talk(stream)))
        return stream

    def close(self, code: int = 0, reason: str = "") -> None:
        self.closed_with = (code, reason)


class Side:
    """A client's end of one stream."""

    def __init__(self, stream: MemoryStream, session: StreamSession) -> None:
        self.stream = stream
        self.session = session
        self._taken = 0

    def say(self, *data: bytes) -> None:
        """One read."""
        self.session.receive(b"".join(data))

    def say_byte_by_byte(self, data: bytes) -> None:
        for at in range(len(data)):
            self.session.receive(data[at : at + 1])

    async def hear(self, size: int) -> bytes:
        """The next bytes, this many."""
        await until(lambda: len(self.stream.sent) - self._taken >= size)
        data = self.stream.sent[self._taken : self._taken + size]
        self._taken += size
        return data

    async def ask(self, *data: bytes, size: int) -> bytes:
        self.say(*data)
        return await self.hear(size)

    async def silence(self) -> None:
        """Nothing comes that was not taken yet."""
        await settle()
        assert self.stream.sent[self._taken :] == b""

    async def end(self) -> bytes:
        """What is left until the end."""
        await until(lambda: self.stream.has_ended)
        data = self.stream.sent[self._taken :]
        self._taken += len(data)
        return data


class Client:
    """A client's end of one connection."""

    def __init__(self, fujin: Fujin, timers: Timers, subject: str | None = None) -> None:
        self.timers = timers
        self.connection = MemoryConnection(subject)
        self.session = fujin(self.connection)
        self._sides: list[Side] = []

    def open(self) -> Side:
        stream = MemoryStream(4 * len(self._sides), self.connection)
        side = Side(stream, self.session.stream_opened(stream))
        self._sides.append(side)
        return side

    def writer(self) -> Side:
        side = self.open()
        side.say(bytes((1, 0, 0, 0, 0)))
        return side

    async def reader(self, topic: bytes, *, pull: bool = False, auto_commit: bool = False) -> Side:
        """A reader that may be pushed to."""
        side = self.open()
        head = bytes((2, 2 if pull else 1, int(auto_commit)))
        assert await side.ask(head + len(topic).to_bytes(4, "big") + topic, size=2) == b"\1\0"
        self.timers.advance(0.01)
        return side

    def hang_up(self) -> None:
        """The connection is gone."""
        for side in self._sides:
            side.session.closed()
        self.session.closed()


ENDINGS = ("disconnect", "end", "reset", "bad command", "connection lost")


def leave(client: Client, side: Side, ending: str) -> None:
    """End a conversation in one of these ways."""
    if ending == "disconnect":
        side.say(bytes((10,)))
    elif ending == "end":
        side.session.ended()
    elif ending == "reset":
        side.session.aborted(0)
    elif ending == "bad command":
        side.say(b"\xff")
    else:
        client.hang_up()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something holds."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError("it did not come") from None


async def settle() -> None:
    """Let the loop turn until what can happen without a disk has happened, and some flushes too."""
    for _ in range(200):
        await asyncio.sleep(0)
