"""`penstock subscription` against a real broker."""

from __future__ import annotations

import json

import pytest

from penstock.cli.subscription import behind
from penstock.protocols.blipmq.sync import BlipMQClient
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("duration_ms", "words"),
    [(None, "?"), (999, "0s"), (59_000, "59s"), (60_000, "1m"), (3_725_000, "1h2m"), (90_000_000, "1d1h")],
)
def test_a_time_span_has_two_units_at_most(duration_ms: int | None, words: str) -> None:
    assert behind(duration_ms) == words


@pytest.fixture
def delivered(broker: RunningBroker) -> RunningBroker:
    """A subscription of BlipMQ with three records, of which one is in flight for the second time."""
    with BlipMQClient(broker.blipmq_url) as client:
        number = client.subscribe("orders")
        client.send_many("orders", [b"one", b"two", b"three"])
        for _ in range(2):
            assert len(client.poll(number)) == 1
            broker.clock.advance(0.15)
    return broker


def test_subscriptions_are_listed_and_described(run: Run, delivered: RunningBroker) -> None:
    listed = (
        "subscription  topic   lag  behind  in flight  redelivered  dead letters\n"
        "#1            orders    3      0s          1            1             0\n"
    )
    assert run("subscription", "list").text == listed
    assert len(run("subscription", "list", "--topic", "other").text.splitlines()) == 1
    assert run("subscription", "describe", "#1").text == listed + (
        "\ntopic   partition  position  next offset\norders          0         1            3\n"
    )
    [row] = json.loads(run("subscription", "describe", "#1", "--json").out)
    assert (row["group"], row["lag"], row["lag_ms"], row["in_flight"], row["redeliveries"]) == ("#1", 3, 300, 1, 1)
    assert row["partitions"] == [{"partition": 0, "position": 1, "next_offset": 3}]


def test_subscriptions_stand_beside_groups(run: Run, delivered: RunningBroker) -> None:
    delivered.connect().commit("orders", "billing", 0, 1)
    lines = run("group", "list").text.splitlines()
    assert lines[1].split() == ["#1", "orders", "subscription", "-", "3", "0s"]
    assert lines[2].split() == ["billing", "orders", "empty", "0", "2", "0s"]
    assert run("group", "describe", "#1").text.splitlines()[1].split() == ["#1", "orders", "3", "0s", "1", "1", "0"]


def test_a_subscription_that_does_not_exist_is_an_error(run: Run, broker: RunningBroker) -> None:
    result = run("subscription", "describe", "#7")
    assert (result.code, result.err) == (
        1,
        "error: subscription not found: #7 (list them with: penstock subscription list)\n",
    )


def test_a_subscription_is_reset_as_a_dry_run_says(run: Run, delivered: RunningBroker) -> None:
    command = ("subscription", "reset", "#1", "--topic", "orders", "--shift", "2")
    moved = "topic   partition  before  after\norders          0       1      3\n"
    assert run(*command, "--dry-run").err.startswith("error: invalid request: subscription #1 has readers")
    delivered.clock.advance(1)  # which have left the record alone for too long now
    assert run(*command, "--dry-run").text == moved
    assert json.loads(run("subscription", "list", "--json").out)[0]["lag"] == 3
    result = run(*command)
    assert result.err.startswith("error: Move subscription #1 in topic orders by 2 records? There is no terminal")
    assert run(*command, "--yes").text == moved
    assert json.loads(run("subscription", "list", "--json").out)[0]["lag"] == 0
    result = run("subscription", "reset", "#1", "-t", "orders", "--to", "earliest", "-y", "--json")
    assert json.loads(result.out) == {
        "subscription": "#1",
        "topic": "orders",
        "applied": True,
        "partitions": [{"partition": 0, "before": 3, "after": 0, "log_start": 0, "next_offset": 3}],
    }
    with BlipMQClient(delivered.blipmq_url) as client:
        assert [client.poll(1)[0].value for _ in range(3)] == [b"one", b"two", b"three"]


def test_a_subscription_that_does_not_exist_is_not_reset(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    result = run("subscription", "reset", "jobs", "-t", "orders", "--to", "latest", "--yes")
    assert (result.code, result.err.startswith("error: subscription not found: jobs in topic orders (")) == (1, True)
