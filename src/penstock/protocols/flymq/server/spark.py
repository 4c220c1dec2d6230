"""Handlers of what Spark jobs ask for: staged records and the reports of pipelines."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice

import msgspec

from penstock.broker.pipelines import PipelineInfo, Report
from penstock.broker.pipelines import Stage as PipelineStage
from penstock.broker.transactions.blocks import record_count
from penstock.broker.transactions.entries import Place, Unstaged
from penstock.broker.transactions.entries import Winner as WinningAttempt
from penstock.broker.transactions.staging import Committed
from penstock.errors import PenstockError, TopicNotFound
from penstock.frame_bounds import REPLY_ITEMS_MAX
from penstock.protocols.flymq.operations import spark as op
from penstock.protocols.flymq.server.dispatch import Caller, Written, handles, writes

# --- staged records ---


@writes(op.Stage)
def stage(caller: Caller, request: op.Stage, written: Written) -> None:
    def done(error: PenstockError | None) -> None:
        if error is None:
            caller.stats.received_records += sum(record_count(block) for _, block in request.parts)
        written(True if error is None else error)

    place = Place(request.application, request.run, request.epoch, request.attempt, request.sequence)
    caller.broker.staging.stage(caller.principal, request.topic, place, request.parts, done=done)


@handles(op.StageCommit)
async def commit(caller: Caller, request: op.StageCommit) -> int:
    winners = [WinningAttempt(*winner) for winner in request.winners]
    unstaged = [Unstaged(*each) for each in request.unstaged]
    committed = await caller.broker.staging.commit(
        caller.principal, request.application, request.run, request.epoch, winners, unstaged
    )
    if committed is Committed.NOW:
        caller.stats.received_records += sum(record_count(block) for each in unstaged for _, block in each.parts)
    return committed.value


@handles(op.StageAbort)
async def abort(caller: Caller, request: op.StageAbort) -> bool:
    return await caller.broker.staging.abort(caller.principal, request.application, request.run, request.epoch)


@handles(op.BeginRun)
async def begin_run(caller: Caller, request: op.BeginRun) -> op.Run:
    entry = await caller.broker.staging.begin_run(
        caller.principal,
        request.application,
        request.name,
        lasting=request.lasting,
        query=request.query,
        replaces=request.replaces,
    )
    topic_id, partitions = await _found(caller, request.topic)
    return op.Run(entry.run, entry.epoch, entry.query, topic_id, partitions)


async def _found(caller: Caller, topic: str) -> tuple[str, int]:
    """The id of a topic and how many partitions it has, if it exists."""
    if not topic:
        return "", 0
    try:
        info = await caller.broker.topics.find(caller.principal, topic)
    except TopicNotFound:
        return "", 0
    return info.id, info.config.partitions


# --- pipelines ---


@handles(op.PipelineReport)
async def report(caller: Caller, request: op.PipelineReport) -> bool:
    stages = [PipelineStage(**asdict(each)) for each in op.with_left_out(request.stages, request.left_out)]
    reported = Report(request.run, request.started_ms, request.state, request.message, stages)
    return await caller.broker.pipelines.report(caller.principal, request.pipeline, reported)


@handles(op.PipelineList)
def list_pipelines(caller: Caller, request: op.PipelineList) -> op.PipelineListing:
    infos = caller.broker.pipelines.reported(caller.principal)
    left_out = ((info.name, each) for info in infos for each in op.left_out_of(_stages(info)))
    return op.PipelineListing(map(_described, infos), [*islice(left_out, REPLY_ITEMS_MAX)])


@handles(op.PipelineStop)
async def stop(caller: Caller, request: op.PipelineStop) -> bool:
    return await caller.broker.pipelines.stop(caller.principal, request.pipeline)


def _described(info: PipelineInfo) -> op.PipelineDescription:
    return op.PipelineDescription(
        info.name,
        info.owner,
        info.run,
        info.started_ms,
        info.updated_ms,
        info.state,
        info.message,
        info.stopping,
        info.alive,
        _stages(info),
    )


def _stages(info: PipelineInfo) -> list[op.StageReport]:
    return [op.StageReport(**msgspec.structs.asdict(each)) for each in info.stages]
