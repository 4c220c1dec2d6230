"""What every sync client is made of: an async client, a thread that drives it, and the life of both."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, Self, TypeVar

from penstock.clients.life import AsyncClient
from penstock.clients.loop_thread import LoopThread
from penstock.clients.url import Address

Client = TypeVar("Client", bound=AsyncClient)


class SyncTwin(Generic[Client]):
    """Opened when it is made, closed by `close` or the end of a `with` block."""

    def __init__(self, client: Client) -> None:
        self._client = client
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
            self._thread.run(self._client.close())
            self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
