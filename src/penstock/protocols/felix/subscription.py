"""A client's side of one subscription: the stream that the broker opened for it, as an iterator over events."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Self

import msgspec

from penstock.clients.quic import QuicStream
from penstock.errors import ConnectionLost, ProtocolViolation
from penstock.protocols.felix.binary import Events
from penstock.protocols.felix.codec import Frame, FrameDecoder, decode_reply
from penstock.protocols.felix.messages import Event, EventBatch, EventStreamHello


class FelixEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `offset` is None where the broker does not tell it, as for streams of several partitions."""

    stream: str
    value: bytes
    offset: int | None = None


class Subscription:
    """Events as they come. What is not read waits at the broker, which may drop it in the end: the protocol promises no more.

    Ends when the broker ends it; raises ConnectionLost where the connection broke or the broker cut it off.
    """

    def __init__(self, greeted: Greeted, stream_name: str) -> None:
        self.id = greeted.id
        self.stream = stream_name
        self._quic = greeted.stream
        self._decoder = greeted.decoder
        self._events: deque[FelixEvent] = deque()
        self._closed = False
        for frame in greeted.rest:
            self._take(frame)

    async def next(self, timeout_s: float | None = None) -> FelixEvent | None:
        """The next event; None where the subscription has ended, or where none came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self._events:
                    if self._closed or not await self._read():
                        return None
        except TimeoutError:
            return None
        return self._events.popleft()

    async def next_many(self) -> list[FelixEvent]:
        """Every event that is here, once there is one; empty where the subscription has ended."""
        first = await self.next()
        if first is None:
            return []
        events = [first, *self._events]
        self._events.clear()
        return events

    def close(self) -> None:
        """Tell the broker to send no more."""
        if not self._closed:
            self._closed = True
            self._quic.stop_receiving()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FelixEvent:
        event = await self.next()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _read(self) -> bool:
        data = await self._quic.read()
        for frame in self._decoder.feed(data):
            self._take(frame)
        if self._decoder.violation is not None:
            raise self._decoder.violation
        return bool(data)

    def _take(self, frame: Frame) -> None:
        reply = decode_reply(frame)
        if isinstance(reply, Event):
            offset = reply.offset if isinstance(reply.offset, int) else None
            self._events.append(FelixEvent(self.stream, reply.payload, offset))
        elif isinstance(reply, Events | EventBatch):
            base = reply.base_offset
            if isinstance(base, int):
                self._events += [
                    FelixEvent(self.stream, value, offset) for offset, value in enumerate(reply.payloads, base)
                ]
            else:
                self._events += [FelixEvent(self.stream, value) for value in reply.payloads]
        else:
            raise ProtocolViolation(f"{type(reply).__name__} does not belong on a stream of events")


class Greeted:
    """A stream of the broker's that has said which subscription it is of."""

    def __init__(self, stream: QuicStream, decoder: FrameDecoder, id_: int, rest: list[Frame]) -> None:
        self.stream = stream
        self.decoder = decoder
        self.id = id_
        self.rest = rest
        """What came behind the greeting already."""


async def greet(stream: QuicStream) -> Greeted:
    """Wait for the greeting. Raises ProtocolViolation where something else comes, ConnectionLost where nothing does."""
    decoder = FrameDecoder()
    frames: list[Frame] = []
    while not frames:
        data = await stream.read()
        if not data:
            raise ConnectionLost("the broker ended a stream that it had just opened")
        frames = decoder.feed(data)
        if decoder.violation is not None:
            raise decoder.violation
    hello = decode_reply(frames[0])
    if not isinstance(hello, EventStreamHello) or not isinstance(hello.subscription_id, int):
        raise ProtocolViolation("the broker opened a stream and did not say for which subscription")
    return Greeted(stream, decoder, hello.subscription_id, frames[1:])
