"""A conversation goes on in turns: some requests in each turn of the loop, and none behind one that must be waited for.

Without the first, one peer with many small requests would keep all the others waiting; without the second, replies would need an order
of their own. What goes on, and how much of it in a turn, is the session's business (`_advance`); when, is this module's.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

log = structlog.get_logger("penstock.protocols")


class InTurns(ABC):
    """What the sessions of the protocols have in common."""

    __slots__ = ("_busy", "_loop", "_task", "_turn_scheduled")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._busy = False
        """A request is being dealt with that cannot be answered at once; those behind it wait."""
        self._task: asyncio.Task[None] | None = None
        self._turn_scheduled = False

    @abstractmethod
    def _advance(self) -> None:
        """Start what may be started."""

    def _advance_later(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_scheduled = False
        self._advance()

    def _in_background(
        self, work: Coroutine[Any, Any, None], failed: Callable[[Exception], None] | None = None
    ) -> None:
        """Run what must wait. Nothing else is started meanwhile, and it is not cancelled: half a new topic helps no one.

        Work answers its own request, also with an error. `failed` is called with an exception that it let escape, and answers instead.
        """
        self._busy = True
        self._task = self._loop.create_task(self._until_done(work, failed))

    async def _until_done(self, work: Coroutine[Any, Any, None], failed: Callable[[Exception], None] | None) -> None:
        try:
            await work
        except Exception as error:
            log.exception("background_work_failed")
            if failed is not None:
                failed(error)
        finally:
            self._busy = False
            self._task = None
        self._advance()
