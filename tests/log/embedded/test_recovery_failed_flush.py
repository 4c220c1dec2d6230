"""After a failed flush, Linux keeps showing pages that never reached the disk, and no later flush writes them."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.errors import OutcomeUnknown
from penstock.log.api import Batch, BatchFor, TopicConfig
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.powercut import PowerCutDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import everything
from tests.log.records import append, start_atomic_append


async def append_one(engine: EmbeddedEngine) -> None:
    await append(engine.partition("orders", 0), [b"unsure" * 500] * 10)


async def append_to_both(engine: EmbeddedEngine) -> None:
    parts = [BatchFor(engine.partition("orders", index), Batch([b"unsure" * 500])) for index in (0, 1)]
    await start_atomic_append(engine, parts)


@pytest.mark.parametrize("later", [0, 2])
@pytest.mark.parametrize("write", [append_one, append_to_both], ids=["segment", "journal"])
async def test_what_a_restart_shows_after_a_failed_flush_survives_a_power_cut(
    open_engine: OpenEngine,
    data_dir: Path,
    tmp_path: Path,
    write: Callable[[EmbeddedEngine], Awaitable[None]],
    later: int,
) -> None:
    data_dir.mkdir()
    disk = PowerCutDisk(data_dir, None)
    options = EngineOptions.model_construct(block_bytes_target=4000)
    engine = await open_engine(disk=disk, options=options)
    await engine.create_topic("orders", TopicConfig(partitions=2))
    await append(engine.partition("orders", 0), [b"acknowledged"])
    disk.fail_next_flush()
    with pytest.raises(OutcomeUnknown, match="restart the broker"):
        await write(engine)
    await engine.close()
    engine = await open_engine(disk=disk, options=options)
    for _ in range(later):
        await append(engine.partition("orders", 0), [b"acknowledged later"])
    seen = await everything(engine)
    disk.cut()
    await engine.close()
    disk.image(tmp_path / "image", random.Random(1), 1.0)
    recovered = await open_engine(tmp_path / "image", options=options)
    assert await everything(recovered) == seen
    assert recovered.stats.corrupt_blocks == 0
