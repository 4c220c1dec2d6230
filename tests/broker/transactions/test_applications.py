"""Commits with a name: done once over transactions, runs and restarts, and only by the newest run."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.transactions.applications import Once
from penstock.errors import (
    AccessDenied,
    InvalidRequest,
    NoSpace,
    ProducerFenced,
)
from tests.broker.transaction_house import ALICE, BOB, House

DAY_S = 24 * 3600


async def test_an_epoch_is_written_once_over_transactions_and_restarts(house: House) -> None:
    async with house:
        await house.topic("orders")

        async def write(epoch: int, value: bytes) -> bool:
            transaction = house.begin()
            house.add(transaction, "orders", [value])
            done = await house.commit(transaction, once=Once("query", 1, epoch))
            assert not await house.commit(transaction), "asked again, it says that it was done"
            return done

        assert await write(0, b"a")
        assert not await write(0, b"a")
        assert await write(2, b"b")
        assert not await write(1, b"earlier")
        await house.restart()
        assert not await write(2, b"b")
        assert await write(3, b"c")
        assert await house.values("orders") == [b"a", b"b", b"c"]
        assert house.transactions.stats.open_bytes == 0


async def test_of_many_commits_of_one_epoch_at_the_same_time_one_is_written(house: House) -> None:
    async with house:
        await house.topic("orders")
        transactions = [house.begin() for _ in range(10)]
        for number, transaction in enumerate(transactions):
            house.add(transaction, "orders", [f"{number}".encode()])
        done = await asyncio.gather(*(house.commit(each, once=Once("query", 1, 5)) for each in transactions))
        assert done.count(True) == 1
        assert await house.values("orders") == [f"{done.index(True)}".encode()]


async def test_a_newer_run_fences_the_older_one(house: House) -> None:
    async with house:
        await house.topic("orders")
        first = await house.transactions.begin_run(ALICE, "query")
        old = house.begin()
        house.add(old, "orders", [b"old"])
        second = await house.transactions.begin_run(ALICE, "query")
        assert second > first
        await house.restart()
        old = house.begin()
        house.add(old, "orders", [b"old"])
        with pytest.raises(ProducerFenced, match=f"run {first} of application query is fenced: run {second} has begun"):
            await house.commit(old, once=Once("query", first, 1))
        new = house.begin()
        house.add(new, "orders", [b"new"])
        assert await house.commit(new, once=Once("query", second, 1))
        assert await house.values("orders") == [b"new"]
        assert house.transactions.rollback(ALICE, old), "a fenced transaction is still there to be rolled back"


async def test_a_new_run_knows_the_epochs_of_the_runs_before_it(house: House) -> None:
    async with house:
        await house.topic("orders")
        run = await house.transactions.begin_run(ALICE, "query")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        assert await house.commit(transaction, once=Once("query", run, 7))
        run = await house.transactions.begin_run(ALICE, "query")
        transaction = house.begin()
        house.add(transaction, "orders", [b"a"])
        assert not await house.commit(transaction, once=Once("query", run, 7))
        assert await house.values("orders") == [b"a"]


async def test_runs_begun_at_the_same_time_get_different_numbers(house: House) -> None:
    async with house:
        runs = await asyncio.gather(*(house.transactions.begin_run(ALICE, "query") for _ in range(10)))
        assert sorted(runs) == list(range(1, 11))


async def test_an_application_belongs_to_the_principal_that_named_it_first(house: House) -> None:
    async with house:
        await house.topic("orders")
        await house.transactions.begin_run(ALICE, "query")
        with pytest.raises(AccessDenied, match="belongs to someone else"):
            await house.transactions.begin_run(BOB, "query")
        transaction = house.begin(BOB)
        with pytest.raises(AccessDenied, match="belongs to someone else"):
            await house.commit(transaction, BOB, Once("query", 9, 9))
        assert await house.commit(house.begin(ALICE), once=Once("query", 1, 1)), "nobody holds it after a refusal"


@pytest.mark.parametrize("once", [Once("", 0, 0), Once("a\n", 0, 0), Once("a", -1, 0), Once("a", 0, 1 << 63)])
async def test_a_name_that_makes_no_sense_is_refused(house: House, once: Once) -> None:
    async with house:
        transaction = house.begin()
        with pytest.raises(InvalidRequest):
            await house.commit(transaction, once=once)
        assert await house.commit(transaction)


async def test_a_named_commit_on_a_full_disk_is_not_taken_for_done(house: House) -> None:
    async with house:
        await house.topic("orders")
        transaction = house.begin()
        house.add(transaction, "orders", [bytes(20 << 20)])
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await house.commit(transaction, once=Once("query", 1, 1))
        house.disk.disk_full_off()
        assert await house.commit(transaction, once=Once("query", 1, 1))
        assert len(await house.values("orders")) == 1


async def test_a_run_with_a_name_is_begun_once_and_an_older_one_is_not_begun_again(house: House) -> None:
    async with house:
        begin_run = house.broker._applications.begin_run
        assert (await begin_run(ALICE, "query", "first")).run == 1
        assert (await begin_run(ALICE, "query", "first")).run == 1
        await house.restart()
        begin_run = house.broker._applications.begin_run
        assert (await begin_run(ALICE, "query", "first")).run == 1
        assert (await begin_run(ALICE, "query", "second")).run == 2
        with pytest.raises(ProducerFenced, match="run first of application query is fenced: run 2 has begun"):
            await begin_run(ALICE, "query", "first")
        assert await house.transactions.begin_run(ALICE, "query") == 3
        with pytest.raises(ProducerFenced):
            await begin_run(ALICE, "query", "second")
        with pytest.raises(InvalidRequest, match="run name has 65 bytes"):
            await begin_run(ALICE, "query", "x" * 65)


async def test_an_application_of_one_epoch_is_forgotten_after_a_day(house: House) -> None:
    async with house:
        applications = house.broker._applications
        await applications.begin_run(ALICE, "job", "run", lasting=False)
        await applications.begin_run(ALICE, "query", "run")
        house.clock.advance(DAY_S + 1)
        applications.forget()
        while applications.standing(ALICE, "job").run:
            await asyncio.sleep(0)
        assert applications.standing(ALICE, "query").run == 1
