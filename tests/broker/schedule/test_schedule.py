"""Delayed records: delivered at their time, in order, once; cancelled; kept across restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.schedule import schedule
from penstock.broker.schedule.schedule import Scheduled, go_duration
from penstock.broker.schedule.schedule_log import SCHEDULE_TOPIC
from penstock.broker.table import TABLE_CONFIG
from penstock.errors import (
    CorruptBlock,
    EntryNotFound,
    InvalidRequest,
    LimitExceeded,
    NoSpace,
    PartitionNotFound,
    PenstockError,
    RecordTooLarge,
    ShuttingDown,
    TopicNotFound,
    ValidationFailed,
)
from penstock.log.api import BatchFor, Engine, OnAllAppended, TopicConfig
from penstock.log.block import Block
from penstock.log.embedded import EngineOptions
from penstock.record_headers import encode_headers
from penstock.testing.clock import START_MS, ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import read_values
from tests.engines import embedded, make_engine
from tests.open_access import OpenAccess

WHO = ANONYMOUS


@asynccontextmanager
async def running(
    data_dir: Path, clock: ManualClock, limits: BrokerLimits | None = None, disk: FaultyDisk | None = None
) -> AsyncIterator[Broker]:
    engine = make_engine(data_dir, clock=clock, disk=disk)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=limits or BrokerLimits(), access=OpenAccess())
    await broker.start()
    yield broker
    await broker.close()
    await engine.close()


async def delay(broker: Broker, topic: str, value: bytes, delay_ms: int, **how: object) -> Scheduled:
    answer: asyncio.Future[Scheduled | PenstockError] = asyncio.get_running_loop().create_future()
    broker.schedule.add(WHO, topic, -1, value, delay_ms=delay_ms, done=answer.set_result, **how)  # type: ignore[arg-type]
    result = await answer
    assert isinstance(result, Scheduled), result
    return result


async def delivered(broker: Broker, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    """The values of a topic as soon as it has this many."""
    handle = broker.records.partition(WHO, topic, partition)
    arrived = asyncio.Event()
    stop = handle.watch(arrived.set)
    while len(values := await read_values(handle)) < count:  # offsets may skip, so the end says nothing
        await arrived.wait()
        arrived.clear()
    stop()
    return values


async def nothing_more_happens(broker: Broker) -> None:
    """Let the schedule look at the clock, and find nothing to do."""
    for _ in range(20):
        broker.schedule.look()
        await asyncio.sleep(0)


@pytest.mark.dense
async def test_a_delayed_record_is_readable_when_it_is_due_and_not_before(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    scheduled = await delay(broker, "t", b"later", 5_000)
    assert scheduled == Scheduled(f"{START_MS + 5_000}-0", START_MS + 5_000, 0)
    assert broker.schedule.pending == 1
    clock.advance(4.999)
    await nothing_more_happens(broker)
    assert await read_values(broker.records.partition(WHO, "t", 0)) == []
    clock.advance(0.001)
    broker.schedule.look()
    assert await delivered(broker, "t", 1) == [b"later"]
    await nothing_more_happens(broker)
    assert broker.schedule.pending == 0
    assert (broker.schedule.stats.accepted, broker.schedule.stats.delivered) == (1, 1)


async def test_key_headers_and_time_to_live_arrive_with_the_record(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.create(WHO, "t", TopicConfig(partitions=3))
    headers = encode_headers([("h", b"1")])
    scheduled = await delay(broker, "t", b"v", 1_000, key=b"user-123", headers=headers, ttl_ms=700)
    assert scheduled.partition == 2
    clock.advance(1.5)
    broker.schedule.look()
    await delivered(broker, "t", 1, partition=2)
    [block] = await broker.records.partition(WHO, "t", 2).read(0)
    assert (block.keys(), block.values(), block.headers()) == ([b"user-123"], [b"v"], [headers])
    assert block.expiries() == [START_MS + 1_500 + 700]


async def test_records_come_in_the_order_of_their_due_times(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    delays = [700, 100, 400, 100, 250, 900]
    for number, delay_ms in enumerate(delays):
        await delay(broker, "t", b"%d" % number, delay_ms)
    clock.advance(1)
    broker.schedule.look()
    assert await delivered(broker, "t", 6) == [b"1", b"3", b"4", b"2", b"0", b"5"]


@pytest.mark.embedded
async def test_many_that_are_due_together_are_few_appends(
    engine: Engine, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends: list[int] = []
    original = engine.append_atomic

    def counted(parts: Sequence[BatchFor], done: OnAllAppended) -> None:
        appends.append(sum(len(part.batch) for part in parts))
        original(parts, done)

    monkeypatch.setattr(engine, "append_atomic", counted)
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    await broker.topics.create(WHO, "t", TopicConfig(partitions=2))
    await asyncio.gather(*(delay(broker, "t", b"%d" % number, 1_000, key=b"%d" % number) for number in range(3_000)))
    clock.advance(2)
    broker.schedule.look()
    values = await delivered(broker, "t", 1_500, 0) + await delivered(broker, "t", 1_500, 1)
    await broker.close()
    assert sorted(map(int, filter(None, values))) == list(range(3_000))
    assert sum(appends) == 6_000
    assert len(appends) <= 3


async def test_a_cancelled_record_is_never_delivered(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    first = await delay(broker, "t", b"first", 1_000)
    await delay(broker, "t", b"second", 1_000)
    await broker.schedule.cancel(WHO, "t", first.id)
    assert broker.schedule.pending == 1
    clock.advance(2)
    broker.schedule.look()
    assert await delivered(broker, "t", 1) == [b"second"]
    assert broker.schedule.stats.cancelled == 1


@pytest.mark.parametrize("entry_id", ["", "x", "1-x", "-", "1700000005000-7", "9" * 30 + "-0", "1-2-3"])
async def test_an_id_that_waits_nowhere_is_not_found(broker: Broker, entry_id: str) -> None:
    await broker.topics.ensure(WHO, "t")
    await delay(broker, "t", b"v", 5_000)
    with pytest.raises(EntryNotFound, match="delayed message not found"):
        await broker.schedule.cancel(WHO, "t", entry_id)
    assert broker.schedule.pending == 1


async def test_only_who_names_its_topic_can_cancel_it(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "mine")
    await broker.topics.ensure(WHO, "yours")
    scheduled = await delay(broker, "mine", b"v", 1_000)
    with pytest.raises(EntryNotFound):
        await broker.schedule.cancel(WHO, "yours", scheduled.id)
    clock.advance(1)
    broker.schedule.look()
    assert await delivered(broker, "mine", 1) == [b"v"]
    with pytest.raises(EntryNotFound, match="may be delivered"):
        await broker.schedule.cancel(WHO, "mine", scheduled.id)


async def test_one_that_was_read_ahead_can_still_be_cancelled(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    scheduled = await delay(broker, "t", b"v", schedule.AHEAD_MS)
    await delay(broker, "t", b"w", schedule.AHEAD_MS)
    await nothing_more_happens(broker)
    await broker.schedule.cancel(WHO, "t", scheduled.id)
    clock.advance(1)
    broker.schedule.look()
    assert await delivered(broker, "t", 1) == [b"w"]


async def test_two_who_cancel_one_record_are_one_who_does(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    scheduled = await delay(broker, "t", b"v", 5_000)
    results = await asyncio.gather(
        *(broker.schedule.cancel(WHO, "t", scheduled.id) for _ in range(3)), return_exceptions=True
    )
    assert [type(result) for result in results].count(EntryNotFound) == 2
    assert broker.schedule.pending == 0


async def test_what_waits_survives_a_restart_and_what_is_over_does_not_come_back(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock) as broker:
        await broker.topics.ensure(WHO, "t")
        gone = await delay(broker, "t", b"cancelled", 9_000)
        kept = await delay(broker, "t", b"kept", 9_000)
        await delay(broker, "t", b"delivered", 1_000)
        await broker.schedule.cancel(WHO, "t", gone.id)
        clock.advance(1)
        broker.schedule.look()
        await delivered(broker, "t", 1)
    async with running(tmp_path, clock) as broker:
        assert broker.schedule.pending == 1
        with pytest.raises(EntryNotFound):
            await broker.schedule.cancel(WHO, "t", gone.id)
        await delay(broker, "t", b"new", 500)
    clock.advance(60)
    async with running(tmp_path, clock) as broker:
        assert await delivered(broker, "t", 3) == [b"delivered", b"new", b"kept"]
        with pytest.raises(EntryNotFound):
            await broker.schedule.cancel(WHO, "t", kept.id)
    async with running(tmp_path, clock) as broker:
        assert broker.schedule.pending == 0
        await nothing_more_happens(broker)
        assert len(await read_values(broker.records.partition(WHO, "t", 0))) == 3


async def test_an_id_from_before_a_restart_still_cancels(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock) as broker:
        await broker.topics.ensure(WHO, "t")
        scheduled = await delay(broker, "t", b"v", 9_000)
    async with running(tmp_path, clock) as broker:
        await broker.schedule.cancel(WHO, "t", scheduled.id)
        assert broker.schedule.pending == 0


@pytest.mark.embedded
async def test_what_is_over_leaves_the_disk_and_what_waits_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(TABLE_CONFIG, segment_bytes=1 << 16)
    monkeypatch.setattr("penstock.broker.schedule.schedule_log.TABLE_CONFIG", small)
    clock, options = ManualClock(), EngineOptions(tombstone_ms=0, compact_dirty_ratio=0.01)
    engine = make_engine(tmp_path, clock=clock, options=options)
    await engine.start()
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    await broker.topics.ensure(WHO, "t")
    await delay(broker, "t", b"waits", 3_600_000)
    for _ in range(20):
        await asyncio.gather(*(delay(broker, "t", bytes(1_000), 500) for _ in range(20)))
    clock.advance(1)
    broker.schedule.look()
    await delivered(broker, "t", 400)
    await asyncio.gather(*(delay(broker, "t", bytes(1_000), 7_200_000) for _ in range(100)))
    size_bytes = engine.partition(SCHEDULE_TOPIC, 0).size_bytes
    clock.advance(1)
    await embedded(engine).maintain()
    assert engine.partition(SCHEDULE_TOPIC, 0).size_bytes < size_bytes / 2
    await broker.close()
    await engine.close()
    clock.advance(3_600)
    async with running(tmp_path, clock) as broker:
        assert (await delivered(broker, "t", 401))[-1] == b"waits"
        assert broker.schedule.pending == 100


@pytest.mark.dense
async def test_a_clock_set_back_or_forward_neither_loses_nor_repeats(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    await delay(broker, "t", b"one", 1_000)
    clock.jump(3_600)
    broker.schedule.look()
    assert await delivered(broker, "t", 1) == [b"one"]
    clock.jump(-7_200)
    await delay(broker, "t", b"two", 1_000)
    await nothing_more_happens(broker)
    assert await read_values(broker.records.partition(WHO, "t", 0)) == [b"one"]
    clock.advance(1)
    broker.schedule.look()
    assert await delivered(broker, "t", 2) == [b"one", b"two"]
    clock.jump(7_200)
    await nothing_more_happens(broker)
    assert await delivered(broker, "t", 2) == [b"one", b"two"]


async def test_a_jump_of_the_clock_is_noticed_without_being_told(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    await delay(broker, "t", b"v", 3_600_000)
    clock.jump(3_600)
    assert await asyncio.wait_for(delivered(broker, "t", 1), 10) == [b"v"]


async def test_delayed_records_go_with_their_topic(broker: Broker, clock: ManualClock) -> None:
    await broker.topics.ensure(WHO, "t")
    await broker.topics.ensure(WHO, "other")
    await delay(broker, "t", b"for the first t", 1_000)
    await delay(broker, "other", b"o", 1_000)
    await broker.topics.delete(WHO, "t")
    await broker.topics.ensure(WHO, "t")
    clock.advance(1)
    broker.schedule.look()
    assert await delivered(broker, "other", 1) == [b"o"]
    await nothing_more_happens(broker)
    assert await read_values(broker.records.partition(WHO, "t", 0)) == []
    assert broker.schedule.stats.dropped == 1
    assert broker.schedule.pending == 0


@pytest.mark.dense
async def test_large_records_are_read_a_few_at_a_time(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "READY_BYTES_MAX", 10_000)
    monkeypatch.setattr(schedule, "DELIVERY_BYTES_MAX", 5_000)
    await broker.topics.ensure(WHO, "t")
    values = [bytes([number]) * 4_000 for number in range(20)]
    for number, value in enumerate(values):
        await delay(broker, "t", value, 1_000 + number)
    clock.advance(2)
    broker.schedule.look()
    assert await delivered(broker, "t", 20) == values


async def test_a_full_disk_delays_delivery_and_repeats_nothing(
    engine: Engine, broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = 3
    original = engine.append_atomic

    def full_at_first(parts: Sequence[BatchFor], done: OnAllAppended) -> None:
        nonlocal refusals
        if refusals:
            refusals -= 1
            asyncio.get_running_loop().call_soon(done, NoSpace("no space left"))
        else:
            original(parts, done)

    monkeypatch.setattr(engine, "append_atomic", full_at_first)
    await broker.topics.ensure(WHO, "t")
    await delay(broker, "t", b"v", 1_000)
    clock.advance(1)
    broker.schedule.look()
    assert await asyncio.wait_for(delivered(broker, "t", 1), 10) == [b"v"]
    await nothing_more_happens(broker)
    assert refusals == 0
    assert broker.schedule.pending == 0
    assert await delivered(broker, "t", 1) == [b"v"]


async def test_an_entry_that_is_not_in_the_log_any_more_holds_up_no_other(
    broker: Broker, engine: Engine, clock: ManualClock
) -> None:
    await broker.topics.ensure(WHO, "t")
    ended = await delay(broker, "t", b"ended", 1_000)
    await broker.schedule.cancel(WHO, "t", ended.id)
    tombstone = engine.partition(SCHEDULE_TOPIC, 0).committed_end - 1
    broker.schedule._waiting.add(ended.due_ms, tombstone)
    await delay(broker, "t", b"v", 1_000)
    clock.advance(1)
    broker.schedule.look()
    assert await delivered(broker, "t", 1) == [b"v"]
    assert broker.schedule.pending == 0
    assert broker.background.failures["delayed_records"] == 0


@pytest.mark.embedded
async def test_after_a_failed_flush_the_next_start_delivers_once(tmp_path: Path) -> None:
    clock, disk = ManualClock(), FaultyDisk()
    async with running(tmp_path, clock, disk=disk) as broker:
        await broker.topics.ensure(WHO, "t")
        await delay(broker, "t", b"v", 1_000)
        disk.fail_next_fsync()
        clock.advance(1)
        broker.schedule.look()
        while broker.schedule.pending:
            await asyncio.sleep(0)
    async with running(tmp_path, clock) as broker:
        assert await asyncio.wait_for(delivered(broker, "t", 1), 10) == [b"v"]
        await nothing_more_happens(broker)
        assert await delivered(broker, "t", 1) == [b"v"]


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"delay_ms": 0}, InvalidRequest, "produce the record without a delay"),
        (
            {"delay_ms": 86_400_001},
            InvalidRequest,
            "^delay 24h0m0.001s exceeds maximum allowed delay 24h0m0s$",
        ),
        ({"topic": "missing"}, TopicNotFound, "topic not found: missing"),
        ({"partition": 3}, PartitionNotFound, "partition 3 not found"),
        ({"ttl_ms": -1}, InvalidRequest, "a time to live of -1 ms"),
        ({"ttl_ms": 1 << 63}, InvalidRequest, "a time to live of"),
        ({"value": bytes(101)}, RecordTooLarge, "record 0 has 101 bytes"),
        ({"topic": "compacted"}, InvalidRequest, "give every record a key"),
    ],
)
async def test_what_cannot_be_delivered_is_not_accepted(
    tmp_path: Path, how: dict[str, object], error: type[PenstockError], text: str
) -> None:
    async with running(tmp_path, ManualClock(), BrokerLimits(record_bytes_max=100)) as broker:
        await broker.topics.ensure(WHO, "t")
        await broker.topics.create(WHO, "compacted", TopicConfig(cleanup="compact"))
        call = {"topic": "t", "partition": -1, "value": b"v", "delay_ms": 1_000, **how}
        topic, partition, value = call.pop("topic"), call.pop("partition"), call.pop("value")
        with pytest.raises(error, match=text):
            broker.schedule.add(WHO, topic, partition, value, **call, done=lambda result: None)  # type: ignore[arg-type]
        assert broker.schedule.pending == 0


async def test_a_record_must_follow_the_schema_of_its_topic_when_it_is_accepted(broker: Broker) -> None:
    await broker.topics.ensure(WHO, "t")
    await broker.schemas.register(WHO, "s", "json", '{"type": "object"}')
    await broker.schemas.bind(WHO, "t", "s")
    with pytest.raises(ValidationFailed):
        await delay(broker, "t", b"[]", 1_000)
    await delay(broker, "t", b"{}", 1_000)
    assert broker.schedule.pending == 1


@pytest.mark.dense
async def test_one_that_cannot_be_read_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock) as broker:
        await broker.topics.ensure(WHO, "t")
        await delay(broker, "t", b"damaged", 1_000)
        await delay(broker, "t", b"sound", 1_000)
        partition = broker.schedule._log.partition
        original = partition.read

        async def read(offset: int, max_bytes: int = 0) -> list[Block]:
            if offset == 0:
                raise CorruptBlock("corrupt block")
            return await original(offset, max_bytes)

        monkeypatch.setattr(partition, "read", read)
        clock.advance(1)
        broker.schedule.look()
        assert await delivered(broker, "t", 1) == [b"sound"]
    async with running(tmp_path, clock) as broker:
        assert await delivered(broker, "t", 2) == [b"sound", b"damaged"], "it was not forgotten"


async def test_how_many_may_wait_is_bounded(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock, BrokerLimits(delayed_max=2)) as broker:
        await broker.topics.ensure(WHO, "t")
        await delay(broker, "t", b"1", 1_000)
        await delay(broker, "t", b"2", 1_000)
        with pytest.raises(LimitExceeded, match=r"limits\.delayed_max"):
            await delay(broker, "t", b"3", 1_000)
        clock.advance(1)
        broker.schedule.look()
        await delivered(broker, "t", 2)
        await nothing_more_happens(broker)
        await delay(broker, "t", b"3", 1_000)


async def test_nothing_is_accepted_once_the_broker_is_closed(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    await broker.topics.ensure(WHO, "t")
    await broker.close()
    with pytest.raises(ShuttingDown):
        await delay(broker, "t", b"v", 1_000)


async def test_its_topic_is_internal(broker: Broker) -> None:
    assert SCHEDULE_TOPIC not in broker.topics.names(WHO)
    assert broker.topics.exists(SCHEDULE_TOPIC)


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (0, "0s"),
        (5, "5ms"),
        (1_000, "1s"),
        (1_500, "1.5s"),
        (90_000, "1m30s"),
        (3_600_000, "1h0m0s"),
        (86_400_001, "24h0m0.001s"),
        (100_000_020, "27h46m40.02s"),
    ],
)
def test_durations_are_written_as_go_writes_them(duration_ms: int, text: str) -> None:
    assert go_duration(duration_ms) == text


async def test_what_waits_is_listed_by_the_time_it_is_due_a_page_at_a_time(
    broker: Broker, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "LISTED_ENTRIES_MAX", 2)
    for topic in ("a", "b"):
        await broker.topics.ensure(WHO, topic)
    later = await delay(broker, "a", b"later", 9_000, key=b"k", ttl_ms=5)
    soon = await delay(broker, "b", b"soon", 100)
    sooner = await delay(broker, "a", b"sooner", 50)
    clock.advance(0.01)
    await nothing_more_happens(broker)  # those that are due soon are in memory now

    async def listed(topic: str = "") -> list[str]:
        found: list[str] = []
        after = ""
        for _ in range(10):
            page = await broker.schedule.list_pending(WHO, topic, after)
            assert len(page.entries) <= 2
            found += [entry.id for entry in page.entries]
            after = page.after
            if not after:
                return found
        raise AssertionError("the pages have no end")

    assert await listed() == [sooner.id, soon.id, later.id]
    assert await listed("a") == [sooner.id, later.id]
    assert await listed("c") == []
    [entry] = (await broker.schedule.list_pending(WHO, "", soon.id)).entries
    assert (entry.due_ms, entry.record.key, entry.record.value, entry.record.ttl_ms) == (
        later.due_ms,
        b"k",
        b"later",
        5,
    )
    await broker.schedule.cancel(WHO, "a", later.id)
    assert await listed() == [sooner.id, soon.id]
    with pytest.raises(InvalidRequest, match="is not the id of a delayed record"):
        await broker.schedule.list_pending(WHO, "", "soon")


async def test_records_that_are_too_large_together_are_listed_in_smaller_pages(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.topics.ensure(WHO, "t")
    scheduled = [await delay(broker, "t", b"x" * 600, 1_000 + number) for number in range(5)]
    monkeypatch.setattr(schedule, "READY_BYTES_MAX", 1_500)
    found: list[str] = []
    after = ""
    for _ in scheduled:
        page = await broker.schedule.list_pending(WHO, "", after)
        found += [entry.id for entry in page.entries]
        after = page.after
    assert found[:5] == [each.id for each in scheduled]
