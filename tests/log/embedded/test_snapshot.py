"""Snapshots: one moment over all topics, whatever the engine does to its files afterwards."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import LimitExceeded
from penstock.log.api import Batch, BatchFor, Snapshot, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.backup import back_up
from penstock.log.embedded.manifest import holding, read_manifest
from penstock.log.embedded.restore import restore
from penstock.log.embedded.snapshot import UNHELD_S_MAX
from penstock.log.embedded.verify import verify
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import everything, files, partition_of
from tests.log.records import Record, append, start_atomic_append
from tests.log.storage import fill, make_partition

SMALL = TopicConfig(segment_bytes=400)
COMPACTED = TopicConfig(segment_bytes=400, cleanup="compact")
EAGER = EngineOptions.model_construct(compact_dirty_ratio=0.0)


async def held(open_engine: OpenEngine, snapshot: Snapshot, tmp_path: Path) -> dict[tuple[str, int], list[Record]]:
    """The records of a snapshot, read by an engine on a copy of it."""
    backup = back_up(Path(snapshot.directory), snapshot.id, tmp_path / f"backups-{snapshot.id}")
    assert verify(backup.path).findings == []
    assert restore(backup, tmp_path / f"restored-{snapshot.id}").findings == []
    engine = await open_engine(tmp_path / f"restored-{snapshot.id}")
    found = await everything(engine)
    await engine.close()
    return found


async def test_it_holds_what_was_acknowledged_and_nothing_later(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine))
    await fill(await make_partition(engine, "small", SMALL), 12)
    before = await everything(engine)
    snapshot = await engine.snapshot()
    for topic in ("orders", "small"):
        await fill(engine.partition(topic, 0), 12)
    assert await held(open_engine, snapshot, tmp_path) == before


async def test_a_check_of_a_snapshot_ends_at_the_committed_end(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    partition = await make_partition(engine)
    await fill(partition)
    snapshot = await engine.snapshot()
    await fill(partition)
    report = verify(Path(snapshot.directory))
    assert report.findings == []
    assert [each.records for each in report.topics] == [15]


async def test_what_is_being_written_is_not_in_it(open_engine: OpenEngine, tmp_path: Path) -> None:
    disk = FaultyDisk()
    engine = await open_engine(disk=disk)
    await engine.create_topic("pairs", TopicConfig(partitions=2))
    parts = [engine.partition("pairs", index) for index in (0, 1)]
    await start_atomic_append(engine, [BatchFor(part, Batch([b"told"])) for part in parts])
    with disk.fsync_held() as waiting:
        pending = start_atomic_append(engine, [BatchFor(part, Batch([b"not told"])) for part in parts])
        await engine._loop.run_in_executor(None, waiting.wait)
        snapshot = await engine.snapshot()
    await pending
    found = await held(open_engine, snapshot, tmp_path)
    assert {place: [each.value for each in records] for place, records in found.items()} == {
        ("pairs", 0): [b"told"],
        ("pairs", 1): [b"told"],
    }


async def delete(engine: EmbeddedEngine) -> None:
    await engine.delete_topic("orders")


async def retain(engine: EmbeddedEngine) -> None:
    await engine.partition("orders", 0).delete_before(10**6)


async def rewrite(engine: EmbeddedEngine) -> None:
    await engine.maintain()


@pytest.mark.parametrize("change", [delete, retain, rewrite])
@pytest.mark.parametrize("config", [SMALL, COMPACTED])
async def test_files_that_are_removed_and_replaced_later_stay_in_it(
    open_engine: OpenEngine,
    tmp_path: Path,
    data_dir: Path,
    config: TopicConfig,
    change: Callable[[EmbeddedEngine], object],
) -> None:
    engine = await open_engine(options=EAGER)
    partition = await make_partition(engine, config=config)
    for number in range(24):
        await append(partition, [b"%d" % number], [b"key-%d" % (number % 3)])
    before = await everything(engine)
    snapshot = await engine.snapshot()
    names = {path.name for path in data_dir.glob("topics/*/0/*.log")}
    for number in range(24):
        await append(partition, [b"later %d" % number], [b"key-%d" % (number % 3)])
    await change(engine)  # type: ignore[misc]
    assert not names <= {path.name for path in data_dir.glob("topics/*/0/*.log")}, "nothing was removed"
    assert await held(open_engine, snapshot, tmp_path) == before


class MeddlingDisk(FaultyDisk):
    """Does something before a file is linked, once."""

    def __init__(self) -> None:
        super().__init__()
        self.before_link: Callable[[], None] | None = None
        self.linked = 0

    def link(self, old: Path, new: Path) -> None:
        before, self.before_link = self.before_link, None
        if before is not None:
            before()
        super().link(old, new)
        self.linked += 1


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_segment_that_loses_its_name_while_links_are_made_is_copied(
    open_engine: OpenEngine, tmp_path: Path, data_dir: Path, replaced: bool
) -> None:
    disk = MeddlingDisk()
    engine = await open_engine(disk=disk)
    partition = await make_partition(engine, config=SMALL)
    await fill(partition, 12)
    before = await everything(engine)
    oldest = partition_of(engine).segments[0]

    def meddle() -> None:
        oldest.remove()
        if replaced:
            oldest.path.write_bytes(b"another file of that name")
            oldest.index_path.write_bytes(b"and its index")

    disk.before_link = meddle
    snapshot = await engine.snapshot()
    report = verify(Path(snapshot.directory))
    assert report.damage == 0
    oldest.path.unlink(missing_ok=True)
    backup = back_up(Path(snapshot.directory), snapshot.id, tmp_path / "backups")
    restore(backup, tmp_path / "restored")
    assert await everything(await open_engine(tmp_path / "restored")) == before


async def test_a_file_that_is_missing_for_no_reason_is_an_error_and_leaves_nothing(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=SMALL), 12)
    partition_of(engine).segments[0].path.unlink()
    with pytest.raises(Exception, match="making a snapshot failed"):
        await engine.snapshot()
    assert list((data_dir / "snapshots").iterdir()) == []


class UnlinkingDisk(FaultyDisk):
    """A file system without hard links."""

    def link(self, old: Path, new: Path) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(old))


async def test_without_hard_links_files_are_copied(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = await open_engine(disk=UnlinkingDisk())
    await fill(await make_partition(engine, config=SMALL), 12)
    before = await everything(engine)
    snapshot = await engine.snapshot()
    await fill(engine.partition("orders", 0))
    assert await held(open_engine, snapshot, tmp_path) == before


async def test_appends_of_the_same_turn_are_in_it_or_not_as_a_whole(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = await open_engine()
    await engine.create_topic("pairs", TopicConfig(partitions=2, segment_bytes=2000))
    parts = [engine.partition("pairs", index) for index in (0, 1)]
    pending = []
    snapshots = []
    for number in range(60):
        pending.append(start_atomic_append(engine, [BatchFor(part, Batch([b"%d" % number])) for part in parts]))
        if number % 10 == 0:
            await pending[-1]
            snapshots.append((len(pending), await engine.snapshot()))
    for at_least, snapshot in snapshots:
        found = await held(open_engine, snapshot, tmp_path)
        one, other = ([each.value for each in found["pairs", index]] for index in (0, 1))
        assert one == other == [b"%d" % number for number in range(len(one))]
        assert len(one) >= at_least
    for each in pending:
        await each


async def test_one_that_nobody_holds_is_removed_after_a_while(
    open_engine: OpenEngine, data_dir: Path, clock: ManualClock
) -> None:
    engine = await open_engine()
    abandoned, read = await engine.snapshot(), await engine.snapshot()
    clock.advance(UNHELD_S_MAX - 1)
    await engine.maintain()
    assert len(list((data_dir / "snapshots").iterdir())) == 2
    clock.advance(1)
    with holding(Path(read.directory), ""):
        await engine.maintain()
        assert [path.name for path in (data_dir / "snapshots").iterdir()] == [read.id]
        assert abandoned.id != read.id
    await engine.maintain()
    assert list((data_dir / "snapshots").iterdir()) == []


async def test_a_start_removes_those_that_nobody_holds(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    held_one = await engine.snapshot()
    await engine.snapshot()
    await engine.close()
    with holding(Path(held_one.directory), ""):
        engine = await open_engine()
        assert [path.name for path in (data_dir / "snapshots").iterdir()] == [held_one.id]
    await engine.close()


async def test_one_that_its_reader_releases_is_removed_at_once(open_engine: OpenEngine, data_dir: Path) -> None:
    engine = await open_engine()
    other = await engine.snapshot()
    for _ in range(2 * EngineOptions().snapshots_max):
        snapshot = await engine.snapshot()
        for snapshot_id in (snapshot.id, snapshot.id, "../topics"):
            await engine.release_snapshot(snapshot_id)
        assert [path.name for path in (data_dir / "snapshots").iterdir()] == [other.id]


async def test_one_that_is_released_while_it_is_held_is_removed_after_that(
    open_engine: OpenEngine, data_dir: Path
) -> None:
    engine = await open_engine()
    snapshot = await engine.snapshot()
    with holding(Path(snapshot.directory), ""):
        await engine.release_snapshot(snapshot.id)
        assert Path(snapshot.directory).exists()
    await engine.maintain()
    assert list((data_dir / "snapshots").iterdir()) == []


async def test_there_are_only_so_many(open_engine: OpenEngine) -> None:
    engine = await open_engine()
    for _ in range(EngineOptions().snapshots_max):
        await engine.snapshot()
    with pytest.raises(LimitExceeded, match=r"8 snapshots.*log\.snapshots_max"):
        await engine.snapshot()


async def test_the_manifest_tells_the_moment_and_where_each_partition_ends(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine()
    await fill(await make_partition(engine, config=SMALL), 12)
    await engine.partition("orders", 0).delete_before(10)
    snapshot = await engine.snapshot()
    manifest = read_manifest(Path(snapshot.directory))
    assert manifest is not None
    assert (manifest.id, manifest.moment_ms) == (snapshot.id, clock.now_ms())
    [topic] = manifest.topics
    partition = engine.partition("orders", 0)
    assert (topic.starts, topic.ends) == ([partition.start_offset], [36])
    assert {file.path for file in manifest.files} <= files(Path(snapshot.directory)).keys()


async def test_a_partition_that_has_failed_is_in_it_up_to_what_was_acknowledged(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    engine = await open_engine(disk=disk)
    partition = await make_partition(engine)
    await append(partition, [b"told"])
    disk.fail_next_fsync()
    with pytest.raises(Exception, match="unknown"):
        await start_append(partition, Batch([b"unknown"]))
    found = await held(open_engine, await engine.snapshot(), tmp_path)
    assert [each.value for each in found["orders", 0]] == [b"told"]
