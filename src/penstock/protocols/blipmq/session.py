"""One BlipMQ conversation: frames in, answers out in the order of what they answer, and nothing of sockets.

PUBLISH is started without waiting for the one before; nothing answers it unless it fails. A POLL or a SUBSCRIBE waits until what this
connection published is committed, so that a client finds its own message, or does not subscribe to its own past. A PING waits for its
publishes of QoS 1 and for its acknowledgements: PONG means that they are on disk. An ACK counts at once.

Overload stops the reading of the socket (`hold`); nothing is refused because there is much to do.

Bad framing ends the conversation; everything else is answered with a NACK and goes on, also an exception that is a bug of ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog

from penstock.broker.access.api_keys import CONFIGURED_KEY, DEFAULT_ROLES, Login, digest_of
from penstock.broker.access.checks import Principal
from penstock.broker.broker import Broker
from penstock.broker.deliveries.cursor import NOT_IN_MEMORY
from penstock.broker.deliveries.subscription import AT_LEAST_ONCE, AT_MOST_ONCE, QOS0_HEADERS, Delivery, Subscription
from penstock.broker.records.producer import ANY_PARTITION
from penstock.broker.records.spreading import Placement, Scattered, errors_by_row
from penstock.clock import Clock
from penstock.errors import AuthenticationFailed, InvalidRequest, PenstockError
from penstock.net.session import Connection
from penstock.protocols.blipmq import codec, wire
from penstock.protocols.blipmq.codec import Decoder, Frame, PublishRun
from penstock.protocols.blipmq.refusals import code_of
from penstock.protocols.blipmq.wire import FrameType, NackCode
from penstock.protocols.replies import ReplyQueue, ReplySlot
from penstock.protocols.turns import InTurns

MESSAGE_BYTES_MIN: Final = 256
"""What a waiting message counts for at least: a POLL takes 21 bytes on the wire, its message some 200 in memory."""
FRAMES_PER_TURN_MAX: Final = 256
"""Frames other than publishes that one session deals with before it lets others have their turn of the loop."""
SILENCE: Final = b""
_HELLO, _AUTH, _PUBLISH, _SUBSCRIBE, _ACK = (int(kind) for kind in list(FrameType)[:5])
_PING, _POLL = int(FrameType.PING), int(FrameType.POLL)

log = structlog.get_logger("penstock.protocols.blipmq")


@dataclass(slots=True)
class BlipMQStats:
    """What the sessions of one listener count; plain numbers, exported on scrape."""

    requests: list[int] = field(default_factory=lambda: [0] * (max(FrameType) + 1))
    """By frame type."""
    errors: int = 0
    """NACKs."""
    internal_errors: int = 0
    """Those of them that were our fault."""

    def requests_by_name(self) -> dict[str, int]:
        return {kind.name.lower(): self.requests[kind] for kind in FrameType if self.requests[kind]}


class BlipMQ:
    """What all sessions of one listener share. Called with a connection, it opens a session: it is the listener's factory."""

    def __init__(
        self, broker: Broker, *, clock: Clock, api_keys: Sequence[str] = (), message_ttl_ms: int | None = None
    ) -> None:
        """`api_keys` are accepted beside those that the broker keeps."""
        self.broker = broker
        self.clock = clock
        self.message_ttl_ms = message_ttl_ms
        self.stats = BlipMQStats()
        self._configured = frozenset(map(digest_of, api_keys))

    def authenticate(self, key: str, address: str) -> Login:
        """Raises AuthenticationFailed."""
        configured = Principal(CONFIGURED_KEY, frozenset(DEFAULT_ROLES), address=address)
        login = self.broker.api_keys.authenticate(
            key, address, lambda digest: configured if digest in self._configured else None
        )
        if login is None:
            raise AuthenticationFailed(wire.INVALID_API_KEY)
        return login

    def __call__(self, connection: Connection) -> BlipMQSession:
        return BlipMQSession(self, connection)


