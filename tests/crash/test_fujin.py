"""kill -9 under Fujin's load: answered writes are there once and in order, transactions whole or not at all, acknowledgements for good."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.protocols.fujin.client.client import AsyncFujinClient
from penstock.testing import BrokerProcess
from tests.crash.quic_load import (
    OPTIONS,
    PipelinedWrites,
    Transactions,
    beside,
    kill_over_and_over,
    quic_broker,
    until,
    url,
    values_of,
)

KILLS = 10
WRITTEN = "written"
TRANSACTED = {"transacted-a": 20, "transacted-b": 7, "transacted-c": 1}
READ = "read"
FETCH = 7
"""Records a reader asks for at a time."""
TOPICS = {WRITTEN: 1, "transacted-a": 1, "transacted-b": 3, "transacted-c": 1, READ: 1}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = quic_broker(tmp_path, TOPICS, fujin="fetch_wait_s = 0.5")
    try:
        yield broker
    finally:
        broker.close()


@pytest.mark.timeout(240)
async def test_many_kills_lose_no_answered_write_and_leave_no_half_transaction(broker: BrokerProcess) -> None:
    writes, transactions = PipelinedWrites(WRITTEN), Transactions(TRANSACTED)
    await kill_over_and_over(
        broker,
        KILLS,
        lambda: (
            writes.one_connection(broker, streams=3),
            writes.one_connection(broker, streams=1),
            transactions.committing(broker),
            transactions.committing(broker),
            transactions.rolling_back(broker),
            transactions.staying_open(broker),
        ),
        lambda: min(writes.acknowledged, transactions.acknowledged),
        seed=5,
    )
    found = dict(values_of(broker, TOPICS))
    writes.check(found[WRITTEN])
    transactions.check({topic: found[topic] for topic in TRANSACTED})
    assert writes.acknowledged > KILLS
    assert transactions.acknowledged >= KILLS


@pytest.mark.timeout(120)
async def test_a_clean_stop_under_load_answers_everything_it_began(broker: BrokerProcess) -> None:
    writes, transactions = PipelinedWrites(WRITTEN), Transactions(TRANSACTED)
    await asyncio.to_thread(broker.start)
    async with beside(writes.one_connection(broker, streams=2), transactions.committing(broker)):
        await until(lambda: writes.acknowledged > 2000 and transactions.acknowledged > 3, "nothing is acknowledged")
        assert await asyncio.to_thread(broker.terminate) == 0
    await asyncio.to_thread(broker.start)
    found = dict(values_of(broker, TOPICS))
    writes.check(found[WRITTEN])
    transactions.check({topic: found[topic] for topic in TRANSACTED})


@pytest.mark.timeout(120)
async def test_what_a_reader_acknowledged_does_not_come_again_after_kills(broker: BrokerProcess) -> None:
    numbers = itertools.count()
    stored: set[bytes] = set()
    acknowledged: set[bytes] = set()
    asked: set[bytes] = set()
    """To be acknowledged; whether the last of each life were is unknown."""

    async def read() -> None:
        async with AsyncFujinClient(url(broker, "fujin"), options=OPTIONS) as client:
            async with client.reader(READ, pull=True) as reader:
                while True:
                    if len(stored - asked) < FETCH:  # a quick machine reads any fixed number before the last kill
                        values = [b"%d" % number for number in itertools.islice(numbers, 500)]
                        await client.send_many(READ, values)
                        stored.update(values)
                    messages = await reader.fetch(FETCH)
                    again = acknowledged.intersection(message.value for message in messages)
                    assert not again, f"{again} were acknowledged and came again"
                    asked.update(message.value for message in messages)
                    await reader.ack(*messages)
                    acknowledged.update(message.value for message in messages)

    await kill_over_and_over(broker, 5, lambda: (read(),), lambda: len(acknowledged), seed=6)
    async with AsyncFujinClient(url(broker, "fujin"), options=OPTIONS) as client:
        left = {message.value async for message in client.records(READ)}
    assert not left & acknowledged
    assert left >= stored - asked
