"""One stream and everyone who subscribes to it on one listener (`subscriber`).

What the subscribers read is laid out once: they mostly read at the same place, and the chunks made last are kept for the next of them.
Where a record may expire they are not: what was laid out then may not be shown any more.

Commits are gathered until the end of the turn of the loop they arrive in, which is within the 250 microseconds that an event may wait
for others to share its frame with; no timer of the loop is as fine as that.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from penstock.broker.broker import Broker
from penstock.broker.tracing import headers_of
from penstock.clock import Clock
from penstock.log.api import Partition
from penstock.log.block import EXPIRIES, Block
from penstock.protocols.felix.server.events import CHUNK_BYTES_MAX, Chunk, Form, encode_chunk
from penstock.protocols.felix.server.identities import Identities, Identity
from penstock.protocols.felix.server.stats import FelixStats

if TYPE_CHECKING:
    from penstock.protocols.felix.server.subscriber import Subscriber

SlowPolicy = Literal["drop", "pause", "close"]

CHUNKS_KEPT_BYTES_MAX: Final = 16 << 20
"""For all streams together: what subscribers that are not quite level read one after the other. The last one is kept in any case, so that
an event that is as large as all of this is laid out once, too."""
CHUNK_BYTES: Final = 512
"""What a chunk takes in memory besides its frames, which may be a few bytes only."""
SWEEP_S: Final = 1.0
"""How often streams are examined on which nothing happens: whether they exist, and may still be read."""


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
        found = self.broker.records.readable_topic(identity.principal, topic)
        feed = self._feeds.get(topic)
        if feed is not None and feed.partitions[0] is not found.partitions[0]:
            feed.check()  # the topic was deleted and made again: who read the old one is done
            feed = None
        if feed is not None:
            feed.take_up(found.partitions)
        else:
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

    def take_up(self, partitions: Sequence[Partition]) -> None:
        """Read partitions that were added to the topic, from their start."""
        added = partitions[len(self.partitions) :]
        if not added:
            return
        self.partitions += added
        if self._stop_watching:
            self._stop_watching += [partition.watch(self.wake) for partition in added]
        for subscriber in list(self._subscribers):
            subscriber.take_up(len(added))
        self.wake()

    def check(self) -> None:
        """End those who may read this topic no more, and let the others read partitions that were added to it."""
        for subscriber in list(self._subscribers):
            if subscriber.check():
                self.take_up(subscriber.readable_partitions())
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
        """Frames from an offset on that is not the end; None if the disk has to be read first. Raises OffsetOutOfRange."""
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
        if self.feeds.broker.tracing is not None:
            chunk = chunk._replace(headers=_traced_headers(blocks, offset, chunk.next_offset))
        self.feeds.stats.encoded_events += chunk.events
        self.feeds.stats.oversized_events += chunk.oversized
        if not any(block.flags & EXPIRIES for block in blocks):
            self.feeds.chunks.keep((partition, form, offset), chunk)
        return chunk


def _traced_headers(blocks: Sequence[Block], offset: int, next_offset: int) -> list[bytes]:
    """Return the header cells of the records between two offsets."""
    cells: list[bytes] = []
    for block in blocks:
        rows = range(block.index_of(offset), block.index_of(next_offset))
        if rows:
            cells += [cell for _, cell in headers_of(block, rows)]
    return cells


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
        while self._size_bytes > CHUNKS_KEPT_BYTES_MAX and len(self._chunks) > 1:
            _, oldest = self._chunks.popitem(last=False)
            self._size_bytes -= _size_bytes(oldest)


def _size_bytes(chunk: Chunk) -> int:
    return sum(map(len, chunk.pieces)) + sum(map(len, chunk.headers)) + CHUNK_BYTES
