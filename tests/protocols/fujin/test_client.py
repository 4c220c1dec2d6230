"""The Fujin clients against a real broker over real QUIC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pytest

import penstock
from penstock.broker.deliveries.subscription import Subscription
from penstock.clients.arguments import CHUNK_RECORDS_MAX
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY, RetryPolicy
from penstock.errors import (
    BatchFailed,
    ConnectionLost,
    CorruptBlock,
    EntryNotFound,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    RequestTimeout,
    ServerError,
    TopicNotFound,
    Unreachable,
)
from penstock.net.stats import QuicListenerStats
from penstock.protocols.fujin.client.client import AsyncFujinClient, AsyncReader, Message
from penstock.protocols.fujin.client.streams import WriterStream
from penstock.protocols.fujin.sync import FujinClient
from penstock.protocols.fujin.wire import Request
from penstock.record_headers import decode_headers
from penstock.testing import RunningBroker
from penstock.testing.clock import ManualClock

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


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0)


def quic_stats(broker: RunningBroker) -> QuicListenerStats:
    stats = broker.server.listeners["fujin"].stats
    assert isinstance(stats, QuicListenerStats)
    return stats


def stored(broker: RunningBroker, topic: str) -> list[bytes]:
    return [record.value or b"" for record in broker.connect().records(topic)]


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
    client.send_many("orders", [(None, b"four", [("k", b"1"), ("k", b"2")]), (None, b"five", None), (None, b"six", {})])
    with client.transaction() as transaction:
        transaction.send_many("orders", [(None, b"seven", {"k": b"v"})])

    def headers() -> list[list[tuple[str, bytes | None]]]:
        partition = broker.server.engine.partition("orders", 0)
        blocks = partition.read_cached(0) or []
        return [decode_headers(cell or b"") for block in blocks for cell in block.headers(0, block.count) or ()]

    assert headers() == [
        [("trace", b"17"), ("größe", b"")],
        [("k", b"v")],
        [("k", b"v")],
        [("k", b"1"), ("k", b"2")],
        [],
        [],
        [("k", b"v")],
    ]
    assert stored(broker, "orders") == [b"one", b"two", b"three", b"four", b"five", b"six", b"seven"]


def test_what_cannot_be_sent_is_said_before_anything_is(client: FujinClient, broker: RunningBroker) -> None:
    for topic, value in (("", b"x"), ("orders", b""), ("orders", "text")):
        with pytest.raises(PenstockError):
            client.send(topic, value)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="headers"):
        penstock.connect(broker.fujin_url, write_form="code").send("orders", b"x", headers={"k": b"v"})
    for headers, reason in (
        ({str(number): b"" for number in range(200)}, "200 headers are too many"),
        ({"": b""}, "has 0 bytes"),
        ({"k" * 1025: b""}, "has 1025 bytes"),
        ({"k": bytes(64 << 10)}, "are too long"),
        ({"k": "v"}, "is not a header"),
        (["k"], "'k' is not a header"),
    ):
        with pytest.raises(InvalidRequest, match=reason):
            client.send("orders", b"x", headers=headers)  # type: ignore[arg-type]
    for records in ([(b"key", b"value")], [(b"key", b"value", None)], [b"value", (None, b"value", None)]):
        with pytest.raises(InvalidRequest, match="Fujin records have no keys: send values, or triples"):
            client.send_many("orders", records)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="headers are given twice"):
        client.send_many("orders", [(None, b"value", {"k": b"v"})], headers={"k": b"v"})


def test_only_what_is_refused_fails(client: FujinClient, broker: RunningBroker) -> None:
    values = [b"a", bytes(2 << 20), b"b"]
    with pytest.raises(BatchFailed, match="1 of 3 records were not acknowledged") as failed:
        client.send_many("orders", values)
    assert [result is None for result in failed.value.results] == [True, False, True]
    assert stored(broker, "orders") == [b"a", b"b"]
    with pytest.raises(ServerError, match="too large"):
        client.send("orders", bytes(2 << 20))
    client.send("orders", b"c")


def test_a_batch_of_which_a_part_was_lost_tells_what_was_stored(
    client: FujinClient, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = WriterStream.write

    async def lose_the_last(stream: WriterStream, topic: str, values: Sequence[bytes], *more: Any) -> Any:
        if values[-1] == b"last":
            raise ConnectionLost("the connection was lost")
        return await write(stream, topic, values, *more)

    monkeypatch.setattr(WriterStream, "write", lose_the_last)
    values = [b"%d" % number for number in range(CHUNK_RECORDS_MAX)]
    with pytest.raises(BatchFailed, match="1 of 1025") as failed:
        client.send_many("orders", [*values, b"last"])
    assert [type(result) for result in failed.value.results] == [type(None)] * len(values) + [ConnectionLost]
    assert stored(broker, "orders") == values
    with pytest.raises(ConnectionLost):
        client.send_many("orders", [b"last", b"last"])


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


async def test_a_transaction_that_cannot_be_committed_or_begun_leaves_nothing_behind(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions, stats = broker.server.broker.transactions, quic_stats(broker)
    async with AsyncFujinClient(broker.fujin_url) as client:
        transaction = await client.transaction().__aenter__()
        await transaction.send("orders", b"one")
        await asyncio.to_thread(broker.connect().delete_topic, "orders")
        with pytest.raises(PenstockError):
            await transaction.__aexit__(None, None, None)
        await until(lambda: transactions.stats.open == 0)

        def refuse(*given: object) -> str:
            raise LimitExceeded("too many")

        monkeypatch.setattr(transactions, "begin", refuse)
        with pytest.raises(PenstockError, match="too many"):
            await client.transaction().__aenter__()
        await until(lambda: stats.streams_open == 0)
        await client.send("orders", b"two")


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


@pytest.mark.parametrize("auto_commit", [False, True])
def test_a_reader_is_pushed_records_that_deployed_clients_do_not_survive(
    client: FujinClient, broker: RunningBroker, auto_commit: bool
) -> None:
    """Though it has written nothing that would show what it is."""
    values = [bytes(1 << 20), b"x"]
    broker.connect().create_topic("orders")
    broker.connect().send_many("orders", values)
    with client.reader("orders", auto_commit=auto_commit) as reader:
        messages = [reader.next(20) for _ in values]
    assert [message.value for message in messages if message is not None] == values


@pytest.mark.parametrize("write_form", ["table", "code"])
def test_a_fetch_that_finds_nothing_is_empty_in_either_form(broker: RunningBroker, write_form: Any) -> None:
    with FujinClient(broker.fujin_url, write_form=write_form) as client, client.reader("orders", pull=True) as reader:
        assert reader.fetch() == []


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


def test_messages_are_waited_for_as_long_as_one_likes_one_by_one_or_many_at_a_time(client: FujinClient) -> None:
    with client.reader("orders") as reader:
        assert reader.next(0.01) is None
        assert reader.next_batch(timeout_s=0.01) == []
        client.send_many("orders", [b"%d" % number for number in range(10)])
        seen = [reader.next(20)]
        while len(seen) < 10:
            batch = reader.next_batch(3, 20)
            assert 1 <= len(batch) <= 3
            seen += batch
        assert [message and message.value for message in seen] == [b"%d" % number for number in range(10)]


async def test_an_async_program_may_wait_as_long_as_it_likes_too(broker: RunningBroker) -> None:
    async with AsyncFujinClient(broker.fujin_url) as client, client.reader("orders") as reader:
        assert await reader.next(0.01) is None
        await client.send("orders", b"one")
        assert (await reader.next()).value == b"one"


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


async def test_a_slow_program_asks_for_fewer_records_at_a_time(
    broker: RunningBroker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is given and not through with in time would come again."""
    asked: list[int] = []
    fetch = AsyncReader.fetch

    async def counting(reader: AsyncReader, max_records: int) -> list[Message]:
        asked.append(max_records)
        return await fetch(reader, max_records)

    monkeypatch.setattr(AsyncReader, "fetch", counting)
    async with AsyncFujinClient(broker.fujin_url, clock=clock) as client:
        await client.send_many("orders", [b"x"] * 40)
        async for _ in client.records("orders", limit=31):
            pass
        async for _ in client.records("orders", limit=6):
            clock.advance(1.0)
    assert asked == [1, 2, 4, 8, 16, 1, 1, 1, 1, 1, 1]


