"""`penstock schema` against a real broker; and the commands of the manual, run as they stand there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run
from tests.manual import page, run_shown

ORDER = '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
PROTO = 'syntax = "proto3"; package shop; message Order { int64 id = 1; } message Refund { string why = 1; }'


@pytest.fixture
def order(broker: RunningBroker, run: Run) -> None:
    assert (
        run("schema", "register", "order", input=ORDER.encode()).text == "registered order-v1 (backward compatible)\n"
    )


@pytest.mark.parametrize(
    ("name", "definition", "kind"),
    [("o.json", "{}", "json"), ("o.avsc", '"int"', "avro"), ("o.proto", PROTO, "protobuf"), ("o.txt", "{}", "json")],
)
def test_the_type_follows_from_the_name_of_the_file(
    run: Run, broker: RunningBroker, tmp_path: Path, name: str, definition: str, kind: str
) -> None:
    (tmp_path / name).write_text(definition)
    registered = json.loads(run("schema", "register", "s", name, "--compatibility", "full", "--json").out)
    assert (registered["id"], registered["type"], registered["compatibility"]) == ("s-v1", kind, "full")
    shown = json.loads(run("schema", "get", "s", "--json").out)
    assert (shown["type"], shown["definition"]) == (kind, definition)


@pytest.mark.usefixtures("order")
def test_schemas_are_listed_and_shown(run: Run) -> None:
    lines = run("schema", "list").text.splitlines()
    assert lines[0].split() == ["schema", "version", "type", "compatibility", "created"]
    assert lines[1].split()[:4] == ["order", "1", "json", "backward"]
    assert run("schema", "list", "other").text.splitlines()[1:] == []
    assert run("schema", "get", "order:1").text == ORDER + "\n"
    missing = run("schema", "get", "order:9")
    assert (missing.code, missing.err) == (
        1,
        "error: schema not found: order v9 (list them with: penstock schema list)\n",
    )


@pytest.mark.usefixtures("order")
def test_a_record_is_validated_from_an_argument_a_file_or_the_input(run: Run, tmp_path: Path) -> None:
    assert run("schema", "validate", "order", '{"id": 1}').text == "valid\n"
    (tmp_path / "record").write_bytes(b'{"id": 1}')
    assert run("schema", "validate", "order:1", "--file", "record").code == 0
    wrong = run("schema", "validate", "order", input=b"{}")
    assert (wrong.code, wrong.text) == (1, '"id" is a required property\n')
    told = run("schema", "validate", "order", "{}", "--json")
    assert json.loads(told.out) == {"valid": False, "reasons": ['"id" is a required property']}


def test_an_empty_definition_is_refused_before_anybody_is_asked(run: Run) -> None:
    result = run("schema", "register", "order", input=b"\n")
    assert result.code == 2
    assert "standard input is empty: name the FILE with the definition, or write it to standard input" in result.err


@pytest.mark.usefixtures("order")
def test_records_are_produced_by_a_schema_and_those_at_fault_are_told(run: Run, broker: RunningBroker) -> None:
    good = run("produce", "orders", "--schema", "order", "--key-separator", ";", input=b'a;{"id": 1}\nb;{"id": 2}\n')
    assert good.text == "stored 2 records in orders: partition 0, offsets 0 to 1\n"
    bad = run("produce", "orders", "--schema", "order", input=b'{"id": 3}\n{}\n{"id": 4}\n')
    assert bad.code == 1
    assert "stored 2 records in orders" in bad.err
    assert "1 of 3 records were not acknowledged" in bad.err
    assert [record.value for record in broker.connect().records("orders")] == [
        b'{"id": %d}' % number for number in (1, 2, 3, 4)
    ]
    assert run("produce", "orders", "x", "--schema", "order", "--delay", "5m").code == 2


@pytest.mark.usefixtures("order")
def test_a_topic_is_bound_described_and_released(run: Run, broker: RunningBroker) -> None:
    broker.connect().create_topic("orders")
    assert run("schema", "bind", "orders", "order:1").text == "topic orders is bound to order:1\n"
    assert "order:1" in run("topic", "describe", "orders").text
    assert run("produce", "orders", "nonsense").err.startswith("error: schema validation failed: not a JSON document")
    assert run("schema", "delete", "order", "--yes").err.startswith("error: invalid request: schema order cannot be")
    assert run("schema", "bind", "orders", "--none").code == 0
    assert run("produce", "orders", "nonsense").code == 0
    assert run("schema", "delete", "order", "--yes").text == "deleted schema order with all its versions\n"
    assert run("topic", "create", "more", "--schema", "order").err.startswith("error: schema not found: order")


def test_messages_of_a_protobuf_schema_are_named_behind_a_colon(run: Run, broker: RunningBroker) -> None:
    run("schema", "register", "shop", "--type", "protobuf", input=PROTO.encode())
    assert run("schema", "validate", "shop:Refund", input=b"\x0a\x01x").text == "valid\n"
    assert run("schema", "validate", "shop:1:shop.Refund", input=b"\x08\x01").code == 1
    assert "no message 'Nope'" in run("schema", "validate", "shop:Nope", input=b"").err


@pytest.mark.parametrize(
    "args",
    [
        ("bind", "orders"),
        ("bind", "orders", "order", "--none"),
        ("get", "order:x"),
        ("get", "order:0"),
        ("delete", "order:1:2"),
        ("validate", "order", "x", "--file", "y"),
    ],
)
def test_a_wrong_command_line_is_refused(run: Run, args: tuple[str, ...]) -> None:
    assert run("schema", *args).code == 2


def test_a_definition_that_is_not_text_is_refused(run: Run) -> None:
    assert run("schema", "register", "s", input=b"\xff").code == 2


@pytest.mark.timeout(240)
def test_the_commands_of_the_manual_do_what_it_says(penstock_broker: RunningBroker, tmp_path: Path) -> None:
    printed, shown = run_shown(page("docs/schemas.md"), penstock_broker.url, tmp_path)
    assert printed == shown


ONE = b'{"type":"object","properties":{"id":{"type":"string"}},"required":["id"]}'
TWO = b'{"type":"object","properties":{"id":{"type":"string"},"price":{"type":"number"}},"required":["id"]}'
BREAKING = b'{"type":"object","properties":{"id":{"type":"string"},"no":{"type":"number"}},"required":["id","no"]}'


def test_versions_are_compared_line_by_line_and_by_compatibility(run: Run, broker: RunningBroker) -> None:
    run("schema", "register", "order", "--compatibility", "none", input=ONE)
    alone = run("schema", "diff", "order")
    assert (alone.code, alone.out) == (2, b"")
    run("schema", "register", "order", "--compatibility", "backward", input=TWO)
    result = run("schema", "diff", "order")
    assert result.code == 0
    assert result.text.startswith("--- order:1\n+++ order:2\n")
    assert '+      "type": "number"' in result.text
    assert "backward: compatible" in result.text
    assert run("schema", "diff", "order:2", "order:2").text.startswith("the definitions are the same\n")
    document = json.loads(run("schema", "diff", "order:1", "order:2", "--json").out)
    assert (document["older"], document["newer"], document["compatibility"]) == ("order:1", "order:2", "backward")
    assert document["problems"]["backward"] == []


def test_a_file_is_judged_as_registering_it_would(run: Run, broker: RunningBroker, tmp_path: Path) -> None:
    run("schema", "register", "order", input=ONE)
    (tmp_path / "next.json").write_bytes(BREAKING)
    result = run("schema", "diff", "order", "next.json")
    assert result.code == 1
    assert "backward: not compatible" in result.text
    assert run("schema", "register", "order", "next.json").code == 1
    (tmp_path / "next.json").write_bytes(TWO)
    assert run("schema", "diff", "order", "next.json").code == 0
    (tmp_path / "next.json").write_text("{")
    assert run("schema", "diff", "order", "next.json").code == 1
    assert run("schema", "diff", "order", "order:9").code == 1
