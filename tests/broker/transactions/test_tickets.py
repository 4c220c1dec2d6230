"""Tickets: requests in any order, what is kept over a restart, what ends, within bounds."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions import staging
from penstock.broker.transactions.entries import Winner
from penstock.broker.transactions.staging import Committed
from penstock.broker.transactions.tickets import IDLE_S_MAX
from penstock.errors import (
    InvalidRequest,
    LimitExceeded,
    NoSpace,
    OffsetOutOfRange,
    TransactionNotActive,
)
from penstock.testing.clock import ManualClock
from tests.broker.producing import read_values
from tests.broker.transaction_house import ALICE
from tests.broker.transactions.staging_house import StagingHouse

DAY_S = 24 * 3600


async def test_requests_may_come_twice_and_in_any_order(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        pending = [
            house.start_stage("orders", [(0, [b"%d" % number])], sequence=number) for number in (2, 0, 2, 1, 0, 2)
        ]
        await asyncio.gather(*pending)
        await house.stage("orders", [(0, [b"1"])], sequence=1)
        await house.publish(0, ("a", 3))
        assert await house.values("orders") == [b"0", b"1", b"2"]


async def test_staged_records_survive_a_restart(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        await house.run()
        for number in range(5):
            await house.stage("orders", [(number % 2, [b"%d" % number])], sequence=number)
        await house.stage("orders", [(0, [b"dropped"])], attempt="b", epoch=1)
        assert await house.staging.abort(ALICE, "query", 1, 1)
        before = house.staging.stats.staged_bytes
        await house.restart()
        assert house.staging.stats.staged_bytes == before
        assert house.staging.stats.tickets == 1
        assert await house.run() == 1, "the name of the run is known"
        await house.stage("orders", [(0, [b"4"])], sequence=4)
        await house.stage("orders", [(0, [b"5"])], sequence=5)
        assert await house.publish(0, ("a", 6)) is Committed.NOW
        assert await house.values("orders", 0) == [b"0", b"2", b"4", b"5"]
        assert await house.values("orders", 1) == [b"1", b"3"]


async def test_a_request_on_its_way_when_its_ticket_is_dropped_is_refused(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        pending = house.start_stage("orders", [(0, [b"a"])])
        await house.staging.abort(ALICE, "query", 1, 0)
        with pytest.raises(TransactionNotActive, match="aborted or replaced"):
            await pending
        await house.restart()
        assert house.staging.stats.tickets == 0


async def test_an_attempt_that_begins_again_under_its_name_while_the_first_one_is_dropped_outlives_a_restart(
    house: StagingHouse,
) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        first = house.start_stage("orders", [(0, [b"first"])])
        await house.staging.abort(ALICE, "query", 1, 0)
        second = house.start_stage("orders", [(0, [b"second"])])
        with pytest.raises(TransactionNotActive):
            await first
        await second
        await house.restart()
        assert await house.publish(0, ("a", 1)) is Committed.NOW
        assert await house.values("orders") == [b"second"]


async def test_what_an_attempt_sent_before_it_was_dropped_is_not_taken_for_what_it_sends_when_it_begins_again(
    house: StagingHouse,
) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"first"])])
        on_its_way = [house.start_stage("orders", [(0, [bytes(100_000)])], sequence=number) for number in (1, 2)]
        await house.staging.abort(ALICE, "query", 1, 0)
        await house.stage("orders", [(0, [b"second"])])
        await house.stage("orders", [(0, [b"third"])], sequence=1)
        for each in on_its_way:
            with pytest.raises(TransactionNotActive):
                await each
        await house.restart()
        assert await house.publish(0, ("a", 2)) is Committed.NOW
        assert await house.values("orders") == [b"second", b"third"]


async def test_tickets_that_nobody_asks_for_expire_and_give_back_their_space(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"a"])])
        house.clock.advance(DAY_S - 1)
        await house.stage("orders", [(0, [b"b"])], attempt="b")
        await house.staging.sweep()
        assert house.staging.stats.tickets == 2
        house.clock.advance(2)
        await house.staging.sweep()
        assert (house.staging.stats.tickets, house.staging.stats.expired_tickets) == (1, 1)
        assert await house.publish(0, ("b", 1)) is Committed.NOW
        house.clock.advance(IDLE_S_MAX)
        await house.staging.sweep()
        assert house.staging_topics() == []
        await house.stage("orders", [(0, [b"c"])], epoch=1)
        assert await house.publish(1, ("a", 1)) is Committed.NOW
        assert await house.values("orders") == [b"b", b"c"]


async def until_given_back(house: StagingHouse) -> None:
    """Wait until little is left of what was staged. Sizes on a disk are not looked at: those of others are known late."""
    (topic,) = house.staging_topics()
    partition = house.engine.partition(topic, 0)
    while True:
        with suppress(OffsetOutOfRange):  # deleted meanwhile
            left = await read_values(partition, partition.start_offset)
            if sum(len(value or b"") for value in left) <= 20 << 20:
                return


async def test_what_was_published_gives_back_its_space(tmp_path: Path, clock: ManualClock) -> None:
    house = StagingHouse(tmp_path / "data", clock)
    async with house:
        await house.topic("orders")
        await house.run()
        for epoch in range(3):
            for number in range(6):
                await house.stage("orders", [(0, [bytes(3 << 20)])], sequence=number, epoch=epoch)
            assert await house.publish(epoch, ("a", 6)) is Committed.NOW
        await until_given_back(house)
        assert len(await house.values("orders")) == 18


async def test_what_was_aborted_gives_back_its_space_too(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        for attempt in range(4):
            for number in range(6):
                await house.stage("orders", [(0, [bytes(3 << 20)])], sequence=number, attempt=str(attempt))
            await house.staging.abort(ALICE, "query", 1, 0)
        await until_given_back(house)


@pytest.mark.embedded
async def test_staged_records_do_not_take_the_space_held_back_for_the_brokers_own_state(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"a"])])
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await house.stage("orders", [(0, [bytes(1 << 20)] * 3)], sequence=1)
        house.disk.disk_full_off()
        await house.stage("orders", [(0, [b"b"])], sequence=1)
        assert await house.publish(0, ("a", 2)) is Committed.NOW
        assert await house.values("orders") == [b"a", b"b"]


async def test_an_attempt_with_a_request_on_its_way_does_not_expire(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        staging = house.start_stage("orders", [(0, [b"a"])])
        house.clock.advance(2 * DAY_S)
        await house.staging.sweep()
        await staging
        assert await house.publish(0, ("a", 1)) is Committed.NOW


@pytest.mark.embedded
async def test_what_was_dropped_while_the_disk_was_full_is_not_kept_for_good(
    house: StagingHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FORGET_EVERY_SWEEPS", 1)
    async with house:
        await house.topic("orders")
        await house.run()
        for attempt in ("a", "b"):
            await house.stage("orders", [(0, [b"1"])], epoch=ord(attempt), attempt=attempt)
        house.disk.disk_full()
        await house.staging.abort(ALICE, "query", 1, ord("a"))
        await asyncio.gather(*house.staging._tasks)
        house.disk.disk_full_off()
        entries = house.staging._tickets.table
        await house.staging._sweep_step()
        while len(entries) > 1:
            await asyncio.sleep(0)
        await house.restart()
        assert house.staging.stats.tickets == 1
        assert await house.publish(ord("b"), ("b", 1)) is Committed.NOW


async def test_an_application_of_one_epoch_leaves_nothing_behind(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run("once", application="job", lasting=False)
        await house.stage("orders", [(0, [b"a"])], application="job")
        await house.publish(0, ("a", 1), application="job")
        while house.staging_topics():
            await asyncio.sleep(0)
        assert await house.publish(0, ("a", 1), application="job") is Committed.BEFORE


async def test_an_application_that_was_forgotten_does_not_delete_the_topic_of_its_successor(
    house: StagingHouse,
) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"dropped"])])
        forgotten = house.staging._tickets.by_application["query"]
        await house.staging.abort(ALICE, "query", 1, 0)
        await forgotten.leave()
        assert not house.staging_topics()
        await house.stage("orders", [(0, [b"staged"])])
        await forgotten.leave()
        assert await house.publish(0, ("a", 1)) is Committed.NOW
        assert await house.values("orders") == [b"staged"]


async def test_what_is_staged_is_bounded(tmp_path: Path, clock: ManualClock) -> None:
    limits = BrokerLimits(
        staged_applications_max=2, staged_tickets_max=3, staged_application_bytes_max=20_000, staged_bytes_max=30_000
    )
    async with StagingHouse(tmp_path / "data", clock, limits) as house:
        await house.topic("orders")
        for application in ("one", "two", "three"):
            await house.run(application=application)
        await house.stage("orders", [(0, [bytes(15_000)])], application="one")
        with pytest.raises(LimitExceeded, match=r"limits\.staged_application_bytes_max"):
            await house.stage("orders", [(0, [bytes(5_000)])], application="one", sequence=1)
        await house.stage("orders", [(0, [b"small"])], application="one", sequence=1)
        with pytest.raises(LimitExceeded, match=r"limits\.staged_bytes_max"):
            await house.stage("orders", [(0, [bytes(15_000)])], application="two")
        await house.stage("orders", [(0, [b"a"])], application="two")
        await house.stage("orders", [(0, [b"a"])], application="two", attempt="b")
        with pytest.raises(LimitExceeded, match=r"limits\.staged_tickets_max"):
            await house.stage("orders", [(0, [b"a"])], application="two", attempt="c")
        with pytest.raises(LimitExceeded, match=r"limits\.staged_applications_max"):
            await house.stage("orders", [(0, [b"a"])], application="three")
        await house.publish(0, ("a", 2), application="one")
        await house.stage("orders", [(0, [bytes(10_000)])], application="two", sequence=1)
        with pytest.raises(InvalidRequest, match="at most 10000 are allowed"):
            await house.staging.commit(ALICE, "two", 1, 0, [Winner(str(n), 1) for n in range(10_001)])
