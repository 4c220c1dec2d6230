"""Stored positions in a log that lost its tail: groups and dead letters do not skip the records that get the offsets of lost ones."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.deliveries.deadletters import DEADLETTERS_TOPIC
from penstock.broker.groups.offsets import GROUPS_TOPIC, OffsetKey
from penstock.broker.limits import BrokerLimits
from penstock.errors import OffsetOutOfRange
from penstock.log.api import Durability, TopicConfig
from penstock.testing.clock import ManualClock
from penstock.testing.faults import FaultyDisk
from tests.broker.producing import produce
from tests.engines import make_engine
from tests.log.embedded.storage import crash_image, cut_log
from tests.log.records import append
from tests.open_access import OpenAccess

pytestmark = pytest.mark.embedded  # a power cut takes from its files


WHO = ANONYMOUS
LOOSE = TopicConfig(durability=Durability("none"))


@asynccontextmanager
async def running(directory: Path, disk: FaultyDisk | None = None) -> AsyncIterator[Broker]:
    engine = make_engine(directory, clock=ManualClock(), disk=disk)
    await engine.start()
    broker = Broker(engine, clock=ManualClock(), limits=BrokerLimits(), access=OpenAccess())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()
        await engine.close()


async def produce_one_by_one(broker: Broker, count: int, topic: str = "orders") -> None:
    """A block each, so that the log can be cut between any two."""
    for number in range(count):
        await produce(broker, topic, [b"%d" % number])


async def a_cut_log(tmp_path: Path, *, committed: int, end: int = 5, cut: int = 3) -> Path:
    """A directory with a group that has committed an offset in a topic that has lost what came after the cut."""
    async with running(tmp_path / "data") as broker:
        await broker.topics.create(WHO, "orders", LOOSE)
        await produce_one_by_one(broker, end)
        await broker.groups.commit(WHO, "orders", "g", 0, committed)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    if cut < end:
        cut_log(image, "orders", cut)
    return image


async def test_a_group_beyond_the_cut_continues_at_the_cut(tmp_path: Path) -> None:
    image = await a_cut_log(tmp_path, committed=5)
    with capture_logs() as lines:
        async with running(image) as broker:
            await produce_one_by_one(broker, 4)
            assert broker.groups.committed(WHO, "orders", "g", 0) == 3
            assert await broker.groups.start_position(WHO, "orders", "g", 0, "committed") == 3
            assert (await broker.groups.lag(WHO, "orders", "g", 0)).records == 4
            assert [row.records for row in (await broker.groups.lags(WHO)).lags] == [4]
            assert broker.groups.stats.truncated_offsets == 1
    [line] = [line for line in lines if line["event"] == "group_offset_truncated"]
    assert (line["topic"], line["group"], line["partition"], line["committed"], line["cut"]) == ("orders", "g", 0, 5, 3)


async def test_a_group_that_was_moved_back_is_stored_there_and_moved_once(tmp_path: Path) -> None:
    image = await a_cut_log(tmp_path, committed=5)
    async with running(image) as broker:
        await produce_one_by_one(broker, 4)
    with capture_logs() as lines:
        async with running(image) as broker:
            assert broker.groups.committed(WHO, "orders", "g", 0) == 3
            await broker.groups.commit(WHO, "orders", "g", 0, 7)
        async with running(crash_image(image, tmp_path / "later")) as broker:
            assert broker.groups.committed(WHO, "orders", "g", 0) == 7
    assert "group_offset_truncated" not in [line["event"] for line in lines]


@pytest.mark.parametrize(("committed", "cut"), [(3, 3), (2, 3), (5, 5)])
async def test_a_group_at_or_before_the_cut_stays_where_it_is(tmp_path: Path, committed: int, cut: int) -> None:
    async with running(await a_cut_log(tmp_path, committed=committed, cut=cut)) as broker:
        await produce_one_by_one(broker, 4)
        assert broker.groups.committed(WHO, "orders", "g", 0) == committed
        assert broker.groups.stats.truncated_offsets == 0


async def test_an_offset_that_a_transaction_commits_is_moved_back_too(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topics.create(WHO, "orders", LOOSE)
        await produce_one_by_one(broker, 5)
        transaction = broker.transactions.begin(WHO)
        broker.transactions.commit_offset(WHO, "orders", transaction, "g", 0, 5)
        await broker.transactions.commit(WHO, transaction)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders", 3)
    async with running(image) as broker:
        await produce_one_by_one(broker, 4)
        assert broker.groups.committed(WHO, "orders", "g", 0) == 3


@pytest.mark.parametrize(("committed", "expected"), [(5, 3), (2, 2)])
async def test_an_offset_without_an_epoch_is_compared_with_the_end_of_the_log(
    tmp_path: Path, committed: int, expected: int
) -> None:
    """As releases stored it that did not know epochs."""
    image = await a_cut_log(tmp_path, committed=1)
    engine = make_engine(image, clock=ManualClock())
    await engine.start()
    entry = [committed, 0, engine.topics()["orders"].id]
    key = msgspec.msgpack.encode(OffsetKey("orders", "g", 0))
    await append(engine.partition(GROUPS_TOPIC, 0), [msgspec.msgpack.encode(entry)], [key])
    await engine.close()
    async with running(image) as broker:
        assert broker.groups.committed(WHO, "orders", "g", 0) == expected


async def test_a_disk_that_is_full_keeps_no_group_beyond_the_cut(tmp_path: Path) -> None:
    image = await a_cut_log(tmp_path, committed=5)
    with capture_logs() as lines:
        async with running(image, Full()) as broker:
            assert broker.groups.committed(WHO, "orders", "g", 0) == 3
    assert "group_offsets_not_stored" in [line["event"] for line in lines]
    async with running(image) as broker:
        await produce_one_by_one(broker, 4)
        assert broker.groups.committed(WHO, "orders", "g", 0) == 3


class Full(FaultyDisk):
    """No space for the tables of the broker."""

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        if GROUPS_TOPIC in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, position)


async def test_a_commit_beyond_the_end_of_a_log_that_was_cut_is_refused(tmp_path: Path) -> None:
    """A consumer that outlived the crash has read up to there; the records it has not read would be skipped."""
    async with running(await a_cut_log(tmp_path, committed=2)) as broker:
        with pytest.raises(
            OffsetOutOfRange, match=r"5 is beyond the end of orders-0, which is 3.* cut at offset 3: continue there"
        ):
            await broker.groups.commit(WHO, "orders", "g", 0, 5)
        assert broker.groups.committed(WHO, "orders", "g", 0) == 2
        await broker.groups.commit(WHO, "orders", "g", 0, 3)
        assert broker.groups.committed(WHO, "orders", "g", 0) == 3


async def test_a_dead_letter_at_the_offset_of_a_lost_one_that_was_replayed_is_listed(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topics.create(WHO, "orders", TopicConfig())
        await broker.topics.create(WHO, "orders.dlq", LOOSE)
        await produce_one_by_one(broker, 5, "orders.dlq")
        for offset in (1, 4):
            await broker.dead_letters.replay_at(WHO, "orders", offset)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders_dlq", 3)
    async with running(image) as broker:
        await produce_one_by_one(broker, 3, "orders.dlq")
        assert [letter.offset for letter in await broker.dead_letters.letters(WHO, "orders", 100)] == [0, 2, 3, 4, 5]
    async with running(image) as broker:
        assert [letter.offset for letter in await broker.dead_letters.letters(WHO, "orders", 100)] == [0, 2, 3, 4, 5]


async def test_marks_of_dead_letters_that_are_all_lost_are_removed(tmp_path: Path) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topics.create(WHO, "orders", TopicConfig())
        await broker.topics.create(WHO, "orders.dlq", LOOSE)
        await produce_one_by_one(broker, 2, "orders.dlq")
        await broker.dead_letters.replay_at(WHO, "orders", 1)
        image = crash_image(tmp_path / "data", tmp_path / "image")
    cut_log(image, "orders_dlq", 1)
    async with running(image) as broker:
        [last] = await broker._engine.partition(DEADLETTERS_TOPIC, 0).read(1)
        assert last.values() == [None]
