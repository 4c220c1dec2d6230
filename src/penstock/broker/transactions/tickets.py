"""Tickets: transactions of one attempt each, whose records are staged in the log.

Each application has an internal topic in which its staged records wait, so that what it leaves lying about keeps nobody else's space: the
topic ends with it. A ticket is opened by its first request: entered in the table, so that a restart knows of it, and given a place in its
application's topic. Requests that come meanwhile wait for that. The same request may come again, on another connection, while the first is
on its way: both hear how the first one ends.

Records of tickets that are published or dropped are garbage; whole segments of it are given back. After a crash the tickets that the table
knows are found again by reading the topic from where the oldest of them begins, which takes as long as they are large.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from penstock.background import Tasks
from penstock.broker.access.checks import Principal
from penstock.broker.part import Context
from penstock.broker.table import Table
from penstock.broker.transactions.blocks import StagedPart
from penstock.broker.transactions.commit_checks import check_topic
from penstock.broker.transactions.entries import (
    COMMITS_TOPIC,
    REQUEST_BYTES_MIN,
    STAGING_CONFIG,
    STAGING_PREFIX,
    TICKET_BYTES_MAX,
    TICKETS_TOPIC,
    CommitEntry,
    Place,
    StagedHeader,
    TicketEntry,
    TicketKey,
    Winner,
    decode_head,
    encode_head,
    staging_topic,
)
from penstock.broker.transactions.states import State, Transaction
from penstock.errors import (
    CorruptBlock,
    LimitExceeded,
    PenstockError,
    ServerError,
    TopicExists,
    TopicNotFound,
    TransactionNotActive,
    TransactionNotFound,
)
from penstock.log.api import Appended, BlockBatch, Partition, TopicInfo, follow_all
from penstock.log.block import Block, wrap_blocks

if TYPE_CHECKING:
    from penstock.broker.transactions.publication import Publication

# A topic costs two directories and some files, which a query that writes every few seconds should not pay each time.
IDLE_S_MAX: Final = 120.0
READ_BYTES: Final = 1 << 20
DELETED: Final = "after records were staged for it; write the epoch again"

log = structlog.get_logger(__name__)

OnStaged = Callable[[PenstockError | None], None]


@dataclass(slots=True)
class StagingStats:
    """Plain numbers, exported on scrape."""

    tickets: int = 0
    staged_bytes: int = 0
    commits: int = 0
    repeated_commits: int = 0
    published_records: int = 0
    aborted_tickets: int = 0
    expired_tickets: int = 0


class Ticket(Transaction):
    """What one attempt of one task staged."""

    __slots__ = ("arriving", "drained", "entry", "key", "requests", "topics", "touched_s", "waiting")

    def __init__(self, key: TicketKey, entry: TicketEntry, touched_s: float, state: State) -> None:
        super().__init__(entry.owner, state)
        self.key = key
        self.entry = entry
        self.touched_s = touched_s
        self.requests: dict[int, int] = {}
        """By sequence: their offsets."""
        self.arriving: dict[int, list[OnStaged]] = {}
        """By sequence: requests on their way to the log, and who waits for them. The same one may come twice."""
        self.topics: dict[str, str] = {}
        """Names and ids of the topics it writes to."""
        self.waiting: list[Callable[[PenstockError | None], None]] = []
        """While it is opening: what appends the requests that have come."""
        self.drained: asyncio.Event | None = None
        """For one that ended with requests on their way to the log: set when they have come back."""

    def has_first(self, requests: int) -> bool:
        return all(sequence in self.requests for sequence in range(requests))

    def whole(self, requests: int) -> bool:
        return self.state is State.OPEN and len(self.requests) == requests and self.has_first(requests)


class Tickets:
    """The tickets of one broker, by application; their tables, and what they hold together."""

    def __init__(self, context: Context) -> None:
        self.engine = context.engine
        self.clock = context.clock
        self.limits = context.limits
        self.stats = StagingStats()
        self.health = context.background.health("staging_tickets")
        self.tasks = Tasks()
        self.by_application: dict[str, StagedApplication] = {}
        self.table: Table[TicketKey, TicketEntry] = Table(
            context.engine,
            TICKETS_TOPIC,
            TicketKey,
            TicketEntry,
            # Those that end are deleted a moment later.
            entries_max=2 * context.limits.staged_tickets_max,
            limit="limits.staged_tickets_max",
            background=context.background,
            value_bytes_max=TICKET_BYTES_MAX,
        )
        self.commits: Table[str, CommitEntry] = Table(
            context.engine,
            COMMITS_TOPIC,
            str,
            CommitEntry,
            entries_max=context.limits.staged_applications_max,
            limit="limits.staged_applications_max",
            background=context.background,
        )

    async def load(self) -> None:
        """Find the tickets of before, and remove the topics in which there are none."""
        await self.table.load()
        now_s = self.clock.monotonic()
        for key, entry in self.table.items():
            application = self.by_application.setdefault(key.application, StagedApplication(key.application, self))
            application.tickets[key] = Ticket(key, entry, now_s, State.OPEN)
        for application in list(self.by_application.values()):
            await application.find()
            if not application.tickets:
                del self.by_application[application.name]
        kept = {application.topic for application in self.by_application.values()}
        for topic in [name for name in self.engine.topics() if name.startswith(STAGING_PREFIX) and name not in kept]:
            await self.engine.delete_topic(topic)
        await self.commits.load()

    async def close(self) -> None:
        await self.table.close()
        await self.commits.close()

    def forget_ended(self) -> None:
        """Delete the entries of tickets that have ended: where that failed when they did, on a full disk for one, they are still there."""
        self.table.forget(key for key, _ in self.table.items() if not self._has(key))

    def _has(self, key: TicketKey) -> bool:
        application = self.by_application.get(key.application)
        return application is not None and key in application.tickets

    def application(self, name: str) -> StagedApplication:
        application = self.by_application.get(name)
        if application is None:
            if len(self.by_application) >= self.limits.staged_applications_max:
                raise LimitExceeded(
                    f"{len(self.by_application)} applications stage records, the most allowed: wait for some to end, "
                    "or raise limits.staged_applications_max"
                )
            application = self.by_application[name] = StagedApplication(name, self)
        return application


class StagedApplication:
    """The tickets of one application, and the topic in which their records wait."""

    __slots__ = (
        "_changing",
        "_draining",
        "name",
        "publication",
        "shared",
        "single",
        "size_bytes",
        "tickets",
        "topic",
        "touched_s",
    )

    def __init__(self, name: str, shared: Tickets) -> None:
        self.name = name
        self.shared = shared
        self.topic = staging_topic(name)
        self.tickets: dict[TicketKey, Ticket] = {}
        """Those that have not ended."""
        self.size_bytes = 0
        self.touched_s = shared.clock.monotonic()
        self.publication: Publication | None = None
        """The commit that is under way, or that could not continue."""
        self.single = False
        """Whether nothing more is to be expected of it once it is committed."""
        self._draining: dict[TicketKey, Ticket] = {}
        """The last ticket of each key that ended with requests on their way, until they have come back."""
        self._changing = asyncio.Lock()
        """Held while the topic is created or deleted."""

    # -- staging ----------------------------------------------------------------------------------------------------------

    def stage(
        self, principal: Principal, place: Place, info: TopicInfo, done: OnStaged, parts: Sequence[StagedPart]
    ) -> None:
        """Take one request that was checked. Raises, or calls `done` with, what keeps it from being stored."""
        key = TicketKey(self.name, place.epoch, place.attempt)
        ticket = self.tickets.get(key)
        if ticket is not None:
            if place.sequence in ticket.requests:
                asyncio.get_running_loop().call_soon(done, None)
                return
            if place.sequence in ticket.arriving:
                ticket.arriving[place.sequence].append(done)
                return
            if ticket.topics.get(info.name, info.id) != info.id:
                raise TopicNotFound(f"topic not found: {info.name} was deleted {DELETED}")
        size_bytes = sum(part.block.size_bytes for part in parts)
        self._check_room(_counted(size_bytes), is_new=ticket is None)
        if ticket is None:
            ticket = self._open(key, TicketEntry(principal.name, place.run, 0))
        self._count(ticket, _counted(size_bytes))
        ticket.arriving[place.sequence] = [done]
        ticket.topics[info.name] = info.id
        sizes = [(part.partition, part.block.size_bytes) for part in parts]
        head = StagedHeader(place.epoch, place.attempt, place.sequence, info.name, info.id, sizes)
        batch = BlockBatch([wrap_blocks(encode_head(head), [part.block for part in parts])])
        append = partial(self._append, ticket, place.sequence, size_bytes, batch)
        if ticket.state is State.OPENING:
            ticket.waiting.append(append)
        else:
            append(None)

    def _append(
        self, ticket: Ticket, sequence: int, size_bytes: int, batch: BlockBatch, error: PenstockError | None
    ) -> None:
        """Append a request to the log, unless an error kept its ticket from being opened."""
        returned = partial(self._returned, ticket, sequence, size_bytes)
        try:
            if error is not None:
                raise error
            partition = self.shared.engine.partition(self.topic, 0)
        except PenstockError as refused:
            returned(refused)
        else:
            partition.append(batch, returned)

    def _returned(self, ticket: Ticket, sequence: int, size_bytes: int, result: Appended | PenstockError) -> None:
        """A request has come back from the log."""
        waiting = ticket.arriving.pop(sequence)
        error: PenstockError | None = None
        if self.tickets.get(ticket.key) is not ticket:
            error = _ended(ticket)
        elif isinstance(result, PenstockError):
            error = result
            self._count(ticket, -_counted(size_bytes))
        else:
            ticket.requests[sequence] = result.base_offset
            ticket.touched_s = self.touched_s = self.shared.clock.monotonic()
        if ticket.drained is not None and not ticket.arriving:
            ticket.drained.set()
            if self._draining.get(ticket.key) is ticket:
                del self._draining[ticket.key]
        for done in waiting:
            done(error)

    def _open(self, key: TicketKey, entry: TicketEntry) -> Ticket:
        """A ticket that takes requests at once; they wait until it is in the table and has a topic to go to."""
        ticket = self.tickets[key] = Ticket(key, entry, self.shared.clock.monotonic(), State.OPENING)
        self.shared.stats.tickets += 1
        _ = self.shared.tasks.run(self._enter(ticket, self._draining.get(key)), quiet=True)
        return ticket

    async def _enter(self, ticket: Ticket, before: Ticket | None) -> None:
        error: PenstockError | None = None
        if before is not None and before.drained is not None:
            # What an attempt of this name sent before it was dropped must not be found behind the place where this one begins.
            await before.drained.wait()
        try:
            partition = await self._partition()
            await follow_all([partition])
            ticket.entry = TicketEntry(ticket.owner, ticket.entry.run, partition.committed_end)
            await self.shared.table.put(ticket.key, ticket.entry)
        except PenstockError as refused:
            error = refused
        except Exception as bug:  # noqa: BLE001  the requests that wait for the ticket are answered whatever it is
            self.shared.health.failed(bug, retried=False)
            error = ServerError(f"internal error: {type(bug).__name__}")
        else:
            self.shared.health.succeeded()
        if ticket.state is not State.OPENING:
            error = _ended(ticket)
        elif error is None:
            ticket.become(State.OPEN)
        while ticket.waiting:
            ticket.waiting.pop(0)(error)
        if ticket.state is State.OPENING:
            ticket.become(State.ROLLED_BACK)
            self._remove(ticket)
        if ticket.key not in self.tickets:
            # Where the attempt has begun again meanwhile, the entry is its own by now, or will be.
            self._delete_entries([ticket])

    def _check_room(self, size_bytes: int, *, is_new: bool) -> None:
        limits, stats = self.shared.limits, self.shared.stats
        if is_new and stats.tickets >= limits.staged_tickets_max:
            raise LimitExceeded(
                f"{stats.tickets} tickets hold staged records, the most allowed: commit or abort some, "
                "or raise limits.staged_tickets_max"
            )
        if self.size_bytes + size_bytes > limits.staged_application_bytes_max:
            raise LimitExceeded(
                f"application {self.name} has {self.size_bytes} bytes staged: no more than "
                f"{limits.staged_application_bytes_max} fit; write less at a time or raise limits.staged_application_bytes_max"
            )
        if stats.staged_bytes + size_bytes > limits.staged_bytes_max:
            raise LimitExceeded(
                f"{stats.staged_bytes} bytes are staged: no more than {limits.staged_bytes_max} fit; "
                "commit or abort some, or raise limits.staged_bytes_max"
            )

    def _count(self, ticket: Ticket, size_bytes: int) -> None:
        ticket.size_bytes += size_bytes
        self.size_bytes += size_bytes
        self.shared.stats.staged_bytes += size_bytes

    # -- committing and dropping ------------------------------------------------------------------------------------------

    def winning(self, epoch: int, winners: Sequence[Winner]) -> list[Ticket]:
        """The tickets that a commit names. Raises where one is not whole, or a topic it writes to is gone."""
        tickets = []
        for attempt, requests in winners:
            ticket = self.tickets.get(TicketKey(self.name, epoch, attempt))
            if ticket is None or not ticket.whole(requests):
                found = "none" if ticket is None else str(len(ticket.requests))
                raise TransactionNotFound(
                    f"transaction not found: of {requests} requests of attempt {attempt} at epoch {epoch} of {self.name}, {found} are "
                    "staged; they expired, were aborted, or a power cut took them: write the epoch again"
                )
            for topic, topic_id in ticket.topics.items():
                check_topic(self.shared.engine, topic, topic_id, DELETED)
            tickets.append(ticket)
        return tickets

    def published(self, winners: Sequence[Ticket], epoch: int) -> int:
        """A commit is complete: remove its tickets, and drop those that lost. Returns how many did."""
        self.publication = None
        self.touched_s = self.shared.clock.monotonic()
        for ticket in winners:
            self._remove(ticket)
        return self.drop(ticket for ticket in self.tickets.values() if ticket.key.epoch <= epoch)

    def expire(self, late_s: float) -> int:
        """Drop what nobody has asked for since a time; returns how many."""
        late = [ticket for ticket in self.tickets.values() if ticket.touched_s <= late_s and not ticket.arriving]
        return self.drop(late, State.TIMED_OUT)

    def drop(self, tickets: Iterable[Ticket], state: State = State.ROLLED_BACK) -> int:
        """End tickets, but those that a commit counts on; returns how many."""
        doomed = [ticket for ticket in tickets if ticket.state in (State.OPENING, State.OPEN)]
        entered = [ticket for ticket in doomed if ticket.state is State.OPEN]
        for ticket in doomed:
            ticket.become(state)
            self._remove(ticket)
        self._delete_entries(entered)
        if doomed:
            # Who fails again and again must not fill the disk with what it never commits.
            _ = self.shared.tasks.run(self.clear(), quiet=True)
        return len(doomed)

    def _remove(self, ticket: Ticket) -> None:
        """Count a ticket that has ended no more."""
        del self.tickets[ticket.key]
        if ticket.arriving:
            ticket.drained = asyncio.Event()
            self._draining[ticket.key] = ticket
        self.shared.stats.tickets -= 1
        self._count(ticket, -ticket.size_bytes)

    def _delete_entries(self, tickets: Sequence[Ticket]) -> None:
        """If it fails a later sweep does it."""
        if tickets:
            with suppress(PenstockError):
                deleting = self.shared.table.change([(ticket.key, None) for ticket in tickets])
                deleting.add_done_callback(lambda deleted: deleted.exception())

    # -- the topic --------------------------------------------------------------------------------------------------------

    async def _partition(self) -> Partition:
        """The one partition of the topic, made if it is not there."""
        engine = self.shared.engine
        async with self._changing:
            if not self._has_topic():
                with suppress(TopicExists):
                    await engine.create_topic(self.topic, STAGING_CONFIG)
            return engine.partition(self.topic, 0)

    async def clear(self) -> None:
        """Give back the space of what has ended. If that fails, a later sweep or start does it."""
        try:
            if self.single or not self._has_topic():
                await self.leave()
            else:
                await self._free()
        except PenstockError:
            return
        except Exception as bug:  # noqa: BLE001  what is freed late is no harm, and the log should say why
            self.shared.health.failed(bug, retried=False)

    async def leave(self) -> None:
        """Delete the topic and forget the application, unless it has tickets or a commit under way."""
        applications = self.shared.by_application
        async with self._changing:
            # One that was forgotten before has no topic: that of this name is its successor's.
            if self._is_used() or applications.get(self.name) is not self:
                return
            if self._has_topic():
                await self.shared.engine.delete_topic(self.topic)
            if not self._is_used():
                del applications[self.name]

    def _is_used(self) -> bool:
        return bool(self.tickets or self._draining) or self.publication is not None

    def _has_topic(self) -> bool:
        return self.topic in self.shared.engine.topics()

    async def _free(self) -> None:
        """Delete what lies before the first record that is still wanted."""
        partition = self.shared.engine.partition(self.topic, 0)
        await follow_all([partition])
        wanted = min((ticket.entry.first_offset for ticket in self.tickets.values()), default=partition.committed_end)
        await partition.delete_before(wanted)

    async def find(self) -> None:
        """Fill in the requests of tickets that were loaded from the table."""
        if self._has_topic():
            await self._read_requests(self.shared.engine.partition(self.topic, 0))
        self.shared.stats.tickets += len(self.tickets)
        # A power cut takes staged records, but not the ticket: where it says they begin, others may be by now.
        self.drop([each for each in self.tickets.values() if not each.requests and each.entry.chosen < 0])

    async def _read_requests(self, partition: Partition) -> None:
        await follow_all([partition])
        first = min(ticket.entry.first_offset for ticket in self.tickets.values())
        try:
            async for blocks in partition.read_to_end(max(first, partition.start_offset), READ_BYTES):
                for block in blocks:
                    self._find_in(block)
        except CorruptBlock as error:
            # What cannot be read is not there: a commit that names it is refused, and its writer writes it again.
            log.error("staged_records_unreadable", application=self.name, error=str(error))

    def _find_in(self, block: Block) -> None:
        offsets, heads, values = block.offsets(), block.keys(), block.values()
        for offset, head_bytes, value in zip(offsets, heads or [], values, strict=True):
            head = decode_head(head_bytes or b"")
            ticket = self.tickets.get(TicketKey(self.name, head.epoch, head.attempt))
            if ticket is not None and offset >= ticket.entry.first_offset:
                if head.sequence not in ticket.requests:
                    self._count(ticket, _counted(len(value or b"")))
                ticket.requests[head.sequence] = offset
                ticket.topics[head.topic] = head.topic_id


def _counted(size_bytes: int) -> int:
    return max(size_bytes, REQUEST_BYTES_MIN)


def _ended(ticket: Ticket) -> TransactionNotActive:
    key = ticket.key
    return TransactionNotActive(
        f"transaction is not active: attempt {key.attempt} at epoch {key.epoch} of {key.application} was aborted or replaced"
    )
