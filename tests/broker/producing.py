"""Producing as a test wants it: call, wait, look at where the records went."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.deliveries.deadletter_entries import FailedRecord
from penstock.broker.records.spreading import Placement, Scattered
from penstock.broker.table import PreparedChange
from penstock.log.api import Appended, Partition


async def produce(
    broker: Broker,
    topic: str,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    partition: int | Sequence[int] = -1,
    principal: Principal = ANONYMOUS,
) -> list[Placement]:
    placed: asyncio.Future[list[Placement] | Scattered] = asyncio.get_running_loop().create_future()
    # set_result raises when called again, so this also shows that `done` is called once.
    broker.records.produce(principal, topic, partition, values, keys, done=placed.set_result)
    return by_partition(await placed)


def by_partition(placed: list[Placement] | Scattered) -> list[Placement]:
    """The same as placements, one for each partition; of the records of a run in one partition, each is right behind the last."""
    if not isinstance(placed, Scattered):
        return placed
    placements = []
    for partition in sorted(set(placed.partitions.tolist())):
        rows = [row for row, each in enumerate(placed.partitions.tolist()) if each == partition]
        base = int(placed.offsets[rows[0]])
        assert placed.offsets[rows].tolist() == list(range(base, base + len(rows)))
        (timestamp_ms,) = set(placed.timestamps_ms[rows].tolist())
        placements.append(Placement(partition, rows, Appended(base, timestamp_ms)))
    return placements


async def read_values(partition: Partition, offset: int = 0) -> list[bytes | None]:
    values: list[bytes | None] = []
    await partition.follow()
    while offset < partition.committed_end:
        for block in await partition.read(offset):
            values += block.values(block.index_of(offset))
            offset = block.next_offset
    return values


def appended(placement: Placement) -> Appended:
    assert isinstance(placement.result, Appended)
    return placement.result


async def dead_letter(
    broker: Broker, failed: Sequence[FailedRecord], changes: Sequence[PreparedChange[Any, Any]] = ()
) -> None:
    """Put records aside, as subscriptions do."""
    await broker.dead_letters.ensure_topics(failed)
    await broker.dead_letters.append(failed, changes)
