"""Staged records: shown to nobody until a commit names them, then once, in order, all or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS, Operation, Principal, Resource
from penstock.broker.schemas.marks import stamp_of
from penstock.broker.schemas.reference import Reference
from penstock.broker.transactions.staging import Committed
from penstock.errors import (
    AccessDenied,
    InvalidRequest,
    ProducerFenced,
    TransactionNotFound,
    ValidationFailed,
)
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from tests.broker.cancelling import at_every_step, cancelled_at
from tests.broker.transaction_house import ALICE, BOB
from tests.broker.transactions.staging_house import StagingHouse
from tests.open_access import OpenAccess


async def test_records_appear_with_the_commit_and_not_before(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders", partitions=2)
        assert await house.run() == 1
        await house.stage("orders", [(0, [b"a", b"b"]), (1, [b"c"])])
        await house.stage("orders", [(1, [b"d", None])], sequence=1)
        assert await house.values("orders", 0) == await house.values("orders", 1) == []
        assert await house.publish(0, ("a", 2)) is Committed.NOW
        assert await house.values("orders", 0) == [b"a", b"b"]
        assert await house.values("orders", 1) == [b"c", b"d", None]
        assert house.staging.stats.staged_bytes == house.staging.stats.tickets == 0
        assert house.staging.stats.published_records == 5


async def test_only_the_attempts_that_won_are_published_in_the_order_named(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        for attempt in ("a", "b", "c"):
            await house.stage("orders", [(0, [attempt.encode()])], attempt=attempt)
        assert await house.publish(0, ("c", 1), ("a", 1)) is Committed.NOW
        assert await house.values("orders") == [b"c", b"a"]
        assert house.staging.stats.tickets == 0


async def test_an_epoch_is_published_once_over_repeats_runs_and_restarts(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"a"])])
        assert await house.publish(0, ("a", 1)) is Committed.NOW
        assert await house.publish(0, ("a", 1)) is Committed.BEFORE
        await house.stage("orders", [(0, [b"again"])], attempt="b")
        assert await house.publish(0, ("b", 1)) is Committed.BEFORE
        await house.restart()
        assert await house.run("run-2") == 2
        await house.stage("orders", [(0, [b"again"])], attempt="c", run=2)
        assert await house.publish(0, ("c", 1), run=2) is Committed.BEFORE
        await house.stage("orders", [(0, [b"b"])], attempt="d", run=2, epoch=1)
        assert await house.publish(1, ("d", 1), run=2) is Committed.NOW
        assert await house.values("orders") == [b"a", b"b"]


async def test_an_empty_epoch_is_committed_too(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        assert await house.publish(7) is Committed.NOW
        await house.stage("orders", [(0, [b"late"])], epoch=7)
        assert await house.publish(7, ("a", 1)) is Committed.BEFORE
        assert await house.values("orders") == []


@pytest.mark.embedded
async def test_staged_records_that_are_damaged_are_refused_by_the_commit_and_the_broker_starts(
    house: StagingHouse,
) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        for number in range(3):
            await house.stage("orders", [(0, [b"%d" % number * 100])], sequence=number)
        (topic,) = house.staging_topics()
        await house.close()
        (log,) = house._directory.glob(f"topics/{topic}.*/0/*.log")
        data = bytearray(log.read_bytes())
        data[300] ^= 1
        log.write_bytes(data)
        await house.open()
        with pytest.raises(TransactionNotFound, match="write the epoch again"):
            await house.publish(0, ("a", 3))
        await house.stage("orders", [(0, [b"again"])], attempt="b")
        assert await house.publish(0, ("b", 1)) is Committed.NOW
        assert await house.values("orders") == [b"again"]


async def test_a_commit_of_what_is_not_all_there_publishes_nothing(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"a"])])
        await house.stage("orders", [(0, [b"c"])], sequence=2)
        for winners in ([("a", 3)], [("a", 1)], [("a", 2)], [("b", 1)]):
            with pytest.raises(TransactionNotFound, match="transaction not found"):
                await house.publish(0, *winners)
        with pytest.raises(InvalidRequest, match="each attempt once"):
            await house.publish(0, ("a", 1), ("a", 1))
        assert await house.values("orders") == []
        await house.stage("orders", [(0, [b"b"])], sequence=1)
        assert await house.publish(0, ("a", 3)) is Committed.NOW
        assert await house.values("orders") == [b"a", b"b", b"c"]


async def test_an_older_run_is_fenced_and_what_it_staged_is_dropped(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run("first")
        await house.stage("orders", [(0, [b"old"])])
        assert await house.run("second") == 2
        assert house.staging.stats.tickets == 0
        with pytest.raises(ProducerFenced, match="run 1 of application query is fenced: run 2 has begun"):
            await house.stage("orders", [(0, [b"old"])], sequence=1)
        with pytest.raises(ProducerFenced):
            await house.publish(0, ("a", 1))
        with pytest.raises(ProducerFenced, match="run first"):
            await house.run("first")
        with pytest.raises(InvalidRequest, match="has not begun"):
            await house.stage("orders", [(0, [b"x"])], run=3)
        await house.stage("orders", [(0, [b"new"])], run=2)
        await house.publish(0, ("a", 1), run=2)
        assert await house.publish(0, ("a", 1)) is Committed.BEFORE, "what is done is done, whoever asks"
        assert await house.values("orders") == [b"new"]


async def test_an_abort_drops_what_was_staged_and_never_undoes_a_commit(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"a"])])
        await house.stage("orders", [(0, [b"next"])], epoch=1)
        assert await house.staging.abort(ALICE, "query", 1, 0)
        with pytest.raises(TransactionNotFound):
            await house.publish(0, ("a", 1))
        await house.stage("orders", [(0, [b"b"])], attempt="b")
        await house.publish(0, ("b", 1))
        assert not await house.staging.abort(ALICE, "query", 1, 0)
        await house.publish(1, ("a", 1))
        assert await house.values("orders") == [b"b", b"next"]


async def test_an_abort_that_follows_a_commit_at_once_does_not_overtake_it(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"a"])])
        committed, aborted = await asyncio.gather(house.publish(0, ("a", 1)), house.staging.abort(ALICE, "query", 1, 0))
        assert (committed, aborted) == (Committed.NOW, False)
        assert await house.values("orders") == [b"a"]


async def test_an_attempt_whose_first_request_is_on_its_way_cannot_win_with_none(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        on_its_way = house.start_stage("orders", [(0, [b"a"])])
        with pytest.raises(TransactionNotFound, match="of 0 requests of attempt a at epoch 0 of query, 0 are staged"):
            await house.publish(0, ("a", 0))
        await on_its_way
        assert await house.publish(0, ("a", 1)) is Committed.NOW
        assert await house.values("orders") == [b"a"]


async def test_an_abort_of_an_older_run_leaves_the_newer_one_alone(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run("first")
        await house.run("second")
        await house.stage("orders", [(0, [b"new"])], run=2)
        await house.staging.abort(ALICE, "query", 1, 0)
        assert await house.publish(0, ("a", 1), run=2) is Committed.NOW


async def test_records_of_a_bound_topic_must_follow_its_schema(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.broker.schemas.register(ANONYMOUS, "order", "json", '{"type": "object", "required": ["id"]}')
        await house.broker.schemas.bind(ANONYMOUS, "orders", "order")
        await house.run()
        with pytest.raises(ValidationFailed):
            await house.stage("orders", [(0, [b'{"id": 1}', b"{}"])])
        await house.topic("free")
        await house.stage("orders", [(0, [b'{"id": 1}', None]), (0, [b'{"id": 2}', b'{"id": 3}'])], keys=[b"k", b"l"])
        await house.stage("free", [(0, [b'{"id": 1}'])], sequence=1)
        assert await house.publish(0, ("a", 2)) is Committed.NOW
        rows: list[tuple[bytes | None, bytes | None, bytes | None]] = []
        for block in await house.engine.partition("orders", 0).read(0):
            rows += zip(block.keys() or (), block.values(), block.headers() or (), strict=True)
        stamp = stamp_of(Reference("order", 1))
        assert rows == [
            (b"k", b'{"id": 1}', stamp),
            (b"l", None, None),
            (b"k", b'{"id": 2}', stamp),
            (b"l", b'{"id": 3}', stamp),
        ]
        [block] = await house.engine.partition("free", 0).read(0)
        assert block.headers() is None


async def test_records_whose_check_outlasts_their_run_or_epoch_are_not_staged(
    house: StagingHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house:
        await house.topic("free")
        await house.broker.schemas.register(ANONYMOUS, "numbers", "json", '{"type": "integer"}')
        await house.broker.topics.create(ANONYMOUS, "orders", TopicConfig(), schema="numbers")
        checked: list[Callable[[], None]] = []
        monkeypatch.setattr(
            house.staging._validation,
            "admit",
            lambda topic, schema, batch, accept, refuse: checked.append(partial(accept, batch)),
        )
        await house.run()
        _ = house.start_stage("orders", [(0, [b"1"])])
        await house.run("run-2")
        with pytest.raises(ProducerFenced):
            checked.pop()()
        late = house.start_stage("orders", [(0, [b"2"])], run=2)
        await house.stage("free", [(0, [b"3"])], run=2, attempt="b")
        assert await house.publish(0, ("b", 1), run=2) is Committed.NOW
        checked.pop()()
        await late
        assert house.staging.stats.tickets == 0


async def test_an_application_belongs_to_who_began_it(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"a"])])
        for asked in (
            lambda: house.run("mine", who=BOB),
            lambda: house.stage("orders", [(0, [b"x"])], who=BOB),
            lambda: house.publish(0, ("a", 1), who=BOB),
            lambda: house.staging.abort(BOB, "query", 1, 0),
        ):
            with pytest.raises(AccessDenied, match="is owned by another user"):
                await asked()
        assert await house.publish(0, ("a", 1)) is Committed.NOW


async def test_who_may_no_longer_write_a_topic_does_not_publish_to_it(tmp_path: Path, clock: ManualClock) -> None:
    class Policy(OpenAccess):
        closed = "-"

        def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
            if resource.name == self.closed:
                raise AccessDenied(f"{principal.name} may not write topic {self.closed}")

    policy = Policy()
    house = StagingHouse(tmp_path / "data", clock, access=policy)
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [b"a"])])
        policy.closed = "orders"
        with pytest.raises(AccessDenied):
            await house.publish(0, ("a", 1))
        with pytest.raises(AccessDenied):
            await house.stage("orders", [(0, [b"b"])], sequence=1)
        assert await house.values("orders") == []


async def test_an_epoch_is_published_once_although_its_commit_was_cancelled(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()

        async def attempt(step: int) -> bool:
            await house.stage("orders", [(0, [b"%d" % step])], epoch=step)
            waited = await cancelled_at(step, house.publish(step, ("a", 1)))
            await house.publish(step, ("a", 1))
            assert (await house.values("orders"))[-1:] == [b"%d" % step]
            assert len(await house.values("orders")) == step
            return waited

        await at_every_step(attempt)
