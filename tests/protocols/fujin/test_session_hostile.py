"""Peers that mean no good, over real QUIC: the stream at fault ends, and nobody else notices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock.clients.quic import QuicConnection, connect_quic
from penstock.errors import ConnectionLost
from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.testing import RunningBroker
from tests.protocols.fujin.requests import (
    CONNECT_WRITER,
    DISCONNECT,
    ack,
    begin,
    connect_reader,
    fetch,
    u32,
    write,
    write_table,
    written,
)

PATIENCE_S = 30


@pytest.fixture(scope="module")
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(listeners={"fujin": {"ping_interval_s": 60, "fetch_wait_s": 0.1}}) as broker:
        yield broker


@pytest.fixture
async def connection(broker: RunningBroker) -> AsyncIterator[QuicConnection]:
    host, _, port = broker.addresses["fujin"].rpartition(":")
    async with await connect_quic(host, int(port), alpn="fujin", ca_file=broker.certificate) as connection:
        yield connection


@pytest.fixture
async def bystander(broker: RunningBroker) -> AsyncIterator[AsyncFujinClient]:
    """Somebody else, who must be served as ever."""
    async with AsyncFujinClient(broker.fujin_url) as client:
        await client.send("bystander", b"before")
        yield client
        await client.send("bystander", b"after")


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0)


LIES = {
    "a body of four gigabytes": CONNECT_WRITER + b"\3" + u32(1) + u32(1) + b"a" + b"\xff\xff\xff\xff" + bytes(9000),
    "a topic of four gigabytes": CONNECT_WRITER + b"\3" + u32(1) + b"\xff\xff\xff\xff" + bytes(9000),
    "a writer id of four gigabytes": b"\1\xff\xff\xff\xff" + bytes(9000),
    "sixty thousand headers": CONNECT_WRITER
    + b"\3"
    + u32(1)
    + u32(1)
    + b"a\0\0\0\0\0\1x"
    + b"\3"
    + u32(2)
    + u32(1)
    + b"a\xff\xfe"
    + bytes(9000),
    "four billion ids": connect_reader(b"a") + b"\x08" + u32(1) + b"\xff\xff\xff\xff" + bytes(9000),
    "an id of four gigabytes": connect_reader(b"a") + b"\x08" + u32(1) + u32(1) + b"\xff\xff\xff\xff" + bytes(9000),
    "a reader's topic of four gigabytes": b"\2\1\1\xff\xff\xff\xff" + bytes(9000),
    "no command at all": bytes(range(255, 0, -1)),
    "a second connect": CONNECT_WRITER * 2,
    "pings": b"\x0b" * 100,
}


@pytest.mark.parametrize("lie", LIES)
async def test_lies_end_at_most_their_stream(
    broker: RunningBroker, connection: QuicConnection, bystander: AsyncFujinClient, lie: str
) -> None:
    stream = connection.open_stream()
    stream.send(LIES[lie], end=True)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while await stream.read():
                pass
    except ConnectionLost:
        pass
    good = connection.open_stream()
    make = write_table if "headers" in lie else write
    good.send(CONNECT_WRITER + make(7, b"good", b"x"))
    assert await asyncio.wait_for(good.read(), PATIENCE_S) == written(7)
    stats = broker.server.listeners["fujin"].stats
    assert (stats.session_errors, stats.protocol_errors) == (0, 0)


async def test_single_bytes(connection: QuicConnection, bystander: AsyncFujinClient) -> None:
    stream = connection.open_stream()
    for byte in CONNECT_WRITER + write(1, b"orders", b"one") + begin(2) + write(3, b"orders", b"two") + DISCONNECT:
        stream.send(bytes((byte,)))
        await asyncio.sleep(0)
    received = b""
    async with asyncio.timeout(PATIENCE_S):
        while data := await stream.read():
            received += data
    assert received == written(1) + b"\3\0\0\0\2\0" + written(3) + DISCONNECT


@pytest.mark.parametrize("how", ["reset", "stop", "both"])
@pytest.mark.parametrize("role", ["writer", "push", "pull", "fresh"])
async def test_streams_that_are_cut_off_leave_nothing_behind(
    broker: RunningBroker, connection: QuicConnection, bystander: AsyncFujinClient, role: str, how: str
) -> None:
    beginnings = {
        "writer": CONNECT_WRITER + begin(1) + write(2, b"cut", b"x"),
        "push": connect_reader(b"cut"),
        "pull": connect_reader(b"cut", kind=2) + fetch(1, 1) + ack(2, [b"?"]),
        "fresh": b"\1\0\0",
    }
    stats: Any = broker.server.listeners["fujin"].stats
    transactions = broker.server.broker.transactions
    await bystander.send("bystander", b"x")
    streams_before = stats.streams_open
    streams = [connection.open_stream() for _ in range(20)]
    for stream in streams:
        stream.send(beginnings[role])
    if role != "fresh":
        for stream in streams:
            assert await asyncio.wait_for(stream.read(), PATIENCE_S)
    for stream in streams:
        if how != "stop":
            stream.reset(7)
        if how != "reset":
            stream.stop_receiving(7)
            stream.send(b"\1") if how == "stop" else None
    await until(lambda: stats.streams_open <= streams_before)
    await until(lambda: transactions.stats.open == 0)
    assert connection.loss is None


async def test_a_connection_that_vanishes_leaves_nothing_behind(broker: RunningBroker) -> None:
    host, _, port = broker.addresses["fujin"].rpartition(":")
    listener, inner = broker.server.listeners["fujin"], broker.server.broker
    async with await connect_quic(host, int(port), alpn="fujin", ca_file=broker.certificate) as connection:
        for data in (
            CONNECT_WRITER + begin(1) + write(2, b"gone", b"x"),
            connect_reader(b"gone"),
            connect_reader(b"gone", kind=2) + fetch(1, 1),
        ):
            stream = connection.open_stream()
            stream.send(data)
            assert await asyncio.wait_for(stream.read(), PATIENCE_S)
    await until(lambda: listener.stats.connections_open == 0)
    await until(lambda: inner.transactions.stats.open == 0)
    subscription = inner.subscriptions._by_name["gone", "fujin"]
    await until(lambda: not subscription.watched)


async def test_a_reader_that_never_reads_costs_bounded_memory_and_hurts_nobody(
    broker: RunningBroker, connection: QuicConnection, bystander: AsyncFujinClient
) -> None:
    stream = connection.open_stream()
    stream.send(connect_reader(b"flood", auto_commit=1))
    assert await asyncio.wait_for(stream.read(), PATIENCE_S) == b"\1\0"
    stream.pause_receiving()
    value = bytes(60_000)
    for _ in range(20):
        await bystander.send_many("flood", [value] * 100)
    subscription = broker.server.broker.subscriptions._by_name["flood", "fujin"]
    await until(lambda: subscription.in_flight > 0)
    in_flight_bytes = subscription.in_flight * len(value)
    assert in_flight_bytes < 20 << 20, "of 120 MB"


async def test_no_other_protocol_is_agreed_on(broker: RunningBroker) -> None:
    host, _, port = broker.addresses["fujin"].rpartition(":")
    for alpn in (None, "h3", "fujin/1"):
        with pytest.raises(Exception, match=r".+"):
            await connect_quic(host, int(port), alpn=alpn, ca_file=broker.certificate, timeout_s=PATIENCE_S)
