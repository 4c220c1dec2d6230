"""`penstock audit` against a real broker."""

from __future__ import annotations

import csv
import io
import json
from types import SimpleNamespace

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def noted(broker: RunningBroker) -> RunningBroker:
    client = broker.connect()
    client.create_topic("orders")
    client.create_topic("invoices", 3)
    client.delete_topic("orders")
    return broker


def test_events_are_listed_newest_first_and_chosen_by_what_they_say(run: Run, noted: RunningBroker) -> None:
    lines = [line.split()[2:] for line in run("audit", "list").text.splitlines()[1:]]
    assert lines == [
        ["anonymous", "127.0.0.1", "orders", "delete", "success"],
        ["anonymous", "127.0.0.1", "invoices", "create", "success"],
        ["anonymous", "127.0.0.1", "orders", "create", "success"],
    ]
    assert [event["resource"] for event in json.loads(run("audit", "list", "--json", "-n", "2").out)] == [
        "orders",
        "invoices",
    ]
    [event] = json.loads(run("audit", "list", "--json", "--type", "topic.create", "--resource", "invoices").out)
    assert event["details"] == {"partitions": "3"}
    assert json.loads(run("audit", "list", "--json", "--since", "2100-01-01").out) == []
    assert len(json.loads(run("audit", "list", "--json", "--since=-1h").out)) == 3


def test_the_tail_is_printed_oldest_first(run: Run, noted: RunningBroker) -> None:
    lines = run("audit", "tail", "--no-follow", "-n", "2").text.splitlines()
    assert [line.split("  ")[1] for line in lines] == ["topic.create", "topic.delete"]
    assert lines[0].endswith("partitions=3")
    events = [json.loads(line) for line in run("audit", "tail", "--no-follow", "--json").text.splitlines()]
    assert [event["id"] for event in events] == ["0", "1", "2"]


def test_the_tail_follows_what_comes_and_prints_nothing_twice(
    run: Run, noted: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = noted.connect()
    naps = 0

    def nap(seconds: float) -> None:
        nonlocal naps
        naps += 1
        if naps == 3:
            raise KeyboardInterrupt
        client.create_topic(f"more-{naps}")

    # Not time.sleep itself, which threads of the broker call too.
    monkeypatch.setattr("penstock.cli.audit.time", SimpleNamespace(sleep=nap))
    result = run("audit", "tail", "--json")
    events = [json.loads(line) for line in result.text.splitlines()]
    assert [event["resource"] for event in events] == ["orders", "invoices", "orders", "more-1", "more-2"]


def test_the_trail_is_exported(run: Run, noted: RunningBroker) -> None:
    assert [event["id"] for event in json.loads(run("audit", "export").out)] == ["2", "1", "0"]
    rows = list(csv.DictReader(io.StringIO(run("audit", "export", "--format", "csv").text)))
    assert [row["resource"] for row in rows] == ["orders", "invoices", "orders"]
    assert run("audit", "export", "--format", "xml").err == (
        "error: Invalid value for --format: xml is not a format: use json or csv (see: penstock audit export --help)\n"
    )


def test_a_time_is_a_time(run: Run, noted: RunningBroker) -> None:
    assert run("audit", "list", "--since", "42").err.startswith("error: Invalid value for --since: 42 is not a time")
