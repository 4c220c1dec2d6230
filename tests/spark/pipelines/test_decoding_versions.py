"""Records of many versions, in every format and with every mark: each is read by the version that wrote it, and none by guesswork."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa
import pytest

from penstock.broker.schemas.marks import SCHEMA_HEADER, confluent_frame, single_object_frame
from penstock.broker.schemas.reference import SchemaType
from penstock.spark.pipelines.decoding import Decoder, Plan, Unmarked, Version, header_marks, version
from tests.spark.pipelines.ten_versions import (
    FORMATS,
    NUMBERS,
    VERSIONS,
    avro_bytes,
    avro_schema,
    crc64,
    fields_of,
    proto_encode,
    row_of,
)

FIRST_ID: Final = 100_001


def versions_of(kind: SchemaType) -> dict[int, Version]:
    return {number: version(kind, number, FORMATS[kind][0](number), FIRST_ID + number) for number in NUMBERS}


def plan_of(kind: SchemaType, reader: int, unmarked: Unmarked = "reject") -> Plan:
    versions = versions_of(kind)
    read = versions.pop(reader)
    return Plan("orders", kind, "Order" if kind == "protobuf" else "", read, tuple(versions.values()), unmarked)


def decoded_rows(
    decoder: Decoder, values: list[bytes | None], marks: list[bytes | None] | None = None
) -> tuple[list[dict[str, Any]], list[str | None]]:
    decoded = decoder.decode(values, marks)
    return pa.record_batch(decoded.columns, schema=decoder.schema).to_pylist(), decoded.reasons


@pytest.mark.parametrize("reader", [1, 6, VERSIONS])
@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
def test_records_of_ten_versions_with_every_mark_are_read_right_and_unmarked_ones_are_rejected(
    kind: SchemaType, reader: int
) -> None:
    encode = FORMATS[kind][1]
    values: list[bytes | None] = []
    marks: list[bytes | None] = []
    expected: list[dict[str, Any] | None] = []
    absent = -1 if kind == "avro" else None
    for record in range(60):
        number = record * 7 % VERSIONS + 1
        value = encode(number, record)
        row = row_of(number, record)
        way = record % 4
        mark = None
        if way == 0:
            message = ":Order" if kind == "protobuf" else ""
            mark = f"orders:{number}{message}".encode()
        elif way == 1:
            value = confluent_frame(FIRST_ID + number, (1,) if kind == "protobuf" else None) + value
        elif way == 2 and kind == "avro":
            value = single_object_frame(crc64(avro_schema(number))) + value
        elif way == 3:
            values.append(None)
            marks.append(None)
            expected.append(dict.fromkeys(fields_of(reader)))
            continue
        unmarked = way == 2 and kind != "avro"
        values.append(value)
        marks.append(mark)
        expected.append(None if unmarked else {name: row.get(name, absent) for name in fields_of(reader)})
    for record in range(60, 66):
        values.append(encode(record % VERSIONS + 1, record))
        marks.append(None)
        expected.append(None)
    found, reasons = decoded_rows(Decoder(plan_of(kind, reader)), values, marks)
    for row, reason, wanted in zip(found, reasons, expected, strict=True):
        if wanted is None:
            assert reason is not None
            assert "nothing says which version of schema orders wrote it" in reason
            assert set(row.values()) == {None}
        else:
            assert (reason, row) == (None, wanted)


# --- what used to be guessed ---

SWAPPED: Final = [
    {"type": "record", "name": "Order", "fields": [{"name": name, "type": "int", "default": 0} for name in names]}
    for names in (("id", "quantity", "discount"), ("id", "discount", "quantity"))
]


def swapped_plan(unmarked: Unmarked | int = "auto") -> Plan:
    first, second = (
        version("avro", number, json.dumps(schema), FIRST_ID + number) for number, schema in enumerate(SWAPPED, 1)
    )
    return Plan("orders", "avro", "", second, (first,), unmarked)


def test_a_record_of_an_older_version_is_not_read_by_the_newest_because_its_bytes_fit() -> None:
    record = {"id": 7, "quantity": 100, "discount": 5}
    old = avro_bytes(SWAPPED[0], record)
    [unmarked, marked], reasons = decoded_rows(Decoder(swapped_plan()), [old, old], [None, b"orders:1"])
    assert (marked, reasons[1]) == (record, None)
    assert set(unmarked.values()) == {None}
    assert reasons[0] == (
        f"nothing says which version of schema orders wrote it: mark records (header {SCHEMA_HEADER}, --schema orders:2, "
        "Confluent framing, Avro's single-object encoding) or bind their topic to a version; to read this one, name the version "
        'that wrote it, as in unmarked = "orders:1" (orders-v2)'
    )
    assert decoded_rows(Decoder(swapped_plan(1)), [old, old], [None, b"orders:1"]) == ([record] * 2, [None] * 2)
    _, [reason] = decoded_rows(Decoder(swapped_plan()), [old])
    assert "load records with includeHeaders" in (reason or "")


def test_a_field_that_took_the_place_of_another_is_not_filled_with_its_value() -> None:
    before = {
        "type": "record",
        "name": "P",
        "fields": [{"name": "id", "type": "long"}, {"name": "cents", "type": "long"}],
    }
    after = {
        "type": "record",
        "name": "P",
        "fields": [{"name": "id", "type": "long"}, {"name": "customer", "type": "long", "default": 0}],
    }
    plan = Plan(
        "pay", "avro", "", version("avro", 2, json.dumps(after)), (version("avro", 1, json.dumps(before)),), "auto"
    )
    old = avro_bytes(before, {"id": 7, "cents": 1999})
    [row], [reason] = decoded_rows(Decoder(plan), [old], [b"pay:1"])
    assert (row, reason) == ({"id": 7, "customer": 0}, None)
    [row], [reason] = decoded_rows(Decoder(plan), [single_object_frame(crc64(before)) + old])
    assert (row, reason) == ({"id": 7, "customer": 0}, None)


def test_the_only_version_there_ever_was_reads_unmarked_avro_and_a_named_one_too() -> None:
    record = {"id": 7, "quantity": 100, "discount": 5}
    old = avro_bytes(SWAPPED[0], record)
    only = Plan("orders", "avro", "", version("avro", 1, json.dumps(SWAPPED[0])))
    assert decoded_rows(Decoder(only), [old]) == ([record], [None])
    last = Plan("orders", "avro", "", version("avro", 2, json.dumps(SWAPPED[1])))
    assert decoded_rows(Decoder(last), [old])[1] != [None], "version 1 was deleted, and may have written it"
    [row], [reason] = decoded_rows(Decoder(swapped_plan("read")), [avro_bytes(SWAPPED[1], record)])
    assert (row, reason) == (record, None)


# --- marks that say nothing, or nonsense ---


@pytest.mark.parametrize(
    ("mark", "reason"),
    [
        (b"other:1", "it was written by other:1, and not by a version of schema orders"),
        (b"orders:99", "it was written by orders:99, which is not known here"),
        (b"orders", "the header penstock-schema is 'orders': it names a version as in orders:2"),
        (b"orders:0", "it names a version as in orders:2"),
        (b"\xff\xfe", "it names a version as in orders:2"),
        (b"", "it names a version as in orders:2"),
        (b"orders:1, orders:2", "it names a version as in orders:2"),
    ],
)
def test_a_header_that_names_no_version_of_the_schema_is_a_reason(mark: bytes, reason: str) -> None:
    for unmarked in ("read", "reject"):
        value = avro_bytes(SWAPPED[1], {"id": 1, "quantity": 2, "discount": 3})
        _, [said] = decoded_rows(Decoder(swapped_plan(unmarked)), [value], [mark])
        assert said is not None
        assert reason in said


@pytest.mark.parametrize("kind", ["json", "protobuf"])
def test_a_frame_with_the_id_of_another_schema_is_a_reason_where_no_bare_value_begins_so(kind: SchemaType) -> None:
    values: list[bytes | None] = [confluent_frame(7) + b"\0{}", b"\0\0"]
    _, reasons = decoded_rows(Decoder(plan_of(kind, VERSIONS, "read")), values)
    assert "registry id 7 is of no version of schema orders" in (reasons[0] or "")
    assert "is truncated" in (reasons[1] or "")


def test_bare_avro_that_begins_like_a_frame_is_bare() -> None:
    fields = [{"name": name, "type": "long"} for name in "abcde"]
    schema = {"type": "record", "name": "R", "fields": fields}
    decoder = Decoder(Plan("r", "avro", "", version("avro", 1, json.dumps(schema), FIRST_ID)))
    zeros = {"a": 0, "b": 0, "c": 0, "d": 0, "e": 1}
    begins_with_c301 = {"a": -98, "b": 1, "c": 1, "d": 1, "e": 1}
    values: list[bytes | None] = [avro_bytes(schema, zeros), avro_bytes(schema, begins_with_c301)]
    assert values[0] is not None
    assert values[1] is not None
    assert (values[0][:1], values[1][:2]) == (b"\0", b"\xc3\x01")
    assert decoded_rows(decoder, values) == ([zeros, begins_with_c301], [None, None])


def test_a_header_decides_before_the_first_bytes_of_a_value_do() -> None:
    fields = [{"name": name, "type": "long"} for name in "abcde"]
    schema = {"type": "record", "name": "R", "fields": fields}
    frame = confluent_frame(FIRST_ID)
    value = frame + b"\x01\x02"
    row = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(schema), None)
    plan = Plan("r", "avro", "", version("avro", 1, json.dumps(schema), FIRST_ID))
    found, reasons = decoded_rows(Decoder(plan), [value, value], [b"r:1", None])
    assert (found[0], reasons[0]) == (row, None)
    assert reasons[1] is not None, "taken for a frame, which the id says it is"
    assert decoded_rows(Decoder(plan._replace(framing="none")), [value]) == ([row], [None])


def test_another_message_of_the_definition_is_a_reason() -> None:
    plan = plan_of("protobuf", VERSIONS)
    other = confluent_frame(FIRST_ID + VERSIONS, (0,)) + b"\x0a\x01x"
    values: list[bytes | None] = [other, b"\x0a\x01x", proto_encode(VERSIONS, 1)]
    marks: list[bytes | None] = [None, b"orders:10", b"orders:10:Missing"]
    _, reasons = decoded_rows(Decoder(plan), values, marks)
    assert all("it is another message of version 10, and not Order" in (reason or "") for reason in reasons[:2])
    assert "the definition has no message 'Missing'" in (reasons[2] or "")


def test_versions_that_cannot_be_read_as_the_one_of_the_columns_are_reasons() -> None:
    first = version("protobuf", 1, 'syntax = "proto3"; message O { string id = 1; }')
    second = version("protobuf", 2, 'syntax = "proto3"; message O { int64 id = 1; }')
    _, [reason] = decoded_rows(Decoder(Plan("o", "protobuf", "", second, (first,))), [b"\x0a\x01x"], [b"o:1"])
    assert "version 1 cannot be read as version 2" in (reason or "")
    texts = [json.dumps({"properties": {"id": {"type": name}}}) for name in ("string", "integer")]
    old, new = (version("json", number, text) for number, text in enumerate(texts, 1))
    found, reasons = decoded_rows(
        Decoder(Plan("o", "json", "", new, (old,))), [b'{"id": "x"}', b'{"id": 1}'], [b"o:1", None]
    )
    assert found[1] == {"id": 1}
    assert reasons[0] is not None


# --- what logical types become ---


def test_a_number_that_a_later_version_calls_a_time_is_read_as_one_and_the_other_way_round() -> None:
    def schema(moment: Any, day: Any, amount: Any) -> Any:
        fields = [("moment", moment), ("day", day), ("amount", ["null", amount])]
        return {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields]}

    plain = schema("long", "int", "bytes")
    logical = schema(
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "int", "logicalType": "date"},
        {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
    )
    wider = schema(
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "int", "logicalType": "date"},
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4},
    )
    first, second, third = (
        version("avro", number, json.dumps(each)) for number, each in enumerate((plain, logical, wider), 1)
    )
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    numbers = {"moment": int(moment.timestamp() * 1000), "day": 1, "amount": (1234).to_bytes(2, "big")}
    times = {"moment": moment, "day": date(1970, 1, 2), "amount": Decimal("12.34")}
    of_first, of_second = avro_bytes(plain, numbers), avro_bytes(logical, times)

    as_second = Decoder(Plan("r", "avro", "", second, (first, third)))
    assert decoded_rows(as_second, [of_first, of_second], [b"r:1", b"r:2"]) == ([times, times], [None, None])
    as_first = Decoder(Plan("r", "avro", "", first, (second, third)))
    assert decoded_rows(as_first, [of_first, of_second], [b"r:1", b"r:2"]) == ([numbers, numbers], [None, None])
    as_third = Decoder(Plan("r", "avro", "", third, (first, second)))
    [row], [reason] = decoded_rows(as_third, [of_second], [b"r:2"])
    assert (row, reason) == (times, None), "a scale and a unit are those it was written with"


def test_two_versions_that_write_alike_have_one_fingerprint_and_either_reads() -> None:
    first = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    second = {**first, "doc": "the same"}
    assert crc64(first) == crc64(second)
    value = single_object_frame(crc64(first)) + avro_bytes(first, {"id": 5})
    one, two = (version("avro", number, json.dumps(each)) for number, each in enumerate((first, second), 1))
    for plan in (Plan("r", "avro", "", one, (two,)), Plan("r", "avro", "", two, (one,))):
        assert decoded_rows(Decoder(plan), [value]) == ([{"id": 5}], [None])


def test_a_json_number_becomes_a_decimal_where_the_schema_says_so() -> None:
    schema = {
        "type": "object",
        "properties": {
            "amount": {"type": "number", "x-decimal": {"precision": 20, "scale": 2}},
            "text": {"type": "string", "x-decimal": {"precision": 5, "scale": 1}},
            "ratio": {"type": "number"},
            "extra": {},
        },
    }
    decoder = Decoder(Plan("o", "json", "", version("json", 1, json.dumps(schema))))
    values: list[bytes | None] = [
        b'{"amount": 123456789012345678.90, "text": "1.5", "ratio": 0.1, "extra": {"x": 1.10}}',
        b'{"amount": 5}',
        b'{"amount": 1.999}',
        b'{"text": "much"}',
    ]
    found, reasons = decoded_rows(decoder, values)
    assert found[0] == {
        "amount": Decimal("123456789012345678.90"),
        "text": Decimal("1.5"),
        "ratio": 0.1,
        "extra": '{"x":1.10}',
    }
    assert (found[1]["amount"], reasons[:2]) == (Decimal(5), [None, None])
    assert "data loss" in (reasons[2] or "")
    assert "much is not a decimal number" in (reasons[3] or "")


# --- headers as columns ---


def test_marks_are_found_among_headers_and_two_that_differ_name_no_version() -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])

    def column(*records: Sequence[tuple[str, bytes | None]] | None) -> Any:
        return pa.array(
            [None if each is None else [{"key": key, "value": value} for key, value in each] for each in records],
            pa.list_(header),
        )

    assert header_marks(column(None, [], [("a", b"b")])) is None
    twice = [(SCHEMA_HEADER, b"o:1"), ("a", b""), (SCHEMA_HEADER, b"o:2")]
    same = [(SCHEMA_HEADER, b"o:1"), (SCHEMA_HEADER, b"o:1")]
    marks = header_marks(column([("a", b"b")], [(SCHEMA_HEADER, b"o:1")], None, twice, same, [(SCHEMA_HEADER, None)]))
    assert marks == [None, b"o:1", None, b"o:1, o:2", b"o:1", b""]
