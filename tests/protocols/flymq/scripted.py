"""A broker that answers, keeps silent or hangs up as a test says, and a client of it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import cast

from penstock.clients.options import ClientOptions
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.operations.records import Produce
from penstock.protocols.flymq.wire import ERROR, HEADER, HEADER_BYTES, frame

Answer = Callable[["Peer", int, bytes], bytes | None]


class Peer(asyncio.Protocol):
    """One accepted connection; each whole request frame goes to the script."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._received = b""
        self.number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.number = len(self._broker.peers)
        self._broker.peers.append(self)
        if self._broker.refusals >= len(self._broker.peers):
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._broker.reads += 1
        self._received += data
        while len(self._received) >= HEADER_BYTES:
            _, _, opcode, _, length = HEADER.unpack_from(self._received)
            if len(self._received) < HEADER_BYTES + length:
                return
            payload = self._received[HEADER_BYTES : HEADER_BYTES + length]
            self._received = self._received[HEADER_BYTES + length :]
            self._broker.requests.append((opcode, payload))
            self._broker.arrived.set()
            reply = self._broker.answer(self, opcode, payload)
            if reply is not None:
                self.transport.write(reply)


class ScriptedBroker:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.peers: list[Peer] = []
        self.requests: list[tuple[int, bytes]] = []
        self.arrived = asyncio.Event()
        self.reads = 0
        self.refusals = 0
        """How many connections, from the first on, are closed as soon as they are made."""

    async def start(self) -> None:
        self.server = await asyncio.get_running_loop().create_server(lambda: Peer(self), "127.0.0.1", 0)
        self.port: int = self.server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        return f"flymq://127.0.0.1:{self.port}"

    async def requests_arrived(self, count: int) -> None:
        while len(self.requests) < count:
            self.arrived.clear()
            await self.arrived.wait()

    async def stop(self) -> None:
        self.server.close()
        for peer in self.peers:
            peer.transport.abort()
        await self.server.wait_closed()


@asynccontextmanager
async def scripted(answer: Answer) -> AsyncIterator[ScriptedBroker]:
    broker = ScriptedBroker(answer)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def connected(
    broker: ScriptedBroker,
    options: ClientOptions | None = None,
    url: str | None = None,
    *,
    idempotent: bool = False,
) -> AsyncIterator[AsyncFlyMQClient]:
    client = AsyncFlyMQClient(
        url or broker.url, options=options, idempotent=idempotent, random=Random(1), sleep=no_sleep
    )
    await client.open()
    try:
        yield client
    finally:
        await client.close()


async def no_sleep(seconds: float) -> None:
    await asyncio.sleep(0)


def produced(offset: int, topic: str = "t", partition: int = 0) -> bytes:
    name = topic.encode()
    return frame(
        Produce.opcode, struct.pack(">H", len(name)) + name + struct.pack(">iQqii", partition, offset, 99, -1, 1)
    )


def error(text: str) -> bytes:
    return frame(ERROR, b"\0" + struct.pack(">H", len(text)) + text.encode())
