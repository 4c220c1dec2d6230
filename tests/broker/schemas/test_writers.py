"""Records of a bound topic are checked against the version that wrote them, and say it afterwards."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any, Final

import fastavro
import pytest

from penstock.broker.access.checks import ANONYMOUS
from penstock.broker.broker import Broker
from penstock.broker.records.spreading import errors_by_row
from penstock.broker.schemas import validation
from penstock.broker.schemas.marks import SCHEMA_HEADER, confluent_frame, single_object_frame
from penstock.log.api import Partition, TopicConfig
from penstock.record_headers import HEADERS_PER_RECORD_MAX, decode_headers, encode_headers

SWAPPED: Final = [
    {"type": "record", "name": "Order", "fields": [{"name": name, "type": "int", "default": 0} for name in names]}
    for names in (("id", "quantity", "discount", "note"), ("id", "discount"), ("id",))
]
PROTO: Final = 'syntax = "proto3"; message A { message Inner { int32 x = 1; } } message B { int32 y = 1; }'


@pytest.fixture(params=["on the loop", "in the worker"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "in the worker":
        monkeypatch.setattr(validation, "ON_LOOP_COST_MAX", -1)


def avro_bytes(number: int, **record: int) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(SWAPPED[number - 1]), record)
    return buffer.getvalue()


def crc64(number: int) -> bytes:
    canonical = fastavro.schema.to_parsing_canonical_form(fastavro.parse_schema(SWAPPED[number - 1]))
    return bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))


async def bound(broker: Broker, kind: str, definitions: list[str], reference: str = "order") -> list[int]:
    """A topic `orders` that is bound to a schema; the registry ids of its versions."""
    made = [await broker.schemas.register(ANONYMOUS, "order", kind, each, "none") for each in definitions]
    await broker.topics.create(ANONYMOUS, "orders", TopicConfig(), reference)
    return [each.registry_id for each in made]


async def produced(broker: Broker, values: list[bytes | None], marks: list[Any] | None = None, **how: Any) -> list[str]:
    """Why each record was refused, empty for those that were not."""
    headers = None if marks is None else [None if each is None else encode_headers(each) for each in marks]
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    topic = how.pop("topic", "orders")
    broker.records.produce(ANONYMOUS, topic, 0, values, headers=headers, done=future.set_result, **how)
    errors = errors_by_row(await future, len(values))
    return [str(errors.get(row, "")) for row in range(len(values))]


async def stored(broker: Broker, topic: str = "orders") -> list[tuple[bytes | None, list[tuple[str, bytes | None]]]]:
    partition: Partition = broker.records.partition(ANONYMOUS, topic, 0)
    records = []
    offset = 0
    await partition.follow()
    while offset < partition.committed_end:
        for block in await partition.read(offset):
            headers = block.headers() or [None] * block.count
            records += [
                (value, decode_headers(cell or b"")) for value, cell in zip(block.values(), headers, strict=True)
            ]
            offset = block.next_offset
    return records


def marked(mark: bytes | None) -> list[tuple[str, bytes | None]]:
    return [(SCHEMA_HEADER, mark)]


async def test_unmarked_records_are_stamped_with_what_the_binding_means_and_tombstones_are_not(broker: Broker) -> None:
    await bound(broker, "json", ['{"type": "object"}'])
    assert await produced(broker, [b"{}", None], [[("a", b"b")], None]) == ["", ""]
    await broker.schemas.register(ANONYMOUS, "order", "json", "{}")
    assert await produced(broker, [b"1", None]) == ["", ""]
    assert await stored(broker) == [
        (b"{}", [("a", b"b"), *marked(b"order:1")]),
        (None, []),
        (b"1", marked(b"order:2")),
        (None, []),
    ]


@pytest.mark.usefixtures("anywhere")
async def test_a_record_that_says_which_version_wrote_it_is_checked_against_that(broker: Broker) -> None:
    ids = await bound(broker, "avro", [json.dumps(each) for each in SWAPPED])
    first, second = avro_bytes(1, id=1, quantity=2, discount=3, note=4), avro_bytes(2, id=1, discount=2)
    values: list[bytes | None] = [
        first,
        confluent_frame(ids[0]) + first,
        single_object_frame(crc64(2)) + second,
        second,
        first,
        confluent_frame(ids[0]) + second,
        single_object_frame(crc64(3)) + first,
        avro_bytes(3, id=5),
    ]
    marks = [marked(b"order:1"), None, None, marked(b"order:2"), marked(b"order:2"), None, None, None]
    refusals = await produced(broker, values, marks)
    assert [bool(refusal) for refusal in refusals] == [False] * 4 + [True] * 3 + [False]
    assert "2 bytes follow the end of the record (order-v2)" in refusals[4]
    assert "the record ends in the middle of a value (order-v1)" in refusals[5]
    assert "3 bytes follow the end of the record (order-v3)" in refusals[6]
    kept = [values[row] for row in (0, 1, 2, 3, 7)]
    says = [b"order:1", None, None, b"order:2", None]
    assert await stored(broker) == [
        (value, [] if mark is None else marked(mark)) for value, mark in zip(kept, says, strict=True)
    ]


# The bytes of an order of version 1 in SWAPPED fit no other; those of these two fit both.
REORDERED: Final = [
    json.dumps({"type": "record", "name": "R", "fields": [{"name": n, "type": "int", "default": 0} for n in names]})
    for names in (("id", "quantity", "discount"), ("id", "discount", "quantity"))
]


async def test_bare_avro_is_stamped_until_a_second_version_may_have_written_it(broker: Broker) -> None:
    await bound(broker, "avro", REORDERED[:1])
    old = b"\x02\x04\x06"
    assert await produced(broker, [old]) == [""]
    await broker.schemas.register(ANONYMOUS, "order", "avro", REORDERED[1])
    copied = [("a", b"b"), *marked(b"other:7")]
    full = [(str(number), b"") for number in range(HEADERS_PER_RECORD_MAX)]
    assert await produced(broker, [old, None]) == ["", ""]
    assert await produced(broker, [old, old, old, old], [[("a", b"b")], copied, marked(b"order:1"), full]) == [""] * 4
    [refusal] = await produced(broker, [old[:2]])
    assert "the record ends in the middle of a value (order-v2)" in refusal
    assert [headers for _, headers in await stored(broker)] == [
        marked(b"order:1"),
        [],
        [],
        [("a", b"b")],
        [("a", b"b")],
        marked(b"order:1"),
        full,
    ]
    shown = await broker.schemas.decode(ANONYMOUS, "orders", [old, old], [None, encode_headers(marked(b"order:1"))])
    assert (shown[0].json, shown[0].schema) == (None, "order")
    assert "nothing says which version of schema order wrote it" in (shown[0].fault or "")
    assert json.loads(shown[1].json or b"") == {"id": 1, "quantity": 2, "discount": 3}


async def test_bare_avro_is_stamped_by_the_version_that_the_topic_or_the_writer_names(broker: Broker) -> None:
    await bound(broker, "avro", REORDERED, "order:1")
    await broker.topics.create(ANONYMOUS, "any", TopicConfig(), "order")
    await broker.topics.create(ANONYMOUS, "free", TopicConfig())
    await broker.schemas.delete(ANONYMOUS, "order", 2)
    record = b"\x02\x04\x06"
    for topic, schema in [("orders", None), ("orders", "order"), ("any", None), ("any", "order:1"), ("free", "order")]:
        assert await produced(broker, [record], topic=topic, schema=schema) == [""]
    assert [headers for _, headers in await stored(broker)] == [marked(b"order:1")] * 2
    assert [headers for _, headers in await stored(broker, "any")] == [[], marked(b"order:1")]
    assert await stored(broker, "free") == [(record, [])], "the deleted version may have written it"


async def test_a_writer_that_names_a_version_is_checked_against_that_alone(broker: Broker) -> None:
    await bound(broker, "avro", [json.dumps(each) for each in SWAPPED])
    first = avro_bytes(1, id=1, quantity=2, discount=3, note=4)
    assert "(order-v3)" in (await produced(broker, [first]))[0]
    assert await produced(broker, [first], schema="order:1") == [""]
    assert "(order-v2)" in (await produced(broker, [first], schema="order:2"))[0]
    [refusal] = await produced(broker, [first], [marked(b"order:1")], schema="order:2")
    assert "it was written by version 1, but order:2 is required" in refusal
    assert await stored(broker) == [(first, marked(b"order:1"))]


async def test_a_topic_that_is_bound_to_a_version_takes_no_other(broker: Broker) -> None:
    ids = await bound(broker, "json", ["{}", '{"type": "object"}'], "order:1")
    values: list[bytes | None] = [b"1", b"{}", confluent_frame(ids[1]) + b"{}", confluent_frame(ids[0]) + b"{}"]
    refusals = await produced(broker, values, [marked(b"order:1"), marked(b"order:2"), None, None])
    assert [bool(refusal) for refusal in refusals] == [False, True, True, False]
    assert "it was written by version 2, but order:1 is required" in refusals[1]
    assert await stored(broker) == [(b"1", marked(b"order:1")), (values[3], [])]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (marked(b"order"), "the header penstock-schema is 'order': it names a version as in orders:2"),
        (marked(b"order:9"), "the header penstock-schema is order:9, which does not exist"),
        (marked(b"\xff"), "it names a version as in orders:2"),
        (marked(None), "contradict each other, or one has no value"),
        (marked(b"order:1") + marked(b"other:1"), "contradict each other"),
        ([(str(number), b"") for number in range(HEADERS_PER_RECORD_MAX)], "send one less"),
    ],
)
async def test_a_header_that_names_no_version_is_refused_with_its_record_only(
    broker: Broker, header: Any, reason: str
) -> None:
    await bound(broker, "json", ["{}"])
    refusals = await produced(broker, [b"1", b"2"], [header, None])
    assert reason in refusals[0]
    assert await stored(broker) == [(b"2", marked(b"order:1"))]


async def test_a_header_that_was_copied_from_a_record_of_another_schema_is_replaced(broker: Broker) -> None:
    [registry_id] = await bound(broker, "json", ["{}"])
    framed = confluent_frame(registry_id) + b"2"
    copied = [*marked(b"other:7"), ("a", b"b")]
    assert await produced(broker, [b"1", framed], [copied, copied]) == ["", ""]
    assert await stored(broker) == [(b"1", [("a", b"b"), *marked(b"order:1")]), (framed, [("a", b"b")])]


async def test_frames_with_ids_of_other_schemas_are_refused_where_no_bare_value_begins_so(broker: Broker) -> None:
    await bound(broker, "json", ["{}"])
    [refusal] = await produced(broker, [confluent_frame(5) + b"{}"])
    assert "registry id 5 is of no version of schema order" in refusal


async def test_the_path_of_a_protobuf_message_must_be_that_of_the_binding(broker: Broker) -> None:
    [registry_id] = await bound(broker, "protobuf", [PROTO], "order:B")
    frame = confluent_frame(registry_id, (1,))
    values: list[bytes | None] = [
        frame + b"\x08\x01",
        confluent_frame(registry_id, (0,)) + b"",
        confluent_frame(registry_id, (0, 0)) + b"\x08\x01",
        frame[:-1],
        b"\x08\x01",
        b"\x08\x01",
        b"\x08\x01",
    ]
    marks = [None, None, None, None, None, marked(b"order:1:B"), marked(b"order:1")]
    refusals = await produced(broker, values, marks)
    assert [bool(refusal) for refusal in refusals] == [False, True, True, True, False, False, True]
    assert "its frame names another message of version 1 than order:B" in refusals[1]
    assert "the path of the message is cut short" in refusals[3]
    assert [headers for _, headers in await stored(broker)] == [[], marked(b"order:1:B"), marked(b"order:1:B")]


async def test_a_schema_that_a_record_is_sent_with_stamps_it(broker: Broker) -> None:
    await bound(broker, "json", ["{}", '{"type": "object"}'])
    await broker.topics.create(ANONYMOUS, "free", TopicConfig())
    await broker.schemas.register(ANONYMOUS, "other", "json", "{}")
    assert await produced(broker, [b"{}"], topic="free", schema="other") == [""]
    assert await produced(broker, [b"{}"], schema="order:1") == [""]
    assert await produced(broker, [b"{}"], schema="other") == [""]
    assert await stored(broker, "free") == [(b"{}", marked(b"other:1"))]
    assert [headers for _, headers in await stored(broker)] == [marked(b"order:1"), marked(b"order:2")]


@pytest.mark.usefixtures("anywhere")
async def test_one_record_is_validated_as_it_would_be_stored(broker: Broker) -> None:
    [first, second] = await bound(broker, "json", ["{}", '{"type": "object"}'])

    async def faults(value: bytes, version: int = 0) -> list[str]:
        return await broker.schemas.validate(ANONYMOUS, "order", value, version)

    assert await faults(confluent_frame(first) + b"1") == []
    assert await faults(confluent_frame(second) + b"1") == ['1 is not of type "object"']
    assert await faults(confluent_frame(first) + b"1", 2) == ["it was written by version 1, but order:2 is required"]
