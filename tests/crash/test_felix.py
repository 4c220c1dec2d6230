"""kill -9 under Felix's load: acknowledged batches are there, whole, once, where and in the order in which they were acknowledged."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.protocols.felix.client.client import AsyncFelixClient
from penstock.testing import BrokerProcess, Journal, check, read_everything
from tests.crash.quic_load import OPTIONS, beside, kill_over_and_over, quic_broker, until, url

KILLS = 8
AT_ONCE = 4
BATCH = 64
SINGLE, SPREAD = "single", "spread"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = quic_broker(tmp_path, {SINGLE: 1, SPREAD: 3})
    try:
        yield broker
    finally:
        broker.close()


class Publishers:
    """Binary batches, several in flight on one connection; each either acknowledged at an offset or of unknown fate."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lives = count()
        self.acknowledged = 0

    async def publish(self, broker: BrokerProcess) -> None:
        producer = f"producer-{next(self._lives)}"
        numbers = count()
        async with AsyncFelixClient(url(broker, "felix"), options=OPTIONS) as client:
            while True:
                async with asyncio.TaskGroup() as batches:
                    for _ in range(AT_ONCE):
                        batches.create_task(self._one(client, producer, next(numbers)))

    async def _one(self, client: AsyncFelixClient, producer: str, number: int) -> None:
        values = [f"{producer}/{number}/{row}/".encode().ljust(200, b".") for row in range(BATCH)]
        ids = self._journal.sending(producer, SINGLE, values)
        try:
            offset = await client.send_many(SINGLE, values)
        except PenstockError as error:
            self._journal.unknown(ids, str(error))
            raise
        assert offset is not None
        self._journal.acked(ids, [(0, offset + row) for row in range(BATCH)])
        self.acknowledged += 1


class KeyedPublishers:
    """Batches with a key, which choose their partition; a batch is one whatever happens."""

    def __init__(self) -> None:
        self._numbers = count()
        self.acknowledged: list[int] = []

    async def publish(self, broker: BrokerProcess) -> None:
        async with AsyncFelixClient(url(broker, "felix"), options=OPTIONS) as client:
            while True:
                number = next(self._numbers)
                values = [b"%d/%d" % (number, row) for row in range(BATCH)]
                await client.send_many(SPREAD, values, key=b"key-%d" % (number % 7))
                self.acknowledged.append(number)

    def check(self, broker: BrokerProcess) -> None:
        rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
        partitions: dict[int, set[int]] = defaultdict(set)
        with broker.connect() as client:
            for record in client.records(SPREAD):
                number, _, row = (record.value or b"").partition(b"/")
                assert record.key == b"key-%d" % (int(number) % 7)
                rows[int(number)].append((record.offset, int(row)))
                partitions[int(number)].add(record.partition)
        assert set(self.acknowledged) <= set(rows), "acknowledged batches are gone"
        for batch, places in rows.items():
            assert len(partitions[batch]) == 1
            assert [row for _, row in sorted(places)] == list(range(BATCH)), f"batch {batch} is not whole"
        keys = Counter(number % 7 for number in rows)
        assert len(keys) == 7


@pytest.mark.timeout(240)
async def test_many_kills_lose_no_acknowledged_batch_and_leave_no_half_one(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    with Journal(tmp_path / "journal") as journal:
        publishers, keyed = Publishers(journal), KeyedPublishers()
        await kill_over_and_over(
            broker,
            KILLS,
            lambda: (publishers.publish(broker), publishers.publish(broker), keyed.publish(broker)),
            lambda: min(publishers.acknowledged, len(keyed.acknowledged)),
            seed=7,
        )
        report = check(journal, {"flymq": read_everything(broker.url, [SINGLE])})
        report.raise_for_violations()
        assert report.acked >= KILLS * BATCH
    whole = Counter(
        record.value.rpartition(b"/")[0].rpartition(b"/")[0] for record in read_everything(broker.url, [SINGLE])
    )
    assert set(whole.values()) == {BATCH}, "a batch is there in part"
    keyed.check(broker)


@pytest.mark.timeout(120)
async def test_a_clean_stop_under_load_acknowledges_what_it_took(broker: BrokerProcess, tmp_path: Path) -> None:
    with Journal(tmp_path / "journal") as journal:
        publishers = Publishers(journal)
        await asyncio.to_thread(broker.start)
        async with beside(publishers.publish(broker), publishers.publish(broker)):
            await until(lambda: publishers.acknowledged > 50, "nothing is acknowledged")
            assert await asyncio.to_thread(broker.terminate) == 0
        await asyncio.to_thread(broker.start)
        check(journal, {"flymq": read_everything(broker.url, [SINGLE])}).raise_for_violations()
