"""A client's stream for requests: many in flight, each answer found by the id of its request.

Brokers may answer out of order, so ids tell. An error without an id belongs to the request that waits longest.
"""

from __future__ import annotations

import asyncio
from itertools import count

from penstock.clients.quic import QuicConnection, QuicStream
from penstock.errors import ConnectionLost, PenstockError, ProtocolViolation
from penstock.protocols.felix.client.answers import error_of
from penstock.protocols.felix.codec.binary import PublishAck
from penstock.protocols.felix.codec.frames import FrameDecoder, Reply, decode_reply, encode_message
from penstock.protocols.felix.codec.messages import (
    Auth,
    AuthOk,
    CacheOk,
    CacheValue,
    Error,
    Ok,
    PublishError,
    PublishOk,
)

_WITH_ID = PublishOk | PublishError | PublishAck | CacheOk | CacheValue | Error | Ok


class Lane:
    """One stream that has said who it is, once it has begun."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._ids = count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        """By request id; the login waits under 0."""
        self._stream: QuicStream | None = None
        self._posted = False
        """Whether anything was sent that is not answered."""
        self._over = asyncio.Event()
        self.failure: PenstockError | None = None
        """Why it is of no use any more."""

    async def begin(self, connection: QuicConnection, auth: Auth) -> None:
        """Raises AuthenticationFailed."""
        self._stream = await connection.open_stream_when_allowed(on_data=self._received)
        welcome = await self._answer_to(0, encode_message(auth))
        if not isinstance(welcome, Ok | AuthOk):
            raise _refusal(welcome)

    @property
    def stream(self) -> QuicStream:
        assert self._stream is not None
        return self._stream

    @property
    def is_idle(self) -> bool:
        """Whether everything that was sent is known to be carried out."""
        return not self._waiting and not self._posted

    def next_id(self) -> int:
        return next(self._ids)

    async def request(self, request_id: int, frame: bytes) -> Reply:
        """Send a frame and wait for its answer. Raises what the broker refuses with, and ConnectionLost."""
        reply = await self._answer_to(request_id, frame)
        if isinstance(reply, Error | PublishError) or (isinstance(reply, PublishAck) and reply.error is not None):
            raise _refusal(reply)
        return reply

    async def post(self, frame: bytes) -> None:
        """Send a frame that is not answered."""
        if self.failure is not None:
            raise self.failure
        self._posted = True
        await self.stream.write(frame)

    async def _answer_to(self, request_id: int, frame: bytes) -> Reply:
        if self.failure is not None:
            raise self.failure
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        # It stays there until it is answered, even if its caller is cancelled: the broker may still carry it out.
        self._waiting[request_id] = answered
        try:
            await self.stream.write(frame)
        except PenstockError:
            self._waiting.pop(request_id, None)
            raise
        return await answered

    def _received(self, data: bytes) -> None:
        if not data:
            self.fail(ConnectionLost("the broker ended the stream before it had answered"))
            return
        try:
            for frame in self._decoder.feed(data):
                self._settle(decode_reply(frame))
            if self._decoder.violation is not None:
                raise self._decoder.violation
        except ProtocolViolation as violation:
            self.fail(violation)

    def _settle(self, reply: Reply) -> None:
        if isinstance(reply, AuthOk):
            id_: object = 0
        elif isinstance(reply, _WITH_ID):
            id_ = reply.request_id
        else:
            raise ProtocolViolation(f"a broker does not answer requests with {type(reply).__name__}")
        if not isinstance(id_, int):
            id_ = next(iter(self._waiting), None)
        waiting = self._waiting.pop(id_, None) if isinstance(id_, int) else None
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def fail(self, error: PenstockError) -> None:
        """Nothing more is answered."""
        if self.failure is None:
            self.failure = error
        self._over.set()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(error)
                each.exception()  # the caller may have been cancelled

    async def finish(self) -> None:
        """Ask no more, and wait until the broker has carried out what it was sent: it answers, and then ends its side."""
        if self.failure is None:
            self.failure = ConnectionLost("this client is closed")
            if self.stream.can_send:
                self.stream.end()
            if self._waiting or self._posted:
                await self._over.wait()


def _refusal(reply: Reply) -> PenstockError:
    if isinstance(reply, Error | PublishError):
        return error_of(reply.message)
    if isinstance(reply, PublishAck) and reply.error is not None:
        return error_of(reply.error)
    return ProtocolViolation(f"{type(reply).__name__} is no answer to what was asked")
