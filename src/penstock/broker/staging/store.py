"""Where staged records wait: one internal topic for each application, and in memory which of its records belong to which ticket.

A topic of its own means that what one application leaves lying about keeps nobody else's space: its topic ends with it. Records of
tickets that are published or dropped are garbage; whole segments of it are given back (`free`). After a crash the tickets that the
table knows are found again by reading the topic from where the oldest of them begins, which takes as long as they are large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import structlog

from penstock.broker.staging.entries import (
    STAGING_CONFIG,
    StagedHead,
    TicketEntry,
    TicketKey,
    decode_head,
    staging_topic,
)
from penstock.errors import CorruptBlock, PenstockError, TopicExists, TopicNotFound
from penstock.log.api import Engine, Partition, follow_all
from penstock.log.block import Block

if TYPE_CHECKING:
    from penstock.broker.staging.publication import Publication

READ_BYTES = 1 << 20

_log = structlog.get_logger(__name__)

OnStaged = Callable[[PenstockError | None], None]


class Staged(NamedTuple):
    """One request, where it is."""

    offset: int
    size_bytes: int


class Ticket:
    """What one attempt of one task staged."""

    __slots__ = (
        "arriving",
        "before",
        "dropped",
        "entry",
        "gone",
        "key",
        "opening",
        "requests",
        "size_bytes",
        "topics",
        "touched_s",
    )

    def __init__(self, key: TicketKey, entry: TicketEntry, touched_s: float) -> None:
        self.key = key
        self.entry = entry
        self.touched_s = touched_s
        self.requests: dict[int, Staged] = {}
        """By sequence."""
        self.arriving: dict[int, list[OnStaged]] = {}
        """By sequence: requests on their way to the log, and who waits for them. The same one may come twice."""
        self.topics: dict[str, str] = {}
        """Names and ids of the topics it writes to."""
        self.size_bytes = 0
        self.opening: list[Callable[[PenstockError | None], None]] | None = None
        """While the ticket is being entered in the table: what waits for that."""
        self.dropped = False
        self.gone: asyncio.Event | None = None
        """Of one that was dropped with requests on their way to the log: set when they have come back."""
        self.before: asyncio.Event | None = None
        """`gone` of the ticket that had this name before, where its requests may still reach the log."""

    def has_first(self, requests: int) -> bool:
        return all(sequence in self.requests for sequence in range(requests))

    def whole(self, requests: int) -> bool:
        return len(self.requests) == requests and self.has_first(requests)


class StagedApplication:
    """The tickets of one application."""

    __slots__ = ("changing", "leaving", "name", "publication", "single", "size_bytes", "tickets", "topic", "touched_s")

    def __init__(self, name: str, touched_s: float) -> None:
        self.name = name
        self.topic = staging_topic(name)
        self.tickets: dict[tuple[int, str], Ticket] = {}
        self.leaving: dict[tuple[int, str], asyncio.Event] = {}
        """`gone` of the last ticket of this name that was dropped, until it is."""
        self.size_bytes = 0
        self.touched_s = touched_s
        self.changing = asyncio.Lock()
        """Held by whoever creates or deletes the topic."""
        self.publication: Publication | None = None
        """The commit that is under way, or that could not go on."""
        self.single = False
        """Whether nothing more is to be expected of it once it is committed."""


class StagingStore:
    """The staging topics of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def partition(self, application: StagedApplication) -> Partition:
        """The one partition of the application's topic, made if it is not there."""
        async with application.changing:
            if application.topic not in self._engine.topics():
                try:
                    await self._engine.create_topic(application.topic, STAGING_CONFIG)
                except TopicExists:
                    pass
            return self._engine.partition(application.topic, 0)

    async def delete(self, application: StagedApplication) -> None:
        async with application.changing:
            if application.tickets or application.publication is not None:
                return
            try:
                await self._engine.delete_topic(application.topic)
            except TopicNotFound:
                pass

    async def free(self, application: StagedApplication) -> None:
        """Give back what lies before the first record that is still wanted."""
        if application.topic not in self._engine.topics():
            return
        partition = self._engine.partition(application.topic, 0)
        await follow_all([partition])
        wanted = min((ticket.entry.first_offset for ticket in application.tickets.values()), default=None)
        await partition.delete_before(partition.committed_end if wanted is None else wanted)

    async def find(self, application: StagedApplication) -> None:
        """Fill in the requests of tickets that were loaded from the table."""
        if application.topic not in self._engine.topics():
            return
        partition = self._engine.partition(application.topic, 0)
        await follow_all([partition])
        first = min(ticket.entry.first_offset for ticket in application.tickets.values())
        offset = max(first, partition.start_offset)
        while offset < partition.committed_end:
            try:
                blocks = await partition.read(offset, READ_BYTES)
            except CorruptBlock as error:
                # What cannot be read is not there: a commit that names it is refused, and its writer writes it again.
                _log.error("staged_records_unreadable", application=application.name, error=str(error))
                break
            if not blocks:
                break
            for block in blocks:
                _find_in(application, block)
            offset = blocks[-1].next_offset


def _find_in(application: StagedApplication, block: Block) -> None:
    offsets, heads, values = block.offsets(), block.keys(), block.values()
    for offset, head_bytes, value in zip(offsets, heads or [], values, strict=True):
        head = decode_head(head_bytes or b"")
        ticket = application.tickets.get((head.epoch, head.attempt))
        if ticket is not None and offset >= ticket.entry.first_offset:
            size_bytes = len(value or b"")
            ticket.requests[head.sequence] = Staged(offset, size_bytes)
            ticket.topics[head.topic] = head.topic_id


class StagedReader:
    """Reads staged requests of one application, in about the order in which they came."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._blocks: list[Block] = []

    async def read(self, offset: int) -> tuple[StagedHead, bytes, int]:
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
