"""Pipelines: what they last said of themselves, their last hour, and starting and stopping them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from penstock.admin.api.table import Call, Reply, endpoint
from penstock.admin.launcher import View
from penstock.broker.access.checks import BROKER, Declaration, Operation, ResourceKind, authorize, is_allowed
from penstock.broker.pipelines import LAG_UNKNOWN, Pipelines
from penstock.errors import ConfigError, EntryNotFound, LimitExceeded, PipelineRunning, ShuttingDown

DESCRIBE: Final = Declaration(Operation.DESCRIBE, ResourceKind.BROKER)
START: Final = Declaration(Operation.ADMIN, ResourceKind.BROKER)


class StageState(Reply, frozen=True):
    name: str
    state: str
    rows: int
    rejects: int
    lag: int | None
    batches: int
    batch_ms: int
    dropped: int
    """Rows that did not meet an expectation."""
    late: int
    """Rows that came after their window was done."""
    future: int
    """Rows that are dated too far ahead."""


class PipelineProcess(Reply, frozen=True):
    """The last process that this broker has started for a pipeline."""

    pid: int
    started_ms: int
    ended_ms: int | None
    exit_code: int | None
    """Negative: the signal that ended it."""


class PipelineState(Reply, frozen=True):
    name: str
    owner: str
    run: str
    state: str
    """As it reported: starting, running, stopping, stopped, finished or failed. Of one that was started here and has not reported, as its
    process is. `declared` if it has never run."""
    message: str
    """If it failed, why."""
    alive: bool
    stopping: bool
    startable: bool
    """The configuration declares it, and you may start it. It must not run."""
    started_ms: int
    updated_ms: int
    """When it last reported, 0 if it never has."""
    process: PipelineProcess | None
    stages: list[StageState]


class PipelineLog(Reply, frozen=True):
    text: str
    """The end of what the last process printed, at most 64 KiB."""


class StageHistory(Reply, frozen=True):
    """What a stage reported in the last hour, one sample every ten seconds, the oldest first. Counts are since the run began."""

    name: str
    at_ms: list[int]
    rows: list[int]
    rejects: list[int]
    lag: list[int | None]
    batch_ms: list[int]


class Stopped(Reply, frozen=True):
    asked: bool
    """Whether there is a run that was asked; it stops with its next report."""


@endpoint("GET", "/pipelines", asks=DESCRIBE)
async def list_pipelines(call: Call) -> list[PipelineState]:
    """Return what pipelines last said of themselves, and those that the configuration declares."""
    authorize(call.broker.access, call.principal, DESCRIBE.operation, BROKER)
    return [_state(call, each) for each in call.given.launcher.views()]


@endpoint("GET", "/pipelines/{pipeline}/history", asks=DESCRIBE)
async def get_pipeline_history(call: Call) -> list[StageHistory]:
    """Return what the stages of a pipeline reported in the last hour. Empty until it is sampled."""
    authorize(call.broker.access, call.principal, DESCRIBE.operation, BROKER)
    return [
        StageHistory(
            name,
            list(times_ms),
            list(series.rows),
            list(series.rejects),
            [None if lag == LAG_UNKNOWN else lag for lag in series.lag],
            list(series.batch_ms),
        )
        for name, times_ms, series in call.given.history.stages_of(call.path["pipeline"])
    ]


@endpoint("GET", "/pipelines/{pipeline}/log", asks=START, errors=(EntryNotFound,))
async def get_pipeline_log(call: Call) -> PipelineLog:
    """Return the log of a declared pipeline since its last start here. Empty if it has not been started."""
    authorize(call.broker.access, call.principal, START.operation, BROKER)
    return PipelineLog(await call.given.launcher.log_tail(call.path["pipeline"]))


@endpoint(
    "POST",
    "/pipelines/{pipeline}/start",
    asks=START,
    status=HTTPStatus.ACCEPTED,
    errors=(EntryNotFound, PipelineRunning, LimitExceeded, ConfigError, ShuttingDown),
)
async def start_pipeline(call: Call) -> PipelineState:
    """Start a pipeline that the configuration declares, as a process on the machine of the broker. Spark takes seconds to start: the list
    of pipelines tells when it runs, or why it failed."""
    principal, name = call.principal, call.path["pipeline"]
    authorize(call.broker.access, principal, START.operation, BROKER)
    started = await call.given.launcher.start(name)
    file = call.given.launcher.declared[name].file
    call.broker.audit.note(principal, "pipeline.start", name, details={"file": str(file)})
    return _state(call, started)


@endpoint("POST", "/pipelines/{pipeline}/stop", asks=Pipelines.stop, errors=(EntryNotFound,))
async def stop_pipeline(call: Call) -> Stopped:
    """Ask the run of a pipeline to stop with its next report. Its owner may, and administrators. One that was started here and has not
    reported yet ends at once; administrators may stop that."""
    principal, name = call.principal, call.path["pipeline"]
    launcher = call.given.launcher
    if launcher.is_starting(name):
        authorize(call.broker.access, principal, START.operation, BROKER)
        launcher.stop_starting(name)
        call.broker.audit.note(principal, "pipeline.stop", name)
        return Stopped(True)
    return Stopped(await call.broker.pipelines.stop(principal, name))


def _state(call: Call, view: View) -> PipelineState:
    each, process = view.info, view.process
    startable = view.declared and is_allowed(call.broker.access, call.principal, START.operation, BROKER)
    return PipelineState(
        each.name,
        each.owner,
        each.run,
        each.state,
        each.message,
        each.alive,
        each.stopping,
        startable,
        each.started_ms,
        each.updated_ms,
        None
        if process is None
        else PipelineProcess(process.pid, process.started_ms, process.ended_ms, process.exit_code),
        [
            StageState(
                stage.name,
                stage.state,
                stage.rows,
                stage.rejects,
                None if stage.lag == LAG_UNKNOWN else stage.lag,
                stage.batches,
                stage.batch_ms,
                stage.dropped,
                stage.late,
                stage.future,
            )
            for stage in each.stages
        ],
    )
