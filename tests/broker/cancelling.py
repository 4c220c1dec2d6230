"""Cancelling an operation at each of its awaits, one after another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from functools import partial
from typing import Any

STEPS_MAX = 1_000
"""An operation that waits more often than this never ends."""


class _Counted:
    """Awaits a coroutine, and tells each time that it has to wait."""

    def __init__(self, operation: Coroutine[Any, Any, Any], on_wait: Callable[[], None]) -> None:
        self._operation = operation
        self._on_wait = on_wait

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._operation.__await__()
        resume: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                waited_for = resume()
            except StopIteration as finished:
                return finished.value
            self._on_wait()
            try:
                yield waited_for
                resume = partial(next, steps)
            except BaseException as error:  # noqa: BLE001  whatever it is, it is passed on
                resume = partial(steps.throw, error)


async def cancelled_at(step: int, operation: Coroutine[Any, Any, Any]) -> bool:
    """Run an operation and cancel its caller when it waits for the `step`-th time; whether it came so far."""
    waits = 0

    def on_wait() -> None:
        nonlocal waits
        waits += 1
        if waits == step:
            asyncio.get_running_loop().call_soon(caller.cancel)

    async def call() -> Any:
        return await _Counted(operation, on_wait)

    caller = asyncio.create_task(call())
    await asyncio.wait([caller])
    if not caller.cancelled():
        caller.result()
    return waits >= step


async def at_every_step(attempt: Callable[[int], Awaitable[bool]]) -> None:
    """Call `attempt` with 1, 2, ... until it says that the operation had ended before. It is cancelled once at least."""
    for step in range(1, STEPS_MAX):
        if not await attempt(step):
            assert step > 1
            return
    raise AssertionError("the operation did not end")
