"""What every sync client is made of: an async client, a thread that drives it, and the life of both."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from penstock.clients.life import AsyncClient
from penstock.clients.loop_thread import LoopThread
from penstock.clients.url import Address

Client = TypeVar("Client", bound=AsyncClient)
Item = TypeVar("Item")


class SyncTwin(Generic[Client]):
    """Opened when it is made, closed by `close` or the end of a `with` block."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._iterations: set[AsyncGenerator[Any, None]] = set()
        """Those under way: a loop that is left by an exception lives on in its traceback, and does not end before the client."""
        self._thread = LoopThread(f"penstock client of {client.address}")
        try:
            self._thread.run(client.open())
        except BaseException:
            self._thread.close()
            raise

    @property
    def address(self) -> Address:
        return self._client.address

    def close(self) -> None:
        """Wait for answers still on their way, then hang up. Closing again does nothing."""
        if not self._thread.closed:
            for items in list(self._iterations):
                if not getattr(
                    items, "ag_running", False
                ):  # else another thread waits in it, and is told by the client's end
                    self._thread.run(items.aclose())
            self._thread.run(self._client.close())
            self._thread.close()

    def _iterate(self, items: AsyncGenerator[Item, None]) -> Iterator[Item]:
        """The items of the async client, one by one; whoever stops half way or closes the client ends the generator, too."""
        self._iterations.add(items)
        try:
            while (item := self._thread.run(_next(items))) is not None:
                yield item
        finally:
            self._iterations.discard(items)
            if not self._thread.closed:
                self._thread.run(items.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncTransaction(Protocol):
    """What a transaction of an async client can do, whatever its records are."""

    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


Transaction = TypeVar("Transaction", bound=AsyncTransaction)


class SyncTransaction(Generic[Transaction]):
    """A transaction in a `with` block: committed at its end, and rolled back where that is left by an exception."""

    def __init__(self, thread: LoopThread, transaction: Transaction) -> None:
        self._thread = thread
        self._transaction = transaction

    def __enter__(self) -> Self:
        self._thread.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._transaction.__aexit__(kind, error, trace))

    def commit(self) -> None:
        """Make everything that was added readable, all or nothing; the end of the block does that by itself."""
        self._thread.run(self._transaction.commit())

    def rollback(self) -> None:
        """Drop everything that was added."""
        self._thread.run(self._transaction.rollback())


async def _next(items: AsyncGenerator[Item, None]) -> Item | None:
    return await anext(items, None)
