"""Blocks that clients lay out: what some reader would stumble over is refused when it is staged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.limits import BrokerLimits
from penstock.broker.transactions import blocks
from penstock.broker.transactions.blocks import check_parts
from penstock.broker.transactions.entries import Place
from penstock.broker.transactions.staging import Committed
from penstock.errors import (
    InvalidRequest,
    PartitionNotFound,
    RecordTooLarge,
    TopicNotFound,
)
from penstock.log.api import TopicConfig, TopicInfo
from penstock.log.block import Block, encode_block
from penstock.record_headers import encode_headers
from penstock.testing.clock import ManualClock
from tests.broker.transaction_house import ALICE
from tests.broker.transactions.staging_house import StagingHouse


async def test_records_are_checked_when_they_are_staged(house: StagingHouse) -> None:
    def stage(*parts: tuple[int, bytes], topic: str = "orders", attempt: str = "a", sequence: int = 0) -> None:
        place = Place("query", 1, 0, attempt, sequence)
        house.staging.stage(ALICE, topic, place, parts, done=lambda error: None)

    good = encode_block(0, 0, [b"v"])
    async with house:
        await house.topic("orders")
        await house.topic("latest", cleanup="compact")
        await house.run()
        with pytest.raises(TopicNotFound):
            stage((0, good), topic="nowhere")
        with pytest.raises(PartitionNotFound, match="partitions 0 to 0"):
            stage((1, good))
        with pytest.raises(InvalidRequest, match="at least one block"):
            stage()
        with pytest.raises(InvalidRequest, match="is not whole: block fails its checksum"):
            stage((0, good[:-1] + b"x"))
        with pytest.raises(InvalidRequest, match="nothing else"):
            stage((0, good + b"x"))
        with pytest.raises(InvalidRequest, match="keys, values and headers only"):
            stage((0, encode_block(0, 0, [b"v"], expiries=[5])))
        with pytest.raises(InvalidRequest, match="keys, values and headers only"):
            stage((0, encode_block(0, 0, [bytes(1000)], compress=True)))
        with pytest.raises(InvalidRequest, match="from offset 0"):
            stage((0, encode_block(3, 0, [b"v"])))
        with pytest.raises(InvalidRequest, match="too large for 2 records"):
            stage((0, encode_block(0, 0, [bytes(4 << 20), b"v"])))
        with pytest.raises(RecordTooLarge, match="a key has 65537 bytes"):
            stage((0, encode_block(0, 0, [b"v"], [bytes(65537)])))
        with pytest.raises(InvalidRequest, match="give every record a key"):
            stage((0, encode_block(0, 0, [b"v", b"w"], [b"k", None])), topic="latest")
        with pytest.raises(InvalidRequest, match="attempt has 0 bytes"):
            stage((0, good), attempt="")
        with pytest.raises(InvalidRequest, match="sequence -1"):
            stage((0, good), sequence=-1)
        assert house.staging.stats.tickets == 0


@pytest.mark.parametrize(
    ("cell", "problem"),
    [
        (b"\x01", "cut short"),
        (encode_headers([("name", b"value")])[:-1], "cut short"),
        (encode_headers([("name", b"value")]) + b"\x00\x00", "cut short"),
        (encode_headers([("ab", b"")]).replace(b"ab", b"\xc3a"), "not UTF-8"),
        (encode_headers([("a", None)] * 1001), "more than 1000"),
    ],
)
@pytest.mark.parametrize("others", [2, 300])
async def test_headers_that_no_reader_could_read_are_refused(
    house: StagingHouse, cell: bytes, problem: str, others: int
) -> None:
    fine = encode_headers([("ä", b"1"), ("", None), ("b", b"")])
    async with house:
        await house.topic("orders")
        await house.run()
        block = encode_block(0, 0, [b"v"] * (others + 2), None, [fine, None, cell, *[fine] * (others - 1)])
        with pytest.raises(InvalidRequest, match=problem):
            house.staging.stage(ALICE, "orders", Place("query", 1, 0, "a", 0), [(0, block)], done=lambda error: None)
        good = encode_block(0, 0, [b"v"] * 3, [b"k", None, b""], [fine, None, encode_headers([("x", bytes(300))])])
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        house.staging.stage(ALICE, "orders", Place("query", 1, 0, "a", 0), [(0, good)], done=done.set_result)
        assert await done is None
        await house.publish(0, ("a", 1))
        (stored,) = await house.engine.partition("orders", 0).read(0)
        assert stored.keys() == [b"k", None, b""]
        assert stored.headers() == Block(good).headers()


def test_the_longest_headers_of_a_few_records_are_not_walked_by_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a vector costs the same for one cell as for a hundred: a request of such blocks would hold up the broker for minutes."""
    steps: list[int] = []
    monkeypatch.setattr(blocks, "_check_names", lambda data, at, sizes: steps.append(len(at)))
    longest, short = encode_headers([("a", b"")] * 1000), encode_headers([("a", b"")])
    info = TopicInfo("orders", "0" * 32, TopicConfig(), 0)
    for cells in ([longest], [longest, *[short] * 1000]):
        check_parts(info, [(0, encode_block(0, 0, [b"v"] * len(cells), None, cells))], BrokerLimits())
    assert steps == [1001]


async def test_a_record_larger_than_a_block_is_staged_alone(tmp_path: Path, clock: ManualClock) -> None:
    house = StagingHouse(tmp_path / "data", clock, BrokerLimits(record_bytes_max=8 << 20))
    async with house:
        await house.topic("orders")
        await house.run()
        await house.stage("orders", [(0, [bytes(8 << 20)])])
        with pytest.raises(RecordTooLarge, match="record 0 has 8388609 bytes"):
            await house.stage("orders", [(0, [bytes((8 << 20) + 1)])], sequence=1)
        assert await house.publish(0, ("a", 1)) is Committed.NOW
