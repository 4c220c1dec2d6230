"""The worker process: answers, bounds, and what happens to the next request."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections import OrderedDict
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec
import pytest

from penstock.broker.schemas.definition import Fault
from penstock.broker.schemas.worker import (
    HEAD,
    LENGTH,
    READY,
    CheckDefinition,
    CheckRecords,
    Parsed,
    Refused,
    Reply,
    Request,
    Stored,
    Verdict,
    Worker,
)
from penstock.broker.schemas.worker_main import answer, serve
from tests.broker.cancelling import at_every_step, cancelled_at


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker()
    yield worker
    await worker.close()


def laugh(depth: int) -> str:
    levels: dict[str, Any] = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(depth)}
    return json.dumps({"$ref": "#/$defs/l0", "$defs": {**levels, f"l{depth}": {"type": "string"}}})


def definition(text: str, kind: str = "json", older: Stored | None = None) -> CheckDefinition:
    return CheckDefinition(kind, text, [] if older is None else [older], "backward", [])


def records(text: str, *values: bytes, all_reasons: bool = False, key: str = "s-v1") -> CheckRecords:
    return CheckRecords(key, "json", Stored(text, b"", 1), "", list(values), all_reasons)


async def test_it_is_started_when_first_needed_and_then_kept(worker: Worker) -> None:
    assert worker.started == 0
    reply = await worker.ask(definition('{"type": "object"}'), 10)
    assert isinstance(reply, Parsed)
    assert reply.cost == 1
    assert await worker.ask(records("{}", b"1", b"x", b"2"), 10) == Verdict(
        [Fault(1, "not a JSON document: JSON is malformed: invalid character (byte 0)")]
    )
    assert await worker.ask(records("{}", b"1"), 10) == Verdict([])
    assert worker.started == 1


async def test_what_takes_too_long_is_ended_and_the_next_one_is_answered(worker: Worker) -> None:
    slow = worker.ask(records(laugh(60), b"1"), 0.5)
    next_one = worker.ask(records("{}", b"1", key="s-v2"), 30)
    answers = list(await asyncio.gather(slow, next_one))
    assert answers == [Refused("checking takes more than 0.5 s of processor time"), Verdict([])]
    assert (worker.started, worker.failed) == (2, 1)


async def test_time_in_which_the_machine_does_something_else_does_not_count(worker: Worker) -> None:
    await worker.ask(definition("{}"), 10)
    assert worker._process is not None
    os.kill(worker._process.pid, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(1, os.kill, worker._process.pid, signal.SIGCONT)
    assert await worker.ask(records("{}", b"1"), 0.5) == Verdict([])
    assert (worker.started, worker.failed) == (1, 0)


async def test_a_worker_that_gets_no_time_at_all_is_given_up(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    await worker.ask(definition("{}"), 10)
    assert worker._process is not None
    os.kill(worker._process.pid, signal.SIGSTOP)
    monkeypatch.setattr("penstock.broker.schemas.worker.ANSWER_S_MAX", 0.5)
    reply = await worker.ask(records("{}", b"1"), 10)
    assert isinstance(reply, Refused)
    assert reply.reason.startswith("the checker gave no answer within 0.5 s")
    monkeypatch.undo()
    assert await worker.ask(records("{}", b"1"), 10) == Verdict([])
    assert (worker.started, worker.failed) == (2, 1)


async def test_what_takes_too_much_memory_is_refused() -> None:
    worker = Worker(memory_bytes_max=400 << 20)
    reply = await worker.ask(records("{}", b"[" + b",".join([b"{}"] * 5_000_000) + b"]"), 30)
    assert isinstance(reply, Refused)
    assert "memory" in reply.reason
    assert await worker.ask(records("{}", b"1", key="s-v2"), 30) == Verdict([])
    await worker.close()


async def test_a_worker_that_was_killed_is_started_again(worker: Worker) -> None:
    await worker.ask(definition("{}"), 10)
    assert worker._process is not None
    os.kill(worker._process.pid, 9)
    await worker._process.wait()
    assert isinstance(await worker.ask(definition("{}"), 30), Parsed)
    assert worker.started == 2


async def test_who_gives_up_waiting_does_not_get_the_next_one_the_wrong_answer(worker: Worker) -> None:
    await worker.ask(definition("{}"), 10)
    task = asyncio.ensure_future(worker.ask(records(laugh(60), b"1"), 30))
    while not worker._turn.locked():
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert isinstance(await worker.ask(definition("{}"), 30), Parsed)


# -- the process's own side, without one ------------------------------------------------------------------------------------


def asked(*requests: Request) -> list[Reply]:
    encoded = [msgspec.msgpack.encode(request) for request in requests]
    replies = io.BytesIO()
    serve(io.BytesIO(b"".join(HEAD.pack(len(each), 10) + each for each in encoded)), replies)
    data = replies.getvalue()
    assert data.startswith(READY)
    data = data[len(READY) :]
    found: list[Reply] = []
    while data:
        (length,) = LENGTH.unpack_from(data)
        found.append(msgspec.msgpack.decode(data[LENGTH.size : LENGTH.size + length], type=Reply))
        data = data[LENGTH.size + length :]
    return found


def test_it_serves_until_its_input_ends() -> None:
    assert asked() == []
    kinds = [type(reply) for reply in asked(definition("{}"), definition("{"), records("{}", b"1"))]
    assert kinds == [Parsed, Refused, Verdict]


def test_a_definition_is_not_thought_slow_because_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", count(step=60).__next__)
    [reply] = asked(definition("{}"))
    assert isinstance(reply, Parsed)
    assert reply.cost == 1


def test_a_definition_is_compared_with_the_one_before_unless_it_is_known() -> None:
    text = '{"type": "object", "required": ["a"]}'
    older = Stored('{"type": "object"}', b"", 1)
    [reply] = asked(definition(text, older=older))
    assert isinstance(reply, Parsed)
    assert reply.problems == ["new required field 'a' not in old schema"]
    [again] = asked(CheckDefinition("json", text, [older], "backward", [reply.fingerprint]))
    assert isinstance(again, Parsed)
    assert again.problems == []
    [free] = asked(CheckDefinition("json", text, [older], "none", []))
    assert isinstance(free, Parsed)
    assert free.problems == []


def test_one_record_may_have_all_its_faults_told() -> None:
    text = '{"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}'
    [reply] = asked(records(text, b'{"a": 1, "b": 2}', all_reasons=True))
    assert isinstance(reply, Verdict)
    assert [fault.row for fault in reply.faults] == [0, 0]


def test_each_request_has_its_first_fault_told() -> None:
    values = [b"1", b"x", b"y", b"2", b"z", b"3"]
    for units, rows in ((None, [1, 2, 4]), ([1, 2, 1, 2], [1, 4]), ([4, 2], [1, 4]), ([6], [1]), ([1, 0, 5], [1])):
        [reply] = asked(CheckRecords("s-v1", "json", Stored("{}", b"", 1), "", values, False, units))
        assert isinstance(reply, Verdict)
        assert [fault.row for fault in reply.faults] == rows


def test_a_verdict_has_a_bounded_number_of_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.broker.schemas.worker_main.FAULTS_MAX", 3)
    for wrong, kind in ((3, Verdict), (4, Refused)):
        [reply] = asked(records("{}", *[b"x"] * wrong))
        assert isinstance(reply, kind)


def test_checkers_are_kept_up_to_a_bound() -> None:
    checkers: Any = OrderedDict()
    for n in range(100):
        answer(records("{}", b"1", key=f"s-v{n}"), checkers)
    assert len(checkers) == 64


def test_a_fault_in_a_library_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr("penstock.broker.schemas.worker_main.check_records", broken)
    assert answer(records("{}", b"1"), OrderedDict()) == Refused("ZeroDivisionError: of all things")


async def test_a_request_after_a_cancelled_one_gets_its_own_answer() -> None:
    async def attempt(step: int) -> bool:
        worker = Worker()
        try:
            waited = await cancelled_at(step, worker.ask(records('{"type": "string"}', b"1"), 60))
            answered = await worker.ask(records('{"type": "integer"}', b"1", key="i-v1"), 60)
        finally:
            await worker.close()
        assert answered == Verdict([])
        return waited

    await at_every_step(attempt)
