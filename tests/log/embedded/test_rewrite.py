from __future__ import annotations

import errno
import os
import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.errors import MissingSegment, NotWritten
from penstock.log.api import TopicConfig
from penstock.log.block import BEGINS, ENDS, encode_block, seal_at
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.disk import Disk
from penstock.log.embedded.index import SegmentIndex
from penstock.log.embedded.rewrite import LatestOffsets, Rewriter
from penstock.log.embedded.segment import Segment, log_path
from penstock.log.embedded.verify import verify
from penstock.testing.clock import START_MS, ManualClock
from penstock.testing.crashing import CrashDisk
from penstock.testing.powercut import PowerCutDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import (
    SALTS,
    crash_image,
    everything,
    partition_directory,
    partition_of,
    sealed,
    segment_files,
)
from tests.log.records import Record, append, read_all, read_from

COMPACT = TopicConfig(cleanup="compact", segment_bytes=600)
OPTIONS = EngineOptions(tail_bytes_max=0, tombstone_ms=3_600_000)


async def change(engine: EmbeddedEngine, *changes: tuple[str, str | None]) -> None:
    """One append, one block, for each change."""
    if "table" not in engine.topics():
        await engine.create_topic("table", COMPACT)
    for key, value in changes:
        await append(
            engine.partition("table", 0), [None if value is None else value.encode().ljust(40)], [key.encode()]
        )


async def churn(engine: EmbeddedEngine, rounds: int = 10, keys: int = 6) -> None:
    for number in range(rounds):
        await change(engine, *((f"key{key}", f"{number}") for key in range(keys)))


