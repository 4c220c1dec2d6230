"""docs/reference/cli.md: every command with its arguments, options and examples, from the Typer application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from penstock.cli.main import app
from penstock.cli.program import EXAMPLES, bounds, default, parameters, usage, value_name
from scripts.reference.markdown import DOCS, GENERATED, code, document, prose, table, wrapped

PAGE = DOCS / "reference" / "cli.md"
INTRODUCTION = f"""\
# Command line reference

{GENERATED}

`penstock --help` and `penstock COMMAND --help` print the same text. [The command line](../cli.md) explains
addresses, credentials, output formats and exit codes, which all commands share.
"""


def page() -> str:
    below = root().commands
    overview = table(
        ["command", "what it does"],
        ((link(("penstock", name)), plain(below[name].help).partition("\n")[0]) for name in names(root())),
    )
    return document(INTRODUCTION, overview, *(_section(*each) for each in walk(root(), ("penstock",))))


def root() -> Any:
    return typer.main.get_command(app)


def link(words: tuple[str, ...]) -> str:
    return f"[`{words[-1]}`](#{'-'.join(words)})"


def names(command: Any) -> list[str]:
    """Return the names of the commands of a group, in the order of `--help`."""
    return list(command.list_commands(None)) if hasattr(command, "commands") else []


def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the command and everything below it."""
    yield words, command
    for name in names(command):
        yield from walk(command.commands[name], (*words, name))


def _section(words: tuple[str, ...], command: Any) -> str:
    level = 2 if len(words) == 1 else len(words)
    text, _, examples = unstyled(command.help).partition(EXAMPLES)
    blocks = [f"{'#' * level} {' '.join(words)}", *map(_paragraph, text.split("\n\n"))]
    arguments, options = parameters(command)
    if children := names(command):
        if len(words) > 1:
            return document(*blocks, "Commands: " + ", ".join(link((*words, name)) for name in children) + ".")
        line = f"{words[0]} [OPTIONS] COMMAND [ARGS]..."
    else:
        line = " ".join([*words, "[OPTIONS]", *map(usage, arguments)])
    return document(
        *blocks,
        f"```text\n{line}\n```",
        table(["argument", "meaning"], ((code(usage(each)), plain(each.help)) for each in arguments)),
        table(["option", "default", "meaning"], map(_option, options)),
        _paragraph(examples.strip()),
    )


def _paragraph(text: str) -> str:
    return f"```console\n{text}\n```" if text.startswith("$ ") else wrapped(prose(text))


def _option(option: Any) -> tuple[str, str, str]:
    value = value_name(option)
    names = ", ".join([*option.opts, *option.secondary_opts])
    words = plain(option.help)
    if limits := bounds(option):
        words += f" {limits}"
    if option.multiple and "epeatable" not in words:
        words += " Repeatable."
    if option.envvar and str(option.envvar) not in words:
        words += f" Environment variable: {code(option.envvar)}."
    shown = default(option)
    return (
        code(names + (f" {value}" if value else "")),
        code(shown) if shown else "",
        f"Required. {words}" if option.required else words,
    )


def unstyled(text: str | None) -> str:
    """Return help text with its terminal markup as Markdown."""
    return re.sub(r"\[/?bold\]", "`", text or "").strip()


def plain(text: str | None) -> str:
    return prose(unstyled(text))
