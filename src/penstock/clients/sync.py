"""Base classes of the sync clients: an async object, and the thread whose event loop runs it.

The classes of a protocol are generated from its async ones (`scripts/sync_clients.py`); what a call of them needs is here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterator
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from penstock.clients.life import BATCH_RECORDS, AsyncClient
from penstock.clients.loop_thread import LoopThread
from penstock.clients.url import Address

Item = TypeVar("Item")


class AsyncContext(Protocol):
    """An async context manager."""

    async def __aenter__(self) -> object: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class AsyncConsumer(AsyncContext, Protocol[Item]):
    """An async iterator over what the broker pushes; closed by the end of its block."""

    async def next_batch(self, max_records: int, timeout_s: float | None = None) -> list[Item]: ...


class AsyncPolled(AsyncContext, Protocol[Item]):
    """An object that is polled for records until it is closed."""

    @property
    def closed(self) -> bool: ...
    async def poll(self, max_records: int) -> list[Item]: ...


Source = TypeVar("Source")
Client = TypeVar("Client", bound=AsyncClient)
Context = TypeVar("Context", bound=AsyncContext)
Consumer = TypeVar("Consumer", bound=AsyncConsumer[Any])
Polled = TypeVar("Polled", bound=AsyncPolled[Any])


class SyncObject(Generic[Source]):
    """An async object whose coroutines run in the thread of its client."""

    def __init__(self, thread: LoopThread, source: Source) -> None:
        self._thread = thread
        self._async = source


class SyncClient(SyncObject[Client]):
    """Connect on creation; disconnect on `close` or at the end of a `with` block."""

    def __init__(self, client: Client) -> None:
        super().__init__(LoopThread(f"penstock client of {client.address}"), client)
        self._iterations: set[AsyncGenerator[Any, None]] = set()
        """Generators that have not finished. The traceback of an exception may keep a loop over one alive for longer than the client."""
        try:
            self._thread.run(client.open())
        except BaseException:
            self._thread.close()
            raise

    @property
    def address(self) -> Address:
        return self._async.address

    def close(self) -> None:
        """Wait for outstanding replies, then disconnect. Closing again does nothing."""
        if not self._thread.closed:
            for items in list(self._iterations):
                # One that another thread waits in is ended by closing the client.
                if not getattr(items, "ag_running", False):
                    self._thread.run(items.aclose())
            self._thread.run(self._async.close())
            self._thread.close()

    def _iterate(self, items: AsyncGenerator[Item, None]) -> Iterator[Item]:
        """Iterate over the items one by one. Leaving the loop early or closing the client closes the generator."""
        self._iterations.add(items)
        try:
            while (item := self._thread.run(_next(items))) is not None:
                yield item
        finally:
            self._iterations.discard(items)
            self._thread.clean_up(items.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncContext(SyncObject[Context]):
    """A context manager: its `with` block begins and ends as the `async with` block of the async object."""

    def __enter__(self) -> Self:
        self._thread.run(self._async.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._async.__aexit__(kind, error, trace))


class SyncConsumer(SyncContext[Consumer], Generic[Consumer, Item]):
    """An iterator over what the broker pushes. Threads may share one: each item goes to one of them."""

    def __init__(self, thread: LoopThread, source: Consumer) -> None:
        super().__init__(thread, source)
        self._ahead: deque[Item] = deque()
        """Items taken over from the loop's thread and not yet returned: switching threads for each one takes longer than all else."""

    def next(self, timeout_s: float | None = None) -> Item | None:
        """Return the next item; None if none comes in time, or if there will be no more."""
        try:
            return self._ahead.popleft()
        except IndexError:
            batch = self._thread.run(self._async.next_batch(BATCH_RECORDS, timeout_s))
        self._ahead.extend(batch[1:])
        return batch[0] if batch else None

    def next_batch(self, max_records: int = BATCH_RECORDS, timeout_s: float | None = None) -> list[Item]:
        """Return the items that have arrived, up to `max_records`, waiting for the first; none if none comes in time."""
        batch: list[Item] = []
        try:
            while len(batch) < max_records:
                batch.append(self._ahead.popleft())
        except IndexError:
            return batch or self._thread.run(self._async.next_batch(max_records, timeout_s))
        return batch

    def close(self) -> None:
        """Tell the broker to send no more. Closing again does nothing."""
        if not self._thread.closed:
            self._thread.run(self._async.__aexit__(None, None, None))

    def __iter__(self) -> Iterator[Item]:
        while (item := self.next()) is not None:
            yield item

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncPolled(SyncContext[Polled], Generic[Polled, Item]):
    """An iterator over records, one poll each: the next one says that the last is processed. `poll` is the faster way to read much."""

    def __iter__(self) -> Iterator[Item]:
        while not self._async.closed:
            yield from self._thread.run(self._async.poll(1))


async def _next(items: AsyncGenerator[Item, None]) -> Item | None:
    return await anext(items, None)
