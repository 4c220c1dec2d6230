"""An event loop with virtual time, and the processes that run on it.

Time stands still while callbacks run and jumps to the next timer when none is ready, so a minute of timeouts costs nothing.

Work for other threads (`run_in_executor`, the log's own) runs in threads that take turns with the loop: one of them runs while all
others wait, and it hands over at operations of the disk, for as long as the seed decides. So a commit may be half done when the next
request comes, or when the process is killed, and is so again in the next run.

A process is a label in the context of its callbacks, which tasks and timers inherit. Killing it cancels all of them: nothing of it ever
runs again, no `finally` and no `except`, as after SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from tests.simulation.network import Network, Reader, SimSocket

TURN_S: Final = 1e-6
"""How long one turn of the loop takes: time passes even for a program that never waits."""
TURNS_MAX: Final = 3_000_000
"""A run that takes longer than this never ends."""
THREAD_DELAY_S: Final = 0.0005
"""The mean time until a thread begins its work, and for which it hands over."""
PAUSED: Final = 0.3
"""The share of a thread's disk operations at which it hands over."""
START_S: Final = 1000.0
CANCEL_S_MAX: Final = 10.0


class ProcessEnded(BaseException):
    """Raised inside a process to end it on the spot; not an `Exception`, so that nothing in it catches this."""


class Stalled(Exception):
    """Nothing is left that could ever happen, or the run does not end."""


class Process:
    """What is killed together."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.is_alive = True
        self.tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.threads: WeakSet[SimThread] = WeakSet()
        self.ended: asyncio.Future[Any] = loop.create_future()

    def context(self) -> contextvars.Context:
        """Return a context whose tasks and timers belong to this process."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        return context


_LOCAL = threading.local()
CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def _make_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=loop, **options)
    context = options.get("context")
    process = CURRENT.get() if context is None else context.get(CURRENT)
    if process is not None:
        process.tasks.add(task)
    return task


