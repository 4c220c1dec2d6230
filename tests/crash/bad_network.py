"""A network between a client and a broker that loses, delays, repeats and overtakes, and goes down and up again.

Both links listen on a port of their own and carry what comes to the broker's and back, on the event loop of the test.
"""

from __future__ import annotations

import asyncio
import random
import socket
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

Address = tuple[str, int]

LOSS = REPEATED = 0.05
LATE = 0.2
LATE_S_MAX = 0.003
READ_BYTES_MAX = 65_535
READS_PER_TURN_MAX = 64


class Link(ABC):
    def __init__(self, target: Address, chance: random.Random) -> None:
        self._target = target
        self._chance = chance
        self.is_up = True
        self.carried = 0
        """Datagrams, or reads of a TCP connection."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Where it listens."""

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    def down(self) -> None:
        """Nothing is carried any more."""
        self.is_up = False

    def up(self) -> None:
        self.is_up = True


class UdpLink(Link):
    """Loses, repeats and delays datagrams. What is silent while it is down finds out by itself."""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._own = self._socket()
        self._own.bind(("127.0.0.1", 0))
        self._towards: dict[Address, socket.socket] = {}
        """By client, the socket that stands for it."""
        self._loop.add_reader(self._own, self._from_clients)

    @property
    def address(self) -> str:
        host, port = self._own.getsockname()
        return f"{host}:{port}"

    async def close(self) -> None:
        for each in (self._own, *self._towards.values()):
            self._loop.remove_reader(each)
            each.close()

    @staticmethod
    def _socket() -> socket.socket:
        own = socket.socket(type=socket.SOCK_DGRAM)
        own.setblocking(False)
        return own

    def _from_clients(self) -> None:
        for datagram, client in self._received(self._own):
            towards = self._towards.get(client)
            if towards is None:
                towards = self._towards[client] = self._socket()
                towards.connect(self._target)
                self._loop.add_reader(towards, self._from_broker, towards, client)
            self._carry(lambda datagram=datagram, towards=towards: towards.send(datagram))  # type: ignore[misc]

    def _from_broker(self, towards: socket.socket, client: Address) -> None:
        for datagram, _ in self._received(towards):
            self._carry(lambda datagram=datagram: self._own.sendto(datagram, client))  # type: ignore[misc]

    def _received(self, own: socket.socket) -> list[tuple[bytes, Address]]:
        received: list[tuple[bytes, Address]] = []
        try:
            while len(received) < READS_PER_TURN_MAX:
                received.append(own.recvfrom(READ_BYTES_MAX))
        except OSError:
            pass  # there is no more, or nobody listens there
        return received

    def _carry(self, send: Callable[[], int]) -> None:
        chance = self._chance
        if not self.is_up or chance.random() < LOSS:
            return
        for _ in range(2 if chance.random() < REPEATED else 1):
            self.carried += 1
            late_s = chance.random() * LATE_S_MAX if chance.random() < LATE else 0.0
            self._loop.call_later(late_s, self._sent, send)

    @staticmethod
    def _sent(send: Callable[[], int]) -> None:
        try:
            send()
        except OSError:
            pass  # as good as lost


class TcpLink(Link):
    """Carries bytes in pieces of any size, a little late. Goes down with a reset of every connection, and accepts none until it is up."""

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def close(self) -> None:
        self._server.close()
        self.down()
        await self._server.wait_closed()

    def down(self) -> None:
        super().down()
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.is_up:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection(*self._target)
        self._open |= {writer, there_writer}
        try:
            await asyncio.gather(self._carry(reader, there_writer), self._carry(there_reader, writer))
        finally:
            for each in (writer, there_writer):
                self._open.discard(each)
                each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(self._chance.choice((1, 7, 100, 65_536))):
                self.carried += 1
                if self._chance.random() < LATE:
                    await asyncio.sleep(self._chance.random() * LATE_S_MAX)
                if writer.transport.is_closing():
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the link went down, or one end hung up
        finally:
            writer.transport.abort()


@asynccontextmanager
async def link_to(address: str, *, udp: bool, seed: int = 1) -> AsyncIterator[Link]:
    host, _, port = address.rpartition(":")
    link = (UdpLink if udp else TcpLink)((host, int(port)), random.Random(seed))
    await link.start()
    try:
        yield link
    finally:
        await link.close()
