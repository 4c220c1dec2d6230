"""The process or the power ends at each operation of the disk while a topic is altered, gets partitions or is truncated."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock import logs
from penstock.errors import PenstockError
from penstock.log.api import Batch, Durability, TopicConfig
from penstock.log.appending import start_append
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.log.embedded.verify import verify
from penstock.testing.crashing import CRASHED, CrashAt, CrashDisk
from penstock.testing.powercut import PowerCutDisk
from tests.crash.test_power_cut import close_without_power
from tests.log.embedded.storage import everything

BEFORE = TopicConfig(partitions=2, durability=Durability("none"), segment_bytes=2000)
AFTER = TopicConfig(partitions=2, retention_ms=3_600_000, compression="zstd", segment_bytes=4000)
WIDER = TopicConfig(partitions=4, durability=Durability("none"), segment_bytes=2000)
STARTS = {0: 7, 1: 10}
"""In the middle of a segment, and the end."""
RECORDS = 10
HALVES = ("write", "remove")
RUN_S_MAX = 60.0
OPTIONS = EngineOptions(reserve_bytes=0, maintenance_interval_s=3600)

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.crash.test_topic_changes"])

State = tuple[TopicConfig, list[list[tuple[int, bytes | None]]]]
"""The configuration of a topic, and the offsets and values of each partition."""


async def alter(engine: EmbeddedEngine) -> None:
    await engine.alter_topic("orders", AFTER)


async def add_partitions(engine: EmbeddedEngine) -> None:
    await engine.alter_topic("orders", WIDER)


async def truncate(engine: EmbeddedEngine) -> None:
    await engine.truncate_topic("orders", STARTS)


CHANGES: dict[str, Callable[[EmbeddedEngine], Awaitable[None]]] = {
    "alter": alter,
    "add_partitions": add_partitions,
    "truncate": truncate,
}
KNOWN = {
    "alter": {"commit flush segment", "other flush metadata", "other rename metadata"},
    "add_partitions": {"other make directory", "other create segment", "other rename metadata"},
    "truncate": {"commit flush segment", "other rename metadata", "commit create segment", "read unlink deleted"},
}
"""What each change is known to do; if one of them is missing, the test has become too weak."""


class LaterCrashDisk(CrashDisk):
    """Counts, and ends the process, from the moment it is armed."""

    def arm(self, at: CrashAt | None) -> None:
        self.operations.clear()
        self._at, self._left = at, at.nth if at else 0


def _change(directory: str, name: str, at: CrashAt | None) -> None:
    logs.configure("error")
    asyncio.run(changed(Path(directory), name, at))


async def changed(data_dir: Path, name: str, at: CrashAt | None) -> dict[str, int]:
    """Write a little that is not flushed, then change the topic. Returns how many operations of each kind the change had."""
    disk = LaterCrashDisk()
    engine = EmbeddedEngine(data_dir, disk=disk, options=OPTIONS)
    await engine.start()
    if "orders" not in engine.topics():
        await engine.create_topic("orders", BEFORE)
    for partition in range(2):
        for number in range(RECORDS):
            await start_append(engine.partition("orders", partition), Batch([b"%d" % number * 600]))
    disk.arm(at)
    await CHANGES[name](engine)
    operations = dict(disk.operations)
    await engine.close()
    return operations


async def state_of(data_dir: Path) -> State:
    """Open the directory; what it holds can be read, and every partition takes another record."""
    engine = EmbeddedEngine(data_dir)
    await engine.start()
    try:
        found = await everything(engine)
        config = engine.topics()["orders"].config
        for index in range(config.partitions):
            placed = await start_append(engine.partition("orders", index), Batch([b"after"]))
            assert placed.base_offset == engine.partition("orders", index).committed_end - 1
        return config, [
            [(each.offset, each.value) for each in found["orders", index]] for index in range(config.partitions)
        ]
    finally:
        await engine.close()


def moments(operations: dict[str, int]) -> Iterator[CrashAt]:
    for kind, count in sorted(operations.items()):
        for nth in range(1, count + 1):
            yield CrashAt(kind, nth)
            yield CrashAt(kind, nth, "half" if kind.split()[1] in HALVES else "after")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CHANGES)
def test_a_process_that_ends_while_a_topic_is_changed_leaves_the_old_or_the_new_state(
    tmp_path: Path, name: str
) -> None:
    untouched: list[tuple[int, bytes | None]] = [(offset, b"%d" % offset * 600) for offset in range(RECORDS)]
    old: State = (BEFORE, [untouched, untouched])
    new: State = {
        "alter": (AFTER, [untouched, untouched]),
        "add_partitions": (WIDER, [untouched, untouched, [], []]),
        "truncate": (BEFORE, [untouched[7:], []]),
    }[name]
    counted = asyncio.run(changed(tmp_path / "counted", name, None))
    assert set(counted) >= KNOWN[name], KNOWN[name] - set(counted)
    assert asyncio.run(state_of(tmp_path / "counted")) == new
    outcomes = []
    for at in moments(counted):
        crashed = tmp_path / "crashed"
        process = _processes.Process(target=_change, args=(str(crashed), name, at))
        process.start()
        process.join(RUN_S_MAX)
        code = process.exitcode
        if code is None:
            process.kill()
        assert code == CRASHED, f"{at}: the process ended with {code}"
        assert verify(crashed).damage == 0, at
        found = asyncio.run(state_of(crashed))
        assert found in (old, new), at
        outcomes.append(found == new)
        shutil.rmtree(crashed)
    assert set(outcomes) == {False, True}, "some crashes came before the change was made, and some after"


POWER_CUTS = 60
LOSSES = (0.05, 0.5, 0.95)


@pytest.mark.parametrize("name", CHANGES)
async def test_a_power_cut_while_a_topic_is_changed_leaves_the_old_or_the_new_state(tmp_path: Path, name: str) -> None:
    acknowledged = 0
    for seed in range(POWER_CUTS):
        chance = random.Random(seed)
        source, image = tmp_path / f"source-{seed}", tmp_path / f"image-{seed}"
        source.mkdir()
        disk = PowerCutDisk(source, cut_at=None)
        engine = EmbeddedEngine(source, disk=disk, options=OPTIONS)
        await engine.start()
        await engine.create_topic("orders", BEFORE)
        for partition in range(2):
            for number in range(RECORDS):
                await start_append(engine.partition("orders", partition), Batch([b"%d" % number * 600]))
        disk.cut_after(1 + seed)
        made = False
        try:
            await CHANGES[name](engine)
            made = not disk.is_off
            disk.cut()
        except (OSError, PenstockError):
            assert disk.is_off
        finally:
            await close_without_power(engine)
        disk.image(image, chance, LOSSES[seed % len(LOSSES)])
        assert verify(image).damage == 0, seed
        config, partitions = await state_of(image)
        _check_after_power_cut(name, config, partitions, made=made)
        acknowledged += made
    assert 0 < acknowledged < POWER_CUTS, "some cuts came before the end of the change, and some after"


def _check_after_power_cut(
    name: str, config: TopicConfig, partitions: list[list[tuple[int, bytes | None]]], *, made: bool
) -> None:
    """What was not flushed may be lost; what the change promises may not, once it was made."""
    assert config in {"alter": (BEFORE, AFTER), "add_partitions": (BEFORE, WIDER), "truncate": (BEFORE,)}[name]
    for index, records in enumerate(partitions):
        start = records[0][0] if records else 0
        assert records == [(offset, b"%d" % offset * 600) for offset in range(start, start + len(records))]
        if name == "truncate" and made:
            assert [offset for offset, _ in records] == list(range(STARTS[index], RECORDS))
        elif name == "truncate":
            assert start in (0, STARTS[index])
        else:
            assert start == 0
    if name == "alter" and (made or config == AFTER):
        assert [len(records) for records in partitions] == [RECORDS, RECORDS]
    if made:
        assert config == {"alter": AFTER, "add_partitions": WIDER, "truncate": BEFORE}[name]
