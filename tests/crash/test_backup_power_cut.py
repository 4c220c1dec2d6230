"""Power cuts while a backup is written and while one is restored: all of it is there, or nothing that looks like it."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.errors import InvalidRequest, NotWritten
from penstock.log.api import Snapshot, TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.backup import Backup, back_up, list_backups
from penstock.log.embedded.restore import restore
from penstock.log.embedded.verify import verify
from penstock.testing.clock import ManualClock
from penstock.testing.powercut import PowerCutDisk
from tests.log.records import append, read_values
from tests.log.storage import fill, make_partition

LOSSES = (0.3, 0.7, 1.0)
"""How much of what was not synced is lost."""
OPERATIONS_MAX = 500
SMALL = TopicConfig(segment_bytes=400)


@dataclass
class Log:
    """Two snapshots of a running engine, and the records that the second one holds."""

    snapshots: list[Snapshot]
    values: list[bytes | None]

    def back_up(self, number: int, target: Path, disk: PowerCutDisk | None = None) -> Backup:
        snapshot = self.snapshots[number]
        return back_up(Path(snapshot.directory), snapshot.id, target, disk=disk)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    clock = ManualClock()
    engine = EmbeddedEngine(tmp_path / "data", clock=clock)
    await engine.start()
    log = Log([], [])
    partition = await make_partition(engine, config=SMALL)
    for _ in range(2):
        log.values += await fill(partition, 5)
        clock.advance(1)
        log.snapshots.append(await engine.snapshot())
    yield log
    await engine.close()


async def values_of(data_dir: Path) -> list[bytes | None]:
    engine = EmbeddedEngine(data_dir)
    await engine.start()
    try:
        found = await read_values(engine.partition("orders", 0))
        await append(engine.partition("orders", 0), [b"more"])
        return found
    finally:
        await engine.close()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("first", [True, False])
async def test_a_backup_survives_a_power_cut_and_one_that_was_interrupted_is_none(
    tmp_path: Path, log: Log, loss: float, first: bool
) -> None:
    cut_at = 0
    done = False
    while not done:
        cut_at += 1
        assert cut_at < OPERATIONS_MAX
        source, image = tmp_path / f"source-{cut_at}", tmp_path / f"image-{cut_at}"
        source.mkdir()
        target = source / "new" / "target"
        expected = set() if first else {log.back_up(0, target).id}
        disk = PowerCutDisk(source, cut_at)
        try:
            expected.add(log.back_up(1, target, disk).id)
            done = True
            disk.cut()
        except NotWritten:
            assert disk.is_off
        disk.image(image, random.Random(cut_at), loss)
        if expected or (image / "new" / "target" / ".penstock-backups").exists():
            listed = list_backups(image / "new" / "target")
            assert {each.id for each in listed} >= expected
            for each in listed:
                assert verify(each.path).findings == [], f"the power was cut at operation {cut_at}"


@pytest.mark.parametrize("loss", LOSSES)
async def test_a_restored_log_survives_a_power_cut_and_half_a_restore_is_not_served(
    tmp_path: Path, log: Log, loss: float
) -> None:
    backup = log.back_up(1, tmp_path / "target")
    cut_at = 0
    done = False
    while not done:
        cut_at += 1
        assert cut_at < OPERATIONS_MAX
        source, image = tmp_path / f"source-{cut_at}", tmp_path / f"image-{cut_at}"
        source.mkdir()
        disk = PowerCutDisk(source, cut_at)
        returned = False
        copied: list[int] = []
        try:
            report = restore(backup, source / "new" / "data", disk=disk, on_copied=copied.append)
            assert report.findings == []
            returned = True
            done = not disk.is_off  # the last operations only clean up
        except NotWritten:
            assert disk.is_off
        if done:
            disk.cut()
        disk.image(image, random.Random(cut_at), loss)
        restored = image / "new" / "data"
        if returned or (restored / "topics").exists():
            assert (restored / "clean-shutdown").exists()
            assert verify(restored).damage == 0, f"the power was cut at operation {cut_at}"
            assert await values_of(restored) == log.values
        elif copied or (restored / ".restoring").exists():
            with pytest.raises(InvalidRequest, match="run penstock restore again"):
                await values_of(restored)
            restore(backup, restored)
            assert await values_of(restored) == log.values


class NamingDisk(PowerCutDisk):
    """Notes how many operations there were when the log of a data directory got its name."""

    named_at = 0

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        if new.name == "topics":
            self.named_at = self.operations


async def test_a_log_that_has_its_name_is_marked_as_cleanly_stopped(tmp_path: Path, log: Log) -> None:
    backup = log.back_up(1, tmp_path / "target")
    (tmp_path / "counting").mkdir()
    counting = NamingDisk(tmp_path / "counting", None)
    restore(backup, tmp_path / "counting", disk=counting)
    counting.cut()
    counting.image(tmp_path / "unused", random.Random(0))
    named = 0
    for seed in range(20):
        source, image = tmp_path / f"source-{seed}", tmp_path / f"image-{seed}"
        source.mkdir()
        disk = PowerCutDisk(source, counting.named_at + 1)
        with pytest.raises(NotWritten):
            restore(backup, source, disk=disk)
        disk.image(image, random.Random(seed))
        if (image / "topics").exists():
            named += 1
            assert (image / "clean-shutdown").exists()
    assert 0 < named < 20


async def test_what_was_salvaged_survives_a_power_cut(tmp_path: Path, log: Log) -> None:
    backup = log.back_up(1, tmp_path / "target")
    paths = sorted(backup.path.rglob("*.log"))
    for path in (paths[1], paths[-1]):
        path.unlink()
    source, image = tmp_path / "source", tmp_path / "image"
    source.mkdir()
    disk = PowerCutDisk(source, None)
    assert restore(backup, source / "data", accept_damage=True, disk=disk).damage
    disk.cut()
    disk.image(image, random.Random(0), loss=1.0)
    engine = EmbeddedEngine(image / "data")
    await engine.start()
    assert engine.partition("orders", 0).committed_end == len(log.values)
    await engine.close()
