"""A client of a protocol over TCP."""

from __future__ import annotations

import ssl
from abc import abstractmethod
from random import Random
from typing import Generic

from penstock.clients.life import AsyncClient
from penstock.clients.options import ClientOptions
from penstock.clients.pipeline import Message, Pipeline
from penstock.clients.requests import OnLost, Requests
from penstock.clients.retry import Sleep
from penstock.clients.url import Address, tls_for
from penstock.clock import Clock


class TcpClient(AsyncClient, Generic[Message]):
    """Requests over one connection that is made when it is needed, and again when it was lost."""

    def __init__(
        self,
        address: Address,
        tls: ssl.SSLContext | bool | None,
        options: ClientOptions | None,
        *,
        clock: Clock | None,
        random: Random | None,
        sleep: Sleep,
    ) -> None:
        super().__init__(address, options, clock=clock, random=random, sleep=sleep)
        self._requests: Requests[Message] = Requests(
            address, tls_for(address, tls), self._new_pipeline, self._log_in, self._options, self._attempts
        )

    async def open(self) -> None:
        await self._requests.open()

    async def close(self) -> None:
        await self._requests.close()

    @abstractmethod
    def _new_pipeline(self, peer: str, on_lost: OnLost[Message]) -> Pipeline[Message]:
        """Return the protocol of a new connection; `peer` is the address of the node, for errors."""

    async def _log_in(self, pipeline: Pipeline[Message]) -> None:
        """Authenticate on a new connection, before any request; by default there is no login."""
