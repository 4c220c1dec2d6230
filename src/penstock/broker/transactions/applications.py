"""Applications: writers whose commits are idempotent, so that work repeated after a crash is stored once.

Such a writer cannot know whether the last commit of its run before was done. So it names its work: application, run and epoch.
- Epochs of an application rise. A commit whose epoch is not above the last one committed has been done before: it writes nothing.
- Runs rise too. `begin_run` hands out the next number, and from then on commits of earlier runs are refused (fenced), so that a run that
  was thought dead cannot write while the one that took its place does. A run may have a name: then all of its processes can ask for its
  number, and the first of them begins it.

The last run and epoch of each application are an entry of the table `__applications`, changed in the same append as the records they
account for. An entry is locked by its application's name from reading it until the change is committed; so of two concurrent commits of
one epoch, one is done and the other finds it done.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, NamedTuple

import msgspec

from penstock.background import Background
from penstock.broker.access.checks import Principal
from penstock.broker.keyed_locks import KeyedLocks
from penstock.broker.limits import INT64_MAX
from penstock.broker.table import PreparedChange, Table
from penstock.clock import Clock
from penstock.errors import AccessDenied, InvalidRequest, LimitExceeded, ProducerFenced
from penstock.log.api import Engine
from penstock.names import NAME_BYTES_MAX, validate_name

APPLICATIONS_TOPIC: Final = "__applications"
ENTRY_BYTES_MAX: Final = 1 << 10
# One that comes back later than this finds its last epoch no longer known. Those that have one epoch only are asked again within minutes.
REMEMBERED_MS: Final = 365 * 24 * 3600 * 1000
SINGLE_REMEMBERED_MS: Final = 24 * 3600 * 1000
RUN_NAME_BYTES_MAX: Final = 64
# Of the runs before, so that a late process of one of them is not taken for a new run.
RUN_NAMES_MAX: Final = 8


class CommitId(NamedTuple):
    """The id of a commit, which is done once however often it is tried."""

    application: str
    run: int
    epoch: int


class Application(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The newest run of an application, and the last epoch that it or an earlier run committed, -1 for none."""

    owner: str
    run: int
    epoch: int
    changed_ms: int
    names: tuple[str, ...] = ()
    """Of the last runs, the newest last; those without one are empty."""
    lasting: bool = True
    """Whether it comes back with more epochs."""
    query: str = ""
    """The streaming query that it belongs to; empty if none was named."""


class Applications:
    def __init__(self, engine: Engine, clock: Clock, background: Background, applications_max: int) -> None:
        self._clock = clock
        self._applications_max = applications_max
        self.held: KeyedLocks[str] = KeyedLocks()
        """By name: held from reading an entry until its change is committed."""
        self._table = Table(
            engine,
            APPLICATIONS_TOPIC,
            str,
            Application,
            entries_max=applications_max,
            limit="limits.applications_max",
            background=background,
            value_bytes_max=ENTRY_BYTES_MAX,
        )

    async def start(self) -> None:
        await self._table.load()

    async def close(self) -> None:
        await self._table.close()

    async def begin_run(
        self,
        principal: Principal,
        application: str,
        name: str = "",
        *,
        lasting: bool = True,
        query: str = "",
        replaces: bool = False,
    ) -> Application:
        """Begin a new run, or find the one of this name begun; commits of earlier ones are refused from now on. Not to be cancelled.

        Raises ProducerFenced if the run of this name is not the newest any more.
        """
        _check(CommitId(application, 0, 0))
        if name:
            validate_name(name, "run name", RUN_NAME_BYTES_MAX)
        if query:
            validate_name(query, "query", RUN_NAME_BYTES_MAX)
        async with self.held.of(application):
            entry = self.current(principal, application)
            if name and name in entry.names:
                if name != entry.names[-1]:
                    raise _fenced(f"run {name}", application, entry)
                return entry
            run, names = entry.run + 1, (*entry.names, name)[-RUN_NAMES_MAX:]
            known = query if replaces or entry.epoch < 0 or not entry.query else entry.query
            entry = Application(principal.name, run, entry.epoch, self._clock.now_ms(), names, lasting, known)
            await self._table.put(application, entry)
            return entry

    async def end_run(self, principal: Principal, application: str) -> None:
        """Refuse what the newest run still commits, and its processes that still begin. For the holder; not to be cancelled."""
        entry = self.current(principal, application)
        names = (*entry.names, "")[-RUN_NAMES_MAX:]
        ended = msgspec.structs.replace(entry, run=entry.run + 1, names=names, changed_ms=self._clock.now_ms())
        await self._table.put(application, ended)

    def prepare(self, principal: Principal, once: CommitId) -> PreparedChange[str, Application]:
        """The entry of the commit that is named, as one part of its append. To be asked by the holder.

        Raises ProducerFenced if a newer run has begun.
        """
        entry = self.check_run(principal, once)
        assert once.epoch > entry.epoch, "somebody committed an epoch of an application that was held"
        committed = msgspec.structs.replace(entry, run=once.run, epoch=once.epoch, changed_ms=self._clock.now_ms())
        return self._table.prepare([(once.application, committed)])

    def check_run(self, principal: Principal, once: CommitId) -> Application:
        """The application as it stands. Raises ProducerFenced if a newer run has begun."""
        _check(once)
        entry = self.current(principal, once.application)
        if once.run < entry.run:
            raise _fenced(f"run {once.run}", once.application, entry)
        return entry

    def current(self, principal: Principal, application: str) -> Application:
        """Its newest run and last epoch. Raises AccessDenied if it is somebody else's, LimitExceeded if it would be one too many."""
        entry = self._table.get(application)
        if entry is None:
            self._check_share(principal)
            return Application(principal.name, 0, -1, 0)
        if entry.owner != principal.name:
            raise AccessDenied(f"application {application} is owned by another user: choose another name")
        return entry

    def _check_share(self, principal: Principal) -> None:
        """Raise LimitExceeded if a principal has its share of the applications."""
        share = self._applications_max // 2
        if len(self._table) < share:
            return
        if sum(entry.owner == principal.name for _, entry in self._table.items()) >= share:
            raise LimitExceeded(
                f"{principal.name} has {share} applications, the most allowed for one principal: give writers that come back "
                "the same txnAppId, or raise limits.applications_max"
            )

    def forget(self, used: Container[str]) -> None:
        """Drop those that have not been heard of for long, but those in use: a run may take longer than an application is remembered."""
        now_ms = self._clock.now_ms()
        self._table.forget(
            name
            for name, entry in self._table.items()
            if now_ms - entry.changed_ms > (REMEMBERED_MS if entry.lasting else SINGLE_REMEMBERED_MS)
            and name not in used
        )


def _fenced(run: str, application: str, entry: Application) -> ProducerFenced:
    return ProducerFenced(
        f"{run} of application {application} is fenced: run {entry.run} has begun since, or it was aborted"
    )


def _check(once: CommitId) -> None:
    validate_name(once.application, "application name", NAME_BYTES_MAX)
    for what, number in (("run", once.run), ("epoch", once.epoch)):
        if not 0 <= number <= INT64_MAX:
            raise InvalidRequest(
                f"{what} {number} of application {once.application} is out of range: use 0 to {INT64_MAX}"
            )
