"""Commits, the long ones too: all of it is published, in order and once, whatever comes between."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.transactions.staging import Committed
from penstock.errors import (
    NoSpace,
    OutcomeUnknown,
    ShuttingDown,
    TopicNotFound,
    TransactionNotFound,
)
from tests.broker.transaction_house import ALICE
from tests.broker.transactions.staging_house import StagingHouse


async def long_commit(house: StagingHouse, requests: int = 12) -> list[bytes]:
    await house.topic("orders", partitions=2)
    await house.run()
    values = [(b"%d." % number).ljust(1000, b"x") for number in range(requests)]
    for number, value in enumerate(values):
        await house.stage("orders", [(number % 2, [value])], sequence=number)
    return values


async def begun(house: StagingHouse, winner: tuple[str, int]) -> asyncio.Task[Committed]:
    """A commit that is decided and not yet over."""
    committing = asyncio.create_task(house.publish(0, winner))
    while not house.engine.partition("orders", 0).committed_end:
        await asyncio.sleep(0)
    return committing


async def stopped(house: StagingHouse, committing: asyncio.Task[Committed]) -> None:
    """Stop the broker between two chunks of a commit, and start it again."""
    for publication in house.staging._publications():
        publication.stop()
    with pytest.raises(ShuttingDown):
        await committing
    await house.restart()


async def published(house: StagingHouse) -> list[bytes | None]:
    zero, one = await house.values("orders", 0), await house.values("orders", 1)
    return [value for pair in zip(zero, one, strict=False) for value in pair] + zero[len(one) :]


async def test_a_commit_of_many_chunks_publishes_everything_in_order(house: StagingHouse) -> None:
    house.chunk_bytes = 3000
    async with house:
        values = await long_commit(house)
        assert await house.publish(0, ("a", 12)) is Committed.NOW
        assert await published(house) == values
        await house.restart()
        assert await published(house) == values
        assert await house.publish(0, ("a", 12)) is Committed.BEFORE


async def test_a_commit_that_was_stopped_continues_at_the_next_start(house: StagingHouse) -> None:
    house.chunk_bytes = 1500
    async with house:
        values = await long_commit(house)
        await stopped(house, await begun(house, ("a", 12)))
        assert await house.publish(0, ("a", 12)) is Committed.BEFORE
        assert await published(house) == values


async def test_what_is_sent_of_an_attempt_while_it_is_published_is_not_part_of_it(house: StagingHouse) -> None:
    house.chunk_bytes = 1500
    async with house:
        values = await long_commit(house)
        committing = asyncio.create_task(house.publish(0, ("a", 12)))
        await asyncio.sleep(0)
        assert not house.engine.partition("orders", 0).committed_end, "the commit is decided already"
        late = house.start_stage("orders", [(0, [b"late"])], sequence=12)
        while not house.engine.partition("orders", 1).committed_end:
            await asyncio.sleep(0)
        await stopped(house, committing)
        await late
        assert await house.publish(0, ("a", 12)) is Committed.BEFORE
        assert await published(house) == values


@pytest.mark.embedded
async def test_a_commit_that_finds_the_disk_full_is_not_done_and_can_be_tried_again(house: StagingHouse) -> None:
    async with house:
        values = await long_commit(house, 2)
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await house.publish(0, ("a", 2))
        house.disk.disk_full_off()
        assert await published(house) == []
        assert await house.publish(0, ("a", 2)) is Committed.NOW
        assert await published(house) == values


@pytest.mark.embedded
async def test_a_long_commit_that_finds_the_disk_full_continues_when_there_is_space(house: StagingHouse) -> None:
    house.chunk_bytes = 1500
    async with house:
        values = await long_commit(house)
        committing = await begun(house, ("a", 12))
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await committing
        assert len(await published(house)) < len(values)
        with pytest.raises(NoSpace):
            await house.publish(0, ("a", 12))
        await house.staging.abort(ALICE, "query", 1, 0)
        house.disk.disk_full_off()
        await house.staging.sweep()
        while await published(house) != values:
            await asyncio.sleep(0)
        assert await house.publish(0, ("a", 12)) is Committed.BEFORE


@pytest.mark.embedded
async def test_after_a_failed_flush_only_a_restart_tells_and_the_commit_is_done_once(house: StagingHouse) -> None:
    async with house:
        values = await long_commit(house, 2)
        house.disk.fail_next_fsync()
        with pytest.raises(OutcomeUnknown):
            await house.publish(0, ("a", 2))
        with pytest.raises(OutcomeUnknown, match="restart the broker, then commit again"):
            await house.publish(0, ("a", 2))
        with pytest.raises(OutcomeUnknown, match="epoch 0 of query is published is unknown"):
            await house.staging.abort(ALICE, "query", 1, 0)
        assert await house.staging.abort(ALICE, "query", 1, 1)
        await house.restart()
        assert await house.publish(0, ("a", 2)) in (Committed.BEFORE, Committed.NOW)
        assert await published(house) == values


async def test_a_newer_run_may_begin_while_a_long_commit_continues(house: StagingHouse) -> None:
    house.chunk_bytes = 1500
    async with house:
        values = await long_commit(house)
        committing = await begun(house, ("a", 12))
        assert await house.run("run-2") == 2
        assert await house.publish(1, run=2) is Committed.NOW
        assert await committing is Committed.NOW
        assert await published(house) == values


async def test_a_topic_deleted_before_the_commit_refuses_it_and_during_it_is_left_out(house: StagingHouse) -> None:
    house.chunk_bytes = 1500
    async with house:
        await house.topic("other")
        await long_commit(house)
        await house.stage("other", [(0, [b"x"])], sequence=12)
        await house.broker.topics.delete(ANONYMOUS, "other")
        await house.topic("other")
        with pytest.raises(TopicNotFound, match="other was deleted after records were staged"):
            await house.publish(0, ("a", 13))
        with pytest.raises(TopicNotFound):
            await house.stage("other", [(0, [b"x"])], sequence=13)
        committing = asyncio.create_task(house.publish(0, ("a", 12)))
        with pytest.raises(TransactionNotFound):
            await committing
        await house.staging.abort(ALICE, "query", 1, 0)
        for number in range(8):
            await house.stage("orders", [(0, [bytes(1000)])], attempt="b", sequence=number)
        await house.stage("other", [(0, [b"y"])], attempt="b", sequence=8)
        committing = await begun(house, ("b", 9))
        await house.broker.topics.delete(ANONYMOUS, "other")
        assert await committing is Committed.NOW
        assert len(await house.values("orders")) == 8
