"""Publishing staged records: what makes a commit of any size all or nothing, and happen once.

The records of the winning tickets are appended to their partitions a chunk at a time. Each chunk is one atomic append, together with what
says how far the commit has come; so a crash leaves whole chunks, and the next start goes on behind the last one.

- The first chunk carries the decision: the application's new epoch, the tickets that won, and how far this chunk comes. Before it, nothing
  has happened; from it on, the commit is never undone.
- A commit that fits into one chunk has no more steps than that. Its tickets end in the same append.
- The decision of a longer one must not outlive the staged records, which are written without waiting for the disk. So a mark is appended
  behind them with the decision: an atomic append makes durable what its partitions held before.

Readers see the chunks of a long commit one after the other. Those of a commit that was interrupted come when the broker is back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from penstock.broker.staging.entries import CommitEntry, StagedHead, TicketEntry, TicketKey, encode_head
from penstock.broker.staging.store import StagedApplication, StagedReader, Ticket
from penstock.broker.table import PreparedChange, Table, appended_together
from penstock.errors import CorruptBlock, NotWritten, OutcomeUnknown, PenstockError, ShuttingDown, TopicNotFound
from penstock.log.api import Batch, BatchFor, BlockBatch, Engine, Partition
from penstock.log.block import Block

_log = structlog.get_logger(__name__)
Changes = list[PreparedChange[Any, Any]]


class Chunk:
    """The next records to publish."""

    __slots__ = ("batches", "end", "records")

    def __init__(self, batches: list[BatchFor], end: int) -> None:
        self.batches = batches
        self.end = end
        """How many requests are published when this one is."""
        self.records = sum(len(part.batch) for part in batches)


class Publication:
    """One commit, from its first chunk to its last."""

    def __init__(
        self,
        engine: Engine,
        tickets_table: Table[TicketKey, TicketEntry],
        commits_table: Table[str, CommitEntry],
        application: StagedApplication,
        epoch: int,
        winners: Sequence[Ticket],
        *,
        chunk_bytes: int,
        applied: int = 0,
        decided: bool = False,
    ) -> None:
        self.epoch = epoch
        self.decided = decided
        self.records = 0
        self.failure: PenstockError | None = None
        """Set where only a restart can tell how far it has come."""
        self.stalled = False
        """Whether the last attempt to publish the rest failed; the next sweep makes another."""
        self.task: asyncio.Task[None] | None = None
        self._engine = engine
        self._tickets_table = tickets_table
        self._commits_table = commits_table
        self._application = application
        self._winners = winners
        # What a writer sends of an attempt that is being published is not part of it, now or after a restart.
        self._counts = [ticket.entry.requests if decided else len(ticket.requests) for ticket in winners]
        self._requests = [
            ticket.requests[sequence].offset
            for ticket, count in zip(winners, self._counts, strict=True)
            for sequence in range(count)
        ]
        self._applied = applied
        self._chunk_bytes = chunk_bytes
        self._stopping = False

    @property
    def winners(self) -> Sequence[Ticket]:
        return self._winners

    def stop(self) -> None:
        """End between two chunks; the next start goes on."""
        self._stopping = True

    async def decide(self, decision: Callable[[], Changes]) -> None:
        """Publish the first chunk with the decision. `decision` is asked for its changes when they are about to be appended.

        Raises what is wrong, and then nothing has happened; only OutcomeUnknown leaves that open until a restart.
        """
        chunk = await self._next_chunk(self._applied, must_exist=True)
        await self._publish(chunk, decision())
        self.decided = True

    async def finish(self) -> None:
        """Publish what is left."""
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

    async def _next_chunk(self, start: int, *, must_exist: bool = False) -> Chunk:
        blocks: dict[Partition, list[Block]] = {}
        reader: StagedReader | None = None
        at, size_bytes = start, 0
        while at < len(self._requests) and size_bytes < self._chunk_bytes:
            reader = reader or StagedReader(self._engine.partition(self._application.topic, 0))
            head, data, data_at = await reader.read(self._requests[at])
            try:
                self._sort(head, data, data_at, blocks)
            except TopicNotFound:
                if must_exist:
                    raise
                # The decision cannot be taken back, and there is nowhere to write to.
                _log.warning("staged_records_dropped", topic=head.topic)
            size_bytes += len(data) - data_at
            at += 1
        return Chunk([BatchFor(partition, BlockBatch(each)) for partition, each in blocks.items()], at)

    def _sort(self, head: StagedHead, data: bytes, at: int, blocks: dict[Partition, list[Block]]) -> None:
        info = self._engine.topics().get(head.topic)
        if info is None or info.id != head.topic_id:
            raise TopicNotFound(f"topic not found: {head.topic} was deleted after records were staged for it")
        for index, size_bytes in head.parts:
            # The record they were read from has passed its checksum.
            block = Block(data, at, checked=True)
            blocks.setdefault(self._engine.partition(head.topic, index), []).append(block)
            at += size_bytes
        if at != len(data):
            raise CorruptBlock(f"staged records for {head.topic} are not as long as they were")

    async def _publish(self, chunk: Chunk, decision: Changes) -> None:
        last = chunk.end == len(self._requests)
        batches, changes = list(chunk.batches), [*decision]
        name = self._application.name
        if last:
            ended = [(ticket.key, None) for ticket in self._winners]
            if ended:
                changes.append(self._tickets_table.prepare(ended))
            if self._commits_table.get(name) is not None:
                changes.append(self._commits_table.prepare([(name, None)]))
        else:
            if not self.decided:
                marked = [
                    (ticket.key, _chosen(ticket.entry, turn, count))
                    for turn, (ticket, count) in enumerate(zip(self._winners, self._counts, strict=True))
                ]
                changes.append(self._tickets_table.prepare(marked))
                batches.append(self._mark())
            changes.append(self._commits_table.prepare([(name, CommitEntry(self.epoch, chunk.end))]))
        for part in (*batches, *(change.part for change in changes)):
            if part.partition.failure is not None:
                raise NotWritten(f"epoch {self.epoch} of {name} is not published further: {part.partition.failure}")
        if batches or changes:
            try:
                await appended_together(self._engine, batches, changes)
            except OutcomeUnknown as error:
                self.failure = error
                raise
        self._applied = chunk.end
        self.records += chunk.records

    def _mark(self) -> BatchFor:
        head = StagedHead(self.epoch, "", 0, "", "", [])
        return BatchFor(self._engine.partition(self._application.topic, 0), Batch([b""], [encode_head(head)]))


def _chosen(entry: TicketEntry, turn: int, requests: int) -> TicketEntry:
    return TicketEntry(entry.owner, entry.run, entry.first_offset, turn, requests)
