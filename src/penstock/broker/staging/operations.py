"""What a writer may ask of staging, and how its requests belong together.

A writer of many processes (a Spark job) cannot keep its records in one transaction: they are too many for memory, and some of its tasks
run twice. So each attempt of each task stages its records under a ticket of its own (application, epoch, attempt), and in the end one
commit names the attempts that won. The broker publishes exactly these, all or nothing, and drops the rest.

    begin_run --> stage, stage, ... --> commit --> published, once       a commit of an epoch that was committed does nothing
                        |                  `---> nothing, and may be tried again
                        |--> abort                                       drops the tickets of an epoch; never undoes a commit
                        |--> a newer run begins                          what older runs staged is dropped
                        `--> time passes                                 a ticket that nobody asks for expires

Epochs and runs are those of `applications`: an epoch is committed once, and only by the newest run. Requests of a ticket are numbered, so
that one that is sent again after a lost connection is stored once, in whatever order they arrive. Records are checked when they are
staged, as `Broker.produce` checks them, so that a commit finds nothing left to refuse but the state of the disk and of the topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from functools import partial
from typing import Final

import structlog

from penstock.background import Loop, Tasks, run_to_completion
from penstock.broker.access.checks import (
    Operation,
    Principal,
    Resource,
    ResourceKind,
    authorize,
    on_broker,
    on_topic,
)
from penstock.broker.part import Context, Part
from penstock.broker.schemas.validation import Validation
from penstock.broker.staging.applications import Application, Applications, Once
from penstock.broker.staging.blocks import check_parts, records_of, with_headers
from penstock.broker.staging.entries import ATTEMPT_BYTES_MAX, COMMITS_TOPIC, CommitEntry, Place, Winner
from penstock.broker.staging.publication import Changes, Publication
from penstock.broker.staging.store import OnStaged, StagedApplication, Ticket
from penstock.broker.staging.tickets import StagingStats, Tickets
from penstock.broker.table import Table
from penstock.errors import InvalidRequest, OutcomeUnknown, ShuttingDown
from penstock.futures import shield
from penstock.names import validate_name

SWEEP_S: Final = 5.0
FORGET_EVERY_SWEEPS: Final = 120
# Of a commit that takes longer the caller hears that it goes on; sooner than any client gives up waiting.
ANSWER_S_MAX: Final = 5.0
WINNERS_MAX: Final = 10_000
SEQUENCE_MAX: Final = (1 << 31) - 1

_log = structlog.get_logger(__name__)


class Committed(Enum):
    """What came of a commit."""

    BEFORE = 0
    NOW = 1
    GOES_ON = 2
    """It is decided and will be done; ask again to hear when."""


class Staging(Part):
    """The staged records of one broker."""

    def __init__(self, context: Context, validation: Validation) -> None:
        super().__init__(context)
        self.stats = StagingStats()
        self._applications = Applications(self._engine, self._clock, self.background)
        self._validation = validation
        self._tickets = Tickets(self._engine, self._clock, self._limits, self.stats, self.background)
        self._commits: Table[str, CommitEntry] = Table(
            self._engine,
            COMMITS_TOPIC,
            str,
            CommitEntry,
            entries_max=self._limits.staged_applications_max,
            background=self.background,
        )
        self._tasks = Tasks()
        self._publishing = self.background.health("staged_commits")
        self._sweeping: Loop | None = None
        self._sweeps = 0

    # -- starting and stopping --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find what was staged before, and go on with the commits that were decided."""
        await self._applications.start()
        await self._tickets.load()
        await self._commits.load()
        for name, commit in list(self._commits.items()):
            self._resume(name, commit)
        self._sweeping = self.background.loop("staging_sweep", self._sweep_step, first_s=SWEEP_S)

    async def close(self) -> None:
        """Wait for what is under way. A long commit ends between two chunks, and goes on with the next start."""
        if self._sweeping is not None:
            await self._sweeping.stop()
        while tasks := [*self._tasks]:
            for staged in self._tickets.by_application.values():
                if staged.publication is not None:
                    staged.publication.stop()
            await asyncio.wait(tasks)
        await self._tickets.close()
        await self._commits.close()
        await self._applications.close()

    # -- operations -------------------------------------------------------------------------------------------------------

    @on_broker(Operation.WRITE)
    @run_to_completion
    async def begin_run(
        self,
        principal: Principal,
        application: str,
        name: str,
        *,
        lasting: bool = True,
        query: str = "",
        replaces: bool = False,
    ) -> Application:
        """Begin a run, or find the one of this name begun. What older runs staged and did not commit is dropped.

        An application that is not `lasting` has one epoch only, and is soon forgotten. It belongs to the first query that is named, or to
        the last that `replaces` it: a query that finds another there would take its epochs for its own.
        """
        entry = await self._applications.begin_run(
            principal, application, name, lasting=lasting, query=query, replaces=replaces
        )
        staged = self._tickets.by_application.get(application)
        if staged is not None:
            older = [ticket for ticket in staged.tickets.values() if ticket.entry.run < entry.run]
            self.stats.aborted_tickets += self._tickets.drop(staged, older)
        return entry

    @on_topic(Operation.WRITE)
    def stage(
        self, principal: Principal, topic: str, place: Place, parts: Sequence[tuple[int, bytes]], *, done: OnStaged
    ) -> None:
        """Store blocks for partitions of a topic under a ticket. Raises, or calls `done` with, what is wrong; then nothing was stored.

        Staging for an epoch that was committed does nothing: whoever does it repeats work that is done.
        """
        validate_name(place.attempt, "attempt", ATTEMPT_BYTES_MAX)
        if not 0 <= place.sequence <= SEQUENCE_MAX:
            raise InvalidRequest(f"sequence {place.sequence} is out of range: count the requests of an attempt from 0")
        entry = self._applications.check_run(principal, Once(place.application, place.run, place.epoch))
        if place.run > entry.run:
            raise InvalidRequest(f"run {place.run} of application {place.application} has not begun: begin it first")
        info = self._engine.topic(topic)
        if place.epoch <= entry.epoch:
            asyncio.get_running_loop().call_soon(done, None)
            return
        checked = check_parts(info, parts, self._limits)
        accept = partial(self._tickets.stage, principal, place, info, done)
        if not self._validation.concerns(topic):
            accept(checked)
            return
        self._validation.admit(
            topic,
            None,
            records_of(checked),
            lambda stamped: accept(with_headers(checked, stamped.headers, self._limits)),
            done,
        )

    @on_broker(Operation.WRITE)
    async def commit(
        self, principal: Principal, application: str, run: int, epoch: int, winners: Sequence[Winner]
    ) -> Committed:
        """Publish what the winners staged, and nothing else, once.

        Raises OutcomeUnknown where only a restart can tell whether it is done. After any other error it either is not, or it is decided and
        goes on; asking again tells.
        """
        if len(winners) > WINNERS_MAX:
            raise InvalidRequest(
                f"a commit names {len(winners)} attempts, and at most {WINNERS_MAX} are allowed: write with fewer tasks "
                "(in Spark, coalesce() before the write)"
            )
        if len({winner.attempt for winner in winners}) != len(winners):
            raise InvalidRequest("a commit names each attempt once, and this one names one twice")
        once = Once(application, run, epoch)
        while True:
            before = self._under_way(principal, application)
            if before is not None and not await self._finished(*before):
                return Committed.GOES_ON
            await self._applications.hold(application)
            if self._under_way(principal, application) is None:
                break
            self._applications.release(application)
        try:
            if epoch <= self._applications.standing(principal, application).epoch:
                self.stats.repeated_commits += 1
                self._applications.release(application)
                return Committed.BEFORE
            staged, publication = self._prepare(principal, once, winners)
        except BaseException:
            self._applications.release(application)
            raise
        deciding = self._tasks.run(self._decide(publication, staged, principal, once), quiet=True)
        deciding.add_done_callback(lambda _: self._applications.release(application))
        # Whoever waits here may give up; the commit goes on.
        await shield(deciding)
        return Committed.NOW if await self._finished(staged, publication) else Committed.GOES_ON

    @on_broker(Operation.WRITE)
    async def abort(self, principal: Principal, application: str, run: int, epoch: int) -> bool:
        """Drop what this run and earlier ones staged for an epoch. False where it was committed: that stays as it is."""
        await self._applications.hold(application)
        try:
            if epoch <= self._applications.standing(principal, application).epoch:
                return False
            staged = self._tickets.by_application.get(application)
            if staged is not None:
                doomed = [
                    ticket
                    for ticket in staged.tickets.values()
                    if ticket.key.epoch == epoch and ticket.entry.run <= run
                ]
                self.stats.aborted_tickets += self._tickets.drop(staged, doomed)
            return True
        finally:
            self._applications.release(application)

    # -- committing -------------------------------------------------------------------------------------------------------

    def _under_way(self, principal: Principal, application: str) -> tuple[StagedApplication, Publication] | None:
        """A commit that is decided and not yet all published. Raises where the application is somebody else's."""
        self._applications.standing(principal, application)
        staged = self._tickets.by_application.get(application)
        publication = None if staged is None else staged.publication
        if staged is None or publication is None or not (publication.decided or publication.failure):
            return None
        return staged, publication

    def _prepare(
        self, principal: Principal, once: Once, winners: Sequence[Winner]
    ) -> tuple[StagedApplication, Publication]:
        entry = self._applications.check_run(principal, once)
        staged = self._tickets.application(once.application)
        tickets = self._tickets.winning(staged, once.epoch, winners)
        for topic in {topic for ticket in tickets for topic in ticket.topics}:
            authorize(self.access, principal, Operation.WRITE, Resource(ResourceKind.TOPIC, topic))
        publication = self._publication(staged, once.epoch, tickets)
        staged.single = not entry.lasting
        staged.publication = publication
        return staged, publication

    def _publication(
        self,
        staged: StagedApplication,
        epoch: int,
        tickets: Sequence[Ticket],
        *,
        applied: int = 0,
        decided: bool = False,
    ) -> Publication:
        return Publication(
            self._engine,
            self._tickets.table,
            self._commits,
            staged,
            epoch,
            tickets,
            applied=applied,
            decided=decided,
            chunk_bytes=self._limits.staged_chunk_bytes,
        )

    async def _decide(
        self, publication: Publication, staged: StagedApplication, principal: Principal, once: Once
    ) -> None:
        """The first step of a commit, while its application is held; the rest is done beside."""

        def decision() -> Changes:
            change = self._applications.prepare(principal, once)
            assert change is not None, "somebody committed an epoch of an application that was held"
            return [change]

        try:
            await publication.decide(decision)
        except BaseException:
            if publication.failure is None:
                staged.publication = None
            raise
        self.stats.commits += 1
        _ = self._go_on(staged, publication)

    def _go_on(self, staged: StagedApplication, publication: Publication) -> asyncio.Task[None]:
        """The task that publishes what is left."""
        if publication.task is None or publication.task.done():
            publication.task = self._tasks.run(self._finish(publication, staged), quiet=True)
        return publication.task

    async def _finish(self, publication: Publication, staged: StagedApplication) -> None:
        try:
            await publication.finish()
        except ShuttingDown:
            raise
        except Exception as error:
            publication.stalled = True
            self._publishing.failed(error)
            raise
        publication.stalled = False
        if not any(each.publication and each.publication.stalled for each in self._tickets.by_application.values()):
            self._publishing.succeeded()
        self.stats.published_records += publication.records
        staged.publication = None
        staged.touched_s = self._clock.monotonic()
        for ticket in publication.winners:
            self._tickets.forget(staged, ticket)
        losers = [ticket for ticket in staged.tickets.values() if ticket.key.epoch <= publication.epoch]
        self.stats.aborted_tickets += self._tickets.drop(staged, losers)
        _ = self._tasks.run(self._tickets.clear(staged), quiet=True)

    async def _finished(self, staged: StagedApplication, publication: Publication) -> bool:
        """Wait a while for a decided commit; whether it is over. Raises what keeps it from going on."""
        if staged.publication is not publication:
            return True
        if publication.failure is not None:
            raise OutcomeUnknown(
                f"whether epoch {publication.epoch} of {staged.name} is published is unknown: {publication.failure}; restart the "
                "broker, then commit again to learn"
            )
        going_on = self._go_on(staged, publication)
        await asyncio.wait([going_on], timeout=ANSWER_S_MAX)
        if not going_on.done():
            return False
        going_on.result()
        return True

    def _resume(self, name: str, commit: CommitEntry) -> None:
        staged = self._tickets.by_application.get(name)
        tickets = [] if staged is None else [each for each in staged.tickets.values() if each.entry.chosen >= 0]
        broken = [str(ticket.key) for ticket in tickets if not ticket.has_first(ticket.entry.requests)]
        if staged is None or broken:
            _log.error("staged_records_missing", application=name, tickets=broken)
            return
        _log.info("staged_commit_resumed", application=name, epoch=commit.epoch, applied=commit.applied)
        winners = sorted(tickets, key=lambda ticket: ticket.entry.chosen)
        staged.publication = self._publication(staged, commit.epoch, winners, applied=commit.applied, decided=True)
        _ = self._go_on(staged, staged.publication)

    # -- as time passes ---------------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Drop what has expired, give back space, and try again what could not go on."""
        for staged in list(self._tickets.by_application.values()):
            publication = staged.publication
            if publication is not None and publication.decided and publication.failure is None:
                _ = self._go_on(staged, publication)
        await self._tickets.expire()

    async def _sweep_step(self) -> float:
        self._sweeps += 1
        await self.sweep()
        if self._sweeps % FORGET_EVERY_SWEEPS == 0:
            self._applications.forget()
        return SWEEP_S
