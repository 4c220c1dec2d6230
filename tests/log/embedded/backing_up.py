"""Making backups of an engine under test, and damaging them."""

from __future__ import annotations

from pathlib import Path

from penstock.log.api import TopicConfig
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.backup import Backup, back_up
from penstock.testing.clock import ManualClock

SMALL = TopicConfig(segment_bytes=400)


async def take(engine: EmbeddedEngine, clock: ManualClock, target: Path, *, full: bool = False) -> Backup:
    clock.advance(1)
    snapshot = await engine.snapshot()
    return back_up(Path(snapshot.directory), snapshot.id, target, full=full)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
