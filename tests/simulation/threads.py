"""The log's own threads, as threads that take turns with the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from penstock.log.embedded.threads import Task, TaskQueue, Threads
from tests.simulation.loop import SimLoop

T = TypeVar("T")


class SimThreads(Threads):
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def task_queue(self, name: str, due_in_s: Callable[[], float | None], run_due: Task) -> TaskQueue:
        return SimTaskQueue(self._loop, due_in_s, run_due)

    def pool(self, size: int, name: str) -> Executor:
        return SimPool(self._loop)


class SimTaskQueue:
    """Runs one task at a time, each some time after it was put."""

    def __init__(self, loop: SimLoop, due_in_s: Callable[[], float | None], run_due: Task) -> None:
        self._loop = loop
        self._due_in_s = due_in_s
        self._run_due = run_due
        self._tasks: deque[Task] = deque()
        self._is_running = False
        self._timer: asyncio.TimerHandle | None = None

    def put(self, task: Task) -> None:
        self._tasks.append(task)
        self._run_next()

    def try_acquire(self) -> bool:
        return not self._tasks and not self._is_running

    def release(self) -> None:
        """No task begins while the loop runs."""

    def stop(self) -> None:
        self._loop.wait_in_thread(self.try_acquire)

    def _run_next(self) -> None:
        if not self._is_running:
            self._is_running = True
            self._loop.start_thread(self._run)

    def _run(self) -> None:
        if self._tasks:
            self._tasks.popleft()()
        self._run_due()
        self._is_running = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_in_s = self._due_in_s()
        if self._tasks:
            self._run_next()
        elif due_in_s is not None:
            self._timer = self._loop.call_later(due_in_s, self._run_next)


class SimPool(Executor):
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._futures: list[SimFuture[Any]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: SimFuture[T] = SimFuture(self._loop)
        self._futures.append(future)
        self._loop.start_thread(lambda: future.run(lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future in self._futures:
            self._loop.wait_in_thread(future.done)


class SimFuture(Future[T]):
    """A thread that waits for it lets the loop run meanwhile."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def run(self, work: Callable[[], T]) -> None:
        try:
            self.set_result(work())
        except Exception as error:  # noqa: BLE001 - handed to the waiting thread
            self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        self._loop.wait_in_thread(self.done)
        return super().result(0)
