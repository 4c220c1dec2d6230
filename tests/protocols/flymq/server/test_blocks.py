"""What each request for whole blocks does, asked of a real broker over a session."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.log.api import Batch, Engine, TopicConfig
from penstock.log.appending import start_append
from penstock.log.block import Block
from penstock.protocols.flymq.operations.blocks import (
    BlocksPiece,
    FetchBlocks,
    PartitionSpan,
    Plan,
    ReadPlan,
    TopicSpans,
    decode_blocks,
    decode_plan,
)
from penstock.protocols.flymq.operations.limits import PLAN_PARTITIONS_MAX, PLAN_TOPICS_MAX
from penstock.protocols.flymq.operations.operation import encode_request
from penstock.protocols.flymq.server.blocks import BLOCKS_BYTES_MAX
from penstock.protocols.flymq.session import FlyMQ
from tests.engines import embedded
from tests.log.records import append
from tests.protocols.flymq.conversation import Conversation


async def fetch(
    talk: Conversation, offset: int, *, max_bytes: int = 1 << 20, skip: int = 0, topic_id: str = ""
) -> BlocksPiece:
    reply = await talk.ask(encode_request(FetchBlocks("orders", topic_id, 0, offset, max_bytes, skip)))
    assert reply.opcode == FetchBlocks.opcode, reply.error
    return decode_blocks(reply.payload)


async def plan(talk: Conversation, *topics: TopicSpans, step_bytes: int = 0, wait_ms: int = 0) -> Plan:
    reply = await talk.ask(encode_request(ReadPlan(topics, step_bytes, wait_ms)))
    assert reply.opcode == ReadPlan.opcode, reply.error
    return decode_plan(reply.payload)


# -- blocks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.dense
async def test_blocks_come_as_they_are_stored(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    await append(partition, [b"one", None], [b"k", None])
    await append(partition, [b"two"])
    piece = await fetch(talk, 1)
    first = Block(piece.data)
    second = Block(piece.data, first.size_bytes)
    assert (first.offsets(), first.values(), first.keys()) == (range(2), [b"one", None], [b"k", None])
    assert (second.offsets(), second.values()) == (range(2, 3), [b"two"])
    assert piece.data == b"".join(block.data for block in await partition.read(0))
    assert (piece.start_offset, piece.end_offset, piece.missing) == (0, 3, 0)


@pytest.mark.dense
async def test_at_least_one_block_comes_and_no_more_than_asked(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig())
    for number in range(3):
        await append(engine.partition("orders", 0), [b"%d" % number * 1000])
    assert Block((await fetch(talk, 1, max_bytes=1300)).data).offsets() == range(1, 2)
    assert len((await fetch(talk, 0)).data) > 3000


async def test_a_block_larger_than_a_reply_comes_in_pieces(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig())
    value = bytes(range(256)) * 40_000
    await append(engine.partition("orders", 0), [value])
    data = b""
    pieces = 0
    while True:
        piece = await fetch(talk, 0, max_bytes=1 << 30, skip=len(data))
        assert len(piece.data) <= BLOCKS_BYTES_MAX
        data += piece.data
        pieces += 1
        if not piece.missing:
            break
    assert pieces == 3
    assert Block(data).values() == [value]


async def test_at_the_end_there_is_nothing_and_beyond_it_an_error(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("orders", 0), [b"x"])
    assert await fetch(talk, 1) == (0, 1, 0, b"")
    reply = await talk.ask(encode_request(FetchBlocks("orders", "", 0, 2, 100)))
    assert "offset 2 out of range: topic 'orders' partition 0 holds 0 to 1 (exclusive)" in reply.error


async def test_a_topic_that_was_created_again_is_not_the_one_that_was_asked_for(
    engine: Engine, talk: Conversation
) -> None:
    first = await engine.create_topic("orders", TopicConfig())
    assert (await fetch(talk, 0, topic_id=first.id)).data == b""
    await engine.delete_topic("orders")
    reply = await talk.ask(encode_request(FetchBlocks("orders", first.id, 0, 0, 100)))
    assert reply.error == "topic not found: orders"
    second = await engine.create_topic("orders", TopicConfig())
    assert (await fetch(talk, 0, topic_id=second.id)).data == b""
    reply = await talk.ask(encode_request(FetchBlocks("orders", first.id, 0, 0, 100)))
    assert reply.error == f"topic not found: orders with id {first.id} (it was deleted, and another has its name)"


# -- plans --------------------------------------------------------------------------------------------------------------------


@pytest.mark.embedded
async def test_a_plan_has_ids_and_offsets_and_a_proof(engine: Engine, talk: Conversation) -> None:
    info = await engine.create_topic("orders", TopicConfig(partitions=2, retention_ms=1000))
    await engine.create_topic("kept", TopicConfig())
    await append(engine.partition("orders", 1), [b"x", b"y"])
    found = await plan(talk, TopicSpans("orders", []), TopicSpans("missing", []), TopicSpans("kept", []))
    orders, missing, kept = found.topics
    assert (orders.topic, orders.id, orders.retained) == ("orders", info.id, True)
    assert [tuple(each) for each in orders.partitions] == [(0, 0, 0, 0, None, []), (1, 0, 2, 0, None, [])]
    assert (missing.topic, missing.id, list(missing.partitions)) == ("missing", "", [])
    assert not kept.retained
    assert Path(found.directory, found.proof).read_text() == found.token


@pytest.mark.embedded
async def test_a_plan_leads_to_the_blocks(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig())
    partition = engine.partition("orders", 0)
    for _ in range(10):
        await append(partition, [b"x" * 50_000])
    found = await plan(talk, TopicSpans("orders", [PartitionSpan(0, 2, 9)]), step_bytes=1)
    [extent] = found.topics[0].partitions[0].extents
    data = Path(found.directory, extent.path).read_bytes()
    for offset, position in extent.marks:
        assert Block(data, position).base_offset == offset
    assert extent.marks[0][0] <= 2
    assert (extent.next_offset, extent.file_bytes) == (9, 0)


async def test_offsets_that_are_gone_or_not_there_yet_have_no_place(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("orders", 0), [b"x"])
    spans = [PartitionSpan(0, 5, 9), PartitionSpan(7, 0, 1), PartitionSpan(-1, 0, 1)]
    found = await plan(talk, TopicSpans("orders", spans), step_bytes=1)
    [partition] = found.topics[0].partitions
    assert partition == (0, 0, 1, 0, None, [])


async def test_a_plan_that_waits_is_answered_when_a_record_comes(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig(partitions=2))
    known = TopicSpans("orders", [PartitionSpan(0, 0, 0), PartitionSpan(1, 0, 0)])
    talk.say(encode_request(ReadPlan([known], wait_ms=10_000)))
    answer = asyncio.ensure_future(talk.replies(1))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not answer.done()
    await append(engine.partition("orders", 1), [b"x"])
    [reply] = await answer
    ends = [each.end_offset for each in decode_plan(reply.payload).topics[0].partitions]
    assert ends == [0, 1]


async def test_a_plan_does_not_wait_where_there_is_more_already(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("orders", 0), [b"x"])
    found = await plan(talk, TopicSpans("orders", [PartitionSpan(0, 0, 0)]), wait_ms=10_000)
    assert found.topics[0].partitions[0].end_offset == 1


@pytest.mark.embedded
async def test_a_plan_that_waits_in_vain_is_answered_all_the_same(engine: Engine, talk: Conversation) -> None:
    await engine.create_topic("orders", TopicConfig())
    found = await plan(
        talk, TopicSpans("orders", [PartitionSpan(0, 0, 0), PartitionSpan(9, 0, 0)]), TopicSpans("gone", []), wait_ms=1
    )
    assert [topic.id == "" for topic in found.topics] == [False, True]
    assert not embedded(engine).partition("orders", 0).watchers


async def test_no_plan_shows_a_topic_of_the_broker_itself(talk: Conversation) -> None:
    reply = await talk.ask(encode_request(ReadPlan([TopicSpans("__groups", [])])))
    assert "internal" in reply.error


async def test_a_reader_that_waits_does_not_keep_writers_of_other_connections_waiting(
    engine: Engine, flymq: FlyMQ, talk: Conversation
) -> None:
    await engine.create_topic("orders", TopicConfig())
    talk.say(encode_request(ReadPlan([TopicSpans("orders", [PartitionSpan(0, 0, 0)])], wait_ms=10_000)))
    await start_append(engine.partition("orders", 0), Batch([b"x"]))
    [reply] = await talk.replies(1)
    assert reply.opcode == ReadPlan.opcode


async def test_a_plan_names_each_topic_once_and_not_too_many(talk: Conversation) -> None:
    reply = await talk.ask(encode_request(ReadPlan([TopicSpans("orders", []), TopicSpans("orders", [])])))
    assert reply.error == "invalid request: a plan names each topic once"
    many = [TopicSpans("t", [])] * (PLAN_TOPICS_MAX + 1)
    reply = await talk.ask(encode_request(ReadPlan(many)))
    assert f"too many topics: {PLAN_TOPICS_MAX + 1}, at most {PLAN_TOPICS_MAX}" in reply.error
    spans = [PartitionSpan(0, 0, 0)] * (PLAN_PARTITIONS_MAX // 2 + 1)
    reply = await talk.ask(encode_request(ReadPlan([TopicSpans("a", spans), TopicSpans("b", spans)])))
    assert "too many partitions" in reply.error


async def test_a_topic_that_is_created_again_during_a_wait_is_seen(engine: Engine, talk: Conversation) -> None:
    first = await engine.create_topic("orders", TopicConfig())
    other = await engine.create_topic("other", TopicConfig())
    known = [TopicSpans("orders", [PartitionSpan(0, 0, 0)]), TopicSpans("other", [PartitionSpan(0, 0, 0)])]
    talk.say(encode_request(ReadPlan(known, wait_ms=10_000)))
    await engine.delete_topic("orders")
    second = await engine.create_topic("orders", TopicConfig())
    await append(engine.partition("other", 0), [b"x"])
    [reply] = await talk.replies(1)
    assert first.id != second.id
    assert [topic.id for topic in decode_plan(reply.payload).topics] == [second.id, other.id]
