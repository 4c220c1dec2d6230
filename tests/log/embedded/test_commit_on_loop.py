"""Which thread writes a commit: the event loop while flushes are quick, the commit thread otherwise; and that it makes no difference."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import NoSpace, NotWritten, OutcomeUnknown, PenstockError
from penstock.log.api import Appended, Batch, BatchFor, Durability, LateBatch, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.commit import (
    FLUSHED_ON_LOOP_PARTITIONS_MAX,
    WRITTEN_ON_LOOP_BYTES_MAX,
    WRITTEN_ON_LOOP_PARTITIONS_MAX,
)
from penstock.log.embedded.disk import QUICK_FLUSH_S_MAX
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import TimedDisk, path_of, settled
from tests.log.records import append, read_values, start_atomic_append

THERE = "penstock-commit"


class SegmentFullDisk(TimedDisk):
    """Has no space for the second write to a segment, once, after it was asked for."""

    second_segment_is_full = False
    _segments_written = 0

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if self.second_segment_is_full and path_of(fd).suffix == ".log":
            self._segments_written += 1
            if self._segments_written == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, position)


class HeldCheckpointDisk(TimedDisk):
    """Syncs nothing for a checkpoint before the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.checkpoint_gate = threading.Event()

    def fdatasync(self, fd: int) -> None:
        if threading.current_thread().name.startswith("penstock-checkpoint"):
            assert self.checkpoint_gate.wait(10)
        super().fdatasync(fd)


@pytest.fixture
def disk() -> TimedDisk:
    return TimedDisk()


@pytest.fixture
async def engine(open_engine: OpenEngine, disk: TimedDisk) -> EmbeddedEngine:
    engine = await open_engine(disk=disk)
    await engine.create_topic("safe", TopicConfig(partitions=2, segment_bytes=1 << 20))
    await engine.create_topic("loose", TopicConfig(partitions=2, durability=Durability("none"), segment_bytes=1 << 20))
    await engine.create_topic("later", TopicConfig(durability=Durability("interval", 60_000)))
    await append(engine.partition("safe", 0), [b"first"])
    return engine


async def writers(engine: EmbeddedEngine, disk: TimedDisk, *appends: tuple[str, int, int]) -> set[str]:
    """Append in one turn of the loop; returns the threads that wrote."""
    disk.threads.clear()
    batches = [(engine.partition(topic, index), Batch([b"v" * size])) for topic, index, size in appends]
    await asyncio.gather(*(start_append(partition, batch) for partition, batch in batches))
    return set(disk.threads)


def here() -> str:
    return threading.current_thread().name


async def test_a_small_commit_to_one_partition_is_flushed_on_the_loop(engine: EmbeddedEngine, disk: TimedDisk) -> None:
    flushes = disk.flushes["log"]
    assert await writers(engine, disk, ("safe", 0, 100)) == {here()}
    assert await writers(engine, disk, *[("safe", 0, 100)] * 50) == {here()}
    assert disk.flushes["log"] == flushes + 2, "every commit is flushed before it is answered"
    assert await read_values(engine.partition("safe", 0)) == [b"first", *[b"v" * 100] * 51]


async def test_a_small_commit_that_waits_for_no_disk_is_written_on_the_loop_however_slow_flushes_are(
    engine: EmbeddedEngine, disk: TimedDisk
) -> None:
    disk.flush_s = 60.0
    assert await writers(engine, disk, *[("loose", index, 100) for index in (0, 1, 0)]) == {here()}
    assert await writers(engine, disk, ("loose", 0, WRITTEN_ON_LOOP_BYTES_MAX)) == {THERE}
    for _ in range(40):
        await writers(engine, disk, ("loose", 1, 30_000))
    assert len(engine.partition("loose", 1).segments) == 2, "a segment was rolled on the way"
    assert await read_values(engine.partition("loose", 1)) == [b"v" * 100, *[b"v" * 30_000] * 40]


@pytest.mark.parametrize(
    "appends",
    [
        [("safe", 0, WRITTEN_ON_LOOP_BYTES_MAX)],
        [("safe", 0, 20_000), ("safe", 0, 20_000)],
        [("safe", 0, 1), ("safe", 1, 1)],
        [("later", 0, 1)],
        [("safe", 0, 1), ("later", 0, 1)],
    ],
    ids=["large", "large together", "no journal yet", "interval", "one of interval"],
)
async def test_other_commits_go_to_the_commit_thread(
    engine: EmbeddedEngine, disk: TimedDisk, appends: list[tuple[str, int, int]]
) -> None:
    assert await writers(engine, disk, *appends) == {THERE}


