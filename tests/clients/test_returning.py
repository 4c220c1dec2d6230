"""A client that had to leave its first node is back there once it serves again, and no request notices. The brokers are real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.clients.nodes import Nodes
from penstock.clients.returning import QUIET_S, Return
from penstock.clients.url import Address, parse_url
from penstock.clock import SystemClock
from penstock.errors import ConnectionLost, Unreachable
from penstock.protocols.blipmq.client import AsyncBlipMQClient
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.protocols.flymq.client.client import AsyncFlyMQClient
from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.protocols.rustlog.client.client import AsyncRustLogClient
from penstock.testing import RunningBroker
from tests.clients.test_nodes import PROTOCOLS, url_of, values_in

CLIENTS: dict[str, Callable[..., Any]] = {
    "flymq": AsyncFlyMQClient,
    "blipmq": AsyncBlipMQClient,
    "rustlog": AsyncRustLogClient,
    "fujin": AsyncFujinClient,
    "felix": AsyncFelixClient,
}
TOPICS = [{"name": "orders"}, {"name": "flushed", "durability": "fsync"}]
ROUNDS = 40
"""Pauses in which a client that may return would have done so."""


class Pauses:
    """The pauses that a client makes: none ends while it sleeps, and then all do at once."""

    def __init__(self) -> None:
        self.made_s: list[float] = []
        self.awake = asyncio.Event()

    async def __call__(self, pause_s: float) -> None:
        self.made_s.append(pause_s)
        await self.awake.wait()
        await asyncio.sleep(0)

    async def some(self) -> None:
        least = len(self.made_s) + ROUNDS
        while len(self.made_s) < least:
            await asyncio.sleep(0)


@pytest.fixture
def first() -> Iterator[RunningBroker]:
    with RunningBroker(clock=SystemClock(), topics=TOPICS, durability="none") as broker:
        yield broker


@pytest.fixture(scope="module")
def second() -> Iterator[RunningBroker]:
    with RunningBroker(clock=SystemClock(), topics=TOPICS, durability="none") as broker:
        yield broker


@pytest.fixture
def trusted(first: RunningBroker, second: RunningBroker, tmp_path: Path) -> Path:
    file = tmp_path / "both.pem"
    file.write_bytes(first.certificate.read_bytes() + second.certificate.read_bytes())
    return file


def connections(broker: RunningBroker, protocol: str) -> int:
    return broker.server.listeners[protocol].stats.connections_open


@asynccontextmanager
async def client_that_had_to_leave(
    protocol: str, first: RunningBroker, second: RunningBroker, trusted: Path, pauses: Pauses
) -> Any:
    """A client that sleeps on the second node while the first is there again."""
    hosts = [first.addresses[protocol], second.addresses[protocol]]
    async with CLIENTS[protocol](url_of(protocol, hosts, trusted), sleep=pauses) as client:
        await client.send("orders", b"one")
        await asyncio.to_thread(first.stop)
        try:
            await client.send("orders", b"two")
        except ConnectionLost:
            await client.send("orders", b"two")
        await asyncio.to_thread(first.start)
        assert connections(second, protocol) == 1
        yield client


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_client_is_back_on_its_first_node_in_a_quiet_moment(
    first: RunningBroker, second: RunningBroker, trusted: Path, protocol: str
) -> None:
    pauses = Pauses()
    async with client_that_had_to_leave(protocol, first, second, trusted, pauses) as client:
        pauses.awake.set()
        while connections(second, protocol) or not connections(first, protocol):
            await asyncio.sleep(0)
        await client.send("orders", f"{protocol} is back".encode())
        assert connections(first, protocol) == 1
        assert f"{protocol} is back".encode() in await asyncio.to_thread(values_in, first)
        made = len(pauses.made_s)
        await client.send("orders", b"and stays")
        assert len(pauses.made_s) == made, "it does not try again"
    assert pauses.made_s[:2] == [pytest.approx(60, rel=0.5), QUIET_S]


async def test_a_member_of_a_group_by_its_connection_stays(
    first: RunningBroker, second: RunningBroker, trusted: Path
) -> None:
    pauses = Pauses()
    async with client_that_had_to_leave("flymq", first, second, trusted, pauses) as client:
        await client.subscribe("orders", "billing", 0)
        pauses.awake.set()
        await pauses.some()
        assert connections(second, "flymq") == 1
        await asyncio.to_thread(second.restart)
        await client.send("orders", b"at the first, which is the next")
        assert connections(first, "flymq") == 1


async def test_a_reader_over_fujin_stays(first: RunningBroker, second: RunningBroker, trusted: Path) -> None:
    pauses = Pauses()
    async with client_that_had_to_leave("fujin", first, second, trusted, pauses) as client:
        async with client.reader("orders") as reader:
            pauses.awake.set()
            await pauses.some()
            assert connections(second, "fujin") == 1
            await client.send("orders", b"pushed")
            while (message := await reader.next()).value != b"pushed":
                await reader.ack(message)
            await reader.ack(message)
        while connections(second, "fujin"):
            await asyncio.sleep(0)


async def test_a_transaction_over_fujin_stays(first: RunningBroker, second: RunningBroker, trusted: Path) -> None:
    pauses = Pauses()
    async with client_that_had_to_leave("fujin", first, second, trusted, pauses) as client:
        async with client.transaction() as transaction:
            await transaction.send("orders", b"part of a whole")
            pauses.awake.set()
            await pauses.some()
            assert connections(second, "fujin") == 1
        assert b"part of a whole" in await asyncio.to_thread(values_in, second)


async def test_what_felix_was_sent_without_an_answer_is_not_left_behind(
    first: RunningBroker, second: RunningBroker, trusted: Path
) -> None:
    pauses = Pauses()
    async with client_that_had_to_leave("felix", first, second, trusted, pauses) as client:
        await client.send("orders", b"unanswered", ack=False)
        pauses.awake.set()
        await pauses.some()
        assert connections(second, "felix") == 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_request_that_nobody_waits_for_any_more_is_not_left_behind(
    first: RunningBroker, second: RunningBroker, trusted: Path, protocol: str
) -> None:
    """It might be stored after what the client sends to its first node next."""
    pauses = Pauses()
    async with client_that_had_to_leave(protocol, first, second, trusted, pauses) as client:
        with second.disk.fsync_held() as flushing:
            sending = asyncio.create_task(client.send("flushed", b"given up"))
            await asyncio.to_thread(flushing.wait)
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
            pauses.awake.set()
            await pauses.some()
            assert connections(second, protocol) == 1
        while connections(second, protocol):
            await asyncio.sleep(0)


async def test_a_client_that_is_used_while_it_connects_stays(second: RunningBroker) -> None:
    """The first node lets the new connection wait for its answer, and meanwhile a request is carried out by the second."""
    pauses = Pauses()
    waiting, may_answer, given_up = asyncio.Event(), asyncio.Event(), asyncio.Event()
    there: list[asyncio.StreamWriter] = []

    async def first_node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.append(writer)
        if len(there) == 1:  # down, at first
            writer.close()
            return
        question = await reader.read(100)
        waiting.set()
        await may_answer.wait()
        at_second = await asyncio.open_connection(*second.address.split(":"))
        at_second[1].write(question)
        writer.write(await at_second[0].read(100))
        at_second[1].close()
        if not await reader.read(100):
            given_up.set()
        writer.close()

    async with await asyncio.start_server(first_node, "127.0.0.1", 0) as server:
        url = f"flymq://127.0.0.1:{server.sockets[0].getsockname()[1]},{second.address}?hosts=in-order"
        async with AsyncFlyMQClient(url, sleep=pauses) as client:
            pauses.awake.set()
            await waiting.wait()
            stored = await client.send("orders", b"meanwhile")
            pauses.awake.clear()
            may_answer.set()
            await given_up.wait()
            assert (await client.fetch("orders", stored.partition, stored.offset)).records[0].value == b"meanwhile"


class Uses:
    """What a client has done, and where it was brought."""

    def __init__(self, hosts: str = "a,b") -> None:
        self.nodes = Nodes(parse_url(f"flymq://{hosts}?hosts=in-order", port=1), Random(1))
        self.count: int | None = 0
        self.failures: list[Exception] = []
        self.moved: list[str] = []
        self.pauses_s: list[float] = []
        self.is_used = False

    def returning(self, after_s: float = 60.0) -> Return:
        return Return(
            self.nodes, after_s=after_s, random=Random(1), sleep=self.sleep, uses=lambda: self.count, move=self.move
        )

    async def sleep(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)
        await asyncio.sleep(0)
        if self.is_used and self.count is not None:
            self.count += 1

    async def move(self, node: Address) -> bool:
        self.moved.append(node.netloc)
        if self.failures:
            raise self.failures.pop()
        return True


def second_of(nodes: Nodes) -> Address:
    _, node = nodes.in_turn()
    return node


async def turns() -> None:
    for _ in range(ROUNDS):
        await asyncio.sleep(0)


async def test_a_node_that_does_not_serve_yet_is_tried_again_after_a_jittered_while() -> None:
    uses = Uses()
    uses.failures = [Unreachable("no"), ConnectionRefusedError(), TimeoutError()]
    uses.returning().connected(second_of(uses.nodes))
    await turns()
    assert uses.moved == ["a:1"] * 4
    whiles = [pause for pause in uses.pauses_s if pause != QUIET_S]
    assert len(set(whiles)) == 4
    assert all(30 <= each < 90 for each in whiles)
    assert next(uses.nodes.in_turn()).netloc == "a:1", "where it is now"


@pytest.mark.parametrize("count", [None, 1])
async def test_a_client_that_is_never_quiet_stays(count: int | None) -> None:
    uses = Uses()
    uses.count, uses.is_used = count, True
    uses.returning().connected(second_of(uses.nodes))
    await turns()
    assert uses.moved == []
    uses.count, uses.is_used = 1, False
    await turns()
    assert uses.moved == ["a:1"]


async def test_a_client_stays_that_is_on_its_first_node_or_is_told_to() -> None:
    uses = Uses()
    uses.returning().connected(uses.nodes.first)
    uses.returning(after_s=0.0).connected(second_of(uses.nodes))
    Uses("a").returning().connected(uses.nodes.first)
    there_again = uses.returning()
    there_again.connected(second_of(uses.nodes))
    there_again.connected(uses.nodes.first)
    await turns()
    assert uses.moved == []
