"""Decoding that ends only when it is told to, on a worker thread."""

from __future__ import annotations

import asyncio
import threading
from typing import NoReturn

from penstock.workers import Check

END_S_MAX = 10


class Endless:
    def __init__(self) -> None:
        self._started, self._ended = threading.Event(), threading.Event()

    def run(self, check: Check) -> NoReturn:
        self._started.set()
        try:
            while True:
                check()
        finally:
            self._ended.set()

    async def started(self) -> None:
        await asyncio.to_thread(self._started.wait)

    async def ends(self) -> bool:
        """Whether it ends soon."""
        return await asyncio.to_thread(self._ended.wait, END_S_MAX)
