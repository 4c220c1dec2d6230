"""The async BlipMQ client.

The protocol answers a publish, an acknowledgement and a poll of an empty queue with silence. What is said here therefore ends with a
PING, and its PONG ends the answer: everything before it was handled, publishes and acknowledgements are on disk (a Penstock broker
waits for that), and there was no more to deliver. So a batch costs one round trip, and every failure is heard of.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from itertools import count
from random import Random
from typing import Final

import msgspec

from penstock.clients.arguments import chunks, values_of
from penstock.clients.options import ClientOptions
from penstock.clients.pipeline import Exchange, Pipeline
from penstock.clients.requests import OnLost
from penstock.clients.results import require_success
from penstock.clients.retry import Sleep
from penstock.clients.tcp import TcpClient
from penstock.clients.url import parse_tcp_url
from penstock.clock import Clock
from penstock.errors import (
    AuthenticationFailed,
    EntryNotFound,
    InvalidRequest,
    NotSupported,
    PenstockError,
    ProtocolViolation,
    ServerError,
)
from penstock.protocols.blipmq import codec
from penstock.protocols.blipmq.codec import Decoder, Frame
from penstock.protocols.blipmq.wire import PROTOCOL_VERSION, FrameType, NackCode

SCHEMES: Final = ("blipmq", "blipmqs")
PORT: Final = 5555
VALUES_ALONE: Final = "BlipMQ messages have neither keys nor headers: send values alone"
POLL_RECORDS_MAX: Final = 256
"""Records that `records` asks for at a time, at most: it begins with one and asks for more while the loop over them is fast."""
FAST_S: Final = 0.02
"""Brokers take deliveries back after 100 ms unless told otherwise; a batch that takes longer than this is halved."""
POLL_PAUSE_S: Final = 0.02
# Correlation ids of ours are above every delivery tag, which answers may carry instead.
_FIRST_ID: Final = 1 << 62

_ERRORS: Final[dict[int, type[PenstockError]]] = {
    NackCode.INVALID: InvalidRequest,
    NackCode.UNAUTHENTICATED: AuthenticationFailed,
    NackCode.UNKNOWN: EntryNotFound,
    NackCode.VERSION: NotSupported,
}


class Message(msgspec.Struct, frozen=True, gc=False):
    """One delivery. `tag` acknowledges it; None with QoS 0, which needs no acknowledgement."""

    topic: str
    value: bytes
    qos: int
    tag: int | None


class _Exchange(Exchange[Frame]):
    """Frames written together, and the replies up to the one to the last of them."""

    __slots__ = ("answers", "last_id")

    def __init__(self, data: bytes, last_id: int, *, timeout_s: float, repeatable: bool) -> None:
        super().__init__(data, replies=1, timeout_s=timeout_s, repeatable=repeatable)
        self.last_id = last_id
        self.answers: list[Frame] = []

    def accept(self, message: Frame, first: int, count: int) -> None:
        if message.correlation_id == self.last_id and message.type != FrameType.PUBLISH:
            self.answers.append(message)
            return
        if message.type not in (FrameType.NACK, FrameType.PUBLISH, FrameType.ACK):
            raise ProtocolViolation(f"frame type {message.type:#04x} is not a reply to any request")
        self.answers.append(message)
        self.awaited += 1

    def begin_again(self) -> None:
        super().begin_again()
        self.awaited = 1
        self.answers = []


class _AnswerDecoder:
    """The codec's decoder as the pipeline wants it: every message is one frame."""

    def __init__(self) -> None:
        self._decoder = Decoder(runs=False)

    @property
    def violation(self) -> ProtocolViolation | None:
        return self._decoder.violation

    def feed(self, data: bytes) -> Sequence[Frame]:
        frames = []
        for message in self._decoder.feed(data):
            assert isinstance(message, Frame)
            frames.append(message)
        return frames


