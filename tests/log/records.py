"""Appending and reading as a test of an engine wants it: call, wait, compare plain records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.log.api import READ_BYTES_DEFAULT, Appended, Batch, BatchFor, Engine, Partition
from penstock.log.appending import start_append
from penstock.log.block import Block

NOWHERE = Appended(-1, 0)
"""In place of where a late record is stored, if that is not told."""


class Record(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: bytes | None
    expiry_ms: int


def records_of(block: Block, start: int = 0) -> list[Record]:
    rows = block.count - start
    return [
        Record(*row)
        for row in zip(
            block.offsets(start),
            block.timestamps(start),
            block.keys(start) or [None] * rows,
            block.values(start),
            block.headers(start) or [None] * rows,
            block.expiries(start) or [0] * rows,
            strict=True,
        )
    ]


async def append(
    partition: Partition,
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[bytes | None] | None = None,
    expiries: Sequence[int] | None = None,
) -> Appended:
    return await start_append(partition, Batch(values, keys, headers, expiries))


def start_atomic_append(engine: Engine, parts: Sequence[BatchFor]) -> asyncio.Future[Sequence[Appended]]:
    """Return where each part is, in their order."""
    future: asyncio.Future[Sequence[Appended]] = asyncio.get_running_loop().create_future()

    def done(result: Mapping[Partition, Appended] | PenstockError) -> None:
        if isinstance(result, PenstockError):
            future.set_exception(result)
        else:
            future.set_result([result.get(part.partition, NOWHERE) for part in parts])

    engine.append_atomic(parts, done)
    return future


async def read_from(partition: Partition, offset: int, max_bytes: int = READ_BYTES_DEFAULT) -> list[Record]:
    """Every record from an offset to the committed end, in as many reads as that takes."""
    records: list[Record] = []
    await partition.follow()
    while offset < partition.committed_end:
        blocks = await partition.read(offset, max_bytes)
        if not blocks:
            break
        for block in blocks:
            records += records_of(block, block.index_of(offset))
            assert block.next_offset > offset, "blocks come in the order of their offsets"
            offset = block.next_offset
    return records


async def read_all(partition: Partition) -> list[Record]:
    await partition.follow()
    return await read_from(partition, partition.start_offset)


async def read_values(partition: Partition) -> list[bytes | None]:
    return [record.value for record in await read_all(partition)]
