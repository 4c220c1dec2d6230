"""Transactions: what they may hold, how long, and what becomes of a commit when the disk fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions import transactions
from penstock.broker.transactions.transactions import RECORD_OVERHEAD_BYTES, Added
from penstock.errors import (
    LimitExceeded,
    NoSpace,
    NotWritten,
    OutcomeUnknown,
    TransactionNotActive,
    TransactionNotFound,
)
from penstock.testing.clock import ManualClock
from tests.broker.transaction_house import ALICE, BOB, House

DAY_S = 24 * 3600


# -- bounds ---------------------------------------------------------------------------------------------------------------


async def test_a_transaction_times_out_by_the_clock(house: House) -> None:
    async with house:
        await house.topic("orders")
        first = house.begin()
        house.add(first, "orders", [b"a"])
        house.clock.advance(30)
        second = house.begin()
        house.add(second, "orders", [b"b"])
        house.clock.advance(30)
        with pytest.raises(TransactionNotActive, match="timed out"):
            house.add(first, "orders", [b"c"])
        house.clock.advance(29.9)
        house.transactions.sweep()
        assert await house.commit(second)
        third = house.begin()
        house.add(third, "orders", [b"d"])
        house.clock.advance(60)
        house.transactions.sweep()
        with pytest.raises(TransactionNotActive, match="timed out"):
            await house.commit(third)
        assert house.transactions.rollback(ALICE, third)
        assert await house.values("orders") == [b"b"]
        stats = house.transactions.stats
        assert (stats.open, stats.open_bytes, stats.begun, stats.committed, stats.timed_out) == (0, 0, 3, 1, 2)


async def test_of_records_that_are_added_together_those_that_fit_are_added(tmp_path: Path, clock: ManualClock) -> None:
    room = RECORD_OVERHEAD_BYTES + 10
    limits = BrokerLimits(transaction_records_max=3, transaction_bytes_max=3 * room)
    async with House(tmp_path, clock, limits) as house:
        await house.topic("orders")
        transaction = house.begin()
        added: list[Added] = []
        values = [b"a", bytes(3 * room), b"b", b"c", b"d"]
        house.transactions.produce(ALICE, "orders", transaction, -1, values, done=added.append)
        ((partitions, errors),) = added
        assert partitions == [0, -1, 0, 0, -1]
        assert "transaction_bytes_max" in str(errors[1])
        assert "transaction_records_max" in str(errors[4])
        assert await house.commit(transaction)
        assert await house.values("orders") == [b"a", b"b", b"c"]


async def test_what_a_transaction_holds_is_bounded_and_a_refusal_adds_nothing(
    tmp_path: Path, clock: ManualClock
) -> None:
    limits = BrokerLimits(transaction_records_max=3, transaction_bytes_max=4 * (RECORD_OVERHEAD_BYTES + 10))
    async with House(tmp_path, clock, limits) as house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        with pytest.raises(LimitExceeded, match=r"limits\.transaction_bytes_max"):
            house.add(transaction, "orders", [b"b" * 500])
        house.transactions.commit_offset(ALICE, "orders", transaction, "g", 0, 1)
        house.transactions.commit_offset(ALICE, "orders", transaction, "g", 0, 2)
        house.add(transaction, "orders", [b"b"])
        with pytest.raises(LimitExceeded, match="records_max"):
            house.transactions.commit_offset(ALICE, "orders", transaction, "h", 0, 1)
        assert await house.commit(transaction)
        assert await house.values("orders") == [b"a", b"b"]


async def test_what_all_transactions_hold_is_bounded_and_comes_back_when_they_end(
    tmp_path: Path, clock: ManualClock
) -> None:
    limits = BrokerLimits(transactions_bytes_max=10 * RECORD_OVERHEAD_BYTES)
    async with House(tmp_path, clock, limits) as house:
        await house.topic("orders")
        for end in ("commit", "roll back", "time out", "commit"):
            transactions = [house.begin() for _ in range(9)]
            for transaction in transactions:
                house.add(transaction, "orders", [b"a"])
            with pytest.raises(LimitExceeded, match=r"limits\.transactions_bytes_max"):
                house.add(house.begin(), "orders", [b"a" * RECORD_OVERHEAD_BYTES])
            if end == "commit":
                await asyncio.gather(*map(house.commit, transactions))
            elif end == "roll back":
                for transaction in transactions:
                    house.transactions.rollback(ALICE, transaction)
            else:
                house.clock.advance(60)
                house.transactions.sweep()
        assert await house.values("orders") == [b"a"] * 18


async def test_how_many_are_open_is_bounded_for_each_principal_and_for_all(tmp_path: Path, clock: ManualClock) -> None:
    limits = BrokerLimits(transactions_max=5, transactions_per_principal_max=3)
    async with House(tmp_path, clock, limits) as house:
        of_alice = [house.begin(ALICE) for _ in range(3)]
        with pytest.raises(LimitExceeded, match=r"alice has 3 .* limits\.transactions_per_principal_max"):
            house.begin(ALICE)
        for _ in range(2):
            house.begin(BOB)
        with pytest.raises(LimitExceeded, match=r"limits\.transactions_max"):
            house.begin(BOB)
        house.transactions.rollback(ALICE, of_alice[0])
        house.begin(BOB)
        house.clock.advance(60)
        house.begin(ALICE)


async def test_committed_ids_are_forgotten_by_number_and_by_age(tmp_path: Path, clock: ManualClock) -> None:
    limits = BrokerLimits(transactions_remembered_max=10, transactions_max=50)
    async with House(tmp_path, clock, limits) as house:
        transactions = [house.begin() for _ in range(30)]
        for transaction in transactions:
            await house.commit(transaction)
        await house.restart()
        house.transactions.sweep()
        await asyncio.sleep(0)
        await house.restart()
        for transaction in transactions[:20]:
            with pytest.raises(TransactionNotFound):
                await house.commit(transaction)
        for transaction in transactions[20:]:
            assert not await house.commit(transaction)
        house.clock.advance(DAY_S + 1)
        house.transactions.sweep()
        await house.restart()
        for transaction in transactions:
            with pytest.raises(TransactionNotFound):
                await house.commit(transaction)


# -- a failing disk -------------------------------------------------------------------------------------------------------


@pytest.mark.embedded
async def test_on_a_full_disk_nothing_is_written_and_the_commit_may_be_tried_again(house: House) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        transaction = house.begin()
        for partition in range(2):
            house.add(transaction, "orders", [bytes(20 << 20)], partition=partition)
        house.transactions.commit_offset(ALICE, "orders", transaction, "g", 0, 1)
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await house.commit(transaction)
        assert [await house.values("orders", index) for index in range(2)] == [[], []]
        assert list(house.broker.groups.all(ANONYMOUS)) == []
        house.disk.disk_full_off()
        assert await house.commit(transaction)
        assert [len(await house.values("orders", index)) for index in range(2)] == [1, 1]
        assert house.broker.groups.committed(ALICE, "orders", "g", 0) == 1


@pytest.mark.embedded
async def test_after_a_failed_flush_the_outcome_is_unknown_until_a_restart_tells(house: House) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        transaction, other = house.begin(), house.begin()
        for partition in range(2):
            house.add(transaction, "orders", [b"a"], partition=partition)
            house.add(other, "orders", [b"b"], partition=partition)
        house.disk.fail_next_fsync()
        with pytest.raises(OutcomeUnknown, match=f"whether transaction {transaction} was committed is unknown"):
            await house.commit(transaction)
        with pytest.raises(OutcomeUnknown, match="restart the broker, then commit it again"):
            await house.commit(transaction)
        with pytest.raises(TransactionNotActive, match="only a restart"):
            house.transactions.rollback(ALICE, transaction)
        with pytest.raises(NotWritten, match="was not committed"):
            await house.commit(other)
        assert house.transactions.rollback(ALICE, other)
        await house.restart()
        held = [await house.values("orders", index) for index in range(2)]
        if held == [[b"a"], [b"a"]]:
            assert not await house.commit(transaction)
        else:
            assert held == [[], []]
            with pytest.raises(TransactionNotFound):
                await house.commit(transaction)


@pytest.mark.embedded
async def test_a_commit_of_unknown_outcome_is_not_forgotten_for_those_that_end_after_it(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ENDED_MAX", 2)
    async with house:
        await house.topic("orders")
        unknown, first = house.begin(), house.begin()
        house.add(unknown, "orders", [b"a"])
        house.disk.fail_next_fsync()
        with pytest.raises(OutcomeUnknown):
            await house.commit(unknown)
        for each in (first, house.begin(), house.begin()):
            assert house.transactions.rollback(ALICE, each)
        assert not house.transactions.rollback(ALICE, first), "it is forgotten"
        with pytest.raises(OutcomeUnknown, match="restart the broker"):
            await house.commit(unknown)
        with pytest.raises(TransactionNotActive, match="only a restart"):
            house.transactions.rollback(ALICE, unknown)