async def test_a_record_that_took_too_long_comes_again(broker: RunningBroker) -> None:
    async with AsyncFujinClient(broker.fujin_url) as client:
        await client.send_many("orders", [b"one", b"two"])
        seen: list[bytes] = []
        async for message in client.records("orders", limit=3):
            seen.append(message.value)
            if len(seen) == 1:
                broker.clock.advance(60)
        assert seen == [b"one", b"one", b"two"]


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_what_comes_for_a_fetch_that_was_cancelled_is_for_the_next(auto_commit: bool) -> None:
    with RunningBroker(listeners={"fujin": {"fetch_wait_s": 9}}) as broker:
        stats: Any = broker.server.sessions["fujin"]
        async with (
            AsyncFujinClient(broker.fujin_url) as client,
            client.reader("orders", pull=True, auto_commit=auto_commit) as reader,
        ):
            fetching = asyncio.create_task(reader.fetch())
            await until(lambda: stats.requests[Request.FETCH] == 1)
            fetching.cancel()
            await client.send_many("orders", [b"one", b"two"])
            await until(lambda: stats.sent_records == 2)
            await until(lambda: reader._stream is not None and reader._stream.has_arrived)
            assert [message.value for message in await reader.fetch(1)] == [b"one"]
            assert [message.value for message in await reader.fetch(9)] == [b"two"]
            assert stats.requests[Request.FETCH] == 1


