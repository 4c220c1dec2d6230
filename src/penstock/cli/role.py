"""`penstock role`: list, set, delete."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import connected
from penstock.cli.options import YesOption
from penstock.cli.program import Program

app = Program(help="Manage roles: named sets of permissions.")

RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="The role's name.", show_default=False)]


@app.command("list")
def list_roles(context: typer.Context) -> None:
    """List the roles and their permissions.

    Examples:
    $ penstock role list
    """
    with connected(context) as client:
        found = client.access.roles()
    terminal.print_list(
        context,
        found,
        lambda each: {"role": each.role, "permissions": each.permissions, "description": each.description},
        ["role", "permissions", "description"],
        lambda each: (terminal.name(each.role), ", ".join(each.permissions) or "-", each.description),
        fold=["description", "permissions"],
    )


@app.command("set")
def set_role(
    context: typer.Context,
    role: RoleArgument,
    permission: Annotated[
        list[str] | None,
        typer.Option(
            "--permission",
            metavar="PERMISSION",
            help="read, write, commit, describe, create, delete or admin; repeatable. Without any, the role is a name to use in ACLs.",
        ),
    ] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What the role is for.")] = "",
) -> None:
    """Create a role, or replace its permissions.

    Examples:
    $ penstock role set operator --permission read --permission create
    $ penstock role set team-billing --description "named in ACLs"
    """
    with connected(context) as client:
        client.access.set_role(role, permission or [], description)
    terminal.print_outcome(
        context, f"set role {role}", {"role": role, "permissions": permission or [], "description": description}
    )


@app.command()
def delete(context: typer.Context, role: RoleArgument, yes: YesOption = False) -> None:
    """Delete a custom role that no user has and no ACL names.

    Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock role delete operator
    """
    with connected(context) as client:
        terminal.confirm(f"Delete role {role}?", yes=yes)
        client.access.delete_role(role)
    terminal.print_outcome(context, f"deleted role {role}", {"role": role, "deleted": True})
