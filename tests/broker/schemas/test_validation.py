"""Records against schemas on the write path: in order, on the loop or in a worker, and at no cost to other topics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.records.spreading import Placement, errors_by_row
from penstock.broker.schemas import validation
from penstock.broker.schemas.reference import Reference
from penstock.errors import PenstockError, SchemaNotFound, ShuttingDown, TopicNotFound, ValidationFailed
from penstock.log.api import Batch, Engine, TopicConfig
from tests.broker.producing import appended, by_partition, produce, read_values

ORDER = '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
SOUND, WRONG = b'{"id": 1}', b'{"id": "x"}'
# Twice at each level, forever: the worker has to give up.
ENDLESS = json.dumps(
    {
        "$ref": "#/$defs/l0",
        "$defs": {
            **{f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(60)},
            "l60": {"type": "string"},
        },
    }
)


@pytest.fixture
def always_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "ON_LOOP_COST_MAX", -1)


async def bound(broker: Broker, topic: str = "orders", config: TopicConfig | None = None) -> None:
    await broker.schemas.register(ANONYMOUS, "order", "json", ORDER)
    await broker.topics.create(ANONYMOUS, topic, config or TopicConfig(), "order")


async def values_in(broker: Broker, topic: str) -> list[bytes | None]:
    return await read_values(broker.records.partition(ANONYMOUS, topic, 0))


async def produced(broker: Broker, values: Sequence[bytes | None], **how: Any) -> Placement:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.records.produce(ANONYMOUS, how.pop("topic", "orders"), 0, values, done=future.set_result, **how)
    [placement] = by_partition(await future)
    return placement


async def refused(broker: Broker, values: Sequence[bytes | None], **how: Any) -> dict[int, PenstockError]:
    """Produce records and return the errors of those that were refused, by row."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    broker.records.produce(ANONYMOUS, how.pop("topic", "orders"), 0, values, done=future.set_result, **how)
    return errors_by_row(await future, len(values))


@pytest.fixture(params=["on the loop", "in the worker"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in the worker":
        monkeypatch.setattr(validation, "ON_LOOP_COST_MAX", -1)


@pytest.mark.usefixtures("anywhere")
async def test_a_bound_topic_takes_what_its_schema_says_and_refuses_the_rest(broker: Broker) -> None:
    await bound(broker)
    assert appended(await produced(broker, [SOUND] * 3)).base_offset == 0
    errors = await refused(broker, [SOUND, SOUND, WRONG, SOUND, b"nonsense"])
    assert {row: type(error) for row, error in errors.items()} == dict.fromkeys([2, 4], ValidationFailed)
    assert str(errors[2]) == 'schema validation failed: at /id: "x" is not of type "integer" (order-v1)'
    assert str(errors[4]).startswith("schema validation failed: not a JSON document")
    assert await values_in(broker, "orders") == [SOUND] * 6
    assert broker._validation.stats.refused_writes == 2


@pytest.mark.usefixtures("anywhere")
async def test_a_record_that_is_wrong_refuses_its_request_and_says_which_of_its_records_it_is(broker: Broker) -> None:
    await bound(broker)
    errors = await refused(broker, [SOUND, SOUND, SOUND, WRONG, WRONG, SOUND], units=[2, 3, 1])
    assert list(errors) == [2, 3, 4]
    assert str(errors[2]) == 'schema validation failed: record 1: at /id: "x" is not of type "integer" (order-v1)'
    assert len(set(errors.values())) == 1
    assert await values_in(broker, "orders") == [SOUND] * 3


@pytest.mark.usefixtures("always_in_the_worker")
async def test_a_record_that_ends_the_worker_takes_no_other_with_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "RECORDS_S_MAX", 0.5)
    endless = json.loads(ENDLESS)
    schema = json.dumps({"if": {"type": "integer"}, "then": {"$ref": endless["$ref"]}, "$defs": endless["$defs"]})
    await broker.schemas.register(ANONYMOUS, "some", "json", schema)
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(), "some")
    errors = await refused(broker, [b'"a"', b'"b"', b"1", b'"c"', b'"d"'], units=[2, 2, 1])
    assert list(errors) == [2, 3]
    assert "record 0: checking takes more than 0.5 s of processor time" in str(errors[2])
    assert await values_in(broker, "orders") == [b'"a"', b'"b"', b'"d"']


