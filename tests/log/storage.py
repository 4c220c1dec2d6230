"""Where an engine under test keeps its log, and the first steps of most tests."""

from __future__ import annotations

from abc import ABC, abstractmethod

from penstock.log.api import Engine, Partition, TopicConfig
from tests.log.records import append


class Storage(ABC):
    """Where an engine keeps its log, so that a test can open it again."""

    @abstractmethod
    async def open(self) -> Engine:
        """An engine on this storage, started. The one opened before must be closed."""

    @abstractmethod
    async def close(self) -> None:
        """Close what is open."""

    @abstractmethod
    async def pass_time(self) -> None:
        """Make the next append get a later timestamp."""

    async def reopen(self) -> Engine:
        await self.close()
        return await self.open()


async def make_partition(engine: Engine, topic: str = "orders", config: TopicConfig | None = None) -> Partition:
    await engine.create_topic(topic, config or TopicConfig())
    return engine.partition(topic, 0)


async def fill(partition: Partition, appends: int = 5, records: int = 3) -> list[bytes | None]:
    """Several appends, one after the other, each its own commit."""
    values: list[bytes | None] = []
    for number in range(appends):
        batch = [b"%d-%d" % (number, row) for row in range(records)]
        values += batch
        await append(partition, batch)
    return values
