"""A client's side of one subscription: the stream that the broker opened for it, as an iterator over events.

It has a connection for itself. One that nobody reads is held back by not reading its connection, and would hold up whatever else
goes over that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

import msgspec

from penstock.clients.quic import QuicConnection, QuicStream
from penstock.errors import ConnectionLost, OffsetOutOfRange, PenstockError, ProtocolViolation
from penstock.protocols.felix.answers import error_of
from penstock.protocols.felix.binary import Events
from penstock.protocols.felix.codec import Frame, FrameDecoder, Reply, decode_reply, encode_message
from penstock.protocols.felix.messages import (
    Auth,
    AuthOk,
    Error,
    Event,
    EventBatch,
    EventStreamHello,
    Ok,
    Subscribe,
    SubscribeCursorError,
    Subscribed,
)


class FelixEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. `offset` is None where the broker does not tell it, as for streams of several partitions."""

    stream: str
    value: bytes
    offset: int | None = None


class Subscription:
    """Events as they come. What is not read waits at the broker, which may drop it in the end: the protocol promises no more.

    Ends when the broker ends it; raises ConnectionLost where the connection broke or the broker cut it off.
    """

    def __init__(
        self, stream_name: str, connection: QuicConnection, on_closed: Callable[[Subscription], object]
    ) -> None:
        """Of use once it has begun. `on_closed` is called when it is over."""
        self.stream = stream_name
        self._connection = connection
        self._on_closed = on_closed
        self._quic: QuicStream | None = None
        self._decoder = FrameDecoder()
        self._events: deque[FelixEvent] = deque()
        self._closed = False

    async def begin(self, auth: Auth, request: Subscribe) -> None:
        """Ask for it, and wait for the stream that the broker opens. Raises what the broker refuses with."""
        await _ask(self._connection, auth, request)
        self._quic = await self._connection.accept_stream()
        frames: list[Frame] = []
        while not frames:
            data = await self._quic.read()
            if not data:
                raise ConnectionLost("the broker ended a stream that it had just opened")
            frames = self._decoder.feed(data)
            if self._decoder.violation is not None:
                raise self._decoder.violation
        if not isinstance(decode_reply(frames[0]), EventStreamHello):
            raise ProtocolViolation("the broker opened a stream and did not say for which subscription")
        for frame in frames[1:]:
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
        """Tell the broker to send no more. What has come may still be read."""
        if not self._closed:
            self._closed = True
            self._connection.close()
            self._on_closed(self)

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
        assert self._quic is not None
        try:
            data = await self._quic.read()
            for frame in self._decoder.feed(data):
                self._take(frame)
            if self._decoder.violation is not None:
                raise self._decoder.violation
        except PenstockError:
            if self._closed:  # by somebody else, while we waited
                return False
            self.close()
            raise
        if not data:
            self.close()
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


async def _ask(connection: QuicConnection, auth: Auth, request: Subscribe) -> None:
    """The stream that asks says who it is, asks, and ends."""
    asking = connection.open_stream()
    await asking.write(encode_message(auth) + encode_message(request), end=True)
    decoder = FrameDecoder()
    answers: list[Reply] = []
    while len(answers) < 2:
        data = await asking.read()
        if not data:
            raise ConnectionLost("the broker ended the stream before it had answered")
        answers += [decode_reply(frame) for frame in decoder.feed(data)]
        if decoder.violation is not None:
            raise decoder.violation
        for answer in answers:
            if isinstance(answer, Error):
                raise error_of(answer.message)
            if isinstance(answer, SubscribeCursorError):
                raise OffsetOutOfRange(
                    f"offset {answer.requested} cannot be read: the nearest that can is {answer.available}"
                )
    welcome, subscribed = answers[:2]
    if not isinstance(welcome, Ok | AuthOk) or not isinstance(subscribed, Subscribed):
        raise ProtocolViolation(f"{type(subscribed).__name__} is no answer to a subscription")
