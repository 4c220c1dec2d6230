"""Which records a filter lets through, and what an evil one costs."""

from __future__ import annotations

import pytest

from penstock.broker.records.filters import RecordFilter, select
from penstock.broker.records.searching import (
    EXPRESSION_TEXT_BYTES_MAX,
    FILTER_BYTES_MAX,
    PATH_STEPS_MAX,
    PATH_TEXT_BYTES_MAX,
    WINDOW_BYTES,
)
from penstock.errors import InvalidRequest
from penstock.record_headers import encode_headers

MATCHES = [
    ("err", None, b"an ERROR here"),
    ("ERR", b"error-key", b""),
    ("straße", None, "Die STRASSE? Nein: Straße".encode()),
    ("ÄRGER", None, "großer ärger".encode()),
    ("^ord[0-9]+$", b"ord42", b""),
    ("a.c", None, b"xabcx"),
    ("(?i)HELLO", None, b"hello"),
    (r"\p{Greek}+", None, "αβγ".encode()),
    ("$.user", None, b'{"user": null}'),
    ("$.user.name", None, b'{"user": {"name": "x"}}'),
    ("$.user.name", None, b"the text $.user.name itself"),
    ("[", None, b"a [ in the text"),
    ("$.é.", None, '{"é": {"": 1}}'.encode()),
    ("$.a b.field", None, b'{"a b": {"field": [1, {"x": "y"}]}, "z": "\\u0061"}'),
    ("$.a", None, b'{"\\u0061": 1}'),
    ('$.a"b', None, b'the text $.A"B itself'),
    ("$.a\\b", None, b"$.a\\b"),
    ("$.a\x01b", None, b"$.a\x01b"),
    ("$.a[1].b", None, b'{"a": [0, {"b": 1}, 2]}'),
    ("$key", b"any", b""),
    ("$key", None, b"the text $key itself"),
]
MISSES = [
    ("err", b"key", b"all well"),
    ("^ord[0-9]+$", b"order", b"ordinary"),
    ("$.user", None, b'{"name": 1}'),
    ("$.user.name", None, b'{"user": "name"}'),
    ("$.user", None, b'[{"user": 1}]'),
    ("$.user", None, b'{"user": '),
    ("$.user", None, b'{"user": 1} x'),
    ("$.user.name", None, b'{"user": null}'),
    ("$.user", None, b"[" * 100_000),
    ("[", None, b"not a valid expression and not in the text"),
    ("(?P<x", None, b"anything"),
    ("x", None, None),
    ("$.a[1].b", None, b'{"a": [{"b": 1}]}'),
    ('$.a"b', None, b'{"a": 1}'),
    ("$key", None, b"no such text"),
    (r"(a)\1", None, b"aa"),
]


@pytest.mark.parametrize(("text", "key", "value"), MATCHES)
def test_a_record_that_matches(text: str, key: bytes | None, value: bytes) -> None:
    assert RecordFilter(text).matches(key, value)


@pytest.mark.parametrize(("text", "key", "value"), MISSES)
def test_a_record_that_does_not_match(text: str, key: bytes | None, value: bytes | None) -> None:
    assert not RecordFilter(text).matches(key, value)


def test_an_expression_that_ruins_a_backtracking_engine_costs_nothing() -> None:
    """Python's own engine would take longer than the universe has existed; the timeout of the test would tell."""
    assert not RecordFilter("(a+)+$").matches(None, b"a" * 5000 + b"!")
    assert not RecordFilter("(x+x+)+y").matches(None, b"x" * 5000)


@pytest.mark.parametrize("text", ["(?:a?){500}a{500}b", "x{1000}", "(x{100}y{100}){6}"])
def test_an_expression_that_is_large_though_linear_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="too complex"):
        RecordFilter(text)


def test_an_expression_that_takes_too_much_memory_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="too complex: use a simpler expression"):
        RecordFilter(r"(\pL{1000})")


def test_a_path_has_so_many_names_and_not_one_more() -> None:
    value = b'{"a":' * PATH_STEPS_MAX + b"1" + b"}" * PATH_STEPS_MAX
    assert RecordFilter("$." + ".".join("a" * PATH_STEPS_MAX)).matches(None, value)
    with pytest.raises(InvalidRequest, match=f"too deep: {PATH_STEPS_MAX + 1} names, at most {PATH_STEPS_MAX}"):
        RecordFilter("$." + ".".join("a" * (PATH_STEPS_MAX + 1)))


