"""Power cuts while epochs are staged and published, or come with their commit: the acknowledged ones are there, each whole and once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions.entries import Place, Unstaged, Winner
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.log.api import TopicConfig
from penstock.log.block import encode_block
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.powercut import PowerCutDisk
from tests.broker.producing import read_values
from tests.crash.test_power_cut import close_without_power

SEEDS = 30
REQUESTS = 5
PARTITIONS = 2
LIMITS = BrokerLimits(staged_chunk_bytes=2_500)
OPTIONS = EngineOptions.model_construct(
    journal_bytes=16 << 10, checkpoint_bytes=2048, reserve_bytes=0, maintenance_interval_s=3600
)


def value(epoch: int, request: int) -> bytes:
    return b"%d %d " % (epoch, request) + bytes(1000)


async def write_epoch(broker: Broker, run: str, epoch: int) -> None:
    number = (await broker.staging.begin_run(ANONYMOUS, "app", run)).run
    if epoch % 4 == 3:
        info = await broker.topics.find(ANONYMOUS, "out")
        brought = Unstaged("out", info.id, blocks(epoch, range(requests_of(epoch))))
        await broker.staging.commit(ANONYMOUS, "app", number, epoch, [], [brought])
    else:
        await stage_epoch(broker, run, number, epoch)


async def stage_epoch(broker: Broker, name: str, run: int, epoch: int) -> None:
    requests = requests_of(epoch)
    staged: list[asyncio.Future[PenstockError | None]] = []
    for request in range(requests):
        done: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
        place = Place("app", run, epoch, name, request)
        broker.staging.stage(ANONYMOUS, "out", place, blocks(epoch, [request]), done=done.set_result)
        staged.append(done)
    for each in staged:
        error = await each
        if error is not None:
            raise error
    await broker.staging.commit(ANONYMOUS, "app", run, epoch, [Winner(name, requests)])


def blocks(epoch: int, requests: Sequence[int]) -> list[tuple[int, bytes]]:
    block = encode_block(0, 0, [value(epoch, request) for request in requests])
    return [(partition, block) for partition in range(PARTITIONS)]


def requests_of(epoch: int) -> int:
    return 1 if epoch % 3 == 2 else REQUESTS


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_epochs_are_whole_and_there_once_after_a_power_cut(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    source, image = tmp_path / "source", tmp_path / "image"
    source.mkdir()
    disk = PowerCutDisk(source, cut_at=chance.randint(250, 700))
    engine = EmbeddedEngine(source, disk=disk, options=OPTIONS)
    acknowledged = 0
    try:
        await engine.start()
        broker = Broker(engine, clock=SystemClock(), limits=LIMITS)
        await broker.start()
        await broker.topics.create(ANONYMOUS, "out", TopicConfig(partitions=PARTITIONS))
        while not disk.is_off:
            await write_epoch(broker, "first", acknowledged)
            acknowledged += 1
    except (OSError, PenstockError):
        assert disk.is_off
    finally:
        await close_without_power(engine)
    disk.image(image, chance)

    engine = EmbeddedEngine(image, options=OPTIONS)
    await engine.start()
    broker = Broker(engine, clock=SystemClock(), limits=LIMITS)
    await broker.start()
    if "out" not in engine.topics():
        await broker.topics.create(ANONYMOUS, "out", TopicConfig(partitions=PARTITIONS))
    entry = await broker.staging.begin_run(ANONYMOUS, "app", "second")
    assert entry.epoch >= acknowledged - 1, "an epoch that was acknowledged is forgotten"
    # One that was decided is gone on with; the next commit waits for it.
    for epoch in (entry.epoch, entry.epoch + 1):
        if epoch >= 0:
            await write_epoch(broker, "second", epoch)
    expected = [value(epoch, request) for epoch in range(entry.epoch + 2) for request in range(requests_of(epoch))]
    for partition in range(PARTITIONS):
        assert await read_values(engine.partition("out", partition)) == expected
    await broker.close()
    await engine.close()
