"""A subscription: a cursor over the log, and the stream that was opened for it.

When a commit brought something new, or the network takes more, it sends what lies between its cursor and the end; records stay in the
log, so one that is slow holds no more than its send buffer, and all of them together no more than the bound on unsent replies.

A subscriber that falls too far behind is handled as the listener says: it skips to the end (`drop`), stays where it is (`pause`), or is
ended (`close`). What it did not get is counted. One that asked for older records is not behind until it has caught up once: it gets all of
them, however many there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from penstock.errors import OffsetOutOfRange, PenstockError, TopicNotFound
from penstock.log.api import Partition
from penstock.net.quic_session import Stream
from penstock.protocols.bytes import U64
from penstock.protocols.felix.codec.frames import encode_message
from penstock.protocols.felix.codec.messages import EventStreamHello
from penstock.protocols.felix.server.events import Chunk, Form, Kind
from penstock.protocols.felix.server.feed import Feed
from penstock.protocols.felix.server.identities import Identity
from penstock.protocols.felix.wire import CLOSE_GONE, CLOSE_SLOW

log = structlog.get_logger(__name__)


class Subscriber:
    """One subscription, on the stream that was opened for it. Implements `penstock.net.quic_session.StreamSession`."""

    __slots__ = (
        "_address",
        "_feed",
        "_form",
        "_gone",
        "_identity",
        "_loading",
        "_on_gone",
        "_positions",
        "_replaying",
        "_stream",
        "_turn",
    )

    def __init__(
        self,
        feed: Feed,
        stream: Stream,
        subscription_id: int | str,
        *,
        identity: Identity,
        form: Form,
        starts: list[int],
        on_gone: Callable[[Subscriber], object],
    ) -> None:
        """Sends from the offsets `starts` on, one for each partition. `on_gone` is called when the subscription has ended."""
        self._feed = feed
        self._on_gone = on_gone
        self._stream = stream
        self._identity = identity
        self._form = form
        self._address = U64.pack(subscription_id) if form.kind is Kind.ADDRESSED else b""
        self._positions = starts
        self._turn = 0
        """The partition that is examined first, so that none starves the others."""
        self._loading: asyncio.Task[None] | None = None
        self._gone = False
        stream.send(encode_message(EventStreamHello(subscription_id=subscription_id)))
        feed.feeds.stats.subscribers += 1
        feed.add(self)
        self._replaying = any(
            start < partition.committed_end for start, partition in zip(starts, feed.partitions, strict=True)
        )
        """Whether it has yet to reach the end of the log for the first time."""
        if self._replaying:
            feed.wake()

    # --- what the network calls ---

    def receive(self, data: bytes) -> None:
        """Nothing comes on a stream that only we send on."""

    def resume(self) -> None:
        self.pump()

    def ended(self) -> None:
        pass

    def aborted(self, code: int) -> None:
        self._leave()

    def closed(self) -> None:
        self._leave()

    # --- sending ---

    def end(self) -> None:
        """The subscription is over, in good order."""
        if not self._gone:
            self._leave()
            self._stream.end()

    def check(self) -> bool:
        """Whether the topic is still there and may be read; ends the subscription if it is not."""
        feeds = self._feed.feeds
        try:
            if not feeds.identities.holds(self._identity):
                raise TopicNotFound("the API key was revoked")
            partition = feeds.broker.records.partition(self._identity.principal, self._feed.topic, 0)
            if partition is self._feed.partitions[0]:
                return True
        except PenstockError:
            pass
        self._break_off(CLOSE_GONE)
        return False

    def readable_partitions(self) -> Sequence[Partition]:
        """Return the partitions of the topic as it is now."""
        return self._feed.feeds.broker.records.readable_topic(self._identity.principal, self._feed.topic).partitions

    def take_up(self, count: int) -> None:
        """Send the records of partitions that were added, too.

        A client that is told offsets would take those of different partitions for one another, so its subscription ends.
        """
        if self._form.offsets:
            reason = "partitions were added, and the client is told offsets, which need one partition"
            log.warning("subscription_ended", topic=self._feed.topic, reason=reason)
            self._break_off(CLOSE_GONE)
        else:
            self._positions = [*self._positions, *[0] * count]

    def pump(self) -> None:
        """Send what the network takes of what is there."""
        if self._gone or not self.check():
            return
        if self._loading is None:
            while self._stream.writable:
                index = self._next_partition()
                if index is None:
                    self._replaying = False
                    return
                if not self._advance(index):
                    break
        self._enforce_lag_limit()

    def _next_partition(self) -> int | None:
        partitions, positions = self._feed.partitions, self._positions
        for step in range(len(partitions)):
            index = (self._turn + step) % len(partitions)
            if positions[index] < partitions[index].committed_end:
                self._turn = index + 1
                return index
        return None

    def _advance(self, index: int) -> bool:
        """Send the next chunk of a partition; False if it has to be read from disk first, or there is no room for it."""
        offset = self._positions[index]
        try:
            chunk = self._feed.chunk(self._form, index, offset)
        except OffsetOutOfRange:
            self._skip_deleted(index)
            return True
        if chunk is None:
            self._loading = asyncio.get_running_loop().create_task(self._load(index, offset))
            return False
        return self._send(index, chunk)

    async def _load(self, index: int, offset: int) -> None:
        """Records that are not in memory any more: one read at a time, and nothing kept of it but what was sent."""
        try:
            chunk = await self._feed.load(self._form, index, offset)
        except OffsetOutOfRange:
            self._loading = None
            self._skip_deleted(index)
        except Exception as error:
            self._loading = None
            bug = None if isinstance(error, PenstockError) else error
            log.warning("subscription_ended", topic=self._feed.topic, offset=offset, reason=str(error), exc_info=bug)
            self._break_off(CLOSE_GONE)
            return
        else:
            self._loading = None
            may_be_sent = not self._gone and self._positions[index] == offset  # it may have skipped ahead meanwhile
            if may_be_sent and not self._send(index, chunk):
                return
        self.pump()

    def _send(self, index: int, chunk: Chunk) -> bool:
        """Send a chunk; False if what peers have not taken leaves no room for it. `resume` is called when there is."""
        data = chunk.addressed_to(self._address)
        if not self._stream.room_for(len(data)):
            return False
        self._positions[index] = chunk.next_offset
        if data:
            stats = self._feed.feeds.stats
            stats.sent_records += chunk.events
            if chunk.headers and self._feed.feeds.broker.tracing is not None:
                self._feed.feeds.broker.tracing.deliver(self._feed.topic, chunk.headers, partition=index)
            self._stream.send(data)
        return True

    def _skip_deleted(self, index: int) -> None:
        """Retention was faster than this subscriber."""
        start = self._feed.partitions[index].start_offset
        self._feed.feeds.stats.dropped_events += max(start - self._positions[index], 0)
        self._positions[index] = max(start, self._positions[index])

    # --- being slow ---

    def _enforce_lag_limit(self) -> None:
        feeds, partitions = self._feed.feeds, self._feed.partitions
        if self._gone or self._replaying or feeds.slow == "pause":
            return
        ends = [partition.committed_end for partition in partitions]
        lag = sum(ends) - sum(self._positions)
        if lag <= feeds.lag_records_max:
            return
        feeds.stats.dropped_events += lag
        if feeds.slow == "close":
            feeds.stats.closed_subscribers += 1
            self._break_off(CLOSE_SLOW)
        else:
            self._positions = ends

    def _break_off(self, code: int) -> None:
        if not self._gone:
            self._leave()
            self._stream.reset(code)

    def _leave(self) -> None:
        if not self._gone:
            self._gone = True
            self._feed.feeds.stats.subscribers -= 1
            self._feed.remove(self)
            self._on_gone(self)
