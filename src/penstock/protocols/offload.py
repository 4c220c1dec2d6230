"""A small thread pool for work that would keep the event loop from its other clients.

Python code in a thread still competes with the loop for the interpreter's lock, which is handed over between bytecodes only. So work is
written in pieces of a few milliseconds and calls `Stop.check` between them: that lets the loop run, and ends the work when its client is
gone or the broker stops. No more than one piece is ever waited for.

A session has at most one piece of work here at a time, so there are no more waiting than there are connections; they are served in the
order they came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

THREADS: Final = 2
"""Inflating and searching release the interpreter's lock, so two make progress at once; more would only crowd the loop."""

Result = TypeVar("Result")


class Stopped(Exception):
    """The work was given up: nobody waits for its result any more."""


class Stop:
    """Asks work to end. One belongs to each session, which requests it when its connection is closed."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False

    def check(self) -> None:
        """Between two pieces of work: let other threads run. Raises Stopped."""
        if self.requested:
            raise Stopped
        time.sleep(0)


class Offload:
    """One pool for all listeners of a broker. Threads are started when they are first needed."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, "penstock-offload")
        self._free = asyncio.Semaphore(threads)
        self._stops: set[Stop] = set()
        self._closed = False

    async def run(self, stop: Stop, work: Callable[[Callable[[], None]], Result]) -> Result:
        """Run `work` in a thread and return its result; it is called with `stop.check`. Raises Stopped, or what it raises."""
        async with self._free:
            if self._closed or stop.requested:
                raise Stopped
            self._stops.add(stop)
            try:
                return await asyncio.get_running_loop().run_in_executor(self._pool, work, stop.check)
            finally:
                self._stops.discard(stop)

    def close(self) -> None:
        """Stop what is running, refuse what waits, and return without waiting for either."""
        self._closed = True
        for stop in self._stops:
            stop.requested = True
        self._pool.shutdown(wait=False)
