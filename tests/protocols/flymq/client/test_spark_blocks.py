"""Whole blocks and plans through both clients, against a real broker."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import InvalidTopicName, OffsetOutOfRange, PartitionNotFound, TopicNotFound
from penstock.log.block import Block
from penstock.protocols.flymq.operations.blocks import PartitionSpan, TopicSpans
from penstock.testing import RunningBroker


def test_blocks_are_fetched_whole_however_large_they_are(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"small")
    large = b"large" * 2_000_000
    client.send("orders", large)
    assert Block(client.blocks.fetch("orders", 0, 0).data).values() == [b"small"]
    fetched = client.blocks.fetch("orders", 0, 1)
    assert Block(fetched.data).values() == [large]
    assert (fetched.start_offset, fetched.end_offset) == (0, 2)


def test_what_is_not_there_is_refused(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.send("orders", b"x")
    with pytest.raises(OffsetOutOfRange):
        client.blocks.fetch("orders", 0, 7)
    with pytest.raises(PartitionNotFound):
        client.blocks.fetch("orders", 3, 0)
    with pytest.raises(TopicNotFound):
        client.blocks.fetch("missing", 0, 0)
    with pytest.raises(TopicNotFound, match="another has its name"):
        client.blocks.fetch("orders", 0, 0, topic_id="f" * 32)
    with pytest.raises(InvalidTopicName):
        client.blocks.plan([TopicSpans("", [])])


def test_a_plan_tells_where_records_lie(penstock_broker: RunningBroker) -> None:
    client = penstock_broker.connect()
    client.create_topic("orders", 2)
    client.send_many("orders", [b"x"] * 10, partition=1)
    plan = client.blocks.plan([TopicSpans("orders", [PartitionSpan(1, 0, 10)])], step_bytes=1)
    assert plan.directory == str(penstock_broker.data_dir.resolve())
    first, second = plan.topics[0].partitions
    assert (first.end_offset, list(first.extents)) == (0, [])
    assert (second.end_offset, second.extents[0].next_offset) == (10, 10)


async def test_the_async_client_has_the_same_calls(penstock_broker: RunningBroker) -> None:
    async with await penstock.connect_async(penstock_broker.url) as client:
        await client.send("orders", b"x")
        assert Block((await client.blocks.fetch("orders", 0, 0)).data).values() == [b"x"]
        plan = await client.blocks.plan([TopicSpans("orders", [PartitionSpan(0, 0, 0)])], wait_ms=1)
        assert plan.topics[0].partitions[0].end_offset == 1
