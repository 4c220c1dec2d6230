"""A client as a context: `async with connect_async(url) as client:` opens it and closes it, whatever happens between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from random import Random
from typing import Final, Self

from penstock.clients.nodes import Nodes
from penstock.clients.options import ClientOptions
from penstock.clients.retry import Attempts, NewAttempts, Sleep
from penstock.clients.returning import NewReturn, Return
from penstock.clients.url import Address
from penstock.clock import Clock, SystemClock

BATCH_RECORDS: Final = 256
"""Records that `next_batch` of a consumer returns at most, unless told otherwise."""


class AsyncOpened(ABC):
    """What is opened by an `async with` block and closed by its end."""

    @abstractmethod
    async def open(self) -> None:
        """What entering the block does first."""

    @abstractmethod
    async def close(self) -> None:
        """What leaving the block does. Closing again does nothing."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncClient(AsyncOpened):
    """What the clients of all protocols have in common."""

    def __init__(
        self,
        address: Address,
        options: ClientOptions | None,
        *,
        clock: Clock | None,
        random: Random | None,
        sleep: Sleep,
    ) -> None:
        self.address = address
        self._options = options or ClientOptions()
        self._clock = clock or SystemClock()
        self._sleep = sleep
        random = random or Random()  # noqa: S311 - neither jitter nor the order of hosts guards a secret
        self._attempts: NewAttempts = partial(
            Attempts, self._options.retry, clock=self._clock, random=random, sleep=sleep
        )
        self._nodes = Nodes(address, random)
        self._new_return: NewReturn = partial(
            Return, self._nodes, after_s=self._options.return_after_s, random=random, sleep=sleep
        )

    @abstractmethod
    async def open(self) -> None:
        """Connect now instead of with the first request. Raises Unreachable at once if nothing listens."""

    @abstractmethod
    async def close(self) -> None:
        """Wait for outstanding replies, then disconnect. Closing again does nothing."""
