"""Bringing a client back to the node that it connects to first, once that serves again.

Whoever stops a node sends its clients to the others, and after all nodes were restarted in turn, the last of them would have none. So a
client that is on another node than its first one tries that again after a while. It does so in a quiet moment only: nothing is in flight,
and nothing was for long enough that the other node shows everything this client has done or seen. It connects to its first node beside
the connection that it has, and gives that up if the moment is still quiet: no request fails or waits. Clients that are never quiet stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final, Protocol

from penstock.clients.nodes import Nodes
from penstock.clients.retry import Sleep
from penstock.clients.url import Address
from penstock.errors import PenstockError

QUIET_S: Final = 0.2
"""What one node has answered shows on the others within milliseconds. Readers that follow a topic without news wait a little longer."""


class NewReturn(Protocol):
    """Makes the `Return` of one client."""

    def __call__(self, *, uses: Callable[[], int | None], move: Callable[[Address], Awaitable[bool]]) -> Return: ...


class Return:
    """The attempts of one client, one at a time, each after half to one and a half times `after_s`; never if that is 0."""

    def __init__(
        self,
        nodes: Nodes,
        *,
        after_s: float,
        random: Random,
        sleep: Sleep,
        uses: Callable[[], int | None],
        move: Callable[[Address], Awaitable[bool]],
    ) -> None:
        """`uses` counts what the client has done so far; None while something is in flight. `move` connects to a node, and says whether
        the client is there now."""
        self._nodes = nodes
        self._after_s = after_s if len(nodes) > 1 else 0.0
        self._random = random
        self._sleep = sleep
        self._uses = uses
        self._move = move
        self._attempts: asyncio.Task[None] | None = None

    def connected(self, node: Address) -> None:
        """The client is on this node now."""
        if node is self._nodes.first or not self._after_s:
            self.stop()
        elif self._attempts is None:
            self._attempts = asyncio.create_task(self._return())

    def stop(self) -> None:
        if self._attempts is not None:
            self._attempts.cancel()
            self._attempts = None

    async def _return(self) -> None:
        while True:
            await self._sleep(self._after_s * (0.5 + self._random.random()))
            await self._quiet()
            with suppress(PenstockError, OSError, TimeoutError):  # it does not serve yet: another time
                if await self._move(self._nodes.first):
                    self._nodes.returned()
                    self._attempts = None
                    return

    async def _quiet(self) -> None:
        while True:
            before = self._uses()
            await self._sleep(QUIET_S)
            if before is not None and self._uses() == before:
                return
