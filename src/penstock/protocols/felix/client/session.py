"""What a client has open on its connection for requests: a stream for publishing and one for the cache."""

from __future__ import annotations

import asyncio
from typing import Self

from penstock.clients.quic import QuicConnection
from penstock.errors import ConnectionLost
from penstock.protocols.felix.client.lanes import Lane
from penstock.protocols.felix.codec.messages import Auth


class ClientSession:
    """Made by `begin`. It is of use as long as all of it is."""

    def __init__(self, connection: QuicConnection) -> None:
        self.publishing = Lane()
        self.caching = Lane()
        self._connection = connection
        connection.on_lost = self._lost

    @classmethod
    async def begin(cls, connection: QuicConnection, auth: Auth) -> Self:
        """Raises AuthenticationFailed."""
        session = cls(connection)
        await asyncio.gather(session.publishing.begin(connection, auth), session.caching.begin(connection, auth))
        return session

    @property
    def is_usable(self) -> bool:
        return self._connection.loss is None and self.publishing.failure is None and self.caching.failure is None

    @property
    def is_idle(self) -> bool:
        return self.publishing.is_idle and self.caching.is_idle

    def close(self) -> None:
        """Disconnect, where nothing is in flight."""
        self._connection.close()

    async def finish(self) -> None:
        """Send no more requests, wait for the replies, then disconnect."""
        try:
            await asyncio.gather(self.publishing.finish(), self.caching.finish())
        finally:
            self._connection.close()
            await self._connection.wait_closed()

    def _lost(self, loss: ConnectionLost) -> None:
        self.publishing.fail(loss)
        self.caching.fail(loss)
