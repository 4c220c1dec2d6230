"""A client of a protocol over TCP."""

from __future__ import annotations

import ssl
from abc import abstractmethod
from random import Random
from typing import Generic

from penstock.clients.life import AsyncClient
from penstock.clients.nodes import PASSED_OVER
from penstock.clients.options import ClientOptions
from penstock.clients.pipeline import Exchange, Message, Pipeline
from penstock.clients.requests import OnLost, Requests
from penstock.clients.retry import Sleep
from penstock.clients.url import Address, tls_for
from penstock.clock import Clock
from penstock.errors import PenstockError


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
            self._nodes,
            tls_for(address, tls),
            self._new_pipeline,
            self._log_in,
            self._options,
            self._attempts,
            self._new_return,
        )

    async def open(self) -> None:
        await self._requests.open()

    async def close(self) -> None:
        await self._requests.close()

    @abstractmethod
    def _new_pipeline(self, peer: str, on_lost: OnLost[Message]) -> Pipeline[Message]:
        """Return the protocol of a new connection; `peer` is the address of the node, for errors."""

    @abstractmethod
    async def _log_in(self, pipeline: Pipeline[Message]) -> None:
        """Authenticate on a new connection, before any request, or `_greet` where there is no login."""

    async def _greet(self, pipeline: Pipeline[Message], request: Exchange[Message]) -> None:
        """Where there are several nodes, see that one answers at all before it is given work: a request that waits for a node that accepts
        connections and never answers would wait for long, and might not be sent again. What it answers does not matter."""
        if len(self._nodes) == 1:
            return
        pipeline.submit(request)
        try:
            await request.finished
        except PenstockError as error:
            if request.awaited or isinstance(error, PASSED_OVER):
                raise
