"""A broker that can be stopped and started again, and writers that stage records in it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.broker.access.checks import Principal
from penstock.broker.transactions.entries import Place, Unstaged, Winner
from penstock.broker.transactions.staging import Committed, Staging
from penstock.errors import PenstockError
from penstock.log.block import encode_block
from tests.broker.transaction_house import ALICE, House

Part = tuple[int, Sequence[bytes | None]]


class StagingHouse(House):
    """Set `chunk_bytes` before it is opened, so that small commits can be long."""

    @property
    def chunk_bytes(self) -> int:
        return self._limits.staged_chunk_bytes

    @chunk_bytes.setter
    def chunk_bytes(self, chunk_bytes: int) -> None:
        self._limits = self._limits.model_copy(update={"staged_chunk_bytes": chunk_bytes})

    @property
    def staging(self) -> Staging:
        return self.broker.staging

    async def run(self, name: str = "run-1", application: str = "query", who: Principal = ALICE, **more: Any) -> int:
        return (await self.staging.begin_run(who, application, name, **more)).run

    def start_stage(
        self,
        topic: str,
        parts: Sequence[Part],
        *,
        attempt: str = "a",
        epoch: int = 0,
        sequence: int = 0,
        run: int = 1,
        application: str = "query",
        who: Principal = ALICE,
        keys: Sequence[bytes | None] | None = None,
    ) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def staged(error: PenstockError | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        blocks = [(partition, encode_block(0, 0, values, keys)) for partition, values in parts]
        place = Place(application, run, epoch, attempt, sequence)
        self.staging.stage(who, topic, place, blocks, done=staged)
        return done

    async def stage(self, topic: str, parts: Sequence[Part], **more: Any) -> None:
        await self.start_stage(topic, parts, **more)

    async def publish(
        self,
        epoch: int,
        *winners: tuple[str, int],
        run: int = 1,
        application: str = "query",
        who: Principal = ALICE,
        unstaged: Sequence[Unstaged] = (),
    ) -> Committed:
        named = [Winner(*winner) for winner in winners]
        return await self.staging.commit(who, application, run, epoch, named, unstaged)

    async def write(
        self,
        epoch: int,
        parts: Sequence[Part],
        *,
        name: str = "run-1",
        topic: str = "orders",
        application: str = "query",
        who: Principal = ALICE,
    ) -> Committed:
        """Begin a run, and commit an epoch with records that are not staged."""
        run = await self.run(name, application, who)
        return await self.staging.commit(who, application, run, epoch, [], [self.unstaged(topic, parts)])

    def unstaged(self, topic: str, parts: Sequence[Part]) -> Unstaged:
        """Records for a topic as it is now."""
        info = self.engine.topics().get(topic)
        blocks = [(partition, encode_block(0, 0, values)) for partition, values in parts]
        return Unstaged(topic, "" if info is None else info.id, blocks)

    def staging_topics(self) -> list[str]:
        return [name for name in self.engine.topics() if name.startswith("__staging-")]
