"""Pipelines: what programs that move records elsewhere (Spark pipelines, above all) last said of themselves, and whether they should stop.

A run reports every few seconds: its state and, for each of its stages, how much it has done and how far behind it is. The last report of
each pipeline is an entry of the table `__pipelines`, so that the list and the metrics survive a restart of the broker. The answer to a
report says whether the run should stop: because somebody asked for it, or because a newer run of the same pipeline has reported since.
Nothing here starts, stops or reaches a pipeline; it only keeps what they say and tells them what was asked.

A pipeline belongs to the principal that first reported it. Others may see it; only administrators may stop it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from penstock.broker.access.checks import BROKER, Operation, Principal, authorize, on_broker
from penstock.broker.limits import INT64_MAX
from penstock.broker.part import Context, Part
from penstock.broker.table import Table
from penstock.errors import AccessDenied, EntryNotFound, InvalidRequest
from penstock.names import NAME_BYTES_MAX, validate_name

PIPELINES_TOPIC: Final = "__pipelines"
STAGES_MAX: Final = 256
MESSAGE_BYTES_MAX: Final = 1 << 10
STATES: Final = ("starting", "running", "stopping", "stopped", "finished", "failed")
ACTIVE_STATES: Final = frozenset({"starting", "running", "stopping"})
SILENT_MS: Final = 60_000
"""A run that has said nothing for so long is taken for dead: it reports every few seconds."""
REMEMBERED_MS: Final = 90 * 24 * 3600 * 1000
RUN_VARIABLE: Final = "PENSTOCK_RUN"
"""In the environment of a run: what its id ends with, so that who started it knows its reports."""
LAG_UNKNOWN: Final = -1


class Stage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one stage of a run has done since the run began."""

    name: str
    state: str
    rows: int
    rejects: int
    lag: int
    """Records that wait in the log, LAG_UNKNOWN before the first batch."""
    batches: int
    batch_ms: int
    """How long the last batch took."""
    dropped: int = 0
    """Rows that did not meet an expectation."""
    late: int = 0
    """Rows that came after their window was done."""
    future: int = 0
    """Rows that are dated too far ahead."""


class Pipeline(msgspec.Struct, frozen=True, array_like=True):
    owner: str
    run: str
    started_ms: int
    updated_ms: int
    state: str
    message: str
    stages: tuple[Stage, ...]
    stop_run: str = ""
    """The run that was asked to stop."""


class Report(NamedTuple):
    run: str
    started_ms: int
    state: str
    message: str
    stages: Sequence[Stage]


class PipelineInfo(Pipeline, frozen=True, kw_only=True):
    """A pipeline and what follows from its last report."""

    name: str
    stopping: bool
    """It was asked to stop and has not reported yet that it has."""
    alive: bool
    """It has reported recently that it runs."""


