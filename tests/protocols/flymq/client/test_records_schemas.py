"""Schemas through the async client, with a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import penstock
from penstock.clients.records import RecordMetadata
from penstock.errors import (
    BatchFailed,
    IncompatibleSchema,
    InvalidRequest,
    RecordTooLarge,
    SchemaInvalid,
    SchemaNotFound,
    ValidationFailed,
)
from penstock.protocols.flymq.client import AsyncFlyMQClient
from penstock.protocols.flymq.client.records import SchemaInfo
from penstock.testing import RunningBroker

USER = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'


@pytest.fixture
async def client(penstock_broker: RunningBroker) -> AsyncIterator[AsyncFlyMQClient]:
    async with await penstock.connect_async(penstock_broker.url) as client:
        yield client


async def test_a_schema_from_registering_to_deleting(client: AsyncFlyMQClient) -> None:
    assert await client.schemas.register("user", USER, compatibility="full") == SchemaInfo("user", "json", 1, "full")
    got = await client.schemas.get("user")
    assert (got.id, got.definition, got.compatibility) == ("user-v1", USER, "full")
    assert got.created_ms is not None
    assert await client.schemas.list() == [SchemaInfo("user", "json", 1, "full", got.created_ms)]
    assert await client.schemas.validate("user", b'{"name": "x"}') == []
    assert await client.schemas.validate("user:1", b"{}") == ['"name" is a required property']
    await client.schemas.delete("user", 1)
    assert await client.schemas.list("user") == []
    for asking in (client.schemas.get("user"), client.schemas.validate("user", b""), client.schemas.delete("user")):
        with pytest.raises(SchemaNotFound):
            await asking


async def test_refusals_come_back_as_their_classes(client: AsyncFlyMQClient) -> None:
    await client.schemas.register("user", "{}")
    with pytest.raises(SchemaInvalid):
        await client.schemas.register("user", "{")
    with pytest.raises(SchemaInvalid, match="unsupported schema type"):
        await client.schemas.register("user", "{}", "xml")
    with pytest.raises(IncompatibleSchema, match="new required field 'name'"):
        await client.schemas.register("user", USER)
    with pytest.raises(InvalidRequest):
        await client.schemas.get("user", 0)
    with pytest.raises(RecordTooLarge):
        await client.schemas.validate("user", bytes(33 << 20))


async def test_records_are_sent_by_a_schema_one_or_many_with_keys_and_partitions(client: AsyncFlyMQClient) -> None:
    await client.schemas.register("user", USER)
    await client.create_topic("users", 3)
    good = b'{"name": "x"}'
    assert (await client.send("users", good, b"k", 2, schema="user")).partition == 2
    with pytest.raises(ValidationFailed):
        await client.send("users", b"{}", schema="user")
    stored = await client.send_many("users", [(b"a", good), (b"k1", good), (None, good)], schema="user:1")
    assert [each.partition for each in stored[:2]] == [1, 0]
    many = await client.send_many("users", [good] * 3000, 1, schema="user")
    assert [each.offset for each in many] == list(range(many[0].offset, many[0].offset + 3000))
    with pytest.raises(BatchFailed) as failed:
        await client.send_many("users", [good, b"{}", good], schema="user")
    assert [type(result) for result in failed.value.results] == [RecordMetadata, ValidationFailed, RecordMetadata]


async def test_a_bound_topic_refuses_what_does_not_follow(client: AsyncFlyMQClient) -> None:
    await client.schemas.register("user", USER)
    await client.create_topic("users", 1, schema="user")
    with pytest.raises(ValidationFailed, match=r"\(user-v1\)"):
        await client.send("users", b"{}")
    with pytest.raises(ValidationFailed):
        await client.send_later("users", b"{}", 60)
    with pytest.raises(ValidationFailed):
        await client.send("users", b"{}", ttl_s=60)
    await client.schemas.bind("users", None)
    await client.send("users", b"{}")
    assert "schema" not in (await client.describe_topic("users")).config