@pytest.mark.dense
async def test_large_runs_go_to_the_worker_and_runs_after_them_keep_their_order(broker: Broker) -> None:
    await bound(broker)
    large = [b'{"id": %d}' % n for n in range(40_000)]
    futures = [asyncio.ensure_future(produced(broker, values)) for values in ([SOUND], large, [SOUND], large[:5])]
    placements = await asyncio.gather(*futures)
    assert [appended(placement).base_offset for placement in placements] == [0, 1, 40_001, 40_002]
    assert broker._validation.stats.worker_runs == 1
    assert await values_in(broker, "orders") == [SOUND, *large, SOUND, *large[:5]]


@pytest.mark.usefixtures("always_in_the_worker")
async def test_what_goes_wrong_after_the_check_is_answered_too(broker: Broker, engine: Engine) -> None:
    await bound(broker)
    waiting = asyncio.ensure_future(produced(broker, [SOUND]))
    await asyncio.sleep(0)
    await engine.delete_topic("orders")
    assert isinstance((await waiting).result, TopicNotFound)


@pytest.mark.usefixtures("always_in_the_worker")
async def test_a_bug_behind_the_check_does_not_stop_the_runs_after_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bound(broker)
    write = broker._producer.produce

    def broken(*given: Any) -> bool:
        if given[2].values == [b'{"id": 0}']:
            raise ZeroDivisionError
        return write(*given)

    monkeypatch.setattr(broker._producer, "produce", broken)
    first = asyncio.ensure_future(produced(broker, [b'{"id": 0}']))
    second = asyncio.ensure_future(produced(broker, [SOUND]))
    failed = (await first).result
    assert isinstance(failed, PenstockError)
    assert "ZeroDivisionError" in failed.message
    assert appended(await second).base_offset == 0


async def test_a_schema_that_could_take_forever_is_given_up_on_and_nobody_else_waits(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "RECORDS_S_MAX", 0.5)
    await bound(broker)
    await broker.schemas.register(ANONYMOUS, "endless", "json", ENDLESS)
    await broker.topics.create(ANONYMOUS, "slow", TopicConfig(), "endless")
    waiting = asyncio.ensure_future(produced(broker, [b"1"], topic="slow"))
    await asyncio.sleep(0)
    for _ in range(10):
        appended(await produced(broker, [SOUND]))
    assert not waiting.done()
    failed = (await waiting).result
    assert isinstance(failed, ValidationFailed)
    assert "checking takes more than 0.5 s of processor time" in failed.message


async def test_a_schema_given_with_the_records_counts_beside_the_topic_s_own(broker: Broker) -> None:
    await bound(broker)
    await broker.schemas.register(ANONYMOUS, "named", "json", '{"required": ["name"]}')
    errors = await refused(broker, [SOUND, b'{"name": 1}', b"{}"], schema="named")
    assert '"name" is a required property (named-v1)' in str(errors[0])
    assert "(order-v1)" in str(errors[1])
    assert "(order-v1)" in str(errors[2])
    appended(await produced(broker, [b'{"id": 1, "name": 1}'], schema="named:1"))
    await broker.topics.ensure(ANONYMOUS, "free")
    appended(await produced(broker, [b'{"name": 1}'], topic="free", schema="named"))
    with pytest.raises(SchemaNotFound, match="nope"):
        await produced(broker, [SOUND], topic="free", schema="nope")


async def test_tombstones_are_not_checked(broker: Broker) -> None:
    await bound(broker, config=TopicConfig(cleanup="compact"))
    keys: list[bytes | None] = [b"a", b"b", b"c"]
    [placement] = await produce(broker, "orders", [None, SOUND, None], keys)
    assert appended(placement).base_offset == 0
    [placement] = await produce(broker, "orders", [None, None, None], keys)
    errors = await refused(broker, [None, None, WRONG], keys=keys)
    assert list(errors) == [2]
    errors = await refused(broker, [None, SOUND, WRONG], keys=keys, units=[1, 2])
    assert {row: str(error)[:35] for row, error in errors.items()} == dict.fromkeys(
        [1, 2], "schema validation failed: record 1:"
    )


