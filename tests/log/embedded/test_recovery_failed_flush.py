"""A process that restarts after a failed flush reads what the flush did not write, and must not build on it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.errors import OutcomeUnknown
from penstock.log.api import TopicConfig
from penstock.testing.powercut import PowerCutDisk
from tests.log.embedded.conftest import OpenEngine
from tests.log.embedded.storage import partition_of
from tests.log.records import append, read_values


async def test_what_a_failed_flush_left_in_memory_survives_a_power_cut_after_the_restart(
    tmp_path: Path, data_dir: Path, open_engine: OpenEngine
) -> None:
    data_dir.mkdir()
    disk = PowerCutDisk(data_dir, cut_at=None)
    engine = await open_engine(disk=disk)
    await engine.create_topic("orders", TopicConfig())
    await append(partition_of(engine), [b"first"])
    disk.fail_next_flush()
    with pytest.raises(OutcomeUnknown):
        await append(partition_of(engine), [b"unknown"])
    await engine.close()

    engine = await open_engine(disk=disk)
    assert await read_values(partition_of(engine)) == [b"first", b"unknown"]
    await append(partition_of(engine), [b"later"])
    disk.cut()
    image = tmp_path / "image"
    disk.image(image, random.Random(1), loss=1.0)

    engine = await open_engine(image)
    assert await read_values(partition_of(engine)) == [b"first", b"unknown", b"later"]
