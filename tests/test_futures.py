from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import NotWritten
from penstock.futures import set_outcome, shield


async def reports_of_the_loop() -> list[dict[str, Any]]:
    """What the event loop is told of from now on."""
    reports: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    return reports


async def test_a_callback_gives_a_future_its_outcome_once() -> None:
    loop = asyncio.get_running_loop()
    good, bad, stopped = (loop.create_future() for _ in range(3))
    stopped.cancel()
    for future, outcome in ((good, 1), (bad, NotWritten("the disk is gone")), (stopped, 1), (good, 2)):
        set_outcome(future, outcome)
    assert await good == 1
    with pytest.raises(NotWritten):
        await bad
    assert stopped.cancelled()


async def test_a_result_and_an_error_are_passed_on() -> None:
    loop = asyncio.get_running_loop()
    good, bad, stopped, late = (loop.create_future() for _ in range(4))
    waiting = [shield(each) for each in (good, bad, stopped)]
    good.set_result(1)
    bad.set_exception(NotWritten("the disk is gone"))
    stopped.cancel()
    assert await waiting[0] == 1
    with pytest.raises(NotWritten):
        await waiting[1]
    with pytest.raises(asyncio.CancelledError):
        await waiting[2]
    late.set_result(2)
    assert await shield(late) == 2


async def test_a_cancelled_waiter_leaves_the_future_to_the_others() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    first, second = shield(future), shield(future)
    first.cancel()
    await asyncio.sleep(0)
    assert not future.cancelled()
    future.set_result(3)
    assert await second == 3
    assert first.cancelled()


async def test_an_error_after_the_waiter_was_cancelled_is_its_owners_alone() -> None:
    reports = await reports_of_the_loop()
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    waiting = shield(future)
    waiting.cancel()
    await asyncio.sleep(0)
    future.set_exception(NotWritten("the disk is gone"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert isinstance(future.exception(), NotWritten)
    assert reports == []
