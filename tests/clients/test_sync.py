"""Sync clients: connected on creation, closed once together with their thread; shared by threads; consumers read ahead."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from contextlib import aclosing
from typing import cast

import pytest

import penstock
from penstock.clients.life import AsyncClient
from penstock.clients.loop_thread import LoopThread
from penstock.clients.sync import SyncClient, SyncConsumer
from penstock.clients.url import Address
from penstock.errors import InvalidRequest, Unreachable
from penstock.testing import RunningBroker


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


class Numbers(SyncClient[Recorder]):
    def numbers(self) -> Iterator[int]:
        return self._iterate(self._async.numbers())


def test_a_block_opens_and_closes_once() -> None:
    client = Recorder()
    with SyncClient(client) as sync:
        assert sync.address == client.address
        assert client.calls == ["open"]
        sync.close()
    assert client.calls == ["open", "close"]


def test_a_client_that_cannot_open_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(Unreachable, match="nobody there"):
        SyncClient(Recorder(Unreachable("nobody there")))
    assert set(threading.enumerate()) <= before


def test_an_iteration_gives_everything_and_ends() -> None:
    client = Recorder()
    with Numbers(client) as sync:
        assert list(sync.numbers()) == [0, 1, 2]
    assert client.calls == ["open", "end of numbers", "close"]


def test_an_iteration_that_is_left_half_way_ends_before_the_client(capfd: pytest.CaptureFixture[str]) -> None:
    client = Recorder()
    numbers: Iterator[int] | None = None
    with Numbers(client) as sync:
        numbers = sync.numbers()  # kept, as the traceback of an exception would
        assert next(numbers) == 0
    assert client.calls == ["open", "end of numbers", "close"]
    assert capfd.readouterr().err == ""


def test_an_iteration_that_is_collected_in_the_loop_thread_ends_too() -> None:
    client = Recorder()

    async def collect(numbers: Generator[int, None, None]) -> None:
        numbers.close()

    with Numbers(client) as sync:
        numbers = cast("Generator[int, None, None]", sync.numbers())
        assert next(numbers) == 0
        sync._thread.run(collect(numbers))
    assert client.calls == ["open", "end of numbers", "close"]


class Pushed:
    """A consumer to which numbers are pushed, a few at a time, until there are no more."""

    def __init__(self, batches: list[list[int]]) -> None:
        self._batches = deque(batches)
        self.is_closed = False

    async def __aenter__(self) -> object:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_closed = True

    async def next_batch(self, max_records: int, timeout_s: float | None = None) -> list[int]:
        await asyncio.sleep(0)
        return self._batches.popleft()[:max_records] if self._batches else []


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("a client")
    yield thread
    thread.close()


def test_a_loop_that_is_left_early_keeps_what_was_read_ahead(thread: LoopThread) -> None:
    pushed = Pushed([[0, 1, 2, 3], [4]])
    with SyncConsumer[Pushed, int](thread, pushed) as consumer:
        for number in consumer:
            assert number == 0
            break
        assert consumer.next() == 1
        assert consumer.next_batch(1) == [2]
        assert consumer.next_batch() == [3]
        assert list(consumer) == [4]
        assert consumer.next() is None
        assert consumer.next_batch() == []
    assert pushed.is_closed


class TakenByOthers(deque[int]):
    """What was read ahead, where other threads are faster."""

    def extend(self, items: Iterable[int]) -> None:
        pass


def test_a_thread_that_waited_for_a_batch_gets_an_item_of_it_however_fast_others_are(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = SyncConsumer[Pushed, int](thread, Pushed([[0, 1], [2]]))
    monkeypatch.setattr(consumer, "_ahead", TakenByOthers())
    assert list(consumer) == [0, 2]


def test_a_consumer_outlives_the_thread_of_its_client(thread: LoopThread) -> None:
    with SyncConsumer[Pushed, int](thread, Pushed([[0, 1]])) as consumer:
        assert consumer.next() == 0
        thread.close()
        assert consumer.next() == 1
        with pytest.raises(InvalidRequest, match="closed"):
            consumer.next()


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(topics=[{"name": "orders"}], durability="none") as broker:
        yield broker


URLS = ("url", "blipmq_url", "rustlog_url", "fujin_url", "felix_url")


@pytest.mark.parametrize("url", URLS)
def test_threads_share_a_client_of_every_protocol(broker: RunningBroker, url: str) -> None:
    def end() -> int:
        return admin.describe_topic("orders").partitions[0].next_offset

    admin = broker.connect()
    before = end()
    with penstock.connect(getattr(broker, url)) as client:
        threads = [threading.Thread(target=client.send_many, args=("orders", [b"x"] * 10)) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert end() == before + 40
    client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        client.send("orders", b"x")


@pytest.mark.parametrize("url", URLS)
async def test_a_client_of_every_protocol_works_inside_a_running_loop(broker: RunningBroker, url: str) -> None:
    with penstock.connect(getattr(broker, url)) as client:
        client.send("orders", b"x")
