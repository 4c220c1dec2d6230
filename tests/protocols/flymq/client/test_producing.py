"""Whole records: keys, values or none, headers, times; to a broker and to servers that know nothing of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import penstock
from penstock.clients.records import Record
from penstock.errors import (
    BatchFailed,
    InvalidRequest,
    NotSupported,
    PartitionNotFound,
    ProtocolViolation,
    RecordTooLarge,
    ValidationFailed,
)
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.codec.record_layouts import Rows, encode_fetched
from penstock.protocols.flymq.operations.operation import encode_reply
from penstock.protocols.flymq.operations.records import (
    Fetch,
    FetchedRecords,
    FetchRecords,
    Produce,
    ProducedRecords,
    ProduceRecords,
    RecordFailure,
)
from penstock.testing import RunningBroker
from tests.protocols.flymq.scripted import Peer, connected, error, produced, scripted

HEADERS = (("trace", b"ab12"), ("trace", b"\xff\0"), ("empty", b""), ("null", None), ("", b"nameless"))
NAME = '{"type": "object", "required": ["name"]}'


@pytest.fixture
async def client(penstock_broker: RunningBroker) -> AsyncIterator[AsyncFlyMQClient]:
    async with await penstock.connect_async(penstock_broker.url) as client:
        yield client


async def read(client: AsyncFlyMQClient, topic: str) -> list[Record]:
    return [record async for record in client.records(topic)]


async def test_a_record_comes_back_whole(client: AsyncFlyMQClient) -> None:
    stored = await client.send("orders", b"value", b"key", headers=HEADERS)
    assert await read(client, "orders") == [Record("orders", 0, 0, b"key", b"value", stored.timestamp_ms, HEADERS)]
    assert stored.timestamp_ms > 0


async def test_null_and_empty_are_told_apart(client: AsyncFlyMQClient) -> None:
    rows = [(key, value, ()) for key in (None, b"", b"k") for value in (None, b"", b"v")]
    await client.send_many("orders", rows)
    assert [(record.key, record.value, record.headers) for record in await read(client, "orders")] == rows


async def test_headers_may_be_a_mapping(client: AsyncFlyMQClient) -> None:
    await client.send("orders", b"value", headers={"a": b"1", "b": None})
    assert [record.headers for record in await read(client, "orders")] == [(("a", b"1"), ("b", None))]


async def test_many_records_with_headers_keep_their_order_over_requests_and_partitions(
    client: AsyncFlyMQClient,
) -> None:
    await client.create_topic("orders", 3)
    large = bytes(300_000)
    rows = [
        (b"%d" % (row % 7), b"%d" % row + (large if row % 500 == 0 else b""), [("row", b"%d" % row)] if row % 2 else [])
        for row in range(3000)
    ]
    stored = await client.send_many("orders", rows)
    found = {(record.partition, record.offset): record for record in await read(client, "orders")}
    assert len(found) == len(rows)
    for (key, value, headers), place in zip(rows, stored, strict=True):
        record = found[place.partition, place.offset]
        assert (record.key, record.value, record.headers) == (key, value, tuple(headers))
        assert record.timestamp_ms == place.timestamp_ms


async def test_one_record_at_fault_fails_alone(client: AsyncFlyMQClient) -> None:
    await client.schemas.register("user", NAME)
    await client.create_topic("users", 2)
    await client.schemas.bind("users", "user")
    good, bad = b'{"name": "ann"}', b"{}"
    with pytest.raises(BatchFailed, match="1 of 3 records were not acknowledged") as failed:
        await client.send_many("users", [(None, value, {"h": b"1"}) for value in (good, bad, good)])
    assert [type(result).__name__ for result in failed.value.results] == [
        "RecordMetadata",
        "ValidationFailed",
        "RecordMetadata",
    ]
    stored = (good, (("h", b"1"), ("penstock-schema", b"user:1")))
    assert [(record.value, record.headers) for record in await read(client, "users")] == [stored] * 2
    with pytest.raises(ValidationFailed):
        await client.send("users", bad, headers={"h": b"1"})


async def test_records_that_a_topic_cannot_take_fail_one_by_one_too(client: AsyncFlyMQClient) -> None:
    await client.create_topic("latest", cleanup="compact")
    with pytest.raises(BatchFailed) as failed:
        await client.send_many("latest", [(b"k", b"v", [("h", b"1")]), (None, b"v", [("h", b"1")]), (b"k", None, [])])
    assert [isinstance(result, InvalidRequest) for result in failed.value.results] == [False, True, False]
    with pytest.raises(PartitionNotFound):
        await client.send_many("latest", [(b"k", b"v", {"h": b"1"})] * 2, partition=1)


async def test_headers_go_with_a_time_to_live_and_a_schema(
    penstock_broker: RunningBroker, client: AsyncFlyMQClient
) -> None:
    await client.schemas.register("user", NAME)
    value = b'{"name": "ann"}'
    await client.send("users", value, headers={"h": b"1"}, ttl_s=60, schema="user")
    await client.send("users", value, ttl_s=60, schema="user")
    with pytest.raises(ValidationFailed):
        await client.send("users", b"{}", ttl_s=60, schema="user")
    await client.send("users", b"stays", headers={"h": b"2"})
    assert [record.value for record in await read(client, "users")] == [value, value, b"stays"]
    penstock_broker.clock.advance(61)
    assert [(record.value, record.headers) for record in await read(client, "users")] == [(b"stays", (("h", b"2"),))]


async def test_a_delayed_record_keeps_its_headers_and_can_be_cancelled(
    penstock_broker: RunningBroker, client: AsyncFlyMQClient
) -> None:
    await client.create_topic("orders")
    await client.create_topic("latest", cleanup="compact")
    delayed = await client.send_later("orders", b"v", 60, b"k", headers=HEADERS)
    assert delayed.due_ms == penstock_broker.clock.now_ms() + 60_000
    cancelled = await client.send_later("orders", None, 60, b"gone")
    assert cancelled.id not in ("", delayed.id)
    await client.cancel("orders", cancelled.id)
    with pytest.raises(InvalidRequest, match="give every record a key"):
        await client.send_later("latest", b"v", 60, headers=HEADERS)
    at_once = await client.send_later("orders", b"now", 0, headers={"h": b"1"})
    assert at_once.id == ""
    assert [(record.value, record.headers) for record in await read(client, "orders")] == [(b"now", (("h", b"1"),))]
    penstock_broker.clock.advance(61)
    found = [record async for record in client.records("orders", start=1, follow=True, limit=1)]
    assert [(record.key, record.value, record.headers) for record in found] == [(b"k", b"v", HEADERS)]


@pytest.mark.parametrize("headers", [[("a", "text")], [("a",)], ["ab"], [(b"a", b"1")], {"a": 1}, ["a"]])
async def test_what_is_no_header_is_refused(client: AsyncFlyMQClient, headers: object) -> None:
    with pytest.raises(InvalidRequest, match="is not a header: headers are names with values"):
        await client.send("orders", b"v", headers=headers)  # type: ignore[arg-type]


async def test_records_beyond_a_bound_are_refused_before_anything_is_sent(client: AsyncFlyMQClient) -> None:
    with pytest.raises(InvalidRequest, match="a record has 1001 headers: at most 1000"):
        await client.send("orders", b"v", headers=[("h", b"")] * 1001)
    with pytest.raises(RecordTooLarge, match="with its key and headers does not fit into a FlyMQ frame"):
        await client.send_many("orders", [(None, b"small", {"h": b""}), (None, b"", {"h": bytes(32 << 20)})])
    with pytest.raises(InvalidRequest, match="use one form"):
        await client.send_many("orders", [(None, b"v", ()), (None, b"v")])  # type: ignore[arg-type]
    assert await client.topics() == []


# -- servers that are not Penstock -------------------------------------------------------------------------------------------


def older(peer: Peer, opcode: int, payload: bytes) -> bytes:
    """A server that knows keys and values only."""
    if opcode == Produce.opcode:
        return produced(0)
    if opcode == Fetch.opcode:
        return encode_fetched(Fetch.opcode, [Rows([4], [b"k"], [b"v"])], 5, native=False)
    return error(f"unknown opcode: {opcode}")


async def test_a_server_that_knows_no_headers_is_read_without_them() -> None:
    async with scripted(older) as broker, connected(broker) as client:
        for _ in range(2):
            assert (await client.fetch("t", 0, 4)).records == [Record("t", 0, 4, b"k", b"v", None, ())]
        assert [opcode for opcode, _ in broker.requests] == [FetchRecords.opcode, Fetch.opcode, Fetch.opcode]


async def test_a_server_that_knows_no_headers_gets_none_of_a_record_that_has_some() -> None:
    async with scripted(older) as broker, connected(broker) as client:
        await client.send_many("t", [(b"k", b"v", ())])
        with pytest.raises(NotSupported, match="this server cannot store headers, null values or empty keys"):
            await client.send("t", b"v", headers={"h": b"1"})
        with pytest.raises(NotSupported, match="send the records without them"):
            await client.send_many("t", [(b"k", b"v", ()), (b"k", None, ())])
        assert [opcode for opcode, _ in broker.requests] == [
            Produce.opcode,
            ProduceRecords.opcode,
            ProduceRecords.opcode,
        ]


@pytest.mark.parametrize(
    "reply",
    [
        encode_reply(ProduceRecords, ProducedRecords([0], [0], [0], [], [])),
        encode_reply(ProduceRecords, ProducedRecords([0, 0], [0, 1], [0], [], [])),
        encode_reply(ProduceRecords, ProducedRecords([0, 0], [0, 1], [0, 0], [RecordFailure(2, "not written")], [])),
        produced(0),
    ],
)
async def test_a_reply_that_does_not_fit_the_records_is_refused(reply: bytes) -> None:
    async with scripted(lambda *_: reply) as broker, connected(broker) as client:
        with pytest.raises(ProtocolViolation):
            await client.send_many("t", [(None, b"v", {"h": b"1"})] * 2)


async def test_a_fetched_reply_with_columns_of_different_lengths_is_refused() -> None:
    reply = encode_reply(FetchRecords, FetchedRecords(9, [1, 2], [1, 2], [], [b"v"], []))
    async with scripted(lambda *_: reply) as broker, connected(broker) as client:
        with pytest.raises(ProtocolViolation, match="2 offsets has columns of other lengths"):
            await client.fetch("t", 0, 0)
