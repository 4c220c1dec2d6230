"""`penstock produce --delay` and `--ttl`, and `penstock delayed`, against a real broker."""

from __future__ import annotations

import json

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_a_delayed_record_comes_at_its_time(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders", "later", "--key", "k", "--delay", "2h")
    assert result.code == 0
    assert result.text.startswith("accepted 1 record for orders, due ")
    assert [record.value for record in broker.connect().records("orders")] == []
    broker.clock.advance(2 * 3600)
    [record] = broker.connect().records("orders", follow=True, limit=1)
    assert (record.key, record.value) == (b"k", b"later")


def test_lines_are_delayed_one_by_one(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders", "--delay", "1m", input=b"a\nb\nc\n")
    assert result.text.startswith("accepted 3 records for orders, due ")
    nothing = run("produce", "orders", "--delay", "1m")
    assert (nothing.code, nothing.text) == (0, "accepted 0 records for orders\n")
    assert nothing.err == "standard input is empty: nothing was stored in orders\n"
    broker.clock.advance(60)
    records = broker.connect().records("orders", follow=True, limit=3)
    assert [record.value for record in records] == [b"a", b"b", b"c"]


def test_a_delayed_record_is_cancelled_by_its_id(run: Run, broker: RunningBroker) -> None:
    accepted = json.loads(run("produce", "orders", "v", "--delay", "1m", "--json").out)
    assert accepted["topic"] == "orders"
    [entry] = accepted["delayed"]
    assert run("delayed", "cancel", "orders", entry["id"]).text == f"cancelled {entry['id']} of orders\n"
    again = run("delayed", "cancel", "orders", entry["id"])
    assert again.code == 1
    assert again.err.startswith("error: delayed message not found")


def test_no_delay_is_none(run: Run, broker: RunningBroker) -> None:
    assert run("produce", "orders", "now", "--delay", "0").text == "stored 1 record in orders: partition 0, offset 0\n"


def test_a_record_with_a_time_to_live_is_gone_after_it(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders", "--ttl", "500ms", input=b"a\nb\n")
    assert result.text == "stored 2 records in orders: partition 0, offsets 0 to 1\n"
    run("produce", "orders", "stays", "--ttl", "7d")
    assert run("consume", "orders").text == "a\nb\nstays\n"
    broker.clock.advance(0.5)
    assert run("consume", "orders").text == "stays\n"


@pytest.mark.parametrize("option", ["--delay", "--ttl"])
def test_a_time_without_a_unit_is_refused(run: Run, broker: RunningBroker, option: str) -> None:
    result = run("produce", "orders", "v", option, "30")
    assert (result.code, broker.connect().topics()) == (2, [])
    assert f"Invalid value for {option}: 30 has no unit: write 30s or 30ms" in result.err


@pytest.mark.parametrize("option", ["--delay", "--ttl"])
def test_a_time_that_is_none_is_refused(run: Run, broker: RunningBroker, option: str) -> None:
    result = run("produce", "orders", "v", option, "soon")
    assert result.code == 2
    assert "is not a duration" in result.err


def test_a_delay_beyond_the_bound_is_refused(run: Run, broker: RunningBroker) -> None:
    result = run("produce", "orders", "v", "--delay", "25h")
    assert result.code == 1
    assert result.err == "error: delay 25h0m0s exceeds maximum allowed delay 24h0m0s\n"


def test_what_waits_is_listed_and_what_is_cancelled_is_not(run: Run, broker: RunningBroker) -> None:
    assert run("delayed", "list").text.split() == ["id", "topic", "due", "in", "partition", "key", "size"]
    run("produce", "my orders", "later", "--key", "k", "--delay", "2h", "--ttl", "5s")
    run("produce", "other", "soon", "--delay", "1m")
    soon, later = json.loads(run("delayed", "list", "--json").out)
    assert (soon["topic"], later["topic"]) == ("other", "my orders")
    assert later == {
        "id": later["id"],
        "topic": "my orders",
        "partition": 0,
        "due_ms": later["due_ms"],
        "key": "k",
        "value_bytes": 5,
        "ttl_ms": 5_000,
    }
    [line] = run("delayed", "list", "my orders").text.splitlines()[1:]
    assert line.startswith(f"{later['id']}  'my orders'  20")
    assert len(json.loads(run("delayed", "list", "-n", "1", "--json").out)) == 1
    assert run("delayed", "cancel", "other", soon["id"]).code == 0
    assert [each["id"] for each in json.loads(run("delayed", "list", "--json").out)] == [later["id"]]
