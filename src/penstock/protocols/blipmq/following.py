"""BlipMQ on one of several nodes: publishes are committed on the node that the client is connected to, and what concerns a subscription is
passed on, frame by frame, to the node that owns its shard, over a link for each shard.

A client finds its own messages: what it published is committed before a POLL or SUBSCRIBE of it is passed on, what it publishes behind a
SUBSCRIBE waits for the answer to that, and the other node looks for messages before it says nothing. Answers come in the order of what they
answer, because one node at a time is asked: before another is, a PING that the client does not see shows that the one before has answered
everything, and stored what was acknowledged. Only a NACK to a PUBLISH may come before answers to frames in front of it. It comes before the
PONG of a PING behind it, which is passed on to the node that was asked last.

If an owner is lost, connections end over which something was passed on to it: what it was asked has an unknown outcome, and what it
delivered comes again. Others stay.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.broker.access.checks import Principal
from penstock.broker.deliveries.subscription import Subscription
from penstock.errors import PenstockError
from penstock.net.session import Connection, Introduction
from penstock.protocols.blipmq import codec
from penstock.protocols.blipmq.codec import Frame, IdRun, Message
from penstock.protocols.blipmq.session import SILENCE, BlipMQ, BlipMQSession
from penstock.protocols.blipmq.wire import (
    HEAD_BYTES,
    ID_FRAME,
    LENGTH_BYTES,
    LENGTH_MAX,
    FrameType,
)
from penstock.protocols.conversation import ReplySlot
from penstock.protocols.node_link import (
    DialNode,
    NodeLink,
    introduced_key,
    introduced_principal,
    introduction_of,
)

_PING, _PONG, _NACK = int(FrameType.PING), int(FrameType.PONG), int(FrameType.NACK)
_SUBSCRIBE, _PUBLISH = int(FrameType.SUBSCRIBE), int(FrameType.PUBLISH)
DRAIN: Final = (1 << 64) - 1
"""The correlation id of the PING that a client does not see."""
_ANSWERS: Final = (int(FrameType.ACK), _NACK)
_LENGTH: Final = ID_FRAME.size - LENGTH_BYTES


class NodeBlipMQ:
    """Makes the sessions of one of several nodes: of clients that are connected to it, and of those that another node speaks for."""

    def __init__(self, shared: BlipMQ, dial_node: DialNode) -> None:
        self.stats = shared.stats
        self._shared = shared
        self._dial_node = dial_node

    def __call__(self, connection: Connection) -> BlipMQSession:
        return FollowingSession(self._shared, connection, self._dial_node)

    def introduced(self, connection: Connection, introduction: Introduction) -> BlipMQSession:
        """Open a session for a client that has logged in on another node."""
        principal, key_digest = introduced_principal(introduction), introduced_key(introduction)
        return IntroducedSession(self._shared, connection, principal, key_digest)


class _Way:
    """To the owner of a shard, and how far what comes from there has been sent on."""

    __slots__ = ("frames", "link")

    def __init__(self, link: NodeLink) -> None:
        self.link = link
        self.frames = FrameFilter()


class FollowingSession(BlipMQSession):
    """Of a client that is connected to a node of several."""

    __slots__ = ("_asked", "_dial", "_subscribing", "_ways", "_ways_of")

    def __init__(self, shared: BlipMQ, connection: Connection, dial: DialNode) -> None:
        super().__init__(shared, connection)
        self._dial = dial
        self._ways: dict[int, _Way] = {}
        """By shard. Made when they are needed, for one principal."""
        self._ways_of: Principal | None = None
        self._asked: int | None = None
        """The shard whose owner may not have answered everything; None if no other node has something to answer."""
        self._subscribing = False
        """A SUBSCRIBE was passed on and is not answered; what is behind it waits."""

    # --- what the network calls ---

    def resume(self) -> None:
        for way in self._ways.values():
            way.link.resume()
        super().resume()

    def closed(self) -> None:
        self._unlink()
        super().closed()

    # --- who is asked ---

    def _decode(self, data: bytes) -> None:
        super()._decode(data)
        if self._ways and self._principal is not self._ways_of:  # the key was revoked since
            self._unlink()

    def _must_wait(self, message: Message) -> bool:
        if super()._must_wait(message):
            return True
        # Here its PONG would wait for the NACKs in front of it; from elsewhere it may come before them.
        is_ping = isinstance(message, Frame) and message.type == _PING
        return is_ping and self._asked is not None and self._first_slot is not None

    def _start(self, message: Message) -> None:
        if self._asked is not None and isinstance(message, Frame | IdRun):
            shard = self._shard_of(message)
            if shard is not None and shard != self._asked:
                self._waiting.append(message)
                self._drain(self._ways[self._asked])
                return
        super()._start(message)

    def _shard_of(self, message: Frame | IdRun) -> int | None:
        """Return the shard that a message is about, None for one that any node answers."""
        if isinstance(message, IdRun):
            number = message.subscription_id
            return self._subscriptions.shard_of_number(number) if number else None
        parsed = codec.parse_subscribe(message.payload) if message.type == _SUBSCRIBE else None
        return self._subscriptions.shard_of(parsed[0]) if parsed is not None and parsed[0] else None

    def _drain(self, way: _Way) -> None:
        """Start nothing more until a node has said that it has answered everything."""
        way.frames.is_draining = self._busy = True
        way.link.send(codec.encode_ping(DRAIN), 0)

    # --- what is passed on ---

    def _answer_frame(self, frame: Frame, slot: ReplySlot) -> bytes | None:
        if self._principal is not None and frame.type == _PING and self._asked is not None:
            return self._pass_on_ping(frame, self._principal, slot)
        shard = self._shard_of(frame)
        if self._principal is None or shard is None or self._subscriptions.owns(shard):
            return super()._answer_frame(frame, slot)
        self._stats.requests[_SUBSCRIBE] += 1
        data = codec.encode_frame(frame.type, frame.correlation_id, frame.payload)
        reply = self._pass_on(shard, data, self._principal, slot)
        self._subscribing = self._busy = True
        self._ways[shard].frames.awaited_id = frame.correlation_id
        return reply

    def _answer_ids(self, run: IdRun, slot: ReplySlot) -> bytes | None:
        kind, subscription_id, correlation_ids = run.type, run.subscription_id, run.correlation_ids
        shard = self._shard_of(run)
        if self._principal is None or shard is None or self._subscriptions.owns(shard):
            return super()._answer_ids(run, slot)
        self._stats.requests[kind] += len(correlation_ids)
        frames = b"".join([ID_FRAME.pack(_LENGTH, kind, each, subscription_id) for each in correlation_ids])
        return self._pass_on(shard, frames, self._principal, slot)

    def _pass_on_ping(self, frame: Frame, principal: Principal, slot: ReplySlot) -> bytes | None:
        """Have the node that was asked last answer, once this one has stored what was acknowledged here."""
        self._stats.requests[_PING] += 1
        assert self._asked is not None
        ping = codec.encode_frame(_PING, frame.correlation_id, frame.payload)
        pass_on = partial(self._pass_on, self._asked, ping, principal, slot)
        if not self._acknowledged:
            return pass_on()
        self._acknowledged = False
        self._busy = True

        def durable(error: PenstockError | None) -> None:
            self._acknowledged = error is not None
            self.answer(slot, pass_on() if error is None else self._not_stored(frame.correlation_id, error))
            self.flush()
            self._busy = False
            self.advance_soon()

        self._subscriptions.when_durable(durable)
        return None

    def _pass_on(self, shard: int, frames: bytes, principal: Principal, slot: ReplySlot) -> bytes:
        """Have the owner of a shard answer. Nothing answers here; what is held for it is released when it is on its way."""
        if self._ways_of is not principal:
            self._unlink()
            self._ways_of = principal
        if shard not in self._ways:
            link = NodeLink(
                self._connection,
                self._dial,
                introduction_of("blipmq", principal, key_digest=self._key_digest, shard=shard),
                received=partial(self._received, shard),
                ended=self._lost,
            )
            self._ways[shard] = _Way(link)
        self._asked = shard
        held_bytes, slot.held_bytes = slot.held_bytes, 0
        self._ways[shard].link.send(frames, held_bytes)
        return SILENCE

    def _received(self, shard: int, data: bytes) -> None:
        frames = self._ways[shard].frames
        was_draining = frames.is_draining
        begun, rest, deliveries = frames.feed(data)
        self._stats.sent_records += deliveries
        if begun:
            self._connection.send(begun)
        if self._ready and rest:  # what is ready goes before the next frame, which may be a PONG
            super().flush()
        if rest:
            self._connection.send(rest)
        self.flush()
        if frames.awaited_id is None:
            self._go_on_after_subscribe()
        if was_draining and not frames.is_draining:
            self._asked = None
            self._busy = False
            self.advance_soon()

    def _go_on_after_subscribe(self) -> None:
        if self._subscribing:
            self._subscribing = self._busy = False
            self.advance_soon()

    def _lost(self) -> None:
        self._forget_waiting()  # a connection that is closed waits for what it holds
        self._connection.close()

    @property
    def _is_inside(self) -> bool:
        """Whether a part of another node's frame was sent to the client, and nothing else may be."""
        return self._asked is not None and self._asked in self._ways and self._ways[self._asked].frames.inside

    def flush(self) -> None:
        """Send what is ready, but not inside a frame of another node."""
        if not self._is_inside:
            super().flush()

    def _unlink(self) -> None:
        was_inside = self._is_inside
        ways, self._ways = self._ways, {}
        self._asked = None
        self._go_on_after_subscribe()
        if any(way.frames.is_draining for way in ways.values()):
            self._busy = False
            self.advance_soon()
        for way in ways.values():
            way.link.close()
        if was_inside:
            self._connection.close()


