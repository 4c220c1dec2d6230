"""`penstock group` against a real broker."""

from __future__ import annotations

import json

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def billing(broker: RunningBroker) -> RunningBroker:
    """A group that has read one of three records in one partition, and one of one in the other."""
    client = broker.connect()
    client.create_topic("orders", 2)
    client.send_many("orders", [b"one", b"two", b"three"], partition=0)
    client.send("orders", b"four", partition=1)
    client.commit("orders", "billing", 0, 1)
    client.commit("orders", "billing", 1, 1)
    return broker


def test_groups_are_listed_with_their_lag_even_where_their_topic_is_gone(run: Run, billing: RunningBroker) -> None:
    billing.connect().commit("other", "audit", 0, 0)
    billing.clock.advance(75)
    assert run("group", "list").text == (
        "group    topic   state  members       lag  behind\n"
        "audit    other   empty        0  no topic       ?\n"
        "billing  orders  empty        0         2   1m15s\n"
    )
    assert json.loads(run("group", "describe", "audit", "--json").out)[0]["lag"] is None


def test_a_group_is_described_by_partition_read_or_not(run: Run, billing: RunningBroker) -> None:
    billing.connect().create_topic("unread", 3)
    billing.connect().send_many("unread", [b"x"] * 4, partition=2)
    billing.connect().commit("unread", "billing", 0, 0)
    described = (
        "topic   partition  committed  next offset  lag  behind  member\n"
        "orders          0          1            3    2      0s  -\n"
        "orders          1          1            1    0      0s  -\n"
    )
    assert run("group", "describe", "billing").text == described + (
        "unread          0          0            0    0      0s  -\n"
        "unread          1          -            0    0      0s  -\n"
        "unread          2          -            4    4      0s  -\n"
    )
    assert run("group", "describe", "billing", "--topic", "orders").text == described
    result = run("group", "describe", "billing", "--topic", "other")
    assert (result.code, result.err) == (
        1,
        "error: consumer group not found: other:billing (list them with: penstock group list or penstock subscription list)\n",
    )


def test_members_are_shown_with_their_partitions(run: Run, billing: RunningBroker) -> None:
    client = billing.connect()
    with client.consumer(["orders"], group="billing", instance_id="worker-1") as consumer:
        while not consumer.assignment:
            consumer.poll()
        member = consumer.member_id
        shown = run("group", "describe", "billing").text.splitlines()
        assert [line.split()[-1] for line in shown[:3]] == ["member", member, member]
        assert shown[4] == "generation 1, stable"
        assert shown[7].split() == [member, "worker-1", "anonymous", "2", "30s", "0s"]
        [listed] = json.loads(run("group", "list", "--json").out)
        assert (listed["state"], listed["members"], listed["generation"]) == ("stable", 1, 1)
        result = run("group", "reset", "billing", "-t", "orders", "--to", "earliest", "--yes")
        assert "group billing has members (1)" in result.err


def test_programs_get_json(run: Run, billing: RunningBroker) -> None:
    expected = [
        {
            "group": "billing",
            "topic": "orders",
            "state": "empty",
            "generation": 0,
            "members": 0,
            "lag": 2,
            "lag_ms": 0,
            "partitions": [
                {"partition": 0, "committed": 1, "next_offset": 3, "lag": 2, "lag_ms": 0, "member": None},
                {"partition": 1, "committed": 1, "next_offset": 1, "lag": 0, "lag_ms": 0, "member": None},
            ],
            "member_list": [],
        }
    ]
    assert json.loads(run("group", "list", "--json").out) == expected
    assert json.loads(run("group", "describe", "billing", "--json").out) == expected


@pytest.mark.parametrize(
    ("to", "committed"),
    [("earliest", [0, 0]), ("latest", [3, 1]), ("1970-01-01T00:00Z", [0, 0]), ("2100-01-01", [3, 1])],
)
def test_a_group_is_moved_in_all_partitions(run: Run, billing: RunningBroker, to: str, committed: list[int]) -> None:
    result = run("group", "reset", "billing", "--topic", "orders", "--to", to, "--yes", "--json")
    assert json.loads(result.out) == {
        "group": "billing",
        "topic": "orders",
        "applied": True,
        "partitions": [
            {"partition": index, "before": 1, "after": offset, "log_start": 0, "next_offset": end}
            for index, (offset, end) in enumerate(zip(committed, [3, 1], strict=True))
        ],
    }
    client = billing.connect()
    assert [client.committed("orders", "billing", index) for index in range(2)] == committed


def test_a_group_is_moved_in_one_partition(run: Run, billing: RunningBroker) -> None:
    result = run("group", "reset", "billing", "-t", "orders", "--partition", "0", "--to", "2", "-y")
    assert (result.code, result.text) == (0, "topic   partition  before  after\norders          0       1      2\n")
    client = billing.connect()
    assert [client.committed("orders", "billing", index) for index in range(2)] == [2, 1]


def test_a_dry_run_shows_what_a_shift_would_change_and_changes_nothing(run: Run, billing: RunningBroker) -> None:
    result = run("group", "reset", "billing", "-t", "orders", "--shift", "1", "--dry-run")
    shown = [line.split() for line in result.text.splitlines()[1:]]
    assert shown == [["orders", "0", "1", "2"], ["orders", "1", "1", "1"]]
    assert billing.connect().committed("orders", "billing", 0) == 1


@pytest.mark.parametrize("flags", [(), ("--to", "latest", "--shift", "1")])
def test_a_reset_goes_to_a_position_or_by_a_shift(run: Run, billing: RunningBroker, flags: tuple[str, ...]) -> None:
    result = run("group", "reset", "billing", "-t", "orders", *flags, "--yes")
    assert result.code == 2
    assert "give a position with --to, or a number of records with --shift" in result.err


@pytest.mark.parametrize("command", ["group", "subscription"])
def test_a_reset_by_records_is_not_taken_for_one_to_a_time(run: Run, billing: RunningBroker, command: str) -> None:
    result = run(command, "reset", "billing", "-t", "orders", "--to", "-100", "--yes")
    assert result.code == 2
    assert "-100 is not a position: to go back 100 records, use --shift -100" in result.err


def test_a_group_is_deleted(run: Run, billing: RunningBroker) -> None:
    assert run("group", "delete", "billing", "--yes").text == "deleted group billing in orders\n"
    assert billing.connect().groups() == []
    assert run("group", "delete", "billing", "--yes").code == 1


def test_nothing_is_moved_or_deleted_without_a_yes(run: Run, billing: RunningBroker) -> None:
    result = run("group", "reset", "billing", "-t", "orders", "--to", "earliest")
    assert result.code == 1
    assert result.err.startswith(
        "error: Move group billing in topic orders to earliest? There is no terminal to ask on"
    )
    result = run("group", "delete", "billing")
    assert result.code == 1
    assert result.err.startswith("error: Delete group billing and its offsets in orders? There is no terminal")
    assert billing.connect().committed("orders", "billing", 0) == 1


def test_no_groups_are_an_empty_table_or_a_hint(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("group", "list").text == "group  topic  state  members  lag  behind\n"
    monkeypatch.setattr("penstock.cli.terminal.on_terminal", lambda: True)
    assert run("group", "list").text == ""
