from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import CorruptBlock, InvalidRequest, MissingSegment, NotWritten, PenstockError
from penstock.log.api import Appended, Batch, BatchFor, Durability, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.checkpoint import SAVED_INDEX_BYTES_MIN
from penstock.log.embedded.journal import journal_paths
from penstock.log.embedded.partition import EmbeddedPartition
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import (
    CountingDisk,
    crash_image,
    everything,
    partition_of,
    path_of,
    segment_files,
    settled,
)
from tests.log.records import append, read_values, start_atomic_append

NO_FLUSH = TopicConfig(durability=Durability("none"))


async def wait_for(event: threading.Event) -> None:
    await asyncio.get_running_loop().run_in_executor(None, event.wait, 10)
    assert event.is_set()


async def append_to_each(engine: EmbeddedEngine, topic: str, partitions: int, value: bytes = b"x") -> None:
    """One append to each partition, all in one turn of the loop."""
    await asyncio.gather(*(start_append(engine.partition(topic, index), Batch([value])) for index in range(partitions)))


class WhoWrites(CountingDisk):
    """Notes which thread wrote to segments."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if path_of(fd).suffix == ".log":
            self.threads.append(threading.current_thread().name)
        return super().pwrite(fd, data, position)


async def test_while_the_commit_thread_is_at_work_the_loop_writes_nothing(open_engine: OpenEngine) -> None:
    disk = WhoWrites()
    engine = await open_engine(disk=disk)
    await engine.create_topic("loose", NO_FLUSH)
    await engine.create_topic("safe", TopicConfig())
    with disk.fsync_held() as waiting:
        safe = start_append(engine.partition("safe", 0), Batch([b"x"]))
        await wait_for(waiting)
        disk.threads.clear()
        loose = start_append(engine.partition("loose", 0), Batch([b"x"]))
        await asyncio.sleep(0)
        assert disk.threads == []
    await asyncio.gather(safe, loose)
    assert disk.threads == ["penstock-commit"]


# -- groups -------------------------------------------------------------------------------------------------------------


async def test_all_appends_of_one_turn_cost_one_flush(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    disk.flushes.clear()
    await asyncio.gather(*(start_append(partition, Batch([b"%d" % n])) for n in range(500)))
    assert engine.stats.commits == 1
    assert disk.flushes == {"log": 1}
    assert engine.stats.appended_records == 500
    [block] = await partition.read(0)
    assert block.count == 500, "what is committed together is one block"


async def test_appends_that_come_during_a_flush_share_the_next_one(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    with disk.fsync_held() as waiting:
        first = start_append(partition, Batch([b"first"]))
        await wait_for(waiting)
        rest = []
        for number in range(20):
            rest.append(start_append(partition, Batch([b"%d" % number])))
            await asyncio.sleep(0)
        assert not first.done()
        assert partition.committed_end == 0
    await asyncio.gather(first, *rest)
    assert engine.stats.commits == 2


@pytest.mark.parametrize("partitions", [2, 64])
async def test_many_partitions_at_once_cost_one_flush(
    open_engine: OpenEngine, disk: CountingDisk, partitions: int
) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig(partitions=partitions))
    await append_to_each(engine, "orders", partitions)  # makes the journal file
    disk.flushes.clear()
    disk.directory_flushes = 0
    await append_to_each(engine, "orders", partitions)
    assert disk.flushes == {"journal": 1}
    assert disk.directory_flushes == 0
    assert engine.stats.commits == 2
    assert all(engine.partition("orders", index).committed_end == 2 for index in range(partitions))


async def test_a_new_journal_is_named_in_its_directory_before_it_counts(
    open_engine: OpenEngine, disk: CountingDisk
) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig(partitions=2))
    disk.directory_flushes = 0
    await append_to_each(engine, "orders", 2)
    assert disk.directory_flushes == 1


async def test_a_large_group_becomes_blocks_of_the_size_that_readers_like(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=EngineOptions(block_bytes_target=10_000))
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    pending = [start_append(partition, Batch([b"%d" % n * 100])) for n in range(200)]
    pending.append(start_append(partition, Batch([bytes(500)] * 100, keys=[b"k"] * 100)))
    pending.append(start_append(partition, Batch([bytes(30_000), b"small"])))
    results = await asyncio.gather(*pending)
    assert engine.stats.commits == 1
    assert [result.base_offset for result in results] == [*range(200), 200, 300]
    blocks = await partition.read(0, 1 << 30)
    assert len(blocks) > 10
    assert all(block.value_bytes + block.key_bytes <= 10_000 or block.count == 1 for block in blocks)
    assert await read_values(partition) == [
        *(b"%d" % n * 100 for n in range(200)),
        *[bytes(500)] * 100,
        bytes(30_000),
        b"small",
    ]


async def test_stats_count_what_was_written(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(partitions=2))
    await append_to_each(engine, "orders", 2)
    await append(engine.partition("orders", 0), [b"x", b"y"])
    stats = engine.stats
    assert (stats.commits, stats.appended_records, stats.commit_errors) == (2, 4, 0)
    assert stats.appended_bytes == sum(engine.partition("orders", index).size_bytes for index in range(2))
    assert stats.commit_records.total == 4
    assert stats.flush_seconds.count == 2


# -- one bad apple ------------------------------------------------------------------------------------------------------


async def test_an_owner_that_fails_on_its_answer_harms_no_other(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)

    def broken(_: Appended | PenstockError) -> None:
        raise RuntimeError("a bug in a session")

    first = start_append(partition, Batch([b"a"]))
    partition.append(Batch([b"b"]), broken)
    last = start_append(partition, Batch([b"c"]))
    await asyncio.gather(first, last)
    assert await read_values(partition) == [b"a", b"b", b"c"]


async def test_a_watcher_that_fails_harms_no_other(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(partitions=2))
    one, two = engine.partition("orders", 0), engine.partition("orders", 1)
    seen: list[str] = []

    def broken() -> None:
        raise RuntimeError("a bug in a session")

    one.watch(broken)
    one.watch(lambda: seen.append("one"))
    two.watch(lambda: seen.append("two"))
    await append_to_each(engine, "orders", 2)
    assert seen == ["one", "two"]


@pytest.mark.parametrize(
    "batch",
    [
        Batch([]),
        Batch([b"a", b"b"], keys=[b"k"]),
        Batch([b"a"], expiries=[1 << 70]),
        Batch(["text"]),  # type: ignore[list-item]
    ],
    ids=["no records", "too few keys", "an expiry beyond any date", "text"],
)
async def test_a_batch_that_cannot_be_stored_is_refused_and_harms_no_other(
    open_engine: OpenEngine, batch: Batch
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(partitions=2))
    bad, other = engine.partition("orders", 0), engine.partition("orders", 1)
    refused = start_append(bad, batch)
    sound = start_append(other, Batch([b"x"]))
    with pytest.raises(InvalidRequest):
        await refused
    assert (await sound).base_offset == 0
    assert bad.failure is None
    assert (await append(bad, [b"next"])).base_offset == 0
    assert await read_values(bad) == [b"next"]


async def test_a_batch_that_is_none_at_all_is_the_callers_to_hear_of(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    sound = start_append(partition, Batch([b"x"]))
    with pytest.raises(TypeError):
        partition.append(Batch([5]), lambda _: None)  # type: ignore[list-item]
    assert (await sound).base_offset == 0


async def test_a_record_no_block_can_hold_is_refused_and_harms_no_other(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    with pytest.raises(InvalidRequest):
        await append(partition, [bytes(81 << 20)])
    assert (await append(partition, [b"next"])).base_offset == 0


async def test_very_many_empty_records_are_cut_into_blocks_too(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=EngineOptions(block_bytes_target=10_000))
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    await asyncio.gather(start_append(partition, Batch([b""] * 5000)), start_append(partition, Batch([None] * 5000)))
    blocks = await partition.read(0, 1 << 30)
    assert max(block.size_bytes for block in blocks) < 20_000
    assert await read_values(partition) == [b""] * 5000 + [None] * 5000


# -- the journal in a commit ----------------------------------------------------------------------------------------------


async def test_a_full_journal_is_retired_and_at_most_two_exist(
    open_engine: OpenEngine, disk: CountingDisk, data_dir: Path
) -> None:
    engine = await open_engine(disk=disk, options=EngineOptions.model_construct(journal_bytes=20_000))
    await engine.create_topic("orders", TopicConfig(partitions=4))
    for _ in range(50):
        await append_to_each(engine, "orders", 4, bytes(1000))
        assert len(journal_paths(data_dir / "journal")) <= 2
    await engine.close()
    assert journal_paths(data_dir / "journal") == []
    engine = await open_engine()
    for index in range(4):
        assert await read_values(engine.partition("orders", index)) == [bytes(1000)] * 50


async def test_a_retired_journal_takes_only_what_is_in_the_segments_with_it(
    open_engine: OpenEngine, tmp_path: Path, data_dir: Path
) -> None:
    """At every moment, journal and synced segments together hold all that was acknowledged."""

    class Segments(CountingDisk):
        """Remembers how much of each segment a power cut would leave."""

        def __init__(self) -> None:
            super().__init__()
            self.durable: dict[Path, bytes] = {}
            self._one_at_a_time = threading.Lock()

        def fdatasync(self, fd: int) -> None:
            path = path_of(fd)
            # A checkpoint and a commit may flush one file at the same time; what the later of them has read must stay.
            with self._one_at_a_time:
                content = path.read_bytes()
                super().fdatasync(fd)
                if path.suffix == ".log":
                    self.durable[path] = content

    disk = Segments()
    engine = await open_engine(disk=disk, options=EngineOptions.model_construct(journal_bytes=20_000))
    await engine.create_topic("orders", TopicConfig(partitions=3, segment_bytes=15_000))
    for number in range(40):
        await append_to_each(engine, "orders", 3, b"%d" % number + bytes(1000))
        if number % 5 == 0:
            await append(engine.partition("orders", 0), [b"direct"])
        if number % 3:
            continue
        expected = await everything(engine)
        await settled(engine)
        image = crash_image(data_dir, tmp_path / "image")
        for path in image.rglob("*.log"):
            path.write_bytes(disk.durable.get(data_dir / path.relative_to(image), b""))
        recovered = await open_engine(image)
        assert await everything(recovered) == expected
        await recovered.close()


async def test_an_atomic_append_is_there_whole_or_not_at_all_wherever_the_journal_is_cut(
    open_engine: OpenEngine, tmp_path: Path, data_dir: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(partitions=3))
    parts = [BatchFor(engine.partition("orders", index), Batch([b"%d" % index] * 2)) for index in range(3)]
    await start_atomic_append(engine, parts)
    [journal] = journal_paths(data_dir / "journal")
    written = journal.read_bytes().rstrip(b"\0")
    whole = len(written)
    for cut in [*range(0, whole, 7), whole - 1, whole]:
        image = crash_image(data_dir, tmp_path / "image")
        # A power cut: nothing reached the segments, and a part of the journal did.
        for path in image.rglob("*.log"):
            path.write_bytes(b"")
        (image / "journal" / journal.name).write_bytes(written[:cut])
        recovered = await open_engine(image)
        counts = [recovered.partition("orders", index).committed_end for index in range(3)]
        assert counts == ([2, 2, 2] if cut == whole else [0, 0, 0])
        await recovered.close()


class FailingMeanwhile(list[BatchFor]):
    """Parts of an atomic append, one of whose partitions fails after it was found to take appends."""

    looked_at = 0

    def __iter__(self) -> Iterator[BatchFor]:
        self.looked_at += 1
        if self.looked_at == 2:
            partition_of_part = self[1].partition
            assert isinstance(partition_of_part, EmbeddedPartition)
            partition_of_part.fail("the checkpoint thread has met an error")
        return super().__iter__()


async def test_an_atomic_append_is_refused_whole_if_a_partition_fails_while_it_is_queued(
    open_engine: OpenEngine,
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig(partitions=2))
    parts = FailingMeanwhile([BatchFor(engine.partition("orders", index), Batch([b"x"])) for index in range(2)])
    with pytest.raises(NotWritten, match="checkpoint thread"):
        await start_atomic_append(engine, parts)
    assert parts.looked_at == 2
    assert [await read_values(engine.partition("orders", index)) for index in range(2)] == [[], []]


async def test_an_atomic_append_of_many_blocks_to_one_partition_is_whole_or_not_there(
    open_engine: OpenEngine, tmp_path: Path, data_dir: Path
) -> None:
    engine = await open_engine(options=EngineOptions.model_construct(block_bytes_target=1000))
    await engine.create_topic("orders", TopicConfig())
    await start_atomic_append(engine, [BatchFor(engine.partition("orders", 0), Batch([bytes(900)] * 10))])
    image = crash_image(data_dir, tmp_path / "image")
    [segment] = segment_files(image)
    segment.write_bytes(segment.read_bytes()[:4000])
    recovered = await open_engine(image)
    assert recovered.partition("orders", 0).committed_end in (0, 10)


async def test_an_atomic_append_waits_for_what_an_unflushed_topic_wrote_before_it(
    open_engine: OpenEngine, disk: CountingDisk
) -> None:
    """Else a power cut could keep the atomic part and lose what lies before it in the same file."""
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    await engine.create_topic("loose", NO_FLUSH)
    await append(engine.partition("loose", 0), [b"unflushed"])
    disk.flushes.clear()
    parts = [BatchFor(engine.partition(topic, 0), Batch([b"x"])) for topic in ("orders", "loose")]
    await start_atomic_append(engine, parts)
    assert disk.flushes == {"log": 1, "journal": 1}
    disk.flushes.clear()
    await start_atomic_append(engine, parts)
    assert disk.flushes == {"journal": 1}, "nothing unflushed lies before the second one"


# -- durability modes -----------------------------------------------------------------------------------------------------


async def test_none_flushes_only_when_the_engine_closes(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("loose", NO_FLUSH)
    disk.flushes.clear()
    for _ in range(10):
        await append(engine.partition("loose", 0), [b"x"])
    assert disk.flushes == {}
    await engine.close()
    assert disk.flushes["log"] == 1


async def test_interval_answers_at_once_and_flushes_within_its_interval(open_engine: OpenEngine) -> None:
    class Signalling(CountingDisk):
        def __init__(self) -> None:
            super().__init__()
            self.log_flushed = threading.Event()

        def fdatasync(self, fd: int) -> None:
            super().fdatasync(fd)
            if path_of(fd).suffix == ".log":
                self.log_flushed.set()

    disk = Signalling()
    engine = await open_engine(disk=disk)
    await engine.create_topic("loose", TopicConfig(durability=Durability("interval", 30)))
    partition = engine.partition("loose", 0)
    disk.flushes.clear()
    disk.log_flushed.clear()
    with disk.fsync_held():
        await append(partition, [b"answered although no flush can finish"])
        assert disk.flushes == {}
    await wait_for(disk.log_flushed)
    assert disk.flushes == {"log": 1}
    disk.log_flushed.clear()
    await asyncio.gather(*(start_append(partition, Batch([b"x"])) for _ in range(5)))
    await wait_for(disk.log_flushed)
    assert disk.flushes == {"log": 2}, "one flush for all that was written in an interval"


async def test_topics_of_all_modes_share_a_commit(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    await engine.create_topic("loose", NO_FLUSH)
    await engine.create_topic("slow", TopicConfig(durability=Durability("interval", 60_000)))
    disk.flushes.clear()
    pending = [start_append(engine.partition(name, 0), Batch([b"x"])) for name in ("orders", "loose", "slow")]
    await asyncio.gather(*pending)
    assert engine.stats.commits == 1
    assert disk.flushes == {"log": 1}, "one topic asks for a flush: no journal is needed"


# -- races with other threads ---------------------------------------------------------------------------------------------


async def test_a_segment_rolled_by_age_while_appends_continue_loses_sight_of_nothing(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    await engine.create_topic("loose", TopicConfig(durability=Durability("none"), segment_ms=1))
    partition = partition_of(engine, "loose")
    clock = engine._clock
    expected: list[bytes | None] = []
    for number in range(100):
        clock.advance(0.001)  # type: ignore[attr-defined]
        maintaining = asyncio.ensure_future(engine._maintenance._roll_if_due(partition))
        await asyncio.sleep(0)  # the roll is with the commit thread; the next commit queues up after it
        value = b"%d" % number + bytes(50)
        expected.append(value)
        await append(partition, [value])
        await maintaining
        engine._tails.drop(partition.tail)  # so that everything is read from the files
        assert await read_values(partition) == expected
    assert len(partition.segments) > 50


async def test_a_commit_written_on_the_loop_goes_to_the_segment_that_was_just_begun(open_engine: OpenEngine) -> None:
    """The commit thread has rolled, and the loop has not heard of it yet when it writes a small group itself."""
    engine = await open_engine()
    await engine.create_topic("loose", NO_FLUSH)
    partition = partition_of(engine, "loose")
    await append(partition, [b"before" * 100])
    rolled = threading.Event()

    def roll() -> None:
        engine._maintenance._roll(partition, partition.segments[-1])
        rolled.set()

    engine._committer._tasks.put(roll)
    partition.append(Batch([b"after"]), lambda _: None)  # written in the next turn of the loop
    assert rolled.wait(10)  # without giving the loop a turn
    while not engine._committer._tasks.try_acquire():
        pass  # until the commit thread is done with it
    engine._committer._tasks.release()
    await append(partition, [b"last"])
    engine._tails.drop(partition.tail)
    assert await read_values(partition) == [b"before" * 100, b"after", b"last"]
    assert len(partition.segments) == 2


async def test_a_topic_is_deleted_while_its_commit_is_under_way(open_engine: OpenEngine, disk: CountingDisk) -> None:
    engine = await open_engine(disk=disk)
    await engine.create_topic("doomed", TopicConfig())
    await engine.create_topic("orders", TopicConfig())
    doomed = engine.partition("doomed", 0)
    with disk.fsync_held() as waiting:
        under_way = start_append(doomed, Batch([b"x"]))
        await wait_for(waiting)
        queued = [start_append(doomed, Batch([b"y"])), start_append(engine.partition("orders", 0), Batch([b"z"]))]
        deleting = asyncio.ensure_future(engine.delete_topic("doomed"))
        await asyncio.sleep(0)
    await deleting
    assert (await under_way).base_offset == 0, "it was committed before the topic went"
    refused, sound = await asyncio.gather(*queued, return_exceptions=True)
    assert isinstance(refused, PenstockError)
    assert refused.code == "topic_not_found"
    assert sound == Appended(0, engine._clock.now_ms())


async def test_a_checkpoint_passes_over_topics_that_were_deleted_under_it(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=EngineOptions.model_construct(journal_bytes=1))
    await engine.create_topic("doomed", TopicConfig(partitions=2))
    with capture_logs() as lines:
        await append_to_each(engine, "doomed", 2)  # a checkpoint of both begins
        await engine.delete_topic("doomed")
        await settled(engine)
    assert lines == []


async def test_a_checkpoint_saves_the_index_of_a_segment_once_and_when_it_has_grown_much(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine(options=EngineOptions.model_construct(journal_bytes=1))
    await engine.create_topic("orders", TopicConfig(partitions=2))

    async def saved_after(*values: bytes) -> list[int]:
        for value in values:
            await append_to_each(engine, "orders", 2, value)
            await settled(engine)
        return [engine.partition("orders", index).writer.segment.index.saved_covers for index in (0, 1)]

    first = await saved_after(b"x")
    assert min(first) > 0
    assert await saved_after(b"y", b"z") == first
    assert min(await saved_after(bytes(SAVED_INDEX_BYTES_MIN))) > SAVED_INDEX_BYTES_MIN
    await saved_after(b"last")
    assert not journal_paths(data_dir / "journal"), "what a start has to scan is in the segments only"
    again = await open_engine(crash_image(data_dir, tmp_path / "image"))
    for index in (0, 1):
        values = await read_values(again.partition("orders", index))
        assert values == [b"x", b"y", b"z", bytes(SAVED_INDEX_BYTES_MIN), b"last"]


@pytest.mark.parametrize("lost", ["emptied", "deleted"])
async def test_a_small_segment_that_is_lost_after_a_checkpoint_is_noticed(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, lost: str
) -> None:
    engine = await open_engine(options=EngineOptions.model_construct(journal_bytes=1))
    await engine.create_topic("orders", TopicConfig(partitions=2))
    await append_to_each(engine, "orders", 2)
    await settled(engine)
    image = crash_image(data_dir, tmp_path / "image")
    for segment in image.glob("topics/*/0/*.log"):
        if lost == "emptied":
            segment.write_bytes(b"")
        else:
            segment.unlink()
    with pytest.raises((CorruptBlock, MissingSegment)):
        await open_engine(image)


async def test_a_journal_that_cannot_be_removed_stops_nothing(open_engine: OpenEngine, data_dir: Path) -> None:
    class Stubborn(CountingDisk):
        def unlink(self, path: Path) -> None:
            if path.suffix == ".journal":
                raise OSError(5, "Input/output error")
            super().unlink(path)

    engine = await open_engine(disk=Stubborn(), options=EngineOptions.model_construct(journal_bytes=1))
    await engine.create_topic("orders", TopicConfig(partitions=2))
    for _ in range(5):
        await asyncio.wait_for(append_to_each(engine, "orders", 2), 10)
    expected = await everything(engine)
    await engine.close()
    assert journal_paths(data_dir / "journal")
    engine = await open_engine()
    assert await everything(engine) == expected
    assert journal_paths(data_dir / "journal") == []
