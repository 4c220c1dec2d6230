"""`penstock context`: create, list, show, use, delete. Named addresses with credentials."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.options import YesOption, checked_admin_url, parsed_server_url, wants_json
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.cli.profiles import Profiles

app = Program(help="Save addresses and credentials of brokers, and choose one.", server=None)


def complete_context(incomplete: str) -> list[str]:
    """Names of contexts for the shell."""
    from penstock.cli import profiles
    from penstock.errors import PenstockError

    try:
        return [name for name in profiles.load().contexts if name.startswith(incomplete)]
    except PenstockError:
        return []


NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The name of the context.", autocompletion=complete_context, show_default=False
    ),
]


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the context.", show_default=False)],
    server: Annotated[
        str,
        typer.Option(
            "--server",
            "-s",
            metavar="URL",
            help="The address of the broker, with a user if it has them.",
            show_default=False,
        ),
    ],
    admin: Annotated[
        str | None,
        typer.Option(
            "--admin", metavar="URL", help="The admin address of the broker.", show_default="port 9600 of the same host"
        ),
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from the first line of standard input.")
    ] = False,
    use: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a context of this name.")] = False,
) -> None:
    """Save an address, and the password of its user.

    The password comes from PENSTOCK_PASSWORD, from standard input with
    [bold]--password-stdin[/bold], or from a prompt; leave that empty to be asked each
    time. It is kept in a file that only you can read, and never printed.

    Examples:
    $ penstock context create local --server flymq://127.0.0.1:9092
    $ penstock context create prod --server flymqs://alice@mq.example:9093 --use
    """
    from penstock.cli import profiles
    from penstock.errors import InvalidRequest

    if not name or len(name) > profiles.NAME_CHARS_MAX or any(each.isspace() for each in name) or name.startswith("-"):
        raise typer.BadParameter(
            f"{name!r} is not a name: use 1 to {profiles.NAME_CHARS_MAX} characters without spaces", param_hint="NAME"
        )
    url = server if "://" in server else f"flymq://{server}"
    try:
        address = parsed_server_url(url)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error), param_hint="--server") from None
    if address.password is not None:
        raise typer.BadParameter(
            "a password on the command line can be seen by others: leave it out, and give it at the prompt, "
            "with --password-stdin, or in PENSTOCK_PASSWORD",
            param_hint="--server",
        )
    if admin is not None:
        admin = checked_admin_url(admin)

    def check_free(saved: Profiles) -> None:
        if name in saved.contexts and not force:
            raise InvalidRequest(f"context {name} exists: choose another name, or add --force to replace it")

    check_free(profiles.load())
    password = _password(address.user, from_stdin=password_stdin)
    with profiles.changing() as saved:
        check_free(saved)
        saved.contexts[name] = profiles.Profile(url, admin, password)
        if use or len(saved.contexts) == 1:
            saved.current = name
    in_use = "; it is in use now" if saved.current == name else ""
    terminal.print_outcome(context, f"saved context {name}{in_use}", _row(saved, name))


def _password(user: str | None, *, from_stdin: bool) -> str | None:
    from penstock.cli.passwords import LINE_BYTES_MAX, PASSWORD_VARIABLE, check_text

    if user is None:
        if from_stdin:
            raise typer.BadParameter("there is no user for the password: write --server flymq://user@host:port")
        return None
    if from_stdin:
        return check_text(sys.stdin.readline(LINE_BYTES_MAX).rstrip("\r\n")) or None
    given = os.environ.get(PASSWORD_VARIABLE)
    if given is None and sys.stdin.isatty():
        given = typer.prompt(f"Password of {user}", default="", show_default=False, hide_input=True, err=True)
    return check_text(given or "") or None


@app.command("list")
def list_contexts(context: typer.Context) -> None:
    """List the contexts; * marks the one in use.

    Examples:
    $ penstock context list
    """
    from penstock.cli import profiles

    saved = profiles.load()
    terminal.print_list(
        context,
        [_row(saved, name) for name in sorted(saved.contexts)],
        dict,
        ["", "context", "server", "admin", "password"],
        lambda row: (
            "*" if row["current"] else "",
            row["context"],
            row["server"],
            row["admin"] or "-",
            row["password"] or "-",
        ),
        empty="no contexts yet; create one with: penstock context create NAME --server URL",
        drop=["admin", "password"],
    )


@app.command()
def show(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The name of the context.",
            autocompletion=complete_context,
            show_default="the one in use",
        ),
    ] = None,
) -> None:
    """Show a context, without its password.

    Examples:
    $ penstock context show
    $ penstock context show prod
    """
    from penstock.cli import profiles
    from penstock.cli.options import context_name
    from penstock.errors import EntryNotFound

    saved = profiles.load()
    wanted = name or context_name(context, saved)
    if wanted is None:
        raise EntryNotFound("no context is in use; choose one with: penstock context use NAME")
    saved.find(wanted)
    row = _row(saved, wanted)
    if wants_json(context):
        terminal.print_json(row)
    else:
        terminal.print_fields(
            {each: "yes" if value is True else "no" if value is False else value or "-" for each, value in row.items()}
        )


@app.command()
def use(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="The name of the context.", autocompletion=complete_context, show_default=False
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Use no context: the default address.")] = False,
) -> None:
    """Choose the context that commands use from now on.

    [bold]--server[/bold], [bold]--context[/bold], PENSTOCK_SERVER and PENSTOCK_CONTEXT override it.

    Examples:
    $ penstock context use prod
    $ penstock context use --none
    """
    from penstock.cli import profiles

    if (name is None) != none:
        raise typer.BadParameter("name a context, or use --none")
    with profiles.changing() as saved:
        if name is not None:
            saved.find(name)
        saved.current = name
    told = "no context is in use" if name is None else f"context {name} is in use"
    terminal.print_outcome(context, told, {"current": name})


@app.command()
def delete(context: typer.Context, name: NameArgument, yes: YesOption = False) -> None:
    """Delete a context, with its password.

    Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock context delete prod
    """
    from penstock.cli import profiles

    profiles.load().find(name)
    terminal.confirm(f"Delete context {name}?", yes=yes)
    with profiles.changing() as saved:
        saved.find(name)
        del saved.contexts[name]
        if saved.current == name:
            saved.current = None
    terminal.print_outcome(context, f"deleted context {name}", {"context": name, "deleted": True})


def _row(saved: Profiles, name: str) -> dict[str, object]:
    return {"context": name, "current": saved.current == name, **saved.contexts[name].shown()}
