"""The life of a sync client: open once made, closed once, its thread gone with it."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

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

    async def numbers(self) -> AsyncGenerator[int, None]:
        """Those of another generator, as every client reads."""
        async with aclosing(self._counted()) as numbers:
            async for number in numbers:
                yield number

    async def _counted(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(3):
                yield number
        finally:
            self.calls.append("end of numbers")


class Twin(SyncTwin[Recorder]):
    def numbers(self) -> Iterator[int]:
        return self._iterate(self._client.numbers())


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


def test_an_iteration_gives_everything_and_ends() -> None:
    client = Recorder()
    with Twin(client) as twin:
        assert list(twin.numbers()) == [0, 1, 2]
    assert client.calls == ["open", "end of numbers", "close"]


def test_an_iteration_that_is_left_half_way_ends_before_the_client(capfd: pytest.CaptureFixture[str]) -> None:
    client = Recorder()
    numbers: Iterator[int] | None = None
    with Twin(client) as twin:
        numbers = twin.numbers()  # kept, as the traceback of an exception would
        assert next(numbers) == 0
    assert client.calls == ["open", "end of numbers", "close"]
    assert capfd.readouterr().err == ""
