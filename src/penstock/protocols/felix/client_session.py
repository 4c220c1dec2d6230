"""What a client has open on one connection: a stream for publishing, one for the cache, and one of the broker's for each subscription."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Self

from penstock.clients.quic import QuicConnection, QuicStream
from penstock.errors import ConnectionLost, OffsetOutOfRange, PenstockError, ProtocolViolation
from penstock.protocols.felix.answers import error_of
from penstock.protocols.felix.codec import FrameDecoder, Reply, decode_reply, encode_message
from penstock.protocols.felix.lanes import Lane
from penstock.protocols.felix.messages import Auth, AuthOk, Error, Ok, Subscribe, SubscribeCursorError, Subscribed
from penstock.protocols.felix.subscription import Greeted, greet


class ClientSession:
    """Made by `begin`. It is of use as long as all of it is."""

    def __init__(self, connection: QuicConnection, auth: Auth) -> None:
        self.connection = connection
        self.publishing = Lane()
        self.caching = Lane()
        self._auth = auth
        self._subscription_ids = count(1)
        self._awaited: dict[int, asyncio.Future[Greeted]] = {}
        """Subscriptions that were asked for and whose streams have not come, by id."""
        self._greetings: set[asyncio.Task[None]] = set()
        connection.on_stream = self._opened
        connection.on_lost = self._lost

    @classmethod
    async def begin(cls, connection: QuicConnection, auth: Auth) -> Self:
        """Raises AuthenticationFailed."""
        session = cls(connection, auth)
        await asyncio.gather(session.publishing.begin(connection, auth), session.caching.begin(connection, auth))
        return session

    @property
    def is_usable(self) -> bool:
        return self.connection.loss is None and self.publishing.failure is None and self.caching.failure is None

    async def finish(self) -> None:
        """Ask no more, wait for what was asked before, then hang up."""
        try:
            await asyncio.gather(self.publishing.finish(), self.caching.finish())
        finally:
            self.close()
            await self.connection.wait_closed()

    def close(self) -> None:
        for task in list(self._greetings):
            task.cancel()
        self.connection.close()

    # -- subscribing -----------------------------------------------------------------------------------------------------

    async def subscribe(self, request: Subscribe) -> Greeted:
        """The stream on which events come. Who stops waiting for it has no subscription: its stream is refused when it comes."""
        id_ = next(self._subscription_ids)
        request.subscription_id = id_
        greeted: asyncio.Future[Greeted] = asyncio.get_running_loop().create_future()
        self._awaited[id_] = greeted
        try:
            await self._ask(request, id_)
            return await greeted
        except BaseException:
            if greeted.done() and not greeted.cancelled() and greeted.exception() is None:
                greeted.result().stream.stop_receiving()
            raise
        finally:
            del self._awaited[id_]

    async def _ask(self, request: Subscribe, id_: int) -> None:
        """The stream that asks says who it is, asks, and ends."""
        asking = await self.connection.open_stream_when_allowed()
        await asking.write(encode_message(self._auth) + encode_message(request), end=True)
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
        if not isinstance(welcome, Ok | AuthOk) or subscribed != Subscribed(subscription_id=id_):
            raise ProtocolViolation(f"{subscribed} is no answer to subscription {id_}")

    def _opened(self, stream: QuicStream) -> None:
        task = asyncio.get_running_loop().create_task(self._greet(stream))
        self._greetings.add(task)
        task.add_done_callback(self._greetings.discard)

    async def _greet(self, stream: QuicStream) -> None:
        try:
            greeted = await greet(stream)
        except PenstockError:
            stream.stop_receiving()
            return
        awaited = self._awaited.get(greeted.id)
        if awaited is None or awaited.done():  # nobody waits for it any more
            stream.stop_receiving()
        else:
            awaited.set_result(greeted)

    def _lost(self, loss: ConnectionLost) -> None:
        self.publishing.fail(loss)
        self.caching.fail(loss)
        for awaited in self._awaited.values():
            if not awaited.done():
                awaited.set_exception(loss)
                awaited.exception()  # whoever asked may be waiting for the answer still
