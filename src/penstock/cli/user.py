"""`penstock user`: who may log in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import connected
from penstock.cli.options import (
    ConfigOption,
    DataDirOption,
    YesOption,
    config_from_flags,
    flymq_url,
    wants_json,
)
from penstock.cli.passwords import PasswordStdinOption, new_password
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.access import UserDescription

app = Program(help="Manage users and their passwords.")

UserArgument = Annotated[str, typer.Argument(metavar="USER", help="The user's name.", show_default=False)]
RolesOption = Annotated[
    list[str] | None,
    typer.Option("--role", "-r", metavar="ROLE", help="A role of the user; repeatable. See: penstock role list"),
]


@app.command()
def setup(
    context: typer.Context,
    user: Annotated[str, typer.Option(metavar="USER", help="The administrator's name.")] = "admin",
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    password_stdin: PasswordStdinOption = False,
) -> None:
    """Create the first administrator of a running broker.

    Works once, for someone who can read the broker's data directory: the
    broker leaves a secret there for as long as it has no administrator.

    Examples:
    $ penstock user setup --data-dir /var/lib/penstock
    $ penstock user setup --config penstock.toml --user alice
    """
    import penstock
    from penstock.clients.url import split_url
    from penstock.errors import InvalidRequest
    from penstock.server import SETUP_FILE

    file = config_from_flags(config, data_dir=data_dir).data_dir / SETUP_FILE
    try:
        token = file.read_text()
    except FileNotFoundError:
        raise InvalidRequest(
            f"{file} is not there: the broker has an administrator already, or does not require a login, or does not run in {file.parent}"
        ) from None
    parts = split_url(flymq_url(context))
    password = new_password(user, from_stdin=password_stdin)
    with penstock.connect(str(parts._replace(credentials=f"setup%3A:{token}"))) as client:
        client.access.create_user(user, password, ["admin"])
    file.unlink(missing_ok=True)
    terminal.print_outcome(
        context,
        f"created administrator {user}; log in with --server {parts.scheme}://{user}@{parts.hosts}",
        {"user": user, "roles": ["admin"], "created": True},
    )


@app.command("list")
def list_users(context: typer.Context) -> None:
    """List the users.

    Examples:
    $ penstock user list
    """
    with connected(context) as client:
        users = client.access.users()
    terminal.print_list(
        context,
        users,
        _row,
        ["user", "roles", "enabled", "created"],
        lambda user: (
            terminal.name(user.user),
            ", ".join(user.roles),
            "yes" if user.enabled else "no",
            terminal.local_time(user.created_s * 1000),
        ),
        fold=["roles"],
    )


@app.command()
def describe(context: typer.Context, user: UserArgument) -> None:
    """Show a user, its roles and permissions.

    Examples:
    $ penstock user describe alice
    """
    with connected(context) as client:
        found = client.access.user(user)
    if wants_json(context):
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
    with connected(context) as client:
        client.access.create_user(user, password, role or [])
    terminal.print_outcome(context, f"created user {user}", {"user": user, "roles": role or [], "created": True})


@app.command()
def update(
    context: typer.Context,
    user: UserArgument,
    role: RolesOption = None,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Enable or disable the user.")] = None,
) -> None:
    """Change the roles of a user, or enable or disable it.

    Takes effect at once, on open connections too.

    Examples:
    $ penstock user update alice --role consumer
    $ penstock user update alice --disable
    """
    if not role and enabled is None:
        raise typer.BadParameter("nothing to change: add --role, --enable or --disable")
    with connected(context) as client:
        client.access.update_user(user, role or [], enabled)
        updated = client.access.user(user)
    terminal.print_outcome(context, f"updated user {user}", _row(updated))


@app.command()
def passwd(context: typer.Context, user: UserArgument, password_stdin: PasswordStdinOption = False) -> None:
    """Change your own password or, as an administrator, that of another user.

    Examples:
    $ penstock --server flymq://alice@127.0.0.1:9092 user passwd alice
    """
    password = new_password(user, from_stdin=password_stdin)
    with connected(context) as client:
        own = user == client.address.user
        client.access.set_password(user, password, (client.address.password or "") if own else "")
    terminal.print_outcome(context, f"changed the password of {user}", {"user": user, "changed": True})


@app.command()
def delete(context: typer.Context, user: UserArgument, yes: YesOption = False) -> None:
    """Delete a user. Requests on its open connections are refused.

    Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock user delete bob --yes
    """
    with connected(context) as client:
        terminal.confirm(f"Delete user {user}?", yes=yes)
        client.access.delete_user(user)
    terminal.print_outcome(context, f"deleted user {user}", {"user": user, "deleted": True})


@app.command()
def whoami(context: typer.Context) -> None:
    """Show the authenticated user, its roles and permissions.

    Examples:
    $ penstock --server flymq://alice@127.0.0.1:9092 user whoami
    """
    with connected(context) as client:
        identity = client.access.whoami()
    if wants_json(context):
        shown = ("", [], []) if identity is None else (identity.user, identity.roles, identity.permissions)
        terminal.print_json(dict(zip(("user", "roles", "permissions"), shown, strict=True)))
    elif identity is None:
        print("anonymous: this broker requires no authentication, or you have not logged in")
    else:
        terminal.print_fields(
            {
                "user": identity.user,
                "roles": ", ".join(identity.roles),
                "permissions": ", ".join(identity.permissions),
            }
        )
