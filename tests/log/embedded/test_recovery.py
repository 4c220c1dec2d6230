from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.errors import CorruptBlock, MissingSegment
from penstock.log.api import Batch, TopicConfig
from penstock.log.appending import start_append
from penstock.log.block import BlockHeader
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.journal import journal_paths
from penstock.testing.clock import ManualClock
from tests.descriptors import open_files
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import (
    CountingDisk,
    UnflushedDisk,
    crash_image,
    everything,
    files,
    partition_directory,
    partition_of,
    path_of,
    sealed,
    segment_files,
)
from tests.log.records import Record, append, read_all, read_from, read_values

SMALL_SEGMENTS = TopicConfig(segment_bytes=600)


def block_positions(path: Path) -> list[int]:
    """Where each block begins, and where the last one ends."""
    data = path.read_bytes()
    positions = [0]
    while positions[-1] < len(data) and data[positions[-1] :].strip(b"\0"):
        positions.append(positions[-1] + BlockHeader(data, positions[-1]).size_bytes)
    return positions


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def flip(path: Path, at: int, mask: int = 0x10) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        [byte] = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ mask]))


async def filled(engine: EmbeddedEngine, appends: int, config: TopicConfig | None = None) -> list[Record]:
    """A topic with this many blocks of two records each; what it holds."""
    if "orders" not in engine.topics():
        await engine.create_topic("orders", config or TopicConfig())
    partition = engine.partition("orders", 0)
    for number in range(appends):
        await append(partition, [b"%d" % number, b"x" * (number % 7)], [b"key", None])
    return await read_all(partition)


def index_of_last_segment_is_as_rebuilt(engine: EmbeddedEngine) -> bool:
    segment = partition_of(engine).segments[-1]
    kept = segment.index.encode()
    segment.rebuild_index(segment.end)
    return kept == segment.index.encode()


# -- torn tails ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [False, True], ids=["without an index", "with an index of the first blocks"])
async def test_a_tail_cut_at_any_byte_of_the_last_three_blocks_loses_only_the_block_it_cuts(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, indexed: bool
) -> None:
    engine = await open_engine()
    await filled(engine, 8, SMALL_SEGMENTS)
    if indexed:
        await engine.close()
        engine = await open_engine()
    records = await filled(engine, 4)
    master = crash_image(data_dir, tmp_path / "master")
    *sealed, last = segment_files(master)
    assert sealed
    assert last.with_suffix(".index").exists() == indexed
    positions = block_positions(last)
    assert len(positions) >= 4
    content = last.read_bytes()
    first_offset = int(last.stem)
    for size in range(positions[-4], positions[-1] + 1):
        image = crash_image(master, tmp_path / "image")
        path = segment_files(image)[-1]
        path.write_bytes(content[:size])
        whole = sum(position <= size for position in positions) - 1
        with capture_logs() as lines:
            recovered = await open_engine(image, disk=UnflushedDisk())
        partition = partition_of(recovered)
        assert partition.committed_end == first_offset + 2 * whole
        assert await read_all(partition) == records[: partition.committed_end]
        assert index_of_last_segment_is_as_rebuilt(recovered)
        torn_bytes = content[positions[whole] : size]
        assert recovered.stats.torn_tails == bool(torn_bytes)
        assert len([line for line in lines if line["event"] == "torn_tail_cut"]) == bool(torn_bytes)
        if torn_bytes.rstrip(b"\0"):
            [kept] = path.parent.glob("*.torn-at-*")
            assert kept.read_bytes() == torn_bytes.rstrip(b"\0")
        assert (await append(partition, [b"next"])).base_offset == first_offset + 2 * whole
        await recovered.close()


async def test_what_a_crash_left_is_flushed_before_anyone_reads_it(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, disk: CountingDisk
) -> None:
    """The process died between a write and its flush: a reader must not be shown what a power cut could still take."""
    engine = await open_engine()
    await filled(engine, 3)
    await open_engine(crash_image(data_dir, tmp_path / "image"), disk=disk)
    assert disk.flushes["log"] == 1


