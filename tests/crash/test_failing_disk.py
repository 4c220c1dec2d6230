"""Power cuts on a disk that has failed before: flushes and writes that it refuses, no space now and then, and snapshots in between."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.errors import PenstockError
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.backup import back_up
from penstock.log.embedded.restore import restore
from penstock.testing.powercut import PowerCutDisk
from tests.crash.engine_load import OPTIONS, EngineLoad, create_topics

SEEDS = 40


class Faults(NamedTuple):
    """How likely each is."""

    full: float = 0.0
    write: float = 0.0
    flush: float = 0.0


KINDS = (Faults(full=0.05), Faults(flush=0.02), Faults(full=0.02, write=0.005, flush=0.01), Faults(write=0.01))


class FailingDisk(PowerCutDisk):
    def __init__(self, root: Path, chance: random.Random) -> None:
        super().__init__(root, None)
        self._chance = chance
        self.faults = Faults()

    def _fail(self, likely: float, number: int) -> None:
        if self._chance.random() < likely:
            raise OSError(number, os.strerror(number))

    def allocate(self, fd: int, position: int, size_bytes: int) -> None:
        self._fail(self.faults.full, errno.ENOSPC)
        super().allocate(fd, position, size_bytes)

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        self._fail(self.faults.full, errno.ENOSPC)
        self._fail(self.faults.write, errno.EIO)
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        if self._chance.random() < self.faults.flush:
            self.fail_next_flush()
        super().fdatasync(fd)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_was_acknowledged_survives_a_power_cut_after_faults(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source = tmp_path / "source"
    source.mkdir()
    disk = FailingDisk(source, random.Random(seed))
    load = EngineLoad(chance)
    engine = EmbeddedEngine(source, disk=disk, options=OPTIONS)
    await engine.start()
    await create_topics(engine)
    disk.faults = KINDS[seed % len(KINDS)]
    for turn in range(chance.randint(3, 25)):
        with suppress(PenstockError):  # of maintenance
            await load.turn(engine)
        if chance.random() < 0.1:
            await check_snapshot(engine, load, tmp_path / str(turn))
        if chance.random() < 0.1:
            await engine._committer.run(lambda: engine._committer.checkpoints.begin(wait=False))
    disk.cut()
    with suppress(OSError):
        await engine.close()
    disk.image(tmp_path / "image", chance, chance.choice((0.01, 0.3, 0.5, 0.9)))
    await load.check(tmp_path / "image")


async def check_snapshot(engine: EmbeddedEngine, load: EngineLoad, directory: Path) -> None:
    """A backup that is made holds of an append all or nothing, and its table tells of it."""
    try:
        snapshot = await engine.snapshot()
    except PenstockError:
        return
    backup = back_up(Path(snapshot.directory), snapshot.id, directory / "backups")
    restore(backup, directory / "restored")
    await load.check_whole(directory / "restored")
    await engine.release_snapshot(snapshot.id)
