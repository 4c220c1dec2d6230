"""Subscribers that never read while others publish: the broker's memory stays bounded, and other readers notice nothing."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from pathlib import Path

import pytest

from penstock.clients.quic import QuicConnection
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.protocols.felix.codec.frames import encode_message
from penstock.protocols.felix.codec.messages import Subscribe
from penstock.testing import BrokerProcess
from tests.crash.quic_load import OPTIONS, quic_broker, url
from tests.crash.quic_peers import (
    BYSTANDER_TOPICS,
    KIB,
    MIB,
    Bystander,
    Memory,
    answer_pings,
    connect,
    is_sound,
    metrics,
)
from tests.protocols.fujin import requests

VALUE_BYTES = 64 * KIB
BATCH = 16
BATCHES_AT_ONCE = 4
LAG_RECORDS_MAX = 500
LAZY_FELIX, LAZY_FUJIN = 4, 4
SEND_BUFFER_BYTES = 1 * MIB
TAKEN_RECORDS_MAX = 16 * MIB // VALUE_BYTES
"""What fits between a broker and a client that does not read: the send buffer, and the windows of the stream."""
GROWTH_BYTES_MAX = 96 * MIB
"""Of eight that never read, each with a send buffer, and of what four batches in flight and the log's own buffers take."""
FIREHOSE = "firehose"
CONFIG = f"""
durability = "none"
[admin]
bind = "127.0.0.1:0"
[limits]
send_buffer_bytes_max = {SEND_BUFFER_BYTES}
"""


def firehose_broker(directory: Path, policy: str, idle_s_max: float = 600.0) -> BrokerProcess:
    return quic_broker(
        directory,
        BYSTANDER_TOPICS,
        top=CONFIG,
        felix=f'slow_subscriber = "{policy}"\nsubscriber_lag_records_max = {LAG_RECORDS_MAX}\nidle_s_max = {idle_s_max}',
        fujin=f"idle_s_max = {idle_s_max}",
        more=f'[[topics]]\nname = "{FIREHOSE}"\nretention_bytes = "64 MiB"\nsegment_bytes = "16 MiB"\n',
    )


async def lazy_felix(broker: BrokerProcess) -> QuicConnection:
    """Subscribes, and takes nothing that comes."""
    connection = await connect(broker, "felix")
    stream = connection.open_stream()
    await stream.write(encode_message(Subscribe(tenant_id="default", namespace="default", stream=FIREHOSE)), end=True)
    assert await stream.read()
    connection.pause_receiving()
    return connection


async def lazy_fujin(broker: BrokerProcess, *, auto_commit: bool) -> QuicConnection:
    """Connects a reader that is pushed to, and takes nothing that comes, but for pings: it is alive and busy elsewhere."""
    connection = await connect(broker, "fujin")
    answer_pings(connection)
    stream = connection.open_stream()
    await stream.write(requests.connect_reader(FIREHOSE.encode(), auto_commit=int(auto_commit)))
    assert (await stream.read())[:2] == b"\1\0"
    stream.pause_receiving()
    return connection


async def publish(broker: BrokerProcess, size_mib: int) -> None:
    values = [bytes([number]) * VALUE_BYTES for number in range(BATCH)]
    left = size_mib * MIB // (BATCH * VALUE_BYTES)
    async with AsyncFelixClient(url(broker, "felix"), options=OPTIONS) as client:

        async def batches() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await client.send_many(FIREHOSE, values)

        await asyncio.gather(*(batches() for _ in range(BATCHES_AT_ONCE)))


def check_policy(policy: str, before: dict[str, float], after: dict[str, float], records: int) -> None:
    """What became of those who did not read, as monitoring has it."""
    grew = {series: value - before.get(series, 0) for series, value in after.items()}
    dropped = grew['penstock_push_events_total{listener="felix",result="dropped"}']
    closed = grew['penstock_push_subscribers_closed_total{listener="felix"}']
    subscribers = after['penstock_push_subscribers{listener="felix"}']
    if policy == "drop":
        assert LAZY_FELIX * (records - LAG_RECORDS_MAX - TAKEN_RECORDS_MAX) <= dropped <= LAZY_FELIX * records
        assert (closed, subscribers) == (0, 1 + LAZY_FELIX)
    elif policy == "close":
        assert dropped > LAZY_FELIX * LAG_RECORDS_MAX
        assert (closed, subscribers) == (LAZY_FELIX, 1)
    else:
        assert (dropped, closed, subscribers) == (0, 0, 1 + LAZY_FELIX)
    for listener in ("fujin", "felix"):
        assert grew[f'penstock_session_errors_total{{listener="{listener}"}}'] == 0
        assert grew[f'penstock_internal_errors_total{{listener="{listener}"}}'] == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("policy", "size_mib"), [("drop", 1024), ("close", 256), ("pause", 256)])
async def test_readers_that_never_read_cost_bounded_memory_and_disturb_nobody(
    tmp_path: Path, policy: str, size_mib: int
) -> None:
    with firehose_broker(tmp_path, policy) as broker:
        await publish(broker, 32)  # so that what a broker needs anyway is there before it is measured
        async with Bystander(broker).working():
            lazy = [await lazy_felix(broker) for _ in range(LAZY_FELIX)]
            lazy += [await lazy_fujin(broker, auto_commit=bool(number % 2)) for number in range(LAZY_FUJIN)]
            memory, before = Memory(broker), await metrics(broker)
            await publish(broker, size_mib)
            grown = memory.peak_growth_bytes
            assert grown < GROWTH_BYTES_MAX, f"{grown / MIB:.0f} MiB for readers that read nothing"
            check_policy(policy, before, await metrics(broker), size_mib * MIB // VALUE_BYTES)
            if policy == "drop":
                await woken(broker, lazy[0])
            for connection in lazy:
                connection.close()
        assert is_sound(broker)


async def woken(broker: BrokerProcess, connection: QuicConnection) -> None:
    """One that has slept long enough gets what comes from now on."""
    events = await connection.accept_stream()
    connection.resume_receiving()
    async with AsyncFelixClient(url(broker, "felix"), options=OPTIONS) as client, asyncio.timeout(30):
        await client.send(FIREHOSE, b"good morning")
        tail = b""
        while b64encode(b"good morning") not in tail:
            data = await events.read()
            assert data, "the subscription ended"
            tail = tail[-100:] + data


@pytest.mark.timeout(120)
async def test_a_peer_that_leaves_everything_unread_for_too_long_is_cut_off(tmp_path: Path) -> None:
    with firehose_broker(tmp_path, "pause", idle_s_max=2.0) as broker:
        lazy = [await lazy_felix(broker), await lazy_fujin(broker, auto_commit=False)]
        lazy += [await lazy_fujin(broker, auto_commit=True)]
        await publish(broker, 64)
        for connection in lazy:
            await asyncio.wait_for(connection.wait_closed(), 60)
        figures = await metrics(broker)
        assert figures['penstock_connections_cut_total{listener="felix",reason="unread"}'] == 1
        assert figures['penstock_connections_cut_total{listener="fujin",reason="unread"}'] == 2
        assert figures['penstock_push_subscribers{listener="felix"}'] == 0
        async with Bystander(broker).working():
            pass
        assert is_sound(broker)
