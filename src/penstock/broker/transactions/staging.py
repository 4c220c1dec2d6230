"""What a writer may ask of staging, and how its requests belong together.

A writer of many processes (a Spark job) cannot keep its records in one transaction: they are too many for memory, and some of its tasks
run twice. So each attempt of each task stages its records under a ticket of its own (application, epoch, attempt), and in the end one
commit names the attempts that won. The broker publishes exactly these, all or nothing, and drops the rest.

    begin_run --> stage, stage, ... --> commit --> published, once       a commit of an epoch that was committed does nothing
                        |                  `---> nothing, and may be tried again
                        |--> abort                                       drops the tickets of an epoch; never undoes a commit
                        |--> a newer run begins                          what older runs staged is dropped
                        `--> time passes                                 a ticket that nobody asks for expires

Few records need no ticket: they come with the commit, and nothing of them is staged.

Epochs and runs are those of `applications`: an epoch is committed once, and only by the newest run. Requests of a ticket are numbered, so
that one that is sent again after a lost connection is stored once, in whatever order they arrive. Records are checked when they are
staged, as `Records.produce` checks them, and those that come with a commit before it is decided; so it finds nothing left to refuse but the
state of the disk and of the topics.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Final

import structlog

from penstock.background import Loop, run_to_completion
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
from penstock.broker.transactions.applications import Application, Applications, CommitId
from penstock.broker.transactions.blocks import StagedPart, check_parts, records_of, with_headers
from penstock.broker.transactions.commit_checks import check_topic
from penstock.broker.transactions.entries import ATTEMPT_BYTES_MAX, CommitEntry, Place, Unstaged, Winner
from penstock.broker.transactions.publication import Brought, Publication
from penstock.broker.transactions.states import State
from penstock.broker.transactions.tickets import IDLE_S_MAX, OnStaged, Tickets
from penstock.errors import InvalidRequest, OutcomeUnknown, ShuttingDown
from penstock.futures import shield
from penstock.log.api import Batch
from penstock.names import validate_name

SWEEP_S: Final = 5.0
FORGET_EVERY_SWEEPS: Final = 120
# Of a commit that takes longer the caller hears that it continues; sooner than any client gives up waiting.
ANSWER_S_MAX: Final = 5.0
WINNERS_MAX: Final = 10_000
SEQUENCE_MAX: Final = (1 << 31) - 1
LAID_OUT: Final = "after records were laid out for it; write the epoch again"

log = structlog.get_logger(__name__)


class Committed(Enum):
    """What came of a commit."""

    BEFORE = 0
    NOW = 1
    GOES_ON = 2
    """A commit of the application is still being published, this one or an earlier one: ask again."""


class Staging(Part):
    """The staged records of one broker."""

    def __init__(self, context: Context, validation: Validation) -> None:
        super().__init__(context)
        self._applications = Applications(self._engine, self._clock, self.background, self._limits.applications_max)
        self._validation = validation
        self._tickets = Tickets(context)
        self._tasks = self._tickets.tasks
        self.stats = self._tickets.stats
        self._publishing = self.background.health("staged_commits")
        self._sweeping: Loop | None = None
        self._sweeps = 0

    # -- starting and stopping --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find what was staged before, and continue with the commits that were decided."""
        await self._applications.start()
        await self._tickets.load()
        self._applications.forget(self._tickets.by_application)
        for name, commit in list(self._tickets.commits.items()):
            self._resume(name, commit)
        self._sweeping = self.background.loop("staging_sweep", self._sweep_step, first_s=SWEEP_S)

    async def close(self) -> None:
        """Wait for what is under way. A long commit ends between two chunks, and continues with the next start."""
        if self._sweeping is not None:
            await self._sweeping.stop()
        while tasks := [*self._tasks]:
            for publication in self._publications():
                publication.stop()
            await asyncio.wait(tasks)
        await self._tickets.close()
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
            self.stats.aborted_tickets += staged.drop(older)
        return entry

    @on_topic(Operation.WRITE)
    def stage(
        self, principal: Principal, topic: str, place: Place, parts: Sequence[tuple[int, bytes]], *, done: OnStaged
    ) -> None:
        """Store blocks for partitions of a topic under a ticket. Raises, or calls `done` with, what is wrong; then nothing was stored.

        Staging for an epoch that was committed does nothing: that work is done.
        """
        validate_name(place.attempt, "attempt", ATTEMPT_BYTES_MAX)
        if not 0 <= place.sequence <= SEQUENCE_MAX:
            raise InvalidRequest(f"sequence {place.sequence} is out of range: count the requests of an attempt from 0")
        is_wanted = self._is_wanted(principal, place)
        info = self._engine.topic(topic)
        if not is_wanted:
            asyncio.get_running_loop().call_soon(done, None)
            return
        checked = check_parts(info, parts, self._limits)

        def accept(parts: Sequence[StagedPart]) -> None:
            self._tickets.application(place.application).stage(principal, place, info, done, parts)

        def accept_stamped(stamped: Batch) -> None:
            # Checking may take a while, in which a newer run may have begun or the epoch been committed.
            if self._is_wanted(principal, place):
                accept(with_headers(checked, stamped.headers, self._limits))
            else:
                asyncio.get_running_loop().call_soon(done, None)

        if self._validation.applies_to(topic):
            self._validation.admit(topic, None, records_of(checked), accept_stamped, done)
        else:
            accept(checked)

    def _is_wanted(self, principal: Principal, place: Place) -> bool:
        """Whether the epoch of a request is still to be committed. Raises unless its run is the newest."""
        return place.epoch > self._check_begun(principal, CommitId(place.application, place.run, place.epoch)).epoch

    def _check_begun(self, principal: Principal, once: CommitId) -> Application:
        """The application as it stands. Raises unless the run that is named is the newest."""
        entry = self._applications.check_run(principal, once)
        if once.run > entry.run:
            raise InvalidRequest(f"run {once.run} of application {once.application} has not begun: begin it first")
        return entry

    @on_broker(Operation.WRITE)
    async def commit(
        self,
        principal: Principal,
        application: str,
        run: int,
        epoch: int,
        winners: Sequence[Winner],
        unstaged: Sequence[Unstaged] = (),
    ) -> Committed:
        """Publish what the winners staged and what comes with the commit, and nothing else, once.

        Raises what `stage` raises, for records that come with the commit, and OutcomeUnknown if only a restart can tell whether it is
        done. After any other error it either is not, or it is decided and continues; asking again tells.
        """
        if len(winners) > WINNERS_MAX:
            raise InvalidRequest(
                f"a commit names {len(winners)} attempts, and at most {WINNERS_MAX} are allowed: write with fewer tasks "
                "(in Spark, coalesce() before the write)"
            )
        if len({winner.attempt for winner in winners}) != len(winners):
            raise InvalidRequest("a commit names each attempt once, and this one names one twice")
        once = CommitId(application, run, epoch)
        return await self._commit(principal, once, winners, unstaged)

    async def _checked(self, principal: Principal, unstaged: Sequence[Unstaged]) -> list[Brought]:
        """The records that come with a commit, checked and stamped."""
        brought: list[Brought] = []
        for topic, topic_id, parts in unstaged:
            authorize(self.access, principal, Operation.WRITE, Resource(ResourceKind.TOPIC, topic))
            check_topic(self._engine, topic, topic_id, LAID_OUT)
            checked = check_parts(self._engine.topic(topic), parts, self._limits)
            if self._validation.applies_to(topic):
                stamped = await self._validation.check(topic, None, records_of(checked))
                checked = with_headers(checked, stamped.headers, self._limits)
            brought.append(Brought(topic, topic_id, checked))
        return brought

    async def _commit(
        self, principal: Principal, once: CommitId, winners: Sequence[Winner], unstaged: Sequence[Unstaged]
    ) -> Committed:
        application = once.application
        self._applications.current(principal, application)
        held = self._applications.held.of(application)
        while True:
            under_way = self._under_way(application)
            if under_way is not None and not await self._finished(under_way):
                return Committed.GOES_ON
            await held.acquire()
            if self._under_way(application) is None:
                break
            held.release()
        deciding = self._tasks.run(self._decide(principal, once, winners, unstaged), quiet=True)
        deciding.add_done_callback(lambda _: held.release())
        # The caller may be cancelled; the commit continues.
        publication = await shield(deciding)
        if publication is None:
            return Committed.BEFORE
        return Committed.NOW if await self._finished(publication) else Committed.GOES_ON

    @on_broker(Operation.WRITE)
    async def abort(self, principal: Principal, application: str, run: int, epoch: int) -> bool:
        """Drop what this run and earlier ones staged for an epoch. False if it was committed: that stays as it is.

        An application that has this epoch only is not written any more: a commit of it that is still on its way is refused.
        Raises OutcomeUnknown if only a restart can tell whether it was.
        """
        once = CommitId(application, run, epoch)
        if self._applications.current(principal, application).lasting:
            return await self._abort(principal, once)
        return await self.background.complete(self._abort(principal, once))

    async def _abort(self, principal: Principal, once: CommitId) -> bool:
        application, run, epoch = once
        async with self._applications.held.of(application):
            entry = self._applications.current(principal, application)
            if epoch <= entry.epoch:
                return False
            under_way = self._under_way(application)
            if under_way is not None and under_way.epoch == epoch and under_way.state is State.UNKNOWN:
                raise _unknown(under_way)
            staged = self._tickets.by_application.get(application)
            if staged is not None:
                doomed = [
                    ticket
                    for ticket in staged.tickets.values()
                    if ticket.key.epoch == epoch and ticket.entry.run <= run
                ]
                self.stats.aborted_tickets += staged.drop(doomed)
            if not entry.lasting and entry.run <= run:
                await self._applications.end_run(principal, application)
            return True

    # -- committing -------------------------------------------------------------------------------------------------------

    def _publications(self) -> list[Publication]:
        """Return the commits that are under way, or could not continue."""
        applications = self._tickets.by_application.values()
        return [staged.publication for staged in applications if staged.publication is not None]

    def _under_way(self, application: str) -> Publication | None:
        """A commit that is decided and not yet all published."""
        staged = self._tickets.by_application.get(application)
        publication = None if staged is None else staged.publication
        return None if publication is None or publication.state is State.COMMITTING else publication

    async def _decide(
        self, principal: Principal, once: CommitId, winners: Sequence[Winner], unstaged: Sequence[Unstaged]
    ) -> Publication | None:
        """Take the first step of a commit while its application is held; the rest is done in the background. None if it was done before.

        Its records are checked here, and not before: an abort waits for that, and says what became of the commit.
        """
        if once.epoch <= self._applications.current(principal, once.application).epoch:
            self.stats.repeated_commits += 1
            return None
        if unstaged:
            self._check_begun(principal, once)
        brought = await self._checked(principal, unstaged)
        publication = self._prepare(principal, once, winners, brought)
        try:
            await publication.decide(lambda: [self._applications.prepare(principal, once)])
        except BaseException:
            if publication.state is State.OPEN:
                publication.application.publication = None
            raise
        self.stats.commits += 1
        _ = self._go_on(publication)
        return publication

    def _prepare(
        self, principal: Principal, once: CommitId, winners: Sequence[Winner], brought: Sequence[Brought]
    ) -> Publication:
        entry = self._applications.check_run(principal, once)
        staged = self._tickets.application(once.application)
        tickets = staged.winning(once.epoch, winners)
        topics = {topic for ticket in tickets for topic in ticket.topics}
        for each in brought:
            # The check of the records may have taken a while.
            check_topic(self._engine, each.topic, each.topic_id, LAID_OUT)
            topics.add(each.topic)
        for topic in topics:
            authorize(self.access, principal, Operation.WRITE, Resource(ResourceKind.TOPIC, topic))
        staged.single = not entry.lasting
        staged.publication = Publication(staged, once.epoch, tickets, brought)
        return staged.publication

    def _go_on(self, publication: Publication) -> asyncio.Task[None]:
        """The task that publishes what is left."""
        if publication.task is None or publication.task.done():
            publication.task = self._tasks.run(self._finish(publication), quiet=True)
        return publication.task

    async def _finish(self, publication: Publication) -> None:
        try:
            await publication.finish()
        except ShuttingDown:
            raise
        except Exception as error:
            publication.stalled = True
            self._publishing.failed(error)
            raise
        publication.stalled = False
        if not any(each.stalled for each in self._publications()):
            self._publishing.succeeded()
        staged = publication.application
        self.stats.published_records += publication.records
        self.stats.aborted_tickets += staged.published(publication.winners, publication.epoch)
        _ = self._tasks.run(staged.clear(), quiet=True)

    async def _finished(self, publication: Publication) -> bool:
        """Wait a while for a decided commit; whether it is over. Raises what keeps it from continuing."""
        if publication.state is State.COMMITTED:
            return True
        if publication.state is State.UNKNOWN:
            raise _unknown(publication)
        going_on = self._go_on(publication)
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
            log.error("staged_records_missing", application=name, tickets=broken)
            return
        log.info("staged_commit_resumed", application=name, epoch=commit.epoch, applied=commit.applied)
        winners = sorted(tickets, key=lambda ticket: ticket.entry.chosen)
        staged.publication = Publication(staged, commit.epoch, winners, applied=commit.applied)
        _ = self._go_on(staged.publication)

    # -- as time passes ---------------------------------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Drop what has expired, give back space, and try again what could not continue."""
        for publication in self._publications():
            if publication.state is State.PUBLISHING:
                _ = self._go_on(publication)
        now_s = self._clock.monotonic()
        for staged in list(self._tickets.by_application.values()):
            self.stats.expired_tickets += staged.expire(now_s - self._limits.staged_ms_max / 1000)
            if now_s - staged.touched_s >= IDLE_S_MAX:
                await staged.leave()

    async def _sweep_step(self) -> float:
        self._sweeps += 1
        await self.sweep()
        if self._sweeps % FORGET_EVERY_SWEEPS == 0:
            self._applications.forget(self._tickets.by_application)
            self._tickets.forget_ended()
        return SWEEP_S


def _unknown(publication: Publication) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"whether epoch {publication.epoch} of {publication.application.name} is published is unknown: "
        f"{publication.unknown_because}; restart the broker, then commit again to learn"
    )
