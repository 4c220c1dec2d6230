"""`penstock produce` against a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.lines import LINE_BYTES_MAX
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def stored(broker: RunningBroker, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in broker.connect().records(topic)]


def test_an_argument_is_a_record(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders", "grün")
    assert (result.code, result.text) == (0, "stored 1 record in orders: partition 0, offset 0\n")
    assert run("produce", "orders", "two", "--key", "k").text == "stored 1 record in orders: partition 0, offset 1\n"
    assert stored(broker, "orders") == [(None, "grün".encode()), (b"k", b"two")]


def test_each_line_of_the_input_is_a_record(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders", input=b"one\n\n\xff\x00\nlast")
    assert (result.code, result.text) == (0, "stored 4 records in orders: partition 0, offsets 0 to 3\n")
    assert [value for _, value in stored(broker, "orders")] == [b"one", b"", b"\xff\x00", b"last"]


def test_each_line_of_a_file_is_a_record(run: Run, broker: RunningBroker) -> None:
    Path("in.txt").write_bytes(b"".join(b"%d\n" % number for number in range(5_000)))
    assert run("produce", "orders", "--file", "in.txt").code == 0
    assert [value for _, value in stored(broker, "orders")] == [b"%d" % number for number in range(5_000)]
    assert run("produce", "other", "--file", "-", input=b"x\n").text.startswith("stored 1 record in other")


def test_the_whole_input_may_be_one_record(run: Run, broker: RunningBroker) -> None:
    assert run("produce", "orders", "--whole", "-k", "k", input=b"one\ntwo\n").code == 0
    assert stored(broker, "orders") == [(b"k", b"one\ntwo\n")]


def test_keys_may_stand_in_the_lines(run: Run, broker: RunningBroker) -> None:
    assert run("produce", "orders", "-K", ":", input=b"a:1\nb:2:3\n").code == 0
    assert run("produce", "orders", "-K", "\\t", input=b"c\t4\n").code == 0
    assert stored(broker, "orders") == [(b"a", b"1"), (b"b", b"2:3"), (b"c", b"4")]


def test_a_line_without_a_key_stops_it_with_what_was_stored_before(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.lines.READ_BYTES_MAX", 4)
    result = run("produce", "orders", "-K", ":", input=b"a:1\nb:2\nxyz\n")
    assert result.code == 1
    assert result.err == (
        "stored 2 records in orders: partition 0, offsets 0 to 1 before this:\n"
        "error: line 3 has no ':' between key and value: correct it, or leave out --key-separator\n"
    )


def test_a_partition_may_be_chosen(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders", 3)
    assert (
        run("produce", "orders", "x", "--partition", "2").text == "stored 1 record in orders: partition 2, offset 0\n"
    )
    result = run("produce", "orders", "x", "--partition", "7")
    assert result.code == 1
    assert "penstock topic describe TOPIC" in result.err


def test_programs_get_json(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders", 2)
    counted = {
        "topic": "orders",
        "records": 3,
        "partitions": [
            {"partition": 0, "records": 2, "first_offset": 0, "last_offset": 1},
            {"partition": 1, "records": 1, "first_offset": 0, "last_offset": 0},
        ],
    }
    assert json.loads(run("--json", "produce", "orders", input=b"a\nb\nc\n").out) == counted
    assert run("produce", "orders", input=b"a\nb\n").text == "stored 2 records in orders: 2 partitions\n"
    assert json.loads(run("produce", "orders", "d", "--json").out)["records"] == 1
    assert {value for _, value in stored(broker, "orders")} == {b"a", b"b", b"c", b"d"}


def test_every_record_gets_the_headers(run: Run, broker: RunningBroker) -> None:
    assert run("produce", "orders", "v", "-k", "k", "-H", "a=1", "--header", "a=b=c", "-H", "empty=").code == 0
    assert run("produce", "orders", "-H", "src=cli", input=b"x\ny\n").code == 0
    assert (
        run(
            "produce", "orders", "-H", "src=cli", "--json", input=b'{"value":"z","headers":[{"key":"a","value":null}]}'
        ).code
        == 0
    )
    assert [(record.key, record.value, record.headers) for record in broker.connect().records("orders")] == [
        (b"k", b"v", (("a", b"1"), ("a", b"b=c"), ("empty", b""))),
        (None, b"x", (("src", b"cli"),)),
        (None, b"y", (("src", b"cli"),)),
        (None, b"z", (("a", None), ("src", b"cli"))),
    ]


def test_a_tombstone_is_a_key_without_a_value(run: Run, broker: RunningBroker) -> None:
    assert run("produce", "orders", "--key", "k", "--null").text == "stored 1 record in orders: partition 0, offset 0\n"
    assert json.loads(run("produce", "orders", "--key", "k", "-Z", "--json").out)["records"] == 1
    assert stored(broker, "orders") == [(b"k", None)] * 2


def test_a_bad_json_line_stops_it_after_what_stands_before(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders", "--json", input=b'{"value":"one"}\n\n{"value":"two"}\nthree\n{"value":"four"}\n')
    assert (result.code, result.out) == (1, b"")
    before, error = result.err.splitlines()
    assert before == "stored 2 records in orders: partition 0, offsets 0 to 1 before this:"
    assert error.startswith("error: line 4 is not a record: JSON is malformed")
    assert [value for _, value in stored(broker, "orders")] == [b"one", b"two"]


def test_delayed_records_have_headers_too(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    assert run("produce", "orders", "v", "--delay", "1m", "-H", "a=1").code == 0
    assert run("produce", "orders", "--key", "k", "--null", "--delay", "1m").code == 0
    assert run("produce", "orders", "--json", "--delay", "1m", input=b'{"value":"w"}\n').code == 0
    assert stored(broker, "orders") == []
    broker.clock.advance(61)
    records = list(broker.connect().records("orders", follow=True, limit=3))
    assert sorted((record.value or b"", record.key, record.headers) for record in records) == [
        (b"", b"k", ()),
        (b"v", None, (("a", b"1"),)),
        (b"w", None, ()),
    ]


def test_headers_go_with_a_time_to_live_and_a_schema(run: Run, broker: RunningBroker) -> None:
    broker.connect().schemas.register("any", "{}")
    assert run("produce", "orders", "1", "--ttl", "1m", "--schema", "any", "-H", "a=1").code == 0
    [record] = broker.connect().records("orders")
    assert record.headers == (("a", b"1"), ("penstock-schema", b"any:1"))
    broker.clock.advance(61)
    assert list(broker.connect().records("orders")) == []


def test_no_input_stores_nothing(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders")
    assert (result.code, result.text) == (0, "stored 0 records in orders\n")


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--key", "k", "--key-separator", ":"], "--key and --key-separator both give the key: use one of them"),
        (["--key-separator", ""], "--key-separator is empty: name the text between key and value"),
        (["--null"], "--null is a record without a value: give its --key"),
        (["value", "--key", "k", "--null"], "neither VALUE nor input"),
        (["--key", "k", "--json"], "with --json the keys are in the lines"),
        (["--whole", "--json"], "with --json the keys are in the lines"),
        (["value", "--header", "name"], "--header name: write it as NAME=VALUE"),
        (["value", "--header", "=x"], "--header =x: write it as NAME=VALUE"),
        (["value", "--schema", "s", "--delay", "1s"], "--schema does not go with --delay"),
        (
            ["value", "--file", "f"],
            "VALUE is the record itself: leave it out to use --file, --whole or --key-separator",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    run: Run, broker: RunningBroker, args: list[str], error: str
) -> None:
    result = run("produce", "orders", *args)
    assert result.code == 2
    assert error in result.err


def test_a_file_that_is_not_there_is_named(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders", "--file", "nope.txt")
    assert (result.code, result.err) == (1, "error: nope.txt: No such file or directory\n")


def test_what_the_broker_refuses_is_said(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "../etc", "x")
    assert result.code == 1
    assert "topic name '../etc' has a level '..'" in result.err


def test_long_work_shows_its_progress_at_a_terminal(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.progress.SHOWN_AFTER_S", -1.0)
    monkeypatch.setattr("penstock.cli.lines.READ_BYTES_MAX", 100)
    quiet = run("produce", "orders", input=b"line\n" * 100)
    assert quiet.err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    watched = run("produce", "orders", input=b"line\n" * 100)
    assert watched.code == 0
    assert "records" in watched.err


@pytest.mark.parametrize("args", [[], ["--json"]])
def test_an_input_without_records_is_said(run: Run, broker: RunningBroker, args: list[str]) -> None:
    result = run("produce", "orders", *args)
    assert (result.code, result.err) == (0, "standard input is empty: nothing was stored in orders\n")


def test_an_empty_file_is_named(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "none.txt").touch()
    assert run("produce", "orders", "--file", "none.txt").err == "none.txt is empty: nothing was stored in orders\n"


@pytest.mark.parametrize("value", [bytes(6 << 20), b"\xff" * (25 << 20)], ids=["escapes", "base64"])
def test_a_large_record_comes_back_from_json_although_it_is_longer_there(
    run: Run, broker: RunningBroker, value: bytes
) -> None:
    broker.connect().send("orders", value, b"key")
    printed = run("consume", "orders", "--json").out
    assert len(printed) > LINE_BYTES_MAX
    assert run("produce", "copies", "--json", input=printed).code == 0
    [copy] = broker.connect().records("copies")
    assert (copy.key, copy.value == value) == (b"key", True)
