"""Help: plain lines that say what a flag takes, and nothing a flag does not."""

from __future__ import annotations

import re

import pytest

from penstock.cli import main as cli
from tests.cli.conftest import Run
from tests.cli.test_main import every_command, root_command

LEAVES = [words for words, command in every_command(root_command(), ()) if not hasattr(command, "commands")]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_the_help_of_every_command_names_what_its_options_take(run: Run, words: tuple[str, ...]) -> None:
    result = run(*words, "--help")
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.text.splitlines())) <= 80
    assert "\x1b" not in result.text
    assert not re.search(r"<(bool|str|int|float)>|\{[A-Z]|default: \(", result.text)
    assert re.search(r"^      --json  +\S", result.text, re.MULTILINE), (
        "every command has --json, and it takes no value"
    )
    assert re.search(rf"\$.*penstock (\S+ \S+ )?{' '.join(words)}", result.text.partition("Examples:")[2])


def test_arguments_options_bounds_and_defaults_are_shown(run: Run) -> None:
    text = run("topic", "create", "--help").text
    assert "Usage: penstock topic create [OPTIONS] TOPIC\n" in text
    assert "  -p, --partitions N           The number of partitions. At least 1. Default: 1.\n" in text
    assert "      --exist-ok               Leave a topic that exists as it is.\n" in text
    assert "Required. Delete what is before this" in " ".join(run("topic", "truncate", "--help").text.split())
    assert "--install-completion" not in run("--help").text


def test_a_group_lists_its_commands_with_their_first_sentence(run: Run) -> None:
    text = run("role", "--help").text
    assert "Usage: penstock role [OPTIONS] COMMAND [ARGS]...\n" in text
    assert "  delete  Delete a custom role that no user has and no ACL names.\n" in text


def test_help_has_colours_only_where_they_are_wanted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    assert "\x1b[1mUsage:\x1b[0m" in run("topic", "--help").text
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in run("topic", "--help").text


def test_short_options_mean_one_thing_everywhere() -> None:
    meant: dict[str, set[str]] = {}
    for _, command in every_command(root_command(), ()):
        for option in command.params:
            short = [name for name in option.opts if re.fullmatch(r"-\w", name)]
            for name in short:
                meant.setdefault(name, set()).add(next(each for each in option.opts if each.startswith("--")))
    assert meant["-f"] == {"--follow"}
    assert meant["-p"] == {"--partition", "--partitions"}, "which partition, or how many"
    assert meant["-n"] == {"--limit", "--max", "--records"}, "how many records or rows"
    assert meant["-s"] == {"--server"}


def test_the_order_has_every_command() -> None:
    assert sorted(cli.ORDER) == sorted(root_command().commands)