async def test_the_latest_version_counts_unless_the_binding_names_one(broker: Broker) -> None:
    await bound(broker)
    await broker.topics.create(ANONYMOUS, "pinned", TopicConfig(), "order:1")
    looser = '{"type": "object"}'
    await broker.schemas.register(ANONYMOUS, "order", "json", looser)
    appended(await produced(broker, [b"{}"]))
    assert "order-v1" in str((await refused(broker, [b"{}"], topic="pinned"))[0])
    await broker.schemas.bind(ANONYMOUS, "pinned", None)
    appended(await produced(broker, [b"anything"], topic="pinned"))


@pytest.mark.parametrize(
    ("kind", "definition", "reference", "sound", "wrong"),
    [
        ("avro", '{"type": "array", "items": "int"}', "s", b"\x02\x02\x00", b"\x02"),
        ("protobuf", 'syntax = "proto3"; message A { int32 x = 1; } message B { string y = 2; }', "s:B", b"\x12\x01y", b"\x08\x01"),
    ],
)  # fmt: skip
async def test_every_kind_of_schema_guards_a_topic(
    broker: Broker, kind: str, definition: str, reference: str, sound: bytes, wrong: bytes
) -> None:
    await broker.schemas.register(ANONYMOUS, "s", kind, definition)
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(), reference)
    appended(await produced(broker, [sound] * 10))
    errors = await refused(broker, [sound, wrong])
    assert list(errors) == [1]
    assert "(s-v1)" in str(errors[1])


async def test_a_topic_without_a_schema_is_not_checked(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await bound(broker)
    await broker.topics.ensure(ANONYMOUS, "free")
    monkeypatch.setattr(broker._validation, "admit", None)
    appended(await produced(broker, [b"anything"], topic="free"))


async def test_checkers_are_kept_up_to_a_bound(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "CHECKERS_BYTES_MAX", 100)
    for n in range(10):
        await broker.schemas.register(ANONYMOUS, f"s{n}", "json", '{"title": "forty characters, more or less"}')
        for _ in range(2):
            assert await broker.schemas.validate(ANONYMOUS, f"s{n}", b"1") == []
    assert list(broker._validation._checkers) == [("s8", 1, ""), ("s9", 1, "")]


async def test_runs_under_way_are_finished_when_the_broker_closes(broker: Broker, engine: Engine) -> None:
    await bound(broker)
    waiting = asyncio.ensure_future(produced(broker, [b'{"id": %d}' % n for n in range(40_000)]))
    await asyncio.sleep(0)
    await broker.close()
    assert appended(await waiting).base_offset == 0
    with pytest.raises(ShuttingDown):
        await broker.schemas.register(ANONYMOUS, "late", "json", "{}")


async def test_a_stop_refuses_the_runs_behind_the_one_that_is_being_checked(broker: Broker, engine: Engine) -> None:
    await bound(broker)
    values = [b'{"id": %d}' % n for n in range(40_000)]
    waiting = [asyncio.ensure_future(produced(broker, values)) for _ in range(5)]
    await asyncio.sleep(0)
    await broker.close()
    first, *others = [await each for each in waiting]
    assert appended(first).base_offset == 0
    assert [type(each.result) for each in others] == [ShuttingDown] * 4


async def test_waiting_for_a_check_is_for_those_who_can(broker: Broker) -> None:
    await bound(broker)
    await broker._validation.check("orders", None, Batch([SOUND]))
    with pytest.raises(ValidationFailed):
        await broker._validation.check("orders", None, Batch([WRONG]))
    with pytest.raises(ValidationFailed):
        await broker._validation.check("free", Reference("order"), Batch([SOUND] * 40_000 + [WRONG]))


@pytest.mark.usefixtures("always_in_the_worker")
async def test_a_refusal_whose_callback_fails_does_not_stop_the_runs_after_it(broker: Broker) -> None:
    await bound(broker)

    def failing(error: PenstockError) -> None:
        raise RuntimeError("a bug of the caller")

    broker._validation.admit("orders", None, Batch([WRONG]), lambda _: None, failing)
    assert appended(await produced(broker, [SOUND])).base_offset == 0
    assert appended(await produced(broker, [SOUND])).base_offset == 1
    assert broker.background.failures["schema_validation"] == 1
    assert broker.background.failing == {}
