"""Background loops over real timers, with steps that fail on demand."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import structlog
from structlog.testing import capture_logs

from penstock import background as module
from penstock.background import FAILURE_CHARS_MAX, Background, Tasks, run_to_completion
from penstock.errors import NoSpace


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S_MIN", 0.001)
    monkeypatch.setattr(module, "RETRY_S_MAX", 0.004)


@contextmanager
def logged() -> Iterator[list[structlog.typing.EventDict]]:
    with capture_logs() as events:
        yield events


class Steps:
    """A step that raises the errors it was given, one a run, and then succeeds; `reached` counts runs."""

    def __init__(self, *errors: Exception, pause_s: float | None = None) -> None:
        self.errors = list(errors)
        self.pause_s = pause_s
        self.runs = 0
        self._ran = asyncio.Event()

    async def __call__(self) -> float | None:
        self.runs += 1
        self._ran.set()
        if self.errors:
            raise self.errors.pop(0)
        return self.pause_s

    async def reached(self, runs: int) -> None:
        while self.runs < runs:
            self._ran.clear()
            await self._ran.wait()


async def test_a_loop_runs_though_another_of_its_name_fails_which_stays_known() -> None:
    background = Background()
    failing, working = Steps(*[NoSpace("disk full")] * 1000, pause_s=None), Steps()
    first = background.loop("storing", failing)
    await failing.reached(1)
    second = background.loop("storing", working, first_s=None)
    await asyncio.sleep(0)
    second.wake()
    async with asyncio.timeout(5):
        await working.reached(1)
    assert background.failing == {"storing": "NoSpace: disk full"}
    failing.errors.clear()
    async with asyncio.timeout(5):
        while background.failing:
            await asyncio.sleep(0)
    for loop in (first, second):
        await loop.stop()


async def test_a_loop_survives_whatever_its_step_raises_and_counts_it() -> None:
    background = Background()
    steps = Steps(OSError(24, "Too many open files"), NoSpace("disk full"), RuntimeError("bug"))
    loop = background.loop("storing", steps)
    await steps.reached(4)
    await loop.stop()
    assert background.failures == {"storing": 3}
    assert background.failing == {}


async def test_a_task_is_failing_from_a_failed_run_until_one_succeeds() -> None:
    background = Background()
    steps = Steps(NoSpace("disk full"))
    loop = background.loop("storing", steps, first_s=None)
    await loop.run_once()
    assert background.failing == {"storing": "NoSpace: disk full"}
    await loop.run_once()
    assert background.failing == {}
    await loop.stop()


async def test_what_is_kept_of_an_error_is_bounded() -> None:
    health = Background().health("storing")
    health.failed(NoSpace("x" * 10_000))
    assert health.failure is not None
    assert len(health.failure) == FAILURE_CHARS_MAX


async def test_work_that_only_a_request_repeats_is_counted_and_not_failing_meanwhile() -> None:
    background = Background()
    background.health("validation").failed(ValueError("bug"), retried=False)
    assert background.failures == {"validation": 1}
    assert background.failing == {}


async def test_a_failure_is_logged_once_until_it_changes_or_ends() -> None:
    background = Background()
    steps = Steps(NoSpace("full"), NoSpace("full"), ValueError("bug"), ValueError("bug"))
    with logged() as events:
        loop = background.loop("storing", steps, first_s=None)
        for _ in range(5):
            await loop.run_once()
        await loop.stop()
    assert [event["event"] for event in events] == [
        "background_task_failed",
        "background_task_failed",
        "background_task_recovered",
    ]
    assert [event.get("exc_info") is not None for event in events] == [False, True, False]


async def test_the_pause_after_failures_doubles_up_to_its_bound_and_starts_over() -> None:
    loop = Background().loop("storing", steps := Steps(*[NoSpace("full")] * 4), first_s=None)
    assert [await loop.run_once() for _ in range(4)] == [0.001, 0.002, 0.004, 0.004]
    await loop.run_once()
    steps.errors = [NoSpace("full")]
    assert await loop.run_once() == 0.001
    await loop.stop()


async def test_waking_a_loop_does_not_cut_the_pause_after_a_failure_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S_MIN", 3600.0)
    monkeypatch.setattr(module, "RETRY_S_MAX", 3600.0)
    steps = Steps(NoSpace("full"))
    loop = Background().loop("storing", steps)
    await steps.reached(1)
    for _ in range(5):
        loop.wake()
        await asyncio.sleep(0)
    assert steps.runs == 1
    await loop.stop()


async def test_a_loop_runs_when_it_is_woken_and_once_for_many_wakes() -> None:
    steps = Steps()
    loop = Background().loop("storing", steps, first_s=None)
    await asyncio.sleep(0)
    assert steps.runs == 0
    loop.wake()
    loop.wake()
    await steps.reached(1)
    await loop.stop()
    assert steps.runs == 1


async def test_a_loop_without_pauses_lets_others_run() -> None:
    steps = Steps(pause_s=0)
    loop = Background().loop("storing", steps)
    await steps.reached(3)
    await loop.stop()


async def test_stopping_waits_for_the_step_under_way() -> None:
    begun, may_end, ended = asyncio.Event(), asyncio.Event(), False

    async def step() -> float | None:
        nonlocal ended
        begun.set()
        await may_end.wait()
        ended = True
        return 0

    loop = Background().loop("storing", step)
    await begun.wait()
    stopping = asyncio.create_task(loop.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    assert ended


class Account:
    def __init__(self) -> None:
        self.background = Background()
        self.steps: list[str] = []
        self.gate = asyncio.Event()

    @run_to_completion
    async def transfer(self, amount: int, error: Exception | None = None) -> int:
        self.steps.append("debit")
        await self.gate.wait()
        if error is not None:
            raise error
        self.steps.append("credit")
        return amount


async def test_a_cancelled_caller_does_not_leave_an_operation_half_done() -> None:
    account = Account()
    caller = asyncio.create_task(account.transfer(1))
    while not account.steps:
        await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    account.gate.set()
    await account.background.finish()
    assert account.steps == ["debit", "credit"]


async def test_an_operation_returns_and_raises_what_its_method_does() -> None:
    account = Account()
    account.gate.set()
    assert await account.transfer(7) == 7
    with pytest.raises(NoSpace):
        await account.transfer(7, NoSpace("full"))


async def test_a_bug_in_an_operation_that_nobody_waits_for_is_logged() -> None:
    account = Account()
    with logged() as events:
        caller = asyncio.create_task(account.transfer(1, ValueError("bug")))
        while not account.steps:
            await asyncio.sleep(0)
        caller.cancel()
        account.gate.set()
        await asyncio.wait([caller])
        await account.background.finish()
        await asyncio.sleep(0)
    assert [event["event"] for event in events] == ["abandoned_operation_failed"]


async def test_tasks_are_kept_until_they_end_and_those_that_they_start_are_waited_for() -> None:
    tasks = Tasks()
    ended: list[str] = []

    async def second() -> None:
        await asyncio.sleep(0)
        ended.append("second")

    async def first() -> int:
        await asyncio.sleep(0)
        ended.append("first")
        _ = tasks.run(second())
        return 7

    started = tasks.run(first())
    assert [*tasks] == [started]
    await tasks.finish()
    assert ended == ["first", "second"]
    assert [*tasks] == []
    assert await started == 7


@pytest.mark.parametrize("quiet", [False, True])
async def test_an_error_of_a_task_that_nobody_awaits_is_reported_unless_it_is_quiet(quiet: bool) -> None:
    reported: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(str(context["exception"])))
    tasks = Tasks()

    async def fail() -> None:
        raise ValueError("bug")

    task = tasks.run(fail(), quiet=quiet)
    await tasks.finish()
    del task
    gc.collect()
    assert reported == ([] if quiet else ["bug"])
