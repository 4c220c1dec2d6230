"""One BlipMQ conversation: frames in, answers out in the order of what they answer, and nothing of sockets.

PUBLISH is started without waiting for the one before; nothing answers it unless it fails. A POLL or a SUBSCRIBE waits until what this
connection published is committed, so that a client finds its own message, or does not subscribe to its own past. A POLL that would
find nothing waits for what others are publishing to its topic, so that a client that polls again and again does not do so while the disk
works. A PING waits for its publishes of QoS 1 and for its acknowledgements: PONG means that they are on disk. An ACK counts at once. POLL
and ACK frames for one subscription that arrive in a row are answered as one request.

Overload stops the reading of the socket (`hold`); nothing is refused because there is much to do.

Bad framing ends the conversation; everything else is answered with a NACK and continues, also an exception that is a bug of ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from penstock.broker.access.api_keys import CONFIGURED_KEY, DEFAULT_ROLES, Login, digest_of
from penstock.broker.access.checks import Principal
from penstock.broker.broker import Broker
from penstock.broker.deliveries.cursor import NotInMemory
from penstock.broker.deliveries.subscription import AT_LEAST_ONCE, AT_MOST_ONCE, QOS0_HEADERS, Subscription
from penstock.broker.records.producer import ANY_PARTITION
from penstock.broker.records.spreading import Placement, Scattered, errors_by_row
from penstock.clock import Clock
from penstock.errors import AuthenticationFailed, InvalidRequest, PenstockError
from penstock.futures import shield
from penstock.net.session import Connection
from penstock.protocols.blipmq import codec, wire
from penstock.protocols.blipmq.codec import Decoder, Frame, IdRun, Message, PublishRun
from penstock.protocols.blipmq.errors import code_of
from penstock.protocols.blipmq.wire import FrameType, NackCode
from penstock.protocols.conversation import (
    GATHERED_BYTES_MAX,
    INTERNAL_ERROR,
    REQUEST_BYTES_MIN,
    Conversation,
    ReplySlot,
)
from penstock.stats import SessionStats

MESSAGES_PER_TURN_MAX: Final = 256
POLL_WAIT_S_MAX: Final = 0.1
"""How long a POLL waits for what others are publishing. Flushes mostly take less; a client that gets nothing may poll again."""
"""Frames, or runs of publishes, that one session decodes and starts before it lets others have their turn of the loop."""
SILENCE: Final = b""
_HELLO, _AUTH, _PUBLISH, _SUBSCRIBE, _ACK = (int(kind) for kind in list(FrameType)[:5])
_PING, _POLL = int(FrameType.PING), int(FrameType.POLL)


@dataclass(slots=True)
class BlipMQStats(SessionStats):
    """What the sessions of one listener count; plain numbers, exported on scrape. Errors are NACKs."""

    requests: list[int] = field(default_factory=lambda: [0] * (max(FrameType) + 1))
    """By frame type."""

    def requests_by_name(self) -> dict[str, int]:
        return {kind.name.lower(): self.requests[kind] for kind in FrameType if self.requests[kind]}


class WritesInFlight:
    """By topic, runs of publishes that are not committed yet, and who waits for the next that is."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}
        self._settled: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._runs

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, topic: str) -> None:
        self._runs[topic] = self._runs.get(topic, 0) + 1

    def remove(self, topic: str) -> None:
        left = self._runs.pop(topic) - 1
        if left:
            self._runs[topic] = left
        settled = self._settled.pop(topic, None)
        if settled is not None:
            settled.set_result(None)

    def next_settled(self, topic: str) -> asyncio.Future[None]:
        """Return what is done once one of the runs to a topic that has some is committed, or has failed."""
        settled = self._settled.get(topic)
        if settled is None:
            settled = self._settled[topic] = asyncio.get_running_loop().create_future()
        return shield(settled)


class BlipMQ:
    """What all sessions of one listener share. Called with a connection, it opens a session: it is the listener's factory."""

    def __init__(
        self, broker: Broker, *, clock: Clock, api_keys: Sequence[str] = (), message_ttl_ms: int | None = None
    ) -> None:
        """`api_keys` are accepted besides those that the broker keeps."""
        self.broker = broker
        self.clock = clock
        self.message_ttl_ms = message_ttl_ms
        self.stats = BlipMQStats()
        self.writes = WritesInFlight()
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