async def test_small_commits_to_a_few_partitions_go_through_the_journal_on_the_loop(
    engine: EmbeddedEngine, disk: TimedDisk
) -> None:
    two = [("safe", 0, 100), ("safe", 1, 100)]
    assert await writers(engine, disk, *two) == {THERE}, "the journal is made in the thread"
    flushes = disk.flushes.copy()
    assert await writers(engine, disk, *two, ("loose", 0, 100)) == {here()}
    assert disk.flushes - flushes == {"journal": 1}
    assert await read_values(engine.partition("safe", 1)) == [b"v" * 100] * 2
    assert await writers(engine, disk, *two, ("safe", 0, WRITTEN_ON_LOOP_BYTES_MAX)) == {THERE}
    disk.flush_s = 60.0
    assert await writers(engine, disk, *two) == {THERE}


async def test_a_commit_to_many_partitions_goes_to_the_commit_thread(engine: EmbeddedEngine, disk: TimedDisk) -> None:
    await engine.create_topic("wide", TopicConfig(partitions=FLUSHED_ON_LOOP_PARTITIONS_MAX + 1))
    wide = [("wide", index, 1) for index in range(FLUSHED_ON_LOOP_PARTITIONS_MAX + 1)]
    await writers(engine, disk, *wide)
    assert await writers(engine, disk, *wide[:-1]) == {here()}
    assert await writers(engine, disk, *wide) == {THERE}


async def test_a_commit_to_very_many_partitions_goes_to_the_commit_thread_although_it_waits_for_no_disk(
    engine: EmbeddedEngine, disk: TimedDisk
) -> None:
    config = TopicConfig(partitions=WRITTEN_ON_LOOP_PARTITIONS_MAX + 1, durability=Durability("none"))
    await engine.create_topic("wide", config)
    wide = [("wide", index, 1) for index in range(config.partitions)]
    assert await writers(engine, disk, *wide[:-1]) == {here()}
    assert await writers(engine, disk, *wide) == {THERE}


async def test_a_flush_of_a_segment_that_leans_on_the_journal_with_much_waits_in_the_commit_thread(
    engine: EmbeddedEngine, disk: TimedDisk
) -> None:
    two = [("safe", 0, 10_000), ("safe", 1, 1)]
    for _ in range(3):
        await writers(engine, disk, *two)
    assert await writers(engine, disk, ("safe", 0, 1)) == {here()}, "little is flushed with it"
    for _ in range(4):
        assert await writers(engine, disk, *two) == {here()}, "only the journal is flushed"
    assert await writers(engine, disk, ("safe", 0, 1)) == {THERE}
    assert await writers(engine, disk, ("safe", 0, 1)) == {here()}


async def test_while_a_checkpoint_syncs_segments_flushes_wait_in_the_commit_thread(open_engine: OpenEngine) -> None:
    disk = HeldCheckpointDisk()
    engine = await open_engine(disk=disk)
    await engine.create_topic("safe", TopicConfig(partitions=2))
    await engine.create_topic("loose", TopicConfig(durability=Durability("none")))
    await writers(engine, disk, ("safe", 0, 1), ("safe", 1, 1))
    await engine._committer.run(engine._committer.checkpoints.begin_early)
    assert await writers(engine, disk, ("safe", 1, 1)) == {THERE}
    assert await writers(engine, disk, ("loose", 0, 1)) == {here()}
    disk.checkpoint_gate.set()
    await settled(engine)
    assert await writers(engine, disk, ("safe", 1, 1)) == {here()}


def start_atomic(
    engine: EmbeddedEngine, *parts: tuple[str, int, Batch | LateBatch]
) -> asyncio.Future[Sequence[Appended]]:
    return start_atomic_append(
        engine, [BatchFor(engine.partition(topic, index), batch) for topic, index, batch in parts]
    )


