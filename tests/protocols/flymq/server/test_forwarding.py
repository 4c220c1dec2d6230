"""Requests that are passed on to a node that does not answer them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.errors import OutcomeUnknown
from penstock.protocols.flymq.server.forwarding import ASKED_MAX, LeaderSession, Streams


class Leader:
    """A node that takes a request and closes the connection."""

    def __init__(self) -> None:
        self.asked = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._ask, "127.0.0.1", 0)

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        self.asked += 1
        writer.close()

    def leader(self) -> str:
        return "one"

    async def dial(self, principal: Principal, native: bool | None) -> Streams:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()
        return await asyncio.open_connection(host, port)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    leader = Leader()
    await leader.start()
    yield leader
    await leader.stop()


@pytest.mark.parametrize(("repeatable", "asked"), [(True, ASKED_MAX), (False, 1)])
async def test_a_request_that_no_leader_survives_is_asked_a_few_times_at_most(
    leader: Leader, repeatable: bool, asked: int
) -> None:
    with pytest.raises(OutcomeUnknown, match="the node that leads was lost before it answered"):
        await LeaderSession(leader).ask(ANONYMOUS, None, b"ping", 1, repeatable=repeatable)
    assert leader.asked == asked
