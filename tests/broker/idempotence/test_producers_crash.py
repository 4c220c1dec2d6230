"""Requests of idempotent producers that a crash interrupts at any operation of the disk, on the event loop and in the commit thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.idempotence.sequences import IN_FLIGHT_MAX
from penstock.broker.limits import BrokerLimits
from penstock.errors import PenstockError
from penstock.log.embedded import EmbeddedEngine, EngineOptions
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.idempotence.sending import client_of, places
from tests.broker.transaction_house import House

pytestmark = pytest.mark.embedded

Where = Literal["loop", "thread"]
SMALL_JOURNAL = EngineOptions.model_construct(journal_bytes=16 << 10, reserve_bytes=1 << 12)


class EndingDisk(FaultyDisk):
    """Ends at the n-th write or flush from `end_at` on: before it, or in the middle of a write. What was written before stays."""

    def __init__(self, where: Where) -> None:
        super().__init__()
        self._where = where
        self._left: int | None = None
        self._half = False
        self.writers: set[str] = set()
        """Threads that have written to segments."""

    def end_at(self, operation: int, *, half: bool) -> None:
        self._left, self._half = operation, half

    @property
    def reached(self) -> bool:
        return self._left == 0

    def flushes_quickly(self) -> bool:
        return self._where == "loop"

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".log":
            self.writers.add(threading.current_thread().name)
        if self._is_the_last():
            if self._half:
                super().pwrite(fd, data[: len(data) // 2], position)
            self.power_off()
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int) -> None:
        if self._is_the_last():
            self.power_off()
        super().fdatasync(fd)

    def _is_the_last(self) -> bool:
        if not self._left:
            return False
        self._left -= 1
        return not self._left


class EndingHouse(House):
    """A house whose disk ends, with an engine that is retired often enough to be seen."""

    disk: EndingDisk
    engine: EmbeddedEngine

    def __init__(self, directory: Path, clock: ManualClock, where: Where) -> None:
        super().__init__(directory, clock)
        self._where = where

    async def open(self) -> None:
        self.disk = EndingDisk(self._where)
        self.engine = EmbeddedEngine(self._directory, clock=self.clock, disk=self.disk, options=SMALL_JOURNAL)
        await self.engine.start()
        self.broker = Broker(self.engine, clock=self.clock, limits=BrokerLimits(), access=self._access)
        await self.broker.start()

    async def crash(self) -> None:
        self.disk.power_off()
        for part in (self.broker, self.engine):
            with suppress(OSError, PenstockError):
                await part.close()
        await self.open()

    async def thread_rests(self) -> None:
        """Wait until the commit thread and its checkpoint have done everything that the last commit left for later: while they are at work,
        the loop leaves the next commit to that thread."""
        committer = self.engine._committer
        while committer.checkpoints.is_syncing or not committer._tasks.try_acquire():
            await asyncio.sleep(0)
        committer._tasks.release()

    def writers(self) -> set[str]:
        """Who has written since this was asked last, of the loop and the commit thread."""
        writers, self.disk.writers = self.disk.writers, set()
        return {"loop" if name == threading.current_thread().name else "thread" for name in writers}


@pytest.mark.parametrize("half", [False, True], ids=["before", "half"])
@pytest.mark.parametrize("where", ["loop", "thread"])
@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_crash_at_any_operation_stores_a_request_once_and_its_answer_with_it(
    tmp_path: Path, clock: ManualClock, where: Where, partitions: int, half: bool
) -> None:
    operation = 0
    async with EndingHouse(tmp_path / "data", clock, where) as house:
        await house.topic("orders", partitions=partitions)
        client = await client_of(house.broker)
        expected: list[bytes] = []
        reached = True
        while reached:
            operation += 1
            opening = client.request("orders", [b"opens the journal"] * 3)
            await client.send(house.broker, opening)
            expected += opening.values  # type: ignore[arg-type]
            client.answered(opening)
            await house.thread_rests()
            request = client.request("orders", [b"%d of %d" % (row, operation) for row in range(6)])
            house.writers()
            house.disk.end_at(operation, half=half)
            first = None
            with suppress(PenstockError):
                first = places(await client.send(house.broker, request), 6)
            reached = house.disk.reached
            if not reached:
                assert house.writers() == {where}
            await house.crash()
            again = places(await client.send(house.broker, request), 6)
            assert first is None or again == first
            await house.crash()
            assert places(await client.send(house.broker, request), 6) == again
            client.answered(request)
            expected += request.values  # type: ignore[arg-type]
            values = [await house.values("orders", index) for index in range(partitions)]
            assert sorted(value for part in values for value in part if value) == sorted(expected)
            assert [values[place[0]][place[1]] for place in again if place] == list(request.values)
        assert operation > 3, "journal, its flush, and a segment for records at least"


@pytest.mark.parametrize("where", ["loop", "thread"])
async def test_answers_outlive_the_journals_they_were_written_to(
    tmp_path: Path, clock: ManualClock, where: Where
) -> None:
    async with EndingHouse(tmp_path / "data", clock, where) as house:
        await house.topic("orders")
        client = await client_of(house.broker)
        answers = {}
        for number in range(200):
            request = client.request("orders", [b"%d" % number])
            answers[number] = places(await client.send(house.broker, request), 1)
            if number < 200 - IN_FLIGHT_MAX:
                client.answered(request)
        journals = sorted(path.name for path in (tmp_path / "data" / "journal").iterdir())
        assert int(journals[-1].split(".")[0]) > 1, "some journals were full"
        assert len(journals) <= 2, "and are deleted"
        await house.crash()
        for request in list(client.unanswered.values()):
            assert places(await client.send(house.broker, request), 1) == answers[int(request.values[0] or b"")]
        assert await house.values("orders") == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("change", ["truncated", "deleted", "made again"])
async def test_a_request_is_not_stored_again_in_a_topic_that_was_changed_before_a_crash(
    tmp_path: Path, clock: ManualClock, change: str
) -> None:
    async with EndingHouse(tmp_path / "data", clock, "loop") as house:
        await house.topic("orders")
        client = await client_of(house.broker)
        await client.send(house.broker, request := client.request("orders", [b"first"]))
        client.answered(request)
        request = client.request("orders", [b"a", b"b"])
        first = await client.send(house.broker, request)
        if change == "truncated":
            await house.broker.topics.truncate(ANONYMOUS, "orders", "end")
        else:
            await house.broker.topics.delete(ANONYMOUS, "orders")
            if change == "made again":
                await house.topic("orders")
        await house.crash()
        if change == "deleted":
            await house.topic("orders")
        assert places(await client.send(house.broker, request), 2) == places(first, 2) == [(0, 1), (0, 2)]
        partition = house.engine.partition("orders", 0)
        assert partition.committed_end == (3 if change == "truncated" else 0)
        assert partition.start_offset == partition.committed_end
