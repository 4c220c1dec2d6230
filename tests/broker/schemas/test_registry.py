"""The registry: numbers that are never used again, rules between versions, bindings, and all of it after a crash."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from penstock.broker.limits import BrokerLimits
from penstock.broker.schemas.entries import Binding, EntryKey
from penstock.broker.schemas.marks import REGISTRY_ID_FIRST
from penstock.broker.schemas.reference import LATEST, Reference
from penstock.broker.schemas.registry import Registry
from penstock.broker.schemas.worker import Worker
from penstock.errors import (
    IncompatibleSchema,
    InvalidRequest,
    LimitExceeded,
    PenstockError,
    SchemaInvalid,
    SchemaNotFound,
    TopicExists,
)
from penstock.log.api import Engine, TopicConfig, TopicInfo
from penstock.testing.clock import ManualClock
from tests.engines import make_engine

OPEN = '{"type": "object"}'
WITH_A = '{"type": "object", "properties": {"a": {"type": "integer"}}}'
WITH_A_B = '{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}'
NEEDS_A = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


@pytest.fixture(scope="module")
async def worker() -> AsyncIterator[Worker]:
    """One for all tests of the module: starting it takes longer than most of them."""
    worker = Worker()
    yield worker
    await worker.close()


async def opened(engine: Engine, clock: ManualClock, worker: Worker, **limits: int) -> Registry:
    registry = Registry(engine, clock, BrokerLimits(**limits), worker)
    await registry.start()
    await registry.lead()
    return registry


@pytest.fixture
async def registry(engine: Engine, clock: ManualClock, worker: Worker) -> Registry:
    return await opened(engine, clock, worker)


def numbers(registry: Registry, name: str | None = None) -> list[str]:
    return [version.id for version in registry.versions(name)]


async def test_versions_are_numbered_from_one_and_the_same_definition_keeps_its_number(registry: Registry) -> None:
    first = await registry.register("orders", "json", WITH_A, None)
    assert (first.id, first.type, first.compatibility, first.definition) == ("orders-v1", "json", "backward", WITH_A)
    assert (await registry.register("orders", "json", WITH_A, None)).version == 1
    assert (await registry.register("orders", "json", WITH_A.replace(" ", "  "), None)).version == 1
    assert (await registry.register("orders", "json", WITH_A_B, None)).version == 2
    assert (await registry.register("orders", "json", WITH_A, None)).version == 1
    assert (await registry.register("users", "proto", 'syntax = "proto3"; message A {}', None)).type == "protobuf"
    assert numbers(registry) == ["orders-v1", "orders-v2", "users-v1"]
    assert numbers(registry, "users") == ["users-v1"]
    assert numbers(registry, "nope") == []
    assert registry.get("orders", LATEST).version == 2
    assert registry.get("orders", 1).definition == WITH_A


async def test_a_definition_has_one_id_under_every_name_and_an_id_is_never_used_again(
    engine: Engine, clock: ManualClock, worker: Worker, registry: Registry
) -> None:
    first = await registry.register("orders", "json", WITH_A, None)
    other = await registry.register("users", "json", OPEN, None)
    same = await registry.register("copies", "json", WITH_A.replace(" ", "  "), None)
    assert first.registry_id == same.registry_id == REGISTRY_ID_FIRST
    assert other.registry_id == REGISTRY_ID_FIRST + 1
    assert [each.id for each in registry.with_id(REGISTRY_ID_FIRST)] == ["copies-v1", "orders-v1"]
    await registry.delete("orders", LATEST)
    assert (await registry.register("orders", "json", WITH_A, None)).registry_id == REGISTRY_ID_FIRST
    await registry.delete("users", LATEST)
    assert registry.with_id(other.registry_id) == []
    again = await opened(engine, clock, worker)
    assert [each.id for each in again.with_id(REGISTRY_ID_FIRST)] == ["copies-v1", "orders-v2"]
    assert (await again.register("users", "json", OPEN, None)).registry_id == REGISTRY_ID_FIRST + 2


async def test_versions_that_were_registered_before_there_were_ids_get_them_in_that_order(
    engine: Engine, clock: ManualClock, worker: Worker, registry: Registry
) -> None:
    await registry.register("z", "json", OPEN, None)
    avro = '{"type": "record", "name": "R", "fields": []}'
    await registry.register("a", "avro", avro, None)
    for name in ("z", "a"):
        _, version = registry.resolve(Reference(name))
        without = msgspec.structs.replace(version, registry_id=0, crc64=b"", created_ms={"z": 1, "a": 2}[name])
        await registry._table.put(EntryKey("schema", name, 1), without)
    await registry._table.delete(EntryKey("ids", "", 0))
    for _ in range(2):
        again = await opened(engine, clock, worker)
        assert [again.get(name, 1).registry_id for name in ("z", "a")] == [REGISTRY_ID_FIRST, REGISTRY_ID_FIRST + 1]
        assert len(again.resolve(Reference("a"))[1].crc64) == 8


async def test_many_registrations_at_once_get_numbers_without_gaps(registry: Registry) -> None:
    texts = [f'{{"description": "{n % 7}"}}' for n in range(30)]
    versions = await asyncio.gather(*(registry.register("s", "json", text, None) for text in texts))
    assert sorted({version.version for version in versions}) == list(range(1, 8))
    assert len({(version.version, version.definition) for version in versions}) == 7


async def test_a_number_is_never_used_again(
    registry: Registry, engine: Engine, clock: ManualClock, worker: Worker
) -> None:
    for text in (OPEN, WITH_A, WITH_A_B):
        await registry.register("s", "json", text, "none")
    await registry.delete("s", 3)
    assert (await registry.register("s", "json", NEEDS_A, None)).version == 4
    await registry.delete("s", LATEST)
    assert numbers(registry) == []
    with pytest.raises(SchemaNotFound, match="schema not found: s"):
        registry.get("s", LATEST)
    again = await opened(engine, clock, worker)
    version = await again.register("s", "json", OPEN, None)
    assert (version.version, version.compatibility) == (5, "none")


@pytest.mark.parametrize(
    ("mode", "older", "newer", "accepted"),
    [
        ("none", WITH_A, '{"type": "string"}', True),
        ("backward", NEEDS_A, WITH_A, True),
        ("backward", WITH_A, NEEDS_A, False),
        ("forward", NEEDS_A, WITH_A, False),
        ("forward", WITH_A, NEEDS_A, True),
        ("full", WITH_A, NEEDS_A, False),
        ("full", NEEDS_A, WITH_A, False),
        ("full", WITH_A, WITH_A_B, True),
    ],
)
async def test_each_mode_lets_pass_what_it_should(
    registry: Registry, mode: str, older: str, newer: str, accepted: bool
) -> None:
    await registry.register("s", "json", older, mode)
    if accepted:
        assert (await registry.register("s", "json", newer, None)).version == 2
    else:
        with pytest.raises(IncompatibleSchema, match="new required field 'a'"):
            await registry.register("s", "json", newer, None)
        assert numbers(registry) == ["s-v1"]


async def test_a_new_version_is_compared_with_the_latest_that_is_left(registry: Registry) -> None:
    await registry.register("s", "json", WITH_A, "none")
    await registry.register("s", "json", NEEDS_A, "none")
    await registry.delete("s", 2)
    with pytest.raises(IncompatibleSchema):
        await registry.register("s", "json", NEEDS_A, "backward")


async def test_the_mode_can_be_changed_with_a_definition_that_is_there(
    registry: Registry, engine: Engine, clock: ManualClock, worker: Worker
) -> None:
    await registry.register("s", "json", WITH_A, None)
    assert (await registry.register("s", "json", WITH_A, "full")).compatibility == "full"
    assert (await opened(engine, clock, worker)).get("s", LATEST).compatibility == "full"


async def test_a_schema_keeps_its_type_unless_nothing_is_asked(registry: Registry) -> None:
    await registry.register("s", "json", "{}", None)
    with pytest.raises(IncompatibleSchema, match="from json to avro"):
        await registry.register("s", "avro", '"int"', None)
    assert (await registry.register("s", "avro", '"int"', "none")).version == 2


@pytest.mark.parametrize(
    ("name", "kind", "text", "mode", "error", "reason"),
    [
        ("", "json", "{}", None, InvalidRequest, "0 bytes"),
        ("a:b", "json", "{}", None, InvalidRequest, "':'|\":\""),
        ("s", "xml", "{}", None, SchemaInvalid, "unsupported schema type: xml"),
        ("s", "json", "{", None, SchemaInvalid, "not a JSON document"),
        ("s", "avro", "{}", None, SchemaInvalid, "not an Avro schema"),
        ("s", "protobuf", "x", None, SchemaInvalid, "line 1"),
        ("s", "json", "{}", "sideways", InvalidRequest, "compatibility 'sideways'"),
        ("s", "json", '"' + "x" * (256 << 10) + '"', None, SchemaInvalid, "at most 262144 are allowed"),
        ("s", "json", "{}\ud800", None, SchemaInvalid, "not valid Unicode"),
    ],
)
async def test_what_cannot_be_registered_is_refused_and_leaves_nothing(
    registry: Registry,
    engine: Engine,
    name: str,
    kind: str,
    text: str,
    mode: str | None,
    error: type[PenstockError],
    reason: str,
) -> None:
    with pytest.raises(error, match=reason):
        await registry.register(name, kind, text, mode)
    assert engine.partition("__schemas", 0).committed_end == 0


async def test_there_are_bounds(engine: Engine, clock: ManualClock, worker: Worker) -> None:
    registry = await opened(engine, clock, worker, schemas_max=2, schema_versions_max=2, schemas_bytes_max=60)
    await registry.register("a", "json", '{"title": "one"}', None)
    await registry.register("a", "json", '{"title": "two"}', None)
    with pytest.raises(LimitExceeded, match="schema a has 2 versions"):
        await registry.register("a", "json", '{"title": "three"}', None)
    await registry.register("b", "json", "{}", None)
    with pytest.raises(LimitExceeded, match="there are 2 schemas"):
        await registry.register("c", "json", "{}", None)
    with pytest.raises(LimitExceeded, match="34 bytes and 36 more do not fit"):
        await registry.register("b", "json", '{"title": "a long title, very long"}', None)
    await registry.delete("a", LATEST)
    await registry.register("b", "json", '{"title": "a long title, very long"}', None)


@pytest.mark.parametrize("version", [LATEST, 1, 9])
async def test_deleting_what_is_not_there_says_so(registry: Registry, version: int) -> None:
    with pytest.raises(SchemaNotFound, match="schema not found: s"):
        await registry.delete("s", version)
    await registry.register("s", "json", "{}", None)
    if version == 9:
        with pytest.raises(SchemaNotFound, match="schema not found: s v9"):
            await registry.delete("s", version)


# -- bindings -------------------------------------------------------------------------------------------------------------


async def test_a_schema_that_a_topic_is_bound_to_stays(registry: Registry, engine: Engine) -> None:
    info = await engine.create_topic("t", TopicConfig())
    for text in (OPEN, WITH_A, WITH_A_B):
        await registry.register("s", "json", text, "none")
    await registry.bind("t", info.id, Reference("s", 2))
    await registry.delete("s", 1)
    for version in (2, LATEST):
        with pytest.raises(InvalidRequest, match="topic t is bound to s:2"):
            await registry.delete("s", version)
    await registry.bind("t", info.id, Reference("s"))
    await registry.delete("s", 2)
    with pytest.raises(InvalidRequest, match="topic t is bound to s"):
        await registry.delete("s", 3)
    await registry.bind("t", info.id, None)
    await registry.bind("t", info.id, None)
    await registry.delete("s", 3)
    assert registry.bound == {}


async def test_binding_to_what_is_not_there_is_refused(registry: Registry, engine: Engine) -> None:
    info = await engine.create_topic("t", TopicConfig())
    await registry.register("s", "json", "{}", None)
    for reference in (Reference("nope"), Reference("s", 2)):
        with pytest.raises(SchemaNotFound):
            await registry.bind("t", info.id, reference)
    assert registry.bound == {}


async def test_a_binding_ends_with_its_topic(
    registry: Registry, engine: Engine, clock: ManualClock, worker: Worker
) -> None:
    info = await engine.create_topic("t", TopicConfig())
    await registry.register("s", "json", "{}", None)
    await registry.bind("t", info.id, Reference("s"))
    # A crash comes between the deletion of the topic and that of the binding; then the name is used again.
    await engine.delete_topic("t")
    await engine.create_topic("t", TopicConfig())
    assert (await opened(engine, clock, worker)).bound == {}
    await registry.forget_topic("t")
    assert registry.bound == {}


async def test_a_topic_is_created_bound_or_not_at_all(
    registry: Registry, engine: Engine, clock: ManualClock, worker: Worker
) -> None:
    await registry.register("s", "json", "{}", None)

    async def create() -> TopicInfo:
        return await engine.create_topic("t", TopicConfig())

    async def fail() -> TopicInfo:
        raise LimitExceeded("no room")

    with pytest.raises(LimitExceeded):
        await registry.bind_while("t", Reference("s"), fail)
    assert registry.bound == {}
    with pytest.raises(SchemaNotFound):
        await registry.bind_while("t", Reference("nope"), create)
    assert "t" not in engine.topics()
    await registry.bind_while("t", Reference("s"), create)
    assert registry.bound == {"t": Reference("s")}
    with pytest.raises(TopicExists):
        await registry.bind_while("t", Reference("s", 1), create)
    assert registry.bound == {"t": Reference("s")}


@pytest.mark.parametrize("created", [True, False])
async def test_a_crash_while_a_topic_is_created_leaves_both_or_neither(
    registry: Registry, engine: Engine, clock: ManualClock, worker: Worker, created: bool
) -> None:
    await registry.register("s", "json", "{}", None)
    await registry._table.put(EntryKey("binding", "t", 0), Binding("s", 0, "", ""))
    if created:
        await engine.create_topic("t", TopicConfig())
    again = await opened(engine, clock, worker)
    assert again.bound == ({"t": Reference("s")} if created else {})
    entry = again._table.get(EntryKey("binding", "t", 0))
    assert entry == (Binding("s", 0, "", engine.topics()["t"].id) if created else None)


@pytest.mark.embedded
async def test_everything_is_there_after_a_crash(
    tmp_path: Path, registry: Registry, engine: Engine, clock: ManualClock, worker: Worker
) -> None:
    info = await engine.create_topic("t", TopicConfig())
    await registry.register("orders", "json", WITH_A, "full")
    await registry.register("orders", "json", WITH_A_B, None)
    await registry.register("users", "avro", '"int"', None)
    await registry.register("money", "protobuf", 'syntax = "proto3"; message Money { int64 cents = 1; }', None)
    await registry.delete("users", LATEST)
    await registry.bind("t", info.id, Reference("money", 1, "Money"))
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")

    survivor = make_engine(tmp_path / "crashed", clock=clock)
    await survivor.start()
    again = await opened(survivor, clock, worker)
    assert list(again.versions(None)) == list(registry.versions(None))
    assert again.bound == registry.bound == {"t": Reference("money", 1, "Money")}
    assert again.resolve(Reference("money"))[1].form == registry.resolve(Reference("money"))[1].form
    assert (await again.register("users", "avro", '"long"', None)).version == 2
    await survivor.close()