class BlipMQSession(InTurns):
    """Implements `penstock.net.session.Session`."""

    __slots__ = (
        "_acknowledged",
        "_broker",
        "_bug_logged",
        "_connection",
        "_decoder",
        "_greeted",
        "_key_digest",
        "_principal",
        "_qos1_in_flight",
        "_replies",
        "_shared",
        "_stats",
        "_subscriptions",
        "_waiting",
        "_writes_in_flight",
    )

    def __init__(self, shared: BlipMQ, connection: Connection) -> None:
        super().__init__()
        self._shared = shared
        self._broker = shared.broker
        self._subscriptions = shared.broker.subscriptions
        self._stats = shared.stats
        self._connection = connection
        self._decoder = Decoder(length_max=wire.LOGIN_LENGTH_MAX)
        self._replies = ReplyQueue(self._send, self._loop.call_soon)
        self._waiting: deque[Frame | PublishRun] = deque()
        self._greeted = False
        self._principal: Principal | None = None
        self._key_digest: bytes | None = None
        self._writes_in_flight = 0
        self._qos1_in_flight = 0
        self._acknowledged = False
        """Something that may not be on disk yet."""
        self._bug_logged = False
        connection.set_authenticated(False)

    # --- what the network calls ---

    def receive(self, data: bytes) -> None:
        if self._key_digest is not None and not self._broker.api_keys.is_valid(self._key_digest):
            self._principal = self._key_digest = None  # revoked since
            self._connection.set_authenticated(False)
            self._decoder.length_max = wire.LOGIN_LENGTH_MAX
        authenticated = self._principal is not None
        self._receive(data)
        if not authenticated and self._decoder.violation is None:
            self._receive(b"")  # a frame that was too large before the login is read after it
        self._connection.frame_pending(self._decoder.partial)
        if self._decoder.violation is not None:
            raise self._decoder.violation

    def _receive(self, data: bytes) -> None:
        messages = self._decoder.feed(data)
        if messages:
            self._connection.hold(sum(map(_held_bytes, messages)))
            self._waiting += messages
            self._advance()

    def resume(self) -> None:
        self._advance()

    def closed(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        if waiting:
            self._connection.release(sum(map(_held_bytes, waiting)))

    # --- the order of things ---

    def _advance(self) -> None:
        """Deal with what may be dealt with."""
        frames = 0
        while self._waiting and not self._busy and self._connection.writable:
            message = self._waiting[0]
            if isinstance(message, PublishRun):
                self._waiting.popleft()
                self._publish(message)
                continue
            if self._writes_in_flight and self._must_wait(message.type):
                break
            if frames == FRAMES_PER_TURN_MAX:
                self._advance_later()
                break
            frames += 1
            self._waiting.popleft()
            self._stats.requests[message.type] += 1
            self._deal_with(message)
        self._replies.flush()

    def _must_wait(self, kind: int) -> bool:
        return kind in (_POLL, _SUBSCRIBE) or (kind == _PING and self._qos1_in_flight > 0)

    def _answer(self, slot: ReplySlot, reply: bytes, held_bytes: int) -> None:
        self._replies.fill(slot, reply)
        self._connection.release(held_bytes)

    def _send(self, data: bytes) -> None:
        if data:
            self._connection.send(data)

    # --- publishing ---

    def _publish(self, run: PublishRun) -> None:
        self._stats.requests[_PUBLISH] += len(run.values)
        slot, held_bytes = self._replies.reserve(), _held_bytes(run)
        principal = self._principal
        if principal is None:
            nacks = [self._nack(each, NackCode.UNAUTHENTICATED, wire.UNAUTHENTICATED) for each in run.correlation_ids]
            self._answer(slot, b"".join(nacks), held_bytes)
        elif self._broker.has_topic(run.topic):
            self._write(principal, run, slot, held_bytes)
        else:
            self._in_background(
                self._create_and_write(principal, run, slot, held_bytes),
                partial(self._work_failed, run.correlation_ids, slot, held_bytes),
            )

    async def _create_and_write(self, principal: Principal, run: PublishRun, slot: ReplySlot, held_bytes: int) -> None:
        try:
            await self._broker.ensure_topic(principal, run.topic)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._answer(slot, self._publish_failed(run.correlation_ids, error), held_bytes)
        else:
            self._write(principal, run, slot, held_bytes)

    def _write(self, principal: Principal, run: PublishRun, slot: ReplySlot, held_bytes: int) -> None:
        self._writes_in_flight += 1
        self._qos1_in_flight += run.qos
        count, ttl_ms = len(run.values), self._shared.message_ttl_ms
        try:
            refused = self._broker.produce(
                principal,
                run.topic,
                ANY_PARTITION,
                run.values,
                headers=None if run.qos == AT_LEAST_ONCE else [QOS0_HEADERS] * count,
                expiries=None if ttl_ms is None else [self._shared.clock.now_ms() + ttl_ms] * count,
                done=partial(self._settle, run, slot, held_bytes),
            )
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._writes_in_flight -= 1
            self._qos1_in_flight -= run.qos
            self._answer(slot, self._publish_failed(run.correlation_ids, error), held_bytes)
        else:
            if run.qos == AT_MOST_ONCE and not refused:
                self._replies.fill(slot, SILENCE)  # answers behind it do not wait for the disk

    def _settle(self, run: PublishRun, slot: ReplySlot, held_bytes: int, placed: list[Placement] | Scattered) -> None:
        self._writes_in_flight -= 1
        self._qos1_in_flight -= run.qos
        if slot.data is not None:  # its place was given up when it was written
            slot = self._replies.reserve()
        errors = errors_by_row(placed, len(run.values))
        nacks = [self._publish_failed([run.correlation_ids[row]], error) for row, error in errors.items()]
        self._answer(slot, b"".join(nacks), held_bytes)
        if self._writes_in_flight:
            self._replies.flush_soon()
            if self._waiting and not self._qos1_in_flight:
                self._advance()
        else:
            self._advance()

    def _publish_failed(self, correlation_ids: Sequence[int], error: Exception) -> bytes:
        code, reason = self._reason(error, len(correlation_ids) - 1)
        if code == NackCode.INTERNAL:
            reason = wire.DURABLE_PUBLISH_FAILED + reason
        return b"".join([self._nack(each, code, reason) for each in correlation_ids])

    # --- everything else ---

    def _deal_with(self, frame: Frame) -> None:
        """One frame other than a sound publish: answered, or left to the background."""
        slot, held_bytes = self._replies.reserve(), _held_bytes(frame)
        try:
            reply = self._reply(frame, slot, held_bytes)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._nack(frame.correlation_id, *self._reason(error))
        if reply is not None:
            self._answer(slot, reply, held_bytes)

    def _reply(self, frame: Frame, slot: ReplySlot, held_bytes: int) -> bytes | None:
        """The answer; None where it comes later."""
        kind, correlation_id, payload = frame
        if kind == _HELLO:
            return self._hello(correlation_id, payload)
        if kind == _AUTH:
            return self._auth(correlation_id, payload)
        principal = self._principal
        if principal is None:
            return self._nack(correlation_id, NackCode.UNAUTHENTICATED, wire.UNAUTHENTICATED)
        if kind == _POLL:
            return self._poll(principal, correlation_id, payload, slot, held_bytes)
        if kind == _ACK:
            return self._ack(principal, correlation_id, payload)
        if kind == _PING:
            return self._ping(correlation_id, slot, held_bytes)
        if kind == _SUBSCRIBE:
            return self._subscribe(principal, correlation_id, payload, slot, held_bytes)
        if kind == _PUBLISH:
            return self._nack(correlation_id, NackCode.INVALID, _publish_fault(payload))
        return SILENCE  # PONG and NACK answer nothing that was asked

    def _hello(self, correlation_id: int, payload: bytes) -> bytes:
        if self._greeted:
            return self._nack(correlation_id, NackCode.INVALID, wire.HELLO_ALREADY_PERFORMED)
        version = codec.parse_hello(payload)
        if version is None:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_HELLO)
        if version != wire.PROTOCOL_VERSION:
            return self._nack(correlation_id, NackCode.VERSION, wire.UNSUPPORTED_VERSION)
        self._greeted = True
        return codec.encode_ack(correlation_id)

    def _auth(self, correlation_id: int, payload: bytes) -> bytes:
        if not self._greeted:
            return self._nack(correlation_id, NackCode.INVALID, wire.HELLO_NOT_PERFORMED)
        if self._principal is not None:
            return self._nack(correlation_id, NackCode.INVALID, wire.ALREADY_AUTHENTICATED)
        key = codec.parse_auth(payload)
        if key is None:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_AUTH)
        self._principal, self._key_digest = self._shared.authenticate(key, self._connection.peer)
        self._decoder.length_max = wire.LENGTH_MAX
        self._connection.set_authenticated(True)
        return codec.encode_ack(correlation_id)

    def _ack(self, principal: Principal, tag: int, payload: bytes) -> bytes:
        subscription_id = codec.parse_id(payload)
        if subscription_id is None:
            return self._nack(tag, NackCode.INVALID, wire.INVALID_ACK)
        if subscription_id == 0:
            return self._nack(tag, NackCode.INVALID, wire.SUBSCRIPTION_ID_ZERO)
        subscription = self._subscriptions.find(subscription_id)
        if subscription is None or not self._subscriptions.acknowledge(
            principal, subscription.topic, subscription, tag
        ):
            return self._nack(tag, NackCode.UNKNOWN, wire.UNKNOWN_DELIVERY)
        self._acknowledged = True
        return SILENCE

    def _ping(self, correlation_id: int, slot: ReplySlot, held_bytes: int) -> bytes | None:
        if not self._acknowledged:
            return codec.encode_pong(correlation_id)
        self._acknowledged = False
        self._busy = True

        def durable(error: PenstockError | None) -> None:
            if error is None:
                reply = codec.encode_pong(correlation_id)
            else:
                reply = self._nack(correlation_id, NackCode.INTERNAL, f"acknowledgements not stored yet: {error}")
                self._acknowledged = True
            self._answer(slot, reply, held_bytes)
            self._busy = False
            self._advance_later()

        self._subscriptions.when_durable(durable)
        return None

    def _subscribe(
        self, principal: Principal, correlation_id: int, payload: bytes, slot: ReplySlot, held_bytes: int
    ) -> bytes | None:
        parsed = codec.parse_subscribe(payload)
        if parsed is None:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_SUBSCRIBE)
        topic, qos = parsed
        if not topic:
            return self._nack(correlation_id, NackCode.INVALID, wire.EMPTY_TOPIC)
        if qos > wire.QOS_MAX:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_QOS)
        subscribing = self._subscriptions.subscribe(principal, topic, qos)
        self._in_background(
            self._subscribed(subscribing, correlation_id, slot, held_bytes),
            partial(self._work_failed, [correlation_id], slot, held_bytes),
        )
        return None

    async def _subscribed(
        self, subscribing: Coroutine[Any, Any, Subscription], correlation_id: int, slot: ReplySlot, held_bytes: int
    ) -> None:
        try:
            reply = codec.encode_ack(correlation_id, (await subscribing).id)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._nack(correlation_id, *self._reason(error))
        self._answer(slot, reply, held_bytes)

    # --- delivering ---

    def _poll(
        self, principal: Principal, correlation_id: int, payload: bytes, slot: ReplySlot, held_bytes: int
    ) -> bytes | None:
        subscription_id = codec.parse_id(payload)
        if subscription_id is None:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_POLL)
        if subscription_id == 0:
            return self._nack(correlation_id, NackCode.INVALID, wire.SUBSCRIPTION_ID_ZERO)
        subscription = self._subscriptions.find(subscription_id)
        if subscription is None:
            return SILENCE
        reply = self._take(principal, correlation_id, subscription)
        if reply is None:
            self._in_background(
                self._take_from_disk(principal, correlation_id, subscription, slot, held_bytes),
                partial(self._work_failed, [correlation_id], slot, held_bytes),
            )
        return reply

    async def _take_from_disk(
        self, principal: Principal, correlation_id: int, subscription: Subscription, slot: ReplySlot, held_bytes: int
    ) -> None:
        reply: bytes | None = None
        try:
            while reply is None:
                await self._subscriptions.load(principal, subscription.topic, subscription)
                reply = self._take(principal, correlation_id, subscription)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._nack(correlation_id, *self._reason(error))
        self._answer(slot, reply, held_bytes)

    def _take(self, principal: Principal, correlation_id: int, subscription: Subscription) -> bytes | None:
        """The delivery that answers a POLL, or silence; None where the log must be read first."""
        while True:
            delivery = self._subscriptions.take(principal, subscription.topic, subscription)
            if delivery is NOT_IN_MEMORY:
                return None
            if delivery is None:
                return SILENCE
            assert isinstance(delivery, Delivery)
            echoed = delivery.tag if delivery.qos else correlation_id
            try:
                frame = codec.encode_publish(echoed, delivery.qos, subscription.topic, delivery.value or b"")
            except InvalidRequest as error:  # another protocol wrote it, and allows more
                self._subscriptions.give_up(principal, subscription.topic, subscription, delivery.tag, str(error))
                continue
            return frame

    # --- refusing ---

    def _nack(self, correlation_id: int, code: int, reason: str) -> bytes:
        self._stats.errors += 1
        return codec.encode_nack(correlation_id, code, reason)

    def _work_failed(self, correlation_ids: Sequence[int], slot: ReplySlot, held_bytes: int, error: Exception) -> None:
        """Answer what background work left unanswered when it raised."""
        if slot.data is None:
            code, reason = self._reason(error, len(correlation_ids) - 1)
            self._answer(slot, b"".join([self._nack(each, code, reason) for each in correlation_ids]), held_bytes)

    def _reason(self, error: Exception, more: int = 0) -> tuple[NackCode, str]:
        """The code and the words for an error. `more`: how many others ended the same way."""
        if isinstance(error, PenstockError):
            return code_of(error), str(error)
        self._stats.internal_errors += 1 + more
        if not self._bug_logged:
            self._bug_logged = True
            log.error("request_failed", listener=self._connection.listener, peer=self._connection.peer, exc_info=error)
        return NackCode.INTERNAL, "internal error: the server's log has the details"


def _publish_fault(payload: bytes) -> str:
    """What is wrong with a publish that the decoder did not take for one; an empty topic is said before a bad QoS."""
    parsed = codec.parse_publish(payload)
    if parsed is None:
        return wire.INVALID_PUBLISH
    return wire.INVALID_QOS if parsed[1] else wire.EMPTY_TOPIC


def _held_bytes(message: Frame | PublishRun) -> int:
    return max(message.size_bytes, MESSAGE_BYTES_MIN)
