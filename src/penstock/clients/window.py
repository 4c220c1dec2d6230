"""A bound on requests and bytes in flight. Callers wait in order while it is reached."""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """First come, first served. A request larger than the whole window may pass alone."""

    __slots__ = ("_bytes", "_bytes_max", "_requests", "_requests_max", "_waiting")

    def __init__(self, requests_max: int, bytes_max: int) -> None:
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self._requests = 0
        self._bytes = 0
        self._waiting: deque[tuple[int, int, asyncio.Future[None]]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in flight and nobody waits."""
        return not self._requests and not self._waiting

    def has_room_for(self, requests: int, size_bytes: int) -> bool:
        """Whether they would enter without waiting."""
        return not self._waiting and self._has_room(requests, size_bytes)

    def enter_now(self, requests: int, size_bytes: int) -> None:
        """Enter, if there is room for them."""
        self._requests += requests
        self._bytes += size_bytes

    async def enter(self, requests: int, size_bytes: int) -> None:
        if self.has_room_for(requests, size_bytes):
            self.enter_now(requests, size_bytes)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((requests, size_bytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(requests, size_bytes)
            else:
                self._waiting.remove((requests, size_bytes, turn))
                self._admit()
            raise

    def leave(self, requests: int, size_bytes: int) -> None:
        self._requests -= requests
        self._bytes -= size_bytes
        if self._waiting:
            self._admit()

    def _has_room(self, requests: int, size_bytes: int) -> bool:
        if self._requests == 0:
            return True
        return self._requests + requests <= self._requests_max and self._bytes + size_bytes <= self._bytes_max

    def _admit(self) -> None:
        while self._waiting:
            requests, size_bytes, turn = self._waiting[0]
            if not self._has_room(requests, size_bytes):
                return
            self._waiting.popleft()
            if not turn.done():
                self._requests += requests
                self._bytes += size_bytes
                turn.set_result(None)
