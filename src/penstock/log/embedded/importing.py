"""Filling a data directory with the topics of another log. Records are committed like any others, so a crash leaves whole commits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from penstock.errors import TopicExists
from penstock.log.api import Import, PlacedBatch, TopicInfo
from penstock.log.appending import start_append

if TYPE_CHECKING:
    from penstock.log.embedded.engine import EmbeddedEngine


class EmbeddedImport(Import):
    def __init__(
        self,
        engine: EmbeddedEngine,
        create: Callable[[TopicInfo], Awaitable[None]],
        begin_epoch: Callable[[str], Awaitable[None]],
    ) -> None:
        """`create` makes a topic as it is described, `begin_epoch` notes that the log of one was cut at its end."""
        self._engine = engine
        self._create = create
        self._begin_epoch = begin_epoch

    async def begin(self, info: TopicInfo) -> None:
        existing = self._engine.topics().get(info.name)
        if existing is None:
            await self._create(info)
        elif existing.id != info.id:
            raise TopicExists(f"the target has another topic {info.name!r} already")
        elif existing.config.partitions < info.config.partitions:
            await self._engine.alter_topic(info.name, info.config)

    async def position(self, topic: str, index: int) -> int:
        return self._engine.partition(topic, index).committed_end

    async def place(self, topic: str, index: int, records: PlacedBatch) -> None:
        partition = self._engine.partition(topic, index)
        assert records.offsets[0] >= partition.committed_end, "records can only be placed behind those that are there"
        await start_append(partition, records)

    async def skip_to(self, topic: str, index: int, offset: int) -> None:
        await self._engine.partition(topic, index).skip_to(offset)

    async def finish(self, info: TopicInfo, starts: Sequence[int]) -> None:
        if self._engine.topics()[info.name].config != info.config:
            await self._engine.alter_topic(info.name, info.config)
        await self._engine.truncate_topic(info.name, dict(enumerate(starts)))
        # Readers of another log of this topic continue where this one ends now.
        await self._begin_epoch(info.name)
