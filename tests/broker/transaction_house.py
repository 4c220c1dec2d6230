"""A broker that can be stopped and started again on its directory, with a disk that fails on demand, and transactions in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from penstock.broker.access.checks import ANONYMOUS, Principal
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions.transactions import Added, Transactions
from penstock.errors import PenstockError
from penstock.log.api import TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import read_values
from tests.engines import make_engine
from tests.open_access import OpenAccess

ALICE, BOB = Principal("alice"), Principal("bob")


class House:
    def __init__(
        self, directory: Path, clock: ManualClock, limits: BrokerLimits | None = None, access: Any = None
    ) -> None:
        self._directory = directory
        self._limits = limits or BrokerLimits()
        self._access = access or OpenAccess()
        self.clock = clock
        self.disk = FaultyDisk()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        self.engine = make_engine(self._directory, clock=self.clock, disk=self.disk)
        await self.engine.start()
        self.broker = Broker(self.engine, clock=self.clock, limits=self._limits, access=self._access)
        await self.broker.start()

    async def close(self) -> None:
        await self.broker.close()
        await self.engine.close()

    async def restart(self) -> None:
        await self.close()
        await self.open()

    async def crash(self) -> None:
        """From now on nothing is written; what was is what the next broker finds."""
        self.disk.power_off()
        with suppress(OSError, PenstockError):
            await self.broker.close()
        with suppress(OSError, PenstockError):
            await self.engine.close()
        self.disk = FaultyDisk()
        await self.open()

    @property
    def transactions(self) -> Transactions:
        return self.broker.transactions

    async def topic(self, name: str, **settings: Any) -> None:
        await self.broker.topics.create(ANONYMOUS, name, TopicConfig(**settings))
        # So that a fault of the disk meets what the test does next, and not the event of this.
        await self.broker.audit.written()

    async def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        return await read_values(self.engine.partition(topic, partition))

    def begin(self, who: Principal = ALICE) -> str:
        return self.transactions.begin(who)

    def add(
        self,
        transaction: str,
        topic: str,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        partition: int = -1,
        who: Principal = ALICE,
    ) -> list[int]:
        """Return the partition of each record. Raises the first error."""
        added: list[Added] = []
        self.transactions.produce(who, topic, transaction, partition, values, keys, done=added.append)
        ((partitions, errors),) = added
        if errors:
            raise errors[min(errors)]
        return partitions

    async def commit(self, transaction: str, who: Principal = ALICE) -> bool:
        return await self.transactions.commit(who, transaction)
