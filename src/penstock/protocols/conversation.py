"""A client's conversation with the broker, as the sessions of all protocols share it: requests in, replies out in their order.

Work is bounded by turns of the event loop. A turn decodes a limited number of messages, which its decoder bounds, and only once those of
the turn before are started. What is not decoded stays bytes and counts as in flight (`hold`), as do the messages that wait and the
requests that are not answered; above its bound the connection is not read. So a peer with many small requests neither keeps others
waiting nor costs more memory than it sent.

Writes are started without waiting for each other's commit. What must wait for them (`_must_wait`) waits until all are done. A request
that cannot be answered at once runs in the background, and those after it wait for it. Nothing is started while the peer does not take
its replies (`writable` is False).

A large reply needs room among the unsent replies of all connections (`room_for`). If there is none, the reply is dropped and its request
waits until there is; so this holds for requests that may be carried out twice (`_reply_bytes_max`). Replies that are read from disk need
the room before.

Each request has a place among the replies (`ReplySlot`), which holds its bytes until it is answered. Replies that become ready together
leave as one send, because a send costs more than a reply.

Most conversations are idle, so an idle one is small: its queues are lists and linked places, where an empty deque takes 760 bytes. A list
moves all of its items if one is added or taken at its front, so messages wait in two lists: one to add to, and one to take from.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from penstock.broker.access.checks import Principal
from penstock.broker.broker import Broker
from penstock.errors import ProtocolViolation
from penstock.net.session import Connection
from penstock.stats import SessionStats
from penstock.workers import Work

GATHERED_BYTES_MAX: Final = 64 << 10
"""Ready replies are sent at the latest when they are this large together: more would only add a copy and hide from the connection
how full its send buffer is."""
BACKLOG_CHUNK_BYTES_MIN: Final = 64 << 10
"""Reads that wait to be decoded are joined up to this size, so that many small ones take no more memory than they count for."""
REQUEST_BYTES_MIN: Final = 256
"""What a waiting message counts for at least: a request may take 5 bytes on the wire, its message takes some 200 in memory."""
ROOM_NEEDED_BYTES_MIN: Final = 4 << 10
"""Smaller replies are sent without asking for room."""
INTERNAL_ERROR: Final = "internal error: the server's log has the details"

log = structlog.get_logger(__name__)

Message = TypeVar("Message")


class Decoder(Protocol[Message]):
    """Bytes to messages, for one direction of one conversation."""

    @property
    def more(self) -> bool:
        """Whether complete messages may be left undecoded: `feed(b"")` continues with them."""
        ...

    @property
    def partial(self) -> bool:
        """Whether the input ends inside a message. Means nothing while there is `more`."""
        ...

    @property
    def kept_bytes(self) -> int:
        """Bytes received and not decoded."""
        ...

    @property
    def violation(self) -> ProtocolViolation | None:
        """What ended the conversation, after the messages that were returned."""
        ...

    def feed(self, data: bytes) -> list[Message]:
        """Return messages that are complete, up to a bound. Raises ProtocolViolation if none precedes it."""
        ...

    def forget(self) -> None:
        """Free what is kept: nothing is decoded any more."""
        ...


class ReplySlot:
    """The place of one reply, and the request bytes that are held until it is there."""

    __slots__ = ("after", "data", "held_bytes", "is_late")

    def __init__(self, held_bytes: int, is_late: bool) -> None:
        """A late one takes its place when it is answered: replies to later requests do not wait for it."""
        self.after: ReplySlot | None = None
        """The place after this one."""
        self.data: bytes | None = None
        self.held_bytes = held_bytes
        self.is_late = is_late


class Conversation(ABC, Generic[Message]):
    """Implements `penstock.net.session.Session`. A protocol says what its messages mean."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_broker",
        "_bug_logged",
        "_busy",
        "_connection",
        "_decoder",
        "_first_slot",
        "_flush_scheduled",
        "_frame_pending",
        "_last_slot",
        "_loop",
        "_ready",
        "_ready_bytes",
        "_requeued",
        "_stats",
        "_task",
        "_turn_scheduled",
        "_waiting",
        "_waiting_behind",
        "_worker",
        "_writes_in_flight",
    )

    def __init__(self, broker: Broker, connection: Connection, decoder: Decoder[Message], stats: SessionStats) -> None:
        self._broker = broker
        self._connection = connection
        self._decoder = decoder
        self._stats = stats
        self._worker = broker.workers.worker()
        self._loop = asyncio.get_running_loop()
        self._backlog: list[bytes] = []
        """Reads that came while the decoder had more: few, because small ones are joined."""
        self._backlog_bytes = 0
        """What is held for bytes that are not decoded: the backlog's, and what the decoder keeps of the read before."""
        self._waiting: list[Message] = []
        """The next one last. Empty only if none waits."""
        self._waiting_behind: list[Message] = []
        """Those after them, the next one first."""
        self._first_slot: ReplySlot | None = None
        self._last_slot: ReplySlot | None = None
        self._ready: list[bytes] = []
        self._ready_bytes = 0
        self._writes_in_flight = 0
        self._requeued: Message | None = None
        """The request that waits to be carried out again."""
        self._busy = False
        """A request is being answered in the background; those after it wait."""
        self._task: asyncio.Task[None] | None = None
        self._turn_scheduled = False
        self._flush_scheduled = False
        self._frame_pending = False
        self._bug_logged = False

    # --- what a protocol says ---

    @abstractmethod
    def _held_bytes(self, message: Message) -> int:
        """Return what a waiting message counts for: at least REQUEST_BYTES_MIN."""

    @abstractmethod
    def _must_wait(self, message: Message) -> bool:
        """Return whether a message waits for the writes in flight."""

    @abstractmethod
    def _start(self, message: Message) -> None:
        """Answer a message, or see to it that it is answered later."""

    @abstractmethod
    def _refusal(self, message: Message, error: Exception) -> bytes:
        """Count and encode the reply to a message that failed."""

    def _count(self, message: Message) -> None:
        """Count a request that is about to be started, once, however often it is carried out."""

    def _reply_bytes_max(self, message: Message) -> int:
        """Return about how large the reply of a request may be that changes nothing, so that it may be carried out again; 0 for others."""
        return 0

    # --- what the network calls ---

    def receive(self, data: bytes) -> None:
        if not self._backlog_bytes:
            self._decode(data)
            return
        self._connection.hold(len(data))
        self._backlog_bytes += len(data)
        backlog = self._backlog
        if backlog and len(backlog[-1]) < BACKLOG_CHUNK_BYTES_MIN:
            backlog[-1] += data
        else:
            backlog.append(data)

    def resume(self) -> None:
        self.advance()

    def closed(self) -> None:
        self._worker.stop()
        self._forget_waiting()
        self._decoder.forget()  # a conversation and its parts know each other, so it goes with the next garbage collection

    def _forget_waiting(self) -> None:
        waiting_bytes = sum(map(self._held_bytes, self._waiting)) + sum(map(self._held_bytes, self._waiting_behind))
        self._waiting.clear()
        self._waiting_behind.clear()
        self._drop_backlog()
        if waiting_bytes:
            self._connection.release(waiting_bytes)

    # --- decoding ---

    def _decode(self, data: bytes) -> None:
        """Decode a turn's share, and start what may be started. Raises ProtocolViolation."""
        decoder, connection = self._decoder, self._connection
        try:
            messages = decoder.feed(data)
        except ProtocolViolation:
            self._drop_backlog()
            raise
        if messages:
            held_bytes = self._held_bytes(messages[0]) if len(messages) == 1 else sum(map(self._held_bytes, messages))
            connection.hold(held_bytes)
            if self._waiting:
                self._waiting_behind += messages
            else:
                self._waiting[:] = messages[::-1]
        had_backlog = self._backlog_bytes > 0
        if decoder.more or had_backlog:
            self._count_backlog()
        if messages or had_backlog or self._backlog_bytes:
            self.advance()
        if decoder.partial and not self._backlog_bytes:
            self._frame_pending = True
            connection.frame_pending(True, decoder.kept_bytes)
        elif self._frame_pending:
            self._frame_pending = False
            connection.frame_pending(False)
        if decoder.violation is not None:
            self._drop_backlog()
            raise decoder.violation

    def _refill(self) -> None:
        """Go on with the messages behind the last one that was taken."""
        self._waiting[:] = self._waiting_behind[::-1]
        self._waiting_behind.clear()

    def _count_backlog(self) -> None:
        before_bytes = self._backlog_bytes
        self._backlog_bytes = sum(map(len, self._backlog)) + (self._decoder.kept_bytes if self._decoder.more else 0)
        if self._backlog_bytes > before_bytes:
            self._connection.hold(self._backlog_bytes - before_bytes)
        elif self._backlog_bytes < before_bytes:
            self._connection.release(before_bytes - self._backlog_bytes)

    def _drop_backlog(self) -> None:
        self._backlog.clear()
        held_bytes, self._backlog_bytes = self._backlog_bytes, 0
        if held_bytes:
            self._connection.release(held_bytes)

    def _decode_in_thread(self, message: Message, decode: Work[Message]) -> None:
        """Decode what would take too long on the event loop, and put the result at the head of the queue.

        Writes before it may still be in flight; what follows waits.
        """
        self.in_background(self._replace(message, decode))

    async def _replace(self, message: Message, decode: Work[Message]) -> None:
        held_bytes = self._held_bytes(message)
        try:
            decoded = await self._worker.run(decode)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            self.answer(self.reserve(held_bytes), self._refusal(message, error))
            return
        if self._worker.stopped:
            self._connection.release(held_bytes)
            return
        # Held before the other is released, so that the connection never seems to owe nothing.
        self._connection.hold(self._held_bytes(decoded))
        self._connection.release(held_bytes)
        self._waiting.append(decoded)

    # --- turns ---

    def advance(self) -> None:
        """Start what may be started, and send what is ready."""
        waiting = self._waiting
        while waiting and not self._busy and self._connection.writable:
            if self._writes_in_flight and self._must_wait(waiting[-1]):
                break
            message = waiting.pop()
            if self._waiting_behind and not waiting:
                self._refill()
            if message is self._requeued:
                self._requeued = None
            else:
                self._count(message)
            self._start(message)
        if self._ready:
            self.flush()
        if self._backlog_bytes and not waiting:
            self.advance_soon()

    def advance_soon(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._connection.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        if self._backlog_bytes and not self._waiting:
            self._decode(b"" if self._decoder.more else self._backlog.pop(0))
        else:
            self.advance()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what must wait and answers its own request. It is not cancelled: half a new topic helps no one."""
        self._busy = True
        self._task = self._loop.create_task(self._until_done(work))

    async def _until_done(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:  # noqa: BLE001  what escapes must not leave the requests after it waiting
            self._log_bug(error)
        finally:
            self._busy = False
            self._task = None
        self.advance()

    def _answer_later(
        self,
        message: Message,
        slot: ReplySlot,
        reply: Coroutine[Any, Any, Any],
        encode: Callable[[Any], bytes] | None = None,
    ) -> None:
        """Answer with what a coroutine returns, or with its error. If it returns None it has seen to the answer itself.

        Anything else is encoded with `encode`, if given. Without room for the reply the coroutine is closed before it starts, so it must
        not wrap another one: that would never be awaited.
        """
        reply_bytes_max = self._reply_bytes_max(message)
        if reply_bytes_max and not self._connection.promise_room(reply_bytes_max):
            reply.close()
            self._requeue(message, slot)
            return
        self.in_background(self._answer_when_done(message, slot, reply, encode))

    async def _answer_when_done(
        self,
        message: Message,
        slot: ReplySlot,
        reply: Coroutine[Any, Any, Any],
        encode: Callable[[Any], bytes] | None,
    ) -> None:
        try:
            data = await reply
            if encode is not None:
                data = encode(data)
        except Exception as error:  # noqa: BLE001  whatever it is, it is answered
            data = self._refusal(message, error)
        if data is not None:
            self._answer_read(message, slot, data)

    async def _create_topic_and(self, write: Callable[[], None], principal: Principal, topic: str) -> None:
        await self._broker.topics.ensure(principal, topic)
        write()

    # --- replies ---

    def reserve(self, held_bytes: int, *, late: bool = False) -> ReplySlot:
        """Take the next place among the replies; `late`: the next when it is answered."""
        slot = ReplySlot(held_bytes, late)
        if not late:
            last, self._last_slot = self._last_slot, slot
            if last is None:
                self._first_slot = slot
            else:
                last.after = slot
        return slot

    def place(self, slot: ReplySlot) -> None:
        """Give a late reply the next place among the replies after all."""
        if slot.is_late:
            slot.is_late = False
            if self._last_slot is None:
                self._first_slot = slot
            else:
                self._last_slot.after = slot
            self._last_slot = slot

    def answer(self, slot: ReplySlot, reply: bytes) -> None:
        """Fill a place. The reply leaves with the next flush, once those before it are there; empty ones only give up their place."""
        slot.data = reply
        if slot.is_late:
            self.place(slot)
        front: ReplySlot | None = self._first_slot
        while front is not None and front.data is not None:
            if front.data:
                self._ready.append(front.data)
                self._ready_bytes += len(front.data)
            after, front.after = front.after, None  # so that whoever still has the slot does not keep those after it
            front = after
        self._first_slot = front
        if front is None:
            self._last_slot = None
        if self._ready_bytes >= GATHERED_BYTES_MAX:
            self.flush()
        self._connection.release(slot.held_bytes)

    def _answer_read(self, message: Message, slot: ReplySlot, reply: bytes) -> bool:
        """Answer a request that nothing was started after; if there is no room for its reply, it waits at the head of the queue.

        Returns whether it is answered.
        """
        size_bytes = len(reply)
        if (
            size_bytes > ROOM_NEEDED_BYTES_MIN
            and self._reply_bytes_max(message)
            and not self._connection.room_for(size_bytes)
        ):
            self._requeue(message, slot)
            return False
        self.answer(slot, reply)
        return True

    def _has_room_for(self, reply: bytes) -> bool:
        """Return whether a reply may be sent. If not, the connection is not writable until it may."""
        return len(reply) <= ROOM_NEEDED_BYTES_MIN or self._connection.room_for(len(reply))

    def _requeue(self, message: Message, slot: ReplySlot) -> None:
        """Put a request that nothing was started after back to the head of the queue."""
        slot.data = b""
        self._waiting.append(message)
        self._requeued = message

    def _settle_write(self, slot: ReplySlot, reply: bytes) -> None:
        """Answer a write that was in flight."""
        self._writes_in_flight -= 1
        self.answer(slot, reply)
        if self._writes_in_flight:
            self.flush_soon()
        elif self._waiting or self._backlog_bytes:
            self.advance()
        else:
            self.flush()

    def flush(self) -> None:
        """Send what is ready."""
        ready = self._ready
        if ready:
            data = ready[0] if len(ready) == 1 else b"".join(ready)
            ready.clear()
            self._ready_bytes = 0
            self._connection.send(data)

    def flush_soon(self) -> None:
        """Send what is ready at the end of this turn of the loop, with what else becomes ready until then."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled_replies)

    def _flush_scheduled_replies(self) -> None:
        self._flush_scheduled = False
        self.flush()

    # --- refusals ---

    def _log_bug(self, error: Exception, count: int = 1) -> None:
        """Count `count` requests that failed because of a bug, and log the first of a conversation."""
        self._stats.internal_errors += count
        if not self._bug_logged:
            self._bug_logged = True
            connection = self._connection
            log.error("request_failed", listener=connection.listener, peer=connection.peer, exc_info=error)