class SimThread:
    """Runs when `step` lets it, until it pauses or ends; the loop waits meanwhile."""

    def __init__(self, loop: SimLoop, work: Callable[[], None]) -> None:
        self._loop = loop
        self._work = work
        self._context = contextvars.copy_context()
        self._thread: threading.Thread | None = None
        self._resumed = threading.Semaphore(0)
        self._handed_over = threading.Semaphore(0)
        self._is_abandoned = False

    def step(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        else:
            self._resumed.release()
        self._handed_over.acquire()

    def pause(self, seconds: float) -> None:
        if not self._is_abandoned:
            self._loop.call_later(seconds, self.step)
            self._handed_over.release()
            self._resumed.acquire()
        if self._is_abandoned:  # also before: cleaning up after the end of the process may want to pause again
            raise ProcessEnded

    def abandon(self) -> None:
        """End it, after the run."""
        self._is_abandoned = True
        if self._thread is not None and self._thread.is_alive():
            self._resumed.release()
            self._thread.join()

    def _run(self) -> None:
        _LOCAL.thread = self
        try:
            self._context.run(self._work)
        except ProcessEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - the run fails with it
            self._loop.errors.append(f"a thread failed: {error!r}")
        finally:
            self._handed_over.release()


class SimLoop(asyncio.BaseEventLoop):
    """See the module. `network` is set before the loop runs."""

    network: Network

    def __init__(self, chance: Random) -> None:
        super().__init__()
        self._now_s = START_S
        self._turns = 0
        self._chance = chance
        self._selector = self
        self._clock_resolution = TURN_S
        self._killed: list[asyncio.Task[Any]] = []
        self._abandoned: list[SimThread] = []
        self.errors: list[str] = []
        """Exceptions that nobody caught."""
        self.set_exception_handler(self._note_error)
        self.set_task_factory(_make_task)

    # -- time ------------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> tuple[()]:
        """Stand in for the selector: nothing comes from outside, so time jumps to the next timer."""
        if timeout is None:
            raise Stalled("every task waits, and no timer is set")
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise Stalled(f"no end after {TURNS_MAX} turns of the loop")
        self._now_s += max(timeout, TURN_S)
        return ()

    def _process_events(self, event_list: object) -> None:
        """Nothing comes from outside."""

    def _write_to_self(self) -> None:
        """There is no selector to wake up."""

    # -- processes and threads -------------------------------------------------------------------------------------------

    async def run(self, process: Process, work: Coroutine[Any, Any, None], seconds_max: float) -> Exception | None:
        """Run something in a process, until it is done or the process has ended; returns the error it fails with."""

        async def settled() -> Exception | None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - returned
                return error
            return None

        task = self.create_task(settled(), context=process.context())
        await asyncio.wait({task, process.ended}, timeout=seconds_max, return_when=asyncio.FIRST_COMPLETED)
        if not process.is_alive:
            return None
        return task.result() if task.done() else TimeoutError(f"not done after {seconds_max:g} s")

    def kill(self, process: Process) -> None:
        """End a process: whatever it still meant to do does not happen."""
        process.is_alive = False
        self._killed += process.tasks  # a task that is collected runs its `finally` blocks
        self._abandoned += process.threads
        for handle in [*self._ready, *self._scheduled]:  # type: ignore[attr-defined]
            self._drop_if_dead(handle)
        if not process.ended.done():
            process.ended.set_result(None)

    def _call_soon(self, callback: Any, args: Any, context: contextvars.Context | None) -> asyncio.Handle:
        return self._drop_if_dead(super()._call_soon(callback, args, context))  # type: ignore[misc]

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._drop_if_dead(handle)
        return handle

    @staticmethod
    def _drop_if_dead(handle: asyncio.Handle) -> asyncio.Handle:
        process = handle._context.get(CURRENT)  # type: ignore[attr-defined]
        if process is not None and not process.is_alive:
            handle.cancel()
        return handle

    def cancel_all(self) -> None:
        """End what still runs, after the run."""
        tasks = asyncio.all_tasks(self) - set(self._killed)
        for task in tasks:
            task.cancel()
        self._turns = 0
        if tasks:
            with suppress(Stalled):
                self.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_S_MAX))

    def bury(self) -> None:
        """Let go of what killed processes have left, after the run."""
        for thread in self._abandoned:
            thread.abandon()
        self._abandoned.clear()
        for task in self._killed:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._killed.clear()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        self.start_thread(lambda: self._run_job(future, func, args))
        return future

    def start_thread(self, work: Callable[[], None]) -> None:
        """Run something beside the loop, after a while."""
        thread = SimThread(self, work)
        process = CURRENT.get()
        if process is not None:
            process.threads.add(thread)
        self.call_later(self.thread_delay_s(), thread.step)

    def pause_thread(self) -> None:
        """Let the loop and other threads run for a while; on the loop itself this does nothing."""
        thread = getattr(_LOCAL, "thread", None)
        if thread is not None and self._chance.random() < PAUSED:
            thread.pause(self.thread_delay_s())

    def wait_in_thread(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, which others bring about."""
        while not condition():
            _LOCAL.thread.pause(THREAD_DELAY_S)

    def thread_delay_s(self) -> float:
        return self._chance.expovariate(1 / THREAD_DELAY_S)

    def _run_job(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except ProcessEnded:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to the awaiting coroutine
            self.call_soon(self._settle, future, None, error)
        else:
            self.call_soon(self._settle, future, result, None)

    @staticmethod
    def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """There is none."""

    # -- the network -----------------------------------------------------------------------------------------------------

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", (host, port))]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Reader], host: str, port: int, ssl: None = None
    ) -> tuple[asyncio.Transport, Reader]:
        assert ssl is None, "TLS over TCP is not simulated"
        return await self.network.connect(protocol_factory, (host, port))

    async def connect_accepted_socket(  # type: ignore[override]
        self, protocol_factory: Callable[[], Reader], sock: SimSocket, **_: Any
    ) -> tuple[asyncio.Transport, Reader]:
        return self.network.attach(sock, protocol_factory())

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:  # type: ignore[override]
        self.network.socket_of(fd).watch(callback, args)

    def remove_reader(self, fd: Any) -> bool:
        return self.network.socket_of(fd).unwatch()

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, ProcessEnded):
            self.errors.append(f"{context.get('message')}: {error!r}")
