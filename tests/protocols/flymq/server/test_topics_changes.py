"""Altering, widening and truncating a topic over FlyMQ: what the broker answers."""

from __future__ import annotations

import pytest

from penstock.protocols.flymq.codec.record_layouts import encode_produce_many
from penstock.protocols.flymq.operations.operation import Operation, decode_reply, encode_request
from penstock.protocols.flymq.operations.topics import (
    AddPartitions,
    AlterTopic,
    CreateTopic,
    Done,
    Metadata,
    TopicMetadata,
    TruncateTopic,
)
from penstock.protocols.flymq.wire import ERROR
from tests.protocols.flymq.conversation import Conversation


async def described(talk: Conversation) -> TopicMetadata:
    return decode_reply(Metadata, (await talk.ask(encode_request(Metadata("orders")))).payload)


async def done(talk: Conversation, request: Operation[Done]) -> str:
    reply = decode_reply(type(request), (await talk.ask(encode_request(request))).payload)
    assert reply.success
    return reply.message


@pytest.mark.dense
async def test_a_topic_is_altered_widened_and_truncated(talk: Conversation) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 2)))
    for value in (b"a", b"b"):
        await talk.ask(encode_produce_many("orders", [value], None, 1))
    assert await done(talk, AlterTopic("orders", [("retention_ms", "7d")])) == "topic orders altered"
    assert await done(talk, AddPartitions("orders", 3)) == "topic orders has 3 partitions"
    assert await done(talk, TruncateTopic("orders", 1, "offset", 1)) == "topic orders truncated"
    metadata = await described(talk)
    assert metadata.config["retention_ms"] == "604800000"
    assert [(each.start_offset, each.next_offset) for each in metadata.partitions] == [(0, 0), (1, 2), (0, 0)]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (AlterTopic("missing", []), "topic not found: missing"),
        (AlterTopic("orders", [("schema", "order")]), "schema is not a setting that can be altered"),
        (AlterTopic("orders", [("colour", "red")]), "topic setting 'colour' is not known"),
        (AddPartitions("orders", 1), "topic orders has 2 partitions, and partitions cannot be removed"),
        (AddPartitions("orders", -5), "topic orders has 2 partitions, and partitions cannot be removed"),
        (AddPartitions("orders", 1_000_000), "partitions"),
        (TruncateTopic("orders", 0, "offset", 1), "offset 1 is out of range"),
        (TruncateTopic("orders", 0, "offset", -1), "offset -1 is out of range"),
        (TruncateTopic("orders", 7, "end", 0), "partition 7 not found"),
        (TruncateTopic("orders", 0, "middle", 0), "unknown truncation mode: middle"),
    ],
    ids=str,
)
async def test_a_change_that_cannot_be_made_is_refused(
    talk: Conversation, request_: Operation[Done], error: str
) -> None:
    await talk.ask(encode_request(CreateTopic("orders", 2)))
    before = await described(talk)
    reply = await talk.ask(encode_request(request_))
    assert reply.opcode == ERROR
    assert error in reply.error
    assert await described(talk) == before