async def test_a_small_atomic_append_is_written_on_the_loop(engine: EmbeddedEngine, disk: TimedDisk) -> None:
    one, two = engine.partition("safe", 0), engine.partition("safe", 1)
    late = LateBatch(None, lambda places: b"at %d" % places[one].base_offset, 20)
    seen = []
    for _ in range(3):
        disk.threads.clear()
        await start_atomic(engine, ("safe", 1, late), ("safe", 0, Batch([b"record"])))
        seen.append(set(disk.threads))
    assert seen == [{THERE}, {here()}, {here()}]
    assert await read_values(two) == [b"at 1", b"at 2", b"at 3"]
    disk.threads.clear()
    await start_atomic(engine, ("safe", 0, Batch([b"record"])), ("loose", 0, Batch([b"flushed too"])))
    assert set(disk.threads) == {THERE}, "what the topic has not flushed is flushed first, however much that is"


async def test_late_records_that_a_topic_without_flushes_still_owes_are_written_in_the_commit_thread(
    engine: EmbeddedEngine, disk: TimedDisk
) -> None:
    await engine.create_topic("table", TopicConfig(cleanup="compact"))
    one = engine.partition("safe", 0)
    late = LateBatch(b"k", lambda places: b"at %d" % places[one].base_offset, 20)
    await start_atomic(engine, ("table", 0, late), ("safe", 0, Batch([b"record"])))
    await engine.alter_topic("table", TopicConfig(cleanup="compact", durability=Durability("none")))
    flushes = disk.flushes["log"]
    assert await writers(engine, disk, ("table", 0, 100)) == {THERE}, (
        "they are flushed, and what is not flushed with them"
    )
    assert disk.flushes["log"] == flushes + 1
    assert await writers(engine, disk, ("table", 0, 100)) == {here()}


async def test_a_full_journal_is_retired_by_the_commit_thread(
    open_engine: OpenEngine, tmp_path: Path, disk: TimedDisk
) -> None:
    engine = await open_engine(
        tmp_path / "data", disk=disk, options=EngineOptions.model_construct(journal_bytes=64 << 10)
    )
    await engine.create_topic("safe", TopicConfig(partitions=2))
    on_loop = 0
    for _ in range(40):
        on_loop += await writers(engine, disk, ("safe", 0, 5000), ("safe", 1, 5000)) == {here()}
        await settled(engine)  # while a checkpoint is under way, the thread writes
    assert on_loop > 20
    journals = list((tmp_path / "data" / "journal").iterdir())
    assert len(journals) <= 2
    assert [len(await read_values(engine.partition("safe", index))) for index in range(2)] == [40, 40]


async def test_an_append_for_which_nobody_waits_does_not_hold_the_loop(engine: EmbeddedEngine, disk: TimedDisk) -> None:
    disk.threads.clear()
    partition = engine.partition("safe", 0)
    relaxed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    partition.append(Batch([b"relaxed"]), relaxed.set_result, relaxed=True)
    await relaxed
    assert disk.threads == [THERE]
    assert await writers(engine, disk, ("safe", 0, 1)) == {here()}
    partition.append(Batch([b"relaxed"]), lambda _: None, relaxed=True)
    assert await writers(engine, disk, ("safe", 0, 1)) == {here()}, "somebody waits for one of the two"
    assert await read_values(partition) == [b"first", b"relaxed", b"v", b"relaxed", b"v"]


async def test_the_first_flush_is_not_trusted_to_be_quick(open_engine: OpenEngine, disk: TimedDisk) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("safe", TopicConfig())
    disk.flush_s = TimedDisk().flush_s
    assert await writers(engine, disk, ("safe", 0, 1)) == {THERE}
    assert await writers(engine, disk, ("safe", 0, 1)) == {here()}


async def test_a_slow_flush_sends_commits_to_the_thread_until_flushes_are_quick_there(
    engine: EmbeddedEngine, disk: TimedDisk
) -> None:
    assert await writers(engine, disk, ("safe", 0, 1)) == {here()}
    disk.flush_takes_s = 5 * QUICK_FLUSH_S_MAX
    assert await writers(engine, disk, ("safe", 0, 1)) == {here()}, "nobody knew"
    for _ in range(5):
        assert await writers(engine, disk, ("safe", 0, 1)) == {THERE}
    disk.flush_takes_s = QUICK_FLUSH_S_MAX / 10
    in_thread = 0
    while await writers(engine, disk, ("safe", 0, 1)) == {THERE}:
        in_thread += 1
    assert 10 <= in_thread <= 20
    assert await writers(engine, disk, ("safe", 0, 1)) == {here()}