def latest(records: list[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in records}


async def table(engine: EmbeddedEngine) -> list[Record]:
    return await read_all(engine.partition("table", 0))


# -- compaction ---------------------------------------------------------------------------------------------------------


async def test_the_latest_record_of_each_key_stays_where_it_was(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine(options=OPTIONS)
    await churn(engine)
    before = await table(engine)
    size = partition_of(engine, "table").size_bytes
    await engine.maintain()
    after = await table(engine)
    assert len(after) < len(before) / 3
    assert set(after) <= set(before), "offsets, timestamps and values are as they were"
    assert latest(after) == latest(before)
    partition = partition_of(engine, "table")
    assert partition.size_bytes < size / 2
    assert partition.committed_end == len(before)
    assert len(segment_files(data_dir, "table")) <= 3
    await engine.close()
    engine = await open_engine(options=OPTIONS)
    assert await table(engine) == after
    await churn(engine, rounds=1)
    assert (await table(engine))[-1].offset == len(before) + 5


async def test_nothing_of_it_is_done_on_the_event_loop(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    merge = LatestOffsets._merge

    def noted_merge(latest: LatestOffsets) -> None:
        threads.append(threading.current_thread())
        merge(latest)

    monkeypatch.setattr(LatestOffsets, "_merge", noted_merge)
    engine = await open_engine(options=OPTIONS)
    await churn(engine)
    await engine.maintain()
    assert threads
    assert threading.current_thread() not in threads


async def test_reading_from_a_gap_begins_at_the_next_record(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=OPTIONS)
    for number in range(10):
        await change(engine, (f"once{number}", "x"), ("often", "x"), ("often", "y"))
    await engine.maintain()
    partition = engine.partition("table", 0)
    after = await table(engine)
    assert [record.offset for record in after][:5] == [0, 3, 6, 9, 12]
    for offset in range(partition.start_offset, partition.committed_end):
        expected = [record for record in after if record.offset >= offset]
        assert await read_from(partition, offset) == expected
        assert await partition.timestamp_of(offset) == expected[0].timestamp_ms


async def test_reading_from_a_gap_is_the_same_from_what_was_recently_read(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=OPTIONS)
    for number in range(10):
        await change(engine, (f"once{number}", "x" * 200), ("often", "x"), ("often", "y"))
    await engine.maintain()
    after = await table(engine)
    await engine.close()
    engine = await open_engine()  # with memory for readers, and nothing in it yet
    partition = engine.partition("table", 0)
    for max_bytes in (1 << 20, 1, 500):
        for offset in range(partition.start_offset, partition.committed_end):
            assert await read_from(partition, offset, max_bytes) == [each for each in after if each.offset >= offset]


async def test_a_deletion_is_kept_until_every_reader_can_have_seen_it(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(options=OPTIONS)
    await change(engine, ("a", "1"), ("b", "1"), ("a", None))
    await churn(engine, rounds=3)
    await engine.maintain()
    assert latest(await table(engine))[b"a"] is None
    assert [record.value for record in await table(engine) if record.key == b"a"] == [None]
    clock.advance(3601)
    await churn(engine, rounds=10)
    await engine.maintain()
    after = latest(await table(engine))
    assert b"a" not in after
    assert after[b"b"] == b"1".ljust(40)


async def test_a_deletion_goes_only_with_what_it_deletes(open_engine: OpenEngine, clock: ManualClock) -> None:
    """Whatever a crash or a bound on memory cuts short, a deleted key never comes back."""
    engine = await open_engine(
        options=EngineOptions.model_construct(tail_bytes_max=0, tombstone_ms=0, compact_keys_max=3)
    )
    await change(engine, ("doomed", "1"))
    await churn(engine, rounds=3)
    await change(engine, ("doomed", None))
    await churn(engine, rounds=3)
    for _ in range(5):
        clock.advance(1)
        await engine.maintain()
        assert latest(await table(engine)).get(b"doomed") is None
        await churn(engine, rounds=1)


async def test_records_without_a_key_all_stay(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=OPTIONS)
    await churn(engine, rounds=2)
    await append(engine.partition("table", 0), [b"no key"])
    await append(engine.partition("table", 0), [b"no key"])
    await churn(engine, rounds=10)
    await engine.maintain()
    assert len([record for record in await table(engine) if record.key is None]) == 2


async def test_long_keys_are_told_apart(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=OPTIONS)
    for number in range(30):
        await change(
            engine, ("long " * 20 + str(number % 3), str(number)), ("x" * 16, str(number)), ("x" * 17, str(number))
        )
    before = latest(await table(engine))
    await engine.maintain()
    assert latest(await table(engine)) == before
    assert len(before) == 5


async def test_short_keys_that_differ_in_their_last_zeros_only_are_told_apart(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=OPTIONS)
    keys = ["k" * size + "\0" * zeros for size in (0, 1, 14) for zeros in range(3)]
    for number in range(10):
        await change(engine, *((key, str(number)) for key in keys))
    before = latest(await table(engine))
    await engine.maintain()
    assert latest(await table(engine)) == before
    assert len(before) == len(keys)


@pytest.mark.parametrize("merged_min", [0, 3, 1000])
def test_the_latest_offset_of_each_key_is_kept_whatever_is_merged_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged_min: int
) -> None:
    monkeypatch.setattr("penstock.log.embedded.rewrite._MERGED_MIN", merged_min)
    chance = random.Random(1)
    keys = [None if chance.random() < 0.1 else b"%d" % chance.randrange(40) for _ in range(400)]
    last = {key: offset for offset, key in enumerate(keys)}
    found = LatestOffsets(keys_max=41)
    kept: list[bool] = []
    for first in range(0, len(keys), 50):
        assert found.add(_segment(tmp_path, first, keys[first : first + 50]))
    keep = found.keeps(0, START_MS)
    for first in range(0, len(keys), 7):
        part = keys[first : first + 7]
        nothing = [0] * len(part)
        kept += keep(part, range(first, first + len(part)), [b""] * len(part), nothing, nothing)
    assert kept == [key is None or last[key] == offset for offset, key in enumerate(keys)]
    assert keep([b"not added"], [0], [b""], [0], [0]) == [True]
    assert not found.add(_segment(tmp_path, 400, [b"one more"])), "there are as many keys as are allowed"


def _segment(directory: Path, base_offset: int, keys: list[bytes | None]) -> Segment:
    path = log_path(directory, base_offset)
    seal = seal_at(SALTS.of(path.stem), 0)
    path.write_bytes(encode_block(base_offset, 0, [b"value"] * len(keys), keys, seal=seal, commit=BEGINS | ENDS))
    return Segment(Disk(), path, base_offset, SegmentIndex(base_offset), path.stat().st_size, SALTS)


async def test_compaction_waits_until_there_is_enough_to_gain(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine(options=OPTIONS)
    await churn(engine, keys=30, rounds=4)
    await engine.maintain()
    compacted = [path.stat().st_ino for path in segment_files(data_dir, "table")[:2]]
    await churn(engine, keys=3, rounds=3)
    await engine.maintain()
    assert [path.stat().st_ino for path in segment_files(data_dir, "table")[:2]] == compacted
    await churn(engine, keys=30, rounds=4)
    await engine.maintain()
    assert [path.stat().st_ino for path in segment_files(data_dir, "table")[:2]] != compacted


# -- offsets that removed records leave behind -----------------------------------------------------------------------------


@pytest.mark.parametrize("indexes", [True, False], ids=["with its indexes", "with its indexes lost"])
async def test_offsets_continue_after_the_last_ones_were_removed(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path, indexes: bool
) -> None:
    engine = await open_engine(options=EngineOptions(tail_bytes_max=0, tombstone_ms=0))
    await engine.create_topic("table", TopicConfig(cleanup="compact", segment_ms=1000))
    partition = engine.partition("table", 0)
    for key in (b"a", b"b", b"c"):
        await append(partition, [b"x"], [key])
    await append(partition, [None], [b"c"])
    clock.advance(2)
    await engine.maintain()  # all sealed by age, and compacted: offsets 2 and 3 are gone
    assert [record.offset for record in await table(engine)] == [0, 1]
    assert partition.committed_end == 4
    await engine.close()
    if not indexes:
        for path in partition_directory(data_dir, "table").glob("*.index"):
            path.unlink()
        (data_dir / "clean-shutdown").unlink()
    engine = await open_engine()
    assert engine.partition("table", 0).committed_end == 4
    assert (await append(engine.partition("table", 0), [b"next"], [b"d"])).base_offset == 4


@pytest.mark.parametrize("indexes", [True, False], ids=["with its indexes", "with its indexes lost"])
async def test_a_segment_of_expired_records_between_others_is_no_gap(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path, indexes: bool
) -> None:
    engine = await open_engine(options=OPTIONS)
    await engine.create_topic("orders", TopicConfig(segment_ms=1000))
    partition = engine.partition("orders", 0)
    expiries = [[0, 0], [START_MS + 1, START_MS + 1], [0, START_MS + 1], [0, 0]]
    for expiry in expiries:
        await append(partition, [b"x", b"y"], expiries=expiry)
        clock.advance(2)
    await engine.maintain()
    left = [0, 1, 4, 6, 7]
    assert [record.offset for record in await read_all(partition)] == left
    await engine.close()
    if not indexes:
        for path in partition_directory(data_dir).glob("*.index"):
            path.unlink()
        (data_dir / "clean-shutdown").unlink()
    engine = await open_engine(options=OPTIONS)
    partition = engine.partition("orders", 0)
    assert [record.offset for record in await read_all(partition)] == left
    for offset in range(9):
        assert [record.offset for record in await read_from(partition, offset)] == [at for at in left if at >= offset]
    records = await read_all(partition)
    for record in records:
        assert await partition.offset_at(record.timestamp_ms) == record.offset - record.offset % 2
    assert (await append(partition, [b"next"])).base_offset == 8


async def test_a_missing_segment_of_a_compacted_topic_is_found_too(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine(options=OPTIONS)
    await churn(engine, keys=30, rounds=2)
    await engine.maintain()
    before = await everything(engine)
    await engine.close()
    engine = await open_engine(options=OPTIONS)
    assert await everything(engine) == before
    await engine.close()
    segments = segment_files(data_dir, "table")
    assert len(segments) >= 3
    segments[1].unlink()
    with pytest.raises(MissingSegment):
        await open_engine()


# -- crashes ------------------------------------------------------------------------------------------------------------


class CrashImages(CrashDisk):
    """Keeps an image of the data directory at each operation of a rewrite but the writes to its draft, which is not yet in use."""

    def __init__(self, data_dir: Path, images: Path) -> None:
        super().__init__()
        self._data_dir = data_dir
        self._images = images
        self.taken: list[tuple[str, Path]] = []

    def reached(self, kind: str) -> None:
        if kind.startswith("maintenance ") and not kind.endswith(("write draft", "allocate draft")):
            image = self._images / f"{len(self.taken)}"
            self.taken.append((kind.removeprefix("maintenance "), crash_image(self._data_dir, image)))


@pytest.mark.parametrize("topic", ["table", "orders"])
async def test_a_crash_at_any_point_of_a_rewrite_loses_and_changes_nothing(
    open_engine: OpenEngine, data_dir: Path, tmp_path: Path, topic: str
) -> None:
    disk = CrashImages(data_dir, tmp_path / "images")
    engine = await open_engine(disk=disk, options=OPTIONS)
    if topic == "table":
        await churn(engine)
    else:
        await engine.create_topic("orders", TopicConfig(segment_bytes=1000))
        for number in range(40):
            await append(engine.partition("orders", 0), [b"%d" % number * 5])
    before = await read_all(engine.partition(topic, 0))
    await engine.maintain()
    after = await read_all(engine.partition(topic, 0))
    kinds = [kind for kind, _ in disk.taken]
    done = set(kinds)
    assert kinds[kinds.index("rename draft") + 1] == "sync directory", (
        "what it replaces goes once its name cannot be lost"
    )
    assert {"flush draft", "rename draft", "unlink segment", "sync directory", "rename swap", "rename index"} <= done
    for kind, image in disk.taken:
        recovered = await open_engine(image, options=OPTIONS)
        records = await read_all(recovered.partition(topic, 0))
        assert set(after) <= set(records) <= set(before), kind
        assert latest(records) == latest(before)
        assert [record.offset for record in records] == sorted({record.offset for record in records})
        assert recovered.partition(topic, 0).committed_end == len(before)
        assert {path.suffix for path in partition_directory(image, topic).iterdir()} == {".log", ".index"}
        await recovered.maintain()
        assert latest(await read_all(recovered.partition(topic, 0))) == latest(before)
        await recovered.close()


class SwapSyncFails(Disk):
    """The next `failures` syncs of a directory with a swap file in it fail."""

    failures = 0

    def sync_directory(self, path: Path) -> None:
        if self.failures and any(path.glob("*.swap")):
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync_directory(path)


async def hours(engine: EmbeddedEngine, clock: ManualClock, *names: str) -> None:
    """A segment of the compacted topic for each name, all its keys distinct, and a pass over the one before."""
    if "table" not in engine.topics():
        await engine.create_topic("table", TopicConfig(cleanup="compact", segment_ms=3_600_000))
    for name in names:
        await change(engine, *((f"{name}{number}", "x") for number in range(5)))
        clock.advance(3601)
        await engine.maintain()


async def test_a_rewrite_that_fails_before_it_counts_leaves_no_swap_file(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    disk = SwapSyncFails()
    engine = await open_engine(disk=disk, options=OPTIONS)
    disk.failures = 1
    with pytest.raises(NotWritten, match=os.strerror(errno.EIO)):
        await hours(engine, clock, "a")
    assert not list(partition_directory(data_dir, "table").glob("*.swap"))
    await hours(engine, clock, "b", "c")
    before = await table(engine)
    assert len(before) == 15
    await engine.close()
    assert await table(await open_engine(options=OPTIONS)) == before


async def test_a_swap_file_that_cannot_be_removed_stops_the_partition_until_a_restart(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    class UnlinkFails(SwapSyncFails):
        def unlink(self, path: Path) -> None:
            if path.suffix == ".swap":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().unlink(path)

    disk = UnlinkFails()
    engine = await open_engine(disk=disk, options=OPTIONS)
    disk.failures = 1
    await hours(engine, clock, "a")
    before = await table(engine)
    partition = partition_of(engine, "table")
    assert "swap" in (partition.failure or "")
    with pytest.raises(NotWritten, match=r"swap.*restart the broker"):
        await change(engine, ("b", "x"))
    with pytest.raises(NotWritten, match=r"swap.*restart the broker"):
        await partition.delete_before(5)
    await engine.close()
    engine = await open_engine(options=OPTIONS)
    assert await table(engine) == before
    await hours(engine, clock, "c")
    assert {path.suffix for path in partition_directory(data_dir, "table").iterdir()} == {".log", ".index"}


async def test_a_rewrite_that_fails_while_it_replaces_is_finished_by_a_restart(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    class SegmentUnlinkFails(Disk):
        def unlink(self, path: Path) -> None:
            if path.suffix == ".log":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().unlink(path)

    engine = await open_engine(disk=SegmentUnlinkFails(), options=OPTIONS)
    await hours(engine, clock, "a")
    before = await table(engine)
    assert len(before) == 5
    assert "restart the broker, which finishes it" in (partition_of(engine, "table").failure or "")
    await engine.maintain()
    await engine.close()
    engine = await open_engine(options=OPTIONS)
    assert await table(engine) == before
    await hours(engine, clock, "b")
    assert len(await table(engine)) == 10
    assert {path.suffix for path in partition_directory(data_dir, "table").iterdir()} == {".log", ".index"}


async def test_a_swap_file_that_a_later_rewrite_has_superseded_removes_nothing(
    open_engine: OpenEngine, clock: ManualClock, data_dir: Path
) -> None:
    engine = await open_engine(options=OPTIONS)
    await hours(engine, clock, "a")
    narrow = segment_files(data_dir, "table")[0]
    stale = narrow.read_bytes()
    await hours(engine, clock, "b", "c")
    before = await table(engine)
    assert not narrow.exists(), "a wider one has taken its place"
    await engine.close()
    swap = narrow.with_suffix(".swap")
    swap.write_bytes(stale)
    report = verify(data_dir)
    assert [(finding.severity, finding.path) for finding in report.findings] == [
        ("note", str(swap.relative_to(data_dir)))
    ]
    assert sum(topic.records for topic in report.topics) == len(before)
    assert await table(await open_engine(options=OPTIONS)) == before
    assert not swap.exists()


@pytest.mark.parametrize("seed", range(6))
async def test_a_power_cut_at_any_point_of_a_rewrite_loses_nothing(
    open_engine: OpenEngine, clock: ManualClock, tmp_path: Path, seed: int
) -> None:
    cut_at, cut = 0, True
    while cut:
        cut_at += 1
        place = tmp_path / str(cut_at)
        (place / "data").mkdir(parents=True)
        disk = PowerCutDisk(place / "data", None)
        engine = await open_engine(place / "data", disk=disk, options=OPTIONS)
        await engine.create_topic("orders", TopicConfig(segment_bytes=600))
        for number in range(14):
            await append(engine.partition("orders", 0), [b"%d" % number])
        before = await everything(engine)
        disk.cut_after(cut_at)
        with suppress(NotWritten):
            await engine.maintain()
        cut = disk.is_off
        disk.cut()
        await engine.close()
        disk.image(place / "image", random.Random(seed), 0.5)
        recovered = await open_engine(place / "image", options=OPTIONS)
        assert await everything(recovered) == before, f"operation {cut_at}"
        await recovered.close()


async def test_a_reader_continues_over_segments_that_are_rewritten_under_it(open_engine: OpenEngine) -> None:
    engine = await open_engine(options=OPTIONS)
    await churn(engine)
    partition = partition_of(engine, "table")
    view = partition._view()
    before = await table(engine)
    await engine.maintain()
    for offset in (0, 17, 45):
        blocks = partition._read_view(view, offset, 1 << 30)
        values = [value for block in blocks for value in block.values(block.index_of(offset))]
        assert values == [record.value for record in before if record.offset >= offset]


# -- the size of blocks -------------------------------------------------------------------------------------------------


async def test_a_topic_of_keys_only_is_compacted_to_blocks_of_the_usual_size(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    options = EngineOptions.model_construct(block_bytes_target=4000, tail_bytes_max=0)
    engine = await open_engine(options=options)
    await engine.create_topic("set", TopicConfig(cleanup="compact", segment_bytes=40_000))
    partition = partition_of(engine, "set")
    members = 0
    while len(partition.segments) < 3:
        clock.advance(1)
        keys = [b"in every block", *(b"member-%08d" % (members + row) for row in range(20))]
        members += 20
        await append(partition, [b""] * len(keys), keys)
    last = partition.committed_end
    sealed_end = partition.segments[-1].base_offset
    await engine.maintain()
    sizes = [block.raw_bytes for segment in partition.segments[:-1] for _, block in segment.blocks_from(0, segment.end)]
    assert max(sizes) <= options.block_bytes_target
    assert len(sizes) > 5
    records = await read_all(partition)
    assert {record.key for record in records} == {b"in every block", *(b"member-%08d" % n for n in range(members))}
    assert len([record for record in records if record.offset < sealed_end and record.key == b"in every block"]) <= 1
    assert partition.committed_end == last


async def test_small_blocks_are_merged_up_to_the_usual_size(open_engine: OpenEngine) -> None:
    options = EngineOptions.model_construct(block_bytes_target=4000, tail_bytes_max=0)
    engine = await open_engine(options=options)
    await engine.create_topic("orders", TopicConfig(segment_bytes=20_000))
    partition = partition_of(engine)
    while len(partition.segments) < 2:
        await append(partition, [b"v" * 150], [b"k" * 150])
    before = await read_all(partition)
    await engine.maintain()
    sizes = [block.raw_bytes for _, block in partition.segments[0].blocks_from(0, partition.segments[0].end)]
    assert all(options.block_bytes_target / 2 < size <= options.block_bytes_target for size in sizes[:-1])
    assert await read_all(partition) == before


async def test_records_that_are_too_far_apart_for_one_block_are_kept_in_two(tmp_path: Path) -> None:
    """A block stores offsets as distances of 32 bits; compaction may leave gaps of any size."""
    offsets = [0, 1, (1 << 32) - 1, 1 << 32, (1 << 32) + 9]
    path = log_path(tmp_path, 0)
    blocks = [encode_block(offset, 1, [b"%d" % offset], commit=BEGINS | ENDS) for offset in offsets]
    data = sealed(blocks, SALTS.of(path.stem))
    path.write_bytes(data)
    segment = Segment(Disk(), path, 0, SegmentIndex(0), len(data), SALTS)
    segment.rebuild_index(len(data))
    replaced = Rewriter(Disk(), 1 << 20).replace([segment], compress=False)
    found = [list(block.offsets()) for _, block in replaced.blocks_from(0, replaced.end)]
    assert found == [[0, 1, (1 << 32) - 1], [1 << 32, (1 << 32) + 9]]
