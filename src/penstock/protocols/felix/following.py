"""Felix on one of several nodes: publishes and subscriptions are served by the node that the client is connected to. Requests of consumer
groups are passed on, one by one, to the node that owns the shard of the stream, those of the cache to the node that leads.

A client finds what it has published: the other node looks for that before it answers a poll. A topic that is not known here may have
been created on another node a moment ago, so this one catches up before it says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

from penstock.errors import LimitExceeded, OutcomeUnknown, PenstockError
from penstock.net.quic_session import QuicConnection, Stream, StreamSession
from penstock.net.session import Connection, Introduction
from penstock.protocols.conversation import ReplySlot
from penstock.protocols.felix.codec.frames import Frame, encode_message
from penstock.protocols.felix.codec.messages import (
    BinaryPublish,
    CacheDelete,
    CacheGet,
    CachePut,
    GroupAck,
    GroupNack,
    GroupPoll,
    Publish,
    PublishBatch,
    Subscribe,
)
from penstock.protocols.felix.codec.scopes import Scope
from penstock.protocols.felix.server.grouping import Claims
from penstock.protocols.felix.server.identities import Identity
from penstock.protocols.felix.server.shared import Shared
from penstock.protocols.felix.server.stream import Answering, FelixStream
from penstock.protocols.felix.server.subscribing import Subscriptions
from penstock.protocols.felix.session import Felix, FelixConnection
from penstock.protocols.felix.wire import PAYLOAD_BYTES_MAX
from penstock.protocols.node_link import DialNode, introduced_key, introduced_principal, introduction_of
from penstock.protocols.stream_link import Kind, LinkedSession, LinkedSessions, StreamLink

Led = CacheGet | CachePut | CacheDelete | GroupPoll | GroupAck | GroupNack


class NodeFelix:
    """Makes the sessions of one of several nodes: of connections to it, and of streams that other nodes speak for."""

    def __init__(self, felix: Felix, dial_node: DialNode) -> None:
        self.stats = felix.stats
        self.linked = LinkedSessions()
        self._shared = felix.shared
        self._dial_node = dial_node

    def __call__(self, connection: QuicConnection) -> FelixConnection:
        return FelixConnection(self._shared, connection, partial(FollowingStream, self._dial_node))

    def introduced(self, connection: Connection, introduction: Introduction) -> LinkedSession:
        """Open a session for a client of another node."""
        identity = Identity(introduced_principal(introduction), introduction.tenant, introduced_key(introduction))
        is_native = bool(introduction.native)
        begin = partial(
            IntroducedStream, self._shared, connection, identity, is_native=is_native, with_codes=introduction.codes
        )
        return self.linked.open(connection, begin)


class FollowingStream(FelixStream):
    """Of a client that is connected to a node of several."""

    __slots__ = ("_answered", "_asked", "_asked_of", "_dial", "_ending", "_links", "_links_of", "_looked_for")

    def __init__(self, dial: DialNode, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._dial = dial
        self._links: dict[int | None, StreamLink] = {}
        """By shard; None for the node that leads. Made when they are needed, for one identity and form of answers."""
        self._links_of: tuple[Identity, bool, bool] | None = None
        self._ending: StreamLink | None = None
        """The other node was told to answer the poll that is there, and takes nothing more."""
        self._asked_of: int | None = None
        self._asked: Led | None = None
        """What was passed on last, until it is answered."""
        self._answered: asyncio.Future[bytes] | None = None
        """Of the request that was passed on; there is one at most, because requests behind it wait."""
        self._looked_for: Frame | None = None
        """The request that this node has caught up for."""

    # --- what is served here ---

    @property
    def _is_refused(self) -> bool:
        """Whether the client must log in first, which any node can say."""
        return self._shared.login_required and not self._identity.principal.name

    def _is_served_here(self, shard: int | None) -> bool:
        return self._broker.leading.leads if shard is None else self._broker.subscriptions.owns(shard)

    def _shard_of(self, request: Led) -> int | None:
        if not isinstance(request, GroupPoll | GroupAck | GroupNack):
            return None
        topic = self._shared.scopes.topic(Scope(request.tenant_id, request.namespace, request.stream))
        return self._broker.subscriptions.shard_of(topic)

    def _start(self, frame: Frame) -> None:
        if self._looked_for is not frame and self._is_of_unknown_topic():
            self._publisher.write_gathered()
            self.in_background(self._catch_up_for(frame))
        else:
            self._looked_for = None
            super()._start(frame)

    def _is_of_unknown_topic(self) -> bool:
        request = self._next
        if not isinstance(request, Publish | PublishBatch | BinaryPublish | Subscribe | GroupPoll) or self._is_refused:
            return False
        try:
            topic = self._shared.scopes.topic(Scope(request.tenant_id, request.namespace, request.stream))
        except PenstockError:
            return False  # which its answer will say
        return not self._broker.topics.exists(topic)

    async def _catch_up_for(self, frame: Frame) -> None:
        try:
            with suppress(PenstockError):  # then it is answered with what is known
                await self._broker.leading.catch_up()
        finally:
            if self._worker.stopped:
                self._connection.release(self._held_bytes(frame))
            else:
                self._looked_for = frame
                self._waiting.append(frame)

    # --- what is passed on ---

    def _reply(self, request: Any) -> bytes | Answering:
        if isinstance(request, Led) and not self._is_refused:
            try:
                shard = self._shard_of(request)
            except PenstockError:
                return super()._reply(request)  # which says what is wrong with it
            if not self._is_served_here(shard):
                return self._ask_other(request, shard)
        return super()._reply(request)

    async def _ask_other(self, request: Led, shard: int | None) -> bytes:
        """Return the answer of the node that owns a shard, or that leads. Raises OutcomeUnknown if it is lost, or not reached."""
        links_of = self._identity, self._said_auth, self._with_codes
        if self._links_of != links_of:
            self._unlink_all()
            self._links_of = links_of
        link = self._links.get(shard)
        if link is None or link is self._ending:
            if link is not None:
                self._unlink(shard)
            introduction = introduction_of(
                "felix",
                self._identity.principal,
                native=self._said_auth,
                key_digest=self._identity.key_digest,
                tenant=self._identity.tenant_id,
                codes=self._with_codes,
                shard=shard,
            )
            link = self._links[shard] = StreamLink(
                self._stream,
                self._dial,
                introduction,
                answered=self._take_answer,
                ended=partial(self._link_ended, shard),
            )
        self._asked = request
        self._asked_of = shard
        self._answered = asyncio.get_running_loop().create_future()
        link.send(encode_message(request), 0)
        if self._muted or self._stopping:
            self._stop_polling()
        return await self._answered

    def _answer_read(self, message: Frame, slot: ReplySlot, reply: bytes) -> bool:
        asked, self._asked = self._asked, None
        if isinstance(asked, CacheGet) and not (self._muted or self._has_room_for(reply)):
            self._requeue(message, slot)
            return False
        return super()._answer_read(message, slot, reply)

    def _take_answer(self, data: bytes) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(data)

    def _link_ended(self, shard: int | None, _: bool = False) -> None:
        self._links.pop(shard, None)
        if self._asked_of == shard and self._answered is not None and not self._answered.done():
            self._answered.set_exception(
                OutcomeUnknown("no answer came from the node that was asked: look whether it was done, or ask again")
            )

    def closed(self) -> None:
        super().closed()
        self._unlink_all()

    def _stop_polling(self) -> None:
        super()._stop_polling()
        if not isinstance(self._asked, GroupPoll):
            return  # anything else does not wait, and is done though nobody may read the answer
        if self._muted:
            self._unlink(self._asked_of)
        elif self._asked_of in self._links:
            self._ending = self._links[self._asked_of]
            self._ending.tell(Kind.STOPPING)

    def _unlink(self, shard: int | None) -> None:
        link = self._links.get(shard)
        if link is not None:
            link.close()
            self._link_ended(shard)

    def _unlink_all(self) -> None:
        for shard in list(self._links):
            self._unlink(shard)


class IntroducedStream(FelixStream):
    """Of a client of another node, on the one that has what it asks for. What that node has committed may not be seen here yet."""

    __slots__ = ()

    def __init__(
        self,
        shared: Shared,
        connection: Connection,
        identity: Identity,
        stream: Stream,
        *,
        is_native: bool,
        with_codes: bool,
    ) -> None:
        quic = cast(QuicConnection, PeerConnection(connection))
        super().__init__(shared, quic, Subscriptions(shared, quic), Claims(), stream, on_closed=_forget)
        self._identity = identity
        self._said_auth = self._said_who = is_native
        self._with_codes = with_codes
        self._decoder.payload_bytes_max = PAYLOAD_BYTES_MAX
        stream.set_authenticated(True)

    def stop(self) -> None:
        self.finish()

    def _reply(self, request: Any) -> bytes | Answering:
        reply = super()._reply(request)
        if isinstance(request, GroupPoll) and not isinstance(reply, bytes):
            return self._show_and_answer(request, reply)
        return reply

    async def _show_and_answer(self, request: GroupPoll, answering: Answering) -> bytes:
        try:
            topic = self._shared.scopes.topic(Scope(request.tenant_id, request.namespace, request.stream))
            if not self._broker.topics.exists(topic):
                await self._broker.leading.catch_up()
            await self._broker.leading.refresh_ends([topic])
        except BaseException:
            answering.close()
            raise
        return await answering


class PeerConnection:
    """What stands for the QUIC connection of a client of another node: no stream can be opened on it from here."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def open_stream(self, begin: Callable[[Stream], StreamSession], *, one_way: bool = False) -> Stream:
        raise LimitExceeded("streams of a client are opened by the node that it is connected to")

    def close(self, code: int = 0, reason: str = "") -> None:
        self._connection.close()


def _forget(_: FelixStream) -> None:
    """Nobody keeps it."""
