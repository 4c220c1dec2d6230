"""Transactions over FlyMQ: the bytes of deployed clients, what each request does, and the clients' block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import penstock
from penstock.broker.access import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.clients.options import ClientOptions
from penstock.clients.retry import NO_RETRY
from penstock.errors import (
    BatchFailed,
    ConnectionLost,
    GroupNotFound,
    InvalidRequest,
    InvalidTopicName,
    LimitExceeded,
    NoSpace,
    PartitionNotFound,
    RecordTooLarge,
    TransactionNotActive,
    TransactionNotFound,
    WriteFailed,
)
from penstock.log.api import TopicConfig
from penstock.protocols.flymq import request_encoding, transaction_requests
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.codec import RequestDecoder
from penstock.protocols.flymq.reply_decoding import decode_fetched, decode_offset
from penstock.protocols.flymq.request_messages import BadRequest, Call
from penstock.protocols.flymq.session import FlyMQ
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.protocols.flymq.transaction_messages import GroupOffset, TxnBegin, TxnCommit, TxnProduce, TxnRollback
from penstock.protocols.flymq.transaction_replies import decode_added, decode_transaction, encode_transaction
from penstock.protocols.flymq.wire import PAYLOAD_BYTES_MAX, Opcode, frame
from penstock.testing import BrokerProcess, RunningBroker
from penstock.testing.clock import ManualClock
from tests.protocols.flymq.conversation import Conversation, Frame
from tests.protocols.flymq.scripted import Peer, connected, error, scripted

TXN_1 = "00 05 74 78 6e 2d 31"
TEST = "00 04 74 65 73 74"

# --- bytes ---


@pytest.mark.parametrize(
    ("sent", "body", "ours"),
    [
        ("af 01 40 01 00 00 00 00", TxnBegin(), transaction_requests.encode_begin()),
        (
            f"af 01 43 01 00 00 00 13 {TXN_1} {TEST} 00 00 00 02 68 69",
            TxnProduce("txn-1", "test", [b"hi"]),
            transaction_requests.encode_produce_many("txn-1", "test", [b"hi"]),
        ),
        (
            f"af 01 43 01 00 00 00 1d {TXN_1} {TEST} 00 00 00 02 68 69 00 00 00 02 6b 31 ff ff ff ff",
            TxnProduce("txn-1", "test", [b"hi"], [b"k1"]),
            transaction_requests.encode_produce_many("txn-1", "test", [b"hi"], [b"k1"]),
        ),
        (
            f"af 01 43 01 00 00 00 1b {TXN_1} {TEST} 00 00 00 02 68 69 00 00 00 00 00 00 00 03",
            TxnProduce("txn-1", "test", [b"hi"], None, [3]),
            transaction_requests.encode_produce_many("txn-1", "test", [b"hi"], [None], 3),
        ),
        (f"af 01 41 01 00 00 00 07 {TXN_1}", TxnCommit("txn-1"), transaction_requests.encode_commit("txn-1")),
        (
            f"af 01 41 01 00 00 00 20 {TXN_1} 00 00 00 01 00 01 67 {TEST} 00 00 00 02 00 00 00 00 00 00 00 2a",
            TxnCommit("txn-1", [GroupOffset("g", "test", 2, 42)]),
            transaction_requests.encode_commit("txn-1", [GroupOffset("g", "test", 2, 42)]),
        ),
        (f"af 01 42 01 00 00 00 07 {TXN_1}", TxnRollback("txn-1"), transaction_requests.encode_rollback("txn-1")),
    ],
)
def test_requests_are_read_as_they_are_written(sent: str, body: object, ours: bytes) -> None:
    data = bytes.fromhex(sent)
    (call,) = RequestDecoder().feed(data)
    assert isinstance(call, Call)
    assert call.body == body
    assert ours == data


@pytest.mark.parametrize(
    ("opcode", "payload", "fault"),
    [
        (0x40, "00", "1 unexpected bytes"),
        (0x41, "", "length of transaction needs 2 bytes"),
        (0x41, f"{TXN_1} ff ff ff ff", "offsets are announced"),
        (0x41, f"{TXN_1} 00 00 00 00 00", "1 unexpected bytes"),
        (0x42, f"{TXN_1} 00", "1 unexpected bytes"),
        (0x43, f"{TXN_1} {TEST} 00 00 00 09 68", "value needs 9 bytes"),
        (0x43, f"{TXN_1} {TEST} 00 00 00 01 68 00", "length of key needs 4 bytes"),
        (0x43, f"{TXN_1} {TEST} 00 00 00 01 68 00 00 00 00 00 00 00 00 00", "1 unexpected bytes"),
    ],
)
def test_requests_that_are_broken_say_where(opcode: int, payload: str, fault: str) -> None:
    (call,) = RequestDecoder().feed(frame(opcode, bytes.fromhex(payload)))
    assert isinstance(call, Call)
    assert isinstance(call.body, BadRequest)
    assert fault in call.body.message


# --- what each request does ---


async def begin(talk: Conversation) -> str:
    reply = await talk.ask(transaction_requests.encode_begin())
    assert reply.opcode == Opcode.TXN_BEGIN
    transaction, begun = decode_transaction(reply.payload)
    assert begun
    return transaction


async def add(
    talk: Conversation, transaction: str, topic: str, value: bytes, key: bytes | None = None, partition: int = -1
) -> Frame:
    return await talk.ask(
        transaction_requests.encode_produce_many(transaction, topic, [value], [key], partition=partition)
    )


async def commit(talk: Conversation, transaction: str, *offsets: GroupOffset) -> Frame:
    return await talk.ask(transaction_requests.encode_commit(transaction, offsets))


async def values(talk: Conversation, topic: str, partition: int = 0) -> list[bytes]:
    reply = await talk.ask(request_encoding.encode_fetch(topic, partition, 0, 1000))
    return decode_fetched(reply.payload, native=False).values


async def test_a_transaction_from_begin_to_commit(talk: Conversation) -> None:
    transaction = await begin(talk)
    reply = await add(talk, transaction, "orders", b"one")
    assert reply == (
        0x43,
        bytes.fromhex("00066f7264657273 00000000 0000000000000000 0000000000000000 ffffffff 00000003"),
    )
    await add(talk, transaction, "payments", b"two", b"k")
    assert await values(talk, "orders") == []
    assert await commit(talk, transaction) == (0x41, b"\x00\x24" + transaction.encode() + b"\x01")
    assert await values(talk, "orders") == [b"one"]
    assert await values(talk, "payments") == [b"two"]


async def test_committing_again_is_no_error_and_does_nothing(talk: Conversation) -> None:
    transaction = await begin(talk)
    await add(talk, transaction, "orders", b"one")
    await commit(talk, transaction)
    reply = await commit(talk, transaction, GroupOffset("g", "orders", 0, 1))
    assert reply == (0x41, b"\x00\x24" + transaction.encode() + b"\x00")
    assert await values(talk, "orders") == [b"one"]
    assert (await talk.ask(request_encoding.encode_get_offset("orders", "g", 0))).error.startswith(
        "consumer group not found"
    )


async def test_a_commit_that_cannot_be_is_an_error_because_clients_see_nothing_else(
    talk: Conversation, clock: ManualClock
) -> None:
    assert (await commit(talk, "txn-1")).error == "transaction not found: txn-1"
    rolled_back = await begin(talk)
    await talk.ask(transaction_requests.encode_rollback(rolled_back))
    assert (await commit(talk, rolled_back)).error == "transaction is not active: rolled back"
    late = await begin(talk)
    clock.advance(60)
    assert (await commit(talk, late)).error == "transaction is not active: timed out"


async def test_rolling_back_what_is_not_there_is_no_error_and_what_is_committed_is(talk: Conversation) -> None:
    assert await talk.ask(transaction_requests.encode_rollback("txn-1")) == (0x42, b"\x00\x05txn-1\x00")
    transaction = await begin(talk)
    await add(talk, transaction, "orders", b"one")
    for _ in range(2):
        reply = await talk.ask(transaction_requests.encode_rollback(transaction))
        assert decode_transaction(reply.payload) == (transaction, True)
    assert await values(talk, "orders") == []
    committed = await begin(talk)
    await commit(talk, committed)
    reply = await talk.ask(transaction_requests.encode_rollback(committed))
    assert reply.error == "transaction is not active: committed"


async def test_adding_is_refused_as_deployed_brokers_put_it(talk: Conversation) -> None:
    assert (await add(talk, "txn-1", "orders", b"one")).error == "transaction not found: txn-1"
    transaction = await begin(talk)
    await commit(talk, transaction)
    assert (await add(talk, transaction, "orders", b"one")).error == "transaction is not active: committed"
    transaction = await begin(talk)
    assert (await add(talk, transaction, "__groups", b"one")).error.startswith("access denied")
    assert (await add(talk, transaction, "..", b"one")).error.startswith("invalid topic name")
    assert (await add(talk, transaction, "orders", b"one", partition=7)).error.startswith("partition 7 not found")


async def test_a_transaction_is_not_tied_to_its_connection(flymq: FlyMQ, talk: Conversation) -> None:
    transaction = await begin(talk)
    await add(talk, transaction, "orders", b"one")
    talk.session.closed()
    other = Conversation(flymq, "192.0.2.2:50000")
    await add(other, transaction, "orders", b"two")
    await commit(other, transaction)
    assert await values(other, "orders") == [b"one", b"two"]


async def test_requests_written_together_are_answered_in_order(talk: Conversation) -> None:
    transaction = await begin(talk)
    count = 300
    talk.say(
        transaction_requests.encode_produce_many(transaction, "orders", [b"%d" % row for row in range(count)]),
        transaction_requests.encode_commit(transaction),
        request_encoding.encode_fetch("orders", 0, 0, count),
    )
    replies = await talk.replies(count + 2)
    assert {decode_added(reply.payload) for reply in replies[:count]} == {0}
    assert decode_transaction(replies[count].payload) == (transaction, True)
    assert decode_fetched(replies[-1].payload, native=False).values == [b"%d" % row for row in range(count)]


async def test_of_requests_written_together_only_those_at_fault_are_refused(talk: Conversation, flymq: FlyMQ) -> None:
    await talk.ask(request_encoding.encode_create_topic("orders", 2))
    transaction = await begin(talk)
    add_to = transaction_requests.encode_produce_many
    talk.say(
        add_to(transaction, "orders", [b"a"], partition=1),
        add_to(transaction, "orders", [b"b"], partition=2),
        add_to(transaction, "orders", [b"c"], [b"k"]),
        add_to(transaction, "orders", [b"d"], [b"k" * 70_000]),
        add_to("txn-1", "orders", [b"e", b"f"]),
        transaction_requests.encode_commit(transaction),
    )
    replies = await talk.replies(7)
    assert [decode_added(replies[row].payload) for row in (0, 2)] == [1, 0]
    assert replies[1].error.startswith("partition 2 not found")
    assert replies[3].error.startswith("record too large")
    assert {reply.error for reply in replies[4:6]} == {"transaction not found: txn-1"}
    assert decode_transaction(replies[6].payload) == (transaction, True)
    assert [await values(talk, "orders", index) for index in range(2)] == [[b"c"], [b"a"]]
    assert flymq.stats.requests[Opcode.TXN_PRODUCE] == 6
    assert flymq.stats.errors == 4


async def test_group_offsets_move_with_the_commit(talk: Conversation) -> None:
    transaction = await begin(talk)
    await add(talk, transaction, "orders", b"one")
    refused = await commit(talk, transaction, GroupOffset("g", "orders", 9, 1))
    assert refused.error.startswith("partition 9 not found")
    assert await values(talk, "orders") == []
    reply = await commit(talk, transaction, GroupOffset("g", "orders", 0, 1))
    assert decode_transaction(reply.payload) == (transaction, True)
    assert decode_offset((await talk.ask(request_encoding.encode_get_offset("orders", "g", 0))).payload) == 1


async def test_records_that_a_worker_checks_are_in_before_the_commit(talk: Conversation, broker: Broker) -> None:
    await broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
    await broker.create_topic(ANONYMOUS, "orders", TopicConfig(), schema="numbers")
    transaction = await begin(talk)
    long = b" " * 300_000 + b"2"
    talk.say(
        transaction_requests.encode_produce_many(transaction, "orders", [long, long + b'"', b"3", b"x"]),
        transaction_requests.encode_commit(transaction),
    )
    first, second, third, fourth, committed = await talk.replies(5)
    assert [decode_added(each.payload) for each in (first, third)] == [0, 0]
    assert second.error.startswith("schema validation failed")
    assert fourth.error.startswith("schema validation failed")
    assert decode_transaction(committed.payload) == (transaction, True)
    assert await values(talk, "orders") == [long, b"3"]


# --- the clients ---


@pytest.fixture
async def client(penstock_broker: RunningBroker) -> AsyncIterator[AsyncFlyMQClient]:
    async with await penstock.connect_async(penstock_broker.url) as client:
        yield client


async def stored(client: AsyncFlyMQClient, topic: str) -> list[bytes]:
    return [record.value async for record in client.records(topic)]


async def test_the_end_of_the_block_commits(client: AsyncFlyMQClient) -> None:
    await client.create_topic("orders", 3)
    async with client.transaction() as txn:
        assert await txn.send("orders", b"a", key=b"user-123") == 2
        assert await txn.send("orders", b"b", partition=1) == 1
        assert await txn.send_many("orders", [(b"a", b"c"), (b"k1", b"d")]) == [1, 0]
        assert await txn.send_many("payments", [b"e", b"f"]) == [0, 0]
        assert await txn.send_many("payments", []) == []
        txn.commit_offset("payments", "g", 0, 7)
        assert await stored(client, "orders") == []
        assert await client.committed("payments", "g", 0) is None
    assert sorted(await stored(client, "orders")) == [b"a", b"b", b"c", b"d"]
    assert [record.key async for record in client.records("orders", 2)] == [b"user-123"]
    assert await stored(client, "payments") == [b"e", b"f"]
    assert await client.committed("payments", "g", 0) == 7


async def test_an_exception_inside_the_block_rolls_back(client: AsyncFlyMQClient) -> None:
    await client.create_topic("orders")
    txn = client.transaction()

    async def fail_half_way() -> None:
        async with txn:
            await txn.send("orders", b"a")
            txn.commit_offset("orders", "g", 0, 7)
            raise KeyError

    with pytest.raises(KeyError):
        await fail_half_way()
    with pytest.raises(TransactionNotActive, match="rolled back"):
        await txn.send("orders", b"b")
    assert await stored(client, "orders") == []
    with pytest.raises(GroupNotFound):
        await client.describe_group("g")


async def test_a_transaction_is_fenced_against_a_second_commit(client: AsyncFlyMQClient) -> None:
    async with client.transaction() as txn:
        await txn.send("orders", b"a")
    with pytest.raises(TransactionNotActive, match="committed"):
        await txn.commit()
    with pytest.raises(TransactionNotActive, match="committed"):
        await txn.rollback()
    with pytest.raises(InvalidRequest, match="has begun already"):
        await txn.begin()
    assert await stored(client, "orders") == [b"a"]


async def test_without_a_block_the_steps_are_calls(client: AsyncFlyMQClient) -> None:
    txn = client.transaction()
    with pytest.raises(InvalidRequest, match="has not begun"):
        await txn.send("orders", b"a")
    await txn.begin()
    assert txn.id.startswith("txn-")
    await txn.send("orders", b"a")
    await txn.commit()
    assert await stored(client, "orders") == [b"a"]


async def test_refusals_come_back_as_errors_and_the_rest_may_be_committed(client: AsyncFlyMQClient) -> None:
    await client.create_topic("orders", 2)
    async with client.transaction() as txn:
        with pytest.raises(PartitionNotFound):
            await txn.send("orders", b"a", partition=2)
        with pytest.raises(PartitionNotFound):
            await txn.send_many("orders", [b"a", b"b"], partition=2)
        with pytest.raises(BatchFailed, match="1 of 2 records were refused") as failure:
            await txn.send_many("orders", [(b"k", b"c"), (b"k" * 70_000, b"d")])
        assert failure.value.results[0] == 0
        with pytest.raises(InvalidTopicName):
            await txn.send("", b"a")
        with pytest.raises(InvalidRequest, match="are bytes, not str"):
            await txn.send("orders", "a")  # type: ignore[arg-type]
        with pytest.raises(RecordTooLarge, match="does not fit into a FlyMQ frame"):
            await txn.send("orders", bytes(PAYLOAD_BYTES_MAX))
    assert await stored(client, "orders") == [b"c"]


async def test_a_commit_that_is_refused_is_rolled_back_by_the_block(
    client: AsyncFlyMQClient, penstock_broker: RunningBroker
) -> None:
    txn = client.transaction()

    async def fill() -> None:
        async with txn:
            await txn.send("orders", bytes(20 << 20))
            penstock_broker.disk.disk_full()

    with pytest.raises(NoSpace):
        await fill()
    penstock_broker.disk.disk_full_off()
    with pytest.raises(TransactionNotActive, match="rolled back"):
        await txn.commit()


async def test_a_commit_whose_outcome_is_unknown_says_so(
    client: AsyncFlyMQClient, penstock_broker: RunningBroker
) -> None:
    txn = await client.transaction().begin()
    await txn.send("orders", b"a")
    penstock_broker.disk.fail_next_fsync(times=2)  # the trail of who created the topic may be flushed first
    with pytest.raises(WriteFailed, match="unknown"):
        await txn.commit()
    with pytest.raises(WriteFailed, match="restart the broker, then commit it again"):
        await txn.commit()


async def test_a_transaction_goes_on_by_its_id(client: AsyncFlyMQClient) -> None:
    begun = await client.transaction().begin()
    await begun.send("orders", b"a")
    async with client.transaction(begun.id) as txn:
        await txn.send("orders", b"b")
    await client.transaction(begun.id).commit()
    assert await stored(client, "orders") == [b"a", b"b"]
    with pytest.raises(TransactionNotFound):
        await client.transaction("txn-1").commit()


def test_a_program_without_a_loop_has_the_same_block(penstock_broker: RunningBroker) -> None:
    with penstock.connect(penstock_broker.url) as client:
        with client.transaction() as txn:
            assert txn.send("orders", b"a", key=b"k") == 0
            assert txn.send_many("orders", [b"b"], partition=0) == [0]
            txn.commit_offset("orders", "g", 0, 2)
        txn = client.transaction()

        def fail_half_way() -> None:
            with txn:
                txn.send("orders", b"c")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail_half_way()
        assert txn.id.startswith("txn-")
        txn.rollback()
        txn = client.transaction().begin()
        txn.commit()
        assert [record.value for record in client.records("orders")] == [b"a", b"b"]
        assert client.committed("orders", "g", 0) == 2


# --- connections that are lost ---


async def test_a_commit_is_sent_again_over_a_new_connection() -> None:
    commits = 0

    def answer(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        nonlocal commits
        if opcode == Opcode.TXN_BEGIN:
            return encode_transaction(opcode, "txn-1", done=True)
        commits += 1
        if commits == 1:
            peer.transport.abort()
            return None
        return encode_transaction(opcode, "txn-1", done=False)

    async with scripted(answer) as broker, connected(broker) as client:
        txn = await client.transaction().begin()
        await txn.commit()
        assert [opcode for opcode, _ in broker.requests] == [0x40, 0x41, 0x41]


async def test_records_are_not_sent_again_and_the_transaction_can_only_be_rolled_back() -> None:
    def answer(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if opcode == Opcode.TXN_PRODUCE:
            peer.transport.abort()
            return None
        return encode_transaction(opcode, "txn-1", done=True)

    async with scripted(answer) as broker, connected(broker) as client:
        with pytest.raises(ConnectionLost):
            async with client.transaction() as txn:
                await txn.send("orders", b"a")
        with pytest.raises(TransactionNotActive, match="whether all records are in it is unknown"):
            await txn.commit()
        assert [opcode for opcode, _ in broker.requests] == [0x40, 0x43, 0x42]


async def test_of_a_rollback_that_fails_nobody_hears_because_the_exception_says_more() -> None:
    def answer(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if opcode == Opcode.TXN_BEGIN:
            return encode_transaction(opcode, "txn-1", done=True)
        return error("limit exceeded: no")

    async with scripted(answer) as broker, connected(broker) as client:
        with pytest.raises(LimitExceeded):
            async with client.transaction() as txn:
                await txn.send("orders", b"a")
        assert [opcode for opcode, _ in broker.requests] == [0x40, 0x43, 0x42]


def test_a_commit_that_a_crash_interrupts_is_cleared_up_by_asking_again(tmp_path: Path) -> None:
    # The journal has the transaction, the answer was never sent.
    broker = BrokerProcess(tmp_path / "data")
    broker.start({"PENSTOCK_CRASH_AT": "journal.synced:1"})
    try:
        with FlyMQClient(broker.url, options=ClientOptions(retry=NO_RETRY)) as client:
            client.create_topic("orders", 2)
            txn = client.transaction().begin()
            txn.send_many("orders", [b"a", b"b"])
            lost = client.transaction().begin()
            lost.send("orders", b"c")
            with pytest.raises(penstock.errors.PenstockError):
                txn.commit()
            assert broker.wait_exit() == 9
            broker.start()
            txn.commit()
            with pytest.raises(TransactionNotFound):
                lost.commit()
            assert sorted(record.value for record in client.records("orders")) == [b"a", b"b"]
    finally:
        broker.close()


async def test_many_tasks_share_one_client(client: AsyncFlyMQClient) -> None:
    async def one(number: int) -> None:
        async with client.transaction() as txn:
            for row in range(5):
                await txn.send("orders", b"%d/%d" % (number, row))

    await asyncio.gather(*map(one, range(20)))
    found = await stored(client, "orders")
    assert len(found) == 100
    assert all(len({value.split(b"/")[0] for value in found[at : at + 5]}) == 1 for at in range(0, 100, 5))
