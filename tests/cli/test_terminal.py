"""What reaches the terminal, and in which form."""

from __future__ import annotations

import io

import pytest
import typer

from penstock.cli import terminal
from penstock.errors import InvalidRequest
from tests.cli.conftest import COLOUR_VARIABLES


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that asks for nothing."""
    for name in COLOUR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert terminal.visible("a\x1b]0;title\x07b\nc\rd\te\x9bf") == "a\\x1b]0;title\\x07b\\nc\\rd\te\\x9bf"


def test_bytes_are_text_where_they_are_utf8() -> None:
    assert terminal.visible_bytes("grün €".encode()) == "grün €"
    assert terminal.visible_bytes(b"a\xff\x00b") == "a\\xff\\x00b"


def test_in_a_pipe_a_table_is_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(["name", "count"], [("a", 1), ("long name", 12_345)], right=["count"])
    assert capsys.readouterr().out == "name       count\na              1\nlong name  12345\n"


def test_at_a_terminal_a_table_has_a_rule_below_its_head(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    terminal.print_table(["name", "count"], [("[red]a[/red]\x1b[31m", 1)], right=["count"])
    out = capsys.readouterr().out
    assert "[red]a[/red]\\x1b[31m" in out
    assert "──" in out


def test_fields_stand_under_one_another(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_fields({"topic": "a\nb", "partitions": 3})
    assert capsys.readouterr().out == "topic       a\\nb\npartitions  3\n"


def test_long_advice_is_broken_into_lines_at_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert terminal.wrapped("-> one two three", indent=2) == "  -> one two three"
    monkeypatch.setattr(terminal, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "22")
    assert terminal.wrapped("-> one two three four five", indent=2) == "  -> one two three\n     four five"


def test_json_is_one_line_in_a_pipe_and_indented_at_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.print_json({"a": "ü"})
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    terminal.print_json({"a": "ü"})
    assert capsys.readouterr().out == '{"a": "ü"}\n{\n  "a": "ü"\n}\n'


def test_bytes_that_are_no_text_become_base64() -> None:
    assert terminal.json_bytes("value", None) == {"value": None}
    assert terminal.json_bytes("value", b"x") == {"value": "x"}
    assert terminal.json_bytes("value", b"\xff\x00") == {"value_base64": "/wA="}


def test_each_problem_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_error("one\ntwo\x1b")
    assert capsys.readouterr().err == "error: one\nerror: two\\x1b\n"


def test_hints_are_for_people_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal.hint("psst")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    terminal.hint("psst")
    assert "psst" in capsys.readouterr().err


def test_without_a_terminal_only_yes_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(InvalidRequest, match=r"Delete it\? There is no terminal to ask on: add --yes to continue"):
        terminal.confirm("Delete it?", yes=False)
    terminal.confirm("Delete it?", yes=True)


@pytest.mark.parametrize(("answer", "goes_on"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_at_a_terminal_the_person_decides(monkeypatch: pytest.MonkeyPatch, answer: str, goes_on: bool) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda question, err: answer == "y\n")
    if goes_on:
        terminal.confirm("Delete it?", yes=False)
    else:
        with pytest.raises(typer.Exit):
            terminal.confirm("Delete it?", yes=False)


@pytest.mark.parametrize(
    ("env", "tty", "coloured"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"CLICOLOR": "0"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"CLICOLOR_FORCE": "1"}, False, True),
        ({"CLICOLOR_FORCE": "0"}, False, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colours_are_there_where_they_are_wanted(
    plain: None, monkeypatch: pytest.MonkeyPatch, env: dict[str, str], tty: bool, coloured: bool
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: tty)
    monkeypatch.setattr("sys.stdout", stream)
    assert terminal.has_colours(stream) is coloured
    assert (terminal.style("x", bold=True) != "x") is coloured
    terminal.console().print("[bold]x[/bold]")
    terminal.print_fields({"name": "value"})
    terminal.print_table(["name"], [("value",)])
    assert ("\x1b[" in stream.getvalue()) is coloured


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_errors_and_hints_obey_too(
    plain: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    terminal.print_error("wrong")
    terminal.hint("psst")
    assert capsys.readouterr().err.count("\x1b[") == 4 + 1
    monkeypatch.setenv(variable, "dumb")
    terminal.print_error("wrong")
    terminal.hint("psst")
    assert capsys.readouterr().err == "error: wrong\npsst\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("orders", "orders"), ("bad name", "'bad name'"), ("", "''"), ("#17", "#17"), ("a'b", "'a'\"'\"'b'")],
)
def test_a_name_is_one_word(name: str, shown: str) -> None:
    assert terminal.name(name) == shown


def at_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(terminal, "on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))


def test_what_does_not_fit_is_left_out_and_never_broken(
    plain: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal(monkeypatch, 30)
    columns = ["id", "time", "user", "result"]
    rows = [("0123456789", "12:00:00", "anonymous", "success")]
    terminal.print_table(columns, rows, drop=["user"])
    head, _, row = capsys.readouterr().out.splitlines()
    assert (head.split(), row.split()) == (["id", "time", "result"], ["0123456789", "12:00:00", "success"])
    at_terminal(monkeypatch, 80)
    terminal.print_table(columns, rows, drop=["user"])
    assert "anonymous" in capsys.readouterr().out


def test_free_text_is_broken_into_lines_before_anything_is_left_out(
    plain: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal(monkeypatch, 34)
    reason = "the value has no member called customer"
    terminal.print_table(["id", "reason", "user"], [("0123456789", reason, "ann")], fold=["reason"], drop=["user"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 34
    assert " ".join(" ".join(line[12:28].split()) for line in lines[2:]) == reason
    assert lines[2].endswith("ann")


def test_times_are_short_at_a_terminal_and_one_word_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert " " not in terminal.local_time(1_794_845_789_239)
    at_terminal(monkeypatch, 80)
    assert len(terminal.local_time(1_794_845_789_239)) == len("2026-11-16 12:16:29")
