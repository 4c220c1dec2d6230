"""Staged records: shown to nobody until a commit names them, then once, in order, all or nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.access import ANONYMOUS, Principal
from penstock.broker.limits import BrokerLimits
from penstock.broker.staging import Committed
from penstock.broker.staging_entries import Place, Winner
from penstock.broker.staging_tickets import IDLE_S_MAX
from penstock.errors import (
    AccessDenied,
    InvalidRequest,
    LimitExceeded,
    NoSpace,
    PartitionNotFound,
    ProducerFenced,
    RecordTooLarge,
    TopicNotFound,
    TransactionNotActive,
    TransactionNotFound,
    ValidationFailed,
    WriteFailed,
)
from penstock.log.block import Block, encode_block, encode_headers
from penstock.testing.clock import ManualClock
from tests.broker.staging_house import StagingHouse
from tests.broker.transaction_house import ALICE, BOB

DAY_S = 24 * 3600


@pytest.fixture
def house(tmp_path: Path, clock: ManualClock) -> StagingHouse:
    return StagingHouse(tmp_path / "data", clock)


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


async def test_an_abort_of_an_older_run_leaves_the_newer_one_alone(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run("first")
        await house.run("second")
        await house.stage("orders", [(0, [b"new"])], run=2)
        await house.staging.abort(ALICE, "query", 1, 0)
        assert await house.publish(0, ("a", 1), run=2) is Committed.NOW


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


async def test_what_was_published_gives_back_its_space(tmp_path: Path, clock: ManualClock) -> None:
    house = StagingHouse(tmp_path / "data", clock)
    async with house:
        await house.topic("orders")
        await house.run()
        for epoch in range(3):
            for number in range(6):
                await house.stage("orders", [(0, [bytes(3 << 20)])], sequence=number, epoch=epoch)
            assert await house.publish(epoch, ("a", 6)) is Committed.NOW
        (topic,) = house.staging_topics()
        partition = house.engine.partition(topic, 0)
        while partition.size_bytes > 20 << 20:
            await asyncio.sleep(0)
        assert len(await house.values("orders")) == 18


async def test_what_was_aborted_gives_back_its_space_too(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run()
        for attempt in range(4):
            for number in range(6):
                await house.stage("orders", [(0, [bytes(3 << 20)])], sequence=number, attempt=str(attempt))
            await house.staging.abort(ALICE, "query", 1, 0)
        (topic,) = house.staging_topics()
        while house.engine.partition(topic, 0).size_bytes > 20 << 20:
            await asyncio.sleep(0)


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


async def test_an_application_of_one_epoch_leaves_nothing_behind(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.run("once", application="job", lasting=False)
        await house.stage("orders", [(0, [b"a"])], application="job")
        await house.publish(0, ("a", 1), application="job")
        while house.staging_topics():
            await asyncio.sleep(0)
        assert await house.publish(0, ("a", 1), application="job") is Committed.BEFORE


# -- long commits -----------------------------------------------------------------------------------------------------------


async def long_commit(house: StagingHouse, requests: int = 12) -> list[bytes]:
    await house.topic("orders", partitions=2)
    await house.run()
    values = [(b"%d." % number).ljust(1000, b"x") for number in range(requests)]
    for number, value in enumerate(values):
        await house.stage("orders", [(number % 2, [value])], sequence=number)
    return values


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


async def test_a_commit_that_was_stopped_goes_on_at_the_next_start(house: StagingHouse) -> None:
    house.chunk_bytes = 1500
    async with house:
        values = await long_commit(house)
        committing = asyncio.create_task(house.publish(0, ("a", 12)))
        while not house.engine.partition("orders", 1).committed_end:
            await asyncio.sleep(0)
        await house.restart()
        await asyncio.gather(committing, return_exceptions=True)
        assert await house.publish(0, ("a", 12)) is Committed.BEFORE
        assert await published(house) == values


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


async def test_a_long_commit_that_finds_the_disk_full_goes_on_when_there_is_space(house: StagingHouse) -> None:
    house.chunk_bytes = 1500
    async with house:
        values = await long_commit(house)
        committing = asyncio.create_task(house.publish(0, ("a", 12)))
        while not house.engine.partition("orders", 0).committed_end:
            await asyncio.sleep(0)
        house.disk.disk_full()
        with pytest.raises(NoSpace):
            await committing
        assert len(await published(house)) < len(values)
        with pytest.raises(NoSpace):
            await house.publish(0, ("a", 12))
        await house.staging.abort(ALICE, "query", 1, 0)
        house.disk.disk_full_off()
        await house.staging.sweep()
        assert await house.publish(0, ("a", 12)) is Committed.BEFORE
        assert await published(house) == values


async def test_after_a_failed_flush_only_a_restart_tells_and_the_commit_is_done_once(house: StagingHouse) -> None:
    async with house:
        values = await long_commit(house, 2)
        house.disk.fail_next_fsync()
        with pytest.raises(WriteFailed):
            await house.publish(0, ("a", 2))
        with pytest.raises(WriteFailed, match="restart the broker, then commit again"):
            await house.publish(0, ("a", 2))
        await house.restart()
        assert await house.publish(0, ("a", 2)) in (Committed.BEFORE, Committed.NOW)
        assert await published(house) == values


async def test_a_newer_run_may_begin_while_a_long_commit_goes_on(house: StagingHouse) -> None:
    house.chunk_bytes = 1500
    async with house:
        values = await long_commit(house)
        committing = asyncio.create_task(house.publish(0, ("a", 12)))
        while not house.engine.partition("orders", 0).committed_end:
            await asyncio.sleep(0)
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
        await house.broker.delete_topic(ANONYMOUS, "other")
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
        committing = asyncio.create_task(house.publish(0, ("b", 9)))
        while not house.engine.partition("orders", 0).committed_end:
            await asyncio.sleep(0)
        await house.broker.delete_topic(ANONYMOUS, "other")
        assert await committing is Committed.NOW
        assert len(await house.values("orders")) == 8


# -- what is refused --------------------------------------------------------------------------------------------------------


async def test_records_are_checked_when_they_are_staged(house: StagingHouse) -> None:
    def stage(*parts: tuple[int, bytes], topic: str = "orders", attempt: str = "a", sequence: int = 0) -> None:
        place = Place("query", 1, 0, attempt, sequence)
        house.staging.stage(ALICE, topic, place, parts, done=lambda error: None)

    good = encode_block(0, 0, [b"v"])
    async with house:
        await house.topic("orders")
        await house.topic("latest", cleanup="compact")
        await house.run()
        with pytest.raises(TopicNotFound):
            stage((0, good), topic="nowhere")
        with pytest.raises(PartitionNotFound, match="partitions 0 to 0"):
            stage((1, good))
        with pytest.raises(InvalidRequest, match="at least one block"):
            stage()
        with pytest.raises(InvalidRequest, match="is not whole: block fails its checksum"):
            stage((0, good[:-1] + b"x"))
        with pytest.raises(InvalidRequest, match="nothing else"):
            stage((0, good + b"x"))
        with pytest.raises(InvalidRequest, match="keys, values and headers only"):
            stage((0, encode_block(0, 0, [b"v"], expiries=[5])))
        with pytest.raises(InvalidRequest, match="keys, values and headers only"):
            stage((0, encode_block(0, 0, [bytes(1000)], compress=True)))
        with pytest.raises(InvalidRequest, match="from offset 0"):
            stage((0, encode_block(3, 0, [b"v"])))
        with pytest.raises(InvalidRequest, match="too large for 2 records"):
            stage((0, encode_block(0, 0, [bytes(4 << 20), b"v"])))
        with pytest.raises(RecordTooLarge, match="a key has 65537 bytes"):
            stage((0, encode_block(0, 0, [b"v"], [bytes(65537)])))
        with pytest.raises(InvalidRequest, match="give every record a key"):
            stage((0, encode_block(0, 0, [b"v", b"w"], [b"k", None])), topic="latest")
        with pytest.raises(InvalidRequest, match="attempt has 0 bytes"):
            stage((0, good), attempt="")
        with pytest.raises(InvalidRequest, match="sequence -1"):
            stage((0, good), sequence=-1)
        assert house.staging.stats.tickets == 0


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (b"\x01", "cut short"),
        (encode_headers([("name", b"value")])[:-1], "cut short"),
        (encode_headers([("name", b"value")]) + b"\x00\x00", "cut short"),
        (encode_headers([("ab", b"")]).replace(b"ab", b"\xc3a"), "not UTF-8"),
        (encode_headers([("a", None)] * 1001), "more than 1000"),
    ],
)
async def test_headers_that_no_reader_could_read_are_refused(house: StagingHouse, cell: bytes, problem: str) -> None:
    fine = encode_headers([("ä", b"1"), ("", None), ("b", b"")])
    async with house:
        await house.topic("orders")
        await house.run()
        block = encode_block(0, 0, [b"v"] * 4, None, [fine, None, cell, fine])
        with pytest.raises(InvalidRequest, match=problem):
            house.staging.stage(ALICE, "orders", Place("query", 1, 0, "a", 0), [(0, block)], done=lambda error: None)
        good = encode_block(0, 0, [b"v"] * 3, [b"k", None, b""], [fine, None, encode_headers([("x", bytes(300))])])
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        house.staging.stage(ALICE, "orders", Place("query", 1, 0, "a", 0), [(0, good)], done=done.set_result)
        assert await done is None
        await house.publish(0, ("a", 1))
        (stored,) = await house.engine.partition("orders", 0).read(0)
        assert stored.keys() == [b"k", None, b""]
        assert stored.headers() == Block(good).headers()


async def test_a_record_larger_than_a_block_is_staged_alone(tmp_path: Path, clock: ManualClock) -> None:
    house = StagingHouse(tmp_path / "data", clock, BrokerLimits(record_bytes_max=8 << 20))
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [bytes(8 << 20)])])
        with pytest.raises(RecordTooLarge, match="record 0 has 8388609 bytes"):
            await house.stage("orders", [(0, [bytes((8 << 20) + 1)])], sequence=1)
        assert await house.publish(0, ("a", 1)) is Committed.NOW


async def test_records_of_a_bound_topic_must_follow_its_schema(house: StagingHouse) -> None:
    async with house:
        await house.topic("orders")
        await house.broker.schemas.register(ANONYMOUS, "order", "json", '{"type": "object", "required": ["id"]}')
        await house.broker.schemas.bind(ANONYMOUS, "orders", "order")
        await house.run()
        with pytest.raises(ValidationFailed):
            await house.stage("orders", [(0, [b'{"id": 1}', b"{}"])])
        await house.stage("orders", [(0, [b'{"id": 1}'])])
        assert await house.publish(0, ("a", 1)) is Committed.NOW


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
            with pytest.raises(AccessDenied, match="belongs to someone else"):
                await asked()
        assert await house.publish(0, ("a", 1)) is Committed.NOW


async def test_who_may_no_longer_write_a_topic_does_not_publish_to_it(tmp_path: Path, clock: ManualClock) -> None:
    class Policy:
        closed = "-"

        def check(self, principal: Principal, operation: object, resource: tuple[object, str]) -> None:
            if resource[1] == self.closed:
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
