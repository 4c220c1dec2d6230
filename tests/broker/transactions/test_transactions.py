"""Transactions: nothing of one shows before its commit, everything after it, once, whatever fails in between."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS, Operation, Principal, Resource
from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions.transactions import Added
from penstock.errors import (
    AccessDenied,
    GroupNotFound,
    InvalidRequest,
    LimitExceeded,
    PartitionNotFound,
    RecordTooLarge,
    ShuttingDown,
    TopicNotFound,
    TransactionNotActive,
    TransactionNotFound,
    ValidationFailed,
)
from penstock.log.api import TopicConfig
from penstock.record_headers import encode_headers
from penstock.testing.clock import ManualClock
from tests.broker.producing import produce
from tests.broker.transaction_house import ALICE, BOB, House
from tests.open_access import OpenAccess

DAY_S = 24 * 3600


# -- all or nothing -------------------------------------------------------------------------------------------------------


@pytest.mark.embedded
async def test_records_of_all_topics_appear_together_with_the_commit_and_not_before(house: House) -> None:
    async with house:
        await house.topic("orders", partitions=3)
        await house.topic("payments")
        transaction = house.begin()
        assert house.add(transaction, "orders", [b"a", b"b"], partition=2) == [2, 2]
        assert house.add(transaction, "payments", [b"c"]) == [0]
        assert house.add(transaction, "orders", [b"d"], partition=1) == [1]
        assert [await house.values("orders", index) for index in range(3)] == [[], [], []]
        assert await house.values("payments") == []

        seen: list[tuple[int, ...]] = []
        places = [("orders", 1), ("orders", 2), ("payments", 0)]
        handles = [house.engine.partition(*place) for place in places]
        for handle in handles:
            handle.watch(lambda: seen.append(tuple(handle.committed_end for handle in handles)))
        assert await house.commit(transaction)
        assert set(seen) == {(1, 2, 1)}
        assert [await house.values(*place) for place in places] == [[b"d"], [b"a", b"b"], [b"c"]]


async def test_keys_headers_expiries_and_tombstones_are_stored_as_they_were_given(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        headers = encode_headers([("trace", b"7")])
        added: list[object] = []
        house.transactions.produce(
            ALICE, "orders", transaction, -1, [b"a", None], [b"k", b"k"], [headers, None], [0, 99], done=added.append
        )
        house.add(transaction, "orders", [b"b"])
        assert await house.commit(transaction)
        (block,) = await house.engine.partition("orders", 0).read(0)
        assert block.values() == [b"a", None, b"b"]
        assert block.keys() == [b"k", b"k", None]
        assert block.headers() == [headers, None, None]
        assert list(block.expiries() or ()) == [0, 99, 0]


async def test_records_go_to_the_partitions_that_a_plain_write_would_choose(house: House) -> None:
    async with house:
        await house.topic("orders", partitions=3)
        placed = await produce(house.broker, "orders", [b"x"])
        assert [each.partition for each in placed] == [0]
        transaction = house.begin()
        assert house.add(transaction, "orders", [b"a", b"b", b"c"], [b"user-123", None, b"a"]) == [2, 1, 1]
        assert house.add(transaction, "orders", [b"d"]) == [2]


async def test_a_rollback_leaves_nothing_and_twice_is_as_good_as_once(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        assert house.transactions.rollback(ALICE, transaction)
        assert house.transactions.rollback(ALICE, transaction)
        with pytest.raises(TransactionNotActive, match="rolled back"):
            house.add(transaction, "orders", [b"b"])
        with pytest.raises(TransactionNotActive, match="rolled back"):
            await house.commit(transaction)
        assert await house.values("orders") == []
        assert house.transactions.stats.open_bytes == 0


async def test_an_empty_transaction_commits(house: House) -> None:
    async with house:
        transaction = house.begin()
        assert await house.commit(transaction)
        assert not await house.commit(transaction)


async def test_transactions_side_by_side_keep_their_records_apart(house: House) -> None:
    async with house:
        await house.topic("orders")
        transactions = [house.begin() for _ in range(20)]
        for round_ in range(5):
            for number, transaction in enumerate(transactions):
                house.add(transaction, "orders", [f"{number}/{round_}".encode()])
        for transaction in transactions[1::2]:
            house.transactions.rollback(ALICE, transaction)
        assert all(await asyncio.gather(*(house.commit(transaction) for transaction in transactions[::2])))
        values = await house.values("orders")
        assert sorted(values, key=str) == sorted(
            (f"{number}/{round_}".encode() for number in range(0, 20, 2) for round_ in range(5)), key=str
        )
        numbers = [number for number, _ in itertools.groupby(str(value).split("/")[0] for value in values)]
        assert len(numbers) == len(set(numbers)), "records of one transaction are together in the partition"


# -- once -----------------------------------------------------------------------------------------------------------------


async def test_a_second_commit_finds_it_done_and_writes_nothing(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        assert await house.commit(transaction)
        assert not await house.commit(transaction)
        await house.restart()
        assert not await house.commit(transaction)
        with pytest.raises(TransactionNotActive, match="not active: committed"):
            house.add(transaction, "orders", [b"b"])
        with pytest.raises(TransactionNotActive, match="not active: committed"):
            house.transactions.rollback(ALICE, transaction)
        assert await house.values("orders") == [b"a"]


async def test_of_two_commits_at_the_same_time_one_does_it_and_both_hear_of_it(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        first, second = await asyncio.gather(house.commit(transaction), house.commit(transaction))
        assert (first, second) == (True, False)
        assert await house.values("orders") == [b"a"]


@pytest.mark.embedded
async def test_while_a_commit_is_under_way_the_transaction_cannot_change(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        with house.disk.fsync_held() as flushing:
            committing = asyncio.create_task(house.commit(transaction))
            await asyncio.to_thread(flushing.wait)
            for attempt in (
                lambda: house.add(transaction, "orders", [b"b"]),
                lambda: house.transactions.rollback(ALICE, transaction),
            ):
                with pytest.raises(TransactionNotActive, match="being committed"):
                    attempt()
            house.clock.advance(3600)
            house.transactions.sweep()
        assert await committing
        assert await house.values("orders") == [b"a"]


@pytest.mark.embedded
async def test_a_commit_continues_when_its_caller_is_cancelled(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        with house.disk.fsync_held() as flushing:
            committing = asyncio.create_task(house.commit(transaction))
            await asyncio.to_thread(flushing.wait)
            committing.cancel()
            await asyncio.gather(committing, return_exceptions=True)
        assert not await house.commit(transaction)
        assert await house.values("orders") == [b"a"]


async def test_a_transaction_that_is_open_when_the_broker_ends_is_gone(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        await house.restart()
        with pytest.raises(TransactionNotFound, match=transaction):
            await house.commit(transaction)
        assert await house.values("orders") == []


async def test_a_commit_that_is_under_way_when_the_broker_closes_is_finished(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        committing = asyncio.create_task(house.commit(transaction))
        await asyncio.sleep(0)
        await house.restart()
        assert await committing
        assert await house.values("orders") == [b"a"]


async def test_a_broker_that_has_closed_commits_no_more(house: House) -> None:
    async with house:
        transaction = house.begin()
        await house.broker.close()
        with pytest.raises(ShuttingDown):
            await house.commit(transaction)


# -- whose it is ----------------------------------------------------------------------------------------------------------


async def test_another_principal_can_do_nothing_with_an_id_and_learns_nothing_from_it(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin(ALICE)
        house.add(transaction, "orders", [b"a"])
        for _ in ("open", "committed"):
            with pytest.raises(TransactionNotFound):
                house.add(transaction, "orders", [b"b"], who=BOB)
            with pytest.raises(TransactionNotFound):
                house.transactions.commit_offset(BOB, "orders", transaction, "g", 0, 1)
            with pytest.raises(TransactionNotFound):
                await house.commit(transaction, BOB)
            assert not house.transactions.rollback(BOB, transaction)
            await house.commit(transaction, ALICE)
        assert await house.values("orders") == [b"a"]


async def test_an_unknown_id_is_refused_and_rolling_it_back_finds_nothing(house: House) -> None:
    async with house:
        await house.topic("orders")
        with pytest.raises(TransactionNotFound, match="transaction not found: txn-1"):
            house.add("txn-1", "orders", [b"a"])
        with pytest.raises(TransactionNotFound, match="transaction not found: txn-1"):
            await house.commit("txn-1")
        assert not house.transactions.rollback(ALICE, "txn-1")


async def test_ids_are_long_and_never_the_same(house: House) -> None:
    async with house:
        ids = {house.begin() for _ in range(500)}
        assert len(ids) == 500
        assert all(len(each) == len("txn-") + 32 for each in ids)


class Rights(OpenAccess):
    def __init__(self) -> None:
        super().__init__()
        self.withdrawn: set[tuple[Operation, str]] = set()

    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        if (operation, resource.name) in self.withdrawn:
            raise AccessDenied(f"{principal.name} may not {operation.value} {resource.name}")


async def test_a_right_that_was_withdrawn_in_between_is_missed_at_the_commit(
    tmp_path: Path, clock: ManualClock
) -> None:
    rights = Rights()
    async with House(tmp_path, clock, access=rights) as house:
        await house.topic("orders")
        await house.topic("payments")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        house.add(transaction, "payments", [b"b"])
        house.transactions.commit_offset(ALICE, "orders", transaction, "g", 0, 1)
        for right in ((Operation.WRITE, "payments"), (Operation.COMMIT, "g")):
            rights.withdrawn = {right}
            with pytest.raises(AccessDenied):
                await house.commit(transaction)
            assert await house.values("orders") == []
        rights.withdrawn.clear()
        assert await house.commit(transaction)


# -- what is refused ------------------------------------------------------------------------------------------------------


async def test_what_a_plain_write_would_refuse_is_refused_at_once_and_the_transaction_continues(house: House) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        await house.topic("latest", cleanup="compact")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"], partition=0)
        with pytest.raises(TopicNotFound):
            house.add(transaction, "missing", [b"b"])
        with pytest.raises(PartitionNotFound):
            house.add(transaction, "orders", [b"b"], partition=2)
        with pytest.raises(RecordTooLarge):
            house.add(transaction, "orders", [bytes(33 << 20)])
        with pytest.raises(InvalidRequest, match="give every record a key"):
            house.add(transaction, "latest", [b"b"])
        with pytest.raises(InvalidRequest, match="send as many"):
            house.add(transaction, "orders", [b"b", b"c"], [b"k"])
        with pytest.raises(InvalidRequest, match="at least one"):
            house.add(transaction, "orders", [])
        assert await house.commit(transaction)
        assert await house.values("orders") == [b"a"]


async def test_of_records_that_are_added_together_only_those_at_fault_are_refused(house: House) -> None:
    async with house:
        await house.broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
        await house.broker.topics.create(ANONYMOUS, "orders", TopicConfig(partitions=2, cleanup="compact"), "numbers")
        transaction = house.begin()
        added: list[Added] = []
        house.transactions.produce(
            ALICE,
            "orders",
            transaction,
            [0, 0, 1, 2, 1],
            [b"1", b"x", b"2", b"3", b"4"],
            [b"k", b"k", None, b"k", b"k"],
            done=added.append,
        )
        ((partitions, errors),) = added
        assert partitions == [0, -1, -1, -1, 1]
        assert {row: type(error) for row, error in errors.items()} == {
            1: ValidationFailed,
            2: InvalidRequest,
            3: PartitionNotFound,
        }
        assert await house.commit(transaction)
        assert [await house.values("orders", index) for index in range(2)] == [[b"1"], [b"4"]]


async def test_records_that_a_schema_refuses_are_refused_at_once(house: House) -> None:
    async with house:
        await house.broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
        await house.broker.topics.create(ANONYMOUS, "orders", TopicConfig(), schema="numbers")
        transaction = house.begin()
        house.add(transaction, "orders", [b"1"])
        with pytest.raises(ValidationFailed):
            house.add(transaction, "orders", [b'"one"'])
        added: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
        long = b" " * 300_000 + b"2"
        house.transactions.produce(ALICE, "orders", transaction, -1, [long], done=added.set_result)
        assert not added.done(), "a worker looks at records this long"
        assert await added == ([0], {})
        refused: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
        house.transactions.produce(ALICE, "orders", transaction, -1, [long + b'"'], done=refused.set_result)
        assert isinstance((await refused).errors[0], ValidationFailed)
        assert await house.commit(transaction)
        assert await house.values("orders") == [b"1", long]


@pytest.mark.parametrize("again", [False, True])
async def test_a_topic_that_is_deleted_before_the_commit_keeps_everything_from_being_written(
    house: House, again: bool
) -> None:
    async with house:
        await house.topic("orders")
        await house.topic("payments")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        house.add(transaction, "payments", [b"b"])
        await house.broker.topics.delete(ANONYMOUS, "orders")
        if again:
            await house.topic("orders")
        with pytest.raises(TopicNotFound, match="orders was deleted"):
            await house.commit(transaction)
        assert await house.values("payments") == []
        if again:
            assert await house.values("orders") == []
        assert house.transactions.rollback(ALICE, transaction)


# -- group offsets --------------------------------------------------------------------------------------------------------


async def test_offsets_of_groups_move_with_the_records(house: House) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        await house.topic("totals")
        await house.broker.groups.commit(ANONYMOUS, "orders", "g", 0, 3)
        transaction = house.begin()
        house.add(transaction, "totals", [b"a"])
        house.transactions.commit_offset(ALICE, "orders", transaction, "g", 0, 5)
        house.transactions.commit_offset(ALICE, "orders", transaction, "g", 1, 6)
        house.transactions.commit_offset(ALICE, "orders", transaction, "g", 0, 7)
        house.transactions.commit_offset(ALICE, "orders", transaction, "new", 0, 8)
        assert house.broker.groups.committed(ALICE, "orders", "g", 0) == 3
        with pytest.raises(GroupNotFound):
            house.broker.groups.committed(ALICE, "orders", "new", 0)
        assert await house.commit(transaction)
        for _ in ("now", "after a restart"):
            assert [house.broker.groups.committed(ALICE, "orders", "g", index) for index in range(2)] == [7, 6]
            assert house.broker.groups.committed(ALICE, "orders", "new", 0) == 8
            assert await house.values("totals") == [b"a"]
            await house.restart()


async def test_offsets_of_a_transaction_that_is_not_committed_move_nothing(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.transactions.commit_offset(ALICE, "orders", transaction, "g", 0, 5)
        house.transactions.rollback(ALICE, transaction)
        with pytest.raises(GroupNotFound):
            house.broker.groups.committed(ALICE, "orders", "g", 0)
        assert list(house.broker.groups.all(ANONYMOUS)) == []


async def test_offsets_that_cannot_be_committed_are_refused_at_once(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        with pytest.raises(InvalidRequest, match="out of range"):
            house.transactions.commit_offset(ALICE, "orders", transaction, "g", 0, -1)
        with pytest.raises(PartitionNotFound):
            house.transactions.commit_offset(ALICE, "orders", transaction, "g", 1, 0)
        with pytest.raises(InvalidRequest, match="group name"):
            house.transactions.commit_offset(ALICE, "orders", transaction, "", 0, 0)


async def test_a_group_that_does_not_fit_keeps_everything_from_being_written(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with House(tmp_path, clock, BrokerLimits(groups_max=1)) as house:
        await house.topic("orders")
        await house.broker.groups.commit(ANONYMOUS, "orders", "g", 0, 1)
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        house.transactions.commit_offset(ALICE, "orders", transaction, "h", 0, 1)
        with pytest.raises(LimitExceeded, match=r"limits\.groups_max"):
            await house.commit(transaction)
        assert await house.values("orders") == []
        await house.broker.groups.delete(ANONYMOUS, "g")
        assert await house.commit(transaction)
        assert house.broker.groups.committed(ALICE, "orders", "h", 0) == 1


# -- everything at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
async def test_a_random_life_leaves_what_was_committed_and_nothing_else(house: House, seed: int) -> None:
    chance = random.Random(seed)
    committed: dict[tuple[str, int], list[bytes]] = {}
    offsets: dict[int, int] = {}
    open_: dict[str, tuple[list[tuple[str, int, bytes]], dict[int, int]]] = {}
    async with house:
        await house.topic("a", partitions=3)
        await house.topic("b")
        for step in range(300):
            transaction = chance.choice(list(open_)) if open_ else None
            match chance.choice(["begin", "add", "add", "add", "offset", "commit", "rollback", "rarely"]):
                case "begin":
                    open_[house.begin()] = ([], {})
                case "add" if transaction:
                    topic, value = chance.choice(["a", "b"]), f"{step}".encode()
                    (partition,) = house.add(transaction, topic, [value])
                    open_[transaction][0].append((topic, partition, value))
                case "offset" if transaction:
                    partition = chance.randrange(3)
                    house.transactions.commit_offset(ALICE, "a", transaction, "g", partition, step)
                    open_[transaction][1][partition] = step
                case "commit" if transaction:
                    assert await house.commit(transaction)
                    records, moved = open_.pop(transaction)
                    for topic, partition, value in records:
                        committed.setdefault((topic, partition), []).append(value)
                    offsets |= moved
                case "rollback" if transaction:
                    assert house.transactions.rollback(ALICE, transaction)
                    del open_[transaction]
                case "rarely" if chance.random() < 0.2:
                    open_.clear()
                    if chance.random() < 0.5:
                        await house.restart()
                    else:
                        house.clock.advance(61)
                        house.transactions.sweep()
        for topic, partition in (("a", 0), ("a", 1), ("a", 2), ("b", 0)):
            assert await house.values(topic, partition) == committed.get((topic, partition), [])
        for partition, offset in offsets.items():
            assert house.broker.groups.committed(ALICE, "a", "g", partition) == offset
