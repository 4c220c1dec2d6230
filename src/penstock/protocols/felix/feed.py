"""One stream and everyone who subscribes to it on one listener.

A subscriber is a cursor over the log. When a commit brought something new, or the network takes more, it sends what lies between its
cursor and the end; records stay in the log, so one that is slow holds no more than its send buffer. What the subscribers read is laid out
once: they mostly read at the same place, and the chunks made last are kept for the next of them. Where a record may expire they are not:
what was laid out then may not be shown any more.

Commits are gathered until the end of the turn of the loop they arrive in, which is within the 250 microseconds that an event may wait
for others to share its frame with; no timer of the loop is as fine as that.

A subscriber that falls too far behind is dealt with as the listener says: it skips to the end (`drop`), stays where it is (`pause`), or is
ended (`close`). What it did not get is counted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Literal

import structlog

from penstock.broker.broker import Broker
from penstock.clock import Clock
from penstock.errors import OffsetOutOfRange, PenstockError, TopicNotFound
from penstock.log.api import Partition
from penstock.log.block import EXPIRIES, Block
from penstock.net.quic_session import Stream
from penstock.protocols.bytes import U64
from penstock.protocols.felix.codec import encode_message
from penstock.protocols.felix.events import CHUNK_BYTES_MAX, Chunk, Form, Kind, encode_chunk
from penstock.protocols.felix.identities import Identities, Identity
from penstock.protocols.felix.messages import EventStreamHello
from penstock.protocols.felix.stats import FelixStats

SlowPolicy = Literal["drop", "pause", "close"]

CHUNKS_KEPT_BYTES_MAX: Final = 16 << 20
"""Of all streams together: what subscribers that are not quite level read one after the other."""
CHUNK_BYTES: Final = 512
"""What a chunk takes in memory beside its frames, which may be a few bytes only."""
SWEEP_S: Final = 1.0
"""How often streams are looked at on which nothing happens: whether they exist, and may still be read."""
CLOSE_SLOW: Final = 2
"""The code with which the stream of a subscriber that was too slow is reset."""
CLOSE_GONE: Final = 3
"""The same where the topic was deleted, or may not be read any more."""

log = structlog.get_logger("penstock.protocols.felix")


class Feeds:
    """Every stream that somebody on one listener subscribes to, by topic."""

    def __init__(
        self,
        broker: Broker,
        identities: Identities,
        stats: FelixStats,
        *,
        clock: Clock,
        slow: SlowPolicy,
        lag_records_max: int,
    ) -> None:
        self.broker = broker
        self.identities = identities
        self.stats = stats
        self.clock = clock
        self.slow: SlowPolicy = slow
        self.lag_records_max = lag_records_max
        self.chunks = _Chunks()
        self._feeds: dict[str, Feed] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def feed(self, identity: Identity, topic: str) -> Feed:
        """Raises TopicNotFound, or what the access check does."""
        found = self.broker.readable_topic(identity.principal, topic)
        feed = self._feeds.get(topic)
        if feed is not None and feed.partitions[0] is not found.partitions[0]:
            feed.check()  # the topic was deleted and made again: who read the old one is done
            feed = None
        if feed is None:
            feed = self._feeds[topic] = Feed(self, topic, list(found.partitions))
            self._sweep_later()
        return feed

    def forget(self, feed: Feed) -> None:
        if self._feeds.get(feed.topic) is feed:
            del self._feeds[feed.topic]

    def _sweep_later(self) -> None:
        if self._sweeping is None and self._feeds:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = None
        for feed in list(self._feeds.values()):
            feed.check()
        self._sweep_later()


class Feed:
    """One topic. Watches it while it has subscribers."""

    def __init__(self, feeds: Feeds, topic: str, partitions: list[Partition]) -> None:
        self.feeds = feeds
        self.topic = topic
        self.partitions = partitions
        self._loop = asyncio.get_running_loop()
        self._subscribers: dict[Subscriber, None] = {}
        self._flush_scheduled = False
        self._stop_watching: list[Callable[[], None]] = []

    def add(self, subscriber: Subscriber) -> None:
        if not self._subscribers:
            self._stop_watching = [partition.watch(self.wake) for partition in self.partitions]
        self._subscribers[subscriber] = None

    def remove(self, subscriber: Subscriber) -> None:
        self._subscribers.pop(subscriber, None)
        if not self._subscribers:
            for stop in self._stop_watching:
                stop()
            self._stop_watching = []
            self.feeds.forget(self)

    def check(self) -> None:
        """End those who may read this topic no more."""
        for subscriber in list(self._subscribers):
            subscriber.check()
        if not self._subscribers:  # also where the only one who asked was refused
            self.feeds.forget(self)

    def wake(self) -> None:
        """There is something to send: to be called when a commit made it readable."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        for subscriber in list(self._subscribers):
            subscriber.pump()

    def chunk(self, form: Form, index: int, offset: int) -> Chunk | None:
        """Frames from an offset on that is not the end; None where the disk has to be read first. Raises OffsetOutOfRange."""
        partition = self.partitions[index]
        chunk = self.feeds.chunks.get((partition, form, offset))
        if chunk is not None:
            return chunk
        blocks = partition.read_cached(offset, CHUNK_BYTES_MAX)
        return None if blocks is None else self._encode(partition, form, blocks, offset)

    async def load(self, form: Form, index: int, offset: int) -> Chunk:
        """The same, from the disk."""
        partition = self.partitions[index]
        blocks = await partition.read(offset, CHUNK_BYTES_MAX)
        # Others may have waited for the same.
        return self.feeds.chunks.get((partition, form, offset)) or self._encode(partition, form, blocks, offset)

    def _encode(self, partition: Partition, form: Form, blocks: list[Block], offset: int) -> Chunk:
        chunk = encode_chunk(form, blocks, offset, self.feeds.clock.now_ms())
        self.feeds.stats.encoded_events += chunk.events
        self.feeds.stats.oversized_events += chunk.oversized
        if not any(block.flags & EXPIRIES for block in blocks):
            self.feeds.chunks.keep((partition, form, offset), chunk)
        return chunk


