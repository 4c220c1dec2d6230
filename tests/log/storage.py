"""Where an engine under test keeps its log, and the first steps of most tests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from penstock.log.api import Engine, Partition, TopicConfig
from tests.log.records import append

SomeEngine = TypeVar("SomeEngine", bound=Engine)


class Storage(ABC):
    """Where an engine keeps its log, so that a test can open it again."""

    @abstractmethod
    async def open(self) -> Engine:
        """Return an engine on this storage, started. The one opened before must be closed."""

    @abstractmethod
    async def close(self) -> None:
        """Close the open engine, if any."""

    @abstractmethod
    async def pass_time(self) -> None:
        """Make the next append get a later timestamp."""

    @abstractmethod
    async def reopen(self) -> Engine:
        """Close the open engine and open the storage again."""


class StorageOf(Storage, Generic[SomeEngine]):
    """A storage of one kind of engine, which remembers the one that is open."""

    def __init__(self) -> None:
        self._engine: SomeEngine | None = None

    @abstractmethod
    async def start(self) -> SomeEngine:
        """Start an engine, which the caller closes."""

    async def open(self) -> SomeEngine:
        self._engine = await self.start()
        return self._engine

    async def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            await engine.close()

    async def reopen(self) -> SomeEngine:
        await self.close()
        return await self.open()


async def make_partition(engine: Engine, topic: str = "orders", config: TopicConfig | None = None) -> Partition:
    await engine.create_topic(topic, config or TopicConfig())
    return await followed(engine, topic)


async def followed(engine: Engine, topic: str = "orders", index: int = 0) -> Partition:
    """Return a partition with bounds that are current."""
    partition = engine.partition(topic, index)
    await partition.follow()
    return partition


async def fill(partition: Partition, appends: int = 5, records: int = 3) -> list[bytes | None]:
    """Several appends, one after the other, each its own commit."""
    return list(await fill_at(partition, appends, records))


async def fill_at(partition: Partition, appends: int = 5, records: int = 3) -> dict[bytes | None, int]:
    """Do the same; returns the offset of each value."""
    offsets: dict[bytes | None, int] = {}
    for number in range(appends):
        batch = [b"%d-%d" % (number, row) for row in range(records)]
        appended = await append(partition, batch)
        offsets |= {value: appended.base_offset + row for row, value in enumerate(batch)}
    return offsets
