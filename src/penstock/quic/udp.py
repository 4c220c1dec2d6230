"""One UDP socket for many connections: many datagrams per system call, and one round of sending per turn of the loop.

The kernel joins datagrams of one sender into one buffer (GRO) and cuts one buffer of ours into datagrams (GSO); a call then costs what
one datagram cost before. What arrives is handed to its connections first; when the socket is empty, or enough was read for one turn,
every connection that was touched runs once: it takes its events and sends what is pending. Touching a connection between two
turns (an answer is ready, a timer fired) makes it run in the next one.

A kernel without GSO or GRO is served too, one datagram a call.

A socket that listens on every address of the machine notes which one a client used and answers from there: a client ignores datagrams
from any other, and the kernel would choose by its routes.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from penstock.quic.packets import Address

UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
IP_MTU_DISCOVER: Final = 10
IPV6_MTU_DISCOVER: Final = 23
MTU_PROBE: Final = 3
"""Datagrams are never cut into fragments on their way, and the kernel does not remember what it thinks would fit."""

READ_BYTES_MAX: Final = 65_535
READS_PER_TURN_MAX: Final = 32
"""So that a flood of datagrams cannot starve everything else on the loop: at most 2 MiB."""
SEGMENTS_MAX: Final = 64
SEGMENTED_BYTES_MAX: Final = 65_000
SOCKET_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Asked for; the kernel gives what net.core.rmem_max and wmem_max allow."""
ANCILLARY_BYTES: Final = socket.CMSG_SPACE(struct.calcsize("i"))
SEGMENT_SIZE: Final = struct.Struct("=H")
GRO_SIZE: Final = struct.Struct("=i")
IP_PKTINFO: Final = 8
IPV4_ORIGIN: Final = struct.Struct("=I4s4s")
"""The interface, the address to answer from, and the address that was used."""
IPV6_ORIGIN_BYTES: Final = 20
ORIGIN_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(IPV6_ORIGIN_BYTES)
CANNOT_SEGMENT: Final = frozenset({errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOPROTOOPT, errno.ENOTSUP})


class Runner(Protocol):
    """A connection, as its endpoint sees it."""

    def run(self, now_s: float) -> None:
        """Take events, then send what is pending."""
        ...


Received = Callable[[bytes, int, Address], Runner | None]
"""Is given a buffer, the size of the datagrams in it (the last may be shorter), and who sent them. Returns who is to run for it."""


def _ignore(buffer: bytes, segment_bytes: int, address: Address) -> None:
    """What happens to datagrams before anybody cares."""