async def test_a_segment_is_rolled_in_the_commit_thread(engine: EmbeddedEngine, disk: TimedDisk) -> None:
    partition = engine.partition("safe", 0)
    values = 1
    while (threads := await writers(engine, disk, ("safe", 0, 30_000))) == {here()}:
        values += 1
        assert values < 100
    assert threads == {THERE}
    assert len(partition.segments) == 2
    assert await writers(engine, disk, ("safe", 0, 30_000)) == {here()}
    assert len(await read_values(partition)) == values + 2


async def outcome(engine: EmbeddedEngine, values: list[bytes]) -> tuple[object, ...]:
    """What an append comes to, what one after it does, and what can be read."""
    partition = engine.partition("safe", 0)
    results: list[object] = []
    for each in (values, [b"next"]):
        try:
            results.append(await append(partition, each))
        except PenstockError as error:
            results.append((type(error), str(error)))
    return *results, partition.failure, partition.committed_end, await read_values(partition)


def inject(disk: TimedDisk, fault: str) -> None:
    """Have the next operation of the disk fail."""
    match fault:
        case "flush fails":
            disk.fail_next_fsync()
        case "write fails":
            disk.fail_next_write()
        case "disk full":
            disk.fail_next_write(errno.ENOSPC)
        case "short writes":
            disk.short_writes()
        case _:
            raise ValueError(fault)


@pytest.mark.parametrize("fault", ["flush fails", "write fails", "disk full", "short writes", "no space in a segment"])
async def test_faults_of_an_atomic_append_have_the_same_outcome_in_either_thread(
    open_engine: OpenEngine, tmp_path: Path, fault: str
) -> None:
    found = []
    for on_loop in (True, False):
        disk = SegmentFullDisk()
        engine = await open_engine(tmp_path / str(on_loop), disk=disk)
        await engine.create_topic("safe", TopicConfig(partitions=2))
        await start_atomic(engine, ("safe", 0, Batch([b"first"])), ("safe", 1, Batch([b"first"])))
        disk.flush_s = 0.0 if on_loop else 1.0
        disk.threads.clear()
        if fault == "no space in a segment":
            disk.second_segment_is_full = True
        else:
            inject(disk, fault)
        results: list[object] = []
        for value in (b"v" * 100, b"next"):
            try:
                results.append(await start_atomic(engine, ("safe", 0, Batch([value])), ("safe", 1, Batch([value]))))
            except PenstockError as error:
                results.append((type(error), str(error).replace(str(on_loop), "directory")))
        partitions = [engine.partition("safe", index) for index in range(2)]
        results += [(each.failure, each.committed_end, await read_values(each)) for each in partitions]
        found.append(results)
        if fault == "short writes":
            assert set(disk.threads) == {here() if on_loop else THERE}
    assert found[0] == found[1]
    assert found[0][2][1:] == found[0][3][1:], "all or nothing"  # type: ignore[index]


@pytest.mark.parametrize("fault", ["flush fails", "write fails", "disk full", "short writes"])
async def test_faults_have_the_same_outcome_in_either_thread(
    open_engine: OpenEngine, tmp_path: Path, fault: str
) -> None:
    found = []
    for on_loop in (True, False):
        disk = TimedDisk()
        engine = await open_engine(tmp_path / str(on_loop), disk=disk)
        await engine.create_topic("safe", TopicConfig())
        await append(engine.partition("safe", 0), [b"first"])
        disk.flush_s = 0.0 if on_loop else 1.0
        disk.threads.clear()
        inject(disk, fault)
        found.append(await outcome(engine, [b"v" * 100]))
        if fault in ("flush fails", "short writes"):
            assert disk.threads[0] == (here() if on_loop else THERE)
    assert found[0] == found[1]
    kinds = {"flush fails": OutcomeUnknown, "write fails": OutcomeUnknown, "disk full": NoSpace}
    if fault in kinds:
        assert found[0][0][0] is kinds[fault]  # type: ignore[index]
        assert issubclass(kinds[fault], NotWritten) == (fault == "disk full")
