"""The Fujin clients against a real broker over real QUIC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY, RetryPolicy
from penstock.errors import (
    BatchFailed,
    ConnectionLost,
    EntryNotFound,
    InvalidRequest,
    PenstockError,
    ServerError,
    TopicNotFound,
    Unreachable,
)
from penstock.log.block import decode_headers
from penstock.protocols.fujin.client import AsyncFujinClient, Message
from penstock.protocols.fujin.sync import FujinClient
from penstock.testing import RunningBroker

FUJIN = {"fetch_wait_s": 0.2, "ping_interval_s": 0.1, "ping_timeout_s": 20}
PATIENT = ClientOptions(retry=RetryPolicy(attempts_max=100, delay_s_first=0.02, delay_s_max=0.1))


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with RunningBroker(listeners={"fujin": FUJIN}) as broker:
        yield broker


@pytest.fixture
def client(broker: RunningBroker) -> Iterator[FujinClient]:
    with FujinClient(broker.fujin_url) as client:
        yield client


def stored(broker: RunningBroker, topic: str) -> list[bytes]:
    return [record.value for record in broker.connect().records(topic)]


# -- writing -----------------------------------------------------------------------------------------------------------------


def test_what_is_sent_is_stored(client: FujinClient, broker: RunningBroker) -> None:
    client.send("orders", b"one")
    client.send_many("orders", [b"%d" % number for number in range(5000)])
    client.send_many("orders", [])
    assert stored(broker, "orders") == [b"one", *(b"%d" % number for number in range(5000))]


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 131_072, 1 << 20])
@pytest.mark.parametrize("write_form", ["table", "code"])
def test_a_first_record_may_have_any_size(broker: RunningBroker, write_form: str, size: int) -> None:
    with penstock.connect(broker.fujin_url, write_form=write_form) as client:
        client.send("orders", b"\xff" * size)
    assert list(map(len, stored(broker, "orders"))) == [size]


def test_headers_are_stored(client: FujinClient, broker: RunningBroker) -> None:
    client.send("orders", b"one", headers={"trace": b"17", "größe": b""})
    client.send_many("orders", [b"two", b"three"], headers={"k": b"v"})

    def headers() -> list[list[tuple[str, bytes | None]]]:
        partition = broker.server.engine.partition("orders", 0)
        blocks = partition.read_cached(0) or []
        return [decode_headers(cell or b"") for block in blocks for cell in block.headers(0, block.count) or ()]

    assert headers() == [[("trace", b"17"), ("größe", b"")], [("k", b"v")], [("k", b"v")]]


def test_what_cannot_be_sent_is_said_before_anything_is(client: FujinClient, broker: RunningBroker) -> None:
    for topic, value in (("", b"x"), ("orders", b""), ("orders", "text")):
        with pytest.raises(PenstockError):
            client.send(topic, value)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="headers"):
        penstock.connect(broker.fujin_url, write_form="code").send("orders", b"x", headers={"k": b"v"})
    with pytest.raises(InvalidRequest):
        client.send("orders", b"x", headers={str(number): b"" for number in range(200)})
    with pytest.raises(InvalidRequest):
        client.send("orders", b"x", headers={"": b""})


def test_only_what_is_refused_fails(client: FujinClient, broker: RunningBroker) -> None:
    values = [b"a", bytes(2 << 20), b"b"]
    with pytest.raises(BatchFailed, match="1 of 3 records were refused") as failed:
        client.send_many("orders", values)
    assert [result is None for result in failed.value.results] == [True, False, True]
    assert stored(broker, "orders") == [b"a", b"b"]
    with pytest.raises(ServerError, match="too large"):
        client.send("orders", bytes(2 << 20))
    client.send("orders", b"c")


def test_a_topic_that_may_not_be_written_is_refused(client: FujinClient) -> None:
    with pytest.raises(ServerError, match="__groups"):
        client.send("__groups", b"x")


def test_a_missing_topic_where_none_may_be_made() -> None:
    with (
        RunningBroker(listeners={"fujin": {"auto_create": False}}) as broker,
        penstock.connect(broker.fujin_url) as client,
    ):
        with pytest.raises(TopicNotFound):
            client.send("missing", b"x")
        with pytest.raises(TopicNotFound), client.reader("missing"):
            pass


# -- transactions ------------------------------------------------------------------------------------------------------------


def test_a_transaction_is_seen_whole_or_not_at_all(client: FujinClient, broker: RunningBroker) -> None:
    with client.transaction() as transaction:
        transaction.send("orders", b"one", headers={"k": b"v"})
        transaction.send_many("payments", [b"two", b"three"])
        assert stored(broker, "orders") == []
    assert (stored(broker, "orders"), stored(broker, "payments")) == ([b"one"], [b"two", b"three"])
    with pytest.raises(RuntimeError), client.transaction() as transaction:  # noqa: PT012
        transaction.send("orders", b"dropped")
        raise RuntimeError
    assert stored(broker, "orders") == [b"one"]


def test_a_transaction_may_be_ended_early(client: FujinClient, broker: RunningBroker) -> None:
    with client.transaction() as transaction:
        transaction.send("orders", b"one")
        transaction.commit()
        with pytest.raises(InvalidRequest, match="has ended"):
            transaction.send("orders", b"two")
    with client.transaction() as transaction:
        transaction.send("orders", b"three")
        transaction.rollback()
    assert stored(broker, "orders") == [b"one"]


def test_a_commit_that_is_refused_is_heard_of(client: FujinClient, broker: RunningBroker) -> None:
    with pytest.raises(ServerError, match="was deleted"), client.transaction() as transaction:  # noqa: PT012
        transaction.send("orders", b"one")
        broker.connect().delete_topic("orders")


# -- reading -----------------------------------------------------------------------------------------------------------------


def test_records_are_pushed_and_acknowledged(client: FujinClient) -> None:
    client.send_many("orders", [b"one", b"two"])
    with client.reader("orders") as reader:
        first = reader.next(10)
        assert first == Message("orders", b"one", (1).to_bytes(8, "big"))
        reader.ack(first)
        with pytest.raises(EntryNotFound):
            reader.ack(first)
        second = reader.next(10)
        assert second is not None
        assert second.value == b"two"
    with client.reader("orders") as reader:
        assert [message.value for _, message in zip(range(1), reader, strict=False)] == [b"two"]


def test_what_is_refused_comes_again(client: FujinClient, broker: RunningBroker) -> None:
    client.send("orders", b"one")
    with client.reader("orders") as reader:
        for _ in range(3):
            message = reader.next(10)
            assert message is not None
            reader.nack(message)
            broker.clock.advance(1)
        assert reader.next(0.3) is None
    assert len(broker.connect().dead_letters.list("orders")) == 1


def test_records_are_fetched(client: FujinClient) -> None:
    client.send_many("orders", [b"%d" % number for number in range(10)])
    with client.reader("orders", pull=True) as reader:
        batch = reader.fetch(4)
        assert [message.value for message in batch] == [b"0", b"1", b"2", b"3"]
        reader.ack(*batch)
        assert len(reader.fetch()) == 6
        assert reader.fetch() == []
        with pytest.raises(InvalidRequest):
            reader.fetch(0)
        with pytest.raises(InvalidRequest, match="fetch"):
            reader.next(1)


def test_with_auto_commit_there_is_nothing_to_acknowledge(client: FujinClient) -> None:
    client.send_many("orders", [b"one", b"two"])
    with client.reader("orders", auto_commit=True) as reader:
        message = reader.next(10)
        assert message is not None
        assert message.id is None
        with pytest.raises(InvalidRequest):
            reader.ack(message)


def test_a_slow_program_is_pushed_no_more_than_it_can_hold(client: FujinClient) -> None:
    values = [b"%05d" % number + bytes(100) for number in range(20_000)]
    client.send_many("orders", values)
    with client.reader("orders", auto_commit=True) as reader:
        assert [message.value for _, message in zip(range(20_000), reader, strict=False)] == values


def test_records_can_be_iterated_over(client: FujinClient) -> None:
    values = [b"%d" % number for number in range(1000)]
    client.send_many("orders", values)
    assert [message.value for message in client.records("orders", limit=10)] == values[:10]
    assert [message.value for message in client.records("orders")] == values[10:]


def test_following_waits_for_more(client: FujinClient, broker: RunningBroker) -> None:
    seen: list[bytes] = []
    first = threading.Event()

    def read() -> None:
        with FujinClient(broker.fujin_url) as other:
            for message in other.records("orders", follow=True, limit=2):
                seen.append(message.value)
                first.set()

    thread = threading.Thread(target=read)
    thread.start()
    client.send("orders", b"one")
    assert first.wait(20)
    client.send("orders", b"two")
    thread.join(20)
    assert seen == [b"one", b"two"]


# -- the connection ----------------------------------------------------------------------------------------------------------


async def test_pings_keep_a_connection_that_says_nothing(broker: RunningBroker) -> None:
    async with AsyncFujinClient(broker.fujin_url) as client:
        await client.send("orders", b"one")
        sessions: Any = broker.server.sessions["fujin"]
        streams: Any = broker.server.listeners["fujin"].stats
        before = streams.streams_total
        async with asyncio.timeout(20):
            while streams.streams_total < before + 5:
                await asyncio.sleep(0)
        await client.send("orders", b"two")
        assert sessions.ping_timeouts == 0
        assert streams.connections_total == 1


async def test_a_client_connects_again_after_a_restart(broker: RunningBroker) -> None:
    async with AsyncFujinClient(broker.fujin_url, options=PATIENT, random=Random(1)) as client:
        await client.send("orders", b"one")
        async with client.reader("orders") as reader:
            message = await reader.next()
            restart = asyncio.create_task(asyncio.to_thread(broker.restart))
            again = await reader.next()
            assert again == message
            await restart
            await reader.ack(again)
        while True:
            try:
                await client.send("orders", b"two")
                break
            except ConnectionLost:
                continue
    assert stored(broker, "orders")[-1] == b"two"


def test_nothing_listens(broker: RunningBroker) -> None:
    url = broker.fujin_url
    broker.stop()
    with pytest.raises(Unreachable):
        penstock.connect(url, options=ClientOptions(retry=NO_RETRY, connect_timeout_s=5))
    broker.start()


def test_a_certificate_that_is_not_trusted_is_refused(broker: RunningBroker) -> None:
    with pytest.raises(PenstockError):
        penstock.connect(f"fujin://{broker.addresses['fujin']}", options=ClientOptions(retry=NO_RETRY))


@pytest.mark.parametrize("url", ["fujin://", "flymq://127.0.0.1:1", "fujin://h:1/path"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidRequest):
        AsyncFujinClient(url)


def test_tls_is_named_in_the_address() -> None:
    with pytest.raises(InvalidRequest, match="QUIC has TLS of its own"):
        AsyncFujinClient("fujin://127.0.0.1", tls=False)


async def test_a_closed_client_and_a_closed_reader_say_so(broker: RunningBroker) -> None:
    client = AsyncFujinClient(broker.fujin_url)
    async with client:
        reader = client.reader("orders", pull=True)
        await reader.open()
        await reader.close()
        with pytest.raises(InvalidRequest, match="closed"):
            await reader.fetch()
    await client.close()
    with pytest.raises(InvalidRequest, match="closed"):
        await client.send("orders", b"x")


async def test_many_callers_share_a_connection(broker: RunningBroker) -> None:
    async with AsyncFujinClient(broker.fujin_url) as client:
        await asyncio.gather(*(client.send("orders", b"%d" % number) for number in range(300)))
        assert broker.server.listeners["fujin"].stats.connections_total == 1
    assert sorted(map(int, await asyncio.to_thread(stored, broker, "orders"))) == list(range(300))
