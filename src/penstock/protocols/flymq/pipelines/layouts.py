"""Requests and replies about pipelines as bytes, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct

from penstock.protocols.bytes import I64, U32, ByteReader, text16
from penstock.protocols.flymq.limits import REPLY_ITEMS_MAX, STAGES_MAX
from penstock.protocols.flymq.pipelines.messages import (
    PipelineBody,
    PipelineDescription,
    PipelineList,
    PipelineReport,
    PipelineStop,
    StageReport,
)
from penstock.protocols.flymq.wire import Opcode, counted_rows, frame

_FIGURES = Struct(">QQqQQ")
_STAGE_BYTES_MIN = 4 + _FIGURES.size
_PIPELINE_BYTES_MIN = 10 + 16 + 2 + 4


def _encode_stages(stages: Sequence[StageReport]) -> bytes:
    encoded = [
        text16(each.name)
        + text16(each.state)
        + _FIGURES.pack(each.rows, each.rejects, each.lag, each.batches, each.batch_ms)
        for each in stages
    ]
    return U32.pack(len(encoded)) + b"".join(encoded)


def _stages(reader: ByteReader) -> list[StageReport]:
    return [
        StageReport(
            reader.text16("stage"),
            reader.text16("state"),
            reader.u64("rows"),
            reader.u64("rejects"),
            reader.i64("lag"),
            reader.u64("batches"),
            reader.u64("duration"),
        )
        for _ in range(reader.count32("stages", _STAGE_BYTES_MIN, STAGES_MAX))
    ]


# --- requests ---


def _report(reader: ByteReader) -> PipelineReport:
    body = PipelineReport(
        reader.text16("pipeline"),
        reader.text16("run"),
        reader.i64("time of start"),
        reader.text16("state"),
        reader.text16("message"),
        _stages(reader),
    )
    reader.finish("stages")
    return body


def _list(reader: ByteReader) -> PipelineList:
    reader.finish("PIPELINE_LIST")
    return PipelineList()


def _stop(reader: ByteReader) -> PipelineStop:
    body = PipelineStop(reader.text16("pipeline"))
    reader.finish("pipeline")
    return body


READERS: Mapping[int, Callable[[ByteReader], PipelineBody]] = {
    Opcode.PIPELINE_REPORT: _report,
    Opcode.PIPELINE_LIST: _list,
    Opcode.PIPELINE_STOP: _stop,
}


def encode_pipeline_report(report: PipelineReport) -> bytes:
    return frame(
        Opcode.PIPELINE_REPORT,
        text16(report.pipeline)
        + text16(report.run)
        + I64.pack(report.started_ms)
        + text16(report.state)
        + text16(report.message)
        + _encode_stages(report.stages),
    )


def encode_pipeline_stop(pipeline: str) -> bytes:
    return frame(Opcode.PIPELINE_STOP, text16(pipeline))


# --- replies ---


def encode_answer(opcode: int, yes: bool) -> bytes:
    return frame(opcode, bytes((yes,)))


def decode_answer(payload: bytes) -> bool:
    return ByteReader(payload).boolean("answer")


def encode_pipelines(pipelines: Iterable[PipelineDescription]) -> bytes:
    rows = (
        text16(each.name)
        + text16(each.owner)
        + text16(each.run)
        + I64.pack(each.started_ms)
        + I64.pack(each.updated_ms)
        + text16(each.state)
        + text16(each.message)
        + bytes((each.stopping, each.alive))
        + _encode_stages(each.stages)
        for each in pipelines
    )
    return frame(Opcode.PIPELINE_LIST, counted_rows(Opcode.PIPELINE_LIST, rows))


def decode_pipelines(payload: bytes) -> list[PipelineDescription]:
    reader = ByteReader(payload)
    return [
        PipelineDescription(
            reader.text16("pipeline"),
            reader.text16("owner"),
            reader.text16("run"),
            reader.i64("time of start"),
            reader.i64("time of report"),
            reader.text16("state"),
            reader.text16("message"),
            reader.boolean("stopping"),
            reader.boolean("alive"),
            _stages(reader),
        )
        for _ in range(reader.count32("pipelines", _PIPELINE_BYTES_MIN, REPLY_ITEMS_MAX))
    ]
