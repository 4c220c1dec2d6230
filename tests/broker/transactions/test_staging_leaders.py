"""Epochs on a shared log whose nodes lose the lead and answers: each is there once and whole, whoever asks for it, and how often."""

from __future__ import annotations

import asyncio
import random

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions.entries import Place, Unstaged, Winner
from penstock.broker.transactions.staging import Committed, Staging
from penstock.errors import PenstockError
from penstock.log.api import TopicConfig
from penstock.log.block import encode_block
from penstock.testing.clock import ManualClock
from penstock.testing.shared_engine import SharedEngine
from penstock.testing.shared_log import SharedLog
from tests.broker.producing import read_values
from tests.open_access import OpenAccess

SEEDS = range(12)
EPOCHS = 8
REQUESTS = 4
PARTITIONS = 2
TURNS_MAX = 60
# A request counts for some 100 bytes, so that commits have from one to many chunks.
CHUNK_BYTES = (1, 300, 16 << 20)


class Node:
    def __init__(self, log: SharedLog, clock: ManualClock, seed: int) -> None:
        self.engine = SharedEngine(log, clock=clock, seed=seed)
        limits = BrokerLimits(staged_chunk_bytes=CHUNK_BYTES[seed % len(CHUNK_BYTES)])
        self.broker = Broker(self.engine, clock=clock, limits=limits, access=OpenAccess())

    async def start(self) -> None:
        await self.engine.start()
        await self.broker.start()

    async def stop(self) -> None:
        await self.broker.close()
        await self.engine.close()


class Cluster:
    def __init__(self, clock: ManualClock, chance: random.Random) -> None:
        self._clock = clock
        self._chance = chance
        self._log = SharedLog(elects=True)
        self.nodes: list[Node] = []

    async def start(self) -> None:
        await asyncio.gather(*(self._add() for _ in range(2)))

    async def _add(self) -> None:
        node = Node(self._log, self._clock, self._chance.randrange(1 << 30))
        self.nodes.append(node)
        await node.start()

    async def leader(self) -> Node:
        while not (leading := [node for node in self.nodes if node.broker.leading.leads]):
            await asyncio.sleep(0)
        return leading[0]

    async def replace(self, node: Node) -> None:
        """Depose a node, and have it start again once what it does has ended."""
        self._log.depose(node.engine)
        await node.stop()
        self.nodes.remove(node)
        await self._add()

    async def stop(self) -> None:
        for node in self.nodes:
            await node.stop()


def value(epoch: int, request: int) -> bytes:
    return b"%d %d" % (epoch, request)


def blocks(epoch: int, *requests: int) -> list[tuple[int, bytes]]:
    block = encode_block(0, 0, [value(epoch, request) for request in requests])
    return [(partition, block) for partition in range(PARTITIONS)]


async def write(staging: Staging, run: str, epoch: int) -> Committed:
    number = (await staging.begin_run(ANONYMOUS, "app", run)).run
    brought = Unstaged("out", staging._engine.topic("out").id, blocks(epoch, *range(REQUESTS)))
    return await staging.commit(ANONYMOUS, "app", number, epoch, [], [brought])


async def stage(staging: Staging, run: str, epoch: int) -> Committed:
    entry = await staging.begin_run(ANONYMOUS, "app", run)
    winners = [Winner(run, REQUESTS)] if epoch > entry.epoch else []
    for request in range(REQUESTS):
        done: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()
        place = Place("app", entry.run, epoch, run, request)
        staging.stage(ANONYMOUS, "out", place, blocks(epoch, request), done=done.set_result)
        if (error := await done) is not None:
            raise error
    return await staging.commit(ANONYMOUS, "app", entry.run, epoch, winners)


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_epoch_is_there_once_however_often_the_lead_changes(seed: int, clock: ManualClock) -> None:
    chance = random.Random(seed)
    cluster = Cluster(clock, chance)
    await cluster.start()
    await (await cluster.leader()).broker.topics.create(ANONYMOUS, "out", TopicConfig(partitions=PARTITIONS))
    run = epoch = 0
    while epoch < EPOCHS:
        run += 1
        node = await cluster.leader()
        if chance.random() < 0.4:
            node.engine.lose_answer(stored=chance.random() < 0.5)
        names = [f"run-{run}", f"run-{run + chance.randrange(2)}"]
        asking = [
            asyncio.create_task(chance.choice((write, stage))(node.broker.staging, name, epoch)) for name in names
        ]
        if chance.random() < 0.3:
            for _ in range(chance.randrange(TURNS_MAX)):
                await asyncio.sleep(0)
            await cluster.replace(node)
        outcomes = await asyncio.gather(*asking, return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, Committed | PenstockError), repr(outcome)
        assert outcomes.count(Committed.NOW) <= 1
        if Committed.NOW in outcomes or Committed.BEFORE in outcomes:
            epoch += 1
    engine = (await cluster.leader()).engine
    expected = [value(epoch, request) for epoch in range(EPOCHS) for request in range(REQUESTS)]
    for partition in range(PARTITIONS):
        await engine.partition("out", partition).follow()
        assert await read_values(engine.partition("out", partition)) == expected
    await cluster.stop()
