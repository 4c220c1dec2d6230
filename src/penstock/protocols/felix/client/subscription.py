"""A client's side of one subscription: the stream that the broker opened for it, as an iterator over events.

It has a connection for itself. One that nobody reads is held back by not reading its connection, and would hold up whatever else
goes over that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Self

import msgspec

from penstock.clients.life import BATCH_RECORDS
from penstock.clients.quic import QuicConnection, QuicStream
from penstock.errors import ConnectionLost, OffsetOutOfRange, PenstockError, ProtocolViolation
from penstock.protocols.felix.client.answers import error_of
from penstock.protocols.felix.codec.binary import Events
from penstock.protocols.felix.codec.frames import Frame, FrameDecoder, Reply, decode_reply, encode_message
from penstock.protocols.felix.codec.messages import (
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
    """One event. `offset` is None if the broker does not tell it, as for streams of several partitions."""

    stream: str
    value: bytes
    offset: int | None = None


class AsyncSubscription:
    """Events as they come. What is not read waits at the broker, which may drop it in the end: the protocol promises no more.

    Ends when the broker ends it; raises ConnectionLost where the connection broke or the broker cut it off.
    """

    def __init__(
        self,
        stream_name: str,
        connection: QuicConnection,
        quic: QuicStream,
        decoder: FrameDecoder,
        events: Iterable[FelixEvent],
        on_closed: Callable[[AsyncSubscription], object],
    ) -> None:
        """`events` is what has come on the stream already. `on_closed` is called once the subscription is over."""
        self.stream: str = stream_name
        self._connection = connection
        self._quic = quic
        self._decoder = decoder
        self._on_closed = on_closed
        self._events: deque[FelixEvent] = deque(events)
        self._closed = False

    async def next(self, timeout_s: float | None = None) -> FelixEvent | None:
        """Return the next event; None if none comes in time, or if the subscription has ended."""
        events = await self.next_batch(1, timeout_s)
        return events[0] if events else None

    async def next_batch(self, max_records: int = BATCH_RECORDS, timeout_s: float | None = None) -> list[FelixEvent]:
        """Return the events that have arrived, up to `max_records`, waiting for the first.

        The list is empty if none comes in time, or if the subscription has ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self._events:
                    if self._closed or not await self._read():
                        return []
        except TimeoutError:
            return []
        return [self._events.popleft() for _ in range(min(max_records, len(self._events)))]

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
        try:
            data = await self._quic.read()
            for frame in self._decoder.feed(data):
                self._events += _events_of(self.stream, frame)
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


async def subscribe(
    connection: QuicConnection, auth: Auth, request: Subscribe, on_closed: Callable[[AsyncSubscription], object]
) -> AsyncSubscription:
    """Ask for a subscription, and wait for the stream that the broker opens for it. Raises what the broker refuses with."""
    await _ask(connection, auth, request)
    stream = await connection.accept_stream()
    decoder = FrameDecoder()
    frames: list[Frame] = []
    while not frames:
        data = await stream.read()
        if not data:
            raise ConnectionLost("the broker ended a stream that it had just opened")
        frames = decoder.feed(data)
        if decoder.violation is not None:
            raise decoder.violation
    if not isinstance(decode_reply(frames[0]), EventStreamHello):
        raise ProtocolViolation("the broker opened a stream and did not say for which subscription")
    events = [event for frame in frames[1:] for event in _events_of(request.stream, frame)]
    return AsyncSubscription(request.stream, connection, stream, decoder, events, on_closed)


def _events_of(stream_name: str, frame: Frame) -> list[FelixEvent]:
    reply = decode_reply(frame)
    if isinstance(reply, Event):
        return [FelixEvent(stream_name, reply.payload, reply.offset if isinstance(reply.offset, int) else None)]
    if not isinstance(reply, Events | EventBatch):
        raise ProtocolViolation(f"{type(reply).__name__} does not belong on a stream of events")
    base = reply.base_offset
    if not isinstance(base, int):
        return [FelixEvent(stream_name, value) for value in reply.payloads]
    return [FelixEvent(stream_name, value, offset) for offset, value in enumerate(reply.payloads, base)]


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
        raise ProtocolViolation(f"{type(subscribed).__name__} is not a reply to a subscribe")
