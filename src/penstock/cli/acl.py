"""`penstock acl`: who may read and write which topics, beyond what roles allow, and who may commit to which groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_topic, connected
from penstock.cli.options import JsonOption, ServerOption, wants_json

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.access import AclDescription

app = typer.Typer(no_args_is_help=True, help="Give users and roles access to topics and groups.")

TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="A topic, or the beginning of names followed by a star: orders.*; a group after group://",
        autocompletion=complete_topic,
        show_default=False,
    ),
]


@app.command("set")
def set_acl(
    context: typer.Context,
    topic: TopicArgument,
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user",
            "-u",
            metavar="USER[:RIGHT]",
            help="May read and write; with :read or :write only that. Also key:NAME, an API key, and tenant:NAME.",
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", "-r", metavar="ROLE[:RIGHT]", help="The same for everyone with this role."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Open it to everyone; needs access.allow_anonymous.")
    ] = False,
    server: ServerOption = None,
) -> None:
    """Say who may read and write a topic, or commit to a group, in the place of the ACL there may be.

    An ACL of a topic adds people: whoever has a role that allows it needs none.
    An ACL of a group says who may commit to it. Without one, everybody may who
    may read the topic.

    Examples:
    $ penstock acl set orders --user alice --user bob:read
    $ penstock acl set "orders.*" --role team-billing
    $ penstock acl set group://billing --user alice --user key:worker
    """
    with connected(context, server) as client:
        client.access.set_acl(topic, user or [], role or [], public=public)
    print(f"set the ACL of {terminal.visible(topic)}")


@app.command("list")
def list_acls(context: typer.Context, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """List the ACLs.

    Examples:
    $ penstock acl list
    """
    with connected(context, server) as client:
        acls = client.access.acls()
    if wants_json(context, as_json):
        terminal.print_json([_row(acl) for acl in acls])
    else:
        _print(acls)


@app.command()
def describe(
    context: typer.Context, topic: TopicArgument, server: ServerOption = None, as_json: JsonOption = False
) -> None:
    """Show the ACL of a topic or pattern.

    Examples:
    $ penstock acl describe orders
    """
    with connected(context, server) as client:
        acl = client.access.acl(topic)
    if wants_json(context, as_json):
        terminal.print_json(_row(acl) | {"exists": acl.exists})
    elif acl.exists:
        _print([acl])
    else:
        print(f"{terminal.visible(topic)} has no ACL of its own; roles and patterns decide")


@app.command()
def delete(context: typer.Context, topic: TopicArgument, server: ServerOption = None) -> None:
    """Delete an ACL; roles alone decide then.

    Examples:
    $ penstock acl delete "orders.*"
    """
    with connected(context, server) as client:
        client.access.delete_acl(topic)
    print(f"deleted the ACL of {terminal.visible(topic)}")


def _row(acl: AclDescription) -> dict[str, object]:
    return {"topic": acl.topic, "public": acl.public, "users": acl.users, "roles": acl.roles}


def _print(acls: list[AclDescription]) -> None:
    terminal.print_table(
        ["topic", "public", "users", "roles"],
        [
            (acl.topic, "yes" if acl.public else "no", ", ".join(acl.users) or "-", ", ".join(acl.roles) or "-")
            for acl in acls
        ],
    )
