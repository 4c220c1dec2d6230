"""A peer that behaves as the Go client that is deployed does, over real QUIC, faults included.

Its readers take 512 bytes at a time. What it does in its own way, and a server must live with:

- a ping is answered with the byte only where byte and end come in one read, otherwise with a bare end;
- the answer to CONNECT READER is taken from one read, and what else is in that read is lost; an end in it hides the reason;
- behind 12 and 10 the rest of the read is lost; a second 10 is a crash;
- a fetch that was given up and is answered after all is a crash; an empty batch, a single byte among other values, an empty id,
  or an acknowledgement without results put the reader out of step for good;
- a value or an error with nothing in it ends reading, one of more than 64 KiB is a crash;
- it queues a thousand messages, and then reads nothing more until the program has taken one;
- `close` says 10, waits for 10, ends its side, and waits for the server's end without any bound.

A fault that the server should not have caused raises `Broken`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.clients.quic import QuicConnection, QuicStream, connect_quic
from tests.protocols.fujin.requests import ack, begin, commit, connect_reader, fetch, nack, rollback, text, u32

READ_BYTES = 512
QUEUE_MAX = 1000
STRING_BYTES_MAX = 64 << 10
PATIENCE_S = 30.0
"""Its own is 10 s; a machine that runs tests may be busy."""


class Broken(Exception):
    """The client is out of step, dead, or would have crashed."""


class Refused(Exception):
    """The server said no."""


class DeployedClient:
    """One connection."""

    def __init__(self, connection: QuicConnection) -> None:
        self.connection = connection
        self.pongs = 0
        self.bare_ends = 0
        connection.on_stream = self._pinged

    def _pinged(self, stream: QuicStream) -> None:
        """Byte and end in one read: a byte and an end; otherwise an end."""
        chunks: list[bytes] = []
        loop = asyncio.get_running_loop()

        def take(data: bytes) -> None:
            if data:
                chunks.append(data)
                loop.call_soon(look)
            else:
                chunks.append(b"")

        def look() -> None:
            if chunks == [b"\x0b", b""]:
                self.pongs += 1
                stream.send(b"\x0b", end=True)
            else:
                self.bare_ends += 1
                stream.end()

        stream.on_data(take)

    async def writer(self, writer_id: bytes = b"") -> DeployedWriter:
        stream = self.connection.open_stream()
        stream.send(b"\1" + text(writer_id))
        return DeployedWriter(stream)

    async def subscriber(self, topic: bytes, *, auto_commit: bool = True) -> DeployedSubscriber:
        subscriber = DeployedSubscriber(self.connection.open_stream(), auto_commit=auto_commit)
        await subscriber.connect(connect_reader(topic, kind=1, auto_commit=auto_commit))
        return subscriber

    async def consumer(self, topic: bytes, *, auto_commit: bool = True) -> DeployedConsumer:
        consumer = DeployedConsumer(self.connection.open_stream(), auto_commit=auto_commit)
        await consumer.connect(connect_reader(topic, kind=2, auto_commit=auto_commit))
        return consumer


@asynccontextmanager
async def deployed_client(address: str) -> AsyncIterator[DeployedClient]:
    """It does not look at certificates, as the published examples do not."""
    host, _, port = address.rpartition(":")
    connection = await connect_quic(host, int(port), alpn="fujin", verify=False)
    try:
        yield DeployedClient(connection)
    finally:
        connection.close()
        await connection.wait_closed()


class _Session(ABC):
    """A stream with a reading loop, as all three kinds have one."""

    def __init__(self, stream: QuicStream) -> None:
        self._stream = stream
        self._chunk = b""
        self._read = b""
        self._at = 0
        self.failure: Exception | None = None
        self.stopped = False
        self.goodbyes = 0
        self.server_ended = asyncio.Event()
        self._goodbye = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[object]] = {}
        self._ids = 0
        self._loop: asyncio.Task[None] | None = None

    def _start(self) -> None:
        self._loop = asyncio.create_task(self._read_for_ever())

    async def _read_for_ever(self) -> None:
        try:
            while True:
                await self._next_read()
                while self._at < len(self._read):
                    await self._command(await self._byte())
        except EOFError:
            pass
        except Exception as failure:  # noqa: BLE001 - raised to the caller
            self.failure = failure
        self.server_ended.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self.failure or EOFError())
                future.exception()

    @abstractmethod
    async def _command(self, number: int) -> None:
        """Read the rest of what begins with this byte."""

    async def _next_read(self) -> None:
        """At most 512 bytes."""
        if not self._chunk:
            self._chunk = await self._stream.read()
            if not self._chunk:
                raise EOFError
        self._read, self._chunk = self._chunk[:READ_BYTES], self._chunk[READ_BYTES:]
        self._at = 0

    def _drop_read(self) -> None:
        self._at = len(self._read)

    async def _byte(self) -> int:
        if self._at == len(self._read):
            await self._next_read()
        self._at += 1
        return self._read[self._at - 1]

    async def _bytes(self, count: int) -> bytes:
        return bytes([await self._byte() for _ in range(count)])

    async def _u32(self) -> int:
        return int.from_bytes(await self._bytes(4), "big")

    async def _string(self, what: str) -> bytes:
        size = await self._u32()
        if size == 0:
            raise Broken(f"an empty {what}")
        if size > STRING_BYTES_MAX:
            raise Broken(f"a {what} of {size} bytes: slice bounds out of range")
        return await self._bytes(size)

    async def _error(self) -> str | None:
        flag = await self._byte()
        if flag == 0:
            return None
        if flag != 1:
            raise Broken(f"{flag} where an error begins")
        return (await self._string("error")).decode()

    async def _ended_by_server(self, number: int) -> bool:
        if number == 10:
            self.goodbyes += 1
            if self.goodbyes > 1:
                raise Broken("close of closed channel")
            self._goodbye.set()
            self._drop_read()
            return True
        if number == 12:
            self.stopped = True
            self._drop_read()
            return True
        return False

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids

    async def _ask(self, number: int, data: bytes, *, patience_s: float = PATIENCE_S) -> object:
        if self.failure is not None:
            raise self.failure
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._stream.send(data)
        return await asyncio.wait_for(future, patience_s)

    def _answer(self, number: int, answer: object) -> None:
        future = self._waiting.pop(number, None)
        if future is None:
            raise Broken("close of nil channel")
        if not future.done():
            future.set_result(answer)

    async def close(self) -> None:
        self._stream.send(b"\x0a")
        await asyncio.wait_for(self._goodbye.wait(), PATIENCE_S)
        self._stream.end()
        # It waits forever; a test would rather fail.
        await asyncio.wait_for(self.server_ended.wait(), PATIENCE_S)
        if self.failure is not None:
            raise self.failure


class DeployedWriter(_Session):
    def __init__(self, stream: QuicStream) -> None:
        super().__init__(stream)
        self._start()

    async def _command(self, number: int) -> None:
        if await self._ended_by_server(number):
            return
        if number not in (2, 3, 4, 5):
            raise Broken(f"{number} is no answer to a writer")
        self._answer(await self._u32(), await self._error())

    async def write(self, topic: bytes, body: bytes) -> None:
        number = self._next_id()
        await self._check(number, b"\3" + u32(number) + text(topic) + text(body))

    async def begin(self) -> None:
        number = self._next_id()
        await self._check(number, begin(number))

    async def commit(self) -> None:
        number = self._next_id()
        await self._check(number, commit(number))

    async def rollback(self) -> None:
        number = self._next_id()
        await self._check(number, rollback(number))

    async def _check(self, number: int, data: bytes) -> None:
        error = await self._ask(number, data)
        if error is not None:
            raise Refused(error)


class _Reader(_Session):
    def __init__(self, stream: QuicStream, *, auto_commit: bool) -> None:
        super().__init__(stream)
        self._auto_commit = auto_commit

    async def connect(self, request: bytes) -> None:
        """One read, of which only the reply is checked."""
        self._stream.send(request)
        chunk = (await asyncio.wait_for(self._stream.read(), PATIENCE_S))[:READ_BYTES]
        if not chunk:
            raise EOFError
        if chunk[:2] == b"\1\0":
            self._start()
            return
        if chunk[0] != 1 or len(chunk) < 6 or len(chunk) != 6 + int.from_bytes(chunk[2:6], "big"):
            raise Broken(f"{chunk!r} is no answer to a connect")
        if not self._stream.can_receive:
            raise EOFError  # the end came along, and hides the reason
        raise Refused(chunk[6:].decode())

    async def ack(self, *ids: bytes) -> list[tuple[bytes, str | None]]:
        return await self._settle(ack, ids)

    async def nack(self, *ids: bytes) -> list[tuple[bytes, str | None]]:
        return await self._settle(nack, ids)

    async def _settle(self, make: Callable[..., bytes], ids: tuple[bytes, ...]) -> list[tuple[bytes, str | None]]:
        number = self._next_id()
        results = await self._ask(number, make(number, ids))
        assert isinstance(results, list)
        return results

    async def _settled(self) -> None:
        number = await self._u32()
        if await self._error() is not None:
            return  # lost: the caller waits until it loses patience
        results = []
        for _ in range(await self._u32()):
            message_id = await self._bytes(await self._u32())
            results.append((message_id, await self._error()))
        self._answer(number, results)


class DeployedSubscriber(_Reader):
    """Pushed to. The program takes messages with `next`; its queue is bounded, and full it stops the reading loop."""

    def __init__(self, stream: QuicStream, *, auto_commit: bool) -> None:
        super().__init__(stream, auto_commit=auto_commit)
        self._queue: deque[tuple[bytes | None, bytes]] = deque()
        self._changed = asyncio.Event()

    @property
    def queued(self) -> int:
        return len(self._queue)

    async def _command(self, number: int) -> None:
        if await self._ended_by_server(number):
            return
        if number in (8, 9):
            await self._settled()
        elif number == 6:
            message_id = None if self._auto_commit else await self._string("id")
            value = await self._string("value")
            while len(self._queue) >= QUEUE_MAX:
                self._changed.clear()
                await self._changed.wait()
            self._queue.append((message_id, value))
            self._changed.set()
        else:
            raise Broken(f"{number} is nothing for a subscriber")

    async def next(self, patience_s: float = PATIENCE_S) -> tuple[bytes | None, bytes]:
        while not self._queue:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), patience_s)
        self._changed.set()
        return self._queue.popleft()


class DeployedConsumer(_Reader):
    """Asks for records."""

    async def _command(self, number: int) -> None:
        if await self._ended_by_server(number):
            return
        if number in (8, 9):
            await self._settled()
        elif number == 7:
            await self._fetched()
        else:
            raise Broken(f"{number} is nothing for a consumer")

    async def _fetched(self) -> None:
        number = await self._u32()
        error = await self._error()
        if error is not None:
            self._answer(number, Refused(error))
            return
        count = await self._u32()
        if count == 0:
            raise Broken("an empty batch: the next byte is taken for part of it")
        messages: list[tuple[bytes | None, bytes]] = []
        for _ in range(count):
            message_id = None if self._auto_commit else await self._string("id")
            size = await self._u32()
            if size == 0 or (size == 1 and count > 1):
                raise Broken(f"a value of {size} bytes among {count}")
            messages.append((message_id, await self._bytes(size)))
        self._answer(number, messages)

    async def fetch(self, records_max: int) -> list[tuple[bytes | None, bytes]]:
        number = self._next_id()
        answer = await self._ask(number, fetch(number, records_max))
        if isinstance(answer, Refused):
            raise answer
        assert isinstance(answer, list)
        return answer
