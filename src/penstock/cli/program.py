"""Typer with help as the shell's other programs print it: plain lines that fit 80 columns, colours only where they are wanted.

Typer's own help draws boxes, names the type of every flag, and decides about colours by itself. What is printed here is made from the
same declarations as the reference of commands, by the same functions.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from penstock.cli import terminal
from penstock.cli.options import JsonOption, ServerOption

EXAMPLES = "Examples:"
WIDTH_MAX = 100
MEANING_COLUMN_MAX = 32
HIDDEN = ("--install-completion", "--show-completion")
"""Typer's own flags for what `penstock completion` does."""


_Function = TypeVar("_Function", bound=Callable[..., Any])


class Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        print(help_text(self, ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _named(ctx):
            return super().parse_args(ctx, args)


class Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        print(help_text(self, ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _named(ctx):
            return super().parse_args(ctx, args)


@contextmanager
def _named(ctx: Any) -> Iterator[None]:
    """Note the command in what is raised about its arguments: Typer's parser does not."""
    try:
        yield
    except typer.TyperException as error:
        if getattr(error, "ctx", ctx) is None:
            error.ctx = ctx  # type: ignore[attr-defined]
        raise


class Program(typer.Typer):
    """A group of commands, all of which take `--json`, and `--server` unless they need no broker.

    A command reads these two from its context (`options`). `server` is the annotation of the option, None for none.
    """

    def __init__(
        self,
        *,
        cls: type[TyperGroup] = Group,
        no_args_is_help: bool = True,
        server: Any = ServerOption,
        **settings: Any,
    ) -> None:
        super().__init__(cls=cls, no_args_is_help=no_args_is_help, **settings)
        self._server = server

    def command(
        self,
        name: str | None = None,
        *,
        cls: type[TyperCommand] | None = Command,
        needs_broker: bool = True,
        **settings: Any,
    ) -> Callable[[_Function], _Function]:
        shared: dict[str, tuple[Any, object]] = {"as_json": (JsonOption, False)}
        if needs_broker and self._server is not None:
            shared = {"server": (self._server, None), **shared}
        register = super().command(name, cls=cls, **settings)

        def add(function: _Function) -> _Function:
            register(_with_options(function, shared))
            return function

        return add


def _with_options(function: Callable[..., None], shared: dict[str, tuple[Any, object]]) -> Callable[..., None]:
    """Return the command with options after its own: by name, their annotation and default. Those that it declares itself stay."""
    signature = inspect.signature(function, eval_str=True)
    own = signature.parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
        for name, (annotation, default) in shared.items()
        if name not in signature.parameters
    ]

    @functools.wraps(function)
    def command(**given: Any) -> None:
        for each in added:
            del given[each.name]
        function(**given)

    command.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    return command


def help_text(command: Any, ctx: Any) -> str:
    """The help of a command or a group, without a newline at its end."""
    text, _, examples = (command.help or "").partition(EXAMPLES)
    arguments, options = parameters(command, ctx)
    below = [(name, command.commands[name]) for name in command.list_commands(ctx)] if is_group(command) else []
    words = ["[OPTIONS]", *map(usage, arguments), *(["COMMAND [ARGS]..."] if below else [])]
    blocks = [
        "\n\n".join(_prose(text)),
        f"{_heading('Usage:')} {ctx.command_path} {' '.join(words)}",
        _list("Commands:", [(name, summary(each)) for name, each in below if not each.hidden]),
        _list("Arguments:", [(usage(each), meaning(each)) for each in arguments]),
        _list("Options:", [(_flags(each), meaning(each)) for each in options]),
    ]
    if examples.strip():
        blocks.append(_heading(EXAMPLES) + "\n" + textwrap.indent(textwrap.dedent(examples).strip("\n"), "  "))
    return "\n\n".join(block for block in blocks if block)


# --- what the reference of commands says in the same words ---


def is_group(command: Any) -> bool:
    return hasattr(command, "commands")


def parameters(command: Any, ctx: Any = None) -> tuple[list[Any], list[Any]]:
    """The arguments and the options that are not hidden; with a context, `--help` among them."""
    found = command.params if ctx is None else command.get_params(ctx)
    arguments = [each for each in found if each.param_type_name == "argument"]
    options = [each for each in found if each.param_type_name == "option" and not each.hidden]
    return arguments, [each for each in options if not set(each.opts) & set(HIDDEN)]


def usage(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    if argument.nargs != 1:
        name += "..."
    return str(name if argument.required else f"[{name}]")


def value_name(option: Any) -> str:
    """What stands behind an option: its metavar, its choices, or nothing."""
    if option.is_flag:
        return ""
    if option.metavar:
        return str(option.metavar)
    kind = option.type_descriptor.annotation
    return "|".join(each.value for each in kind) if issubclass(kind, Enum) else str(kind.__name__.upper())


def bounds(parameter: Any) -> str:
    match getattr(parameter, "min", None), getattr(parameter, "max", None):
        case None, None:
            return ""
        case least, None:
            return f"At least {least}."
        case None, most:
            return f"At most {most}."
        case least, most:
            return f"{least} to {most}."


def default(parameter: Any) -> str:
    """The default, or what stands for it; empty if there is none to tell."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    is_flag = getattr(parameter, "is_flag", False)
    if parameter.default in (None, "", []) or is_flag or parameter.show_default is False or callable(parameter.default):
        return ""
    return str(getattr(parameter.default, "value", parameter.default))


def meaning(parameter: Any) -> str:
    """Everything there is to say of an argument or an option, as one paragraph."""
    parts = [_unmarked(parameter.help or ""), bounds(parameter)]
    is_argument = parameter.param_type_name == "argument"
    if parameter.required and not is_argument:
        parts.insert(0, "Required.")
    if shown := default(parameter):
        parts.append(f"Default: {shown}.")
    return " ".join(" ".join(part.split()) for part in parts if part)


def summary(command: Any) -> str:
    """The first sentence of a command's help."""
    return _unmarked(" ".join((command.help or "").split("\n\n")[0].split()))


# --- layout ---


def _flags(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    short = [name for name in names if not name.startswith("--")]
    long = [name for name in names if name.startswith("--")]
    value = value_name(option)
    return ", ".join([*(short or ["  "]), *long]).replace("  , ", "    ") + (f" {value}" if value else "")


def _list(heading: str, rows: list[tuple[str, str]]) -> str:
    if not rows:
        return ""
    column = min(max(len(name) for name, _ in rows), MEANING_COLUMN_MAX - 4) + 4
    lines = [_heading(heading)]
    for name, text in rows:
        first, *rest = textwrap.wrap(text, _width() - column, break_on_hyphens=False) or [""]
        if len(name) > column - 4:
            lines.append(f"  {_term(name)}")
            lines.append(" " * column + first)
        else:
            lines.append(f"  {_term(name)}{' ' * (column - 2 - len(name))}{first}")
        lines += [" " * column + line for line in rest]
    return "\n".join(line.rstrip() for line in lines)


def _prose(text: str) -> Iterator[str]:
    """Paragraphs: the first is filled, the others keep their lines."""
    first, *others = text.strip().split("\n\n")
    yield textwrap.fill(_unmarked(" ".join(first.split())), _width())
    for other in others:
        yield re.sub(r"\[bold\](.*?)\[/bold\]", lambda marked: _term(marked[1]), textwrap.dedent(other))


def _unmarked(text: str) -> str:
    return re.sub(r"\[/?bold\]", "", text)


def _width() -> int:
    return max(40, min(WIDTH_MAX, terminal.terminal_width()))


def _heading(text: str) -> str:
    return terminal.style(text, bold=True)


def _term(text: str) -> str:
    return terminal.style(text, fg="cyan")
