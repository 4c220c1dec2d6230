"""Producing as a test wants it: call, wait, look at where the records went."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.broker.access import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.producer import Placement
from penstock.log.api import Appended, Partition


async def produce(
    broker: Broker,
    topic: str,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    partition: int = -1,
    principal: Principal = ANONYMOUS,
) -> list[Placement]:
    placed: asyncio.Future[list[Placement]] = asyncio.get_running_loop().create_future()
    # set_result raises when called again, so this also shows that `done` is called once.
    broker.produce(principal, topic, partition, values, keys, done=placed.set_result)
    return await placed


async def read_values(partition: Partition, offset: int = 0) -> list[bytes | None]:
    values: list[bytes | None] = []
    while offset < partition.committed_end:
        for block in await partition.read(offset):
            values += block.values(block.index_of(offset))
            offset = block.next_offset
    return values


def appended(placement: Placement) -> Appended:
    assert isinstance(placement.result, Appended)
    return placement.result
