"""What FlyMQ requests about staged records do. The rest is in `operations`.

STAGE is started like PRODUCE, without waiting for what was staged before: `WRITES` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from penstock.broker.staging.entries import Place
from penstock.broker.staging.entries import Winner as WinningAttempt
from penstock.clock import Clock
from penstock.errors import PenstockError
from penstock.protocols.flymq.staging.layouts import encode_outcome, encode_run
from penstock.protocols.flymq.staging.messages import BeginRun, Run, Stage, StageAbort, StageCommit
from penstock.protocols.flymq.wire import Opcode

if TYPE_CHECKING:
    from penstock.protocols.flymq.access.operations import Caller

OnWritten = Callable[[bytes | PenstockError], None]


def _stage(caller: Caller, clock: Clock, body: Stage, written: OnWritten) -> None:
    def done(error: PenstockError | None) -> None:
        written(encode_outcome(Opcode.STAGE, 1) if error is None else error)

    place = Place(body.application, body.run, body.epoch, body.attempt, body.sequence)
    caller.broker.staging.stage(caller.principal, body.topic, place, body.parts, done=done)


WRITES: Mapping[type, Callable[[Caller, Clock, Any, OnWritten], None]] = {Stage: _stage}


async def _commit(caller: Caller, opcode: int, body: StageCommit) -> bytes:
    winners = [WinningAttempt(*winner) for winner in body.winners]
    committed = await caller.broker.staging.commit(caller.principal, body.application, body.run, body.epoch, winners)
    return encode_outcome(opcode, committed.value)


async def _abort(caller: Caller, opcode: int, body: StageAbort) -> bytes:
    dropped = await caller.broker.staging.abort(caller.principal, body.application, body.run, body.epoch)
    return encode_outcome(opcode, dropped)


async def _begin_run(caller: Caller, opcode: int, body: BeginRun) -> bytes:
    entry = await caller.broker.staging.begin_run(caller.principal, body.application, body.name, lasting=body.lasting)
    return encode_run(Run(entry.run, entry.epoch))


METHODS: Mapping[type, Callable[[Caller, int, Any], Coroutine[Any, Any, bytes]]] = {
    StageCommit: _commit,
    StageAbort: _abort,
    BeginRun: _begin_run,
}
