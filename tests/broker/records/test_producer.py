"""Routing and appending runs: where records land, what `done` hears, and which of them are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.records.keys import VECTOR_RUN_MIN, fnv1a
from penstock.broker.records.spreading import ALL_ROWS, Placement, Scattered, errors_by_row, offsets_by_unit
from penstock.columns import UniformCells
from penstock.errors import (
    InvalidRequest,
    NotWritten,
    PartitionNotFound,
    PenstockError,
    RecordTooLarge,
    TopicNotFound,
)
from penstock.log.api import Appended, Engine, TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import appended, by_partition, produce, read_values
from tests.broker.subscribing import a_broker
from tests.engines import embedded
from tests.open_access import OpenAccess


def values_of(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


@pytest.mark.dense
async def test_a_topic_with_one_partition_takes_a_run_whole(broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "t")
    [first] = await produce(broker, "t", values_of(3), [b"a", None, b"b"])
    [second] = await produce(broker, "t", values_of(2))
    assert (first.partition, first.rows, appended(first).base_offset) == (0, ALL_ROWS, 0)
    assert appended(second).base_offset == 3
    partition = broker.records.partition(ANONYMOUS, "t", 0)
    assert await read_values(partition) == [b"0", b"1", b"2", b"0", b"1"]
    [block] = await partition.read(0, max_bytes=1)
    assert block.keys() == [b"a", None, b"b"]


async def test_an_explicit_partition_is_honoured_whatever_the_key(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=3))
    [placement] = await produce(broker, "t", values_of(2), [b"a", b"k1"], partition=2)
    assert placement.partition == 2
    assert await read_values(broker.records.partition(ANONYMOUS, "t", 2)) == [b"0", b"1"]


async def test_records_without_keys_go_round_from_partition_zero_and_on_in_the_next_run(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=3))
    await produce(broker, "t", values_of(4))
    await produce(broker, "t", [b"x", b"y"])
    held = [await read_values(broker.records.partition(ANONYMOUS, "t", index)) for index in range(3)]
    assert held == [[b"0", b"3"], [b"1", b"x"], [b"2", b"y"]]


@pytest.mark.parametrize("sizes", [(3, 3), (3, 4)], ids=["one size", "two sizes"])
async def test_columns_of_values_of_one_size_are_spread_as_lists_are(broker: Broker, sizes: tuple[int, int]) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=3))
    runs = [[b"%0*d" % (size, number) for number in range(20)] for size in sizes]
    columns = [UniformCells(size, 20, b"".join(run)) for size, run in zip(sizes, runs, strict=True)]
    await asyncio.gather(*(produce(broker, "t", column) for column in columns))
    held = [await read_values(broker.records.partition(ANONYMOUS, "t", index)) for index in range(3)]
    assert held == [[*runs[0], *runs[1]][index::3] for index in range(3)]


async def test_turns_begin_again_at_zero_for_a_topic_created_again(broker: Broker) -> None:
    config = TopicConfig(partitions=2)
    await broker.topics.create(ANONYMOUS, "t", config)
    await produce(broker, "t", [b"a"])
    await broker.topics.delete(ANONYMOUS, "t")
    await broker.topics.create(ANONYMOUS, "t", config)
    assert [placement.partition for placement in await produce(broker, "t", [b"a"])] == [0]


@pytest.mark.dense
@pytest.mark.parametrize("count", [1, 10, VECTOR_RUN_MIN + 5])
async def test_keys_decide_the_partition_and_the_placements_tell_which_record_went_where(
    broker: Broker, count: int
) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=4))
    values, keys = values_of(count), [b"key-%d" % (n % 7) for n in range(count)]
    told: dict[tuple[int, int], bytes] = {}
    for placement in await produce(broker, "t", values, keys):
        partition, rows = placement.partition, placement.rows
        rows = list(range(count)[rows]) if isinstance(rows, slice) else rows
        base = appended(placement).base_offset
        told.update({(partition, base + n): values[row] for n, row in enumerate(rows)})
        assert {fnv1a(keys[row]) % 4 for row in rows} == {partition}
    stored = {
        (index, offset): value
        for index in range(4)
        for offset, value in enumerate(await read_values(broker.records.partition(ANONYMOUS, "t", index)))
    }
    assert told == stored
    assert len(told) == count


async def test_headers_and_expiries_stay_with_their_records_when_a_run_is_split(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))
    placed: asyncio.Future[list[Placement] | Scattered] = asyncio.get_running_loop().create_future()
    broker.records.produce(
        ANONYMOUS, "t", -1, [b"a", b"b", b"c"], headers=[b"ha", None, b"hc"], expiries=[1, 0, 3], done=placed.set_result
    )
    await placed
    [block] = await broker.records.partition(ANONYMOUS, "t", 0).read(0)
    assert (block.values(), block.headers(), list(block.expiries() or ())) == ([b"a", b"c"], [b"ha", b"hc"], [1, 3])
    [block] = await broker.records.partition(ANONYMOUS, "t", 1).read(0)
    assert (block.values(), block.headers()) == ([b"b"], None)


@pytest.mark.dense
async def test_runs_that_do_not_wait_for_each_other_keep_their_order(broker: Broker) -> None:
    await broker.topics.ensure(ANONYMOUS, "t")
    placements = await asyncio.gather(*(produce(broker, "t", [b"%d" % n]) for n in range(200)))
    assert [appended(placement).base_offset for [placement] in placements] == list(range(200))
    assert await read_values(broker.records.partition(ANONYMOUS, "t", 0)) == values_of(200)


async def test_a_run_may_ask_for_a_partition_with_each_record(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=3))
    await produce(broker, "t", [b"first"])
    placements = await produce(broker, "t", values_of(5), [None, None, b"user-123", None, None], [2, -1, -1, 2, -1])
    assert {placement.partition: placement.rows for placement in placements} == {1: [1], 2: [0, 2, 3, 4]}
    assert await read_values(broker.records.partition(ANONYMOUS, "t", 2)) == [b"0", b"2", b"3", b"4"]
    assert await read_values(broker.records.partition(ANONYMOUS, "t", 1)) == [b"1"]


async def produce_together(broker: Broker, values: list[bytes], key: bytes | None = None) -> Placement:
    placed: asyncio.Future[list[Placement] | Scattered] = asyncio.get_running_loop().create_future()
    broker.records.produce_together(ANONYMOUS, "t", values, key, done=placed.set_result)
    (placement,) = by_partition(await placed)
    return placement


async def test_records_that_stay_together_take_turns_as_one(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=3))
    assert [(await produce_together(broker, values_of(5))).partition for _ in range(4)] == [0, 1, 2, 0]
    assert await read_values(broker.records.partition(ANONYMOUS, "t", 0)) == values_of(5) * 2


async def test_records_that_stay_together_follow_their_key(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=5))
    for key in (b"", b"a", b"user-123"):
        assert (await produce_together(broker, values_of(3), key)).partition == fnv1a(key) % 5
    [block] = await broker.records.partition(ANONYMOUS, "t", fnv1a(b"") % 5).read(0)
    assert block.keys() == [b""] * 3  # an empty key is a key


@pytest.mark.dense
async def test_runs_that_are_spread_gather_and_keep_their_order_in_every_partition(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=4))
    runs = [[b"%d-%d" % (run, row) for row in range(10 if run % 2 else 1)] for run in range(50)]
    placed = await asyncio.gather(
        *(produce(broker, "t", run, partition=number % 3 - 1) for number, run in enumerate(runs))
    )
    stored = [await read_values(broker.records.partition(ANONYMOUS, "t", index)) for index in range(4)]
    for run, placements in zip(runs, placed, strict=True):
        assert sum(len(run[p.rows] if isinstance(p.rows, slice) else p.rows) for p in placements) == len(run)
        for placement in placements:
            partition, rows = placement.partition, placement.rows
            sent = run[rows] if isinstance(rows, slice) else [run[row] for row in rows]
            base = appended(placement).base_offset
            assert stored[partition][base : base + len(sent)] == sent
    for values in stored:
        assert values == sorted(values, key=lambda value: tuple(map(int, (value or b"").split(b"-"))))


@pytest.mark.embedded
async def test_a_run_sent_on_an_answer_is_written_with_those_that_gathered_before_it(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))
    placed: asyncio.Future[list[Placement] | Scattered] = asyncio.get_running_loop().create_future()

    def send_another(_: object) -> None:
        broker.records.produce(ANONYMOUS, "t", -1, [b"2", b"2"], done=placed.set_result)

    broker.records.produce(ANONYMOUS, "t", -1, [b"0", b"0"], done=send_another)
    await asyncio.sleep(0)  # it goes to the log, and the next run waits for it
    await produce(broker, "t", [b"1", b"1"])
    await placed
    blocks = await broker.records.partition(ANONYMOUS, "t", 0).read(0)
    assert [block.values() for block in blocks] == [[b"0"], [b"1", b"2"]]


async def test_a_run_for_one_partition_hears_of_one_placement_although_it_waits_behind_runs_that_are_spread(
    broker: Broker,
) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=3))
    heard: asyncio.Future[list[Placement] | Scattered] = asyncio.get_running_loop().create_future()
    spread = asyncio.create_task(produce(broker, "t", values_of(6)))
    await asyncio.sleep(0)
    broker.records.produce(ANONYMOUS, "t", 1, [b"x", b"y"], done=heard.set_result)
    placed = await heard
    assert not isinstance(placed, Scattered)
    [placement] = placed
    assert (placement.partition, placement.rows, appended(placement).base_offset) == (1, ALL_ROWS, 2)
    await spread
    assert await read_values(broker.records.partition(ANONYMOUS, "t", 1)) == [b"1", b"4", b"x", b"y"]


@pytest.mark.embedded
async def test_runs_that_gathered_for_a_topic_that_is_deleted_hear_of_it(tmp_path: Path, clock: ManualClock) -> None:
    disk = FaultyDisk()
    async with a_broker(tmp_path / "d", clock, disk=disk) as broker:
        await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))
        with disk.fsync_held() as held:
            first = asyncio.create_task(produce(broker, "t", values_of(4)))
            await asyncio.to_thread(held.wait)
            gathered = [asyncio.create_task(produce(broker, "t", values_of(4))) for _ in range(2)]
            await asyncio.sleep(0)
            deleting = asyncio.create_task(broker.topics.delete(ANONYMOUS, "t"))
            while broker.topics.exists("t"):
                await asyncio.sleep(0)
        await deleting
        # What waits for the disk may be the first run, or what the broker has to note.
        assert all(isinstance(placement.result, Appended | TopicNotFound) for placement in await first)
        for run in gathered:
            assert all(isinstance(placement.result, TopicNotFound) for placement in await run)
        await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))
        assert [placement.partition for placement in await produce(broker, "t", values_of(2))] == [0, 1]


async def test_a_run_hears_its_answer_although_the_owner_of_another_fails_on_its_own(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))

    def fail(_: object) -> None:
        raise RuntimeError("a bug of the caller")

    first = asyncio.ensure_future(produce(broker, "t", values_of(2)))
    await asyncio.sleep(0)
    broker.records.produce(ANONYMOUS, "t", -1, values_of(2), done=fail)
    assert len(await produce(broker, "t", values_of(2))) == 2
    await first


@pytest.mark.embedded
async def test_of_runs_that_gathered_only_the_records_of_a_failed_partition_fail(
    engine: Engine, broker: Broker
) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))
    embedded(engine).partition("t", 1).fail("the disk under partition 1 is gone")
    for number, placements in enumerate(await asyncio.gather(*(produce(broker, "t", values_of(4)) for _ in range(3)))):
        sound, failed = placements
        assert (sound.rows, appended(sound).base_offset) == ([0, 2], 2 * number)
        assert (failed.rows, type(failed.result)) == ([1, 3], NotWritten)


@pytest.mark.embedded
async def test_a_part_that_fails_is_told_beside_a_part_that_does_not(engine: Engine, broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=2))
    embedded(engine).partition("t", 1).fail("the disk under partition 1 is gone")
    sound, failed = await produce(broker, "t", values_of(4))
    assert (sound.partition, sound.rows, appended(sound).base_offset) == (0, [0, 2], 0)
    assert (failed.partition, failed.rows) == (1, [1, 3])
    assert isinstance(failed.result, NotWritten)
    assert broker.topics.describe(ANONYMOUS, "t").partitions[1].failure == "the disk under partition 1 is gone"


@pytest.fixture
async def strict(engine: Engine, clock: ManualClock) -> Broker:
    """A broker with a topic of three partitions that takes small records only."""
    limits = BrokerLimits(record_bytes_max=1000, key_bytes_max=100)
    broker = Broker(engine, clock=clock, limits=limits, access=OpenAccess())
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(partitions=3))
    return broker


@pytest.mark.parametrize(
    ("partition", "values", "keys", "reason"),
    [
        (0, [], None, "no records"),
        (0, [b"v", b"w"], [b"k"], "2 values came with 1 keys"),
        ([0], [b"v", b"w"], None, "2 values came with 1 partitions"),
    ],
)
async def test_a_call_that_makes_no_sense_is_refused_whole(
    strict: Broker,
    partition: int | list[int],
    values: list[bytes],
    keys: list[bytes | None] | None,
    reason: str,
) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        await produce(strict, "t", values, keys, partition)
    assert [await read_values(strict.records.partition(ANONYMOUS, "t", index)) for index in range(3)] == [[], [], []]


LARGE, LONG = b"v" * 1001, b"k" * 101


@pytest.mark.parametrize(
    ("partition", "values", "keys", "error", "reason"),
    [
        (3, [b"v"], None, PartitionNotFound, "partition 3 not found: topic t has partitions 0 to 2"),
        (-2, [b"v"], None, PartitionNotFound, "partition -2 not found: topic t has partitions 0 to 2"),
        (
            0,
            [LARGE],
            None,
            RecordTooLarge,
            "record 0 has 1001 bytes with its key and headers: at most 1000 are allowed",
        ),
        (
            -1,
            [LARGE],
            None,
            RecordTooLarge,
            "record 0 has 1001 bytes with its key and headers: at most 1000 are allowed",
        ),
        (0, [b"v"], [LONG], RecordTooLarge, "a key has 101 bytes: at most 100 are allowed"),
        (-1, [b"v"], [LONG], RecordTooLarge, "a key has 101 bytes: at most 100 are allowed"),
        (3, [LARGE], [LONG], PartitionNotFound, "partition 3 not found: topic t has partitions 0 to 2"),
    ],
)
async def test_a_record_that_cannot_be_appended_is_refused_and_takes_no_turn(
    strict: Broker,
    partition: int,
    values: list[bytes],
    keys: list[bytes | None] | None,
    error: type[PenstockError],
    reason: str,
) -> None:
    [placement] = await produce(strict, "t", values, keys, partition)
    assert (placement.partition, placement.rows) == (-1, [0])
    assert (type(placement.result), str(placement.result)) == (error, reason)
    assert [placement.partition for placement in await produce(strict, "t", [b"v"])] == [0]


async def test_of_a_run_only_the_records_at_fault_are_refused(strict: Broker) -> None:
    values = [b"0", LARGE, b"2", b"3", b"4", b"5", b"6"]
    keys = [None, None, b"user-123", LONG, None, None, None]
    placements = await produce(strict, "t", values, keys, [-1, 0, -1, -1, 7, -1, 7])
    appended_to = {each.partition: each.rows for each in placements if isinstance(each.result, Appended)}
    assert appended_to == {0: [0], 1: [5], 2: [2]}
    refused = {tuple(each.rows): type(each.result) for each in placements if each.partition == -1}  # type: ignore[arg-type]
    assert refused == {(1,): RecordTooLarge, (3,): RecordTooLarge, (4,): PartitionNotFound, (6,): PartitionNotFound}
    stored = [await read_values(strict.records.partition(ANONYMOUS, "t", index)) for index in range(3)]
    assert stored == [[b"0"], [b"5"], [b"2"]]


async def test_a_record_at_fault_refuses_the_unit_it_belongs_to(strict: Broker) -> None:
    placed: asyncio.Future[list[Placement] | Scattered] = asyncio.get_running_loop().create_future()
    values = [b"0", b"1", b"2", LARGE, LARGE, b"5", b"6"]
    assert strict.records.produce(ANONYMOUS, "t", 0, values, units=[1, 1, 3, 2], done=placed.set_result)
    assert not placed.done()
    sound, refused = by_partition(await placed)
    assert (sound.rows, appended(sound).base_offset) == ([0, 1, 5, 6], 0)
    assert refused.rows == [2, 3, 4]
    assert str(refused.result).startswith("record 1 has 1001 bytes")
    assert offsets_by_unit([sound, refused], [1, 1, 3, 2]) == [0, 1, refused.result, 2]
    assert errors_by_row([sound, refused], 7) == dict.fromkeys([2, 3, 4], refused.result)


async def test_a_run_without_a_sound_record_is_reported_after_the_call(strict: Broker) -> None:
    placed: asyncio.Future[list[Placement] | Scattered] = asyncio.get_running_loop().create_future()
    assert strict.records.produce(ANONYMOUS, "t", -1, [LARGE, LARGE], done=placed.set_result)
    assert not placed.done()
    assert [placement.rows for placement in by_partition(await placed)] == [[0], [1]]


async def test_many_records_may_be_larger_together_than_one_may_be(engine: Engine, clock: ManualClock) -> None:
    broker = Broker(engine, clock=clock, limits=BrokerLimits(record_bytes_max=1000), access=OpenAccess())
    await broker.topics.ensure(ANONYMOUS, "t")
    [placement] = await produce(broker, "t", [b"v" * 1000] * 5)
    assert appended(placement).base_offset == 0


async def test_producing_to_a_topic_that_is_missing_says_so(broker: Broker) -> None:
    with pytest.raises(TopicNotFound, match="topic not found: nope"):
        await produce(broker, "nope", [b"v"])


@pytest.mark.parametrize(("keys", "rows"), [(None, [0, 1]), ([b"k", None], [1])])
async def test_a_compacted_topic_wants_a_key_with_every_record(
    broker: Broker, keys: list[bytes | None] | None, rows: list[int]
) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(cleanup="compact"))
    *_, refused = await produce(broker, "t", [b"x", b"y"], keys)
    assert refused.rows == rows[-1:]
    assert isinstance(refused.result, InvalidRequest)
    assert "give every record a key" in str(refused.result)
    stored = await read_values(broker.records.partition(ANONYMOUS, "t", 0))
    assert len(stored) == 2 - len(rows)


@pytest.mark.dense
async def test_a_compacted_topic_takes_tombstones(broker: Broker) -> None:
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(cleanup="compact"))
    [placement] = await produce(broker, "t", [b"a", None], [b"k", b"l"])
    assert appended(placement).base_offset == 0
