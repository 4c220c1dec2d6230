"""Filters with conditions: which records satisfy them, and what is said of those that cannot be read."""

from __future__ import annotations

import json

import pytest

from penstock.broker.records.conditions import CONDITIONS_MAX, parse_conditions
from penstock.broker.records.filters import RecordFilter
from penstock.broker.records.searching import FILTER_BYTES_MAX, PATH_INDEX_MAX, PATH_STEPS_MAX, PATH_TEXT_BYTES_MAX
from penstock.errors import InvalidRequest
from penstock.record_headers import encode_headers

ORDER = {
    "customer": {"id": 42, "name": "Ann Lee", "tags": ["red", "blue"]},
    "items": [{"sku": "a"}, {"sku": "b-7"}],
    "paid": True,
    "note": None,
    "big": 9007199254740993,
    "code": "42",
    "day": "2026-11-18",
    "a b": {"c.d": 1},
    "total": 12.5,
}
VALUE = json.dumps(ORDER).encode()
HEADERS = encode_headers(
    [
        ("source", b"web"),
        ("source", b"shop"),
        ("retries", b"3"),
        ("empty", None),
        ("my name", b"x"),
        ("raw", b"\xff"),
        ("urgent", b"true"),
    ]
)
HOLDS = [
    "$.customer.id = 42",
    "$.customer.id=42",
    "$.customer.id = 42.0",
    "$.customer.id > 41",
    "$.customer.id >= 42 and $.customer.id <= 42 and $.total < 12.75",
    "$.customer.id != 43",
    "$.customer.id != text",
    "$.customer != 1",
    '$.code = "42"',
    '$.customer.name = "Ann Lee"',
    '$.customer.name > "Ann"',
    "$.day >= 2026-11-01",
    "$.customer.name contains LEE",
    "$.customer.tags contains red",
    "$.customer.id contains 4",
    "$.customer.name matches ^Ann",
    '$.customer.name matches "n\\\\sL"',
    "$.items[1].sku = b-7",
    "$.items[2] missing",
    "$.paid = true",
    "$.note = null",
    "$.note exists",
    "$.big = 9007199254740993",
    '$."a b"."c.d" = 1',
    "$key = k-1",
    "$key contains K",
    "$key exists",
    "$value contains ann",
    "$value matches sku.*sku",
    "$header.source = web",
    "$header.source = shop",
    "$header.retries > 2",
    "$header.retries = 3.0",
    '$header.retries = "3"',
    "$header.empty = null",
    "$header.empty != 3",
    '$header."my name" = x',
    "$header.urgent = true",
    "$header.urgent != false",
    '$header.urgent = "true"',
    "$header.source != true",
    "$header.none missing",
    "$.customer.id = 42 and $header.source = web and $key exists",
    '$.customer.name != "x and $y"',
]
FAILS = [
    "$.customer.id = 41",
    "$.customer.id > 42",
    '$.customer.id = "42"',
    '$.customer.id > "1"',
    "$.code = 42",
    "$.code > 1",
    "$.customer = 1",
    "$.customer.tags = red",
    "$.paid = 1",
    "$.note = 0",
    "$.note missing",
    "$.big = 9007199254740992",
    "$.nothing != 1",
    "$.nothing exists",
    "$.nothing contains o",
    "$.items[2] exists",
    "$.items.sku exists",
    "$[0] exists",
    "$.customer.name matches ^ann",
    "$key missing",
    "$key = K-1",
    "$key > 5",
    "$value missing",
    "$header.source = mail",
    "$header.source > 1",
    "$header.Source exists",
    "$header.raw = x",
    "$header.raw = true",
    "$header.urgent = false",
    "$header.urgent != true",
    "$header.retries = true",
    "$header.empty contains x",
    "$.customer.id = 42 and $header.source = mail",
]
NOT_READ = [
    ("$.a == 5", "no operator == .after .\\.a.: use =, !=,"),
    ("$.a ~ 5", "no operator ~"),
    ("$.a =", "nothing after .\\.a =, where a value is expected"),
    ("$.a contains", "nothing after .\\.a contains"),
    ("$.a = big tree", "'tree' after a condition: join conditions with and, and put text with spaces in double quotes"),
    ("$.a = 1 or $.b = 2", "'or .\\.b = 2' after a condition"),
    ("$.a = 1 and", "nothing where a field is expected: use .\\.path, .key, .value or .header.NAME"),
    ("$.a = 1 and b = 2", "'b = 2' where a field is expected"),
    ("$.a = 1 and $.b", "no operator after .\\.b"),
    ("$.a and $.b = 1", "no operator after .\\.a"),
    ("$.a[*] = 1", "where an index is expected: use a number"),
    ("$.a = 'x'", "where a value is expected"),
    ('$.a = "x', "where a value is expected"),
    ("$.a matches [", "regular expression '\\[', which is not valid"),
    ("$.a matches x{1000}", "too complex"),
    (r'$.a matches "\d"', "no JSON string: write a backslash twice"),
    ("$.a > true", "only numbers and text have an order"),
    ("$.a <= null", "only numbers and text have an order"),
    (r'$."a\"b" = 1', "cannot be looked for"),
    (f"$.a[{PATH_INDEX_MAX + 1}] = 1", f"at most {PATH_INDEX_MAX} is allowed"),
    ("$" + ".a" * (PATH_STEPS_MAX + 1) + " = 1", "too deep"),
    (" and ".join(["$.a = 1"] * (CONDITIONS_MAX + 1)), f"at most {CONDITIONS_MAX} are allowed"),
]
TEXT = [
    "",
    "key = 5",
    "a = b",
    "$5 = five",
    "$",
    "$.",
    "$. = 1",
    "$keys = 1",
    "$.a b.field",
    "not $.a",
    "$header = 1",
    "$.a",
]


