"""`penstock topic` against a real broker."""

from __future__ import annotations

import json

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_a_topic_is_created_listed_described_and_deleted(run: Run, broker: RunningBroker) -> None:
    created = run("topic", "create", "orders", "--partitions", "3", "--durability", "interval:100")
    assert (created.code, created.text) == (0, "created topic orders with 3 partitions\n")
    broker.connect().send("orders", b"one", partition=1)
    assert run("topic", "list").text == (
        "topic   partitions  records  durability\norders           3        1  interval:100\n"
    )
    described = run("topic", "describe", "orders").text
    assert "durability       interval:100\n" in described
    assert "segment_bytes    128 MiB\n" in described
    assert "retention_ms     forever\n" in described
    assert described.endswith(
        "partition  start offset  next offset  records\n"
        "        0             0            0        0\n"
        "        1             0            1        1\n"
        "        2             0            0        0\n"
    )
    deleted = run("topic", "delete", "orders", "--yes")
    assert (deleted.code, deleted.text) == (0, "deleted topic orders\n")
    assert broker.connect().topics() == []


def test_every_setting_of_a_topic_can_be_given(run: Run, broker: RunningBroker) -> None:
    result = run(
        "topic",
        "create",
        "t",
        "--durability=none",
        "--retention=7d",
        "--max-bytes=10 GiB",
        "--cleanup=compact",
        "--compression=zstd",
        "--segment-size=1 MiB",
        "--segment-age=1h",
        "--json",
    )
    config = json.loads(result.out)["config"]
    assert {key: value for key, value in config.items() if key not in ("id", "created_ms")} == {
        "durability": "none",
        "retention_ms": 604_800_000,
        "retention_bytes": 10 << 30,
        "cleanup": "compact",
        "compression": "zstd",
        "segment_bytes": 1 << 20,
        "segment_ms": 3_600_000,
    }


def test_a_wrong_setting_is_refused_by_name(run: Run, broker: RunningBroker) -> None:
    result = run("topic", "create", "t", "--durability", "sometimes")
    assert result.code == 2
    assert "durability 'sometimes' is not known: use fsync, none, or interval:<ms>" in result.err
    assert broker.connect().topics() == []


