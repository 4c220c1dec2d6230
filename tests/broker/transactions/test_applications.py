"""Runs and epochs of applications: an epoch is committed once over runs and restarts, and only by the newest run."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions import staging
from penstock.broker.transactions.staging import Committed
from penstock.errors import InvalidRequest, LimitExceeded, NoSpace, ProducerFenced
from penstock.testing.clock import ManualClock
from tests.broker.transaction_house import ALICE, BOB
from tests.broker.transactions.staging_house import StagingHouse

DAY_S = 24 * 3600


async def test_of_many_commits_of_one_epoch_at_the_same_time_one_is_written(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        for number in range(10):
            await house.stage("orders", [(0, [b"%d" % number])], attempt=f"a{number}")
        done = await asyncio.gather(*(house.publish(0, (f"a{number}", 1)) for number in range(10)))
        assert done.count(Committed.NOW) == 1
        assert done.count(Committed.BEFORE) == 9
        assert await house.values("orders") == [b"%d" % done.index(Committed.NOW)]


async def test_a_newer_run_fences_the_older_one_after_a_restart_too(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        first, second = await house.run("first"), await house.run("second")
        assert second > first
        await house.restart()
        with pytest.raises(ProducerFenced, match=f"run {first} of application query is fenced: run {second} has begun"):
            await house.publish(1, run=first)
        assert await house.publish(1, run=second) is Committed.NOW


async def test_runs_begun_at_the_same_time_get_different_numbers(house: StagingHouse) -> None:
    async with house:
        runs = await asyncio.gather(*(house.run("") for _ in range(10)))
        assert sorted(runs) == list(range(1, 11))


@pytest.mark.parametrize(("application", "run", "epoch"), [("", 1, 0), ("a\n", 1, 0), ("a", -1, 0), ("a", 1, 1 << 63)])
async def test_a_name_that_makes_no_sense_is_refused(
    house: StagingHouse, application: str, run: int, epoch: int
) -> None:
    async with house:
        with pytest.raises(InvalidRequest):
            await house.publish(epoch, run=run, application=application)
        assert await house.publish(0, run=1, application="a") is Committed.NOW, "nobody holds it after a refusal"


@pytest.mark.embedded
async def test_a_commit_on_a_full_disk_is_not_taken_for_done(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [bytes(20 << 20)])])
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await house.publish(0, ("a", 1))
        house.disk.disk_full_off()
        assert await house.publish(0, ("a", 1)) is Committed.NOW
        assert len(await house.values("orders")) == 1


async def test_a_run_with_a_name_is_begun_once_and_an_older_one_is_not_begun_again(house: StagingHouse) -> None:
    async with house:
        assert await house.run("first") == 1
        assert await house.run("first") == 1
        await house.restart()
        assert await house.run("first") == 1
        assert await house.run("second") == 2
        with pytest.raises(ProducerFenced, match="run first of application query is fenced: run 2 has begun"):
            await house.run("first")
        assert await house.run("") == 3
        with pytest.raises(ProducerFenced):
            await house.run("second")
        with pytest.raises(InvalidRequest, match="run name has 65 bytes"):
            await house.run("x" * 65)


async def test_an_application_of_one_epoch_is_forgotten_after_a_day(house: StagingHouse) -> None:
    async with house:
        await house.run("run", "job", lasting=False)
        await house.run("run", "query")
        house.clock.advance(DAY_S + 1)
        applications = house.staging._applications
        applications.forget(())
        while applications.current(ALICE, "job").run:
            await asyncio.sleep(0)
        assert applications.current(ALICE, "query").run == 1


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_application_that_stages_for_more_than_a_day_is_not_forgotten(
    house: StagingHouse, monkeypatch: pytest.MonkeyPatch, *, restarts: bool
) -> None:
    monkeypatch.setattr(staging, "FORGET_EVERY_SWEEPS", 1)
    async with house:
        await house.topic("orders")
        await house.run("run", "job", lasting=False)
        await house.run("run", "other", lasting=False)
        for sequence in range(2):
            await house.stage("orders", [(0, [b"%d" % sequence])], application="job", sequence=sequence)
            house.clock.advance(DAY_S * 2 / 3)
            if restarts:
                await house.restart()
            else:
                await house.staging._sweep_step()
        while house.staging._applications.current(ALICE, "other").run:
            await asyncio.sleep(0)
        await house.stage("orders", [(0, [b"2"])], application="job", sequence=2)
        assert await house.publish(0, ("a", 3), application="job") is Committed.NOW
        assert await house.values("orders") == [b"0", b"1", b"2"]


async def test_one_principal_has_at_most_half_of_the_applications(tmp_path: Path, clock: ManualClock) -> None:
    async with StagingHouse(tmp_path / "data", clock, limits=BrokerLimits(applications_max=4)) as house:
        await house.run(application="a")
        await house.run(application="b")
        for refused in (house.run(application="c"), house.publish(0, run=1, application="c")):
            with pytest.raises(LimitExceeded, match=r"alice has 2 applications.*limits.applications_max"):
                await refused
        assert await house.run("again", application="a") == 2
        assert await house.run(application="c", who=BOB) == 1
