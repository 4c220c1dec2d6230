"""Publishing staged records: what makes a commit of any size all or nothing, and happen once.

The records of the winning tickets are appended to their partitions a chunk at a time. Each chunk is one atomic append, together with what
says how far the commit has come; so a crash leaves whole chunks, and the next start continues behind the last one.

- The first chunk carries the decision: the application's new epoch, the tickets that won, and how far this chunk comes. Before it, nothing
  has happened; from it on, the commit is never undone.
- A commit that fits into one chunk has no more steps than that. Its tickets end in the same append.
- The decision of a longer one must not outlive the staged records, which are written without waiting for the disk. So a mark is appended
  after them with the decision: an atomic append makes durable what its partitions held before.

Readers see the chunks of a long commit one after the other. Those of a commit that was interrupted come when the broker is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import structlog

from penstock.broker.table import PreparedChange, appended_together
from penstock.broker.transactions.blocks import StagedPart
from penstock.broker.transactions.commit_checks import check_topic, check_writable
from penstock.broker.transactions.entries import CommitEntry, StagedHeader, TicketEntry, decode_head, encode_head
from penstock.broker.transactions.states import State
from penstock.broker.transactions.tickets import READ_BYTES, StagedApplication, Ticket
from penstock.errors import CorruptBlock, OutcomeUnknown, ShuttingDown, TopicNotFound
from penstock.log.api import Batch, BatchFor, BlockBatch, Partition
from penstock.log.block import Block

log = structlog.get_logger(__name__)
Changes = list[PreparedChange[Any, Any]]


class Chunk(NamedTuple):
    """The next records to publish."""

    batches: list[BatchFor]
    end: int
    """How many requests are published when this one is."""


class Brought(NamedTuple):
    """Records for one topic that come with their commit, and were checked."""

    topic: str
    topic_id: str
    parts: Sequence[StagedPart]


class Publication:
    """The commit of some tickets of an application, from its first chunk to its last."""

    def __init__(
        self,
        application: StagedApplication,
        epoch: int,
        winners: Sequence[Ticket],
        brought: Sequence[Brought] = (),
        *,
        applied: int | None = None,
    ) -> None:
        """`brought` are records that come with the commit itself, and go with its first chunk. `applied`: how many requests were published
        by a commit that an earlier start of the broker decided."""
        self.application = application
        self.epoch = epoch
        self.winners = winners
        self.records = 0
        self.state = State.OPEN
        """That of the winners, too."""
        self.unknown_because = ""
        self.stalled = False
        """Whether the last attempt to publish the rest failed; the next sweep makes another."""
        self.task: asyncio.Task[None] | None = None
        self._engine = application.shared.engine
        # What a writer sends of an attempt that is being published is not part of it, now or after a restart.
        self._counts = [len(ticket.requests) if applied is None else ticket.entry.requests for ticket in winners]
        self._requests = [
            ticket.requests[sequence]
            for ticket, count in zip(winners, self._counts, strict=True)
            for sequence in range(count)
        ]
        self._brought = brought
        self._applied = applied or 0
        self._stopping = False
        self._become(State.COMMITTING)
        if applied is not None:
            self._become(State.PUBLISHING)

    def _become(self, state: State) -> None:
        self.state = self.state.then(state)
        for ticket in self.winners:
            ticket.become(state)

    def stop(self) -> None:
        """End between two chunks; the next start continues."""
        self._stopping = True

    async def decide(self, decision: Callable[[], Changes]) -> None:
        """Publish the first chunk with the decision. `decision` is asked for its changes when they are about to be appended.

        Raises what is wrong, and then nothing has happened; only OutcomeUnknown leaves that open until a restart.
        """
        try:
            await self._publish(await self._next_chunk(self._applied, deciding=True), decision())
        except BaseException:
            if self.state is State.COMMITTING:
                self._become(State.OPEN)
            raise
        self._become(State.PUBLISHING)

    async def finish(self) -> None:
        """Publish what is left, and end the tickets of the epoch."""
        reading: asyncio.Task[Chunk] | None = None
        try:
            while self._applied < len(self._requests):
                chunk = await (reading or self._next_chunk(self._applied))
                reading = None
                if chunk.end < len(self._requests):
                    reading = asyncio.create_task(self._next_chunk(chunk.end))
                if self._stopping:
                    raise ShuttingDown("the broker is shutting down; the commit continues after its restart")
                await self._publish(chunk, [])
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        self._become(State.COMMITTED)

    async def _next_chunk(self, start: int, *, deciding: bool = False) -> Chunk:
        blocks: dict[Partition, list[Block]] = {}
        reader: StagedReader | None = None
        at, size_bytes = start, 0
        for topic, _, parts in self._brought if deciding else ():
            for index, block in parts:
                blocks.setdefault(self._engine.partition(topic, index), []).append(block)
                size_bytes += block.size_bytes
        while at < len(self._requests) and size_bytes < self.application.shared.limits.staged_chunk_bytes:
            reader = reader or StagedReader(self._engine.partition(self.application.topic, 0))
            head, data, data_at = await reader.read(self._requests[at])
            try:
                self._sort(head, data, data_at, blocks)
            except TopicNotFound:
                if deciding:
                    raise
                # The decision cannot be taken back, and there is nowhere to write to.
                log.warning("staged_records_dropped", topic=head.topic)
            size_bytes += len(data) - data_at
            at += 1
        return Chunk([BatchFor(partition, BlockBatch(each)) for partition, each in blocks.items()], at)

    def _sort(self, head: StagedHeader, data: bytes, at: int, blocks: dict[Partition, list[Block]]) -> None:
        check_topic(self._engine, head.topic, head.topic_id, "after records were staged for it")
        for index, size_bytes in head.parts:
            # The record they were read from has passed its checksum.
            block = Block(data, at, checked=True)
            blocks.setdefault(self._engine.partition(head.topic, index), []).append(block)
            at += size_bytes
        if at != len(data):
            raise CorruptBlock(f"staged records for {head.topic} are truncated")

    async def _publish(self, chunk: Chunk, decision: Changes) -> None:
        last = chunk.end == len(self._requests)
        batches, changes = list(chunk.batches), [*decision]
        name, table, commits = self.application.name, self.application.shared.table, self.application.shared.commits
        if last:
            ended = [(ticket.key, None) for ticket in self.winners]
            if ended:
                changes.append(table.prepare(ended))
            if commits.get(name) is not None:
                changes.append(commits.prepare([(name, None)]))
        else:
            if self.state is State.COMMITTING:
                marked = [
                    (ticket.key, _chosen(ticket.entry, turn, count))
                    for turn, (ticket, count) in enumerate(zip(self.winners, self._counts, strict=True))
                ]
                changes.append(table.prepare(marked))
                batches.append(self._mark())
            changes.append(commits.prepare([(name, CommitEntry(self.epoch, chunk.end))]))
        parts = (*batches, *(change.part for change in changes))
        check_writable(parts, f"epoch {self.epoch} of {name} is not published further")
        if parts:
            try:
                await appended_together(self._engine, batches, changes)
            except OutcomeUnknown as error:
                self.unknown_because = str(error)
                self._become(State.UNKNOWN)
                raise
        self._applied = chunk.end
        self.records += sum(len(part.batch) for part in chunk.batches)

    def _mark(self) -> BatchFor:
        head = StagedHeader(self.epoch, "", 0, "", "", [])
        return BatchFor(self._engine.partition(self.application.topic, 0), Batch([b""], [encode_head(head)]))


def _chosen(entry: TicketEntry, turn: int, requests: int) -> TicketEntry:
    return TicketEntry(entry.owner, entry.run, entry.first_offset, turn, requests)


class StagedReader:
    """Reads staged requests of one application, in about the order in which they came."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._blocks: list[Block] = []

    async def read(self, offset: int) -> tuple[StagedHeader, bytes, int]:
        """A head, and the blocks that follow it: bytes that hold them, and where in these they begin."""
        block = _holding(self._blocks, offset)
        if block is None:
            self._blocks = await self._partition.read(offset, READ_BYTES)
            block = self._blocks[0]
        row = block.index_of(offset)
        keys = block.keys(row, row + 1)
        assert keys is not None
        head = decode_head(keys[0] or b"")
        if block.count == 1:
            return head, block.body(), block.raw_bytes - block.value_bytes
        return head, block.values(row, row + 1)[0] or b"", 0


def _holding(blocks: Iterable[Block], offset: int) -> Block | None:
    return next((block for block in blocks if block.base_offset <= offset < block.next_offset), None)
