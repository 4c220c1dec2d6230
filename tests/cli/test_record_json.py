"""Records as JSON Lines, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.lines import ProducedRecord
from penstock.cli.record_json import json_line, parse_json_lines
from penstock.clients.records import Record
from penstock.errors import InvalidRequest
from penstock.testing import RunningBroker
from tests.cli.conftest import Run

cells = st.none() | st.binary(max_size=12) | st.text(max_size=12).map(str.encode)
headers = st.lists(st.tuples(st.text(max_size=6), cells), max_size=3).map(tuple)
records = st.lists(st.tuples(cells, cells, headers), max_size=6)


def in_json(rows: list[ProducedRecord]) -> bytes:
    return b"".join(
        json_line(Record("t", 0, offset, key, value, 17, tuple(own))) for offset, (key, value, own) in enumerate(rows)
    )


@given(records)
def test_any_record_is_read_as_it_was_printed(rows: list[ProducedRecord]) -> None:
    *lines, rest = in_json(rows).split(b"\n")
    assert rest == b""
    assert [(key, value, tuple(own)) for key, value, own in parse_json_lines(lines, 1)] == rows


def test_a_line_says_all_there_is() -> None:
    record = Record("orders", 1, 2, b"\xff", None, 1700000000000, (("a", b"1"), ("b", None), ("c", b"\xfe")))
    assert json_line(record) == (
        b'{"topic":"orders","partition":1,"offset":2,"timestamp":1700000000000,"key_base64":"/w==","headers":'
        b'[{"key":"a","value":"1"},{"key":"b","value":null},{"key":"c","value_base64":"/g=="}],"value":null}\n'
    )


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"value":"v"}', (None, b"v", [])),
        (b' {"value":null,"key":"k","headers":null} \r', (b"k", None, [])),
        (b'{"value":"","key":"","timestamp":null}', (b"", b"", [])),
    ],
)
def test_what_may_be_left_out(line: bytes, record: ProducedRecord) -> None:
    assert list(parse_json_lines([line, b"", b"  "], 1)) == [record]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b"plain text", "JSON is malformed"),
        (b'{"value":"v"', "truncated"),
        (b'"text"', "Expected `object`, got `str`"),
        (b'{"key":"k"}', "it has no value (write null for none)"),
        (b'{"value":1}', "Expected `str | null`, got `int` - at `$.value`"),
        (b'{"vlaue":"v"}', "unknown field `vlaue`"),
        (b'{"value":"v","value_base64":"dg=="}', "it has the value twice, as text and in base64"),
        (b'{"value_base64":"*"}', "the value is not base64"),
        (b'{"value":"v","headers":[{"key":"h"}]}', "it has no value of header 'h'"),
        (b'{"value":"v","headers":{"h":"1"}}', "Expected `array | null`, got `object`"),
        (b'{"value":"\xff"}', "not a record"),
        (b'{"value":"\\ud800"}', "not a record"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes, fault: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        list(parse_json_lines([b'{"value":"fine"}', line], 41))
    assert str(refused.value).startswith("line 42 is not a record: ")
    assert fault in str(refused.value)


def test_a_topic_copied_by_consume_and_produce_is_the_same_byte_for_byte(run: Run, broker: RunningBroker) -> None:
    rows: list[ProducedRecord] = [
        (key, value, ((name, value), ("h", key)))
        for key in (None, b"", b"\xff\n", "\u00fc\u2028\\".encode())
        for value in (None, b"", b"\0\r\n\xfe", b'{"json": "\\n"}')
        for name in ("", "h", "n\u00e4me")
    ]
    broker.connect().send_many("from", rows)
    printed = run("consume", "from", "--json")
    assert run("produce", "to", "--json", input=printed.out).code == 0
    copied = [(record.key, record.value, record.headers) for record in broker.connect().records("to")]
    assert copied == rows
    again = run("consume", "to", "--json")
    place = b'"topic":"from"', b'"topic":"to"'
    assert [line.split(b'"key', 1)[1] for line in again.out.splitlines()] == [
        line.replace(*place).split(b'"key', 1)[1] for line in printed.out.splitlines()
    ]
