"""The life of a sync client: open once made, closed once, its thread gone with it."""

from __future__ import annotations

import threading

import pytest

from penstock.clients.life import AsyncClient
from penstock.clients.sync_twin import SyncTwin
from penstock.clients.url import Address
from penstock.errors import Unreachable


class Recorder(AsyncClient):
    """An async client that notes what is asked of it."""

    def __init__(self, refusal: Exception | None = None) -> None:
        self.address = Address("flymq", "127.0.0.1", 1)
        self.calls: list[str] = []
        self._refusal = refusal

    async def open(self) -> None:
        self.calls.append("open")
        if self._refusal is not None:
            raise self._refusal

    async def close(self) -> None:
        self.calls.append("close")


def test_a_block_opens_and_closes_once() -> None:
    client = Recorder()
    with SyncTwin(client) as twin:
        assert twin.address == client.address
        assert client.calls == ["open"]
        twin.close()
    assert client.calls == ["open", "close"]


def test_a_client_that_cannot_open_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(Unreachable, match="nobody there"):
        SyncTwin(Recorder(Unreachable("nobody there")))
    assert set(threading.enumerate()) <= before
