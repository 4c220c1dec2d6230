"""Writers that do everything they may, and much they should not, in any order: what is published is what a few lines of Python say."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.transactions.staging import Committed
from penstock.errors import PenstockError, ProducerFenced, TransactionNotActive, TransactionNotFound
from penstock.testing.clock import ManualClock
from tests.broker.transaction_house import ALICE
from tests.broker.transactions.staging_house import StagingHouse

SEEDS = (0, 1, 2, 42, 43, 44)
STEPS = 70
PARTITIONS = 2
ATTEMPTS = ("a", "b", "c")
DAY_S = 24 * 3600
# A request counts for some 100 bytes, so that commits have from one to many chunks.
CHUNK_BYTES = (150, 400, 16 << 20)


class Model:
    """What should be so."""

    def __init__(self) -> None:
        self.run = 1
        self.epoch = -1
        self.staged: dict[str, list[bytes]] = {}
        """Of the epoch that comes next: by attempt, the requests in their order."""
        self.touched_s: dict[str, float] = {}
        self.published: list[list[bytes]] = [[] for _ in range(PARTITIONS)]

    def drop(self) -> None:
        self.staged.clear()
        self.touched_s.clear()

    def commit(self, attempts: list[str], brought: Sequence[bytes] = ()) -> None:
        for value in (*brought, *(value for attempt in attempts for value in self.staged[attempt])):
            for partition in self.published:
                partition.append(value)
        self.epoch += 1
        self.drop()


class Walk:
    def __init__(self, house: StagingHouse, seed: int) -> None:
        self._house = house
        self._chance = random.Random(seed)
        self._model = Model()
        self._values = 0

    async def begin(self) -> None:
        await self._house.topic("orders", partitions=PARTITIONS)
        assert await self._house.run("run-1") == 1

    async def step(self) -> None:
        await self._chance.choices(self._actions(), (40, 4, 4, 10, 6, 12, 3, 4, 4, 3, 4, 4, 3))[0]()

    def _actions(self) -> list[Callable[[], Awaitable[None]]]:
        return [
            self.stage,
            self.stage_again,
            self.stage_for_an_older_epoch,
            self.commit,
            self.commit_what_is_not_there,
            self.abort,
            self.begin_run,
            self.act_in_an_older_run,
            self.restart,
            self.restart_during_a_commit,
            self.let_time_pass,
            self.write,
            self.restart_during_a_write,
        ]

    async def stage(self) -> None:
        attempt = self._chance.choice(ATTEMPTS)
        for _ in range(self._chance.randrange(1, 4)):
            requests = self._model.staged.setdefault(attempt, [])
            value = self._value()
            await self._send(value, attempt, len(requests))
            requests.append(value)
            self._model.touched_s[attempt] = self._house.clock.monotonic()

    async def stage_again(self) -> None:
        if self._model.staged:
            attempt, requests = self._chance.choice(sorted(self._model.staged.items()))
            await self._send(b"again", attempt, self._chance.randrange(len(requests)))

    async def stage_for_an_older_epoch(self) -> None:
        if self._model.epoch >= 0:
            await self._send(b"late", "a", 0, epoch=self._chance.randrange(self._model.epoch + 1))

    def _winners(self) -> list[tuple[str, int]]:
        attempts = [attempt for attempt in sorted(self._model.staged) if self._chance.random() < 0.7]
        self._chance.shuffle(attempts)
        return [(attempt, len(self._model.staged[attempt])) for attempt in attempts]

    def _brought(self) -> list[bytes]:
        """Records that come with a commit of those that were staged; of most there are none."""
        return [self._value() for _ in range(self._chance.choice((0, 0, 1, 3)))]

    def _publish(self, winners: list[tuple[str, int]], brought: list[bytes]) -> Coroutine[Any, Any, Committed]:
        parts = [(partition, [value]) for value in brought for partition in range(PARTITIONS)]
        unstaged = [self._house.unstaged("orders", parts)] if parts else []
        return self._house.publish(self._model.epoch + 1, *winners, run=self._model.run, unstaged=unstaged)

    async def commit(self) -> None:
        winners, brought = self._winners(), self._brought()
        asking = [self._publish(winners, brought) for _ in range(2)]
        outcomes = await asyncio.gather(*asking[: self._chance.randrange(1, 3)])
        for unasked in asking[len(outcomes) :]:
            unasked.close()
        assert sorted(outcome.value for outcome in outcomes) in ([1], [0, 1])
        self._model.commit([attempt for attempt, _ in winners], brought)
        assert await self._house.publish(self._model.epoch, *winners, run=self._model.run) is Committed.BEFORE
        await self.check()

    async def commit_what_is_not_there(self) -> None:
        winners = [(attempt, len(requests)) for attempt, requests in sorted(self._model.staged.items())]
        winners.append(("d", 1))
        with pytest.raises(TransactionNotFound):
            await self._house.publish(self._model.epoch + 1, *winners, run=self._model.run)

    async def abort(self) -> None:
        """Some with a request on its way: it is dropped too, and says so."""
        sending = None
        if self._chance.random() < 0.5:
            attempt = self._chance.choice(ATTEMPTS)
            sending = self._start(self._value(), attempt, len(self._model.staged.get(attempt, [])))
        assert await self._house.staging.abort(ALICE, "query", self._model.run, self._model.epoch + 1)
        self._model.drop()
        if self._chance.random() < 0.5:
            await self.stage()
        if sending is not None:
            with pytest.raises(TransactionNotActive):
                await sending
        if self._model.epoch >= 0:
            assert not await self._house.staging.abort(ALICE, "query", self._model.run, self._model.epoch)

    async def begin_run(self) -> None:
        self._model.run += 1
        assert await self._house.run(f"run-{self._model.run}") == self._model.run
        self._model.drop()

    async def act_in_an_older_run(self) -> None:
        older = self._model.run - 1
        with pytest.raises(ProducerFenced):
            await self._house.publish(self._model.epoch + 1, run=older)
        with pytest.raises(ProducerFenced):
            await self._house.stage("orders", [(0, [b"x"])], epoch=self._model.epoch + 1, run=older)
        await self._house.staging.abort(ALICE, "query", older, self._model.epoch + 1)

    async def restart(self) -> None:
        await self._house.restart()
        now_s = self._house.clock.monotonic()
        self._model.touched_s = dict.fromkeys(self._model.staged, now_s)
        await self.check()

    async def restart_during_a_commit(self) -> None:
        """It was decided or it was not; asking again finds it done."""
        winners, brought = self._winners(), self._brought()
        committing = asyncio.create_task(self._publish(winners, brought))
        for _ in range(self._chance.randrange(40)):
            await asyncio.sleep(0)
        for publication in self._house.staging._publications():
            publication.stop()
        await self._house.restart()
        await asyncio.gather(committing, return_exceptions=True)
        await self._publish(winners, brought)
        self._model.commit([attempt for attempt, _ in winners], brought)
        await self.check()

    async def write(self) -> None:
        """An epoch in one request, with others for the same epoch beside it."""
        winners, value, epoch = self._winners(), self._value(), self._model.epoch + 1
        committing = self._house.publish(epoch, *winners, run=self._model.run)
        outcomes = await asyncio.gather(self._write(epoch, value), self._write(epoch, value), committing)
        assert sorted(outcome.value for outcome in outcomes) == [0, 0, 1]
        self._written(value) if outcomes[2] is Committed.BEFORE else self._model.commit([each for each, _ in winners])
        assert await self._write(epoch, b"again") is Committed.BEFORE
        await self.check()

    async def restart_during_a_write(self) -> None:
        value, epoch = self._value(), self._model.epoch + 1
        writing = asyncio.create_task(self._write(epoch, value))
        for _ in range(self._chance.randrange(20)):
            await asyncio.sleep(0)
        await self._house.restart()
        await asyncio.gather(writing, return_exceptions=True)
        await self._write(epoch, value)
        self._written(value)
        await self.check()

    def _write(self, epoch: int, value: bytes) -> Coroutine[Any, Any, Committed]:
        parts = [(partition, [value]) for partition in range(PARTITIONS)]
        return self._house.write(epoch, parts, name=f"run-{self._model.run}")

    def _written(self, value: bytes) -> None:
        for partition in self._model.published:
            partition.append(value)
        self._model.commit([])

    async def let_time_pass(self) -> None:
        self._house.clock.advance(self._chance.choice((1, 200, DAY_S // 2)))
        await self._house.staging.sweep()
        late_s = self._house.clock.monotonic() - DAY_S
        for attempt in [each for each, touched_s in self._model.touched_s.items() if touched_s <= late_s]:
            del self._model.staged[attempt], self._model.touched_s[attempt]

    async def check(self) -> None:
        for partition, expected in enumerate(self._model.published):
            assert await self._house.values("orders", partition) == expected
        assert self._house.staging.stats.tickets == len(self._model.staged)

    def _value(self) -> bytes:
        self._values += 1
        return b"%d" % self._values

    def _start(self, value: bytes, attempt: str, sequence: int, epoch: int | None = None) -> asyncio.Future[None]:
        parts = [(partition, [value]) for partition in range(PARTITIONS)]
        epoch = self._model.epoch + 1 if epoch is None else epoch
        return self._house.start_stage(
            "orders", parts, attempt=attempt, epoch=epoch, sequence=sequence, run=self._model.run
        )

    async def _send(self, value: bytes, attempt: str, sequence: int, epoch: int | None = None) -> None:
        await self._start(value, attempt, sequence, epoch)


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_is_published_is_what_was_committed_whatever_else_is_asked(
    tmp_path: Path, clock: ManualClock, seed: int
) -> None:
    house = StagingHouse(tmp_path / "data", clock)
    house.chunk_bytes = CHUNK_BYTES[seed % len(CHUNK_BYTES)]
    async with house:
        walk = Walk(house, seed)
        await walk.begin()
        for step in range(STEPS):
            try:
                await walk.step()
            except PenstockError as error:
                raise AssertionError(f"step {step}: {error}") from error
        await walk.check()
