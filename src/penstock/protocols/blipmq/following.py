"""BlipMQ on one of several nodes: publishes are committed on the node that the client is connected to, and what concerns subscriptions is
passed on, frame by frame, to the node that leads, which has them.

A client finds its own messages: what it published is committed before a POLL or SUBSCRIBE of it is passed on, what it publishes behind a
SUBSCRIBE waits for the answer to that, and the node that leads looks for messages before it says nothing. Frames of both nodes go to the
client whole, those of each in the order of what they answer; a NACK to a PUBLISH may come before answers to frames in front of it, and
comes before the PONG of a PING behind it. A PING is passed on once anything was, so that its PONG is behind all of that.

If the node that leads is lost, its clients' connections end: what it was asked has an unknown outcome, and what it delivered comes again.
Connections over which nothing was passed on stay.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from penstock.broker.access.checks import Principal
from penstock.broker.deliveries.subscription import Subscription
from penstock.net.session import Connection, Introduction
from penstock.protocols.blipmq import codec
from penstock.protocols.blipmq.codec import Frame, IdRun, Message
from penstock.protocols.blipmq.session import SILENCE, BlipMQ, BlipMQSession
from penstock.protocols.blipmq.wire import HEAD_BYTES, ID_FRAME, LENGTH_BYTES, LENGTH_MAX, FrameType
from penstock.protocols.conversation import ReplySlot
from penstock.protocols.leader_link import (
    DialLeader,
    LeaderLink,
    introduced_key,
    introduced_principal,
    introduction_of,
)

_PING, _SUBSCRIBE, _PUBLISH = int(FrameType.PING), int(FrameType.SUBSCRIBE), int(FrameType.PUBLISH)
_ANSWERS: Final = (int(FrameType.ACK), int(FrameType.NACK))
_LENGTH: Final = ID_FRAME.size - LENGTH_BYTES


class NodeBlipMQ:
    """Makes the sessions of one of several nodes: of clients that are connected to it, and of those that another node speaks for."""

    def __init__(self, shared: BlipMQ, dial_leader: DialLeader) -> None:
        self.stats = shared.stats
        self._shared = shared
        self._dial_leader = dial_leader

    def __call__(self, connection: Connection) -> BlipMQSession:
        if self._shared.broker.leading.leads:
            return BlipMQSession(self._shared, connection)
        return FollowingSession(self._shared, connection, self._dial_leader)

    def introduced(self, connection: Connection, introduction: Introduction) -> BlipMQSession:
        """Open a session for a client that has logged in on another node."""
        principal, key_digest = introduced_principal(introduction), introduced_key(introduction)
        return IntroducedSession(self._shared, connection, principal, key_digest)


class FollowingSession(BlipMQSession):
    """Of a client that is connected to a node that does not lead."""

    __slots__ = ("_dial", "_frames", "_link", "_link_of", "_subscribing")

    def __init__(self, shared: BlipMQ, connection: Connection, dial: DialLeader) -> None:
        super().__init__(shared, connection)
        self._dial = dial
        self._link: LeaderLink | None = None
        """Made when it is needed, for one principal."""
        self._link_of: Principal | None = None
        self._frames = FrameCounter()
        self._subscribing = False
        """A SUBSCRIBE was passed on and is not answered; what is behind it waits."""

    # --- what the network calls ---

    def resume(self) -> None:
        if self._link is not None:
            self._link.resume()
        super().resume()

    def closed(self) -> None:
        self._unlink()
        super().closed()

    # --- what is passed on ---

    def _decode(self, data: bytes) -> None:
        super()._decode(data)
        if self._link is not None and self._principal is not self._link_of:  # the key was revoked since
            self._unlink()

    def _must_wait(self, message: Message) -> bool:
        if super()._must_wait(message):
            return True
        # Here its PONG would wait for the NACKs in front of it; from elsewhere it may come before them.
        return (
            isinstance(message, Frame)
            and message.type == _PING
            and self._link is not None
            and self._first_slot is not None
        )

    def _answer_frame(self, frame: Frame, slot: ReplySlot) -> bytes | None:
        passed_on = frame.type == _SUBSCRIBE or (frame.type == _PING and self._link is not None)
        if self._principal is None or not passed_on:
            return super()._answer_frame(frame, slot)
        self._stats.requests[frame.type] += 1
        reply = self._pass_on(codec.encode_frame(*frame), self._principal, slot)
        if frame.type == _SUBSCRIBE:
            self._subscribing = self._busy = True
            self._frames.awaited_id = frame.correlation_id
        return reply

    def _answer_ids(self, run: IdRun, slot: ReplySlot) -> bytes | None:
        if self._principal is None:
            return super()._answer_ids(run, slot)
        kind, subscription_id, correlation_ids = run
        self._stats.requests[kind] += len(correlation_ids)
        frames = b"".join([ID_FRAME.pack(_LENGTH, kind, each, subscription_id) for each in correlation_ids])
        return self._pass_on(frames, self._principal, slot)

    def _pass_on(self, frames: bytes, principal: Principal, slot: ReplySlot) -> bytes:
        """Have the node that leads answer. Nothing answers here; what is held for it is released when it is on its way."""
        if self._link is not None and self._link_of is not principal:
            self._unlink()
        if self._link is None:
            self._link_of = principal
            self._link = LeaderLink(
                self._connection,
                self._dial.leader,
                partial(self._dial.dial, introduction_of("blipmq", principal, key_digest=self._key_digest)),
                received=self._received,
                ended=self._lost,
            )
        held_bytes, slot.held_bytes = slot.held_bytes, 0
        self._link.send(frames, held_bytes)
        return SILENCE

    def _received(self, data: bytes) -> None:
        begun_bytes = self._frames.begun_in(data)
        self._stats.sent_records += self._frames.count(data)
        if self._ready and begun_bytes < len(data):  # what is ready goes before the next frame, which may be a PONG
            if begun_bytes:
                self._connection.send(data[:begun_bytes])
            super().flush()
            data = data[begun_bytes:]
        self._connection.send(data)
        self.flush()
        if self._frames.awaited_id is None:
            self._go_on_after_subscribe()

    def _go_on_after_subscribe(self) -> None:
        if self._subscribing:
            self._subscribing = self._busy = False
            self.advance_soon()

    def _lost(self) -> None:
        self._forget_waiting()  # a connection that is closed waits for what it holds
        self._connection.close()

    def flush(self) -> None:
        """Send what is ready, but not inside a frame of the node that leads."""
        if not self._frames.inside:
            super().flush()

    def _unlink(self) -> None:
        link, self._link = self._link, None
        self._go_on_after_subscribe()
        if link is not None:
            link.close()
            if self._frames.inside:
                self._connection.close()


class FrameCounter:
    """Finds where frames end in what comes in pieces of any size."""

    __slots__ = ("_head", "_missing_bytes", "awaited_id")

    def __init__(self) -> None:
        self._head = b""
        """What has come of the head of a frame, if that is not all of it."""
        self._missing_bytes = 0
        """Of the frame whose head has come."""
        self.awaited_id: int | None = None
        """The correlation id of a request, until its answer has begun."""

    @property
    def inside(self) -> bool:
        return bool(self._head) or self._missing_bytes > 0

    def begun_in(self, data: bytes) -> int:
        """Return how much of what comes next is of a frame that has begun."""
        missing_bytes = self._missing_bytes
        if self._head:
            head = self._head + data[:LENGTH_BYTES]
            if len(head) < LENGTH_BYTES:
                return len(data)
            missing_bytes = LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "big") - len(self._head)
        return max(0, min(missing_bytes, len(data)))

    def count(self, data: bytes) -> int:
        """Take what comes next; returns how many deliveries begin there. Raises OSError if it is no frame."""
        deliveries = 0
        position = min(self._missing_bytes, len(data))
        self._missing_bytes -= position
        data = self._head + data
        while len(data) - position >= HEAD_BYTES:
            length = int.from_bytes(data[position : position + LENGTH_BYTES], "big")
            if length > LENGTH_MAX:
                raise OSError(f"a frame of {length} bytes")
            kind = data[position + LENGTH_BYTES]
            deliveries += kind == _PUBLISH
            if self.awaited_id is not None and kind in _ANSWERS:
                correlation_id = int.from_bytes(data[position + LENGTH_BYTES + 1 : position + HEAD_BYTES], "big")
                if correlation_id == self.awaited_id:
                    self.awaited_id = None
            end = position + LENGTH_BYTES + length
            position = min(end, len(data))
            self._missing_bytes = end - position
        self._head = data[position:]
        return deliveries


class IntroducedSession(BlipMQSession):
    """Of a client of another node, on the node that leads. What that node has committed may not be seen here yet."""

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
