"""Schemas as clients may ask for them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from penstock.broker.access.checks import ANONYMOUS, Operation, Principal, Resource, ResourceKind
from penstock.broker.broker import Broker
from penstock.broker.limits import BrokerLimits
from penstock.errors import AccessDenied, InvalidRequest, SchemaNotFound, TopicNotFound
from penstock.log.api import Engine, TopicConfig
from penstock.testing.clock import ManualClock

PROTO = 'syntax = "proto3"; message A { int32 x = 1; } message B { string y = 1; }'


async def test_a_record_is_validated_against_any_version_and_message(broker: Broker) -> None:
    await broker.schemas.register(ANONYMOUS, "s", "json", '{"type": "integer"}')
    await broker.schemas.register(ANONYMOUS, "s", "json", '{"type": ["integer", "string"]}')
    assert await broker.schemas.validate(ANONYMOUS, "s", b'"x"') == []
    assert await broker.schemas.validate(ANONYMOUS, "s", b'"x"', 1) == ['"x" is not of type "integer"']
    large = b'"' + b"x" * 400_000 + b'"'
    assert len((await broker.schemas.validate(ANONYMOUS, "s", large, 1))[0]) <= 300
    await broker.schemas.register(ANONYMOUS, "p", "protobuf", PROTO)
    assert await broker.schemas.validate(ANONYMOUS, "p", b"\x0a\x01y", message="B") == []
    assert await broker.schemas.validate(ANONYMOUS, "p", b"\x0a\x01y") != []
    with pytest.raises(InvalidRequest, match="no message 'C'"):
        await broker.schemas.validate(ANONYMOUS, "p", b"", message="C")
    with pytest.raises(SchemaNotFound, match="schema not found: nope"):
        await broker.schemas.validate(ANONYMOUS, "nope", b"1")


async def test_a_topic_is_bound_and_released(broker: Broker) -> None:
    await broker.schemas.register(ANONYMOUS, "s", "json", "{}")
    await broker.topics.ensure(ANONYMOUS, "t")
    assert broker.schemas.bound_to(ANONYMOUS, "t") is None
    await broker.schemas.bind(ANONYMOUS, "t", "s:1")
    assert broker.schemas.bound_to(ANONYMOUS, "t") == "s:1"
    await broker.schemas.bind(ANONYMOUS, "t", None)
    assert broker.schemas.bound_to(ANONYMOUS, "t") is None
    await broker.schemas.register(ANONYMOUS, "p", "protobuf", PROTO)
    with pytest.raises(InvalidRequest, match="no message 'C'"):
        await broker.schemas.bind(ANONYMOUS, "t", "p:C")
    with pytest.raises(InvalidRequest, match="no message 'C'"):
        await broker.topics.create(ANONYMOUS, "u", TopicConfig(), "p:C")
    for topic, reference, error in (
        ("nope", "s", TopicNotFound),
        ("t", "nope", SchemaNotFound),
        ("t", "s:", InvalidRequest),
    ):
        with pytest.raises(error):
            await broker.schemas.bind(ANONYMOUS, topic, reference)
    with pytest.raises(TopicNotFound):
        broker.schemas.bound_to(ANONYMOUS, "nope")


async def test_a_binding_goes_with_its_topic(broker: Broker) -> None:
    await broker.schemas.register(ANONYMOUS, "s", "json", "{}")
    await broker.topics.create(ANONYMOUS, "t", TopicConfig(), "s")
    await broker.topics.delete(ANONYMOUS, "t")
    await broker.topics.create(ANONYMOUS, "t", TopicConfig())
    assert broker.schemas.bound_to(ANONYMOUS, "t") is None
    await broker.schemas.delete(ANONYMOUS, "s")


class OnlyS1:
    def check(self, principal: Principal, operation: Operation, resource: Resource) -> None:
        if resource.kind is ResourceKind.SCHEMA and resource.name != "s1":
            raise AccessDenied("not yours")


@pytest.fixture
async def guarded(engine: Engine, clock: ManualClock) -> AsyncIterator[Broker]:
    guarded = Broker(engine, clock=clock, limits=BrokerLimits(), access=OnlyS1())
    await guarded.start()
    yield guarded
    await guarded.close()


async def test_a_list_holds_only_schemas_that_the_principal_may_describe(broker: Broker, guarded: Broker) -> None:
    for name in ("s1", "s2"):
        await broker.schemas.register(ANONYMOUS, name, "json", "{}")
    await guarded.leading.catch_up()
    assert [version.name for version in guarded.schemas.versions(Principal("someone"))] == ["s1"]
    assert list(guarded.schemas.versions(Principal("someone"), "s2")) == []