async def test_with_auto_commit_what_has_arrived_outlives_its_connection(broker: RunningBroker) -> None:
    """The broker considers it processed, so it would not come again."""
    async with AsyncFujinClient(broker.fujin_url, options=PATIENT) as client:
        await client.send_many("orders", [b"%d" % number for number in range(300)])
        async with client.reader("orders", auto_commit=True) as reader:
            seen = [(await reader.next()).value]
            stream: Any = reader._stream
            subscription = broker.server.broker.subscriptions.find(1)
            assert subscription is not None
            await until(lambda: len(stream._messages) == 299 and subscription.in_flight == 0)
            stream.stream._connection.close()
            await until(lambda: not stream.usable)
            await client.send("orders", b"last")
            seen += [(await reader.next()).value for _ in range(300)]
    assert seen == [*(b"%d" % number for number in range(300)), b"last"]


async def test_a_reader_that_was_not_let_in_in_time_is_not_left_behind(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that it is sent after all would be with nobody."""
    may_go_on = threading.Event()
    subscriptions, stats = broker.server.broker.subscriptions, quic_stats(broker)
    subscribe = subscriptions.subscribe

    async def slow(*given: Any, **more: Any) -> Subscription:
        while not may_go_on.is_set():
            await asyncio.sleep(0)
        return await subscribe(*given, **more)

    monkeypatch.setattr(subscriptions, "subscribe", slow)
    async with AsyncFujinClient(broker.fujin_url, options=ClientOptions(request_timeout_s=0.3)) as client:
        with pytest.raises(RequestTimeout):
            await client.reader("orders").open()
        may_go_on.set()
        await until(lambda: len(subscriptions) == 1)
        await until(lambda: stats.streams_open == 0)
        assert broker.server.sessions["fujin"].subscribers == 0  # type: ignore[attr-defined]


async def test_a_server_that_turns_readers_away_is_not_asked_without_a_pause(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(delay_s: float) -> None:
        pauses.append(delay_s)

    subscriptions = broker.server.broker.subscriptions
    take_many, troubles = subscriptions.take_many, iter(range(5))

    def troubled(*given: Any) -> Any:
        if next(troubles, None) is not None:
            raise CorruptBlock("cannot be read")
        return take_many(*given)

    monkeypatch.setattr(subscriptions, "take_many", troubled)
    async with AsyncFujinClient(broker.fujin_url, sleep=sleep) as client, client.reader("orders") as reader:
        await client.send("orders", b"one")
        assert (await reader.next()).value == b"one"
    assert len(pauses) in (3, 4), "it may be turned away before anyone asks for records"
    assert pauses[2] > pauses[0]


# -- the connection ----------------------------------------------------------------------------------------------------------


async def test_pings_keep_a_connection_that_says_nothing(broker: RunningBroker) -> None:
    async with AsyncFujinClient(broker.fujin_url) as client:
        await client.send("orders", b"one")
        sessions: Any = broker.server.sessions["fujin"]
        streams = quic_stats(broker)
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


async def test_a_broker_that_stops_does_not_wait_for_programs_that_do_nothing(broker: RunningBroker) -> None:
    """They are told, and leave by themselves: a writer, readers of both kinds, and one that was pushed what it did not take yet."""
    async with AsyncFujinClient(broker.fujin_url, options=PATIENT) as client:
        await client.send("orders", b"one")
        readers = [
            client.reader("orders"),
            client.reader("others", pull=True),
            client.reader("others", auto_commit=True),
        ]
        for reader in readers:
            await reader.open()
        stream: Any = readers[0]._stream
        await until(lambda: stream.has_arrived)
        listener = quic_stats(broker)
        stopping = asyncio.create_task(asyncio.to_thread(broker.stop))
        await until(lambda: listener.streams_open == 0)
        await stopping
        assert listener.closed_unanswered == 0
        assert not stream.usable
        await asyncio.to_thread(broker.start)
        assert (await readers[0].next()).value == b"one"
        await client.send("orders", b"two")


async def test_a_broker_that_stops_waits_for_what_a_program_is_at_work_on(broker: RunningBroker) -> None:
    async with AsyncFujinClient(broker.fujin_url, options=PATIENT) as client:
        await client.send("orders", b"one")
        async with client.reader("orders") as reader, client.transaction() as transaction:
            message = await reader.next()
            stream: Any = reader._stream
            stopping = asyncio.create_task(asyncio.to_thread(broker.stop))
            await until(lambda: stream.stop_requested)
            assert stream.failure is None
            await stream.settle(Request.ACK, [message.id])
            await transaction.send("payments", b"two")
        await stopping
    await asyncio.to_thread(broker.start)
    assert await asyncio.to_thread(stored, broker, "payments") == [b"two"]


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
