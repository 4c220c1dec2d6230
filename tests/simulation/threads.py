"""The log's own threads, run on the loop at moments that the seed decides."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from penstock.log.embedded.threads import Task, TaskQueue, Threads
from tests.simulation.loop import ProcessEnded, SimLoop

T = TypeVar("T")


class SimThreads(Threads):
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def task_queue(self, name: str, due_in_s: Callable[[], float | None], run_due: Task) -> TaskQueue:
        return SimTaskQueue(self._loop, due_in_s, run_due)

    def pool(self, size: int, name: str) -> Executor:
        return SimPool(self._loop)


class SimTaskQueue:
    """Runs each task in one step, some time after it was put."""

    def __init__(self, loop: SimLoop, due_in_s: Callable[[], float | None], run_due: Task) -> None:
        self._loop = loop
        self._due_in_s = due_in_s
        self._run_due = run_due
        self._tasks: deque[Task] = deque()
        self._scheduled = False

    def put(self, task: Task) -> None:
        self._tasks.append(task)
        self._schedule()

    def try_acquire(self) -> bool:
        return not self._tasks

    def release(self) -> None:
        """Nothing runs beside the loop."""

    def stop(self) -> None:
        while self._tasks:
            self._step()

    def _schedule(self) -> None:
        if self._tasks and not self._scheduled:
            self._scheduled = True
            self._loop.call_later(self._loop.thread_delay_s(), self._step_scheduled)

    def _step_scheduled(self) -> None:
        self._scheduled = False
        self._step()
        self._schedule()

    def _step(self) -> None:
        try:
            if self._tasks:
                self._tasks.popleft()()
            self._run_due()
        except ProcessEnded:
            return
        due_in_s = self._due_in_s()
        if due_in_s is not None and not self._tasks:
            self._loop.call_later(due_in_s, self._step)


class SimFuture(Future[T]):
    """Done when the loop comes to it, or when somebody cannot wait any longer."""

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work: Callable[[], T] | None = work

    def run(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            try:
                self.set_result(work())
            except ProcessEnded:
                return
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> T:
        self.run()
        return super().result(0)


class SimPool(Executor):
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._futures: list[SimFuture[Any]] = []

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = SimFuture(lambda: fn(*args, **kwargs))
        self._futures.append(future)
        self._loop.call_later(self._loop.thread_delay_s(), future.run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future in self._futures:
            future.run()