class AsyncBlipMQClient(TcpClient[Frame]):
    """A BlipMQ client for asyncio programs; the API key is the user of the address.

    ```python
    async with AsyncBlipMQClient("blipmq://dev-key@127.0.0.1:5555") as client:
        subscription = await client.subscribe("orders")
        await client.send("orders", b"one")
        async for message in client.records("orders", subscription=subscription):
            print(message.value)
    ```
    Records have neither keys nor offsets in this protocol. Errors are those of `penstock.errors`. One client serves any number of
    concurrent tasks of one event loop.
    """

    def __init__(
        self,
        url: str,
        *,
        tls: ssl.SSLContext | bool | None = None,
        options: ClientOptions | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        form = "blipmq://key@host:port, or blipmqs:// for TLS"
        address = parse_tcp_url(url, SCHEMES, protocol="BlipMQ", port=PORT, form=form)
        if address.user is None:
            raise InvalidRequest(
                f"{address} names no API key: write blipmq://key@host:port; penstock key create makes one"
            )
        super().__init__(address, tls, options, clock=clock, random=random, sleep=sleep)
        self._ids = count(_FIRST_ID)

    # -- producing -------------------------------------------------------------------------------------------------------

    async def send(self, topic: str, value: bytes, *, qos: int = 1) -> None:
        """Publish one message. With QoS 1 it is committed when this returns; with QoS 0 there is no acknowledgement."""
        _check_qos(qos)
        (error,) = await self._publish(topic, values_of([value], VALUES_ALONE), qos)
        if error is not None:
            raise error

    async def send_many(self, topic: str, values: Iterable[bytes], *, qos: int = 1) -> None:
        """Publish many messages, pipelined, in order.

        Raises the error if all failed for one reason; if some did, BatchFailed, whose `results` has the outcome of each.
        """
        _check_qos(qos)
        rows = values_of(values, VALUES_ALONE)
        results: list[PenstockError | None] = []
        for first, last in chunks(rows, 0):
            try:
                results += await self._publish(topic, rows[first:last], qos)
            except PenstockError as error:
                results += [error] * (len(rows) - first)
                break
        require_success(results)

    async def _publish(self, topic: str, values: Sequence[bytes], qos: int) -> list[PenstockError | None]:
        ids = [next(self._ids) for _ in values]
        frames = [codec.encode_publish(each, qos, topic, value) for each, value in zip(ids, values, strict=True)]
        refused = {frame.correlation_id: _error_of(frame) for frame in await self._exchange(frames, repeatable=False)}
        return [refused.get(each) for each in ids]

    # -- reading ---------------------------------------------------------------------------------------------------------

    async def subscribe(self, topic: str, *, qos: int = 1) -> int:
        """Create a subscription to messages published from now on; return its number. It outlives this connection."""
        _check_qos(qos)
        request_id = next(self._ids)
        exchange = _Exchange(
            codec.encode_subscribe(request_id, topic, qos),
            request_id,
            timeout_s=self._options.request_timeout_s,
            repeatable=False,
        )
        await self._requests.perform(exchange)
        (answer,) = exchange.answers
        if answer.type == FrameType.NACK:
            raise _error_of(answer)
        return codec.parse_id(answer.payload) or 0

    async def poll(self, subscription: int, max_records: int = 1) -> list[Message]:
        """Return the next messages of a subscription, up to a bound. Acknowledge those with a tag."""
        return await self._poll(subscription, max_records, ())

    async def ack(self, subscription: int, *tags: int) -> None:
        """Acknowledge deliveries. Raises EntryNotFound if one is not in flight: unknown, or requeued."""
        answers = await self._exchange([codec.encode_ack(tag, subscription) for tag in tags], repeatable=False)
        for answer in answers:
            raise _error_of(answer)

    async def records(
        self,
        topic: str,
        *,
        subscription: int | None = None,
        qos: int = 1,
        follow: bool = False,
        limit: int | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Iterate over messages, acknowledging each batch when the next is polled.

        Without a `subscription` a new one is created, for messages published from now on. Without `follow` the iteration ends when
        there is nothing to deliver; with it, it waits for more. `limit` is the maximum number of messages.
        """
        number = await self.subscribe(topic, qos=qos) if subscription is None else subscription
        asked, handed_out = 1, 0
        done: list[int] = []
        try:
            while limit is None or handed_out < limit:
                wanted = asked if limit is None else min(asked, limit - handed_out)
                batch = await self._poll(number, wanted, done)
                done = []
                if not batch and not follow:
                    return
                if not batch:
                    await self._sleep(POLL_PAUSE_S)
                started_s = self._clock.monotonic()
                for message in batch:
                    handed_out += 1
                    yield message
                    if message.tag is not None:
                        done.append(message.tag)
                fast = self._clock.monotonic() - started_s < FAST_S
                asked = min(asked * 2, POLL_RECORDS_MAX) if fast else max(asked // 2, 1)
        finally:
            if done:
                await self._exchange([codec.encode_ack(tag, number) for tag in done], repeatable=False)

    async def _poll(self, subscription: int, max_records: int, done: Sequence[int]) -> list[Message]:
        """Acknowledge what is done and ask for more, in one go. An acknowledgement that came too late means a second delivery."""
        frames = [codec.encode_ack(tag, subscription) for tag in done]
        frames += [codec.encode_poll(next(self._ids), subscription) for _ in range(max_records)]
        messages = []
        for answer in await self._exchange(frames, repeatable=not done):
            if answer.type == FrameType.PUBLISH:
                messages.append(_message(answer))
            elif answer.correlation_id >= _FIRST_ID:
                raise _error_of(answer)
        return messages

    # -- the connection --------------------------------------------------------------------------------------------------

    async def ping(self) -> float:
        """Ask for nothing and return how long the answer took, in seconds."""
        started_s = self._clock.monotonic()
        await self._exchange([], repeatable=True)
        return self._clock.monotonic() - started_s

    async def _exchange(self, frames: Sequence[bytes], *, repeatable: bool) -> list[Frame]:
        """What was answered before the PONG of a PING behind the frames."""
        last_id = next(self._ids)
        exchange = _Exchange(
            b"".join((*frames, codec.encode_ping(last_id))),
            last_id,
            timeout_s=self._options.request_timeout_s,
            repeatable=repeatable,
        )
        await self._requests.perform(exchange)
        last = exchange.answers.pop()
        if last.type == FrameType.NACK:
            raise _error_of(last)
        return exchange.answers

    def _new_pipeline(self, peer: str, on_lost: OnLost[Frame]) -> Pipeline[Frame]:
        return Pipeline(peer, _AnswerDecoder(), _one, on_lost)

    async def _log_in(self, pipeline: Pipeline[Frame]) -> None:
        for encode in (self._encode_hello, self._encode_auth):
            request_id = next(self._ids)
            exchange = _Exchange(
                encode(request_id), request_id, timeout_s=self._options.connect_timeout_s, repeatable=False
            )
            pipeline.submit(exchange)
            await exchange.finished
            (answer,) = exchange.answers
            if answer.type == FrameType.NACK:
                raise _error_of(answer)

    def _encode_hello(self, request_id: int) -> bytes:
        return codec.encode_hello(request_id, PROTOCOL_VERSION)

    def _encode_auth(self, request_id: int) -> bytes:
        return codec.encode_auth(request_id, self.address.user or "")


def _one(_: Frame) -> int:
    return 1


def _message(frame: Frame) -> Message:
    parsed = codec.parse_publish(frame.payload)
    if parsed is None:
        raise ProtocolViolation("a delivery is malformed")
    qos, topic, value = parsed
    return Message(topic, value, qos, frame.correlation_id if qos else None)


def _error_of(frame: Frame) -> PenstockError:
    parsed = codec.parse_nack(frame.payload) if frame.type == FrameType.NACK else None
    if parsed is None:
        return ProtocolViolation(f"frame type {frame.type:#04x} is no answer to what was asked")
    code, reason = parsed
    return _ERRORS.get(code, ServerError)(reason)


def _check_qos(qos: int) -> None:
    if qos not in (0, 1):
        raise InvalidRequest(f"QoS {qos} does not exist: use 0 (at most once) or 1 (at least once)")