class Pipelines(Part):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._table = Table(
            self._engine,
            PIPELINES_TOPIC,
            str,
            Pipeline,
            entries_max=self._limits.pipelines_max,
            limit="limits.pipelines_max",
            background=self.background,
        )
        self._asked_to_stop: dict[str, str] = {}
        """Runs by pipeline, from the moment they are asked: a report may be made while that is on its way to the disk."""

    async def start(self) -> None:
        await self._table.load()
        self._forget()

    async def close(self) -> None:
        await self._table.close()

    # -- operations -------------------------------------------------------------------------------------------------------

    @on_broker(Operation.READ)
    async def report(self, principal: Principal, name: str, report: Report) -> bool:
        """Keep what a run says of itself; returns whether it should stop."""
        validate_name(name, "pipeline name", NAME_BYTES_MAX)
        _check(report)
        before = self._table.get(name)
        if before is not None and before.owner != principal.name:
            raise AccessDenied(f"pipeline {name} is owned by another user: choose another name")
        if before is not None and before.run != report.run and before.started_ms > report.started_ms:
            return True
        stop_run = self._asked_to_stop.get(name, before.stop_run if before is not None else "")
        await self._table.put(
            name,
            Pipeline(
                principal.name,
                report.run,
                report.started_ms,
                self._clock.now_ms(),
                report.state,
                report.message,
                tuple(report.stages),
                stop_run,
            ),
        )
        # Looked up once more: a stop may have come while the report was on its way to the disk.
        return report.run in (stop_run, self._asked_to_stop.get(name))

    @on_broker(Operation.DESCRIBE)
    def reported(self, principal: Principal) -> list[PipelineInfo]:
        """Every pipeline that has reported, by name."""
        return self.infos()

    @on_broker(Operation.READ)
    async def stop(self, principal: Principal, name: str) -> bool:
        """Ask the running run to stop with its next report; returns whether there is one. Raises EntryNotFound."""
        entry = self._table.get(name)
        if entry is None:
            raise EntryNotFound(f"no pipeline {name} has reported; list those that have with: penstock pipeline status")
        if entry.owner != principal.name:
            authorize(self.access, principal, Operation.ADMIN, BROKER)
        if not self._alive(entry):
            return False
        self._asked_to_stop[name] = entry.run
        self._audit.note(principal, "pipeline.stop", name)
        await self._table.put(name, msgspec.structs.replace(entry, stop_run=entry.run))
        return True

    @on_broker(Operation.ADMIN)
    async def note_end(self, principal: Principal, name: str, run: str, state: str, message: str) -> None:
        """Record the end of a run that ended without a last report."""
        entry = self._table.get(name)
        if entry is not None and entry.run == run and entry.state in ACTIVE_STATES:
            ended = msgspec.structs.replace(entry, state=state, message=message, updated_ms=self._clock.now_ms())
            await self._table.put(name, ended)

    # -- for the metrics --------------------------------------------------------------------------------------------------

    def infos(self) -> list[PipelineInfo]:
        return [
            PipelineInfo(
                *msgspec.structs.astuple(entry),
                name=name,
                stopping=entry.stop_run == entry.run and entry.state in ACTIVE_STATES,
                alive=self._alive(entry),
            )
            for name, entry in sorted(self._table.items())
        ]

    # -- inside -----------------------------------------------------------------------------------------------------------

    def _alive(self, entry: Pipeline) -> bool:
        return entry.state in ACTIVE_STATES and self._clock.now_ms() - entry.updated_ms < SILENT_MS

    def _forget(self) -> None:
        before_ms = self._clock.now_ms() - REMEMBERED_MS
        self._table.forget(name for name, entry in self._table.items() if entry.updated_ms < before_ms)


def _check(report: Report) -> None:
    validate_name(report.run, "run", NAME_BYTES_MAX)
    if len(report.stages) > STAGES_MAX:
        raise InvalidRequest(
            f"a report of {len(report.stages)} stages is too large: a pipeline has at most {STAGES_MAX}"
        )
    if len(report.message.encode(errors="surrogatepass")) > MESSAGE_BYTES_MAX:
        raise InvalidRequest(f"the message of a report is too long: at most {MESSAGE_BYTES_MAX} bytes")
    for state in (report.state, *(stage.state for stage in report.stages)):
        if state not in STATES:
            raise InvalidRequest(f"state {state!r} of a pipeline is not known: use {', '.join(STATES)}")
    names = set()
    for stage in report.stages:
        validate_name(stage.name, "stage name", NAME_BYTES_MAX)
        names.add(stage.name)
        left_out = (stage.rejects, stage.dropped, stage.late, stage.future)
        for number in (stage.rows, *left_out, stage.batches, stage.batch_ms):
            if not 0 <= number <= INT64_MAX:
                raise InvalidRequest(f"stage {stage.name} reports {number}: use 0 to {INT64_MAX}")
    if len(names) != len(report.stages):
        raise InvalidRequest("two stages of a report have one name: give each its own")
