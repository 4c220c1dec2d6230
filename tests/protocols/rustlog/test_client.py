"""Both clients in both dialects against a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import (
    InvalidRequest,
    InvalidTopicName,
    OffsetOutOfRange,
    PartitionNotFound,
    PenstockError,
    ServerError,
    TopicExists,
    TopicNotFound,
    Unreachable,
)
from penstock.protocols.rustlog.client.client import RECORD_BYTES_MAX, AsyncRustLogClient
from penstock.protocols.rustlog.client.exchanges import error_for
from penstock.protocols.rustlog.sync import RustLogClient
from penstock.testing import RunningBroker


@pytest.fixture(params=["rustlog", "rustlog+json"])
def url(request: pytest.FixtureRequest, broker: RunningBroker) -> str:
    return f"{request.param}://{broker.addresses['rustlog']}"


@pytest.fixture
def client(url: str) -> Iterator[RustLogClient]:
    with penstock.connect(url) as client:
        assert isinstance(client, RustLogClient)
        yield client


def test_records_come_back_as_they_were_sent(client: RustLogClient) -> None:
    client.create_topic("orders", 2)
    values = [b"%d" % number for number in range(3000)] + [b"", bytes(range(256))]
    stored = client.send_many("orders", values, 1)
    assert [each.offset for each in stored] == list(range(len(values)))
    assert {each.partition for each in stored} == {1}
    records = list(client.records("orders"))
    assert [(record.partition, record.offset, record.key, record.value) for record in records] == [
        (1, offset, None, value) for offset, value in enumerate(values)
    ]


def test_records_without_a_partition_take_turns(client: RustLogClient) -> None:
    client.create_topic("orders", 3)
    assert [client.send("orders", b"x").partition for _ in range(4)] == [0, 1, 2, 0]


def test_a_group_continues_where_it_was(client: RustLogClient, broker: RunningBroker) -> None:
    client.create_topic("orders")
    client.send_many("orders", [b"1", b"2", b"3"])
    assert [record.value for record in client.records("orders", group="g", limit=2)] == [b"1", b"2"]
    assert client.committed("orders", "g", 0) == 2
    assert [record.value for record in client.records("orders", group="g", start="latest")] == [b"3"]
    assert broker.connect().committed("orders", "g", 0) == 3
    client.commit("orders", "g", 0, 1)
    assert [record.value for record in client.records("orders", group="g", commit=False)] == [b"2", b"3"]
    assert client.committed("orders", "g", 0) == 1
    assert client.committed("orders", "other", 0) is None


def test_fetch_takes_bytes_and_a_group(client: RustLogClient) -> None:
    client.create_topic("orders")
    client.send_many("orders", [b"x" * 100] * 10)
    assert len(client.fetch("orders", 0, 0, 250).records) == 2
    client.commit("orders", "g", 0, 9)
    result = client.fetch("orders", 0, 0, group="g")
    assert ([record.offset for record in result.records], result.next_offset) == ([9], 10)


def test_following_waits_for_more(client: RustLogClient) -> None:
    client.create_topic("orders")
    records = client.records("orders", follow=True, start=1)
    client.send_many("orders", [b"1", b"2"])
    assert next(records).value == b"2"
    client.send("orders", b"3")
    assert next(records).value == b"3"
    records.close()  # type: ignore[attr-defined]


def test_topics_are_listed_and_described(client: RustLogClient) -> None:
    for name in ("b", "a", "a"):
        client.create_topic(name, 2)
    client.send("a", b"x", 1)
    assert client.topics() == ["a", "b"]
    described = client.describe_topic("a")
    assert [(each.partition, each.start_offset, each.next_offset) for each in described.partitions] == [
        (0, 0, 0),
        (1, 0, 1),
    ]
    assert client.ping() >= 0
    assert "messages_produced_total 1\n" in client.metrics()


def test_refusals_are_errors_of_their_class(client: RustLogClient) -> None:
    with pytest.raises(PartitionNotFound, match="topic=nowhere, partition=0"):
        client.send("nowhere", b"x", 0)
    with pytest.raises(PartitionNotFound, match="topic=nowhere, partition=0"):
        client.fetch("nowhere", 0, 0)
    with pytest.raises(TopicNotFound, match="nowhere"):
        client.send("nowhere", b"x")
    with pytest.raises(TopicNotFound, match="nowhere"):
        list(client.records("nowhere"))
    with pytest.raises(InvalidRequest, match="Invalid partition count: 1001"):
        client.create_topic("orders", 1001)
    with pytest.raises(ServerError, match="Topic creation failed"):
        client.create_topic("a//b")
    client.create_topic("orders")
    with pytest.raises(PartitionNotFound, match="partition 1 not found"):
        list(client.records("orders", 1))
    with pytest.raises(InvalidRequest, match="start 'middle' is not known"):
        list(client.records("orders", start="middle"))  # type: ignore[arg-type]


def test_what_makes_no_sense_is_refused_before_it_is_sent(client: RustLogClient) -> None:
    with pytest.raises(InvalidRequest, match="RustLog records have neither keys nor headers"):
        client.send_many("orders", [(b"key", b"value")])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="tombstone"):
        client.send("orders", None)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="bytes, not str"):
        client.send("orders", "text")  # type: ignore[arg-type]
    with pytest.raises(InvalidTopicName):
        client.send("", b"x")
    with pytest.raises(InvalidRequest, match="does not fit into a frame"):
        client.send("orders", b"x" * (RECORD_BYTES_MAX + 1))
    with pytest.raises(InvalidRequest, match="max_bytes is -1"):
        client.fetch("orders", 0, 0, -1)
    with pytest.raises(InvalidRequest, match="limit is 0"):
        list(client.records("orders", limit=0))


def test_a_record_that_outgrows_a_frame_as_json_is_refused_in_json_only(broker: RunningBroker) -> None:
    value = b"\xff" * 3_000_000
    with penstock.connect(broker.rustlog_url) as binary:
        binary.create_topic("orders")
        assert binary.send("orders", value).offset == 0
    with (
        penstock.connect(broker.rustlog_url.replace("rustlog:", "rustlog+json:")) as json,
        pytest.raises(InvalidRequest, match="use binary"),
    ):
        json.send("orders", value)


def test_a_record_as_large_as_they_may_be_is_stored_beside_small_ones(broker: RunningBroker) -> None:
    with RustLogClient(broker.rustlog_url) as client:
        client.create_topic("orders", 1)
        small = bytes(900)
        assert len(client.send_many("orders", [*[small] * 1005, bytes((10 << 20) - 1024), *[small] * 1000])) == 2006


def test_a_client_continues_after_a_restart(client: RustLogClient, broker: RunningBroker) -> None:
    client.create_topic("orders")
    client.send("orders", b"1")
    client.commit("orders", "g", 0, 1)
    broker.restart()
    assert client.topics() == ["orders"]
    assert client.committed("orders", "g", 0) == 1
    assert client.send("orders", b"2").offset == 1


def test_addresses_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="not a RustLog address"):
        RustLogClient("flymq://127.0.0.1:1")
    with pytest.raises(InvalidRequest, match="no login"):
        RustLogClient("rustlog://alice@127.0.0.1:1")
    with pytest.raises(Unreachable):
        RustLogClient("rustlog://127.0.0.1:1", options=ClientOptions(retry=NO_RETRY))


async def test_the_async_client_has_the_same_calls(url: str) -> None:
    async with await penstock.connect_async(url) as client:
        assert isinstance(client, AsyncRustLogClient)
        await client.create_topic("orders")
        await client.send_many("orders", [b"1", b"2"])
        assert [record.value async for record in client.records("orders")] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Topic 'a' already exists", TopicExists),
        ("offset out of range: ...", OffsetOutOfRange),
        ("DescribeTopic failed: Topic 'a' not found", TopicNotFound),
        ("Fetch failed: the disk", ServerError),
        ("Decode error: unknown request type: 9", InvalidRequest),
    ],
)
def test_an_error_text_stands_for_its_class(text: str, kind: type[PenstockError]) -> None:
    error = error_for(text)
    assert (type(error), error.message) == (kind, text)
