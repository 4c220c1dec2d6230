"""Where a migration reads from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

from penstock.log.api import Engine, TopicInfo
from penstock.log.block import Block


class Source(Protocol):
    """A log that is read. It may grow meanwhile, unless the broker of it was stopped."""

    def topics(self) -> Mapping[str, TopicInfo]:
        """The topics, internal ones included, by name."""

    async def bounds(self, topic: str, index: int) -> tuple[int, int]:
        """Where a partition starts, and the offset after its last record."""

    async def read(self, topic: str, index: int, offset: int) -> Sequence[Block]:
        """Consecutive blocks, the first of which holds `offset` or the first record after it; empty at the end."""


class EngineSource:
    """A log that this process has opened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def topics(self) -> Mapping[str, TopicInfo]:
        return self._engine.topics()

    async def bounds(self, topic: str, index: int) -> tuple[int, int]:
        partition = self._engine.partition(topic, index)
        await partition.follow()
        return partition.start_offset, partition.committed_end

    async def read(self, topic: str, index: int, offset: int) -> Sequence[Block]:
        return await self._engine.partition(topic, index).read(offset)


async def blocks_between(
    source: Source, topic: str, index: int, start: int, end: int
) -> AsyncIterator[Sequence[Block]]:
    """Yield the blocks that hold records from one offset up to another, some at a time; the first and last may hold others, too."""
    offset = start
    while offset < end:
        blocks = await source.read(topic, index, offset)
        if not blocks:
            return
        offset = blocks[-1].next_offset
        if blocks[-1].base_offset >= end:
            blocks = [block for block in blocks if block.base_offset < end]
        if blocks:
            yield blocks
