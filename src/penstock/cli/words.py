"""`penstock help`, `penstock version` and `penstock completion`: words for what flags do too. And what each extra brings."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.options import wants_json

PROGRAM = "penstock"
EXTRAS = {
    "deltalake": "spark",
    "pandas": "spark",
    "pyarrow": "spark",
    "pyspark": "spark",
    "pyiceberg": "iceberg",
    "sqlalchemy": "iceberg",
}
"""What `pip install penstock` leaves out, and the extra that brings it."""


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def extra_of(module: str | None) -> str | None:
    """The extra that a module which cannot be imported belongs to; None for one that has to be there."""
    return EXTRAS.get((module or "").partition(".")[0])


def print_version(context: typer.Context) -> None:
    from penstock import __version__

    terminal.print_outcome(context, f"{PROGRAM} {__version__}", {"version": __version__})


def version(context: typer.Context) -> None:
    """Print the version.

    Examples:
    $ penstock version
    """
    print_version(context)


def help_of(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="The command, as in: topic create.", show_default=False),
    ] = None,
) -> None:
    """Show the help of a command.

    Examples:
    $ penstock help
    $ penstock help topic create
    """
    from penstock.cli.program import help_text, is_group

    command: Any = context.find_root().command
    ctx: Any = context.find_root()
    for word in words or ():
        if not is_group(command) or word not in command.commands:
            raise typer.BadParameter(f"{ctx.command_path} has no command {word!r}", param_hint="COMMAND")
        command = command.commands[word]
        ctx = type(ctx)(command, parent=ctx, info_name=word)
    text = help_text(command, ctx)
    if wants_json(context):
        terminal.print_json({"command": ctx.command_path, "help": text})
    else:
        print(text)


def completion(
    context: typer.Context,
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
    install: Annotated[
        bool, typer.Option("--install", help="Write it where the shell finds it, instead of printing it.")
    ] = False,
) -> None:
    """Print the script that completes commands, options, topics and groups.

    Examples:
    $ source <(penstock completion bash)
    $ penstock completion zsh --install
    $ penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    # Not declared as exported, but there is no other way to them.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]
    from typer.completion import install as install_script  # type: ignore[attr-defined]

    if install:
        _, path = install_script(shell=shell.value, prog_name=PROGRAM)
        terminal.print_outcome(
            context,
            f"installed completion for {shell} in {path}; open a new shell to use it",
            {"shell": shell.value, "file": str(path)},
        )
        return
    script = get_completion_script(prog_name=PROGRAM, complete_var=f"_{PROGRAM}_COMPLETE".upper(), shell=shell.value)
    if wants_json(context):
        terminal.print_json({"shell": shell.value, "script": script})
    else:
        print(script)
