"""Contexts: named addresses with credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from penstock.cli import options
from penstock.testing import RunningBroker
from tests.cli.conftest import Run


@pytest.fixture
def guarded(run: Run) -> Iterator[RunningBroker]:
    with RunningBroker(dev=True, listeners={"flymq": {"auth": "required"}}) as broker:
        yield broker


def test_a_context_logs_in_with_the_password_it_keeps_and_never_prints_it(run: Run, guarded: RunningBroker) -> None:
    server = f"flymq://admin@{guarded.address}"
    created = run("context", "create", "prod", "--server", server, "--password-stdin", input=b"admin\n")
    assert (created.code, created.text) == (0, "saved context prod; it is in use now\n")
    assert json.loads(run("user", "whoami", "--json").out)["user"] == "admin"
    for args in (["list"], ["show"], ["list", "--json"], ["show", "prod", "--json"]):
        result = run("context", *args)
        assert result.code == 0
        assert "stored" in result.text
        assert ":admin@" not in result.text
    wrong = run("context", "create", "wrong", "--server", server, "--password-stdin", input=b"nope\n")
    assert wrong.text == "saved context wrong\n"
    refused = run("--context", "wrong", "topic", "list")
    assert refused.code == 1
    assert "nope" not in refused.err


def test_flags_go_before_variables_and_those_before_the_context_in_use(
    run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = "flymq://127.0.0.1:1"
    run(
        "context",
        "create",
        "here",
        "--server",
        f"flymq://admin@{guarded.address}",
        "--password-stdin",
        input=b"admin\n",
    )
    run("context", "create", "there", "--server", nowhere)
    assert run("topic", "list").code == 0
    assert run("--context", "there", "topic", "list").code == 1
    assert run("-s", nowhere, "topic", "list").code == 1
    monkeypatch.setenv("PENSTOCK_CONTEXT", "there")
    assert run("topic", "list").code == 1
    assert run("--context", "here", "topic", "list").code == 0
    monkeypatch.delenv("PENSTOCK_CONTEXT")
    monkeypatch.setenv("PENSTOCK_SERVER", nowhere)
    assert run("topic", "list").code == 1
    assert run("--context", "here", "topic", "list").code == 0


def test_one_is_chosen_shown_and_deleted(run: Run) -> None:
    run("context", "create", "a", "--server", "127.0.0.1:1", "--admin", "127.0.0.1:2")
    run("context", "create", "b", "--server", "flymq://127.0.0.1:3")
    assert run("context", "list").text.splitlines()[1:] == [
        "*  a        flymq://127.0.0.1:1  http://127.0.0.1:2  -",
        "   b        flymq://127.0.0.1:3  -                   -",
    ]
    assert run("context", "use", "b").text == "context b is in use\n"
    assert json.loads(run("context", "show", "--json").out) == {
        "context": "b",
        "current": True,
        "server": "flymq://127.0.0.1:3",
        "admin": None,
        "password": None,
    }
    assert run("context", "use", "--none").text == "no context is in use\n"
    assert run("context", "show").code == 1
    assert run("context", "delete", "a").code == 1
    assert run("context", "delete", "a", "--yes").text == "deleted context a\n"
    assert [each["context"] for each in json.loads(run("context", "list", "--json").out)] == ["b"]


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (
            ["create", "x", "--server", "flymq://a:secret@h:1"],
            2,
            "a password on the command line can be seen by others",
        ),
        (["create", "x", "--server", "flymq://"], 2, "is not a broker address"),
        (["create", "x", "--server", "h:1", "--admin", "ftp://h"], 2, "is not an admin address"),
        (["create", "x", "--server", "h:1", "--password-stdin"], 2, "there is no user for the password"),
        (["create", "a b", "--server", "h:1"], 2, "is not a name"),
        (["create", "a", "--server", "h:1"], 1, "context a exists"),
        (["use", "x"], 1, "context not found: x"),
        (["use"], 2, "name a context, or use --none"),
        (["show", "x"], 1, "context not found: x"),
        (["delete", "x", "--yes"], 1, "context not found: x"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, args: list[str], code: int, error: str) -> None:
    run("context", "create", "a", "--server", "h:1")
    result = run("context", *args)
    assert (result.code, result.out) == (code, b"")
    assert error in result.err
    assert "secret" not in result.err


def test_a_context_that_is_not_there_is_named(run: Run) -> None:
    assert "context not found: x" in run("--context", "x", "topic", "list").err


def test_an_address_with_an_option_of_its_protocol_can_be_saved_and_used(run: Run) -> None:
    with RunningBroker() as broker:
        server = f"{broker.url}?idempotent=false"
        assert run("context", "create", "plain", "--server", server).code == 0
        assert run("produce", "orders", "one").code == 0
        assert "address option" not in run("status", "--server", server).err
        refused = run("context", "create", "other", "--server", "blipmq://127.0.0.1:1?idempotent=false")
        assert refused.code == 2
        assert "address option 'idempotent' is unknown" in refused.err


def test_a_password_that_is_not_text_is_refused_and_not_printed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PASSWORD", "secret\udcff")
    for args in (
        ["context", "create", "prod", "--server", "flymq://alice@127.0.0.1:1"],
        ["--server", "flymq://alice@127.0.0.1:1", "topic", "list"],
    ):
        refused = run(*args)
        assert refused.code == 1
        assert refused.err == "error: the password is not valid UTF-8 text: give it in UTF-8\n"


def test_the_admin_address_is_that_of_the_broker_that_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*args: str) -> str:
        result = run(*args, "status")
        assert result.code == 1
        return result.err.partition("cannot reach the admin address ")[2].partition(" ")[0]

    run("context", "create", "here", "--server", "flymq://127.0.0.1:1", "--admin", "http://127.0.0.1:2")
    assert asked() == "http://127.0.0.1:2"
    assert asked("--server", "flymq://127.0.0.3:1") == "http://127.0.0.3:9600"
    monkeypatch.setenv("PENSTOCK_SERVER", "flymq://127.0.0.4:1")
    assert asked() == "http://127.0.0.4:9600"
    assert asked("--context", "here") == "http://127.0.0.1:2"
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "http://127.0.0.1:3")
    assert asked() == "http://127.0.0.1:3"
    assert asked("--context", "here") == "http://127.0.0.1:2"


def test_of_several_nodes_the_first_that_answers_is_used(
    run: Run, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = f"127.0.0.1:1,{broker.address}"
    assert run("-s", nodes, "topic", "create", "orders").code == 0
    monkeypatch.setenv("PENSTOCK_SERVER", f"flymq://{nodes}")
    assert run("topic", "list").text.startswith("topic")
    monkeypatch.delenv("PENSTOCK_SERVER")
    assert run("context", "create", "nodes", "--server", nodes).code == 0
    assert run("topic", "list").text.startswith("topic")
    refused = run("context", "create", "wrong", "--server", "a:1,,b:2")
    assert refused.code == 2
    assert "has a comma without a host next to it" in " ".join(refused.err.split())


def test_of_several_nodes_the_admin_address_is_that_of_the_first_that_answers(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunningBroker(admin=True) as broker:
        host, _, port = broker.addresses["admin"].rpartition(":")
        monkeypatch.setattr(options, "ADMIN_PORT", int(port))
        result = run("status", "--json", "--server", f"127.0.0.9:1,{host}:1,127.0.0.8:1")
    assert json.loads(result.out)["admin"] == f"http://{host}:{port}"
    nobody = run("status", "--server", f"127.0.0.9:1,{host}:1")
    assert f"127.0.0.9:{port}" in nobody.err
