"""The block that commits, against a real broker and against one that hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import penstock
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
    OutcomeUnknown,
    PartitionNotFound,
    RecordTooLarge,
    TransactionNotActive,
    TransactionNotFound,
)
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.operations.operation import OPERATIONS, encode_reply
from penstock.protocols.flymq.operations.transactions import TransactionState, TxnBegin, TxnProduce
from penstock.protocols.flymq.sync import FlyMQClient
from penstock.protocols.flymq.wire import PAYLOAD_BYTES_MAX
from penstock.testing import BrokerProcess, RunningBroker
from penstock.testing.diskfaults import Crash
from tests.protocols.flymq.scripted import Peer, connected, error, scripted


@pytest.fixture
async def client(penstock_broker: RunningBroker) -> AsyncIterator[AsyncFlyMQClient]:
    async with await penstock.connect_async(penstock_broker.url) as client:
        yield client


async def stored(client: AsyncFlyMQClient, topic: str) -> list[bytes]:
    return [record.value or b"" async for record in client.records(topic)]


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
        with pytest.raises(BatchFailed, match="1 of 2 records were not acknowledged") as failure:
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
    with pytest.raises(OutcomeUnknown, match="unknown"):
        await txn.commit()
    with pytest.raises(OutcomeUnknown, match="restart the broker, then commit it again"):
        await txn.commit()


async def test_a_transaction_continues_by_its_id(client: AsyncFlyMQClient) -> None:
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
        if opcode == TxnBegin.opcode:
            return encode_reply(OPERATIONS[opcode], TransactionState("txn-1", True))
        commits += 1
        if commits == 1:
            peer.transport.abort()
            return None
        return encode_reply(OPERATIONS[opcode], TransactionState("txn-1", False))

    async with scripted(answer) as broker, connected(broker) as client:
        txn = await client.transaction().begin()
        await txn.commit()
        assert [opcode for opcode, _ in broker.requests] == [0x40, 0x41, 0x41]


async def test_records_are_not_sent_again_and_the_transaction_can_only_be_rolled_back() -> None:
    def answer(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if opcode == TxnProduce.opcode:
            peer.transport.abort()
            return None
        return encode_reply(OPERATIONS[opcode], TransactionState("txn-1", True))

    async with scripted(answer) as broker, connected(broker) as client:
        with pytest.raises(ConnectionLost):
            async with client.transaction() as txn:
                await txn.send("orders", b"a")
        with pytest.raises(TransactionNotActive, match="whether all records are in it is unknown"):
            await txn.commit()
        assert [opcode for opcode, _ in broker.requests] == [0x40, 0x43, 0x42]


async def test_of_a_rollback_that_fails_nobody_hears_because_the_exception_says_more() -> None:
    def answer(peer: Peer, opcode: int, payload: bytes) -> bytes | None:
        if opcode == TxnBegin.opcode:
            return encode_reply(OPERATIONS[opcode], TransactionState("txn-1", True))
        return error("limit exceeded: no")

    async with scripted(answer) as broker, connected(broker) as client:
        with pytest.raises(LimitExceeded):
            async with client.transaction() as txn:
                await txn.send("orders", b"a")
        assert [opcode for opcode, _ in broker.requests] == [0x40, 0x43, 0x42]


def test_a_commit_that_a_crash_interrupts_is_cleared_up_by_asking_again(tmp_path: Path) -> None:
    # The journal has the transaction, the answer was never sent.
    broker = BrokerProcess(tmp_path / "data")
    broker.start(disk=Crash("commit flush journal:1:after"))
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
            assert sorted(record.value or b"" for record in client.records("orders")) == [b"a", b"b"]
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
