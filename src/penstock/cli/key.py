"""`penstock key`: API keys, for protocols whose clients present one."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import connected
from penstock.cli.options import YesOption
from penstock.cli.program import Program

app = Program(help="Create and revoke API keys (BlipMQ, Felix).")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The name of the key.", show_default=False)]


@app.command()
def create(
    context: typer.Context,
    name: NameArgument,
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--role", "-r", metavar="ROLE", help="A role of the key; repeatable.", show_default="producer, consumer"
        ),
    ] = None,
) -> None:
    """Create an API key and print it.

    The broker keeps only a hash: the key is not shown again.

    Examples:
    $ penstock key create worker
    $ penstock key create dashboard --role consumer
    """
    with connected(context) as client:
        key = client.keys.create(name, roles or ())
    terminal.print_outcome(context, key, {"name": name, "key": key})


@app.command("list")
def list_keys(context: typer.Context) -> None:
    """List the API keys, without their secrets.

    Examples:
    $ penstock key list
    """
    with connected(context) as client:
        keys = client.keys.list()
    terminal.print_list(
        context,
        keys,
        lambda key: {"name": key.name, "roles": key.roles, "created_ms": key.created_ms, "created_by": key.created_by},
        ["name", "roles", "created by"],
        lambda key: (terminal.name(key.name), ", ".join(key.roles), key.created_by),
        empty="no keys yet; create one with: penstock key create NAME",
        fold=["roles"],
    )


@app.command()
def revoke(context: typer.Context, name: NameArgument, yes: YesOption = False) -> None:
    """Revoke an API key, also for open connections.

    Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock key revoke worker
    """
    with connected(context) as client:
        terminal.confirm(f"Revoke key {name}?", yes=yes)
        client.keys.revoke(name)
    terminal.print_outcome(context, f"revoked key {name}", {"name": name, "revoked": True})
