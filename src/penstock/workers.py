"""A small thread pool for work that would keep the event loop from its other clients.

Python code in a thread still competes with the loop for the interpreter's lock, which is handed over between bytecodes only. So work is
written in steps of a few milliseconds and calls a `check` between them: that lets the loop run, and ends the work when its client is gone
or the broker stops. No more than one step is ever waited for.

A session has one piece of work in the pool at a time, and so has a query of the audit trail or a replay of dead letters. So no more wait
than there are connections and topics; they are served in the order they came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from penstock.errors import ShuttingDown

THREADS: Final = 2
"""Inflating and searching release the interpreter's lock, so two make progress at once; more would only crowd the loop."""

Result = TypeVar("Result")
Check = Callable[[], None]
Work = Callable[[Check], Result]

_GIVEN_UP: Final = "the request was given up: its connection or the broker is closing"


class WorkerPool:
    """The threads, shared by a broker and all its listeners and started when they are first needed."""

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = ThreadPoolExecutor(threads, "penstock-worker")
        self._free = asyncio.Semaphore(threads)
        self._running: set[Worker] = set()
        self._closed = False

    def worker(self) -> Worker:
        """Return what one session, or one operation, runs its work with."""
        return Worker(self)

    async def run(self, worker: Worker, work: Work[Result]) -> Result:
        async with self._free:
            if self._closed or worker.stopped:
                raise ShuttingDown(_GIVEN_UP)
            self._running.add(worker)
            try:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work, worker.check)
            finally:
                self._running.discard(worker)

    def close(self) -> None:
        """Stop what is running and refuse what waits, without waiting for either."""
        self._closed = True
        for worker in self._running:
            worker.stop()
        self._threads.shutdown(wait=False)


class Worker:
    """Runs the work of one session or operation."""

    __slots__ = ("_pool", "stopped")

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.stopped = False

    async def run(self, work: Work[Result]) -> Result:
        """Call `work` with `check` in a thread, and return its result. Raises ShuttingDown, or what the work raises."""
        return await self._pool.run(self, work)

    def check(self) -> None:
        """Called by work between two steps: let other threads run. Raises ShuttingDown."""
        if self.stopped:
            raise ShuttingDown(_GIVEN_UP)
        time.sleep(0)

    def stop(self) -> None:
        """End what is running, and run nothing more."""
        self.stopped = True
