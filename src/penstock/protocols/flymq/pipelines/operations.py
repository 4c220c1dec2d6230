"""What FlyMQ requests about pipelines do. The rest is in `operations`, which this extends."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from penstock.broker.pipelines import PipelineInfo, Report, Stage
from penstock.protocols.flymq.access.operations import Caller
from penstock.protocols.flymq.pipelines.layouts import encode_answer, encode_pipelines
from penstock.protocols.flymq.pipelines.messages import (
    PipelineDescription,
    PipelineList,
    PipelineReport,
    PipelineStop,
    StageReport,
)


async def _report(caller: Caller, opcode: int, body: PipelineReport) -> bytes:
    stages = [
        Stage(each.name, each.state, each.rows, each.rejects, each.lag, each.batches, each.batch_ms)
        for each in body.stages
    ]
    report = Report(body.run, body.started_ms, body.state, body.message, stages)
    return encode_answer(opcode, await caller.broker.pipelines.report(caller.principal, body.pipeline, report))


def _list(caller: Caller, opcode: int, body: PipelineList) -> bytes:
    return encode_pipelines(map(_described, caller.broker.pipelines.reported(caller.principal)))


async def _stop(caller: Caller, opcode: int, body: PipelineStop) -> bytes:
    return encode_answer(opcode, await caller.broker.pipelines.stop(caller.principal, body.pipeline))


def _described(info: PipelineInfo) -> PipelineDescription:
    return PipelineDescription(
        info.name,
        info.owner,
        info.run,
        info.started_ms,
        info.updated_ms,
        info.state,
        info.message,
        info.stopping,
        info.alive,
        [
            StageReport(each.name, each.state, each.rows, each.rejects, each.lag, each.batches, each.batch_ms)
            for each in info.stages
        ],
    )


METHODS: Mapping[type, Callable[[Caller, int, Any], bytes | Coroutine[Any, Any, bytes]]] = {
    PipelineReport: _report,
    PipelineList: _list,
    PipelineStop: _stop,
}