@pytest.mark.parametrize("text", HOLDS)
def test_a_record_that_satisfies_the_conditions(text: str) -> None:
    assert RecordFilter(text).matches(b"k-1", VALUE, HEADERS)


@pytest.mark.parametrize("text", FAILS)
def test_a_record_that_does_not(text: str) -> None:
    assert not RecordFilter(text).matches(b"k-1", VALUE, HEADERS)


@pytest.mark.parametrize(("text", "message"), NOT_READ)
def test_a_condition_that_cannot_be_read_is_refused_with_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        RecordFilter(text)


@pytest.mark.parametrize("text", TEXT)
def test_what_begins_otherwise_stays_text(text: str) -> None:
    assert parse_conditions(text) is None
    assert RecordFilter(text).matches(None, text.encode())


@pytest.mark.parametrize(
    "value", [None, b"", b"text", b"{", b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": %b}' % (b"1" * 5000)]
)
@pytest.mark.parametrize("condition", ["= 1", "< 1", '= "1"', "contains é", "matches ^é", "= null"])
def test_values_that_are_no_sound_json_satisfy_nothing(value: bytes | None, condition: str) -> None:
    assert not RecordFilter(f"$.a {condition}").matches(None, value)


def test_a_tombstone_without_a_key_has_no_fields() -> None:
    assert RecordFilter("$value missing and $key missing and $.a missing and $header.a missing").matches(None, None)


def test_headers_that_cannot_be_read_are_none() -> None:
    assert RecordFilter("$header.a missing").matches(None, b"", b"\x01")


def test_an_array_in_the_value_is_a_root_too() -> None:
    assert RecordFilter("$[1].a = 2").matches(None, b'[{"a": 1}, {"a": 2}]')


def test_a_path_is_not_looked_for_in_values_that_are_too_large() -> None:
    large = b'{"a": 1, "b": "%b"}' % (b"x" * PATH_TEXT_BYTES_MAX)
    assert not RecordFilter("$.a = 1").matches(None, large)
    assert RecordFilter("$.a missing").matches(None, large)


def test_work_is_interrupted_between_conditions() -> None:
    checks: list[None] = []
    wanted = RecordFilter("$.paid = true and $.paid = true and $.paid = true")
    assert wanted.matches(None, VALUE, None, lambda: checks.append(None))
    assert len(checks) == 2


@pytest.mark.parametrize("text", ['$.a = "' + "\\\\" * 500, "$.a = " + "x " * 500, "$.a" + " " * 1000 + "="])
def test_the_longest_filter_is_read_without_backtracking(text: str) -> None:
    """The timeout of the test would tell."""
    assert len(text.encode()) <= FILTER_BYTES_MAX
    with pytest.raises(InvalidRequest, match=r"^filter has"):
        RecordFilter(text)
