"""Tickets: what attempts have staged, in memory and in a table, within bounds.

A ticket is opened by its first request: entered in the table, so that a restart knows of it, and given a place in its application's
topic. Requests that come meanwhile wait for that. The same request may come again, on another connection, while the first is on its way:
both hear how the first one ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from penstock.background import Background, Tasks
from penstock.broker.access.checks import Principal
from penstock.broker.limits import BrokerLimits
from penstock.broker.staging.blocks import StagedPart
from penstock.broker.staging.entries import (
    REQUEST_BYTES_MIN,
    STAGING_PREFIX,
    TICKET_BYTES_MAX,
    TICKETS_TOPIC,
    Place,
    StagedHead,
    TicketEntry,
    TicketKey,
    Winner,
    encode_head,
)
from penstock.broker.staging.store import OnStaged, Staged, StagedApplication, StagingStore, Ticket
from penstock.broker.table import Table
from penstock.clock import Clock
from penstock.errors import (
    LimitExceeded,
    PenstockError,
    ServerError,
    TopicNotFound,
    TransactionNotActive,
    TransactionNotFound,
)
from penstock.log.api import Appended, BlockBatch, Engine, TopicInfo, follow_all
from penstock.log.block import wrap_blocks

# A topic costs two directories and some files, which a query that writes every few seconds should not pay each time.
IDLE_S_MAX: Final = 120.0


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


class Tickets:
    """The tickets of one broker, by application."""

    def __init__(
        self, engine: Engine, clock: Clock, limits: BrokerLimits, stats: StagingStats, background: Background
    ) -> None:
        self.by_application: dict[str, StagedApplication] = {}
        self.table: Table[TicketKey, TicketEntry] = Table(
            engine,
            TICKETS_TOPIC,
            TicketKey,
            TicketEntry,
            # Those that end are deleted a moment later.
            entries_max=2 * limits.staged_tickets_max,
            background=background,
            value_bytes_max=TICKET_BYTES_MAX,
        )
        self._engine = engine
        self._clock = clock
        self._limits = limits
        self._stats = stats
        self._health = background.health("staging_tickets")
        self._store = StagingStore(engine)
        self._tasks = Tasks()

    async def load(self) -> None:
        """Find the tickets of before, and remove the topics in which there are none."""
        await self.table.load()
        now_s = self._clock.monotonic()
        for key, entry in self.table.items():
            staged = self.by_application.setdefault(key.application, StagedApplication(key.application, now_s))
            staged.tickets[key.epoch, key.attempt] = Ticket(key, entry, now_s)
        for staged in list(self.by_application.values()):
            await self._store.find(staged)
            for ticket in staged.tickets.values():
                self._count(staged, ticket, sum(_counted(each.size_bytes) for each in ticket.requests.values()))
            self._stats.tickets += len(staged.tickets)
            # A power cut takes staged records, but not the ticket: where it says they begin, others may be by now.
            self.drop(staged, [each for each in staged.tickets.values() if not each.requests and each.entry.chosen < 0])
            if not staged.tickets:
                del self.by_application[staged.name]
        kept = {staged.topic for staged in self.by_application.values()}
        for topic in [name for name in self._engine.topics() if name.startswith(STAGING_PREFIX) and name not in kept]:
            await self._engine.delete_topic(topic)

    async def close(self) -> None:
        await self._tasks.finish()
        await self.table.close()

    def application(self, name: str) -> StagedApplication:
        staged = self.by_application.get(name)
        if staged is None:
            if len(self.by_application) >= self._limits.staged_applications_max:
                raise LimitExceeded(
                    f"{len(self.by_application)} applications stage records, the most allowed: wait for some to end, "
                    "or raise limits.staged_applications_max"
                )
            staged = self.by_application[name] = StagedApplication(name, self._clock.monotonic())
        return staged

    def winning(self, staged: StagedApplication, epoch: int, winners: Sequence[Winner]) -> list[Ticket]:
        """The tickets that a commit names. Raises where one is not whole, or a topic it writes to is gone."""
        tickets = []
        for attempt, requests in winners:
            ticket = staged.tickets.get((epoch, attempt))
            if ticket is None or not ticket.whole(requests):
                found = "none" if ticket is None else str(len(ticket.requests))
                raise TransactionNotFound(
                    f"transaction not found: of {requests} requests of attempt {attempt} at epoch {epoch} of {staged.name}, {found} are "
                    "staged; they expired, were aborted, or a power cut took them: write the epoch again"
                )
            for topic, topic_id in ticket.topics.items():
                info = self._engine.topics().get(topic)
                if info is None or info.id != topic_id:
                    raise _topic_gone(topic)
            tickets.append(ticket)
        return tickets

    # -- staging ----------------------------------------------------------------------------------------------------------

    def stage(
        self,
        principal: Principal,
        place: Place,
        info: TopicInfo,
        done: OnStaged,
        parts: Sequence[StagedPart],
    ) -> None:
        """Take one request that was checked. Raises, or calls `done` with, what keeps it from being stored."""
        staged = self.application(place.application)
        ticket = staged.tickets.get((place.epoch, place.attempt))
        if ticket is not None and place.sequence in ticket.requests:
            asyncio.get_running_loop().call_soon(done, None)
            return
        if ticket is not None and place.sequence in ticket.arriving:
            ticket.arriving[place.sequence].append(done)
            return
        if ticket is not None and ticket.topics.get(info.name, info.id) != info.id:
            raise _topic_gone(info.name)
        size_bytes = sum(part.block.size_bytes for part in parts)
        self._check_room(staged, ticket, _counted(size_bytes))
        if ticket is None:
            ticket = self._open(staged, principal, place)
        self._count(staged, ticket, _counted(size_bytes))
        ticket.arriving[place.sequence] = [done]
        head = StagedHead(
            place.epoch,
            place.attempt,
            place.sequence,
            info.name,
            info.id,
            [(part.partition, part.block.size_bytes) for part in parts],
        )
        batch = BlockBatch([wrap_blocks(encode_head(head), [part.block for part in parts])])
        ticket.topics[info.name] = info.id
        if ticket.opening is not None:
            ticket.opening.append(lambda error: self._append(staged, ticket, place.sequence, size_bytes, batch, error))
        else:
            self._append(staged, ticket, place.sequence, size_bytes, batch, None)

    def _append(
        self,
        staged: StagedApplication,
        ticket: Ticket,
        sequence: int,
        size_bytes: int,
        batch: BlockBatch,
        error: PenstockError | None,
    ) -> None:
        def appended(result: Appended | PenstockError) -> None:
            self._staged_one(staged, ticket, sequence, size_bytes, result)

        if error is not None:
            appended(error)
            return
        try:
            partition = self._engine.partition(staged.topic, 0)
        except PenstockError as gone:
            appended(gone)
            return
        partition.append(batch, appended)

    def _staged_one(
        self,
        staged: StagedApplication,
        ticket: Ticket,
        sequence: int,
        size_bytes: int,
        result: Appended | PenstockError,
    ) -> None:
        """A request has come back from the log."""
        waiting = ticket.arriving.pop(sequence)
        error: PenstockError | None = None
        if ticket.dropped:
            error = _dropped(ticket)
        elif isinstance(result, PenstockError):
            error = result
            self._count(staged, ticket, -_counted(size_bytes))
        else:
            ticket.requests[sequence] = Staged(result.base_offset, size_bytes)
            ticket.touched_s = staged.touched_s = self._clock.monotonic()
        if ticket.gone is not None and not ticket.arriving:
            ticket.gone.set()
            name = (ticket.key.epoch, ticket.key.attempt)
            if staged.leaving.get(name) is ticket.gone:
                del staged.leaving[name]
        for done in waiting:
            done(error)

    def _open(self, staged: StagedApplication, principal: Principal, place: Place) -> Ticket:
        """A ticket that takes requests at once; they wait until it is in the table and has a topic to go to."""
        key = TicketKey(place.application, place.epoch, place.attempt)
        ticket = Ticket(key, TicketEntry(principal.name, place.run, 0), self._clock.monotonic())
        ticket.opening = []
        ticket.before = staged.leaving.get((place.epoch, place.attempt))
        staged.tickets[place.epoch, place.attempt] = ticket
        self._stats.tickets += 1
        _ = self._tasks.run(self._enter(staged, ticket), quiet=True)
        return ticket

    async def _enter(self, staged: StagedApplication, ticket: Ticket) -> None:
        error: PenstockError | None = None
        if ticket.before is not None:
            # What an attempt of this name sent before it was dropped must not be found behind the place where this one begins.
            await ticket.before.wait()
        try:
            partition = await self._store.partition(staged)
            await follow_all([partition])
            ticket.entry = TicketEntry(ticket.entry.owner, ticket.entry.run, partition.committed_end)
            await self.table.put(ticket.key, ticket.entry)
        except PenstockError as refused:
            error = refused
        except Exception as bug:  # noqa: BLE001  the requests that wait for the ticket are answered whatever it is
            self._health.failed(bug, retried=False)
            error = ServerError(f"internal error: {type(bug).__name__}")
        else:
            self._health.succeeded()
        waiting, ticket.opening = ticket.opening, None
        for append in waiting or ():
            append(_dropped(ticket) if ticket.dropped else error)
        if error is not None and not ticket.dropped:
            self.drop(staged, [ticket])
        elif ticket.dropped and (ticket.key.epoch, ticket.key.attempt) not in staged.tickets:
            # Where the attempt has begun again meanwhile, the entry is its own by now, or will be.
            self._delete_entries([ticket])

    def _check_room(self, staged: StagedApplication, ticket: Ticket | None, size_bytes: int) -> None:
        limits = self._limits
        if ticket is None and self._stats.tickets >= limits.staged_tickets_max:
            raise LimitExceeded(
                f"{self._stats.tickets} tickets hold staged records, the most allowed: commit or abort some, "
                "or raise limits.staged_tickets_max"
            )
        if staged.size_bytes + size_bytes > limits.staged_application_bytes_max:
            raise LimitExceeded(
                f"application {staged.name} has {staged.size_bytes} bytes staged: no more than "
                f"{limits.staged_application_bytes_max} fit; write less at a time or raise limits.staged_application_bytes_max"
            )
        if self._stats.staged_bytes + size_bytes > limits.staged_bytes_max:
            raise LimitExceeded(
                f"{self._stats.staged_bytes} bytes are staged: no more than {limits.staged_bytes_max} fit; "
                "commit or abort some, or raise limits.staged_bytes_max"
            )

    def _count(self, staged: StagedApplication, ticket: Ticket, size_bytes: int) -> None:
        ticket.size_bytes += size_bytes
        staged.size_bytes += size_bytes
        self._stats.staged_bytes += size_bytes

    # -- dropping ---------------------------------------------------------------------------------------------------------

    def drop(self, staged: StagedApplication, tickets: Iterable[Ticket]) -> int:
        """Forget tickets, but those that a commit counts on; returns how many."""
        publication = staged.publication
        wanted = set() if publication is None else {ticket.key for ticket in publication.winners}
        doomed = [ticket for ticket in tickets if ticket.key not in wanted]
        for ticket in doomed:
            self.forget(staged, ticket)
        self._delete_entries([ticket for ticket in doomed if ticket.opening is None])
        if doomed:
            # Who fails again and again must not fill the disk with what it never commits.
            _ = self._tasks.run(self.clear(staged), quiet=True)
        return len(doomed)

    def forget(self, staged: StagedApplication, ticket: Ticket) -> None:
        if staged.tickets.get((ticket.key.epoch, ticket.key.attempt)) is not ticket:
            return
        del staged.tickets[ticket.key.epoch, ticket.key.attempt]
        ticket.dropped = True
        if ticket.arriving:
            ticket.gone = staged.leaving[ticket.key.epoch, ticket.key.attempt] = asyncio.Event()
        self._stats.tickets -= 1
        self._count(staged, ticket, -ticket.size_bytes)

    def _delete_entries(self, tickets: Sequence[Ticket]) -> None:
        """Where it fails they come back with a restart, and expire."""
        if tickets:
            with suppress(PenstockError):
                deleting = self.table.change([(ticket.key, None) for ticket in tickets])
                deleting.add_done_callback(lambda deleted: deleted.exception())

    async def clear(self, staged: StagedApplication) -> None:
        """Give back the space of what was published. Where that fails, a later sweep or start does it."""
        try:
            if staged.single:
                await self._end(staged)
            else:
                await self._store.free(staged)
        except PenstockError:
            return
        except Exception as bug:  # noqa: BLE001  what is freed late is no harm, and the log should say why
            self._health.failed(bug, retried=False)

    async def expire(self) -> None:
        """Drop what nobody has asked for in a long time, and the topics of applications that stage nothing."""
        now_s = self._clock.monotonic()
        late_s = now_s - self._limits.staged_ms_max / 1000
        for staged in list(self.by_application.values()):
            late = [ticket for ticket in staged.tickets.values() if ticket.touched_s <= late_s and not ticket.arriving]
            self._stats.expired_tickets += self.drop(staged, late)
            if now_s - staged.touched_s >= IDLE_S_MAX:
                await self._end(staged)

    async def _end(self, staged: StagedApplication) -> None:
        await self._store.delete(staged)
        if not staged.tickets and staged.publication is None:
            self.by_application.pop(staged.name, None)


def _counted(size_bytes: int) -> int:
    return max(size_bytes, REQUEST_BYTES_MIN)


def _topic_gone(topic: str) -> TopicNotFound:
    return TopicNotFound(
        f"topic not found: {topic} was deleted after records were staged for it; write the epoch again"
    )


def _dropped(ticket: Ticket) -> TransactionNotActive:
    key = ticket.key
    return TransactionNotActive(
        f"transaction is not active: attempt {key.attempt} at epoch {key.epoch} of {key.application} was aborted or replaced"
    )
