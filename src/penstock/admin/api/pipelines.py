"""Pipelines: what they last said of themselves, their last hour, and asking one to stop."""

from __future__ import annotations

from typing import Final

from penstock.admin.api.table import Call, Reply, endpoint
from penstock.broker.access.checks import BROKER, Declaration, Operation, ResourceKind, authorize
from penstock.broker.pipelines import LAG_UNKNOWN, Pipelines
from penstock.errors import EntryNotFound

READ_HISTORY: Final = Declaration(Operation.DESCRIBE, ResourceKind.BROKER)


class StageState(Reply, frozen=True):
    name: str
    state: str
    rows: int
    rejects: int
    lag: int | None
    batches: int
    batch_ms: int


class PipelineState(Reply, frozen=True):
    name: str
    owner: str
    run: str
    state: str
    message: str
    alive: bool
    stopping: bool
    started_ms: int
    updated_ms: int
    stages: list[StageState]


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


@endpoint("GET", "/pipelines", asks=Pipelines.reported)
async def list_pipelines(call: Call) -> list[PipelineState]:
    """Return what pipelines last said of themselves."""
    return [
        PipelineState(
            each.name,
            each.owner,
            each.run,
            each.state,
            each.message,
            each.alive,
            each.stopping,
            each.started_ms,
            each.updated_ms,
            [
                StageState(
                    stage.name,
                    stage.state,
                    stage.rows,
                    stage.rejects,
                    None if stage.lag == LAG_UNKNOWN else stage.lag,
                    stage.batches,
                    stage.batch_ms,
                )
                for stage in each.stages
            ],
        )
        for each in call.broker.pipelines.reported(call.principal)
    ]


@endpoint("GET", "/pipelines/{pipeline}/history", asks=READ_HISTORY)
async def get_pipeline_history(call: Call) -> list[StageHistory]:
    """Return what the stages of a pipeline reported in the last hour. Empty until it is sampled."""
    authorize(call.broker.access, call.principal, READ_HISTORY.operation, BROKER)
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


@endpoint("POST", "/pipelines/{pipeline}/stop", asks=Pipelines.stop, errors=(EntryNotFound,))
async def stop_pipeline(call: Call) -> Stopped:
    """Ask the run of a pipeline to stop with its next report. Its owner may, and administrators."""
    return Stopped(await call.broker.pipelines.stop(call.principal, call.path["pipeline"]))
