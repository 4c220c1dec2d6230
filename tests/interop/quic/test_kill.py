"""kill -9 under the deployed Go client's conversation over real quic-go, which has connection ids of zero length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.testing import BrokerProcess
from tests.crash.quic_load import quic_broker, values_of
from tests.interop.quic.go_peer import GoPeer, deployed_over, go_peer
from tests.protocols.fujin.deployed import DeployedClient, DeployedConsumer, DeployedSubscriber

pytestmark = pytest.mark.timeout(120)

MESSAGES = 2_000
IN_FLIGHT = 200
FETCHED_MAX = 500
PUSHED, PULLED, TRANSACTED = b"pushed", b"pulled", b"transacted"
KILLED = -9


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    topics = {topic.decode(): 1 for topic in (PUSHED, PULLED, TRANSACTED)}
    broker = quic_broker(tmp_path, topics, fujin='empty_fetch = "error"\nfetch_wait_s = 1.0')
    try:
        yield broker.start()
    finally:
        broker.close()


@asynccontextmanager
async def connected(quic_go: Path, broker: BrokerProcess) -> AsyncIterator[tuple[GoPeer, DeployedClient]]:
    async with go_peer(quic_go, broker.addresses["fujin"], connection_id_bytes=0) as peer:
        assert peer.seen("started")[0]["source_cid_bytes"] == 0
        yield peer, deployed_over(peer)


async def write(client: DeployedClient, topic: bytes, values: list[bytes]) -> None:
    writer = await client.writer()
    for start in range(0, len(values), IN_FLIGHT):
        await asyncio.gather(*(writer.write(topic, value) for value in values[start : start + IN_FLIGHT]))
    await writer.close()


async def transact(client: DeployedClient, committed: list[bytes], rolled_back: list[bytes]) -> None:
    writer = await client.writer(b"transactional")
    for values, end in ((committed, writer.commit), (rolled_back, writer.rollback)):
        await writer.begin()
        for value in values:
            await writer.write(TRANSACTED, value)
        await end()
    await writer.close()


async def take(reader: DeployedSubscriber | DeployedConsumer, count: int) -> list[bytes]:
    """Read values, by push or by pull, and acknowledge each."""
    values: list[bytes] = []
    while len(values) < count:
        if isinstance(reader, DeployedSubscriber):
            messages = [await reader.next()]
        else:
            messages = await reader.fetch(min(FETCHED_MAX, count - len(values)))
        ids = [message_id for message_id, _ in messages if message_id is not None]
        assert await reader.ack(*ids) == [(message_id, None) for message_id in ids]
        values += [value for _, value in messages]
    return values


async def test_a_go_client_without_connection_ids_loses_nothing_in_a_kill(quic_go: Path, broker: BrokerProcess) -> None:
    values = [b"value %d" % number for number in range(MESSAGES)]
    half = MESSAGES // 2
    async with connected(quic_go, broker) as (_, client):
        subscriber = await client.subscriber(PUSHED, auto_commit=False)
        consumer = await client.consumer(PULLED, auto_commit=False)
        await asyncio.gather(write(client, PUSHED, values), write(client, PULLED, values))
        await transact(client, [b"committed 1", b"committed 2"], [b"rolled back"])
        pushed, pulled = await asyncio.gather(take(subscriber, half), take(consumer, half))
        assert pushed == pulled == values[:half]
        open_transaction = await client.writer(b"open")
        await open_transaction.begin()
        await open_transaction.write(TRANSACTED, b"never committed")
        await asyncio.to_thread(broker.kill9)
        assert broker.exit_code == KILLED
        await asyncio.to_thread(broker.start)

    async with connected(quic_go, broker) as (_, client):
        subscriber = await client.subscriber(PUSHED, auto_commit=False)
        consumer = await client.consumer(PULLED, auto_commit=False)
        more = [b"value %d" % number for number in range(MESSAGES, MESSAGES + 500)]
        await asyncio.gather(write(client, PUSHED, more), write(client, PULLED, more))
        await transact(client, [b"committed 3"], [b"rolled back again"])
        left = MESSAGES - half + len(more)
        pushed, pulled = await asyncio.gather(take(subscriber, left), take(consumer, left))
        assert pushed == pulled == values[half:] + more
        await subscriber.close()
        await consumer.close()

    stored = dict(values_of(broker, [PUSHED.decode(), PULLED.decode(), TRANSACTED.decode()]))
    assert stored["pushed"] == stored["pulled"] == values + more
    assert stored["transacted"] == [b"committed 1", b"committed 2", b"committed 3"]
