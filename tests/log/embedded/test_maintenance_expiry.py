"""Records whose time to live has ended are removed from sealed segments, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.clock import START_MS, ManualClock
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import partition_directory, partition_of, segment_files
from tests.log.records import append, read_all

SECOND = 1000
# What is in memory for readers stays there: only the disk shows what a rewrite has left.
FROM_DISK = EngineOptions(tail_bytes_max=0)
CONFIG = TopicConfig(segment_ms=10 * SECOND)


async def sealed(engine: EmbeddedEngine, clock: ManualClock) -> None:
    """Let the segment that is written to grow old and be sealed."""
    clock.advance(10)
    await engine.maintain()


async def offsets_of(engine: EmbeddedEngine) -> list[int]:
    return [record.offset for record in await read_all(partition_of(engine))]


async def test_expired_records_of_a_sealed_segment_are_removed_and_the_others_stay_as_they_are(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", CONFIG)
    partition = partition_of(engine)
    values, expiries = [b"%d" % n * 1000 for n in range(6)], [START_MS + 20 * SECOND, 0, START_MS + 20 * SECOND] * 2
    await append(partition, values, [b"k"] * 6, [b"\1"] * 6, expiries)
    before = await read_all(partition)
    await sealed(engine, clock)
    assert await read_all(partition) == before, "none has expired yet"
    size_bytes = segment_files(data_dir)[0].stat().st_size
    clock.advance(15)
    await engine.maintain()
    assert await read_all(partition) == [before[1], before[4]]
    assert partition.start_offset == 0
    assert partition.committed_end == 6
    assert segment_files(data_dir)[0].stat().st_size < size_bytes / 2
    assert [block.base_offset for block in await partition.read(2)] == [1], "what reads on finds the next one"


async def test_a_segment_is_rewritten_when_half_of_what_expires_in_it_has(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", CONFIG)
    await append(partition_of(engine), [b"v"] * 5, expiries=[START_MS + n * 10 * SECOND for n in (2, 3, 4, 5, 0)])
    await sealed(engine, clock)
    clock.advance(15)  # 25 s
    await engine.maintain()
    assert await offsets_of(engine) == [0, 1, 2, 3, 4]
    clock.advance(10)
    await engine.maintain()
    assert await offsets_of(engine) == [2, 3], "the one that expired at once is gone too"


async def test_a_segment_of_nothing_but_expired_records_goes_whole(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", CONFIG)
    partition = partition_of(engine)
    await append(partition, [b"v"] * 3, expiries=[START_MS + 1] * 3)
    await sealed(engine, clock)
    await append(partition, [b"w"])
    await engine.maintain()
    assert await offsets_of(engine) == [3]
    assert partition.start_offset == 3
    assert len(segment_files(data_dir)) == 1


async def test_that_records_expire_is_known_after_a_restart(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", CONFIG)
    await append(partition_of(engine), [b"v", b"w"], expiries=[START_MS + 20 * SECOND, 0])
    await sealed(engine, clock)
    await engine.close()
    clock.advance(60)
    engine = await open_engine(options=FROM_DISK)
    await engine.maintain()
    assert await offsets_of(engine) == [1]
    await engine.close()
    for path in partition_directory(data_dir).glob("*.index"):
        path.unlink()
    engine = await open_engine()
    assert await offsets_of(engine) == [1]


async def test_segments_in_which_nothing_expires_are_not_checked(open_engine: OpenEngine, clock: ManualClock) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", CONFIG)
    partition = partition_of(engine)
    await append(partition, [b"v"] * 3)
    await sealed(engine, clock)
    [segment, _] = partition.segments
    assert not segment.index.expires
    clock.advance(1000)
    await engine.maintain()
    assert partition.segments[0] is segment


async def test_compaction_drops_expired_records_with_those_they_superseded(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(options=EngineOptions(compact_dirty_ratio=0.1, tail_bytes_max=0))
    await engine.create_topic("orders", TopicConfig(segment_ms=10 * SECOND, cleanup="compact"))
    await append(
        partition_of(engine),
        [b"old", b"short", b"kept"],
        [b"a", b"a", b"b"],
        expiries=[0, START_MS + 1, START_MS + 3600 * SECOND],
    )
    await sealed(engine, clock)
    assert [record.value for record in await read_all(partition_of(engine))] == [b"kept"]


async def test_a_damaged_segment_is_left_as_it_is(open_engine: OpenEngine, clock: ManualClock, data_dir: Path) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", CONFIG)
    await append(partition_of(engine), [b"v" * 100], expiries=[START_MS + 1])
    clock.advance(10)
    await engine.close()
    engine = await open_engine()
    [path] = segment_files(data_dir)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    await engine.maintain()
    await engine.maintain()
    assert path.read_bytes() == data


async def test_where_there_is_retention_only_that_moves_the_start(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    """So that a reader below the start has lost something, and one below the first record need not have."""
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic("orders", TopicConfig(segment_bytes=2000, segment_ms=SECOND, retention_ms=100 * SECOND))
    partition = partition_of(engine)
    for _ in range(5):
        await append(partition, [b"v" * 3000], expiries=[START_MS + 1])
    await append(partition, [b"w" * 3000])
    clock.advance(10)
    await engine.maintain()
    assert partition.start_offset == 0
    assert [segment.end > 0 for segment in partition.segments] == [False, True, False], (
        "one stands for all that expired"
    )
    assert [record.offset for record in await read_all(partition)] == [5]
    await engine.close()
    engine = await open_engine(options=FROM_DISK)
    assert partition_of(engine).start_offset == 0
    assert await offsets_of(engine) == [5]
    clock.advance(100)
    await engine.maintain()
    assert partition_of(engine).start_offset == 6


async def test_compaction_over_segments_that_are_empty_already(open_engine: OpenEngine, clock: ManualClock) -> None:
    engine = await open_engine(options=FROM_DISK)
    await engine.create_topic(
        "orders", TopicConfig(cleanup="compact", segment_bytes=2000, segment_ms=SECOND, retention_ms=3600 * SECOND)
    )
    for number in range(12):
        await append(partition_of(engine), [b"%d" % number * 2500], [b"k"])
        if number % 3 == 2:
            clock.advance(2)
            await engine.maintain()
    assert await offsets_of(engine) == [11]
    assert partition_of(engine).start_offset == 0