class FrameFilter:
    """Finds where frames end in what comes in pieces of any size, and leaves out the PONG that shows that everything is answered."""

    __slots__ = ("_head", "_missing_bytes", "awaited_id", "is_draining")

    def __init__(self) -> None:
        self._head = b""
        """What has come of the head of a frame, if that is not all of it."""
        self._missing_bytes = 0
        """Of the frame whose head has come."""
        self.awaited_id: int | None = None
        """The correlation id of a request, until its answer has begun."""
        self.is_draining = False
        """Until the PONG has come."""

    @property
    def inside(self) -> bool:
        """Whether a part of a frame was returned."""
        return self._missing_bytes > 0

    def feed(self, data: bytes) -> tuple[bytes, bytes, int]:
        """Take what comes next; returns what of it belongs to a frame that has begun, frames behind that, and how many deliveries those
        are. Raises OSError if it is no frame, or says that what was acknowledged could not be stored."""
        begun, data = data[: self._missing_bytes], self._head + data[self._missing_bytes :]
        self._missing_bytes -= len(begun)
        position = start = deliveries = 0
        kept: list[bytes] = []
        while len(data) - position >= HEAD_BYTES:
            length = int.from_bytes(data[position : position + LENGTH_BYTES], "big")
            if length > LENGTH_MAX:
                raise OSError(f"a frame of {length} bytes")
            kind = data[position + LENGTH_BYTES]
            correlation_id = int.from_bytes(data[position + LENGTH_BYTES + 1 : position + HEAD_BYTES], "big")
            end = position + LENGTH_BYTES + length
            drained = self.is_draining and correlation_id == DRAIN and kind in (_PONG, _NACK)
            if drained and kind == _NACK:
                raise OSError("what was acknowledged could not be stored")
            if drained:
                self.is_draining = False
                kept.append(data[start:position])
                start = end
            deliveries += kind == _PUBLISH
            if kind in _ANSWERS and correlation_id == self.awaited_id:
                self.awaited_id = None
            position = min(end, len(data))
            self._missing_bytes = end - position
        self._head = data[position:]
        kept.append(data[start:position])
        return begun, b"".join(kept), deliveries


