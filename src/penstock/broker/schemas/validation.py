"""Records against schemas, on the way to the log.

A run of records is checked at once. If a record is at fault, each request of the run is checked by itself, and gets its first fault.
Each record is checked against the version that wrote it, and stamped with it (`writers`).
Small runs are checked where they are, on the event loop: a record of 100 bytes takes a microsecond. What may take longer (many bytes, or
a schema that may look at them many times) goes to a worker process; later runs for the same topic wait, so that records
keep their order.

Compiled checkers are kept, the latest used longest, up to a bound.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from penstock.background import Background, Tasks
from penstock.broker.records.faults import Faults
from penstock.broker.schemas.definition import Checker, Fault, first_faults
from penstock.broker.schemas.entries import Version
from penstock.broker.schemas.marks import MarkInvalid
from penstock.broker.schemas.reference import LATEST, Reference
from penstock.broker.schemas.registry import Registry, schema_id
from penstock.broker.schemas.worker import CheckRecords, Refused, Verdict, Worker
from penstock.broker.schemas.writers import Asked, sort_by_writer
from penstock.errors import InvalidRequest, PenstockError, ServerError, ValidationFailed
from penstock.futures import set_outcome
from penstock.log.api import Batch

OnScreened = Callable[[Faults | None, Batch], None]
"""Gets the requests that are refused, and the records as they are to be stored."""

ON_LOOP_COST_MAX: Final = 256 << 10
"""Bytes times the cost of each: what a run may take on the event loop, which is some 3 ms, and 7 ms at worst."""
RECORDS_S_MAX: Final = 2.0
"""In processor time, for a run that a worker checks."""
CHECKERS_BYTES_MAX: Final = 16 << 20
"""Definitions whose checkers are kept. A checker takes about ten times as much."""


@dataclass(slots=True)
class ValidationStats:
    """Plain numbers, exported on scrape."""

    checked_records: int = 0
    refused_writes: int = 0
    worker_runs: int = 0


class _Requirement(NamedTuple):
    """The version of a schema that records must follow."""

    name: str
    number: int
    message: str
    version: Version

    @property
    def id(self) -> str:
        return schema_id(self.name, self.number)


class _Run(NamedTuple):
    """Records to be checked, and the number of those of each request; None if each record is a request."""

    values: Sequence[bytes | None]
    units: Sequence[int] | None
    rows: Sequence[int] | None = None
    """Where the values are among all records; None if they are all of them."""


class _Job(NamedTuple):
    """Records to be checked against one version."""

    want: _Requirement
    run: _Run


class _Waiting(NamedTuple):
    jobs: list[_Job]
    faults: Faults | None
    """Of records whose marks are wrong."""
    accept: Callable[[Faults | None], None]
    refuse: Callable[[PenstockError], None]


class Validation:
    def __init__(self, registry: Registry, background: Background, worker: Worker | None = None) -> None:
        self._registry = registry
        self._health = background.health("schema_validation")
        self._worker = worker or Worker()
        self._checkers: OrderedDict[tuple[str, int, str], tuple[Checker, int]] = OrderedDict()
        self._checkers_bytes = 0
        self._queues: dict[str, deque[_Waiting]] = {}
        """By topic, while runs wait for the worker. Entries go with the last of them."""
        self._tasks = Tasks()
        self.stats = ValidationStats()

    async def close(self) -> None:
        """Wait for the current check, refuse the runs after it, and end the worker."""
        await self._worker.close()
        await self._tasks.finish()

    def check_reference(self, reference: Reference) -> None:
        """Raises SchemaNotFound, and InvalidRequest where the schema has no such message."""
        want = self._want(reference)
        if want.message:
            self._checker(want)

    def applies_to(self, topic: str) -> bool:
        """Whether records of the topic are validated, or queue behind records that are."""
        return topic in self._registry.bound or topic in self._queues

    def screen(
        self,
        topic: str,
        schema: Reference | None,
        batch: Batch,
        units: Sequence[int] | None,
        accept: OnScreened,
        refuse: Callable[[PenstockError], None],
    ) -> None:
        """Call `accept`, now or later, with the requests that are not what the topic's schema and the one given say, or with None; and with
        the records as they are to be stored, stamped with the version that they follow.

        Raises SchemaNotFound, and what `accept` raises; or, if the answer comes later, calls `refuse` with it.
        """
        jobs, faults, stamped = self._jobs(self._registry.bound.get(topic), schema, batch, units)
        queue = self._queues.get(topic)
        if queue is None and self._fits_inline(jobs):
            for job in jobs:
                faults = self._check_inline(job, faults)
            accept(faults, stamped)
            return
        waiting = _Waiting(jobs, faults, partial(_accept, accept, stamped), refuse)
        if queue is not None:
            queue.append(waiting)
            return
        self._queues[topic] = deque([waiting])
        _ = self._tasks.run(self._drain(topic))

    def admit(
        self,
        topic: str,
        schema: Reference | None,
        batch: Batch,
        accept: Callable[[Batch], None],
        refuse: Callable[[PenstockError], None],
    ) -> None:
        """Do as `screen` with records that are one request: also raises, or calls `refuse` with, ValidationFailed."""

        def judge(faults: Faults | None, stamped: Batch) -> None:
            if faults is not None:
                raise faults.errors[0]
            accept(stamped)

        self.screen(topic, schema, batch, [len(batch)], judge, refuse)

    async def check(self, topic: str, schema: Reference | None, batch: Batch) -> Batch:
        """The same for who waits. Raises ValidationFailed, SchemaNotFound."""
        answer: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
        answered = partial(set_outcome, answer)
        self.admit(topic, schema, batch, answered, answered)
        return await answer

    async def faults(self, reference: Reference, value: bytes) -> list[str]:
        """Everything that is wrong with one record. Raises SchemaNotFound."""
        by_version, _, refused = sort_by_writer(Batch([value]), self._asked(reference, self._want(reference).number))
        if refused:
            return list(refused.values())
        [(number, ([payload], _))] = by_version.items()
        assert payload is not None
        want = self._want(reference._replace(version=number))
        if self._fits_inline([_Job(want, _Run([payload], None))]):
            return self._checker(want).faults(payload)
        reply = await self._ask(want, [payload], None, all_reasons=True)
        return [reply.reason] if isinstance(reply, Refused) else [fault.reason for fault in reply.faults]

    # -- here -------------------------------------------------------------------------------------------------------------

    def _want(self, reference: Reference) -> _Requirement:
        number, version = self._registry.resolve(reference)
        return _Requirement(reference.name, number, reference.message, version)

    def _jobs(
        self, bound: Reference | None, given: Reference | None, batch: Batch, units: Sequence[int] | None
    ) -> tuple[list[_Job], Faults | None, Batch]:
        """Return what is to be checked against which version, the rows whose marks are wrong, and the records with their stamps."""
        jobs: list[_Job] = []
        faults: Faults | None = None
        stamped = batch
        if bound is not None and given is not None and _is_narrower(given, bound):
            bound = None
        for reference in (bound, given):
            if reference is None:
                continue
            want = self._want(reference)
            by_version, headers, refused = sort_by_writer(batch, self._asked(reference, want.number))
            for number, (values, rows) in by_version.items():
                jobs.append(_Job(self._want(reference._replace(version=number)), _Run(values, units, rows)))
            for row, reason in refused.items():
                faults = faults or Faults(units)
                unit = faults.units.of(row)
                faults.refuse(row, _failed(want, row - unit.start, len(unit), reason))
                self.stats.refused_writes += 1
            if reference is bound or bound is None or _says_as_much(reference, bound):
                stamped = Batch(batch.values, batch.keys, headers, batch.expiries)
        return jobs, faults, stamped

    def _asked(self, reference: Reference, number: int) -> Asked:
        name = reference.name

        def message_path(number: int, message: str) -> tuple[int, ...]:
            try:
                return self._checker(self._want(Reference(name, number, message))).message_path
            except InvalidRequest as error:
                raise MarkInvalid(error.message) from None

        frames = self._registry.frames(name, number)
        is_sure = not self._registry.is_ambiguous(reference)
        return Asked(reference, number, is_sure, frames, partial(self._registry.has_version, name), message_path)

    def _fits_inline(self, jobs: list[_Job]) -> bool:
        cost = 0
        for want, run in jobs:
            cost += want.version.cost * (len(run.values) + sum(map(len, filter(None, run.values))))
        return cost <= ON_LOOP_COST_MAX

    def _check_inline(self, job: _Job, faults: Faults | None) -> Faults | None:
        """Check the rows that are not in `faults`, and add those at fault."""
        want, run = job
        rows, present = _present(run, faults)
        if present:
            self.stats.checked_records += len(present)
            checker = self._checker(want)
            if checker.first_fault(present) is not None:
                faults = self._refuse(
                    want, run, faults, rows, first_faults(checker, present, _unit_sizes(rows, run.units))
                )
        return faults

    def _refuse(
        self, want: _Requirement, run: _Run, faults: Faults | None, rows: Sequence[int], found: Iterable[Fault]
    ) -> Faults:
        """Add what was found at `rows` to `faults`."""
        faults = faults or Faults(run.units)
        for fault in found:
            row = rows[fault.row]
            unit = faults.units.of(row)
            faults.refuse(row, _failed(want, row - unit.start, len(unit), fault.reason))
            self.stats.refused_writes += 1
        return faults

    def _checker(self, want: _Requirement) -> Checker:
        key = want[:3]
        kept = self._checkers.get(key)
        if kept is not None:
            self._checkers.move_to_end(key)
            return kept[0]
        from penstock.broker.schemas.kinds import KINDS  # by now imported, see Registry

        version = want.version
        checker = KINDS[version.type_].load(version.text, version.form, version.cost).checker(want.message)
        self._checkers[key] = checker, version.size_bytes
        self._checkers_bytes += version.size_bytes
        while self._checkers_bytes > CHECKERS_BYTES_MAX and len(self._checkers) > 1:
            _, (_, size_bytes) = self._checkers.popitem(last=False)
            self._checkers_bytes -= size_bytes
        return checker

    # -- in the worker ----------------------------------------------------------------------------------------------------

    async def _drain(self, topic: str) -> None:
        queue = self._queues[topic]
        while queue:
            try:
                await self._settle(queue[0])
            except Exception as error:  # noqa: BLE001  a bug of ours must not leave the runs after it waiting forever
                self._health.failed(error, retried=False)
            else:
                self._health.succeeded()
            queue.popleft()
        del self._queues[topic]

    async def _settle(self, waiting: _Waiting) -> None:
        """Check one run, and accept or refuse it."""
        faults = waiting.faults
        try:
            for job in waiting.jobs:
                faults = await self._check(job, faults)
            waiting.accept(faults)
        except PenstockError as error:
            waiting.refuse(error)
        except Exception as error:
            waiting.refuse(ServerError(f"internal error: {type(error).__name__}"))
            raise

    async def _check(self, job: _Job, faults: Faults | None) -> Faults | None:
        if self._fits_inline([job]):
            return self._check_inline(job, faults)
        want, run = job
        rows, present = _present(run, faults)
        if present:
            self.stats.checked_records += len(present)
            self.stats.worker_runs += 1
            found = await self._faults_in_worker(want, present, _unit_sizes(rows, run.units))
            if found:
                faults = self._refuse(want, run, faults, rows, found)
        return faults

    async def _faults_in_worker(self, want: _Requirement, values: list[bytes], units: list[int] | None) -> list[Fault]:
        """Return the first fault of each request."""
        reply = await self._ask(want, values, units)
        if isinstance(reply, Verdict):
            return reply.faults
        sizes = [1] * len(values) if units is None else units
        if len(sizes) == 1:
            return [Fault(0, reply.reason)]
        # A request among them, or all of them together, is more than the worker may take on: each has to be checked alone.
        found: list[Fault] = []
        start = 0
        for size in sizes:
            if size:
                of_one = await self._faults_in_worker(want, values[start : start + size], [size])
                found += [Fault(start + fault.row, fault.reason) for fault in of_one]
            start += size
        return found

    async def _ask(
        self, want: _Requirement, values: list[bytes], units: list[int] | None, *, all_reasons: bool = False
    ) -> Verdict | Refused:
        version = want.version
        reply = await self._worker.ask(
            CheckRecords(want.id, version.type_, version.stored, want.message, values, all_reasons, units),
            RECORDS_S_MAX,
        )
        assert isinstance(reply, Verdict | Refused)
        return reply


def _present(run: _Run, faults: Faults | None) -> tuple[Sequence[int], list[bytes]]:
    """Return the rows to check and their values: a record without a value deletes its key and says nothing."""
    values = run.values
    if run.rows is not None:
        refused = {} if faults is None else faults.errors
        present = [(row, value) for row, value in zip(run.rows, values, strict=True) if row not in refused]
        return [row for row, _ in present], [value for _, value in present]  # type: ignore[misc]
    if faults is None and None not in values:
        return range(len(values)), list(values)  # type: ignore[arg-type]
    refused = {} if faults is None else faults.errors
    rows = [row for row, value in enumerate(values) if value is not None and row not in refused]
    return rows, [values[row] for row in rows]  # type: ignore[misc]


def _unit_sizes(rows: Sequence[int], units: Sequence[int] | None) -> list[int] | None:
    """Return how many of `rows` each request has; None if each row is a request."""
    if units is None:
        return None
    ends = list(accumulate(units))
    places = [bisect_left(rows, end) for end in ends]
    return [stop - start for start, stop in pairwise([0, *places])]


def _is_narrower(given: Reference, bound: Reference) -> bool:
    """Whether what a writer names is one of the versions that its topic accepts."""
    return bound.version == LATEST and given.version != LATEST and given._replace(version=LATEST) == bound


def _says_as_much(given: Reference, bound: Reference) -> bool:
    """Whether a writer says at least as much as its topic about the versions that records are of."""
    return given.name == bound.name and (given.version != LATEST or bound.version == LATEST)


def _accept(accept: OnScreened, stamped: Batch, faults: Faults | None) -> None:
    accept(faults, stamped)


def _failed(want: _Requirement, row: int, count: int, reason: str) -> ValidationFailed:
    place = f"record {row}: " if count > 1 else ""
    return ValidationFailed(f"schema validation failed: {place}{reason} ({want.id})")
