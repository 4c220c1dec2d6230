"""`penstock dlq` against a real broker."""

from __future__ import annotations

import json
import shlex

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run
from tests.manual import blocks, commands_in, page


def letter(letter_id: str, payload: str, error: str) -> bytes:
    entry = {"id": letter_id, "original_topic": "orders", "payload": payload, "error_message": error, "retry_count": 3}
    return json.dumps(entry).encode()


@pytest.fixture
def letters(broker: RunningBroker) -> None:
    """Three dead letters of topic orders, one of them an entry that says nothing about itself."""
    client = broker.connect()
    client.create_topic("orders")
    client.send("orders.dlq", letter("m-1", "cmVk", "timeout"), key=b"k")
    client.send("orders.dlq", letter("m-2", "Z3JlZW4=", "boom"))
    client.send("orders.dlq", b"\xff" * 100)


def values(broker: RunningBroker, topic: str = "orders") -> list[bytes]:
    return [record.value or b"" for record in broker.connect().records(topic)]


@pytest.mark.usefixtures("letters")
def test_dead_letters_are_listed_with_their_story(run: Run) -> None:
    lines = run("dlq", "list", "orders").text.splitlines()
    assert lines[0].split() == ["id", "failed", "attempts", "reason", "partition", "offset", "key", "value"]
    assert lines[1].split() == ["m-1", "3", "timeout", "k", "red"]
    assert lines[3].split() == ["0-2", "0", "\\xff" * 60 + "..."]
    assert len(run("dlq", "list", "orders", "--limit", "2").text.splitlines()) == 3
    assert json.loads(run("dlq", "list", "orders", "--json").out)[0] == {
        "id": "m-1",
        "reason": "timeout",
        "attempts": 3,
        "partition": None,
        "offset": None,
        "first_failed_ms": None,
        "failed_ms": None,
        "key": "k",
        "value": "red",
    }


def test_no_dead_letters_are_an_empty_list(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    assert json.loads(run("dlq", "list", "orders", "--json").out) == []
    assert run("dlq", "list", "orders").code == 0
    mistyped = run("dlq", "list", "order")
    assert (mistyped.code, mistyped.out) == (1, b"")
    assert mistyped.err.startswith("error: topic not found: order")


@pytest.mark.usefixtures("letters")
def test_one_is_replayed_by_id_or_by_offset_and_only_once(run: Run, broker: RunningBroker) -> None:
    assert run("dlq", "replay", "orders", "m-1").text == "replayed 1 record of orders\n"
    assert run("dlq", "replay", "orders", "--offset", "1").text == "replayed 1 record of orders\n"
    assert values(broker) == [b"red", b"green"]
    again = run("dlq", "replay", "orders", "m-1")
    assert again.code == 1
    assert again.err.startswith("error: message not found")


@pytest.mark.usefixtures("letters")
def test_those_that_match_are_counted_then_replayed(run: Run, broker: RunningBroker) -> None:
    result = run("dlq", "replay", "orders", "--filter", "TIME", "--dry-run")
    assert result.text == "would replay 1 record of orders\n"
    assert values(broker) == []
    assert json.loads(run("dlq", "replay", "orders", "--filter", "TIME", "--json").out) == {
        "topic": "orders",
        "replayed": 1,
        "matched": 1,
    }
    assert run("dlq", "replay", "orders", "--all").text == "replayed 2 records of orders\n"
    assert values(broker) == [b"red", b"green", b"\xff" * 100]


@pytest.mark.usefixtures("letters")
def test_a_purge_asks_first(run: Run, broker: RunningBroker) -> None:
    refused = run("dlq", "purge", "orders")
    assert refused.code == 1
    assert "add --yes to continue" in refused.err
    assert run("dlq", "purge", "orders", "--yes").text == "purged the dead letters of orders\n"
    assert broker.connect().topics() == ["orders"]


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ([], "say which ones"),
        (["m-1", "--all"], "say which ones"),
        (["m-1", "--offset", "3"], "say which ones"),
        (["--all", "--filter", "x"], "contradict each other"),
        (["m-1", "--dry-run"], "--dry-run counts"),
    ],
)
def test_options_that_say_nothing_or_too_much_are_refused(
    run: Run, broker: RunningBroker, args: list[str], error: str
) -> None:
    result = run("dlq", "replay", "orders", *args)
    assert result.code == 2
    assert error in result.err


@pytest.mark.usefixtures("broker")
def test_the_commands_of_the_manual_do_what_it_says(run: Run) -> None:
    for block in blocks("console", page("docs/dead-letters.md")):
        for command, shown in commands_in(block):
            assert run(*shlex.split(command)[1:]).text == shown, command
