"""What every command has in common: help, version, exit codes, and errors that fit on a line."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import penstock
from penstock.cli import main as cli
from penstock.cli import terminal
from penstock.testing import RunningBroker
from tests.cli.conftest import Run
from tests.manual import ROOT, blocks, commands_in, page

COMMAND = re.compile(
    r"""(?:^|[|;] )penstock (?:--json |(?:--server|-s|--context) \S+ )*((?:'[^']*'|"[^"]*"|[^|;&<>#\n'"])*)""",
    re.MULTILINE,
)
"""A command with its arguments, up to what is the shell's."""

COMMANDS = [
    ["serve"],
    ["topic", "create"],
    ["topic", "list"],
    ["topic", "describe"],
    ["topic", "delete"],
    ["produce"],
    ["consume"],
    ["group", "list"],
    ["group", "describe"],
    ["group", "reset"],
    ["group", "delete"],
    ["delayed", "cancel"],
    ["dlq", "list"],
    ["dlq", "replay"],
    ["dlq", "purge"],
    ["bench"],
    ["doctor"],
    ["config", "check"],
]


def test_the_version_is_that_of_the_package(run: Run) -> None:
    result = run("--version")
    assert (result.code, result.text) == (0, f"penstock {penstock.__version__}\n")


def test_help_lists_every_command_in_the_order_of_need(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    places = [result.text.index(f"\n  {command} ") for command in cli.ORDER]
    assert places == sorted(places)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_an_example_and_fits_eighty_columns(run: Run, command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.code == 0
    assert "Examples:" in result.text
    assert f"penstock {' '.join(command)}" in result.text.partition("Examples:")[2]
    assert max(map(len, result.text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["topic", "lst"], "error: No such command 'lst'. Did you mean 'list'? (see: penstock topic --help)\n"),
        (["produce"], "error: Missing argument 'TOPIC' (see: penstock produce --help)\n"),
        (["consume", "t", "-Z"], "error: No such option: -Z (see: penstock consume --help)\n"),
        (["consume", "t", "-g"], "error: Option '-g' requires an argument (see: penstock consume --help)\n"),
        (
            ["produce", "t", "v", "--whole"],
            (
                "error: Invalid value: VALUE is the record itself: leave it out to use --file, --whole or --key-separator "
                "(see: penstock produce --help)\n"
            ),
        ),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_one_line(run: Run, args: list[str], error: str) -> None:
    result = run(*args)
    assert (result.code, result.out, result.err) == (2, b"", error)


@pytest.mark.parametrize("value", ["0", "many"])
def test_a_value_that_is_refused_is_named(run: Run, value: str) -> None:
    result = run("consume", "t", "--max", value)
    assert result.code == 2
    assert result.err.startswith("error: Invalid value for '--max' / '-n': ")
    assert value in result.err


def test_a_broker_that_is_not_there_ends_with_1_and_says_what_to_do(run: Run) -> None:
    result = run("topic", "list", "--server", "127.0.0.1:1")
    assert result.code == 1
    assert result.err == (
        "error: cannot connect to flymq://127.0.0.1:1: nothing listens there; is the broker running? "
        "Start one with: penstock serve, or name another with --server\n"
    )


@pytest.mark.parametrize("scheme", ["amqp", "blipmq", "felix"])
def test_an_address_of_another_protocol_is_refused(run: Run, scheme: str) -> None:
    result = run("--server", f"{scheme}://x@127.0.0.1:1", "topic", "list")
    assert result.code == 2
    assert result.err == (
        f"error: Invalid value for --server: this command requires FlyMQ, not {scheme}: write flymq://host:port, "
        "or flymqs:// for TLS (see: penstock topic list --help)\n"
    )


@pytest.mark.parametrize("args", [[], ["topic"], ["pipeline"]])
def test_a_group_without_a_command_shows_its_help_and_nothing_else(run: Run, args: list[str]) -> None:
    result = run(*args)
    assert result.code == 2
    assert result.err == ""
    assert "Usage: penstock" in result.text


@cache
def root_command() -> Any:
    return typer.main.get_command(cli.app)


def test_help_fits_a_terminal_of_80_columns() -> None:
    seen = 0
    for words, command in every_command(root_command(), ()):
        paragraphs = re.sub(r"\[/?bold\]", "", command.help).split("\n\n")
        lines = [line for paragraph in paragraphs[1:] for line in paragraph.splitlines()]  # the first is filled
        assert max(map(len, lines), default=0) <= 78, words
        seen += len([line for line in lines if line.startswith("$ ")])
    assert seen > 100


DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("document", [*DOCUMENTS, "README.md"])
def test_every_command_that_a_document_shows_can_be_given(document: str) -> None:
    shown = [command for block in blocks("console", page(document)) for command, _ in commands_in(block)]
    for words in [shlex.split(each) for command in shown for each in COMMAND.findall(command)]:
        known = root_command()
        while hasattr(known, "commands"):
            name, *words = words
            known = known.commands[name]
        known.make_context(known.name, words)  # raises where an argument is missing, or an option is not known


def every_command(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if command.help:
        yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from every_command(child, (*words, name))


def test_output_that_finds_no_room_is_one_line(penstock_broker: RunningBroker) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "penstock", "topic", "list", "--server", penstock_broker.url],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


def test_a_file_that_cannot_be_opened_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise PermissionError(13, "Permission denied", "secret.txt")

    monkeypatch.setattr(terminal, "flush", fail)
    result = run("config", "check")
    assert (result.code, result.err) == (1, "error: secret.txt: Permission denied\n")


def test_a_fault_of_ours_is_one_line_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(terminal, "flush", fail)
    result = run("config", "check")
    assert result.code == 1
    assert result.err.startswith(
        "error: ZeroDivisionError: division by zero. This is a bug in Penstock: run it again as"
    )
    with pytest.raises(ZeroDivisionError):
        cli.app(["--debug", "config", "check"], standalone_mode=False)


def test_a_name_that_is_not_utf8_is_refused(penstock_broker: RunningBroker) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "produce", b"\xff", "value", "--server", penstock_broker.url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: '\\udcff' is not valid UTF-8 text: write it in UTF-8\n"


def test_an_old_locale_does_not_end_a_command(penstock_broker: RunningBroker) -> None:
    penstock_broker.connect().create_topic("gr\u00fcn")
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "topic", "list", "--server", penstock_broker.url],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii"},
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xfcn" in done.stdout


def test_debug_shows_the_traceback(run: Run) -> None:
    with pytest.raises(penstock.errors.Unreachable):
        cli.app(["--debug", "topic", "list", "-s", "127.0.0.1:1"], standalone_mode=False)


def test_an_interrupt_ends_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(terminal, "flush", interrupt)
    result = run("config", "check")
    assert result.code == 130
    assert "Traceback" not in result.err


def test_saying_no_ends_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def abort() -> None:
        raise typer.Abort

    monkeypatch.setattr(terminal, "flush", abort)
    assert run("config", "check").code == 1


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "penstock", "config", "check"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    error = command.stderr.read()
    command.stderr.close()
    assert (command.wait(), error) == (141, b"")


def test_importing_the_commands_imports_nothing_heavy() -> None:
    heavy = "numpy pydantic rich.table uvloop msgspec starlette structlog asyncio"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys, penstock.cli.main; print([m for m in {heavy.split()} if m in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("closed", [">&-", ">&- <&-"])
def test_closed_streams_are_no_descriptors_for_sockets(closed: str) -> None:
    command = f'"$0" -m penstock topic list --server flymq://127.0.0.1:1 {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: cannot connect to flymq://127.0.0.1:1")
    command = f'"$0" -m penstock version {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
