"""A small protocol of lines, for tests of the network: each line is a request, and the test decides when some are answered.

echo TEXT   answered at once            later TEXT  answered when the test calls `answer`
big N       N bytes, when writable      quit        the session closes
bad         a protocol violation        bug         an exception nobody foresaw
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.errors import ProtocolViolation
from penstock.net.limits import TcpLimits
from penstock.net.quic import QuicListener
from penstock.net.session import Connection
from penstock.net.tcp import TcpListener
from penstock.testing.clock import ManualClock


class LineSession:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.received = 0
        self.later: deque[bytes] = deque()
        self.put_off: deque[bytes] = deque()
        self.is_closed = False
        self._buffer = b""

    def receive(self, data: bytes) -> None:
        self.received += len(data)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        if lines:
            self.connection.frame_pending(False)
        for line in lines:
            if line == b"quit":
                self.connection.send(b"bye\n")
                self.connection.close()
                return
            self._request(line)
        self.connection.frame_pending(bool(self._buffer), len(self._buffer))

    def resume(self) -> None:
        while self.put_off and self.connection.writable:
            line = self.put_off.popleft()
            self.connection.send(bytes(int(line[4:])))
            self.connection.release(len(line))

    def closed(self) -> None:
        self.is_closed = True
        for line in (*self.later, *self.put_off):
            self.connection.release(len(line))

    def answer(self) -> None:
        line = self.later.popleft()
        self.connection.release(len(line))
        self.connection.send(line[6:] + b"\n")

    def _request(self, line: bytes) -> None:
        verb = line[:5].split(b" ")[0]
        if verb == b"echo":
            self.connection.send(line[5:] + b"\n")
        elif verb == b"later":
            self.connection.hold(len(line))
            self.later.append(line)
        elif verb == b"big":
            self.connection.hold(len(line))
            self.put_off.append(line)
            self.resume()
        elif verb == b"bug":
            raise RuntimeError("a bug of the session")
        else:
            raise ProtocolViolation(f"no request starts with {len(verb)} bytes like these")


class Served:
    """A listener under a clock that the test moves."""

    clock: ManualClock
    listener: TcpListener | QuicListener

    @property
    def port(self) -> int:
        return int(self.listener.address.rpartition(":")[2])

    def pass_time(self, seconds: float) -> None:
        """Let time pass in steps of a sweep, as the timer would see it."""
        step_s = self.listener.limits.sweep_s
        while seconds > 0:
            self.clock.advance(min(step_s, seconds))
            self.listener.sweep()
            seconds -= step_s


class Service(Served):
    """A listener of line sessions."""

    listener: TcpListener

    def __init__(self, limits: TcpLimits | None = None, **options: object) -> None:
        self.clock = ManualClock()
        self.sessions: list[LineSession] = []
        self.listener = TcpListener("lines", "127.0.0.1:0", self._open, limits, clock=self.clock, **options)  # type: ignore[arg-type]
        self.stats = self.listener.stats

    def _open(self, connection: Connection) -> LineSession:
        self.sessions.append(LineSession(connection))
        return self.sessions[-1]

    async def connect(self, **options: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, LineSession]:
        """A client and the session that serves it."""
        expected = len(self.sessions) + 1
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)  # type: ignore[arg-type]
        await until(lambda: len(self.sessions) == expected)
        return reader, writer, self.sessions[-1]


@asynccontextmanager
async def serving(limits: TcpLimits | None = None, **options: object) -> AsyncIterator[Service]:
    service = Service(limits, **options)
    await service.listener.start()
    try:
        yield service
    finally:
        await service.listener.stop(0)


async def until(condition: Callable[[], bool]) -> None:
    """Turn the loop until the network has done its part."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    """What still arrives. A connection that the other end gave up may end with a reset as well as with an end."""
    try:
        return await reader.read()
    except OSError:
        return b""


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        pass  # the other end was faster
