"""Power cuts at every kind of moment, with unsynced sectors and names lost at random: acknowledged records are there, garbage is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.errors import NotWritten
from penstock.log.embedded import EmbeddedEngine
from penstock.log.embedded.verify import verify
from penstock.testing.powercut import PowerCutDisk
from tests.crash.engine_load import OPTIONS, EngineLoad, create_topics

SEEDS = 300
LOSSES = (0.01, 0.05, 0.3, 0.5, 0.9, 0.99)
"""How much of what was not synced is lost: nearly nothing leaves large writes with a hole, nearly everything leaves crumbs of them."""


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source, image = tmp_path / "source", tmp_path / "image"
    source.mkdir()
    disk = PowerCutDisk(source, cut_at=chance.randint(60, 1200))
    load = EngineLoad(chance)
    engine = EmbeddedEngine(source, disk=disk, options=OPTIONS)
    try:
        await engine.start()
        await create_topics(engine)
        while not disk.is_off:
            await load.turn(engine)
    except (OSError, NotWritten):
        assert disk.is_off
    finally:
        await close_without_power(engine)
    disk.image(image, chance, LOSSES[seed % len(LOSSES)])
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
