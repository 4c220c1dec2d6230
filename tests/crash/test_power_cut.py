"""Power cuts at every kind of moment, with unsynced sectors and names lost at random: acknowledged records are there, garbage is not."""

from __future__ import annotations

import random
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.errors import NotWritten
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.verify import verify
from penstock.testing.powercut import PowerCutDisk
from tests.crash.engine_load import OPTIONS, EngineLoad, create_topics

SEEDS = 300
SMALL_SEEDS = 100
LOSSES = (0.01, 0.05, 0.3, 0.5, 0.9, 0.99)
"""How much of what was not synced is lost: nearly nothing leaves large writes with a hole, nearly everything leaves crumbs of them."""


class QuickDisk(PowerCutDisk):
    """Flushes take no time, so small commits are written on the event loop."""

    def __init__(self, root: Path, cut_at: int) -> None:
        super().__init__(root, cut_at)
        self.now_s = lambda: 0.0
        self.writes_on_loop = 0

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        self.writes_on_loop += threading.current_thread() is threading.main_thread()
        return super().pwrite(fd, data, position)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "source").mkdir()
    disk = PowerCutDisk(tmp_path / "source", cut_at=chance.randint(60, 1200))
    load = EngineLoad(chance)
    await cut_and_check(tmp_path, disk, load, load.turn, chance, LOSSES[seed % len(LOSSES)])


@pytest.mark.parametrize("seed", range(SMALL_SEEDS))
async def test_what_the_event_loop_has_written_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "source").mkdir()
    disk = QuickDisk(tmp_path / "source", cut_at=chance.randint(300, 1200))
    load = EngineLoad(chance, small=True)

    async def turn(engine: EmbeddedEngine) -> None:
        await (load.turn(engine) if chance.random() < 0.05 else load.small_turn(engine))

    await cut_and_check(tmp_path, disk, load, turn, chance, LOSSES[seed % len(LOSSES)])
    assert disk.writes_on_loop


async def cut_and_check(
    directory: Path,
    disk: PowerCutDisk,
    load: EngineLoad,
    turn: Callable[[EmbeddedEngine], Awaitable[None]],
    chance: random.Random,
    loss: float,
) -> None:
    """Take turns until the power goes, and check what is left."""
    source, image = directory / "source", directory / "image"
    engine = EmbeddedEngine(source, disk=disk, options=OPTIONS)
    try:
        await engine.start()
        await create_topics(engine)
        while not disk.is_off:
            await turn(engine)
    except (OSError, NotWritten):
        assert disk.is_off
    finally:
        await close_without_power(engine)
    disk.image(image, chance, loss)
    foreseen = verify(image)
    assert foreseen.damage == 0, foreseen.findings
    await load.check(image)
    recovered = EmbeddedEngine(image, options=OPTIONS)
    await recovered.start()
    assert ends_of(recovered) == {topic.topic: topic.ends for topic in foreseen.topics}, (
        "a check foresees the next start"
    )
    await recovered.close()


def ends_of(engine: EmbeddedEngine) -> dict[str, list[int]]:
    return {
        name: [engine.partition(name, index).committed_end for index in range(info.config.partitions)]
        for name, info in engine.topics().items()
    }


async def close_without_power(engine: EmbeddedEngine) -> None:
    try:
        await engine.close()
    except (OSError, AttributeError):
        pass  # it cannot stop cleanly, and where the power went during its start there is little to stop