async def test_a_torn_tail_is_cut_once(open_engine: OpenEngine, data_dir: Path, tmp_path: Path) -> None:
    engine = await open_engine()
    records = await filled(engine, 4)
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    cut(path, block_positions(path)[-1] - 3)
    recovered = await open_engine(image)
    second = crash_image(image, tmp_path / "second")
    await recovered.close()
    with capture_logs() as lines:
        again = await open_engine(second)
    assert again.stats.torn_tails == 0
    assert lines == []
    assert await everything(again) == {("orders", 0): records[:6]}


@pytest.mark.parametrize("zeros", [1, 63, 64, 5000, 300_000])
async def test_reserved_space_behind_the_last_block_is_passed_over_without_a_word(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, zeros: int
) -> None:
    engine = await open_engine()
    records = await filled(engine, 3)
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    end = block_positions(path)[-1]
    cut(path, end)
    cut(path, end + zeros)
    with capture_logs() as lines:
        recovered = await open_engine(image)
    assert lines == []
    assert recovered.stats.torn_tails == 0
    assert path.stat().st_size == end + zeros
    assert await everything(recovered) == {("orders", 0): records}
    assert {kept.name for kept in partition_directory(image).iterdir()} == {path.name}


@pytest.mark.parametrize("size", [1, 100, 70_000])
async def test_garbage_behind_the_last_block_is_cut_kept_aside_and_told_once(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, size: int
) -> None:
    engine = await open_engine()
    records = await filled(engine, 3)
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    end = block_positions(path)[-1]
    garbage = random.Random(size).randbytes(size - 1) + b"\x01"
    path.write_bytes(path.read_bytes()[:end] + garbage + bytes(1000))
    with capture_logs() as lines:
        recovered = await open_engine(image)
    [line] = lines
    assert (line["event"], line["file"], line["position"]) == ("torn_tail_cut", str(path), end)
    assert path.with_suffix(f".torn-at-{end}").read_bytes() == garbage
    assert recovered.stats.torn_tails == 1
    assert await everything(recovered) == {("orders", 0): records}
    assert (await append(recovered.partition("orders", 0), [b"next"])).base_offset == 6


