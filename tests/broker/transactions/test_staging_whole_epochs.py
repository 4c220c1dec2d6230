"""Records that come with the commit of their epoch: nothing of them is staged, and they are published once, all or nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.access.checks import ANONYMOUS, BROKER, Operation, Principal, Resource, ResourceKind
from penstock.broker.limits import INT64_MAX, BrokerLimits
from penstock.broker.transactions.entries import Winner
from penstock.broker.transactions.staging import Committed
from penstock.errors import (
    AccessDenied,
    InvalidRequest,
    NoSpace,
    OutcomeUnknown,
    PartitionNotFound,
    ProducerFenced,
    TopicNotFound,
    ValidationFailed,
)
from penstock.testing.clock import ManualClock
from tests.broker.cancelling import at_every_step, cancelled_at
from tests.broker.transaction_house import ALICE, BOB
from tests.broker.transactions.staging_house import StagingHouse
from tests.open_access import OpenAccess


class Policy(OpenAccess):
    """Everything is allowed but to write one resource."""

    closed: Resource | None = None

    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        if operation is Operation.WRITE and resource == self.closed:
            raise AccessDenied(f"{principal.name} may not write {resource}")


async def long_commit(house: StagingHouse) -> asyncio.Task[Committed]:
    """A commit of staged records for epoch 0 that is decided and not yet over."""
    await house.topic("staged")
    await house.run()
    for sequence in range(8):
        await house.stage("staged", [(0, [b"%d" % sequence])], sequence=sequence)
    committing = asyncio.create_task(house.publish(0, ("a", 8)))
    while not house.engine.partition("staged", 0).committed_end:
        await asyncio.sleep(0)
    return committing


async def test_an_epoch_is_written_at_once_and_once_over_repeats_runs_and_restarts(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        assert await house.write(0, [(0, [b"a", b"b"]), (1, [b"c"]), (0, [b"d"])]) is Committed.NOW
        assert await house.values("orders", 0) == [b"a", b"b", b"d"]
        assert await house.values("orders", 1) == [b"c"]
        assert house.staging_topics() == []
        assert house.staging.stats.published_records == 4
        assert await house.write(0, [(0, [b"again"])]) is Committed.BEFORE
        await house.restart()
        assert await house.write(0, [(0, [b"again"])], name="run-2") is Committed.BEFORE
        assert await house.write(1, [(1, [b"e"])], name="run-2") is Committed.NOW
        assert await house.values("orders", 0) == [b"a", b"b", b"d"]
        assert await house.values("orders", 1) == [b"c", b"e"]


async def test_epochs_that_are_staged_and_those_that_are_not_follow_one_another(house: StagingHouse) -> None:
    house.chunk_bytes = 1
    async with house:
        await house.topic("orders")
        await house.run()
        for sequence in range(3):
            await house.stage("orders", [(0, [b"staged %d" % sequence])], sequence=sequence)
        staged = asyncio.create_task(house.publish(0, ("a", 3)))
        await asyncio.sleep(0)
        assert await house.write(1, [(0, [b"whole"])]) is Committed.NOW
        assert await staged is Committed.NOW
        assert await house.write(0, [(0, [b"again"])]) is Committed.BEFORE
        await house.stage("orders", [(0, [b"staged last"])], epoch=2)
        assert await house.publish(2, ("a", 1)) is Committed.NOW
        assert await house.values("orders") == [b"staged 0", b"staged 1", b"staged 2", b"whole", b"staged last"]


async def test_records_that_come_with_a_commit_are_there_at_once_with_those_that_were_staged(
    house: StagingHouse,
) -> None:
    async with house:
        for topic in ("orders", "invoices"):
            await house.topic(topic, partitions=2)
        await house.run()
        await house.stage("orders", [(0, [b"staged"]), (1, [b"staged"])])
        brought = [
            house.unstaged("orders", [(0, [b"a", b"b"])]),
            house.unstaged("invoices", [(1, [b"c"])]),
            house.unstaged("orders", [(0, [b"d"])]),
        ]
        for outcome in (Committed.NOW, Committed.BEFORE):
            assert await house.staging.commit(ALICE, "query", 1, 0, [Winner("a", 1)], brought) is outcome
        assert await house.values("orders", 0) == [b"a", b"b", b"d", b"staged"]
        assert await house.values("orders", 1) == [b"staged"]
        assert await house.values("invoices", 1) == [b"c"]
        assert house.staging.stats.published_records == 6
        assert house.staging.stats.staged_bytes == 0


async def test_a_long_commit_has_what_comes_with_it_in_its_first_chunk(house: StagingHouse) -> None:
    house.chunk_bytes = 1
    async with house:
        await house.topic("orders")
        await house.run()
        for sequence in range(3):
            await house.stage("orders", [(0, [b"staged %d" % sequence])], sequence=sequence)
        brought = [house.unstaged("orders", [(0, [b"brought"])])]
        assert await house.staging.commit(ALICE, "query", 1, 0, [Winner("a", 3)], brought) is Committed.NOW
        await house.restart()
        assert await house.values("orders") == [b"brought", b"staged 0", b"staged 1", b"staged 2"]


async def test_a_commit_that_is_sent_again_after_a_newer_run_has_begun_was_done_before(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        run = await house.run()
        brought = [house.unstaged("orders", [(0, [b"a"])])]
        assert await house.staging.commit(ALICE, "query", run, 0, [], brought) is Committed.NOW
        await house.run("run-2")
        assert await house.staging.commit(ALICE, "query", run, 0, [], brought) is Committed.BEFORE
        with pytest.raises(ProducerFenced):
            await house.staging.commit(ALICE, "query", run, 1, [], brought)
        assert await house.values("orders") == [b"a"]


async def test_a_run_that_has_not_begun_brings_no_records(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        brought = [house.unstaged("orders", [(0, [b"a"])])]
        with pytest.raises(InvalidRequest, match="run 1 of application query has not begun"):
            await house.staging.commit(ALICE, "query", 1, 0, [], brought)
        assert await house.values("orders") == []


async def test_what_was_staged_for_an_epoch_that_comes_whole_is_dropped(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"staged"])])
        assert await house.write(0, [(0, [b"whole"])]) is Committed.NOW
        assert house.staging.stats.tickets == house.staging.stats.staged_bytes == 0
        assert await house.publish(0, ("a", 1)) is Committed.BEFORE
        assert await house.values("orders") == [b"whole"]


async def test_of_two_requests_for_one_epoch_one_is_written(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        outcomes = await asyncio.gather(*(house.write(0, [(0, [b"%d" % number])]) for number in range(5)))
        assert sorted(outcome.value for outcome in outcomes) == [0, 0, 0, 0, 1]
        assert len(await house.values("orders")) == 1


async def test_an_older_run_is_fenced(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.write(0, [(0, [b"a"])])
        await house.run("run-2")
        with pytest.raises(ProducerFenced):
            await house.write(1, [(0, [b"late"])])
        with pytest.raises(AccessDenied):
            await house.write(1, [(0, [b"foreign"])], name="run-3", who=BOB)
        assert await house.values("orders") == [b"a"]


async def test_what_is_wrong_with_the_records_leaves_the_epoch_open(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.broker.schemas.register(ANONYMOUS, "order", "json", '{"type": "object", "required": ["id"]}')
        await house.broker.schemas.bind(ANONYMOUS, "orders", "order")
        with pytest.raises(ValidationFailed):
            await house.write(0, [(0, [b'{"id": 1}', b"{}"])])
        with pytest.raises(PartitionNotFound):
            await house.write(0, [(1, [b'{"id": 1}'])])
        with pytest.raises(InvalidRequest, match="no records"):
            await house.write(0, [])
        assert await house.values("orders") == []
        assert await house.write(0, [(0, [b'{"id": 1}'])]) is Committed.NOW
        [block] = await house.engine.partition("orders", 0).read(0)
        assert block.headers() is not None


async def test_an_epoch_is_whole_and_there_once_wherever_its_writer_gives_up(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        epochs = 0

        async def attempt(steps: int) -> bool:
            nonlocal epochs
            parts = [(0, [b"%d" % epochs]), (1, [b"%d" % epochs])]
            cancelled = await cancelled_at(steps, house.write(epochs, parts))
            await house.write(epochs, parts)
            epochs += 1
            return cancelled

        await at_every_step(attempt)
        expected = [b"%d" % epoch for epoch in range(epochs)]
        assert await house.values("orders", 0) == await house.values("orders", 1) == expected


@pytest.mark.embedded
async def test_an_epoch_that_finds_the_disk_full_is_not_written_and_can_be_tried_again(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        await house.run()
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await house.write(0, [(0, [b"a"]), (1, [b"b"])])
        house.disk.disk_full_off()
        assert await house.values("orders", 0) == await house.values("orders", 1) == []
        assert await house.write(0, [(0, [b"a"]), (1, [b"b"])]) is Committed.NOW
        assert house.staging.stats.commits == 1


@pytest.mark.embedded
async def test_after_a_failed_flush_only_a_restart_tells_and_the_epoch_is_there_once(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        await house.run()
        house.disk.fail_next_fsync()
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await house.write(0, [(0, [b"a"]), (1, [b"b"])])
        await house.restart()
        assert await house.write(0, [(0, [b"a"]), (1, [b"b"])], name="run-2") in (Committed.BEFORE, Committed.NOW)
        assert (await house.values("orders", 0), await house.values("orders", 1)) == ([b"a"], [b"b"])


@pytest.mark.embedded
async def test_an_epoch_that_is_still_being_published_is_not_said_to_be_done(house: StagingHouse) -> None:
    house.chunk_bytes = 1
    async with house:
        committing = await long_commit(house)
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await committing
        with pytest.raises(NoSpace):
            await house.write(0, [(0, [b"again"])], topic="staged")
        house.disk.disk_full_off()
        assert await house.write(0, [(0, [b"again"])], topic="staged") is Committed.BEFORE
        assert await house.values("staged") == [b"%d" % sequence for sequence in range(8)]


@pytest.mark.parametrize("waits_for", ["check", "commit"])
async def test_a_topic_that_is_replaced_while_its_records_wait_gets_none_of_them(
    house: StagingHouse, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    async with house:
        await house.topic("orders")
        await house.broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
        await house.broker.schemas.bind(ANONYMOUS, "orders", "numbers")
        waiting, name = (house.staging._validation, "check") if waits_for == "check" else (house.staging, "_commit")
        then = getattr(waiting, name)

        async def replaced(*given: Any) -> Any:
            await house.broker.topics.delete(ANONYMOUS, "orders")
            await house.topic("orders")
            return await then(*given)

        monkeypatch.setattr(waiting, name, replaced)
        with pytest.raises(TopicNotFound, match="orders was deleted after records were laid out for it"):
            await house.write(0, [(0, [b"1"])])
        monkeypatch.undo()
        assert await house.values("orders") == []
        assert await house.write(0, [(0, [b"1"])]) is Committed.NOW


async def test_an_abort_that_comes_while_records_are_checked_says_what_became_of_the_commit(
    house: StagingHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house:
        await house.topic("orders")
        await house.broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
        await house.broker.schemas.bind(ANONYMOUS, "orders", "numbers")
        check, checking, go_on = house.staging._validation.check, asyncio.Event(), asyncio.Event()

        async def slow(*given: Any) -> Any:
            checking.set()
            await go_on.wait()
            return await check(*given)

        monkeypatch.setattr(house.staging._validation, "check", slow)
        committing = asyncio.create_task(house.write(0, [(0, [b"1"])]))
        await checking.wait()
        aborting = asyncio.create_task(house.staging.abort(ALICE, "query", 1, 0))
        repeating = asyncio.create_task(house.write(0, [(0, [b"2"])]))
        await asyncio.sleep(0)
        go_on.set()
        assert (await committing, await aborting, await repeating) == (Committed.NOW, False, Committed.BEFORE)
        assert await house.values("orders") == [b"1"]


async def test_a_commit_that_comes_after_its_only_epoch_was_aborted_is_refused(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        run = await house.run("write", "spark-1", lasting=False)
        for _ in range(2):
            assert await house.staging.abort(ALICE, "spark-1", INT64_MAX, 0)
        await house.restart()
        brought = [house.unstaged("orders", [(0, [b"late"])])]
        with pytest.raises(ProducerFenced, match=r"run 1 of application spark-1 is fenced: .* or it was aborted"):
            await house.staging.commit(ALICE, "spark-1", run, 0, [], brought)
        with pytest.raises(ProducerFenced):
            await house.run("write", "spark-1", lasting=False)
        assert await house.values("orders") == []


async def test_who_loses_the_right_to_a_topic_while_it_waits_does_not_write_to_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    policy = Policy()
    house = StagingHouse(tmp_path / "data", clock, access=policy)
    house.chunk_bytes = 1
    async with house:
        await house.topic("orders")
        committing = await long_commit(house)
        writing = asyncio.create_task(house.write(1, [(0, [b"a"])]))
        await asyncio.sleep(0)
        policy.closed = Resource(ResourceKind.TOPIC, "orders")
        await committing
        with pytest.raises(AccessDenied):
            await writing
        assert await house.values("orders") == []


async def test_who_may_begin_no_run_writes_no_epoch(tmp_path: Path, clock: ManualClock) -> None:
    policy = Policy()
    policy.closed = BROKER
    house = StagingHouse(tmp_path / "data", clock, access=policy)
    async with house:
        await house.topic("orders")
        with pytest.raises(AccessDenied):
            await house.run()
        with pytest.raises(AccessDenied):
            await house.write(0, [(0, [b"a"])])
        assert await house.values("orders") == []


async def test_topics_of_the_broker_and_epochs_out_of_range_are_refused(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        for topic in ("__applications", "__producers", "__staging-query"):
            with pytest.raises(AccessDenied, match="is internal"):
                await house.write(0, [(0, [b"a"])], topic=topic)
        with pytest.raises(InvalidRequest, match="out of range"):
            await house.write(1 << 63, [(0, [b"a"])])
        assert await house.write((1 << 63) - 1, [(0, [b"a"])]) is Committed.NOW
        assert await house.values("orders") == [b"a"]


async def test_applications_that_stage_nothing_do_not_count_as_those_that_do(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with StagingHouse(tmp_path / "data", clock, BrokerLimits(staged_applications_max=1)) as house:
        await house.topic("orders")
        for number in range(3):
            assert await house.write(0, [(0, [b"%d" % number])], application=f"query-{number}") is Committed.NOW
        await house.run(application="staging")
        await house.stage("orders", [(0, [b"staged"])], application="staging")
        assert await house.publish(0, ("a", 1), application="staging") is Committed.NOW
        assert await house.values("orders") == [b"0", b"1", b"2", b"staged"]