def test_a_path_is_not_looked_for_in_values_that_are_too_large() -> None:
    room = PATH_TEXT_BYTES_MAX - len('{"a":""}')
    assert RecordFilter("$.a").matches(None, b'{"a":"%b"}' % (b"x" * room))
    assert not RecordFilter("$.a").matches(None, b'{"a":"%b"}' % (b"x" * (room + 1)))


@pytest.mark.parametrize("text", ["needle", "ÄRGER", "x" * FILTER_BYTES_MAX])
def test_text_is_found_wherever_it_stands_in_a_large_value(text: str) -> None:
    wanted, found = RecordFilter(text), text.lower().encode()
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1

    for start in (0, WINDOW_BYTES - len(found), WINDOW_BYTES - 1, WINDOW_BYTES, 3 * WINDOW_BYTES - 2):
        assert wanted.matches(None, bytes(start) + found, None, check)
        assert wanted.matches(None, bytes(start) + found + bytes(2 * WINDOW_BYTES), None, check)
    assert not wanted.matches(None, bytes(3 * WINDOW_BYTES), None, check)
    assert checks >= 2


def test_a_long_filter_is_refused() -> None:
    RecordFilter("é" * (FILTER_BYTES_MAX // 2))
    with pytest.raises(InvalidRequest, match=f"at most {FILTER_BYTES_MAX} bytes"):
        RecordFilter("é" * (FILTER_BYTES_MAX // 2) + "x")


def test_an_expression_looks_so_far_and_no_further() -> None:
    wanted = RecordFilter("n[e]edle")
    assert wanted.matches(None, bytes(EXPRESSION_TEXT_BYTES_MAX - 6) + b"needle")
    assert not wanted.matches(None, bytes(EXPRESSION_TEXT_BYTES_MAX - 5) + b"needle")


def test_selecting_gives_rows_and_how_far_it_looked() -> None:
    values = [b"no", b"yes", None, b"YES", b"no", b"yes"]
    assert select(RecordFilter("yes"), None, values, None, 10, lambda: False, lambda: None) == ([1, 3, 5], 6)
    assert select(RecordFilter("yes"), None, values, None, 2, lambda: False, lambda: None) == ([1, 3], 4)
    assert select(RecordFilter("k1"), [None, b"k1", b"k2"], [b""] * 3, None, 10, lambda: False, lambda: None) == (
        [1],
        3,
    )


@pytest.mark.parametrize(
    ("text", "has_paths"),
    [
        ("$.a", True),
        ("$[0].a", True),
        ("$key = 1 and $.a = 1", True),
        ("$key = 1", False),
        ("$key", False),
        ("a", False),
    ],
)
def test_a_filter_says_whether_it_looks_into_json(text: str, has_paths: bool) -> None:
    assert RecordFilter(text).has_paths is has_paths


def test_paths_are_looked_for_in_what_a_value_was_decoded_to() -> None:
    assert RecordFilter("$.a = 1").matches(None, b"\x02", None, lambda: None, b'{"a": 1}')
    assert not RecordFilter("$.a = 1").matches(None, b'{"a": 1}', None, lambda: None, b'{"a": 2}')


def test_selecting_shows_headers_to_conditions() -> None:
    headers = [None, encode_headers([("source", b"web")]), encode_headers([("source", b"shop")])]
    wanted = RecordFilter("$header.source = web")
    assert select(wanted, None, [b""] * 3, headers, 10, lambda: False, lambda: None) == ([1], 3)


def test_a_text_beside_the_record_is_searched_for_text_and_never_for_conditions() -> None:
    assert RecordFilter("TIME").matches_text(b"a timeout")
    assert RecordFilter("t.me").matches_text(b"a timeout")
    assert not RecordFilter("$key missing").matches_text(b"a timeout")
    assert not RecordFilter("$value contains timeout").matches_text(b"a timeout")


def test_selecting_looks_at_one_row_even_when_time_is_up() -> None:
    assert select(RecordFilter("yes"), None, [b"yes", b"yes"], None, 10, lambda: True, lambda: None) == ([0], 1)
