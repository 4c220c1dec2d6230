"""Damage that is accepted on restore: a broker starts, serves the rest, and gives no offset out twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.errors import CorruptBlock
from penstock.log.api import Durability, Partition, TopicConfig
from penstock.log.embedded.backup import Backup
from penstock.log.embedded.restore import restore
from penstock.log.embedded.verify import verify
from penstock.testing.clock import ManualClock
from tests.log.embedded.backing_up import SMALL, flip, take
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import segment_files
from tests.log.records import append, read_all, records_of

APPENDS = 12
RECORDS = 3
END = APPENDS * RECORDS
LARGE = TopicConfig()
INTERVAL = TopicConfig(durability=Durability.parse("interval:1000"))


async def damaged(open_engine: OpenEngine, clock: ManualClock, target: Path, config: TopicConfig) -> Backup:
    """A backup of the topics `damaged`, which the test damages, and `sound`."""
    engine = await open_engine()
    for topic in ("damaged", "sound"):
        await engine.create_topic(topic, config)
        for _ in range(APPENDS):
            await append(engine.partition(topic, 0), [b"x"] * RECORDS)
    return await take(engine, clock, target)


async def readable(partition: Partition) -> set[int]:
    """The offsets that can be read, also those after damage."""
    found: set[int] = set()
    for offset in range(partition.start_offset, partition.committed_end):
        try:
            blocks = await partition.read(offset, 1)
            found.update(record.offset for block in blocks for record in records_of(block))
        except CorruptBlock:
            continue
    return found


async def offsets(open_engine: OpenEngine, backup: Backup, data_dir: Path) -> set[int]:
    """Restore a backup, start, stop and start a broker on it; returns the offsets of the damaged topic that can be read."""
    assert restore(backup, data_dir, accept_damage=True).damage
    found: set[int] = set()
    for start in range(2):
        engine = await open_engine(data_dir)
        assert [record.offset for record in await read_all(engine.partition("sound", 0))][:END] == list(range(END))
        partition = engine.partition("damaged", 0)
        assert partition.committed_end == END + start
        found = await readable(partition)
        assert (END in found) is bool(start)
        found.discard(END)
        assert (await append(partition, [b"more"])).base_offset == END + start
        await engine.close()
        assert verify(data_dir).damage == 0
    return found


@pytest.mark.parametrize("at", [0, 1, -1])
async def test_a_missing_segment_is_a_gap(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path, at: int
) -> None:
    backup = await damaged(open_engine, clock, target, SMALL)
    paths = segment_files(backup.path, "damaged")
    bounds = [*(int(path.stem) for path in paths), END]
    paths[at].unlink()
    lost = range(bounds[at % len(paths)], bounds[at % len(paths) + 1])
    assert await offsets(open_engine, backup, tmp_path / "restored") == set(range(END)) - set(lost)


@pytest.mark.parametrize("at", [0, 1, -1])
async def test_of_a_segment_that_was_cut_what_is_left_can_be_read(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path, at: int
) -> None:
    backup = await damaged(open_engine, clock, target, SMALL)
    paths = segment_files(backup.path, "damaged")
    bounds = [*(int(path.stem) for path in paths), END]
    paths[at].write_bytes(paths[at].read_bytes()[:-1])
    ends = bounds[at % len(paths) + 1]
    assert await offsets(open_engine, backup, tmp_path / "restored") == set(range(END)) - set(
        range(ends - RECORDS, ends)
    )


async def test_a_partition_without_any_segment_continues_at_its_end(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    backup = await damaged(open_engine, clock, target, SMALL)
    shutil.rmtree(segment_files(backup.path, "damaged")[0].parent)
    assert await offsets(open_engine, backup, tmp_path / "restored") == set()


@pytest.mark.parametrize("config", [LARGE, INTERVAL], ids=["fsync", "interval"])
@pytest.mark.parametrize("block", [0, 3, APPENDS - 1])
async def test_a_flipped_bit_in_the_last_segment_costs_one_block(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path, config: TopicConfig, block: int
) -> None:
    backup = await damaged(open_engine, clock, target, config)
    [path] = segment_files(backup.path, "damaged")
    flip(path, path.stat().st_size // APPENDS * (block + 1) - 1)
    lost = range(block * RECORDS, (block + 1) * RECORDS)
    assert await offsets(open_engine, backup, tmp_path / "restored") == set(range(END)) - set(lost)


async def test_a_segment_without_a_block_that_can_be_read_is_a_gap(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    backup = await damaged(open_engine, clock, target, LARGE)
    [path] = segment_files(backup.path, "damaged")
    path.write_bytes(b"x" * path.stat().st_size)
    assert await offsets(open_engine, backup, tmp_path / "restored") == set()


async def test_a_segment_in_the_place_of_another_is_left_out(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    backup = await damaged(open_engine, clock, target, SMALL)
    paths = segment_files(backup.path, "damaged")
    shutil.copyfile(paths[1], paths[2])
    paths[2].with_suffix(".index").unlink(missing_ok=True)
    lost = range(int(paths[2].stem), int(paths[3].stem) if len(paths) > 3 else END)
    assert await offsets(open_engine, backup, tmp_path / "restored") == set(range(END)) - set(lost)


@pytest.mark.parametrize("gone", [False, True])
async def test_a_topic_without_metadata_is_left_out(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path, gone: bool
) -> None:
    backup = await damaged(open_engine, clock, target, SMALL)
    [directory] = backup.path.glob("topics/damaged.*")
    for name in ("topic.json", "topic.json.copy"):
        (directory / name).unlink() if gone else (directory / name).write_bytes(b"garbage")
    report = restore(backup, tmp_path / "restored", accept_damage=True)
    assert [topic.topic for topic in report.topics] == ["sound"]
    engine = await open_engine(tmp_path / "restored")
    assert engine.topics().keys() == {"sound"}
    assert len(await read_all(engine.partition("sound", 0))) == END
    assert not list((tmp_path / "restored").glob("topics/damaged.*"))


async def test_one_good_copy_of_the_metadata_is_enough(
    open_engine: OpenEngine, clock: ManualClock, target: Path, tmp_path: Path
) -> None:
    backup = await damaged(open_engine, clock, target, SMALL)
    next(backup.path.glob("topics/damaged.*/topic.json")).write_bytes(b"garbage")
    assert await offsets(open_engine, backup, tmp_path / "restored") == set(range(END))