class IntroducedSession(BlipMQSession):
    """Of a client of another node, on the owner of a shard. What that node has committed may not be seen here yet."""

    __slots__ = ("_looked", "_were_put_back")

    def __init__(self, shared: BlipMQ, connection: Connection, principal: Principal, key_digest: bytes | None) -> None:
        super().__init__(shared, connection)
        self._greeted = True
        self._principal = principal
        self._key_digest = key_digest
        self._decoder.length_max = LENGTH_MAX
        self._looked = False
        self._were_put_back = False
        connection.set_authenticated(True)

    def _deliver(self, principal: Principal, run: IdRun, subscription: Subscription, slot: ReplySlot) -> bytes | None:
        self._were_put_back = False
        reply = super()._deliver(principal, run, subscription, slot)
        return reply if reply or self._looked or self._were_put_back else None

    def _say_nothing(self, rest: IdRun, slot: ReplySlot) -> None:
        if not self._looked:
            self._put_back(rest, slot)

    def _put_back(self, rest: IdRun, slot: ReplySlot) -> None:
        super()._put_back(rest, slot)
        self._were_put_back = True

    async def _deliver_from_disk(
        self, principal: Principal, run: IdRun, subscription: Subscription, slot: ReplySlot
    ) -> bytes:
        await self._broker.leading.refresh_ends([subscription.topic])
        self._looked = True
        try:
            reply = self._deliver(principal, run, subscription, slot)
            return reply if reply is not None else await super()._deliver_from_disk(principal, run, subscription, slot)
        finally:
            self._looked = False
