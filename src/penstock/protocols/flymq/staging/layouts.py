"""Requests and replies about staged records as bytes, both ways. Layouts are in `wire`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct

from penstock.errors import ProtocolViolation, RecordTooLarge
from penstock.protocols.bytes import U32, ByteReader, text16
from penstock.protocols.flymq.limits import STAGED_ATTEMPTS_MAX, STAGED_BLOCKS_MAX
from penstock.protocols.flymq.staging.messages import BeginRun, Run, Stage, StageAbort, StageCommit, StagingBody, Winner
from penstock.protocols.flymq.wire import PAYLOAD_BYTES_MAX, Opcode, frame, header

_EPOCH = Struct(">QQ")
_RUN = Struct(">Qq")
_PART = Struct(">iI")
_PART_BYTES_MIN = 8
_WINNER_BYTES_MIN = 6

# --- requests ---


def _stage(reader: ByteReader) -> Stage:
    body = Stage(
        reader.text16("application"),
        reader.u64("run"),
        reader.u64("epoch"),
        reader.text16("attempt"),
        reader.u32("sequence"),
        reader.text16("topic"),
        [
            (reader.i32("partition"), reader.blob32("block"))
            for _ in range(reader.count32("blocks", _PART_BYTES_MIN, STAGED_BLOCKS_MAX))
        ],
    )
    reader.finish("blocks")
    return body


def _commit(reader: ByteReader) -> StageCommit:
    body = StageCommit(
        reader.text16("application"),
        reader.u64("run"),
        reader.u64("epoch"),
        [
            Winner(reader.text16("attempt"), reader.u32("requests"))
            for _ in range(reader.count32("attempts", _WINNER_BYTES_MIN, STAGED_ATTEMPTS_MAX))
        ],
    )
    reader.finish("attempts")
    return body


def _abort(reader: ByteReader) -> StageAbort:
    body = StageAbort(reader.text16("application"), reader.u64("run"), reader.u64("epoch"))
    reader.finish("epoch")
    return body


def _begin_run(reader: ByteReader) -> BeginRun:
    body = BeginRun(reader.text16("application"), reader.text16("run"), reader.boolean("lasting"))
    reader.finish("lasting")
    return body


READERS: Mapping[int, Callable[[ByteReader], StagingBody]] = {
    Opcode.STAGE: _stage,
    Opcode.STAGE_COMMIT: _commit,
    Opcode.STAGE_ABORT: _abort,
    Opcode.BEGIN_RUN: _begin_run,
}


def encode_stage(
    application: str,
    run: int,
    epoch: int,
    attempt: str,
    sequence: int,
    topic: str,
    parts: Sequence[tuple[int, bytes]],
) -> bytes:
    """The blocks are copied once, into the frame. Raises RecordTooLarge where they do not fit into one."""
    pieces = [
        text16(application),
        _EPOCH.pack(run, epoch),
        text16(attempt),
        U32.pack(sequence),
        text16(topic),
        U32.pack(len(parts)),
    ]
    for partition, block in parts:
        pieces += _PART.pack(partition, len(block)), block
    payload_bytes = sum(map(len, pieces))
    if payload_bytes > PAYLOAD_BYTES_MAX:
        # The broker would hang up, and leave it to its log to say why.
        raise RecordTooLarge(
            f"{payload_bytes} bytes for topic {topic} do not fit into one request: at most {PAYLOAD_BYTES_MAX}, so a record with its key "
            "and headers must be smaller than that"
        )
    return b"".join((header(Opcode.STAGE, payload_bytes), *pieces))


def encode_commit(application: str, run: int, epoch: int, winners: Sequence[Winner]) -> bytes:
    pieces = [text16(application), _EPOCH.pack(run, epoch), U32.pack(len(winners))]
    for attempt, requests in winners:
        pieces += text16(attempt), U32.pack(requests)
    return frame(Opcode.STAGE_COMMIT, b"".join(pieces))


def encode_abort(application: str, run: int, epoch: int) -> bytes:
    return frame(Opcode.STAGE_ABORT, text16(application) + _EPOCH.pack(run, epoch))


def encode_begin_run(application: str, name: str, *, lasting: bool) -> bytes:
    return frame(Opcode.BEGIN_RUN, text16(application) + text16(name) + bytes((lasting,)))


# --- replies ---


def encode_outcome(opcode: int, outcome: int) -> bytes:
    """The reply of STAGE, STAGE_COMMIT and STAGE_ABORT."""
    return frame(opcode, bytes((outcome,)))


def decode_outcome(payload: bytes, outcomes: int = 2) -> int:
    reader = ByteReader(payload)
    outcome = reader.u8("outcome")
    reader.finish("outcome")
    if outcome >= outcomes:
        raise ProtocolViolation(f"invalid binary format: outcome must be below {outcomes}, not {outcome}")
    return outcome


def encode_run(run: Run) -> bytes:
    return frame(Opcode.BEGIN_RUN, _RUN.pack(*run))


def decode_run(payload: bytes) -> Run:
    reader = ByteReader(payload)
    run = Run(reader.u64("run"), reader.i64("epoch"))
    reader.finish("epoch")
    return run
