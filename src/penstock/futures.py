"""Futures whose outcome comes by a callback, and those that several wait for."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def set_outcome(future: asyncio.Future[T], outcome: T | Exception) -> None:
    """Give a future its outcome; an exception fails it. One that is done or was cancelled stays as it is.

    `partial(set_outcome, future)` is a callback that takes the outcome.
    """
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def shield(inner: asyncio.Future[T]) -> asyncio.Future[T]:
    """Return a future with the outcome of `inner`, which continues if the returned one is cancelled.

    `asyncio.shield` does the same, but since Python 3.14 it also reports an error of `inner` to the event loop once the waiter has been
    cancelled. Here the owner of `inner` handles its errors: a client that disconnects while its write fails is no bug to be logged.
    """
    if inner.done():
        return inner
    outer: asyncio.Future[T] = inner.get_loop().create_future()

    def pass_on(inner: asyncio.Future[T]) -> None:
        if outer.done():
            return
        if inner.cancelled():
            outer.cancel()
        elif (error := inner.exception()) is not None:
            outer.set_exception(error)
        else:
            outer.set_result(inner.result())

    def let_go(_: asyncio.Future[T]) -> None:
        inner.remove_done_callback(pass_on)

    inner.add_done_callback(pass_on)
    outer.add_done_callback(let_go)
    return outer
