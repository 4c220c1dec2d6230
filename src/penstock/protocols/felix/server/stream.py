"""One stream of a Felix client: frames in, answers out in the order of what they answer, and nothing of sockets.

Publishes are started without waiting for one another's commit (`publishing`, `penstock.protocols.conversation`). A subscription waits
until what its stream published is committed, so that nobody subscribes to their own past; it then lives on a stream that we open, and
this one may end before it. Everything else is answered at once, though an answer leaves only after those in front of it; how much may
wait so is bounded.

There are two dialects, the contract's (spec) and that of deployed clients (native). Unless the listener says which, a request is native
if `auth` was said on its stream, of which the contract knows nothing, or if it carries an integer id and the whole scope, as no request of
the contract does; otherwise it follows the contract. Whatever id came is given back as it came.

Overload stops the reading of the stream (`hold`). A broken frame header ends the connection; everything else is answered with an error
and continues, also an exception that is a bug of ours. A stream on which we cannot answer is for publishing: it is stopped where it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, get_args

import structlog
from msgspec import UNSET

from penstock.errors import InvalidRequest, PenstockError, ProtocolViolation
from penstock.log.api import follow_all
from penstock.net.quic_session import QuicConnection, Stream
from penstock.protocols.conversation import REQUEST_BYTES_MIN, Conversation
from penstock.protocols.felix.codec.frames import Frame, FrameDecoder, decode_request, encode_message
from penstock.protocols.felix.codec.messages import (
    Auth,
    AuthOk,
    BadRequest,
    BinaryPublish,
    CacheDelete,
    CacheGet,
    CachePut,
    Error,
    FromClient,
    GroupAck,
    GroupNack,
    GroupPoll,
    Id,
    Ok,
    Publish,
    PublishBatch,
    Request,
    StreamShards,
    StreamShardsView,
    Subscribe,
    Subscribed,
)
from penstock.protocols.felix.codec.scopes import Scope, check_shard
from penstock.protocols.felix.errors import (
    INTERNAL,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Refusal,
    code_of,
    refusal,
)
from penstock.protocols.felix.server import caching, grouping
from penstock.protocols.felix.server.acknowledging import acknowledgement, binary_acknowledgement, encode_refusal
from penstock.protocols.felix.server.publishing import Publisher
from penstock.protocols.felix.server.shared import Shared
from penstock.protocols.felix.server.stats import FelixStats
from penstock.protocols.felix.server.subscribing import BadCursor, Subscriptions
from penstock.protocols.felix.wire import (
    CLOSE_PROTOCOL_ERROR,
    ERROR_CODES,
    FEATURES,
    HEADER_BYTES,
    LOGIN_PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MAX,
    PUBLISH_PIPELINE,
    PUBLISH_WINDOW,
    SUPPORTED,
)

REQUESTS_PER_TURN_MAX: Final = 256
"""Requests that one stream decodes and starts before it lets others have their turn of the loop."""
KEPT_BACK_BYTES_MAX: Final = 1 << 20
"""Replies that wait for those of publishes; further requests wait for the commits first."""
ANSWER_BYTES: Final = 150
"""What an answer that waits takes in memory besides its bytes."""

_NAMES: Final[dict[type, str]] = {
    **{kind: str(kind.__struct_config__.tag) for kind in get_args(FromClient)},
    BinaryPublish: "publish_binary",
    BadRequest: "malformed",
}
"""What requests are counted as."""

Answering = Coroutine[Any, Any, bytes]

log = structlog.get_logger(__name__)


class FelixStream(Conversation[Frame]):
    """Implements `penstock.net.quic_session.StreamSession`."""

    __slots__ = (
        "_claims",
        "_client_flags",
        "_ended",
        "_identity",
        "_kept_back_bytes",
        "_muted",
        "_next",
        "_on_closed",
        "_one_way",
        "_poll",
        "_publisher",
        "_quic",
        "_said_auth",
        "_said_who",
        "_shared",
        "_stopping",
        "_stream",
        "_subscriptions",
        "_with_codes",
    )

    _decoder: FrameDecoder
    _stats: FelixStats

    def __init__(
        self,
        shared: Shared,
        connection: QuicConnection,
        subscriptions: Subscriptions,
        claims: grouping.Claims,
        stream: Stream,
        *,
        on_closed: Callable[[FelixStream], object],
    ) -> None:
        super().__init__(shared.broker, stream, FrameDecoder(frames_max=REQUESTS_PER_TURN_MAX), shared.stats)
        self._shared = shared
        self._quic = connection
        self._subscriptions = subscriptions
        self._claims = claims
        self._stream = stream
        self._on_closed = on_closed
        self._publisher = Publisher(
            shared,
            stream,
            reserve=self.reserve,
            answer=self.answer,
            refusal_of=self._refusal_of,
            on_committed=self._go_on_after_commit,
        )
        self._next: Request | None = None
        """What the first waiting frame says, where it was looked into and had to wait."""
        self._kept_back_bytes = 0
        """Answers to other requests than publishes, since those were last all committed."""
        self._identity = shared.identities.anonymous(stream.peer, stream.principal_hint)
        self._said_auth = False
        """Whether somebody logs in here, with or without success: a client that does is a deployed one."""
        self._said_who = False
        self._client_flags: int | None = None
        self._with_codes = False
        """Whether the client has said that it reads error codes."""
        self._poll: grouping.Poll | None = None
        """The poll that is not answered yet; there is one at most, because later requests wait."""
        self._stopping = False
        self._ended = False
        self._one_way = not stream.can_send
        self._muted = self._one_way
        if shared.login_required and not self._identity.principal.name:
            self._decoder.payload_bytes_max = LOGIN_PAYLOAD_BYTES_MAX
        stream.set_authenticated(bool(self._identity.principal.name))

    # --- what the network calls ---

    def ended(self) -> None:
        self._ended = True
        self.advance()

    def aborted(self, code: int) -> None:
        self._muted = True
        self._stop_polling()

    def closed(self) -> None:
        self._muted = True
        self._stop_polling()
        self._on_closed(self)
        self._next = None
        super().closed()

    def finish(self) -> None:
        """The broker stops: answer what is here, take nothing more."""
        self._stopping = True
        self._stop_polling()
        self._stream.close()

    # --- the order of requests ---

    def _decode(self, data: bytes) -> None:
        try:
            super()._decode(data)
        except ProtocolViolation as violation:
            self._stats.errors += 1
            log.info("connection_refused", peer=self._stream.peer, reason=str(violation))
            self._quic.close(CLOSE_PROTOCOL_ERROR, str(violation))

    def _held_bytes(self, frame: Frame) -> int:
        return max(HEADER_BYTES + len(frame.payload), REQUEST_BYTES_MIN)

    def advance(self) -> None:
        if not self._publisher.in_flight:
            self._kept_back_bytes = 0
        waiting = self._waiting
        while waiting and not self._busy and (self._muted or self._stream.writable):
            if self._must_wait(waiting[-1]):
                break
            frame = waiting.pop()
            if self._waiting_behind and not waiting:
                self._refill()
            self._start(frame)
        if self._publisher.gathered is not None:
            self._publisher.write_gathered()
        if self._ready:
            self.flush()
        if self._backlog_bytes and not waiting:
            self.advance_soon()
        elif self._ended and not (self._muted or waiting or self._busy or self._publisher.in_flight):
            self._end()

    def _must_wait(self, frame: Frame) -> bool:
        """Return whether a request waits for the commits of what its stream published before."""
        if self._next is None:
            self._next = decode_request(frame)
        if isinstance(self._next, Subscribe) or self._kept_back_bytes > KEPT_BACK_BYTES_MAX:
            self._publisher.write_gathered()
            return self._publisher.in_flight > 0
        return False

    def _go_on_after_commit(self) -> None:
        if self._publisher.in_flight or self._busy:
            self.flush_soon()
        else:
            self.advance()

    def _end(self) -> None:
        """End our side: the peer has ended its own, and everything is answered."""
        if self._decoder.payload_begun:
            self.answer(self.reserve(0), self._error(Refusal("the stream ended inside a frame", INVALID_REQUEST)))
            self.flush()
        self._muted = True
        self._stream.end()

    # --- who asks for what ---

    def _start(self, frame: Frame) -> None:
        request, self._next = self._next, None
        assert request is not None, "a request is decoded when it is asked whether it must wait"
        held_bytes = self._held_bytes(frame)
        self._stats.requests[_NAMES[type(request)]] += 1
        if self._identity.key_digest is not None and not self._shared.identities.holds(self._identity):  # revoked since
            self._identity = self._shared.identities.anonymous(self._stream.peer, self._stream.principal_hint)
        if isinstance(request, Publish | PublishBatch | BinaryPublish):
            if isinstance(request, BinaryPublish) and request.request_id is not None:
                ack = binary_acknowledgement(request.request_id, self._client_flags, with_code=self._with_codes)
            else:
                ack = acknowledgement(
                    request,
                    native=self._is_native(request.request_id),
                    client_flags=self._client_flags,
                    with_code=self._with_codes,
                )
            work = self._publisher.publish(request, self._identity, ack, held_bytes)
            if work is not None:
                self.in_background(work)
            return
        slot = self.reserve(held_bytes)
        if self._one_way and not isinstance(request, Auth):
            self._stats.errors += 1
            self._stream.stop_receiving(CLOSE_PROTOCOL_ERROR)
            self._forget_waiting()
            self.answer(slot, b"")
            return
        try:
            reply = self._reply(request)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._failed(request, error)
        if isinstance(reply, bytes):
            if isinstance(request, CacheGet) and not (self._muted or self._has_room_for(reply)):
                self._next = request
                self._requeue(frame, slot)
                return
            self._kept_back_bytes += len(reply) + ANSWER_BYTES
            self.answer(slot, reply)
        else:
            self._answer_later(frame, slot, self._guarded(request, reply))

    def _reply(self, request: Any) -> bytes | Answering:
        """The answer, or what will come to it."""
        if isinstance(request, CacheGet | CachePut | CacheDelete):
            return self._cache(request)
        if isinstance(request, Auth):
            return self._auth(request)
        if isinstance(request, Subscribe):
            return self._subscribe(request)
        if isinstance(request, GroupPoll):
            self._poll = grouping.Poll(self._shared, self._identity, self._claims, request)
            if self._muted or self._stopping:
                self._poll.stop()
            return self._poll.answer()
        if isinstance(request, GroupAck | GroupNack):
            return grouping.settle(self._shared, self._identity, self._claims, request)
        if isinstance(request, StreamShards):
            return self._stream_shards(request)
        return self._malformed(request)

    async def _guarded(self, request: Any, work: Answering) -> bytes:
        try:
            return await work
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            return self._failed(request, error)
        finally:
            self._poll = None

    def _stop_polling(self) -> None:
        if self._poll is not None:
            self._poll.stop()

    def _cache(self, request: CacheGet | CachePut | CacheDelete) -> bytes:
        native = self._is_native(request.request_id, caching.names_whole_scope(request))
        if isinstance(request, CacheGet):
            return caching.get(self._shared, self._identity, request, native=native)
        if isinstance(request, CachePut):
            return caching.put(self._shared, self._identity, request, native=native)
        return caching.delete(self._shared, self._identity, request, native=native)

    def _is_native(self, id_: Id, whole_scope: bool = True) -> bool:
        dialect = self._shared.dialect
        if dialect == "auto":
            return self._said_auth or (isinstance(id_, int) and whole_scope)
        return dialect == "native"

    def _auth(self, request: Auth) -> bytes:
        self._said_auth = True
        if self._said_who:
            raise InvalidRequest("auth already established on this stream")
        if isinstance(request.client_features, int):
            self._with_codes = bool(request.client_features & ERROR_CODES)
        anonymous = self._shared.identities.anonymous(self._stream.peer, self._stream.principal_hint)
        self._identity = self._shared.identities.authenticate(request.tenant_id, request.token, anonymous)
        self._said_who = True
        self._stream.set_authenticated(True)
        self._decoder.payload_bytes_max = PAYLOAD_BYTES_MAX
        if not isinstance(request.client_flags, int):
            return encode_message(Ok())
        self._client_flags = request.client_flags
        welcome = AuthOk(server_flags=SUPPORTED)
        if isinstance(request.client_features, int):
            welcome.server_features = FEATURES
            if request.client_features & PUBLISH_PIPELINE:
                welcome.publish_window = PUBLISH_WINDOW
        return encode_message(welcome)

    # --- subscribing ---

    def _stream_shards(self, request: StreamShards) -> bytes:
        """Always one: a subscription reads all partitions. The same for streams that do not exist, so it needs no access check."""
        self._shared.topic(self._identity, Scope(request.tenant_id, request.namespace, request.stream))
        return encode_message(StreamShardsView(shards=1, request_id=request.request_id))

    def _subscribe(self, request: Subscribe) -> bytes | Answering:
        check_shard(request.shard)
        scope = Scope(request.tenant_id, request.namespace, request.stream)
        topic = self._shared.topic(self._identity, scope)
        broker, principal = self._shared.broker, self._identity.principal
        if self._shared.auto_create and not broker.topics.exists(topic):
            return self._create_and_subscribe(request, scope, topic)
        if not all(partition.followed for partition in broker.records.readable_topic(principal, topic).partitions):
            return self._follow_and_subscribe(request, scope, topic)
        return self._subscribed(request, scope, topic)

    async def _create_and_subscribe(self, request: Subscribe, scope: Scope, topic: str) -> bytes:
        await self._shared.broker.topics.ensure(self._identity.principal, topic)
        return await self._follow_and_subscribe(request, scope, topic)

    async def _follow_and_subscribe(self, request: Subscribe, scope: Scope, topic: str) -> bytes:
        await follow_all(self._shared.broker.records.readable_topic(self._identity.principal, topic).partitions)
        return self._subscribed(request, scope, topic)

    def _subscribed(self, request: Subscribe, scope: Scope, topic: str) -> bytes:
        given, request_id = request.subscription_id, _known(request.request_id)
        native = self._is_native(given if isinstance(given, int) else request_id)
        try:
            opened = self._subscriptions.open(
                request, self._identity, scope, topic, native=native, client_flags=self._client_flags
            )
        except BadCursor as bad:
            if not native:
                return self._error(Refusal(str(bad), INVALID_REQUEST), request_id)
            self._stats.errors += 1
            bad.answer.request_id = request_id
            return encode_message(bad.answer)
        if native:
            return encode_message(
                Subscribed(
                    subscription_id=opened.id,
                    request_id=request_id,
                    start_offset=opened.start_offset,
                    live_offset=opened.live_offset,
                )
            )
        return encode_message(Ok(request_id=request_id))

    # --- what went wrong ---

    def _malformed(self, request: BadRequest) -> bytes:
        if request.binary:
            assert isinstance(request.request_id, int)
            self._stats.errors += 1
            ack = binary_acknowledgement(request.request_id, self._client_flags, with_code=self._with_codes)
            return ack.error(Refusal(request.text, INVALID_REQUEST))
        return self._error(Refusal(request.text, INVALID_REQUEST), request.request_id)

    def _refusal(self, frame: Frame, error: Exception) -> bytes:
        return self._error(self._refusal_of(error))

    def _failed(self, request: Any, error: Exception) -> bytes:
        scope = None
        if isinstance(request, Subscribe | GroupPoll | GroupAck | GroupNack):
            scope = Scope(request.tenant_id, request.namespace, request.stream)
        return self._error(self._refusal_of(error, scope), getattr(request, "request_id", UNSET))

    def _error(self, refused: Refusal, request_id: Id = UNSET) -> bytes:
        self._stats.errors += 1
        return encode_refusal(Error, _known(request_id), refused, with_code=self._with_codes)

    def _refusal_of(self, error: Exception, scope: Scope | None = None) -> Refusal:
        if isinstance(error, PenstockError):
            return Refusal(refusal(error, scope), code_of(error))
        self._log_bug(error)
        return Refusal(INTERNAL, INTERNAL_ERROR)


def _known(id_: Id) -> Id:
    """Treat a null id as absent."""
    return UNSET if id_ is None else id_
