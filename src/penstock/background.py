"""Background loops that outlive their failures, operations that outlive their callers, and tasks that nobody awaits.

A loop runs its step again and again. A step that raises ends neither the loop nor the process: the failure is logged once until it
changes or ends, counted, and the step is retried after a pause that doubles up to a bound. `Background.failing` names the tasks whose
last run failed, and the broker is not ready while there are any.

An operation that changes several things in turn must not stop in the middle because its caller was cancelled. `run_to_completion` runs
it in a task of its own: cancelling the caller ends the wait, not the operation.

`Tasks` holds references to tasks until they end, so that they are not garbage-collected, and can wait for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import structlog

from penstock.errors import PenstockError
from penstock.futures import shield

RETRY_S_MIN: Final = 0.2
RETRY_S_MAX: Final = 2.0
FAILURE_CHARS_MAX: Final = 500
"""For an error as it is kept, logged and shown by /readyz."""

log = structlog.get_logger(__name__)

Step = Callable[[], Awaitable[float | None]]
"""One run of a loop. Returns the seconds until the next, 0 for at once, None to wait until the loop is woken."""

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class Health:
    """Whether the last run of one background task failed, and how many have."""

    __slots__ = ("_logged", "failure", "failures", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures = 0
        self.failure: str | None = None
        """The error of the last run, None if it succeeded."""
        self._logged: str | None = None

    def succeeded(self) -> None:
        if self._logged is not None:
            log.info("background_task_recovered", task=self.name, failure=self._logged)
        self.failure = self._logged = None

    def failed(self, error: Exception, *, retried: bool = True) -> None:
        """Count and log a failure. `retried`: the task runs again by itself, and is failing until a run succeeds.

        Work that only a client's request repeats is not failing in between: a broker that is not ready might never get that request.
        """
        self.failures += 1
        failure = f"{type(error).__name__}: {error}"[:FAILURE_CHARS_MAX]
        if failure != self._logged:
            unexpected = None if isinstance(error, PenstockError) else error
            log.error("background_task_failed", task=self.name, error=failure, exc_info=unexpected)
        self._logged = failure
        if retried:
            self.failure = failure


class Loop:
    """A step that is run again and again from `Background.loop` to `stop`."""

    def __init__(self, health: Health, step: Step, first_s: float | None, retry_s_max: float) -> None:
        self._health = health
        self._step = step
        self._retry_s_max = retry_s_max
        self._woken = asyncio.Event()
        self._stopping = asyncio.Event()
        self._retry_s = RETRY_S_MIN
        self._failed = False
        """Whether the last run failed. Other loops of the same name may have failed or succeeded since."""
        self._task = asyncio.get_running_loop().create_task(self._run(first_s), name=f"penstock-{health.name}")

    def wake(self) -> None:
        """Run the step now instead of when its pause ends. The pause after a failure is not cut short."""
        self._woken.set()

    async def stop(self) -> None:
        """Wait for the step under way, and run no more."""
        self._stopping.set()
        self._woken.set()
        await self._task

    async def cancel(self) -> None:
        """Cancel the step under way, wait until it has ended, and run no more."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def run_once(self) -> float | None:
        """Run the step under the loop's guard; returns the pause until the next run."""
        try:
            pause_s = await self._step()
        except Exception as error:  # noqa: BLE001  one failed run must not end the loop
            self._failed = True
            self._health.failed(error)
            pause_s, self._retry_s = self._retry_s, min(2 * self._retry_s, self._retry_s_max)
        else:
            if self._failed:
                self._failed = False
                self._health.succeeded()
            self._retry_s = RETRY_S_MIN
        return pause_s

    async def _run(self, pause_s: float | None) -> None:
        while True:
            await self._pause(pause_s)
            if self._stopping.is_set():
                return
            self._woken.clear()
            pause_s = await self.run_once()

    async def _pause(self, pause_s: float | None) -> None:
        if pause_s == 0:
            await asyncio.sleep(0)
            return
        until = self._stopping if self._failed else self._woken
        try:
            async with asyncio.timeout(pause_s):
                await until.wait()
        except TimeoutError:
            pass


class Tasks:
    """Tasks that are kept until they end: the event loop itself has only weak references to them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(self._running)

    def run(self, work: Coroutine[Any, Any, _Result], *, quiet: bool = False) -> asyncio.Task[_Result]:
        """Start a task. `quiet`: its error is not reported to the event loop, even if nobody waits for the task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if quiet:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def finish(self) -> None:
        """Wait until none is running, those included that are started meanwhile."""
        while self._running:
            await asyncio.wait(self._running)


class Background:
    """The background loops of one broker and its log, their health, and the operations under way."""

    def __init__(self) -> None:
        self._health: dict[str, Health] = {}
        self._operations = Tasks()

    def health(self, name: str) -> Health:
        """The health of a task by its name, for work that is no loop."""
        return self._health.setdefault(name, Health(name))

    def loop(self, name: str, step: Step, *, first_s: float | None = 0, retry_s_max: float | None = None) -> Loop:
        """Run a step again and again, for the first time after `first_s` seconds, or once woken if that is None.

        `retry_s_max` bounds the pause after a failure, for steps that are costly to repeat.
        """
        return Loop(self.health(name), step, first_s, RETRY_S_MAX if retry_s_max is None else retry_s_max)

    @property
    def failures(self) -> dict[str, int]:
        """How many runs of each task have failed."""
        return {name: health.failures for name, health in self._health.items()}

    @property
    def failing(self) -> dict[str, str]:
        """The tasks whose last run failed, and why."""
        return {name: health.failure for name, health in self._health.items() if health.failure is not None}

    async def complete(self, operation: Coroutine[Any, Any, _Result]) -> _Result:
        """Run an operation to its end, even if the caller is cancelled while it waits for it."""
        task = self._operations.run(operation)
        try:
            return await shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_report_abandoned)
            raise

    async def finish(self) -> None:
        """Wait for the operations whose callers did not."""
        await self._operations.finish()


def _report_abandoned(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, PenstockError):
        log.error("abandoned_operation_failed", error=str(error), exc_info=error)


class HasBackground(Protocol):
    @property
    def background(self) -> Background: ...


_Self = TypeVar("_Self", bound=HasBackground)


def run_to_completion(
    method: Callable[Concatenate[_Self, _Args], Coroutine[Any, Any, _Result]],
) -> Callable[Concatenate[_Self, _Args], Coroutine[Any, Any, _Result]]:
    """Make a coroutine method safe to cancel: it runs to its end whatever happens to its caller."""

    @wraps(method)
    async def completed(self: _Self, /, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        return await self.background.complete(method(self, *args, **kwargs))

    completed.runs_to_completion = True  # type: ignore[attr-defined]
    return completed
