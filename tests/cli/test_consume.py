"""`penstock consume` against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from penstock.protocols.fujin.sync import FujinClient
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def orders(broker: RunningBroker) -> RunningBroker:
    """Three records in partition 0 and one in partition 1; the second half an hour after the first, the rest an hour after that."""
    client = broker.connect()
    client.create_topic("orders", 2)
    client.send("orders", b"one", partition=0)
    broker.clock.advance(1800)
    client.send("orders", b'{"two": 2}', key=b"k", partition=0)
    broker.clock.advance(3600)
    client.send("orders", b"a\nb\xff\x1b[31m", partition=0)
    client.send("orders", b"four", key=b"\xfe", partition=1)
    return broker


def test_in_a_pipe_there_is_one_line_a_record(run: Run, orders: RunningBroker) -> None:
    result = run("consume", "orders")
    assert (result.code, result.err) == (0, "")
    assert result.text == 'one\n{"two": 2}\na\\nb\\xff\\x1b[31m\nfour\n'


def test_keys_may_be_printed(run: Run, orders: RunningBroker) -> None:
    assert run("consume", "orders", "-K", "=").text == '=one\nk={"two": 2}\n=a\\nb\\xff\\x1b[31m\n\\xfe=four\n'


def test_raw_keeps_every_byte(run: Run, orders: RunningBroker) -> None:
    assert run("consume", "orders", "--raw").out == b'one\n{"two": 2}\na\nb\xff\x1b[31m\nfour\n'
    assert run("consume", "orders", "--raw", "-K", "\\t", "-p", "1").out == b"\xfe\tfour\n"


def test_json_has_everything_a_record_has(run: Run, orders: RunningBroker) -> None:
    client = orders.connect()
    client.send("orders", None, b"gone", 1, headers=[("trace", b"ab"), ("trace", b"\xff"), ("none", None)])
    times = [record.timestamp_ms for record in client.records("orders")]
    assert None not in times
    lines = [json.loads(line) for line in run("consume", "orders", "--json").out.splitlines()]
    assert [line.pop("timestamp") for line in lines] == times
    assert [line.pop("headers") for line in lines] == [
        [],
        [],
        [],
        [],
        [{"key": "trace", "value": "ab"}, {"key": "trace", "value_base64": "/w=="}, {"key": "none", "value": None}],
    ]
    assert lines == [
        {"topic": "orders", "partition": 0, "offset": 0, "key": None, "value": "one"},
        {"topic": "orders", "partition": 0, "offset": 1, "key": "k", "value": '{"two": 2}'},
        {"topic": "orders", "partition": 0, "offset": 2, "key": None, "value_base64": "YQpi/xtbMzFt"},
        {"topic": "orders", "partition": 1, "offset": 0, "key_base64": "/g==", "value": "four"},
        {"topic": "orders", "partition": 1, "offset": 1, "key": "gone", "value": None},
    ]


def test_headers_stand_before_the_value(run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    client = broker.connect()
    client.send("orders", b"v", b"k", headers=[("a", b"1"), ("b", b"\x1b")])
    client.send("orders", None, b"k")
    assert run("consume", "orders", "--headers").text == "a=1,b=\\x1b\tv\n\t\n"
    assert run("consume", "orders", "--headers", "-K", "%:").text == "a=1,b=\\x1b\tk%:v\n\tk%:\n"
    assert run("consume", "orders", "--headers", "--raw").out == b"a=1,b=\x1b\tv\n\t\n"
    assert run("consume", "orders", "--filter", "$header.a = 1").text == "v\n"
    assert run("consume", "orders", "--filter", "$header.a = 2").text == ""
    monkeypatch.setattr("penstock.cli.terminal.on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run("consume", "orders", "--headers").text.splitlines() == [
        "\x1b[2m0:0\x1b[0m \x1b[33ma=1,b=\\x1b\x1b[0m \x1b[36mk\x1b[0m v",
        "\x1b[2m0:1\x1b[0m \x1b[36mk\x1b[0m \x1b[2mnull\x1b[0m",
    ]


def test_a_format_says_what_is_printed(run: Run, orders: RunningBroker) -> None:
    assert run("consume", "orders", "-p", "0", "--format", "%t/%p:%o %k(%K) %v(%S)\\n").text == (
        'orders/0:0 (-1) one(3)\norders/0:1 k(1) {"two": 2}(10)\norders/0:2 (-1) a\\nb\\xff\\x1b[31m(9)\n'
    )
    assert run("consume", "orders", "-p", "0", "--from", "2", "--raw", "--format", "%v").out == b"a\nb\xff\x1b[31m"


def test_the_newest_records_can_be_asked_for(run: Run, orders: RunningBroker) -> None:
    assert run("consume", "orders", "--last", "2", "--format", "%p:%o\\n").text == "0:2\n1:0\n"
    assert run("consume", "orders", "--last", "9", "-n", "1").text == "one\n"


def test_several_topics_may_be_named_or_matched(
    run: Run, orders: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = orders.connect()
    client.send("orders.eu", b"eu")
    client.send("orders.us", b"us")
    shown = ["consume", "--format", "%t %v\\n"]
    assert run(*shown, "orders.us", "orders.eu", "orders.us").text == "orders.us us\norders.eu eu\n"
    assert run(*shown, "orders.*").text == "orders.eu eu\norders.us us\n"
    assert run(*shown, "orders.[!e]?").text == "orders.us us\n"
    result = run(*shown, "nope*")
    assert (result.code, result.out) == (1, b"")
    assert result.err.startswith("error: topic not found: no topic matches nope*")
    monkeypatch.setattr("penstock.cli.terminal.on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run("consume", "orders.*").text.splitlines()[0] == "\x1b[2morders.eu 0:0\x1b[0m eu"


def test_a_topic_whose_name_is_a_pattern_is_read_by_that_name(run: Run, broker: RunningBroker) -> None:
    client = broker.connect()
    client.send("a*", b"star")
    client.send("ab", b"other")
    assert run("consume", "a*").text == "star\n"


def test_the_reason_of_a_dead_letter_is_in_its_headers(run: Run, broker: RunningBroker) -> None:
    client = broker.connect()
    client.send("orders", b"poison", b"k", headers={"trace": b"ab12"})
    with FujinClient(broker.fujin_url) as fujin, fujin.reader("orders", pull=True) as reader:
        while not client.dead_letters.list("orders"):
            for message in reader.fetch(10):
                reader.nack(message)
            broker.clock.advance(60)
    (letter,) = client.dead_letters.list("orders")
    (line,) = run("consume", "orders.dlq", "--json").out.splitlines()
    record = json.loads(line)
    headers = {header["key"]: header["value"] for header in record["headers"]}
    assert (record["key"], record["value"], headers["trace"]) == ("k", "poison", "ab12")
    assert letter.reason
    assert letter.reason in headers.values()
    (read,) = client.records("orders.dlq")
    assert read.timestamp_ms == record["timestamp"] >= (letter.failed_ms or 0) > 0
    assert {name: (value or b"").decode() for name, value in read.headers} == headers


def test_at_a_terminal_the_place_and_the_key_stand_before_the_value(
    run: Run, orders: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.terminal.on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = run("consume", "orders").text.splitlines()
    assert lines[0] == "\x1b[2m0:0\x1b[0m one"
    assert lines[1] == '\x1b[2m0:1\x1b[0m \x1b[36mk\x1b[0m {"two": 2}'
    assert lines[2] == "\x1b[2m0:2\x1b[0m a\\nb\\xff\\x1b[31m"


@pytest.mark.parametrize(
    ("start", "lines"),
    [("earliest", 3), ("latest", 0), ("0", 3), ("2", 1), ("3", 0), ("1970-01-01T00:00Z", 3), ("2100-01-01", 0)],
)
def test_reading_starts_where_it_is_told_to(run: Run, orders: RunningBroker, start: str, lines: int) -> None:
    result = run("consume", "orders", "--partition", "0", "--from", start)
    assert result.code == 0
    assert len(result.text.splitlines()) == lines


def test_how_long_ago_is_a_place_to_start_too(run: Run, orders: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: orders.clock.now_ms() * 1_000_000)
    assert len(run("consume", "orders", "-p", "0", "--from", "-80m").text.splitlines()) == 2
    assert len(run("consume", "orders", "-p", "0", "--from", "-10m").text.splitlines()) == 1


def test_it_ends_after_as_many_records_as_were_asked_for(run: Run, orders: RunningBroker) -> None:
    assert run("consume", "orders", "-p", "0", "--max", "2").text == 'one\n{"two": 2}\n'


def test_the_broker_can_leave_records_out(run: Run, orders: RunningBroker) -> None:
    assert run("consume", "orders", "--filter", "ONE").text == "one\n"
    assert run("consume", "orders", "--filter", "$.two").text == '{"two": 2}\n'
    assert run("consume", "orders", "--filter", "nothing").text == ""
    assert run("consume", "orders", "--filter", "$.two >= 2").text == '{"two": 2}\n'
    assert run("consume", "orders", "--filter", "$.two > 2").text == ""


def test_a_group_continues_where_it_stopped(run: Run, orders: RunningBroker) -> None:
    assert run("consume", "orders", "-p", "0", "--group", "billing", "--max", "1").text == "one\n"
    assert run("consume", "orders", "-p", "0", "--group", "billing", "--max", "1").text == '{"two": 2}\n'
    assert orders.connect().committed("orders", "billing", 0) == 2
    assert run("consume", "orders", "--group", "billing").text == "a\\nb\\xff\\x1b[31m\nfour\n"
    assert run("consume", "orders", "--group", "billing").text == ""
    assert run("consume", "orders", "--group", "billing", "--from", "earliest").text == ""


def test_following_waits_for_more_until_it_is_interrupted(orders: RunningBroker) -> None:
    arguments = ["consume", "orders", "-p", "0", "--from", "2", "-f", "--raw", "--server", orders.url]
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        try:
            assert command.stdout is not None
            assert command.stdout.readline() == b"a\n"
            assert command.stdout.readline() == b"b\xff\x1b[31m\n"
            orders.connect().send("orders", b"live", partition=0)
            assert command.stdout.readline() == b"live\n"
            command.send_signal(signal.SIGINT)
            out, err = command.communicate()
        finally:
            command.kill()
    assert (command.returncode, out, err) == (130, b"", b"")


def test_what_makes_no_sense_is_refused(run: Run, orders: RunningBroker) -> None:
    for together in (
        ["--raw", "--json"],
        ["--headers", "--json"],
        ["--format", "%v", "--json"],
        ["--format", "%v", "--headers"],
        ["--format", "%q"],
        ["--last", "1", "--from", "0"],
        ["--last", "1", "--group", "g"],
        ["--last", "0"],
    ):
        result = run("consume", "orders", *together)
        assert (result.code, result.out) == (2, b""), together
    result = run("consume", "orders", "--from", "yesterday")
    assert result.code == 2
    assert result.err.startswith("error: Invalid value for --from: yesterday is not a position: use earliest, latest,")
    assert run("consume", "nope").code == 1
    result = run("consume", "orders", "--partition", "9")
    assert result.code == 1
    assert "partition 9 not found" in result.err
