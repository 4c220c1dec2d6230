"""The threads of the log behind one interface, so that a test can run their work at moments that it chooses.

Work that the loop awaits goes through `loop.run_in_executor`, which the loop itself decides about. What is left is here: the thread
that runs commits, and the pool that syncs segments alongside it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Protocol

import structlog

log = structlog.get_logger(__name__)

Task = Callable[[], None]


class TaskQueue(Protocol):
    """Runs tasks one at a time, in the order they were put."""

    def put(self, task: Task) -> None:
        """Run this after everything that was put before. From any thread."""

    def try_acquire(self) -> bool:
        """Keep tasks from running until `release`; False, at once, if one is running or waits."""

    def release(self) -> None: ...

    def stop(self) -> None:
        """End after what was put; blocks until then."""


class TaskThread:
    """A `TaskQueue` in a thread of its own. Calls `run_due` after each task, and whenever `due_in_s` has passed without one."""

    def __init__(self, name: str, due_in_s: Callable[[], float | None], run_due: Task) -> None:
        self._due_in_s = due_in_s
        self._run_due = run_due
        self._turn = threading.Lock()
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, task: Task) -> None:
        self._tasks.put(task)

    def try_acquire(self) -> bool:
        return self._tasks.empty() and self._turn.acquire(blocking=False)

    def release(self) -> None:
        self._turn.release()

    def stop(self) -> None:
        self._tasks.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=self._due_in_s())
            except Empty:
                with self._turn:
                    self._run_due()
                continue
            if task is None:
                return
            try:
                with self._turn:
                    task()
                    self._run_due()
            except Exception:  # without this thread nothing would ever be answered again
                log.exception("task_failed", thread=self._thread.name)


class Threads:
    """Starts the real ones. Tests subclass it."""

    def task_queue(self, name: str, due_in_s: Callable[[], float | None], run_due: Task) -> TaskQueue:
        return TaskThread(name, due_in_s, run_due)

    def pool(self, size: int, name: str) -> Executor:
        return ThreadPoolExecutor(size, name)
