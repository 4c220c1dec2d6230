"""The pool beside the event loop: results and errors come back, and work ends when its session or the pool does."""

from __future__ import annotations

import asyncio
import threading

import pytest

from penstock.errors import InvalidRequest, ShuttingDown
from penstock.workers import Check, WorkerPool

pytestmark = pytest.mark.timeout(20)


async def test_work_runs_in_a_thread_of_the_pool_and_gives_its_result() -> None:
    worker = WorkerPool().worker()
    name = await worker.run(lambda check: threading.current_thread().name)
    assert name.startswith("penstock-worker")


async def test_what_work_raises_comes_back() -> None:
    def refuse(check: Check) -> None:
        raise InvalidRequest("no")

    worker = WorkerPool().worker()
    with pytest.raises(InvalidRequest, match="no"):
        await worker.run(refuse)
    assert await worker.run(lambda check: 7) == 7


def endless(started: threading.Event, check: Check) -> None:
    started.set()
    while True:
        check()


async def test_endless_work_ends_when_its_session_is_closed() -> None:
    worker, started = WorkerPool().worker(), threading.Event()
    running = asyncio.ensure_future(worker.run(lambda check: endless(started, check)))
    await asyncio.to_thread(started.wait)
    worker.stop()
    with pytest.raises(ShuttingDown):
        await running
    with pytest.raises(ShuttingDown):
        await worker.run(lambda check: 7)


async def test_closing_the_pool_ends_what_runs_and_refuses_what_waits() -> None:
    pool = WorkerPool(threads=1)
    started = threading.Event()
    running = asyncio.ensure_future(pool.worker().run(lambda check: endless(started, check)))
    await asyncio.to_thread(started.wait)
    waiting = asyncio.ensure_future(pool.worker().run(lambda check: 7))
    await asyncio.sleep(0)
    pool.close()
    for each in (running, waiting):
        with pytest.raises(ShuttingDown):
            await each


async def test_no_more_works_run_at_a_time_than_there_are_threads() -> None:
    pool, release = WorkerPool(threads=2), threading.Event()
    counted = threading.Semaphore(0)

    def wait(check: Check) -> None:
        counted.release()
        release.wait()

    works = [asyncio.ensure_future(pool.worker().run(wait)) for _ in range(5)]
    for _ in range(2):
        await asyncio.to_thread(counted.acquire)
    assert not await asyncio.to_thread(counted.acquire, timeout=0.05)
    release.set()
    await asyncio.gather(*works)
