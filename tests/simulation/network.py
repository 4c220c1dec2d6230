"""A network in memory: TCP connections whose bytes are delayed and cut anywhere, and UDP datagrams that are lost, doubled and reordered.

A connection is two ends. What one end writes waits in its buffer and moves to the other in chunks, each after a delay; while the other
end does not read, it stays, and beyond `WINDOW_BYTES` the writer is told to pause, as by a kernel whose buffers are full.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final
from zlib import crc32

from tests.simulation.loop import CURRENT, Process, SimLoop
from tests.simulation.trace import Trace

Address = tuple[str, int]
Reader = asyncio.Protocol | asyncio.BufferedProtocol
"""What a program reads a connection with: clients are given data, the broker has it put where it says."""

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 40_000
WINDOW_BYTES: Final = 32 << 10
"""What the kernels of both sides hold of one direction of a connection."""
CHUNK_BYTES_MAX: Final = 64 << 10
UDP_SEGMENT: Final = 103


@dataclass(frozen=True, slots=True)
class Line:
    """How one direction of a connection behaves."""

    delay_s: float
    chunk_bytes_max: int

    @classmethod
    def draw(cls, chance: Random) -> Line:
        delay_s = chance.choice((0.0001, 0.0005, 0.002, 0.02))
        return cls(delay_s, chance.choice((64, 1500, CHUNK_BYTES_MAX, CHUNK_BYTES_MAX)))


class Network:
    """All sockets and connections."""

    def __init__(self, loop: SimLoop, chance: Random, trace: Trace) -> None:
        self.loop = loop
        self.chance = chance
        self.trace = trace
        self.datagram_loss = 0.0
        self.stalled_until_s = 0.0
        self.is_calm = False
        self.context = contextvars.copy_context()
        self._sockets: dict[int, SimSocket] = {}
        self._listening: dict[int, SimSocket] = {}
        self._datagram_sockets: dict[int, SimSocket] = {}
        self._next_port = FIRST_PORT
        self._connections = 0
        self.ends: list[End] = []

    # -- what happens to it ----------------------------------------------------------------------------------------------

    def delay_s(self, line_delay_s: float) -> float:
        """Return how long something takes from here to there."""
        stalled_s = max(0.0, self.stalled_until_s - self.loop.time())
        return stalled_s + line_delay_s * self.chance.uniform(0.5, 2.0)

    def stall(self, seconds: float) -> None:
        """Hold back everything that is sent from now on for so long."""
        self.trace.note("network-stall", f"{seconds:.3f}")
        self.stalled_until_s = self.loop.time() + seconds

    def calm(self) -> None:
        """Let nothing be lost, held back or slow from now on."""
        self.datagram_loss = self.stalled_until_s = 0.0
        self.is_calm = True

    def reset_some(self, share: float) -> None:
        """Break connections, each with this probability."""
        for end in [end for end in self.ends if end.is_client and not end.is_lost]:
            if self.chance.random() < share:
                self.trace.note("network-reset", end.name)
                end.fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
                end.peer.fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def slow_some(self, share: float, seconds: float) -> None:
        """Let clients, each with this probability, read nothing for so long."""
        for end in [end for end in self.ends if end.is_client]:
            if self.chance.random() < share:
                self.trace.note("slow-reader", end.name, f"{seconds:.3f}")
                end.reads_from_s = self.loop.time() + seconds

    def kill(self, process: Process, *, silently: bool) -> None:
        """Close what a process had open: its peers hear of it as a kernel tells them, or later if the whole machine went (`silently`)."""
        for own in [each for each in self._sockets.values() if each.process is process]:
            own.close()
        for end in [end for end in self.ends if end.process is process]:
            end.orphan(silently=silently)
        self.ends = [end for end in self.ends if end.process is not process]

    # -- TCP -------------------------------------------------------------------------------------------------------------

    async def connect(
        self, protocol_factory: Callable[[], Reader], address: Address
    ) -> tuple[asyncio.Transport, Reader]:
        await asyncio.sleep(self.delay_s(0.0005))
        listening = self._listening.get(address[1])
        if listening is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._connections += 1
        self._next_port += 1
        ours, theirs = (HOST, self._next_port), (HOST, address[1])
        client = End(self, f"{self._connections}c", ours, theirs, is_client=True)
        server = End(self, f"{self._connections}s", theirs, ours, is_client=False)
        server.process = listening.process
        client.peer, server.peer = server, client
        self.ends += [client, server]
        self.trace.note("connect", client.name, address[1])
        listening.arrive(SimSocket(socket.AF_INET, socket.SOCK_STREAM, network=self, end=server))
        return client, client.attach(protocol_factory())

    def attach(self, accepted: SimSocket, protocol: Reader) -> tuple[asyncio.Transport, Reader]:
        assert accepted.end is not None
        end, accepted.end = accepted.end, None
        return end, end.attach(protocol)

    # -- sockets ---------------------------------------------------------------------------------------------------------

    def socket(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM, *_: object) -> SimSocket:
        """Stand in for `socket.socket`."""
        return SimSocket(family, kind, network=self)

    def socket_of(self, fd: Any) -> SimSocket:
        return self._sockets[fd if isinstance(fd, int) else fd.fileno()]

    def opened(self, own: SimSocket) -> None:
        self._sockets[own.fileno()] = own

    def bind(self, own: SimSocket, port: int) -> Address:
        if port == 0:
            self._next_port += 1
            port = self._next_port
        if own.kind == socket.SOCK_DGRAM:
            self._datagram_sockets[port] = own
        else:
            self._listening[port] = own
        return HOST, port

    def closed(self, own: SimSocket) -> None:
        self._sockets.pop(own.fileno(), None)
        for bound in (self._listening, self._datagram_sockets):
            for port in [port for port, each in bound.items() if each is own]:
                del bound[port]

    def send_datagram(self, data: bytes, origin: SimSocket, target: Address) -> None:
        """Lose it, or deliver it once or twice, each after a delay of its own."""
        chance = self.chance
        if chance.random() < self.datagram_loss:
            self.trace.note("datagram-lost", origin.name, len(data))
            return
        for _ in range(2 if chance.random() < self.datagram_loss / 4 else 1):
            self.loop.call_later(
                self.delay_s(chance.choice((0.0001, 0.0001, 0.0002, 0.005))),
                self._deliver_datagram,
                data,
                origin,
                target,
                context=self.context,
            )

    def _deliver_datagram(self, data: bytes, origin: SimSocket, target: Address) -> None:
        receiver = self._datagram_sockets.get(target[1])
        self.trace.note("datagram", origin.name, target[1], len(data), "-" if receiver is None else "")
        if receiver is not None:
            receiver.arrive((data, origin.getsockname()))
        elif not origin.is_closed and origin.peer is not None:
            origin.arrive(ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED)))


class SimSocket:
    """A socket, as far as the listeners and the QUIC endpoints use one. It has a real descriptor, so that its number is its own."""

    def __init__(
        self, family: int, kind: int, *, network: Network, end: End | None = None, process: Process | None = None
    ) -> None:
        self.family = family
        self.kind = kind
        self.end = end
        self.process = process or CURRENT.get()
        self.peer: Address | None = None
        self.is_closed = False
        self.name = ""
        self._network = network
        self._own: Address = (HOST, 0)
        self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._arrived: deque[Any] = deque()
        self._reader: tuple[Callable[..., Any], tuple[Any, ...], contextvars.Context] | None = None
        self._scheduled = False
        network.opened(self)

    def fileno(self) -> int:
        return self._fd

    def setblocking(self, flag: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *_: object) -> None:
        """There is nothing to set."""

    def bind(self, address: Address) -> None:
        self._own = self._network.bind(self, address[1])
        self.name = str(self._own[1])

    def listen(self, backlog: int) -> None:
        """`bind` does."""

    def connect(self, address: Address) -> None:
        if self._own[1] == 0:
            self.bind((HOST, 0))
        self.peer = address

    def getsockname(self) -> Address:
        return self._own

    def getpeername(self) -> Address:
        if self.peer is None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.peer

    def accept(self) -> tuple[SimSocket, Address]:
        if not self._arrived:
            raise BlockingIOError
        accepted: SimSocket = self._arrived.popleft()
        assert accepted.end is not None
        return accepted, accepted.end.peer_address

    def recvmsg(self, size: int, ancillary_size: int = 0) -> tuple[bytes, list[Any], int, Address]:
        if not self._arrived:
            raise BlockingIOError
        arrived = self._arrived.popleft()
        if isinstance(arrived, OSError):
            raise arrived
        data, address = arrived
        return data, [], 0, address

    def send(self, data: bytes) -> None:
        self._network.send_datagram(data, self, self.getpeername())

    def sendto(self, data: bytes, address: Address) -> None:
        self._network.send_datagram(data, self, address)

    def sendmsg(
        self, buffers: Sequence[bytes], ancillary: Sequence[tuple[int, int, bytes]], flags: int, *target: Address
    ) -> None:
        address = target[0] if target else self.getpeername()
        for data in buffers:  # the endpoint hands over one buffer for each datagram
            self._network.send_datagram(data, self, address)

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._network.closed(self)
            os.close(self._fd)
            for arrived in self._arrived:
                if isinstance(arrived, SimSocket):
                    arrived.close()
            if self.end is not None:
                self.end.abort()

    # -- readiness -------------------------------------------------------------------------------------------------------

    def arrive(self, what: Any) -> None:
        if not self.is_closed:
            self._arrived.append(what)
            self._wake()

    def watch(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._reader = callback, args, contextvars.copy_context()
        self._wake()

    def unwatch(self) -> bool:
        watched, self._reader = self._reader is not None, None
        return watched

    def _wake(self) -> None:
        if self._reader is not None and self._arrived and not self._scheduled:
            self._scheduled = True
            self._network.loop.call_soon(self._read, context=self._reader[2])

    def _read(self) -> None:
        self._scheduled = False
        if self._reader is not None and self._arrived:
            callback, args, _ = self._reader
            callback(*args)
            self._wake()


class End(asyncio.Transport):
    """One end of a TCP connection, with its kernel buffers."""

    peer: End

    def __init__(self, network: Network, name: str, own: Address, peer: Address, *, is_client: bool) -> None:
        super().__init__()
        self.name = name
        self.is_client = is_client
        self.is_lost = False
        self.peer_address = peer
        self.reads_from_s = 0.0
        self.process = CURRENT.get()
        self._network = network
        self._loop = network.loop
        self._own = own
        self._line = Line(0.0001, CHUNK_BYTES_MAX) if network.is_calm else Line.draw(network.chance)
        self._protocol: Reader | None = None
        self._context = contextvars.copy_context()
        self._out = bytearray()
        self._eof = False
        self._eof_sent = False
        self._closing = False
        self._reading = True
        self._paused_writing = False
        self._high, self._low = 64 << 10, 16 << 10
        self._moving = False

    def attach(self, protocol: Reader) -> Reader:
        """Hand it to a program."""
        self._context = contextvars.copy_context()
        self._protocol = protocol
        if self.is_lost:
            self._loop.call_soon(protocol.connection_made, self)
            self._loop.call_soon(protocol.connection_lost, None)
        else:
            protocol.connection_made(self)
            self.peer.move()
        return protocol

    # -- what programs call ------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_lost or self._eof:
            return
        self._out += data
        if not self._paused_writing and self.get_write_buffer_size() > self._high and self._protocol is not None:
            self._paused_writing = True
            self._protocol.pause_writing()
        self.move()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._eof = True
        self.move()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return max(0, len(self._out) - WINDOW_BYTES)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self.peer.move()

    def is_reading(self) -> bool:
        return self._reading

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send what was written, then end."""
        if not self._closing:
            self._closing = True
            self._eof = True
            self.move()
            self._end_when_sent()

    def abort(self) -> None:
        """Reset the connection."""
        if not self.is_lost:
            self._out.clear()
            self._closing = True
            self._lose(None)
            reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self._later(self.peer.fail, reset)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer_address, "sockname": self._own}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, Reader)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    # -- what happens ------------------------------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """The connection was reset."""
        if not self.is_lost:
            self._out.clear()
            self._closing = True
            self._lose(error)

    def orphan(self, *, silently: bool) -> None:
        """The program is gone; what it had handed to the kernel may still be sent, unless the machine went with it."""
        self.is_lost = self._closing = True
        self._protocol = None
        chance = self._network.chance
        if silently:
            self._out.clear()
            reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            self._later(self.peer.fail, reset, extra_s=chance.uniform(0.0, 2.0))
        elif chance.random() < 0.5:
            del self._out[WINDOW_BYTES:]
            self._eof = True
            self.move()
        else:
            self._out.clear()
            self._later(self.peer.fail, ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def move(self) -> None:
        """Bring the next chunk to the other end, after a while."""
        if not self._moving and (self._out or (self._eof and not self._eof_sent)):
            self._moving = True
            self._later(self._move, extra_s=max(0.0, self.peer.reads_from_s - self._loop.time()))

    def _move(self) -> None:
        self._moving = False
        peer = self.peer
        if peer.is_lost:
            if not self.is_lost and (self._out or self._eof):
                self.fail(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))
            return
        if peer._protocol is None or not peer._reading:
            return  # it moves on when there is someone to read
        if self._out:
            size = min(
                self._network.chance.randint(1, self._line.chunk_bytes_max), peer._context.run(peer._read_bytes_max)
            )
            data = bytes(self._out[:size])
            del self._out[:size]
            self._network.trace.note("bytes", self.name, len(data), f"{crc32(data):08x}")
            peer._context.run(peer._received, data)
            self._context.run(self._sent)
        elif self._eof and not self._eof_sent:
            self._eof_sent = True
            self._network.trace.note("eof", self.name)
            peer._context.run(peer._received_eof)
        self.move()

    def _read_bytes_max(self) -> int:
        """How much the program takes in one piece."""
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            return len(memoryview(protocol.get_buffer(-1)))
        return self._line.chunk_bytes_max

    def _received(self, data: bytes) -> None:
        protocol = self._protocol
        if self._closing or protocol is None:
            return
        if isinstance(protocol, asyncio.BufferedProtocol):
            memoryview(protocol.get_buffer(-1))[: len(data)] = data
            protocol.buffer_updated(len(data))
        else:
            protocol.data_received(data)

    def _received_eof(self) -> None:
        if self._closing or self._protocol is None:
            return
        if not self._protocol.eof_received():
            self.close()

    def _sent(self) -> None:
        if self._paused_writing and self.get_write_buffer_size() <= self._low and self._protocol is not None:
            self._paused_writing = False
            self._protocol.resume_writing()
        self._end_when_sent()

    def _end_when_sent(self) -> None:
        if self._closing and not self.is_lost and not self.get_write_buffer_size():
            self._lose(None, keep_sending=True)

    def _lose(self, error: Exception | None, *, keep_sending: bool = False) -> None:
        self.is_lost = True
        if not keep_sending:
            self._eof_sent = True
        if self in self._network.ends:
            self._network.ends.remove(self)
        if self._protocol is not None:
            self._loop.call_soon(self._protocol.connection_lost, error, context=self._context)

    def _later(self, callback: Callable[..., None], *args: Any, extra_s: float = 0.0) -> None:
        delay_s = self._network.delay_s(self._line.delay_s) + extra_s
        self._loop.call_later(delay_s, callback, *args, context=self._network.context)