class BlipMQSession(Conversation[Message]):
    """Implements `penstock.net.session.Session`."""

    __slots__ = (
        "_acknowledged",
        "_greeted",
        "_key_digest",
        "_principal",
        "_qos1_in_flight",
        "_shared",
        "_subscriptions",
    )

    _decoder: Decoder
    _stats: BlipMQStats

    def __init__(self, shared: BlipMQ, connection: Connection) -> None:
        decoder = Decoder(length_max=wire.LOGIN_LENGTH_MAX, messages_max=MESSAGES_PER_TURN_MAX)
        super().__init__(shared.broker, connection, decoder, shared.stats)
        self._shared = shared
        self._subscriptions = shared.broker.subscriptions
        self._greeted = False
        self._principal: Principal | None = None
        self._key_digest: bytes | None = None
        self._qos1_in_flight = 0
        self._acknowledged = False
        """Something that may not be on disk yet."""
        connection.set_authenticated(False)

    # --- the order of messages ---

    def _decode(self, data: bytes) -> None:
        if self._key_digest is not None and not self._broker.api_keys.is_valid(self._key_digest):
            self._principal = self._key_digest = None  # revoked since
            self._connection.set_authenticated(False)
            self._decoder.length_max = wire.LOGIN_LENGTH_MAX
        anonymous = self._principal is None
        super()._decode(data)
        if anonymous and self._decoder.partial and not self._decoder.more:
            super()._decode(b"")  # a frame that was too large before the login is read after it

    def _held_bytes(self, message: Message) -> int:
        return max(message.size_bytes, REQUEST_BYTES_MIN)

    def _must_wait(self, message: Message) -> bool:
        if isinstance(message, PublishRun):
            return False
        return message.type in (_POLL, _SUBSCRIBE) or (message.type == _PING and self._qos1_in_flight > 0)

    def _start(self, message: Message) -> None:
        if isinstance(message, PublishRun):
            self._publish(message)
            return
        slot = self.reserve(self._held_bytes(message))
        try:
            reply = self._answer_ids(message, slot) if isinstance(message, IdRun) else self._answer_frame(message, slot)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            reply = self._refusal(message, error)
        if reply is not None:
            self.answer(slot, reply)

    # --- publishing ---

    def _publish(self, run: PublishRun) -> None:
        count = len(run.values)
        self._stats.requests[_PUBLISH] += count
        self._stats.received_records += count
        # Replies to what follows a publish of QoS 0 do not wait for the disk.
        slot = self.reserve(self._held_bytes(run), late=run.qos == AT_MOST_ONCE)
        principal = self._principal
        if principal is None:
            self.answer(slot, self._nack_all(run.correlation_ids, NackCode.UNAUTHENTICATED, wire.UNAUTHENTICATED))
        elif self._broker.topics.exists(run.topic):
            self._write(principal, run, slot)
        else:
            creating = self._create_topic_and(partial(self._write, principal, run, slot), principal, run.topic)
            self._answer_later(run, slot, creating)

    def _write(self, principal: Principal, run: PublishRun, slot: ReplySlot) -> None:
        self._writes_in_flight += 1
        self._qos1_in_flight += run.qos
        count, ttl_ms = len(run.values), self._shared.message_ttl_ms
        try:
            refused = self._broker.records.produce(
                principal,
                run.topic,
                ANY_PARTITION,
                run.values,
                headers=None if run.qos == AT_LEAST_ONCE else [QOS0_HEADERS] * count,
                expiries=None if ttl_ms is None else [self._shared.clock.now_ms() + ttl_ms] * count,
                done=partial(self._settle, run, slot),
            )
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self._writes_in_flight -= 1
            self._qos1_in_flight -= run.qos
            self.answer(slot, self._publish_failed(run.correlation_ids, error))
        else:
            self._shared.writes.add(run.topic)
            if refused and slot.data is None:
                self.place(slot)  # its NACKs come before what answers later frames

    def _settle(self, run: PublishRun, slot: ReplySlot, placed: list[Placement] | Scattered) -> None:
        self._qos1_in_flight -= run.qos
        self._shared.writes.remove(run.topic)
        errors = errors_by_row(placed, len(run.values))
        nacks = [self._publish_failed([run.correlation_ids[row]], error) for row, error in errors.items()]
        self._settle_write(slot, b"".join(nacks))
        if self._waiting and self._writes_in_flight and not self._qos1_in_flight:
            self.advance()

    def _publish_failed(self, correlation_ids: Sequence[int], error: Exception) -> bytes:
        code, reason = self._reason(error, len(correlation_ids) - 1)
        if code == NackCode.INTERNAL:
            reason = wire.DURABLE_PUBLISH_FAILED + reason
        return self._nack_all(correlation_ids, code, reason)

    # --- everything else ---

    def _answer_frame(self, frame: Frame, slot: ReplySlot) -> bytes | None:
        """Return the answer; None if it comes later."""
        kind, correlation_id, payload = frame.type, frame.correlation_id, frame.payload
        self._stats.requests[kind] += 1
        if kind == _HELLO:
            return self._hello(correlation_id, payload)
        if kind == _AUTH:
            return self._auth(correlation_id, payload)
        principal = self._principal
        if principal is None:
            return self._nack(correlation_id, NackCode.UNAUTHENTICATED, wire.UNAUTHENTICATED)
        if kind == _PING:
            return self._ping(correlation_id, slot)
        if kind == _SUBSCRIBE:
            return self._subscribe(principal, frame, slot)
        if kind == _PUBLISH:
            return self._nack(correlation_id, NackCode.INVALID, _publish_fault(payload))
        if kind == _POLL:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_POLL)
        if kind == _ACK:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_ACK)
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

    def _ping(self, correlation_id: int, slot: ReplySlot) -> bytes | None:
        if not self._acknowledged:
            return codec.encode_pong(correlation_id)
        self._acknowledged = False
        self._busy = True

        def durable(error: PenstockError | None) -> None:
            if error is None:
                reply = codec.encode_pong(correlation_id)
            else:
                reply = self._not_stored(correlation_id, error)
                self._acknowledged = True
            self.answer(slot, reply)
            self.flush()  # in this turn: a connection that is being closed is closed in the next, once nothing is held
            self._busy = False
            self.advance_soon()

        self._subscriptions.when_durable(durable)
        return None

    def _subscribe(self, principal: Principal, frame: Frame, slot: ReplySlot) -> bytes | None:
        correlation_id = frame.correlation_id
        parsed = codec.parse_subscribe(frame.payload)
        if parsed is None:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_SUBSCRIBE)
        topic, qos = parsed
        if not topic:
            return self._nack(correlation_id, NackCode.INVALID, wire.EMPTY_TOPIC)
        if qos > wire.QOS_MAX:
            return self._nack(correlation_id, NackCode.INVALID, wire.INVALID_QOS)
        subscribing = self._subscriptions.subscribe(principal, topic, qos)
        self._answer_later(frame, slot, self._subscribed(subscribing, correlation_id))
        return None

    async def _subscribed(self, subscribing: Coroutine[Any, Any, Subscription], correlation_id: int) -> bytes:
        return codec.encode_ack(correlation_id, (await subscribing).id)

    # --- delivering ---

    def _answer_ids(self, run: IdRun, slot: ReplySlot) -> bytes | None:
        """Return the answer to POLL or ACK frames; None if it comes later."""
        kind, subscription_id, correlation_ids = run.type, run.subscription_id, run.correlation_ids
        self._stats.requests[kind] += len(correlation_ids)
        principal = self._principal
        if principal is None:
            return self._nack_all(correlation_ids, NackCode.UNAUTHENTICATED, wire.UNAUTHENTICATED)
        if subscription_id == 0:
            return self._nack_all(correlation_ids, NackCode.INVALID, wire.SUBSCRIPTION_ID_ZERO)
        subscription = self._subscriptions.find(subscription_id)
        if kind == _ACK:
            return self._acknowledge(principal, subscription, correlation_ids)
        if subscription is None:
            return SILENCE
        writes = self._shared.writes
        if subscription.topic in writes and not subscription.may_have_more(self._shared.clock.now_ms()):
            settled = writes.next_settled(subscription.topic)
            self._answer_later(run, slot, self._deliver_after(settled, principal, run, subscription, slot))
            return None
        reply = self._deliver(principal, run, subscription, slot)
        if reply is None:
            self._answer_later(run, slot, self._deliver_from_disk(principal, run, subscription, slot))
        return reply

    def _acknowledge(self, principal: Principal, subscription: Subscription | None, tags: Sequence[int]) -> bytes:
        if subscription is None:
            unknown = tags
        else:
            known = self._subscriptions.acknowledge_many(principal, subscription.topic, subscription, tags)
            self._acknowledged = self._acknowledged or True in known
            unknown = [tag for tag, settled in zip(tags, known, strict=True) if not settled]
        return self._nack_all(unknown, NackCode.UNKNOWN, wire.UNKNOWN_DELIVERY) if unknown else SILENCE

    async def _deliver_after(
        self,
        settled: asyncio.Future[None],
        principal: Principal,
        run: IdRun,
        subscription: Subscription,
        slot: ReplySlot,
    ) -> bytes:
        """Deliver what there is once a publish to the topic is settled, or after a while: it may wait behind checks by a schema."""
        with suppress(TimeoutError):
            await asyncio.wait_for(settled, POLL_WAIT_S_MAX)
        if self._worker.stopped or subscription.deleted:
            return SILENCE  # nobody would get what is taken now
        reply = self._deliver(principal, run, subscription, slot)
        return reply if reply is not None else await self._deliver_from_disk(principal, run, subscription, slot)

    async def _deliver_from_disk(
        self, principal: Principal, run: IdRun, subscription: Subscription, slot: ReplySlot
    ) -> bytes:
        reply: bytes | None = None
        while reply is None:
            await self._subscriptions.load(principal, subscription.topic, subscription)
            reply = self._deliver(principal, run, subscription, slot)
        return reply

    def _deliver(self, principal: Principal, run: IdRun, subscription: Subscription, slot: ReplySlot) -> bytes | None:
        """Return deliveries, at most one for each POLL; None if the log must be read first.

        Deliveries leave before what stops the next one is handled: the log must be read, cannot be read, or there is no room. The
        POLL frames from there on go back to the head of the queue. So do those beyond GATHERED_BYTES_MAX of deliveries, so that the peer
        takes these before more are made.
        """
        topic, polls = subscription.topic, run.correlation_ids
        frames: list[bytes] = []
        refused: list[tuple[int, int]] = []
        size_bytes = 0
        while len(frames) < len(polls) and size_bytes < GATHERED_BYTES_MAX and not refused:
            try:
                taken = self._subscriptions.take_many(
                    principal, topic, subscription, len(polls) - len(frames), GATHERED_BYTES_MAX - size_bytes
                )
            except PenstockError:
                if not frames:
                    raise
                break
            if isinstance(taken, NotInMemory):
                if not frames:
                    return None
                break
            if not taken:
                if frames:
                    self._say_nothing(IdRun(run.type, run.subscription_id, polls[len(frames) :]), slot)
                self._stats.sent_records += len(frames)
                return b"".join(frames)
            for delivery in taken:
                echoed = delivery.tag if delivery.qos else polls[len(frames)]
                try:
                    frame = codec.encode_publish(echoed, delivery.qos, topic, delivery.value or b"")
                except InvalidRequest as error:  # another protocol wrote it, and allows more
                    self._subscriptions.dead_letter(principal, topic, subscription, delivery.tag, str(error))
                    continue
                if delivery.qos and (refused or not self._has_room_for(frame)):
                    refused.append((delivery.tag, delivery.deliveries))
                    continue
                frames.append(frame)
                size_bytes += len(frame)
        if refused:
            self._subscriptions.requeue(subscription, refused)
        if len(frames) < len(polls):
            self._put_back(IdRun(run.type, run.subscription_id, polls[len(frames) :]), slot)
        self._stats.sent_records += len(frames)
        return b"".join(frames)

    def _say_nothing(self, rest: IdRun, slot: ReplySlot) -> None:
        """Leave polls unanswered: there was something for those before them, and there is nothing more."""

    def _put_back(self, rest: IdRun, slot: ReplySlot) -> None:
        """Put frames of a run that are not answered back to the head of the queue."""
        if not self._worker.stopped:
            self._stats.requests[rest.type] -= len(rest.correlation_ids)
            slot.held_bytes -= self._held_bytes(rest)
            self._waiting.append(rest)

    # --- refusing ---

    def _nack(self, correlation_id: int, code: int, reason: str) -> bytes:
        self._stats.errors += 1
        return codec.encode_nack(correlation_id, code, reason)

    def _not_stored(self, correlation_id: int, error: PenstockError) -> bytes:
        return self._nack(correlation_id, NackCode.INTERNAL, f"acknowledgements not stored yet: {error}")

    def _nack_all(self, correlation_ids: Sequence[int], code: int, reason: str) -> bytes:
        return b"".join([self._nack(each, code, reason) for each in correlation_ids])

    def _refusal(self, message: Message, error: Exception) -> bytes:
        if isinstance(message, PublishRun):
            return self._publish_failed(message.correlation_ids, error)
        if isinstance(message, IdRun):
            return self._nack_all(message.correlation_ids, *self._reason(error, len(message.correlation_ids) - 1))
        return self._nack(message.correlation_id, *self._reason(error))

    def _reason(self, error: Exception, more: int = 0) -> tuple[NackCode, str]:
        """The code and the words for an error. `more`: how many others ended the same way."""
        if isinstance(error, PenstockError):
            return code_of(error), str(error)
        self._log_bug(error, 1 + more)
        return NackCode.INTERNAL, INTERNAL_ERROR


def _publish_fault(payload: bytes) -> str:
    """What is wrong with a publish that the decoder did not take for one; an empty topic is said before a bad QoS."""
    parsed = codec.parse_publish(payload)
    if parsed is None:
        return wire.INVALID_PUBLISH
    return wire.INVALID_QOS if parsed[1] else wire.EMPTY_TOPIC
