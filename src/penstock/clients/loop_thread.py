"""One event loop in one background thread, in which a sync client runs its async client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from penstock.errors import InvalidRequest

new_event_loop: Callable[[], asyncio.AbstractEventLoop]
try:
    from uvloop import new_event_loop
except ImportError:  # penstock-client has it as an extra
    from asyncio import new_event_loop

CANCEL_S_MAX = 5.0
"""How long an interrupted caller waits for its work to unwind."""
WAIT_S_MAX = 0.2
"""The longest wait for the loop before it is checked again: a signal just before the wait, or a loop that closes, does not end it."""
CLOSED = "this client is closed; connect again"
TURNS_TO_CLOSE = 3
"""Turns of the loop that transports take to close once they were told to."""

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers in other threads, one loop for the life of the object.

    The thread is a daemon: a program that forgets to close its client still ends.
    """

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._cleanups: set[asyncio.Task[None]] = set()
        """Tasks that are not awaited, kept because the loop has only weak references to them."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return not self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop and wait for its result. A caller that is interrupted cancels it and sees it unwound."""
        if threading.current_thread() is self._thread:
            work.close()
            raise InvalidRequest("a sync client cannot be used inside its own loop thread; use the async client there")
        # Held until the work has ended. An Event is such a lock and a dozen calls around it, for each request.
        ended = threading.Lock()
        ended.acquire()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            begun.append(task)
            task.add_done_callback(end)

        def cancel() -> None:
            if begun:
                begun[0].cancel()
            else:  # interrupted before it could be handed over
                work.close()
                ended.release()

        def end(task: asyncio.Task[T]) -> None:
            if not task.cancelled():
                task.exception()  # seen, even where the caller was interrupted and asks no more
            ended.release()

        # One block, because an interrupt may come between any two steps, and work that runs on unseen holds what it uses.
        try:
            try:
                self._loop.call_soon_threadsafe(begin)
            except RuntimeError:
                work.close()
                raise InvalidRequest(CLOSED) from None
            while not ended.acquire(timeout=WAIT_S_MAX):
                if self.closed and ended.locked():  # it closed without running what was handed over last
                    work.close()
                    raise InvalidRequest(CLOSED)
        except InvalidRequest:
            raise
        except BaseException:
            self._loop.call_soon_threadsafe(cancel)
            if not (begun and begun[0].done()):
                ended.acquire(timeout=CANCEL_S_MAX)
            raise
        if begun[0].cancelled():
            raise InvalidRequest("this client was closed while it waited for an answer")
        return begun[0].result()

    def clean_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` and wait for it; in the loop's own thread, in which garbage is collected like in any other, do not wait.

        Nothing is left to clean up once the loop is closed.
        """
        if threading.current_thread() is self._thread:
            task = self._loop.create_task(work)
            self._cleanups.add(task)
            task.add_done_callback(self._cleanups.discard)
        elif self.closed:
            work.close()
        else:
            self.run(work)

    def close(self) -> None:
        """Cancel what still runs and end the thread. Closing again does nothing."""
        if not self.closed:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_turns(TURNS_TO_CLOSE))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            while remaining := asyncio.all_tasks(self._loop):
                for task in remaining:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(remaining))
            self._loop.close()


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