class UdpEndpoint:
    """Owns its socket."""

    def __init__(self, own: socket.socket, now_s: Callable[[], float]) -> None:
        self._socket = own
        self._now_s = now_s
        self.received: Received = _ignore
        """Finds the connection that a buffer is for, and gives it what is its own."""
        self._loop = asyncio.get_running_loop()
        self.arrived_at = b""
        """The local address of the datagrams that are being handed over, for `send` to answer from; empty if there is only one."""
        self._ancillary_bytes = ANCILLARY_BYTES + (ORIGIN_ANCILLARY_BYTES if _note_origins(own) else 0)
        self._origins = self._ancillary_bytes > ANCILLARY_BYTES
        self._touched: dict[Runner, None] = {}
        self._held: dict[Runner, None] = {}
        self._waiting: list[tuple[list[tuple[bytes, Address]], bytes]] = []
        self._segments = True
        self._connected = False
        self.blocked = False
        """The socket takes no more for now. Connections stop to make datagrams until it does."""
        self.closed = False
        self.send_errors = 0
        self.refused: Callable[[], None] | None = None
        """Called when the kernel has heard that nobody listens at the other end (connected sockets only) and all received is read."""
        self._refusal_pending = False
        try:
            own.getpeername()
            self._connected = True
        except OSError:
            pass
        self._loop.add_reader(own.fileno(), self._read)

    @property
    def address(self) -> Address:
        address: Address = self._socket.getsockname()
        return address

    def touch(self, runner: Runner) -> None:
        """Let it run in the next turn of the loop at the latest."""
        if not self._touched and not self.closed:
            self._loop.call_soon(self._run_touched)
        self._touched[runner] = None

    def touch_when_writable(self, runner: Runner) -> None:
        """Let it run once the socket takes datagrams again; for connections that find it `blocked`."""
        self._held[runner] = None

    def forget(self, runner: Runner) -> None:
        self._touched.pop(runner, None)
        self._held.pop(runner, None)

    def send(self, datagrams: Sequence[tuple[bytes, Address]], origin: bytes = b"") -> None:
        """Send them in order. What the socket does not take now is kept, and `blocked` says that there should be no more."""
        if self.closed:
            return
        if self.blocked:
            self._waiting.append((list(datagrams), origin))
            return
        start = 0
        while start < len(datagrams):
            is_last = start + 1 == len(datagrams)
            count = 1 if is_last or not self._segments else self._count_alike(datagrams, start)
            try:
                if count > 1 or origin:
                    self._send_alike(datagrams, start, count, origin)
                elif self._connected:
                    self._socket.send(datagrams[start][0])
                else:
                    self._socket.sendto(*datagrams[start])
            except (BlockingIOError, InterruptedError):
                self._block(datagrams[start:], origin)
                return
            except OSError as error:
                if count > 1 and error.errno in CANNOT_SEGMENT:
                    self._segments = False
                    continue
                self._failed(error)
            start += count

    def close(self) -> None:
        """Send no more and read no more. What is kept back is lost, as any datagram may be."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._socket.fileno())
            if self.blocked:
                self._loop.remove_writer(self._socket.fileno())
            self._waiting.clear()
            self._touched.clear()
            self._socket.close()

    def _read(self) -> bool:
        """Read for one turn, then let those run that were touched; returns whether the socket is empty."""
        receive, ancillary_bytes = self._socket.recvmsg, self._ancillary_bytes
        emptied = False
        try:
            for _ in range(READS_PER_TURN_MAX):
                try:
                    data, ancillary, _, address = receive(READ_BYTES_MAX, ancillary_bytes)
                except (BlockingIOError, InterruptedError):
                    emptied = True
                    break
                except OSError as error:
                    self._failed(error)
                    continue
                if data:
                    if self._origins:
                        size = self._note(ancillary) or len(data)
                    else:
                        size = GRO_SIZE.unpack_from(ancillary[0][2])[0] if ancillary else len(data)
                    runner = self.received(data, size, address)
                    if runner is not None:
                        self._touched[runner] = None
                if self.closed:
                    emptied = True
                    break
        finally:
            self._run_touched()
        return emptied

    def _run_touched(self) -> None:
        touched, self._touched = self._touched, {}
        if touched:
            now_s = self._now_s()
            for runner in touched:
                runner.run(now_s)

    def _count_alike(self, datagrams: Sequence[tuple[bytes, Address]], start: int) -> int:
        """How many from `start` on go to one address in one call: all as long as the first, the last maybe shorter."""
        first, address = datagrams[start]
        size = len(first)
        limit = min(len(datagrams) - start, SEGMENTS_MAX, SEGMENTED_BYTES_MAX // size)
        count = 1
        while count < limit:
            data, to = datagrams[start + count]
            if len(data) > size or to != address:
                break
            count += 1
            if len(data) < size:
                break
        return count

    def _send_alike(self, datagrams: Sequence[tuple[bytes, Address]], start: int, count: int, origin: bytes) -> None:
        data, address = datagrams[start]
        together = [each for each, _ in datagrams[start : start + count]]
        ancillary: list[tuple[int, int, bytes]] = []
        if count > 1:
            ancillary.append((socket.IPPROTO_UDP, UDP_SEGMENT, SEGMENT_SIZE.pack(len(data))))
        if origin:
            ancillary.append(_answer_from(origin))
        target: tuple[Any, ...] = () if self._connected else (address,)
        self._socket.sendmsg(together, ancillary, 0, *target)

    def _note(self, ancillary: list[tuple[int, int, bytes]]) -> int:
        """Keep where datagrams came in; returns their size where the kernel has joined some."""
        size = 0
        for _, kind, value in ancillary:
            if kind == UDP_GRO:
                size = GRO_SIZE.unpack_from(value)[0]
            elif len(value) == IPV4_ORIGIN.size:
                self.arrived_at = value[4:8]
            elif len(value) == IPV6_ORIGIN_BYTES:
                self.arrived_at = value
        return size

    def _block(self, rest: Sequence[tuple[bytes, Address]], origin: bytes) -> None:
        self._waiting.append((list(rest), origin))
        self.blocked = True
        self._loop.add_writer(self._socket.fileno(), self._unblock)

    def _unblock(self) -> None:
        self._loop.remove_writer(self._socket.fileno())
        self.blocked = False
        waiting, self._waiting = self._waiting, []
        for datagrams, origin in waiting:
            self.send(datagrams, origin)
        if not self.blocked:
            self._touched |= self._held
            self._held = {}
            self._run_touched()

    def _failed(self, error: OSError) -> None:
        """A datagram was not sent, which QUIC repairs as if it were lost on the way."""
        self.send_errors += 1
        if error.errno == errno.ECONNREFUSED and not self._refusal_pending:
            self._refusal_pending = True
            self._loop.call_soon(self._report_refusal)

    def _report_refusal(self) -> None:
        """Report it after what arrived before it: the kernel reports errors first, and a CONNECTION_CLOSE may wait in the socket."""
        if not self.closed and not self._read():
            self._loop.call_soon(self._report_refusal)
            return
        self._refusal_pending = False
        if not self.closed and self.refused is not None:
            self.refused()


def _note_origins(own: socket.socket) -> bool:
    """Where a socket listens on every address, let the kernel say which one was used."""
    if own.family == socket.AF_INET6 and own.getsockname()[0] == "::":
        own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    elif own.family == socket.AF_INET and own.getsockname()[0] == "0.0.0.0":  # noqa: S104 - compared, not bound to
        own.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    else:
        return False
    return True


def _answer_from(origin: bytes) -> tuple[int, int, bytes]:
    if len(origin) == IPV6_ORIGIN_BYTES:
        return socket.IPPROTO_IPV6, socket.IPV6_PKTINFO, origin
    return socket.IPPROTO_IP, IP_PKTINFO, IPV4_ORIGIN.pack(0, origin, bytes(4))


def open_socket(family: int, bind: Address | None = None, connect: Address | None = None) -> socket.socket:
    """A socket with large buffers, GRO, and no fragmentation. Raises OSError."""
    own = socket.socket(family, socket.SOCK_DGRAM)
    try:
        own.setblocking(False)
        if family == socket.AF_INET6:
            own.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            own.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, MTU_PROBE)
        else:
            own.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, MTU_PROBE)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            own.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        try:
            own.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        except OSError:
            pass  # an old kernel: datagrams come one at a time
        if bind is not None:
            own.bind(bind)
        if connect is not None:
            own.connect(connect)
    except BaseException:
        own.close()
        raise
    return own
