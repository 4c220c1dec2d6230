"""One partition in Kafka: its bounds as they are known here, its tail in memory, and reading.

`position` is the next offset that was not examined, and `committed_end` the offset after the last record that a reader may see: what ends
a transaction, and records of an aborted one, lie between. An append of ours that lands at the position is known at once; if something lies
before it, that is fetched first (`catch_up`), and only then is the append answered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.errors import (
    CorruptBlock,
    InvalidRequest,
    NotLeading,
    NotWritten,
    OffsetOutOfRange,
    PenstockError,
    ShuttingDown,
    TopicNotFound,
)
from penstock.log.api import READ_BYTES_DEFAULT, Batch, BlockBatch, OnAppended, Partition, TopicConfig
from penstock.log.block import Block, BlockHeader, encode_block
from penstock.log.failed_partitions import FailedPartitions
from penstock.log.kafka.batches import split, visible
from penstock.log.kafka.client import Fetched, Place
from penstock.log.kafka.faults import topic_gone
from penstock.log.kafka.reader import RETRY_S_MAX, RETRY_S_MIN, Reader
from penstock.log.tail import RecentReads, Tail, TailBudget
from penstock.log.watchers import Watchers

if TYPE_CHECKING:
    from penstock.log.kafka.appends import Pending
    from penstock.log.kafka.claims import Claim
    from penstock.log.kafka.follower import Follower
    from penstock.log.kafka.sender import Sender

CATCH_UP_OFFSETS_MAX: Final = 10_000
"""A partition that is further behind forgets its tail instead of fetching what lies between."""
CATCH_UP_BYTES: Final = 1 << 20


class KafkaPartition(Partition):
    def __init__(
        self,
        topic: str,
        index: int,
        place: Place,
        config: TopicConfig,
        *,
        reader: Reader,
        sender: Sender,
        follower: Follower,
        tails: TailBudget,
        tail_bytes: int,
        failed: FailedPartitions,
    ) -> None:
        self.topic = topic
        self.index = index
        self.place = place
        self.config = config
        self.followed = False
        self.touched = 0.0
        """When it was last written to, read or asked about."""
        self.queue: deque[Pending] = deque()
        self.busy = False
        """Whether a batch is in flight; what was appended meanwhile waits in the queue."""
        self.sequence = 0
        self.claim: Claim | None = None
        """What a node must hold to write here, if not every node may."""
        self.position = 0
        self.watchers: Watchers[[]] = Watchers(self)
        self._reader = reader
        self._sender = sender
        self._follower = follower
        self._tails = tails
        self._tail = Tail(tails, tail_bytes)
        self._recent = RecentReads(tails, tail_bytes)
        self._loop = asyncio.get_running_loop()
        self._start = 0
        self._end = 0
        self._markers = 0
        """Ends of our own transactions behind the position: each takes an offset, and there is nothing to see."""
        self._catching_up = asyncio.Lock()
        self._unseen: list[tuple[int, Callable[[], None]]] = []
        """Appends that are stored and cannot be read yet: the offset after each, and its callback."""
        self._looking: asyncio.Task[None] | None = None
        self._size_bytes = 0
        self._failure: str | None = None
        self._failed = failed
        self._closed: type[TopicNotFound | ShuttingDown] | None = None

    def __str__(self) -> str:
        return f"topic {self.topic!r} partition {self.index}"

    @property
    def start_offset(self) -> int:
        return self._start

    @property
    def retained(self) -> bool:
        # Where it starts is not known before it was followed.
        bounded = self.config.retention_ms is not None or self.config.retention_bytes is not None
        return bounded or self._start > 0 or not self.followed

    @property
    def committed_end(self) -> int:
        return self._end

    @property
    def epoch(self) -> int:
        return 0  # what was acknowledged is not lost while a replica in sync is left

    def cut_since(self, epoch: int) -> int | None:
        return None

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @size_bytes.setter
    def size_bytes(self, size: int) -> None:
        self._size_bytes = size

    @property
    def failure(self) -> str | None:
        return self._failure

    def fail(self, reason: str) -> None:
        """Refuse writes from now on."""
        self._failure = self._failure or reason
        self._failed.add(self)

    # -- writing -----------------------------------------------------------------------------------------------------------

    def append(self, batch: Batch | BlockBatch, done: OnAppended, *, relaxed: bool = False) -> None:
        refusal = self.refusal(batch)
        if refusal is not None:
            self._loop.call_soon(done, refusal)
        else:
            self._sender.append(self, batch, done)

    def refusal(self, batch: Batch | BlockBatch | None = None) -> PenstockError | None:
        """Why an append made now would not be taken."""
        if self._closed is not None:
            return self._gone()
        if self.claim is not None and not self.claim.held:
            return NotLeading(f"nothing was written to {self}: {self.claim.what}, and another node does")
        if self._failure is not None:
            return NotWritten(f"nothing was written, because the partition has failed: {self._failure}")
        if batch is not None and self.config.cleanup == "compact" and not _all_have_keys(batch):
            return InvalidRequest(
                f"topic {self.topic!r} is compacted, and Kafka stores no record without a key there: set one"
            )
        return None

    def landed(self, offset: int, timestamp_ms: int, batch: Batch, *, marked: bool = False) -> None:
        """Our records are stored at this offset. `marked`: the end of their transaction follows them."""
        following = offset + batch.count
        self._size_bytes += batch.size_bytes
        self._follower.touch(self)
        if self.followed and offset == self.position + self._markers:
            data = encode_block(offset, timestamp_ms, batch.values, batch.keys, batch.headers, batch.expiries)
            self._tail.add(BlockHeader(data), data)
            self.position = following
            self._markers = 0
            self._moved(following)
        if marked and self.position == following:
            self._markers += 1

    def when_visible(self, offset: int, told: Callable[[], None]) -> None:
        """Call `told` once everything before an offset can be read; at once if it can."""
        if offset <= self._end or self._closed is TopicNotFound:
            told()
            return
        self._unseen.append((offset, told))
        if self._looking is None:
            self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        """Catch up until nothing is unseen. A transaction of somebody else that is open before it may take long."""
        pause_s = RETRY_S_MIN
        while self._unseen and self._closed is not TopicNotFound:
            try:
                await self.catch_up()
            except PenstockError:
                pause_s = RETRY_S_MAX
            if self._unseen:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_S_MAX)
        self._looking = None
        self._tell_seen()

    def _moved(self, end: int) -> None:
        if end > self._end:
            self._end = end
            self._tell_seen()
            self.watchers.notify()

    def _tell_seen(self) -> None:
        if self._unseen:
            gone = self._closed is TopicNotFound
            seen = [told for offset, told in self._unseen if gone or offset <= self._end]
            self._unseen = [] if gone else [each for each in self._unseen if each[0] > self._end]
            for told in seen:
                told()

    async def written(self) -> None:
        """Wait until nothing is in flight, and nothing waits to be."""
        while True:
            if not self.busy and not self.queue:
                return
            await asyncio.sleep(RETRY_S_MIN)

    # -- following ---------------------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        if self._closed is not None:
            raise self._gone()
        await self.catch_up()
        self._follower.touch(self)

    def opened_empty(self) -> None:
        """The topic was just created: nothing needs to be asked."""
        self.followed = True
        self._follower.touch(self)

    async def catch_up(self) -> None:
        """Ask for the bounds, and for what was stored since the last time if that is not much."""
        async with self._catching_up:
            start, stable_end = await self._reader.bounds(self.place)
            position = self.position
            if not self.followed or stable_end - position > CATCH_UP_OFFSETS_MAX or start > position:
                if stable_end != position or not self.followed:
                    await self._jump(start, stable_end)
            else:
                while self.position < stable_end:
                    before = self.position
                    self.absorb(await self._reader.fetch(self.place, before, CATCH_UP_BYTES))
                    if self.position == before:
                        break
            self._started_at(start)
            self.followed = True
            self._tell_seen()

    async def _jump(self, start: int, stable_end: int) -> None:
        """Go to the end without what lies between, unless appends of ours have gone there meanwhile."""
        end = await self._reader.visible_end(self.place, start, stable_end)
        if stable_end > self.position or not self.followed:
            self._tails.drop(self._tail)
            self.position = max(stable_end, self.position)
            self._markers = 0
            self.followed = True
            self._moved(max(end, start))

    def absorb(self, fetched: Fetched) -> bool:
        """Take over what was fetched from the position on, as far as it is not known; returns whether something was new."""
        self._started_at(fetched.start_offset)
        batches = list(split(fetched.data))
        new = [batch for batch in batches if batch.base_offset >= self.position]
        if not new:
            return False
        end = self._end
        blocks: list[Block] = []
        for batch in visible(batches, fetched.aborted):
            if batch.base_offset < self.position:
                continue
            try:
                block = batch.block()
            except CorruptBlock:
                blocks, end = [], batch.next_offset  # a reader that reaches it gets the error
                self._tails.drop(self._tail)
                continue
            if block is not None:
                blocks.append(block)
                end = block.next_offset
            elif batch.count:
                end = batch.next_offset  # it holds the place of records that are not there
        self._markers = max(0, self._markers - sum(batch.is_control for batch in new))
        self.position = new[-1].next_offset
        if blocks:
            self._tail.extend(blocks)
        self._moved(end)
        return True

    def _started_at(self, start: int) -> None:
        if start > self._start:
            self._start = start
            self._moved(max(self._end, start))

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        stop = self.watchers.add(callback)
        if not self.followed:
            self._follower.catch_up_soon(self)
        self._follower.touch(self)
        return stop

    # -- reading -----------------------------------------------------------------------------------------------------------

    def read_cached(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Block] | None:
        if not self.followed:
            return None
        self._check(offset)
        self.touched = self._loop.time()
        if offset == self._end:
            return []
        found = self._tail.blocks_from(offset, max_bytes)
        return self._recent.blocks_from(offset, max_bytes) if found is None else found

    async def read(self, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Block]:
        if not self.followed:
            await self.follow()
        found = self.read_cached(offset, max_bytes)
        if found is None:
            try:
                found = await self._reader.read(self.place, offset, self._end, max_bytes)
            except OffsetOutOfRange:
                await self.follow()  # retention has deleted it since
                self._check(offset)
                raise
            self._check(offset)
            if found:
                self._recent.add(found)
        return found

    def _check(self, offset: int) -> None:
        if self._closed is not None:
            raise self._gone()
        if not self._start <= offset <= self._end:
            raise OffsetOutOfRange(
                f"offset {offset} out of range: {self} holds {self._start} to {self._end} (exclusive)"
            )

    async def offset_at(self, timestamp_ms: int) -> int:
        if not self.followed:
            await self.follow()
        if self._closed is not None:
            raise self._gone()
        found = await self._reader.offset(self.place, max(timestamp_ms, 0))
        return self._end if found < 0 else min(max(found, self._start), self._end)

    async def timestamp_of(self, offset: int) -> int | None:
        blocks = await self.read(offset, 1)
        if not blocks:
            return None
        row = blocks[0].index_of(offset)
        return blocks[0].timestamps(row, row + 1)[0]

    async def delete_before(self, offset: int) -> int:
        await self.follow()
        wanted = min(offset, self._end)
        if wanted > self._start:
            self.truncated_to(await self._reader.delete_before(self.place, wanted))
        return self._start

    def truncated_to(self, start: int) -> None:
        """Records were deleted: what was kept of them is not shown any more."""
        self._started_at(start)
        self._recent.forget()

    # -- the end -----------------------------------------------------------------------------------------------------------

    def close(self, *, deleted: bool) -> None:
        """Take no more appends and reads."""
        self._closed = TopicNotFound if deleted else ShuttingDown
        if deleted:
            self._tails.drop(self._tail)
            self._recent.forget()
            self._tell_seen()

    def reopen(self) -> None:
        """The topic could not be deleted."""
        self._closed = None

    async def stop(self) -> None:
        """End what runs for this partition."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    @property
    def deleted(self) -> bool:
        return self._closed is TopicNotFound

    def _gone(self) -> TopicNotFound | ShuttingDown:
        if self._closed is TopicNotFound:
            return topic_gone(self)
        return ShuttingDown("the broker is stopping; send again when it is back")


def _all_have_keys(batch: Batch | BlockBatch) -> bool:
    if isinstance(batch, BlockBatch):
        return all((keys := block.keys()) is not None and None not in keys for block in batch.blocks)
    return batch.keys is not None and None not in batch.keys
