"""A UDP relay between a client and a listener that observes, drops, delays and readdresses datagrams."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

Address = tuple[str, int]

READ_BYTES_MAX: Final = 65_535
READS_PER_TURN_MAX: Final = 64
ANCILLARY_BYTES: Final = 64
KEPT_DATAGRAMS_MAX: Final = 500
"""Datagrams of each direction that are kept for a test to look at."""
LATE_S_MAX: Final = 0.005
ECN_MASK: Final = 0b11
ECT_0: Final = 0b10


@dataclass
class Leg:
    """One direction. Datagrams are counted from 0 as they arrive; what is dropped is counted too."""

    drops: Callable[[int], bool] = lambda number: False
    arrived: int = 0
    dropped: int = 0
    largest_bytes: int = 0
    ecn: list[int] = field(default_factory=list)
    """The ECN bits of the first datagrams."""
    datagrams: list[bytes] = field(default_factory=list)
    """The first datagrams, those that were dropped included."""

    def observe(self, datagram: bytes, ecn: int) -> bool:
        """Record a datagram and return whether to forward it."""
        number, self.arrived = self.arrived, self.arrived + 1
        self.largest_bytes = max(self.largest_bytes, len(datagram))
        if len(self.datagrams) < KEPT_DATAGRAMS_MAX:
            self.datagrams.append(datagram)
            self.ecn.append(ecn)
        if self.drops(number):
            self.dropped += 1
            return False
        return True


class UdpRelay:
    """Serves one client. `rebind` gives it a new source port towards the server, as a NAT does that has forgotten its mapping."""

    def __init__(self, target: Address, *, late: float = 0.0, seed: int = 1) -> None:
        """`late` is the share of datagrams that are delayed, so that others overtake them."""
        self._target = target
        self._late = late
        self._random = random.Random(seed)
        self._client: Address | None = None
        self.to_server, self.to_client = Leg(), Leg()
        self.log: list[tuple[Leg, bytes]] = []
        """The first datagrams of both directions, in the order in which they arrived."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._near = self._open(self._from_client)
        self._far = self._open(self._from_server)

    @property
    def address(self) -> str:
        host, port = self._near.getsockname()
        return f"{host}:{port}"

    def rebind(self) -> None:
        self._close(self._far)
        self._far = self._open(self._from_server)

    def close(self) -> None:
        self._from_client()  # its last datagram closes the connection
        self._close(self._near)
        self._close(self._far)

    def _open(self, readable: Callable[[], None]) -> socket.socket:
        opened = socket.socket(type=socket.SOCK_DGRAM)
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        opened.bind(("127.0.0.1", 0))
        self._loop.add_reader(opened, readable)
        return opened

    def _close(self, opened: socket.socket) -> None:
        self._loop.remove_reader(opened)
        opened.close()

    def _from_client(self) -> None:
        for datagram, ecn, client in self._received(self._near):
            self._client = client
            self._forward(self.to_server, datagram, ecn)

    def _from_server(self) -> None:
        for datagram, ecn, _ in self._received(self._far):
            self._forward(self.to_client, datagram, ecn)

    @staticmethod
    def _received(source: socket.socket) -> list[tuple[bytes, int, Address]]:
        received: list[tuple[bytes, int, Address]] = []
        try:
            while len(received) < READS_PER_TURN_MAX:
                datagram, ancillary, _, sender = source.recvmsg(READ_BYTES_MAX, ANCILLARY_BYTES)
                tos = next((data[0] for level, _, data in ancillary if level == socket.IPPROTO_IP), 0)
                received.append((datagram, tos & ECN_MASK, sender))
        except OSError:
            pass  # no more to read, or nobody listens at the other end
        return received

    def _forward(self, leg: Leg, datagram: bytes, ecn: int) -> None:
        if len(self.log) < KEPT_DATAGRAMS_MAX:
            self.log.append((leg, datagram))
        if not leg.observe(datagram, ecn):
            return
        late_s = self._random.uniform(0, LATE_S_MAX) if self._random.random() < self._late else 0.0
        if late_s:
            self._loop.call_later(late_s, self._send, leg, datagram, ecn)
        else:
            self._send(leg, datagram, ecn)

    def _send(self, leg: Leg, datagram: bytes, ecn: int) -> None:
        out, to = (self._far, self._target) if leg is self.to_server else (self._near, self._client)
        try:
            out.sendmsg([datagram], [(socket.IPPROTO_IP, socket.IP_TOS, ecn.to_bytes(4, "little"))], 0, to)
        except OSError:
            pass  # as good as lost


@asynccontextmanager
async def relay_to(address: str | Address, *, late: float = 0.0, seed: int = 1) -> AsyncIterator[UdpRelay]:
    if isinstance(address, str):
        host, _, port = address.rpartition(":")
        address = (host, int(port))
    relay = UdpRelay(address, late=late, seed=seed)
    relay.start()
    try:
        yield relay
    finally:
        relay.close()


def lose(share: float, seed: int) -> Callable[[int], bool]:
    """Drop this share of all datagrams, the same ones in every run."""
    chance = random.Random(seed)
    return lambda number: chance.random() < share


def lose_first(count: int) -> Callable[[int], bool]:
    """Drop the first datagrams."""
    return lambda number: number < count


# -- what is in a datagram ------------------------------------------------------------------------------------------------------

LONG_PACKETS: Final = ("initial", "0-rtt", "handshake", "retry")


def packets_of(datagram: bytes) -> list[str]:
    """Return the types of the packets that are coalesced in a datagram (RFC 9000, section 12.2)."""
    found: list[str] = []
    at = 0
    while at < len(datagram):
        first = datagram[at]
        if not first & 0x40:
            break  # padding after the last packet
        if not first & 0x80:
            return [*found, "1-rtt"]
        kind = LONG_PACKETS[first >> 4 & 0b11]
        found.append(kind)
        if kind == "retry":
            break
        at += 5
        for _ in range(2):  # destination and source connection id
            at += 1 + datagram[at]
        if kind == "initial":
            token_bytes, at = _varint(datagram, at)
            at += token_bytes
        length, at = _varint(datagram, at)
        at += length
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    size = 1 << (data[at] >> 6)
    return int.from_bytes(data[at : at + size], "big") & (1 << (8 * size - 2)) - 1, at + size
