"""`penstock user` against a real broker that asks who is there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import RunningBroker
from tests.cli.conftest import Run


def test_users_are_created_listed_changed_and_deleted(run: Run, guarded: RunningBroker) -> None:
    assert run("user", "create", "ann", "--role", "producer", "--password-stdin", input=b"secret\n").text == (
        "created user ann\n"
    )
    assert run("user", "update", "ann", "-r", "consumer", "-r", "guest").text == "updated user ann\n"
    assert run("user", "update", "ann", "--disable").text == "updated user ann\n"
    [row] = json.loads(run("user", "list", "--json").out)
    assert (row["user"], row["roles"], row["enabled"]) == ("ann", ["consumer", "guest"], False)
    listed = run("user", "list").text.splitlines()
    assert listed[0].split() == ["user", "roles", "enabled", "created"]
    assert listed[1].startswith("ann   consumer, guest  no       20")
    described = run("user", "describe", "ann").text
    assert "permissions  read\n" in described
    assert json.loads(run("user", "describe", "ann", "--json").out)["permissions"] == ["read"]
    assert run("user", "delete", "ann", "--yes").text == "deleted user ann\n"
    assert run("user", "describe", "ann").err == ('error: user "ann" not found (list them with: penstock user list)\n')


def test_a_password_comes_from_a_variable_or_standard_input_and_never_from_an_argument(
    run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("user", "create", "ann")
    assert result.code == 1
    assert "set PENSTOCK_NEW_PASSWORD, or add --password-stdin" in result.err
    assert run("user", "create", "ann", "--password-stdin", input=b"\n").err.startswith(
        "error: the new password is empty"
    )
    assert run("user", "create", "ann", "--password", "x").code == 2
    with monkeypatch.context() as patch:
        patch.setenv("PENSTOCK_NEW_PASSWORD", "sécret/@:?")
        assert run("user", "create", "ann").code == 0
    monkeypatch.setenv("PENSTOCK_PASSWORD", "sécret/@:?")
    who = run("--server", f"flymq://ann@{guarded.address}", "user", "whoami", "--json")
    assert json.loads(who.out) == {"user": "ann", "roles": [], "permissions": []}


def test_people_are_asked_for_passwords_without_an_echo(
    run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_PASSWORD")
    asked: list[tuple[str, dict[str, object]]] = []

    def prompt(text: str, **how: object) -> str:
        asked.append((text, how))
        return "admin" if text == "Password of admin" else "new"

    monkeypatch.setattr("typer.prompt", prompt)

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("penstock.cli.passwords.sys", type("sys", (), {"stdin": Terminal()}))
    assert run("user", "create", "ann").text == "created user ann\n"
    assert [text for text, _ in asked] == ["New password of ann", "Password of admin"]
    assert all(how["hide_input"] and how["err"] for _, how in asked)


def test_an_own_password_is_changed_with_the_one_that_logged_in(
    run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("user", "create", "ann", "--password-stdin", input=b"old")
    server = f"flymq://ann@{guarded.address}"
    monkeypatch.setenv("PENSTOCK_PASSWORD", "old")
    changed = run("-s", server, "user", "passwd", "ann", "--password-stdin", input=b"new")
    assert changed.text == "changed the password of ann\n"
    refused = run("-s", server, "user", "whoami")
    assert refused.code == 1
    assert "invalid username or password" in refused.err
    monkeypatch.setenv("PENSTOCK_PASSWORD", "admin")
    assert run("user", "passwd", "ann", "--password-stdin", input=b"newer").code == 0


def test_a_certificate_gets_a_user_with_a_password_nobody_knows(run: Run, guarded: RunningBroker) -> None:
    assert run("user", "create", "CN=billing,O=Example", "-r", "consumer", "--certificate").code == 0
    [row] = json.loads(run("user", "list", "--json").out)
    assert row["user"] == "CN=billing,O=Example"


def test_whoami_shows_the_authenticated_user(run: Run, guarded: RunningBroker) -> None:
    assert run("user", "whoami").text == "user         admin\nroles        admin\npermissions  read, write, admin\n"
    nobody = run("-s", guarded.url, "user", "whoami")
    assert nobody.text == "anonymous: this broker requires no authentication, or you have not logged in\n"


def test_nothing_to_change_and_no_yes_are_said(run: Run, guarded: RunningBroker) -> None:
    nothing = run("user", "update", "ann")
    assert nothing.code == 2
    assert "nothing to change: add --role, --enable or --disable" in nothing.err
    assert run("user", "delete", "ann").err.startswith("error: Delete user ann? There is no terminal to ask on")


def test_the_first_administrator_is_made_with_what_is_in_the_data_directory(run: Run) -> None:
    with RunningBroker(listeners={"flymq": {"auth": "required"}}) as broker:
        where = ("--data-dir", str(broker.data_dir), "--server", broker.url)
        token = broker.data_dir / "setup-token"
        assert token.stat().st_mode & 0o777 == 0o600
        assert run("-s", broker.url, "topic", "list").code == 1
        made = run("user", "setup", "--user", "root", "--password-stdin", *where, input=b"secret\n")
        assert made.text == (f"created administrator root; log in with --server flymq://root@{broker.address}\n")
        assert not token.exists()
        again = run("user", "setup", "--password-stdin", *where, input=b"secret\n")
        assert again.code == 1
        assert "the broker has an administrator already" in again.err
        assert run("-s", f"flymq://root:secret@{broker.address}", "topic", "list").code == 0


@pytest.mark.usefixtures("guarded")
def test_a_login_without_a_password_says_where_one_comes_from(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_PASSWORD")
    assert run("topic", "list").err.endswith("; no password was given: set PENSTOCK_PASSWORD\n")


PAGE = Path(__file__).parents[2] / "docs" / "access.md"
ADDRESS = "127.0.0.1:9092"


def commands_of(page: str) -> Iterator[tuple[str, str]]:
    """Each command that the page shows, with what it says is printed ('' where it shows nothing)."""
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for part in block.removeprefix("$ ").split("\n$ "):
            command, _, output = part.partition("\n")
            yield command, output if output.endswith("\n") or not output else output + "\n"


def test_the_commands_of_the_manual_run_as_written(
    run: Run, guarded: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = list(commands_of(PAGE.read_text()))
    assert len(shown) > 20
    for command, output in shown:
        given, _, command = command.rpartition(" | ")
        words = shlex.split(command.replace(ADDRESS, guarded.address))
        if words[0] == "export":
            monkeypatch.setenv(*words[1].split("=", 1))
        elif words[:2] != ["penstock", "serve"]:
            result = run(*words[1:], input=given.removeprefix("echo '").rstrip("'").encode())
            printed = result.text + result.err
            assert printed == output or not output, command
            assert result.code == printed.startswith("error:"), command


def test_the_python_of_the_manual_runs_as_written(
    guarded: RunningBroker, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code.replace(ADDRESS, guarded.address), {})
    assert capfdbinary.readouterr().out.endswith(b" acl.set\n")