async def test_a_copy_of_an_old_block_behind_the_last_one_is_not_taken_for_the_log(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    """As when a value holds a block, and the write of it was torn."""
    engine = await open_engine()
    records = await filled(engine, 3)
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    positions = block_positions(path)
    content = path.read_bytes()
    path.write_bytes(content[: positions[-1]] + b"torn" + content[positions[0] : positions[1]])
    recovered = await open_engine(image)
    assert await everything(recovered) == {("orders", 0): records}
    assert recovered.partition("orders", 0).committed_end == 6


# -- damage in the middle ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
@pytest.mark.parametrize("at", [0, 5, 30, 70])
async def test_damage_in_the_middle_is_reported_and_the_blocks_around_it_stay(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, clean: bool, at: int
) -> None:
    engine = await open_engine()
    records = await filled(engine, 6)
    if clean:
        await engine.close()
    image = crash_image(data_dir, tmp_path / "image")
    [path] = segment_files(image)
    damaged = block_positions(path)[2]
    flip(path, damaged + at)
    content = path.read_bytes().rstrip(b"\0")
    with capture_logs() as lines:
        recovered = await open_engine(image)
        partition = recovered.partition("orders", 0)
        assert partition.committed_end == 12
        assert await read_from(partition, 6) == records[6:]
        assert [record for block in await partition.read(0) for record in block.values()] == [
            record.value for record in records[:4]
        ]
        for offset in (4, 5):
            with pytest.raises(CorruptBlock, match=f"{path}.* at byte {damaged}.* offset 6 and later"):
                await partition.read(offset)
    assert recovered.stats.corrupt_blocks >= 1
    assert any(str(path) in str(line) and str(damaged) in str(line) for line in lines)
    assert (await append(partition, [b"next"])).base_offset == 12
    await recovered.close()
    assert path.read_bytes()[: len(content)] == content, "nothing of it was changed"
    again = await open_engine(image)
    assert again.partition("orders", 0).committed_end == 13


async def test_a_time_is_found_behind_a_damaged_block_or_the_damage_is_named(
    open_engine: OpenEngine, data_dir: Path, clock: ManualClock
) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    stamps = []
    for number in range(5):
        clock.advance(1)
        stamps.append((await append(engine.partition("orders", 0), [b"%d" % number])).timestamp_ms)
    await engine.close()
    [path] = segment_files(data_dir)
    flip(path, block_positions(path)[2] + 66)
    engine = await open_engine()
    partition = engine.partition("orders", 0)
    assert await partition.offset_at(stamps[1]) == 1
    with pytest.raises(CorruptBlock, match=str(path)):
        await partition.offset_at(stamps[2])


# -- files that are not as they were ----------------------------------------------------------------------------------------


async def test_a_missing_segment_is_refused_unless_the_gap_is_accepted(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    records = await filled(engine, 30, SMALL_SEGMENTS)
    await engine.close()
    segments = segment_files(data_dir)
    missing = segments[2]
    after = int(segments[3].stem)
    missing.unlink()
    before = files(data_dir)
    for _ in range(2):
        with pytest.raises(
            MissingSegment, match=f"{int(missing.stem)}.*{segments[3].name}.*backup.*--set log.accept_gaps=true"
        ):
            await open_engine()
        assert files(data_dir) == before, "a refused start changes nothing"
    with capture_logs() as lines:
        engine = await open_engine(options=EngineOptions(accept_gaps=True))
    assert [line["event"] for line in lines] == ["gap_accepted"]
    partition = engine.partition("orders", 0)
    assert partition.committed_end == 60
    assert await read_from(partition, after) == records[after:]
    assert await read_from(partition, int(missing.stem)) == records[after:], "the next record there is"
    assert await read_all(partition) == records[: int(missing.stem)] + records[after:]


async def test_swapped_segments_are_refused(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await filled(engine, 30, SMALL_SEGMENTS)
    await engine.close()
    one, two = segment_files(data_dir)[1:3]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    with pytest.raises(MissingSegment):
        await open_engine()


@pytest.mark.parametrize("clean", [False, True], ids=["after a crash", "after a clean stop"])
async def test_indexes_that_are_gone_are_made_again_as_they_were(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, clean: bool
) -> None:
    engine = await open_engine()
    records = await filled(engine, 30, SMALL_SEGMENTS)
    if clean:
        await engine.close()
    image = crash_image(data_dir, tmp_path / "image")
    indexes = {path: path.read_bytes() for path in image.rglob("*.index")}
    assert len(indexes) >= 3
    for path in indexes:
        path.unlink()
    recovered = await open_engine(image)
    assert await everything(recovered) == {("orders", 0): records}
    await recovered.close()
    assert {path: path.read_bytes() for path in indexes} == indexes


async def test_an_index_of_another_log_is_not_believed(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    records = await filled(engine, 30, SMALL_SEGMENTS)
    await engine.close()
    indexes = sorted(data_dir.rglob("*.index"))
    contents = [path.read_bytes() for path in indexes]
    for path, content in zip(indexes, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    engine = await open_engine()
    assert await everything(engine) == {("orders", 0): records}
    for offset in range(60):
        assert (await read_from(engine.partition("orders", 0), offset))[0] == records[offset]


async def test_what_an_interrupted_operation_left_is_taken_away_and_nothing_else(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine()
    records = await filled(engine, 30, SMALL_SEGMENTS)
    await engine.close()
    directory = partition_directory(data_dir)
    strangers = ["notes.txt", "00000000000000000000.log.bak", "00000000000000000000.torn-at-17"]
    leftovers = [
        "00000000000000000007.cleaned",
        "00000000000000000007.deleted",
        "00000000000000000007.index.tmp",
        "00000000000000000007.log.tmp",
    ]
    for name in strangers + leftovers:
        (directory / name).write_bytes(b"left")
    doomed = data_dir / "topics" / "old.0123.deleted"
    shutil.copytree(directory.parent, doomed)
    unfinished = data_dir / "topics" / "new.4567"
    (unfinished / "0").mkdir(parents=True)
    engine = await open_engine()
    names = {path.name for path in directory.iterdir()}
    assert names.isdisjoint(leftovers)
    assert names.issuperset(strangers)
    assert not doomed.exists()
    assert not unfinished.exists()
    assert list(engine.topics()) == ["orders"]
    assert await everything(engine) == {("orders", 0): records}


async def test_a_swap_that_was_not_finished_is_finished(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    records = await filled(engine, 30, SMALL_SEGMENTS)
    old = partition_of(engine).segments[1:3]
    blocks = [block.data for segment in old for _, block in segment.blocks_from(0, segment.end)]
    await engine.close()
    one, two, after = segment_files(data_dir)[1:4]
    swap = one.with_name(f"{one.stem}-{after.stem}.swap")
    swap.write_bytes(sealed(blocks, old[0].salts.of(swap.stem)))
    one.unlink()  # a crash after the first of the replaced files was removed
    engine = await open_engine()
    assert not swap.exists()
    assert not two.exists()
    assert swap.with_suffix(".log").exists()
    assert await everything(engine) == {("orders", 0): records}


async def test_an_empty_last_segment_is_no_gap(open_engine: OpenEngine, data_dir: Path, tmp_path: Path) -> None:
    """As a crash leaves it right after a roll."""
    engine = await open_engine()
    records = await filled(engine, 5)
    await engine.close()
    for content in (b"", bytes(4096)):
        image = crash_image(data_dir, tmp_path / "image")
        (image / "clean-shutdown").unlink()
        (partition_directory(image) / "00000000000000000010.log").write_bytes(content)
        recovered = await open_engine(image)
        assert await everything(recovered) == {("orders", 0): records}
        assert (await append(recovered.partition("orders", 0), [b"next"])).base_offset == 10
        await recovered.close()
        again = await open_engine(image)
        assert await read_values(again.partition("orders", 0)) == [*(record.value for record in records), b"next"]
        await again.close()


async def test_a_log_cut_before_an_empty_last_segment_is_a_gap(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    """The one before was whole when the last one was begun, so what it lacks now was lost; its offsets must not be given out again."""
    engine = await open_engine()
    await filled(engine, 5)
    await engine.close()
    [path] = segment_files(data_dir)
    (data_dir / "clean-shutdown").unlink()
    (partition_directory(data_dir) / "00000000000000000010.log").write_bytes(b"")
    cut(path, block_positions(path)[3])
    for _ in range(2):
        with pytest.raises(MissingSegment):
            await open_engine()
    engine = await open_engine(options=EngineOptions(accept_gaps=True))
    assert (await append(engine.partition("orders", 0), [b"next"])).base_offset == 10


async def test_an_empty_log_file_is_an_empty_partition(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    await engine.create_topic("orders", TopicConfig())
    await engine.close()
    [path] = segment_files(data_dir)
    assert path.stat().st_size == 0
    path.unlink()
    engine = await open_engine()
    assert (await append(engine.partition("orders", 0), [b"first"])).base_offset == 0


# -- the clean-shutdown marker ------------------------------------------------------------------------------------------------


async def test_after_a_clean_stop_nothing_is_scanned_and_after_a_crash_only_the_tail(
    data_dir: Path, tmp_path: Path, clock: ManualClock
) -> None:
    class ReadingDisk(CountingDisk):
        def __init__(self) -> None:
            super().__init__()
            self.read_bytes: dict[str, int] = {}

        def pread(self, fd: int, size_bytes: int, position: int) -> bytes:
            name = path_of(fd).name
            self.read_bytes[name] = self.read_bytes.get(name, 0) + size_bytes
            return super().pread(fd, size_bytes, position)

    async def opened(path: Path) -> tuple[EmbeddedEngine, ReadingDisk]:
        disk = ReadingDisk()
        engine = EmbeddedEngine(
            path, clock=clock, disk=disk, options=EngineOptions.model_construct(checkpoint_bytes=100_000)
        )
        await engine.start()
        return engine, disk

    engine, _ = await opened(data_dir)
    await engine.create_topic("orders", TopicConfig(segment_bytes=1_000_000))
    for _ in range(300):
        await append(engine.partition("orders", 0), [bytes(10_000)])
    image = crash_image(data_dir, tmp_path / "image")
    await engine.close()
    assert (data_dir / "clean-shutdown").exists()
    engine, disk = await opened(data_dir)
    assert not (data_dir / "clean-shutdown").exists(), "from here on a crash is a crash"
    assert sum(disk.read_bytes.values()) < 1000
    await engine.close()
    engine, disk = await opened(image)
    assert len(segment_files(image)) >= 3
    assert sum(disk.read_bytes.values()) < 1_000_000, "of three"
    assert engine.partition("orders", 0).committed_end == 300
    await engine.close()


async def test_a_marker_of_a_clean_stop_is_not_believed_against_a_longer_log(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await filled(engine, 3)
    await engine.close()
    marked = crash_image(data_dir, tmp_path / "marked")
    engine = await open_engine()
    records = await filled(engine, 3)
    newer = segment_files(data_dir)[0].read_bytes()
    await engine.close()
    segment_files(marked)[0].write_bytes(newer)
    recovered = await open_engine(marked)
    assert recovered.partition("orders", 0).committed_end == 12
    assert await everything(recovered) == {("orders", 0): records}


# -- the journal at start ---------------------------------------------------------------------------------------------------


async def journaled(engine: EmbeddedEngine, rounds: int) -> None:
    if "orders" not in engine.topics():
        await engine.create_topic("orders", TopicConfig(partitions=3))
    for number in range(rounds):
        await asyncio.gather(
            *(
                start_append(engine.partition("orders", index), Batch([b"%d-%d" % (index, number)]))
                for index in range(3)
            )
        )


async def test_what_only_the_journal_holds_is_put_back(open_engine: OpenEngine, data_dir: Path, tmp_path: Path) -> None:
    engine = await open_engine()
    await journaled(engine, 10)
    expected = await everything(engine)
    for kept_bytes in (0, 1, 100, 333, 500):
        image = crash_image(data_dir, tmp_path / "image")
        for index in range(3):
            [path] = segment_files(image, partition=index)
            path.write_bytes(path.read_bytes()[:kept_bytes])
        recovered = await open_engine(image)
        assert await everything(recovered) == expected
        assert recovered.stats.torn_tails == 0
        assert journal_paths(image / "journal") == []
        await recovered.close()


async def test_an_older_journal_does_not_undo_what_came_after_it(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await journaled(engine, 5)
    [journal] = journal_paths(data_dir / "journal")
    old = journal.read_bytes()
    await journaled(engine, 5)
    for index in range(3):
        await append(engine.partition("orders", index), [b"direct"])
    expected = await everything(engine)
    image = crash_image(data_dir, tmp_path / "image")
    (image / "journal" / "00000000000000000009.journal").write_bytes(old)
    recovered = await open_engine(image)
    assert await everything(recovered) == expected


async def test_a_journal_of_a_deleted_topic_brings_nothing_back(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path
) -> None:
    engine = await open_engine()
    await journaled(engine, 5)
    await engine.delete_topic("orders")
    await engine.create_topic("orders", TopicConfig(partitions=3))
    image = crash_image(data_dir, tmp_path / "image")
    assert journal_paths(image / "journal")
    recovered = await open_engine(image)
    assert await everything(recovered) == {("orders", index): [] for index in range(3)}


async def test_what_the_journal_puts_back_is_written_even_where_it_reads_the_same(
    data_dir: Path, tmp_path: Path, open_engine: OpenEngine
) -> None:
    """After a failed flush the system may show bytes that never reached the disk; only writing them again gets them there."""

    class WritingDisk(CountingDisk):
        def __init__(self) -> None:
            super().__init__()
            self.written: set[str] = set()

        def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
            self.written.add(path_of(fd).name)
            return super().pwrite(fd, data, position)

    engine = await open_engine()
    await journaled(engine, 3)
    expected = await everything(engine)
    image = crash_image(data_dir, tmp_path / "image")
    disk = WritingDisk()
    recovered = await open_engine(image, disk=disk)
    assert "00000000000000000000.log" in disk.written
    assert await everything(recovered) == expected


# -- starting and failing to ------------------------------------------------------------------------------------------------


async def test_a_start_that_fails_leaves_no_file_open_and_can_be_tried_again(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine()
    await engine.create_topic("a-first", TopicConfig(partitions=8))
    await filled(engine, 30, SMALL_SEGMENTS)
    await engine.close()
    del engine
    missing = segment_files(data_dir)[2]
    content = missing.read_bytes()
    missing.unlink()
    with pytest.raises(MissingSegment):
        await open_engine()
    for _ in range(5):
        with pytest.raises(MissingSegment):
            await open_engine()
    assert not open_files(data_dir)
    missing.write_bytes(content)
    engine = await open_engine()
    assert engine.partition("orders", 0).committed_end == 60
