"""docs/reference/cli.md: every command with its arguments, options and examples, from the Typer application."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer.main

from penstock.cli.main import app
from scripts.reference.markdown import DOCS, GENERATED, code, document, prose, table, wrapped

PAGE = DOCS / "reference" / "cli.md"
EXAMPLES = "Examples:"
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
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    if children := names(command):
        if len(words) > 1:
            return document(*blocks, "Commands: " + ", ".join(link((*words, name)) for name in children) + ".")
        usage = f"{words[0]} [OPTIONS] COMMAND [ARGS]..."
    else:
        usage = " ".join([*words, "[OPTIONS]", *map(_usage, arguments)])
    return document(
        *blocks,
        f"```text\n{usage}\n```",
        table(["argument", "meaning"], ((code(_usage(each)), plain(each.help)) for each in arguments)),
        table(["option", "default", "meaning"], map(_option, options)),
        _paragraph(examples.strip()),
    )


def _paragraph(text: str) -> str:
    return f"```console\n{text}\n```" if text.startswith("$ ") else wrapped(prose(text))


def _usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.nargs != 1:
        name += "..."
    return str(name if argument.required else f"[{name}]")


def _option(option: Any) -> tuple[str, str, str]:
    value = "" if option.is_flag else f" {option.metavar or _type(option)}"
    names = ", ".join([*option.opts, *option.secondary_opts])
    meaning = plain(option.help)
    if bounds := _bounds(option):
        meaning += f" {bounds}"
    if option.multiple and "epeatable" not in meaning:
        meaning += " Repeatable."
    if option.envvar and str(option.envvar) not in meaning:
        meaning += f" Environment variable: {code(option.envvar)}."
    return code(names + value), _default(option), f"Required. {meaning}" if option.required else meaning


def _type(option: Any) -> str:
    """Return the choices of an option, else its type."""
    kind = option.type_descriptor.annotation
    return "|".join(each.value for each in kind) if issubclass(kind, Enum) else kind.__name__.upper()


def _bounds(option: Any) -> str:
    match option.min, option.max:
        case None, None:
            return ""
        case least, None:
            return f"At least {least}."
        case None, most:
            return f"At most {most}."
        case least, most:
            return f"{least} to {most}."


def _default(option: Any) -> str:
    if isinstance(option.show_default, str):
        return code(option.show_default)
    if option.default in (None, "", []) or option.is_flag or option.show_default is False:
        return ""
    return code(getattr(option.default, "value", option.default))


def unstyled(text: str | None) -> str:
    """Return help text with its terminal markup as Markdown."""
    return re.sub(r"\[/?bold\]", "`", text or "").strip()


def plain(text: str | None) -> str:
    return prose(unstyled(text))