def test_a_topic_that_exists_is_an_error_unless_that_is_fine(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders", 2)
    result = run("topic", "create", "orders")
    assert (result.code, result.err) == (
        1,
        "error: topic orders exists: choose another name, or add --exist-ok to leave it as it is\n",
    )
    result = run("topic", "create", "orders", "--exist-ok")
    assert (result.code, result.text) == (0, "topic orders exists, with 2 partitions\n")
    assert json.loads(run("topic", "create", "orders", "--exist-ok", "--json").out)["created"] is False


def test_programs_get_json_wherever_the_option_stands(run: Run, broker: RunningBroker) -> None:
    broker.connect().send("orders", b"one")
    listed = json.loads(run("topic", "list", "--json").out)
    assert [(each["name"], each["partitions"]) for each in listed] == [
        ("orders", [{"partition": 0, "start_offset": 0, "next_offset": 1}])
    ]
    assert json.loads(run("--json", "topic", "describe", "orders").out) == listed[0]


def test_the_server_may_stand_before_the_command(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER", "127.0.0.1:1")
    assert run("--server", broker.url, "topic", "list").code == 0
    assert run("topic", "list", "-s", broker.address).code == 0
    assert run("-s", "127.0.0.1:1", "topic", "list", "-s", broker.address).code == 0
    assert run("topic", "list").code == 1


def test_no_topics_are_an_empty_table_or_a_hint(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("topic", "list").text == "topic  partitions  records  durability\n"
    monkeypatch.setattr("penstock.cli.terminal.on_terminal", lambda: True)
    assert run("topic", "list").text == ""


def test_a_topic_that_is_not_there_is_an_error_that_says_where_to_look(run: Run, broker: RunningBroker) -> None:
    result = run("topic", "describe", "nope")
    assert (result.code, result.err) == (
        1,
        "error: topic not found: nope (list them with: penstock topic list)\n",
    )
    assert run("topic", "delete", "nope", "--yes").code == 1


def test_nothing_is_deleted_without_a_yes(run: Run, broker: RunningBroker) -> None:
    broker.connect().send_many("orders", [b"one", b"two"])
    result = run("topic", "delete", "orders")
    assert result.code == 1
    assert result.err == (
        "error: Delete topic orders with 2 records? They cannot be brought back. "
        "There is no terminal to ask on: add --yes to continue\n"
    )
    assert broker.connect().topics() == ["orders"]


def test_several_topics_are_deleted_together_or_not_at_all(run: Run, broker: RunningBroker) -> None:
    client = broker.connect()
    client.create_topic("a")
    client.create_topic("b")
    assert run("topic", "delete", "a", "nope", "--yes").code == 1
    assert client.topics() == ["a", "b"]
    assert run("topic", "delete", "a", "b", "a", "-y").text == "deleted topic a\ndeleted topic b\n"
    assert client.topics() == []


# -- changing a topic ------------------------------------------------------------------------------------------------------


def test_settings_of_a_topic_are_altered_and_shown_before_and_after(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders", 2)
    result = run("topic", "alter", "orders", "--set", "retention=7d", "--set", "segment-size=1 MiB")
    assert (result.code, result.text) == (
        0,
        "retention_ms: forever -> 7d\nsegment_bytes: 128 MiB -> 1 MiB\naltered topic orders\n",
    )
    config = broker.connect().describe_topic("orders").config
    assert (config["retention_ms"], config["segment_bytes"]) == ("604800000", str(1 << 20))
    assert run("topic", "alter", "orders", "--set", "retention=7d").text == "topic orders is unchanged\n"
    result = run("topic", "alter", "orders", "--set", "retention_ms=forever", "--json")
    assert json.loads(result.out)["config"]["retention_ms"] is None


@pytest.mark.parametrize(
    ("given", "code", "error"),
    [
        (["retention"], 2, "--set retention has no value: write SETTING=VALUE, as in retention=7d"),
        (["partitions=3"], 2, "partitions is not a setting that can be altered: use durability, retention, max-bytes"),
        (["name=x"], 2, "name is not a setting that can be altered"),
        (["retention=7d", "retention_ms=8d"], 2, "a setting is given twice"),
        (["durability=sometimes"], 2, "durability 'sometimes' is not known: use fsync, none, or interval:<ms>"),
        (["segment_bytes=1"], 2, "topic setting segment_bytes is 1: it must be between"),
    ],
)
def test_a_wrong_setting_alters_nothing(
    run: Run, broker: RunningBroker, given: list[str], code: int, error: str
) -> None:
    broker.connect().create_topic("orders")
    before = broker.connect().describe_topic("orders")
    result = run("topic", "alter", "orders", *(word for each in given for word in ("--set", each)))
    assert result.code == code
    assert error in " ".join(result.err.replace("│", " ").split())
    assert broker.connect().describe_topic("orders") == before


def test_partitions_are_added_and_never_removed(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders", 2)
    result = run("topic", "add-partitions", "orders", "--to", "5")
    assert (result.code, result.text) == (0, "topic orders has 5 partitions, 3 of them new\n")
    assert len(json.loads(run("topic", "add-partitions", "orders", "--to", "5", "--json").out)["partitions"]) == 5
    result = run("topic", "add-partitions", "orders", "--to", "4")
    assert result.code == 1
    assert "topic orders has 5 partitions, and partitions cannot be removed" in result.err


def test_the_oldest_records_are_deleted_by_offset_time_or_altogether(run: Run, broker: RunningBroker) -> None:
    client = broker.connect()
    client.create_topic("orders", 2)
    client.send_many("orders", [b"0", b"1", b"2"], partition=0)
    client.send_many("orders", [b"0", b"1", b"2"], partition=1)
    result = run("topic", "truncate", "orders", "--before", "2", "--partition", "1", "--yes")
    assert (result.code, result.text) == (
        0,
        (
            "partition  start offset  next offset  deleted\n"
            "        0             0            3        0\n"
            "        1             2            3        2\n"
        ),
    )
    assert [record.value for record in client.records("orders", 1)] == [b"2"]
    result = run("topic", "truncate", "orders", "--before", "2", "--yes")
    assert result.code == 1
    assert "topic orders has 2 partitions, and an offset is a place in one of them" in result.err
    result = run("topic", "truncate", "orders", "--before", "9", "--partition", "0", "--yes")
    assert (result.code, result.err) == (
        1,
        "error: offset 9 is out of range: topic 'orders' partition 0 ends at 3; nothing was deleted\n",
    )
    assert run("topic", "truncate", "orders", "--before", "-1h", "--yes").code == 0
    assert len(list(client.records("orders"))) == 4
    result = run("topic", "truncate", "orders", "--before", "latest", "--yes", "--json")
    assert [each["start_offset"] for each in json.loads(result.out)["partitions"]] == [3, 3]
    assert list(client.records("orders")) == []


def test_truncating_asks_first(run: Run, broker: RunningBroker) -> None:
    broker.connect().send("orders", b"one")
    assert run("topic", "truncate", "orders", "--before", "latest").code != 0
    assert len(list(broker.connect().records("orders"))) == 1
    assert run("topic", "truncate", "orders", "--before", "earliest", "--yes").code == 2
