from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from penstock.clients.loop_thread import LoopThread
from penstock.errors import InvalidRequest, TopicNotFound


async def thread_name() -> str:
    return threading.current_thread().name


async def wait_for_ever(started: threading.Event) -> None:
    started.set()
    await asyncio.Event().wait()


async def fail() -> None:
    raise TopicNotFound("topic not found: t")


def test_work_runs_in_the_thread_and_errors_come_back() -> None:
    thread = LoopThread("a client")
    assert thread.run(thread_name()) == "a client"
    with pytest.raises(TopicNotFound):
        thread.run(fail())
    thread.close()


def test_a_closed_thread_refuses_work_and_may_be_closed_again() -> None:
    thread = LoopThread("a client")
    thread.close()
    thread.close()
    with pytest.raises(InvalidRequest, match="closed"):
        thread.run(thread_name())


def test_closing_ends_waiting_calls() -> None:
    thread = LoopThread("a client")
    started = threading.Event()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            thread.run(wait_for_ever(started))
        except InvalidRequest as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert started.wait(5)
    thread.close()
    waiter.join(5)
    assert [str(error) for error in caught] == ["this client was closed while it waited for an answer"]


def test_the_loop_thread_itself_is_refused_instead_of_waiting_for_itself() -> None:
    thread = LoopThread("a client")

    async def nested() -> str:
        return thread.run(thread_name())

    with pytest.raises(InvalidRequest, match="async client"):
        thread.run(nested())
    thread.close()


def test_an_interrupt_that_does_not_wake_the_caller_is_noticed() -> None:
    thread = LoopThread("a client")
    started = threading.Event()

    def interrupt() -> None:
        started.wait()
        # Delivered here, as a signal is that comes between the caller's last look at signals and its wait.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        thread.run(wait_for_ever(started))
    interrupter.join()
    thread.close()


def test_an_interrupt_between_any_two_steps_ends_the_call_and_leaves_no_work_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A wait for what has come already would take the whole time of this test.
    monkeypatch.setattr("penstock.clients.loop_thread.CANCEL_S_MAX", 3600.0)
    thread = LoopThread("a client")
    traced_before = sys.gettrace()
    answer = None
    for interrupted_at in itertools.count():
        steps = itertools.count()

        def trace(
            frame: FrameType, event: str, _: object, at: int = interrupted_at, steps: Iterator[int] = steps
        ) -> Any:
            if frame.f_code is not LoopThread.run.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(steps) == at:
                raise KeyboardInterrupt
            return trace

        work = thread_name()
        sys.settrace(trace)
        try:
            answer = thread.run(work)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(traced_before)
        work.close()  # raises if it is running
        assert thread.run(thread_name()) == "a client"
    assert answer == "a client"
    assert interrupted_at > 50
    thread.close()


def test_work_that_is_handed_over_while_the_loop_closes_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # What comes too late is noticed when the loop is checked again, which is the whole time that this test takes.
    monkeypatch.setattr("penstock.clients.loop_thread.WAIT_S_MAX", 0.01)

    async def nothing() -> None:
        pass

    def work_until_refused(thread: LoopThread, started: threading.Event) -> None:
        started.set()
        with suppress(InvalidRequest):
            while True:
                thread.run(nothing())

    for _ in range(300):
        thread, started = LoopThread("a client"), threading.Event()
        caller = threading.Thread(target=work_until_refused, args=(thread, started), daemon=True)
        caller.start()
        started.wait()
        thread.close()
        caller.join(10)
        assert not caller.is_alive()
