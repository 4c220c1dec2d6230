"""`penstock user`: who may log in, and the roles they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import connected
from penstock.cli.options import (
    ConfigOption,
    DataDirOption,
    JsonOption,
    ServerOption,
    YesOption,
    config_from_flags,
    flymq_url,
    wants_json,
)
from penstock.cli.passwords import PasswordStdinOption, new_password

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.access import UserDescription

app = typer.Typer(no_args_is_help=True, help="Manage users, their passwords and roles.")

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", show_default=False)]
RoleArgument = Annotated[str, typer.Argument(metavar="ROLE", help="The role's name.", show_default=False)]
RolesOption = Annotated[
    list[str] | None,
    typer.Option("--role", "-r", metavar="ROLE", help="A role of the user; repeatable. See: penstock user roles"),
]


@app.command()
def setup(
    context: typer.Context,
    user: Annotated[str, typer.Option(metavar="USER", help="The administrator's name.")] = "admin",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    password_stdin: PasswordStdinOption = False,
    server: ServerOption = None,
) -> None:
    """Create the first administrator of a running broker.

    Works once, for someone who can read the broker's data directory: the
    broker leaves a secret there for as long as it has no administrator.

    Examples:
    $ penstock user setup --data-dir /var/lib/penstock
    $ penstock user setup --config penstock.toml --user alice
    """
    from urllib.parse import urlsplit, urlunsplit

    import penstock
    from penstock.errors import InvalidRequest
    from penstock.server import SETUP_FILE

    file = config_from_flags(config, data_dir=data_dir).data_dir / SETUP_FILE
    try:
        token = file.read_text()
    except FileNotFoundError:
        raise InvalidRequest(
            f"{file} is not there: the broker has an administrator already, or does not require a login, or does not run in {file.parent}"
        ) from None
    parts = urlsplit(flymq_url(context, server))
    host = parts.netloc.rpartition("@")[2]
    password = new_password(user, from_stdin=password_stdin)
    with penstock.connect(urlunsplit(parts._replace(netloc=f"setup%3A:{token}@{host}"))) as client:
        client.access.create_user(user, password, ["admin"])
    file.unlink(missing_ok=True)
    print(
        f"created administrator {terminal.visible(user)}; log in with --server {parts.scheme}://{terminal.visible(user)}@{host}"
    )


@app.command("list")
def list_users(context: typer.Context, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """List the users.

    Examples:
    $ penstock user list
    """
    with connected(context, server) as client:
        users = client.access.users()
    if wants_json(context, as_json):
        terminal.print_json([_row(user) for user in users])
        return
    terminal.print_table(
        ["user", "roles", "enabled", "created"],
        [
            (
                user.user,
                ", ".join(user.roles),
                "yes" if user.enabled else "no",
                terminal.local_time(user.created_s * 1000),
            )
            for user in users
        ],
    )


@app.command()
def describe(
    context: typer.Context, user: UserArgument, server: ServerOption = None, as_json: JsonOption = False
) -> None:
    """Show a user, its roles and permissions.

    Examples:
    $ penstock user describe alice
    """
    with connected(context, server) as client:
        found = client.access.user(user)
    if wants_json(context, as_json):
        terminal.print_json(_row(found))
        return
    terminal.print_fields(
        {
            "user": found.user,
            "roles": ", ".join(found.roles),
            "permissions": ", ".join(found.permissions),
            "enabled": "yes" if found.enabled else "no",
            "created": terminal.local_time(found.created_s * 1000),
            "updated": terminal.local_time(found.updated_s * 1000),
        }
    )


def _row(user: UserDescription) -> dict[str, object]:
    return {
        "user": user.user,
        "roles": user.roles,
        "permissions": user.permissions,
        "enabled": user.enabled,
        "created_s": user.created_s,
        "updated_s": user.updated_s,
    }


@app.command()
def create(
    context: typer.Context,
    user: UserArgument,
    role: RolesOption = None,
    certificate: Annotated[
        bool,
        typer.Option(
            "--certificate", help="USER is the subject of a client certificate; the user gets a random password."
        ),
    ] = False,
    password_stdin: PasswordStdinOption = False,
    server: ServerOption = None,
) -> None:
    """Create a user.

    The password comes from PENSTOCK_NEW_PASSWORD, from standard input with
    [bold]--password-stdin[/bold], or from a prompt.

    Examples:
    $ penstock user create alice --role producer --role consumer
    $ penstock user create bob --role consumer --password-stdin < password.txt
    $ penstock user create "CN=billing,O=Example" --role consumer --certificate
    """
    import secrets

    password = secrets.token_urlsafe(32) if certificate else new_password(user, from_stdin=password_stdin)
    with connected(context, server) as client:
        client.access.create_user(user, password, role or [])
    print(f"created user {terminal.visible(user)}")


@app.command()
def update(
    context: typer.Context,
    user: UserArgument,
    role: RolesOption = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Enable or disable the user.")] = None,
    server: ServerOption = None,
) -> None:
    """Change the roles of a user, or enable or disable it.

    Takes effect at once, on open connections too.

    Examples:
    $ penstock user update alice --role consumer
    $ penstock user update alice --disable
    """
    from penstock.errors import InvalidRequest

    if not role and enabled is None:
        raise InvalidRequest("nothing to change: add --role, --enable or --disable")
    with connected(context, server) as client:
        client.access.update_user(user, role or [], enabled)
    print(f"updated user {terminal.visible(user)}")


@app.command()
def passwd(
    context: typer.Context, user: UserArgument, password_stdin: PasswordStdinOption = False, server: ServerOption = None
) -> None:
    """Change your own password or, as an administrator, that of another user.

    Examples:
    $ penstock --server flymq://alice@127.0.0.1:9092 user passwd alice
    """
    password = new_password(user, from_stdin=password_stdin)
    with connected(context, server) as client:
        own = user == client.address.user
        client.access.set_password(user, password, (client.address.password or "") if own else "")
    print(f"changed the password of {terminal.visible(user)}")


@app.command()
def delete(context: typer.Context, user: UserArgument, yes: YesOption = False, server: ServerOption = None) -> None:
    """Delete a user. Requests on its open connections are refused.

    Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock user delete bob --yes
    """
    with connected(context, server) as client:
        terminal.confirm(f"Delete user {user}?", yes=yes)
        client.access.delete_user(user)
    print(f"deleted user {terminal.visible(user)}")


@app.command()
def whoami(context: typer.Context, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """Show the authenticated user, its roles and permissions.

    Examples:
    $ penstock --server flymq://alice@127.0.0.1:9092 user whoami
    """
    with connected(context, server) as client:
        identity = client.access.whoami()
    if wants_json(context, as_json):
        shown = ("", [], []) if identity is None else (identity.user, identity.roles, identity.permissions)
        terminal.print_json(dict(zip(("user", "roles", "permissions"), shown, strict=True)))
    elif identity is None:
        print("nobody: this broker does not ask, or you have not logged in")
    else:
        terminal.print_fields(
            {
                "user": identity.user,
                "roles": ", ".join(identity.roles),
                "permissions": ", ".join(identity.permissions),
            }
        )


@app.command()
def roles(context: typer.Context, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """List the roles and what they allow.

    Examples:
    $ penstock user roles
    """
    with connected(context, server) as client:
        found = client.access.roles()
    if wants_json(context, as_json):
        terminal.print_json(
            [{"role": each.role, "permissions": each.permissions, "description": each.description} for each in found]
        )
        return
    terminal.print_table(
        ["role", "permissions", "description"],
        [(each.role, ", ".join(each.permissions) or "-", each.description) for each in found],
    )


@app.command("set-role")
def set_role(
    context: typer.Context,
    role: RoleArgument,
    permission: Annotated[
        list[str] | None,
        typer.Option(
            "--permission",
            "-p",
            metavar="PERMISSION",
            help="read, write, commit, describe, create, delete or admin; repeatable. Without any, the role is a name to use in ACLs.",
        ),
    ] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="What the role is for.")] = "",
    server: ServerOption = None,
) -> None:
    """Create a role, or replace its permissions.

    Examples:
    $ penstock user set-role operator -p read -p create -p delete
    $ penstock user set-role team-billing --description "named in ACLs"
    """
    with connected(context, server) as client:
        client.access.set_role(role, permission or [], description)
    print(f"set role {terminal.visible(role)}")


@app.command("delete-role")
def delete_role(context: typer.Context, role: RoleArgument, server: ServerOption = None) -> None:
    """Delete a custom role that no user has and no ACL names.

    Examples:
    $ penstock user delete-role operator
    """
    with connected(context, server) as client:
        client.access.delete_role(role)
    print(f"deleted role {terminal.visible(role)}")
