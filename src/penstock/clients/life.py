"""A client as a context: `async with connect_async(url) as client:` opens it and closes it, whatever happens between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Final, Self

from penstock.clients.url import Address

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClient(AsyncOpened):
    """What the clients of all protocols have in common."""

    address: Address

    @abstractmethod
    async def open(self) -> None:
        """Connect now instead of with the first request. Raises Unreachable at once where nothing listens."""

    @abstractmethod
    async def close(self) -> None:
        """Finish what is under way, then hang up. Closing again does nothing."""
