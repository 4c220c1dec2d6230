"""A power cut takes the tail of a topic without `fsync`: readers of every protocol get the records that are written there next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.clients.quic import connect_quic
from penstock.errors import PenstockError
from penstock.protocols.blipmq.sync import BlipMQClient
from penstock.protocols.felix.codec.frames import FrameDecoder, Reply, decode_reply, encode_message
from penstock.protocols.felix.codec.messages import (
    CacheOk,
    Error,
    GroupAck,
    GroupNack,
    GroupPoll,
    GroupRecords,
    Message,
)
from penstock.protocols.fujin.sync import FujinClient
from penstock.testing import RunningBroker
from tests.log.embedded.storage import cut_log

LOST = [b"d", b"e"]
NEW = [b"x", b"y", b"z"]
WAIT_S_MAX = 20.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with RunningBroker(tmp_path / "data", durability="none", topics=[{"name": "orders"}]) as broker:
        send_one_by_one(broker, [b"a", b"b", b"c", *LOST])
        yield broker


def send_one_by_one(broker: RunningBroker, values: Sequence[bytes]) -> None:
    """A block each, so that the log can be cut between any two."""
    with penstock.connect(broker.url) as client:
        for value in values:
            client.send("orders", value)


def cut_power(broker: RunningBroker) -> None:
    """The power goes and comes back; the last two records are lost, and three others take their offsets and the next."""
    broker.kill()
    cut_log(broker.data_dir, "orders", 3)
    broker.start()
    send_one_by_one(broker, NEW)


# -- consumer groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["flymq", "rustlog"])
def test_a_consumer_group_reads_every_record_that_takes_the_offset_of_a_lost_one(
    broker: RunningBroker, protocol: str
) -> None:
    with penstock.connect(url(broker, protocol)) as client:
        assert len(list(client.records("orders", group="g"))) == 5
    cut_power(broker)
    with penstock.connect(url(broker, protocol)) as client:
        assert client.committed("orders", "g", 0) == 3
        assert [record.value for record in client.records("orders", group="g")] == NEW
        assert list(client.records("orders", group="g")) == []


@pytest.mark.parametrize("protocol", ["flymq", "rustlog"])
def test_a_consumer_that_lived_through_the_power_cut_cannot_commit_beyond_the_end(
    broker: RunningBroker, protocol: str
) -> None:
    with penstock.connect(url(broker, protocol)) as client:
        client.commit("orders", "g", 0, 2)
        cut_power(broker)
        with pytest.raises(PenstockError, match=r"9 is beyond the end of orders-0, which is 6"):
            client.commit("orders", "g", 0, 9)
        assert client.committed("orders", "g", 0) == 2


@pytest.mark.parametrize("protocol", ["flymq", "rustlog", "rustlog+json"])
def test_a_consumer_that_follows_a_topic_through_the_power_cut_continues_at_the_cut(
    broker: RunningBroker, protocol: str
) -> None:
    with penstock.connect(url(broker, protocol)) as client:
        following = client.records("orders", follow=True)
        assert [next(following).value for _ in range(5)] == [b"a", b"b", b"c", *LOST]
        broker.kill()
        cut_log(broker.data_dir, "orders", 3)
        broker.start()
        send_one_by_one(broker, [b"x"])
        assert next(following).value == b"x"


@pytest.mark.parametrize("protocol", ["flymq", "rustlog", "rustlog+json"])
def test_a_fetch_beyond_the_end_names_the_cut(broker: RunningBroker, protocol: str) -> None:
    with penstock.connect(url(broker, protocol)) as client:
        cut_power(broker)
        assert client.fetch("orders", 0, 9).next_offset == 3
        assert client.fetch("orders", 0, 6).next_offset == 6


def url(broker: RunningBroker, protocol: str) -> str:
    return f"{protocol}://{broker.addresses[protocol.removesuffix('+json')]}"


# -- subscriptions ---------------------------------------------------------------------------------------------------------


def test_a_blipmq_subscription_delivers_them_and_old_tags_do_not_settle_them(broker: RunningBroker) -> None:
    with BlipMQClient(broker.blipmq_url) as client:
        subscription = client.subscribe("orders")
    send_one_by_one(broker, [b"f", b"g"])
    with BlipMQClient(broker.blipmq_url) as client:
        old = client.poll(subscription, 10)
        assert [message.value for message in old] == [b"f", b"g"]
        client.ack(subscription, *(message.tag for message in old[:1] if message.tag))
    broker.kill()
    cut_log(broker.data_dir, "orders", 3)
    broker.start()
    send_one_by_one(broker, [*NEW, b"5", b"6"])
    with BlipMQClient(broker.blipmq_url) as client:
        new = client.poll(subscription, 10)
        assert [message.value for message in new] == [*NEW, b"5", b"6"]
        for message in old:
            assert message.tag
            with pytest.raises(PenstockError, match="delivery"):
                client.ack(subscription, message.tag)
        client.ack(subscription, *(message.tag for message in new if message.tag))
        assert client.poll(subscription, 10) == []


def test_fujin_readers_get_them_and_old_ids_do_not_settle_them(tmp_path: Path) -> None:
    listener = {"start": "earliest"}
    with RunningBroker(
        tmp_path / "data", durability="none", topics=[{"name": "orders"}], listeners={"fujin": listener}
    ) as broker:
        send_one_by_one(broker, [b"a", b"b", b"c", *LOST])
        with FujinClient(broker.fujin_url) as client, client.reader("orders", pull=True) as reader:
            old = reader.fetch(5)
            assert [message.value for message in old] == [b"a", b"b", b"c", *LOST]
            reader.ack(*old[:4])
        cut_power(broker)
        with FujinClient(broker.fujin_url) as client, client.reader("orders", pull=True) as reader:
            new = reader.fetch(5)
            assert [message.value for message in new] == NEW
            with pytest.raises(PenstockError):
                reader.ack(old[4])
            reader.ack(*new)


SCOPE: Any = {"tenant_id": "default", "namespace": "default", "stream": "orders", "group": "g"}


@asynccontextmanager
async def felix(broker: RunningBroker) -> AsyncIterator[FelixStream]:
    host, _, port = broker.addresses["felix"].rpartition(":")
    connection = await connect_quic(host, int(port), ca_file=broker.certificate)
    try:
        yield FelixStream(connection.open_stream())
    finally:
        connection.close()
        await connection.wait_closed()


class FelixStream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._decoder = FrameDecoder()

    async def ask(self, request: Message) -> Reply:
        self._stream.send(encode_message(request))
        async with asyncio.timeout(WAIT_S_MAX):
            while True:
                for frame in self._decoder.feed(await self._stream.read()):
                    return decode_reply(frame)

    async def poll(self) -> list[tuple[int, bytes]]:
        reply = await self.ask(GroupPoll(**SCOPE, max_records=10, request_id=1))
        assert isinstance(reply, GroupRecords)
        return [(record.offset, record.payload) for record in reply.records]


async def test_a_felix_group_polls_them_and_old_claims_do_not_settle_them(broker: RunningBroker) -> None:
    async with felix(broker) as member:
        assert len(await member.poll()) == 5
        for offset in range(4):
            assert isinstance(await member.ask(GroupAck(**SCOPE, offset=offset, request_id=2)), CacheOk)
    await asyncio.to_thread(cut_power, broker)
    async with felix(broker) as member, felix(broker) as outdated:
        assert await member.poll() == [(3, b"x"), (4, b"y"), (5, b"z")]
        for kind in (GroupAck, GroupNack):
            reply = await outdated.ask(kind(**SCOPE, offset=4, request_id=3))
            assert isinstance(reply, Error)
            assert "stale claim" in reply.message
        for offset in (3, 4, 5, 4):
            assert isinstance(await member.ask(GroupAck(**SCOPE, offset=offset, request_id=4)), CacheOk)
        assert await member.poll() == []
        assert isinstance(await outdated.ask(GroupAck(**SCOPE, offset=2, request_id=5)), CacheOk)
