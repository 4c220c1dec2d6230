"""Records against schemas, on the way to the log.

A run of records is checked whole and refused whole, with the first record at fault and the reason. Small runs are checked where they
are, on the event loop: a record of 100 bytes takes a microsecond. What may take longer (many bytes, or a schema that may look at them
many times) goes to a worker process; runs for the same topic that come behind it wait, so that records keep their order.

Compiled checkers are kept, the latest used longest, up to a bound.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from penstock.background import Background
from penstock.broker.schemas.definition import Checker
from penstock.broker.schemas.reference import Reference
from penstock.broker.schemas.registry import Registry, Version, schema_id
from penstock.broker.schemas.worker import CheckRecords, Refused, Verdict, Worker
from penstock.errors import PenstockError, ServerError, ValidationFailed

ON_LOOP_COST_MAX: Final = 256 << 10
"""Bytes times the cost of each: what a run may take on the event loop, which is some 3 ms, and 7 ms at worst."""
RECORDS_S_MAX: Final = 2.0
"""Of processor time, for a run that a worker checks."""
CHECKERS_BYTES_MAX: Final = 16 << 20
"""Definitions whose checkers are kept. A checker takes about ten times as much."""


@dataclass(slots=True)
class ValidationStats:
    """Plain numbers, exported on scrape."""

    checked_records: int = 0
    refused_runs: int = 0
    worker_runs: int = 0


class _Want(NamedTuple):
    """What records must follow: one version of a schema."""

    name: str
    number: int
    message: str
    version: Version

    @property
    def id(self) -> str:
        return schema_id(self.name, self.number)


class _Waiting(NamedTuple):
    wants: list[_Want]
    values: Sequence[bytes | None]
    accept: Callable[[], None]
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
        self._refusing: str | None = None
        self._tried_again = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.stats = ValidationStats()

    async def close(self) -> None:
        """Wait for the check under way, refuse the runs behind it, and end the worker."""
        await self._worker.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    def check_reference(self, reference: Reference) -> None:
        """Raises SchemaNotFound, and InvalidRequest where the schema has no such message."""
        want = self._want(reference)
        if want.message:
            self._checker(want)

    def concerns(self, topic: str) -> bool:
        """Whether records of the topic must be checked, or must wait behind some that are."""
        return topic in self._registry.bound or topic in self._queues

    def admit(
        self,
        topic: str,
        schema: Reference | None,
        values: Sequence[bytes | None],
        accept: Callable[[], None],
        refuse: Callable[[PenstockError], None],
    ) -> None:
        """Call `accept` when the records are what the topic's schema and the one given say, now or later.

        Raises ValidationFailed, SchemaNotFound, and what `accept` raises; or, when the answer comes later, calls `refuse` with it.
        """
        wants = [self._want(reference) for reference in (self._registry.bound.get(topic), schema) if reference]
        queue = self._queues.get(topic)
        if queue is None and self._quick(wants, values):
            for want in wants:
                self._check_here(want, values)
            accept()
            return
        waiting = _Waiting(wants, values, accept, refuse)
        if queue is not None:
            if topic == self._refusing:
                # What is tried again in place of a refused run takes its place.
                queue.insert(self._tried_again, waiting)
                self._tried_again += 1
            else:
                queue.append(waiting)
            return
        self._queues[topic] = deque([waiting])
        task = asyncio.get_running_loop().create_task(self._work_off(topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def check(self, topic: str, schema: Reference | None, values: Sequence[bytes | None]) -> None:
        """The same for who waits. Raises ValidationFailed, SchemaNotFound."""
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def accept() -> None:
            if not answer.done():
                answer.set_result(None)

        def refuse(error: PenstockError) -> None:
            if not answer.done():
                answer.set_exception(error)

        self.admit(topic, schema, values, accept, refuse)
        await answer

    async def faults(self, reference: Reference, value: bytes) -> list[str]:
        """Everything that is wrong with one record. Raises SchemaNotFound."""
        want = self._want(reference)
        if self._quick([want], [value]):
            return self._checker(want).faults(value)
        return (await self._ask(want, [value], all_reasons=True)).reasons

    # -- here -------------------------------------------------------------------------------------------------------------

    def _want(self, reference: Reference) -> _Want:
        number, version = self._registry.resolve(reference)
        return _Want(reference.name, number, reference.message, version)

    def _quick(self, wants: list[_Want], values: Sequence[bytes | None]) -> bool:
        cost = sum(want.version.cost for want in wants)
        return cost * (len(values) + sum(map(len, filter(None, values)))) <= ON_LOOP_COST_MAX

    def _check_here(self, want: _Want, values: Sequence[bytes | None]) -> None:
        rows, present = _present(values)
        if present:
            self.stats.checked_records += len(present)
            fault = self._checker(want).first_fault(present)
            if fault is not None:
                self.stats.refused_runs += 1
                raise _failed(want, rows[fault.row], len(values), fault.reason)

    def _checker(self, want: _Want) -> Checker:
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

    async def _work_off(self, topic: str) -> None:
        queue = self._queues[topic]
        while queue:
            try:
                await self._settle(topic, queue[0])
            except Exception as error:  # noqa: BLE001  a bug of ours must not leave the runs after it waiting for ever
                self._health.failed(error, retried=False)
            else:
                self._health.succeeded()
            queue.popleft()
        del self._queues[topic]

    async def _settle(self, topic: str, waiting: _Waiting) -> None:
        """Check one run, and accept or refuse it."""
        try:
            for want in waiting.wants:
                await self._check_there(want, waiting.values)
            waiting.accept()
        except PenstockError as error:
            self._refuse(topic, waiting, error)
        except Exception as error:
            self._refuse(topic, waiting, ServerError(f"internal error: {type(error).__name__}"))
            raise

    def _refuse(self, topic: str, waiting: _Waiting, error: PenstockError) -> None:
        self._refusing, self._tried_again = topic, 1
        try:
            waiting.refuse(error)
        finally:
            self._refusing = None

    async def _check_there(self, want: _Want, values: Sequence[bytes | None]) -> None:
        if self._quick([want], values):
            self._check_here(want, values)
            return
        rows, present = _present(values)
        if present:
            self.stats.checked_records += len(present)
            self.stats.worker_runs += 1
            verdict = await self._ask(want, present, all_reasons=False)
            if verdict.reasons:
                self.stats.refused_runs += 1
                raise _failed(want, rows[verdict.row], len(values), verdict.reasons[0])

    async def _ask(self, want: _Want, values: list[bytes], *, all_reasons: bool) -> Verdict:
        version = want.version
        reply = await self._worker.ask(
            CheckRecords(want.id, version.type_, version.stored, want.message, values, all_reasons), RECORDS_S_MAX
        )
        if isinstance(reply, Verdict):
            return reply
        assert isinstance(reply, Refused)
        return Verdict(0, [reply.reason])


def _present(values: Sequence[bytes | None]) -> tuple[Sequence[int], list[bytes]]:
    """The records that have a value, and where they stand: a record without one deletes its key and says nothing."""
    if None not in values:
        return range(len(values)), list(values)  # type: ignore[arg-type]
    rows = [row for row, value in enumerate(values) if value is not None]
    return rows, [values[row] for row in rows]  # type: ignore[misc]


def _failed(want: _Want, row: int, count: int, reason: str) -> ValidationFailed:
    place = f"record {row}: " if count > 1 else ""
    return ValidationFailed(f"schema validation failed: {place}{reason} ({want.id})", row)