class _Chunks:
    """Those made last, in bounded memory."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[tuple[Partition, Form, int], Chunk] = OrderedDict()
        self._size_bytes = 0

    def get(self, key: tuple[Partition, Form, int]) -> Chunk | None:
        return self._chunks.get(key)

    def keep(self, key: tuple[Partition, Form, int], chunk: Chunk) -> None:
        self._chunks[key] = chunk
        self._size_bytes += _size_bytes(chunk)
        while self._size_bytes > CHUNKS_KEPT_BYTES_MAX:
            _, oldest = self._chunks.popitem(last=False)
            self._size_bytes -= _size_bytes(oldest)


def _size_bytes(chunk: Chunk) -> int:
    return sum(map(len, chunk.pieces)) + CHUNK_BYTES


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
        """The partition that is looked at first, so that none starves the others."""
        self._loading: asyncio.Task[None] | None = None
        self._gone = False
        stream.send(encode_message(EventStreamHello(subscription_id=subscription_id)))
        feed.feeds.stats.subscribers += 1
        feed.add(self)
        if any(start < partition.committed_end for start, partition in zip(starts, feed.partitions, strict=True)):
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
        """Whether the topic is still there and may be read; ends the subscription where it is not."""
        feeds = self._feed.feeds
        try:
            if not feeds.identities.holds(self._identity):
                raise TopicNotFound("the API key was revoked")
            partition = feeds.broker.partition(self._identity.principal, self._feed.topic, 0)
            if partition is self._feed.partitions[0]:
                return True
        except PenstockError:
            pass
        self._break_off(CLOSE_GONE)
        return False

    def pump(self) -> None:
        """Send what the network takes of what is there."""
        if self._gone or not self.check():
            return
        if self._loading is None:
            while self._stream.writable:
                index = self._next_partition()
                if index is None:
                    return
                if not self._advance(index):
                    break
        self._keep_up()

    def _next_partition(self) -> int | None:
        partitions, positions = self._feed.partitions, self._positions
        for step in range(len(partitions)):
            index = (self._turn + step) % len(partitions)
            if positions[index] < partitions[index].committed_end:
                self._turn = index + 1
                return index
        return None

    def _advance(self, index: int) -> bool:
        """Send the next chunk of a partition; False where it has to be read from disk first."""
        offset = self._positions[index]
        try:
            chunk = self._feed.chunk(self._form, index, offset)
        except OffsetOutOfRange:
            self._skip_deleted(index)
            return True
        if chunk is None:
            self._loading = asyncio.get_running_loop().create_task(self._load(index, offset))
            return False
        self._send(index, chunk)
        return True

    async def _load(self, index: int, offset: int) -> None:
        """Records that are not in memory any more: one read at a time, and nothing kept of it but what was sent."""
        try:
            chunk = await self._feed.load(self._form, index, offset)
        except OffsetOutOfRange:
            self._loading = None
            self._skip_deleted(index)
        except PenstockError as error:
            self._loading = None
            log.warning("subscription_ended", topic=self._feed.topic, offset=offset, reason=str(error))
            self._break_off(CLOSE_GONE)
            return
        else:
            self._loading = None
            if not self._gone and self._positions[index] == offset:  # it may have skipped ahead meanwhile
                self._send(index, chunk)
        self.pump()

    def _send(self, index: int, chunk: Chunk) -> None:
        self._positions[index] = chunk.next_offset
        data = chunk.addressed_to(self._address)
        if data:
            stats = self._feed.feeds.stats
            stats.delivered_events += chunk.events
            stats.delivered_bytes += len(data)
            self._stream.send(data)

    def _skip_deleted(self, index: int) -> None:
        """Retention was faster than this subscriber."""
        start = self._feed.partitions[index].start_offset
        self._feed.feeds.stats.dropped_events += max(start - self._positions[index], 0)
        self._positions[index] = max(start, self._positions[index])

    # --- being slow ---

    def _keep_up(self) -> None:
        """Whoever is not at the end may be too far from it."""
        feeds, partitions = self._feed.feeds, self._feed.partitions
        if self._gone or feeds.slow == "pause":
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
