"""A Felix client that knows the contract and nothing else: JSON on streams of QUIC, no login, text for ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from penstock.clients.loop_thread import LoopThread
from penstock.clients.quic import QuicConnection, QuicStream, connect_quic
from penstock.protocols.felix.codec.frames import FrameDecoder, Reply, decode_reply, encode_message
from penstock.protocols.felix.codec.messages import (
    Event,
    EventBatch,
    EventStreamHello,
    Message,
    Ok,
    PublishBatch,
    Subscribe,
)

ANSWER_S_MAX = 20.0
NAME = "default"


class _Reader:
    """The messages that come on one stream."""

    def __init__(self, stream: QuicStream) -> None:
        self.stream = stream
        self._decoder = FrameDecoder()
        self._replies: list[Reply] = []

    async def next(self) -> Reply:
        async with asyncio.timeout(ANSWER_S_MAX):
            while not self._replies:
                data = await self.stream.read()
                assert data, "the broker ended the stream"
                self._replies += [decode_reply(frame) for frame in self._decoder.feed(data)]
        return self._replies.pop(0)


class FelixJsonClient:
    def __init__(self, address: str, certificate: Path) -> None:
        self._thread = LoopThread("felix in json")
        self._connection, self._control = self._thread.run(self._open(address, certificate))
        self._events: _Reader | None = None

    async def _open(self, address: str, certificate: Path) -> tuple[QuicConnection, _Reader]:
        host, _, port = address.rpartition(":")
        connection = await connect_quic(host, int(port), ca_file=certificate)
        return connection, _Reader(connection.open_stream())

    async def _ask(self, request: Message) -> None:
        await self._control.stream.write(encode_message(request))
        assert await self._control.next() == Ok()

    def subscribe(self, stream: str) -> None:
        async def subscribe() -> _Reader:
            await self._ask(Subscribe(tenant_id=NAME, namespace=NAME, stream=stream))
            events = _Reader(await self._connection.accept_stream())
            hello = await events.next()
            assert isinstance(hello, EventStreamHello)
            assert isinstance(hello.subscription_id, str)
            return events

        self._events = self._thread.run(subscribe())

    def publish_batch(self, stream: str, values: Sequence[bytes]) -> None:
        batch = PublishBatch(tenant_id=NAME, namespace=NAME, stream=stream, payloads=list(values), ack="per_batch")
        self._thread.run(self._ask(batch))

    def events(self, count: int) -> list[bytes]:
        async def read() -> list[bytes]:
            assert self._events is not None
            values: list[bytes] = []
            while len(values) < count:
                message = await self._events.next()
                assert isinstance(message, Event | EventBatch)
                values += [message.payload] if isinstance(message, Event) else message.payloads
            return values

        return self._thread.run(read())

    def close(self) -> None:
        async def close() -> None:
            self._connection.close()
            await self._connection.wait_closed()

        self._thread.run(close())
        self._thread.close()
