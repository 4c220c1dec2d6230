"""What each transaction request does, asked of a real broker over a session."""

from __future__ import annotations

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.log.api import TopicConfig
from penstock.protocols.flymq.codec.record_layouts import decode_fetched
from penstock.protocols.flymq.operations.operation import decode_reply, encode_request
from penstock.protocols.flymq.operations.records import Fetch
from penstock.protocols.flymq.operations.topics import CreateTopic, GetOffset
from penstock.protocols.flymq.operations.transactions import (
    GroupOffset,
    TxnBegin,
    TxnCommit,
    TxnProduce,
    TxnRollback,
    decode_added,
    encode_txn_produces,
)
from penstock.protocols.flymq.session import FlyMQ
from penstock.testing.clock import ManualClock
from tests.protocols.flymq.conversation import Conversation, Frame


async def begin(talk: Conversation) -> str:
    reply = await talk.ask(encode_request(TxnBegin()))
    assert reply.opcode == TxnBegin.opcode
    transaction, begun = decode_reply(TxnCommit, reply.payload)
    assert begun
    return transaction


async def add(
    talk: Conversation, transaction: str, topic: str, value: bytes, key: bytes | None = None, partition: int = -1
) -> Frame:
    return await talk.ask(encode_txn_produces(transaction, topic, [value], [key], partition=partition))


async def commit(talk: Conversation, transaction: str, *offsets: GroupOffset) -> Frame:
    return await talk.ask(encode_request(TxnCommit(transaction, list(offsets))))


async def values(talk: Conversation, topic: str, partition: int = 0) -> list[bytes]:
    reply = await talk.ask(encode_request(Fetch(topic, partition, 0, 1000)))
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
    assert (await talk.ask(encode_request(GetOffset("orders", "g", 0)))).error.startswith("consumer group not found")


async def test_a_commit_that_cannot_be_is_an_error_because_clients_see_nothing_else(
    talk: Conversation, clock: ManualClock
) -> None:
    assert (await commit(talk, "txn-1")).error == "transaction not found: txn-1"
    rolled_back = await begin(talk)
    await talk.ask(encode_request(TxnRollback(rolled_back)))
    assert (await commit(talk, rolled_back)).error == "transaction is not active: rolled back"
    late = await begin(talk)
    clock.advance(60)
    assert (await commit(talk, late)).error == "transaction is not active: timed out"


async def test_rolling_back_what_is_not_there_is_no_error_and_what_is_committed_is(talk: Conversation) -> None:
    assert await talk.ask(encode_request(TxnRollback("txn-1"))) == (0x42, b"\x00\x05txn-1\x00")
    transaction = await begin(talk)
    await add(talk, transaction, "orders", b"one")
    for _ in range(2):
        reply = await talk.ask(encode_request(TxnRollback(transaction)))
        assert decode_reply(TxnCommit, reply.payload) == (transaction, True)
    assert await values(talk, "orders") == []
    committed = await begin(talk)
    await commit(talk, committed)
    reply = await talk.ask(encode_request(TxnRollback(committed)))
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
        encode_txn_produces(transaction, "orders", [b"%d" % row for row in range(count)]),
        encode_request(TxnCommit(transaction)),
        encode_request(Fetch("orders", 0, 0, count)),
    )
    replies = await talk.replies(count + 2)
    assert {decode_added(reply.payload) for reply in replies[:count]} == {0}
    assert decode_reply(TxnCommit, replies[count].payload) == (transaction, True)
    assert decode_fetched(replies[-1].payload, native=False).values == [b"%d" % row for row in range(count)]


async def test_of_requests_written_together_only_those_at_fault_are_refused(talk: Conversation, flymq: FlyMQ) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 2)))
    transaction = await begin(talk)
    add_to = encode_txn_produces
    talk.say(
        add_to(transaction, "orders", [b"a"], partition=1),
        add_to(transaction, "orders", [b"b"], partition=2),
        add_to(transaction, "orders", [b"c"], [b"k"]),
        add_to(transaction, "orders", [b"d"], [b"k" * 70_000]),
        add_to("txn-1", "orders", [b"e", b"f"]),
        encode_request(TxnCommit(transaction)),
    )
    replies = await talk.replies(7)
    assert [decode_added(replies[row].payload) for row in (0, 2)] == [1, 0]
    assert replies[1].error.startswith("partition 2 not found")
    assert replies[3].error.startswith("record too large")
    assert {reply.error for reply in replies[4:6]} == {"transaction not found: txn-1"}
    assert decode_reply(TxnCommit, replies[6].payload) == (transaction, True)
    assert [await values(talk, "orders", index) for index in range(2)] == [[b"c"], [b"a"]]
    assert flymq.stats.requests[TxnProduce.opcode] == 6
    assert flymq.stats.errors == 4


async def test_group_offsets_move_with_the_commit(talk: Conversation) -> None:
    transaction = await begin(talk)
    await add(talk, transaction, "orders", b"one")
    refused = await commit(talk, transaction, GroupOffset("g", "orders", 9, 1))
    assert refused.error.startswith("partition 9 not found")
    assert await values(talk, "orders") == []
    reply = await commit(talk, transaction, GroupOffset("g", "orders", 0, 1))
    assert decode_reply(TxnCommit, reply.payload) == (transaction, True)
    assert decode_reply(GetOffset, (await talk.ask(encode_request(GetOffset("orders", "g", 0)))).payload) == 1


async def test_records_that_a_worker_checks_are_in_before_the_commit(talk: Conversation, broker: Broker) -> None:
    await broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(), schema="numbers")
    transaction = await begin(talk)
    long = b" " * 300_000 + b"2"
    talk.say(
        encode_txn_produces(transaction, "orders", [long, long + b'"', b"3", b"x"]),
        encode_request(TxnCommit(transaction)),
    )
    first, second, third, fourth, committed = await talk.replies(5)
    assert [decode_added(each.payload) for each in (first, third)] == [0, 0]
    assert second.error.startswith("schema validation failed")
    assert fourth.error.startswith("schema validation failed")
    assert decode_reply(TxnCommit, committed.payload) == (transaction, True)
    assert await values(talk, "orders") == [long, b"3"]
