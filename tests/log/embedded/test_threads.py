from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from penstock.log.embedded.threads import TaskThread

WAIT_S_MAX = 10


class Due:
    """Work that is due once, at a time of the test's choosing."""

    def __init__(self) -> None:
        self.in_s: float | None = None
        self.ran = threading.Event()

    def run(self) -> None:
        if self.in_s is not None:
            self.in_s = None
            self.ran.set()


@pytest.fixture
def due() -> Due:
    return Due()


@pytest.fixture
def thread(due: Due) -> Iterator[TaskThread]:
    thread = TaskThread("test", lambda: due.in_s, due.run)
    yield thread
    thread.stop()


def test_tasks_run_in_the_order_they_were_put_and_stop_waits_for_all() -> None:
    ran: list[int] = []
    thread = TaskThread("test", lambda: None, lambda: None)
    for number in range(100):
        thread.put(lambda number=number: ran.append(number))  # type: ignore[misc]
    thread.stop()
    assert ran == list(range(100))


def test_due_work_runs_when_its_time_has_come_without_a_task(thread: TaskThread, due: Due) -> None:
    due.in_s = 0.001
    thread.put(due.ran.clear)  # so that the thread looks at the time again
    assert due.ran.wait(WAIT_S_MAX)


def test_a_task_that_fails_does_not_end_the_thread(thread: TaskThread) -> None:
    done = threading.Event()

    def fail() -> None:
        raise ValueError("a bug")

    with capture_logs() as logs:
        thread.put(fail)
        thread.put(done.set)
        assert done.wait(WAIT_S_MAX)
    assert [entry["event"] for entry in logs] == ["task_failed"]


def test_it_cannot_be_acquired_while_a_task_runs_or_waits(thread: TaskThread) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def task() -> None:
        begun.set()
        assert may_end.wait(WAIT_S_MAX)

    thread.put(task)
    assert begun.wait(WAIT_S_MAX)
    assert not thread.try_acquire()
    may_end.set()


def test_no_task_runs_while_it_is_acquired(thread: TaskThread) -> None:
    assert thread.try_acquire()
    ran = threading.Event()
    thread.put(ran.set)
    assert not thread.try_acquire()
    assert not ran.is_set()
    thread.release()
    assert ran.wait(WAIT_S_MAX)
