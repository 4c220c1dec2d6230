"""`penstock acl`: who may read and write which topics, beyond what roles allow, and who may commit to which groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_topic, connected
from penstock.cli.options import wants_json
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.access import AclDescription

app = Program(help="Give users and roles access to topics and groups.")

TopicArgument = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC",
        help="A topic, a prefix followed by a star (orders.*), or group:// and a consumer group.",
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
            help="A user who may read and write; with :read or :write only that. Also key:NAME (API key) and tenant:NAME.",
        ),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            "-r",
            metavar="ROLE[:RIGHT]",
            help="A role that may read and write; with :read or :write only that.",
        ),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Make the topic public; needs access.allow_anonymous.")
    ] = False,
) -> None:
    """Set (replace) the ACL of a topic or a consumer group.

    An ACL of a topic adds permissions to those that roles give. An ACL of a
    group restricts who may commit to it; without one, every reader of the
    topic may.

    Examples:
    $ penstock acl set orders --user alice --user bob:read
    $ penstock acl set "orders.*" --role team-billing
    $ penstock acl set group://billing --user alice --user key:worker
    """
    with connected(context) as client:
        client.access.set_acl(topic, user or [], role or [], public=public)
        acl = client.access.acl(topic)
    terminal.print_outcome(context, f"set the ACL of {topic}", _row(acl))


@app.command("list")
def list_acls(context: typer.Context) -> None:
    """List the ACLs.

    Examples:
    $ penstock acl list
    """
    with connected(context) as client:
        acls = client.access.acls()
    if wants_json(context):
        terminal.print_json([_row(acl) for acl in acls])
    else:
        _print(acls)


@app.command()
def describe(context: typer.Context, topic: TopicArgument) -> None:
    """Show the ACL of a topic or pattern.

    Examples:
    $ penstock acl describe orders
    """
    with connected(context) as client:
        acl = client.access.acl(topic)
    if wants_json(context):
        terminal.print_json(_row(acl) | {"exists": acl.exists})
    elif acl.exists:
        _print([acl])
    else:
        print(f"{terminal.visible(topic)} has no ACL of its own; roles and patterns decide")


@app.command()
def delete(context: typer.Context, topic: TopicArgument) -> None:
    """Delete an ACL. Then only roles apply.

    Examples:
    $ penstock acl delete "orders.*"
    """
    with connected(context) as client:
        client.access.delete_acl(topic)
    terminal.print_outcome(context, f"deleted the ACL of {topic}", {"topic": topic, "deleted": True})


def _row(acl: AclDescription) -> dict[str, object]:
    return {"topic": acl.topic, "public": acl.public, "users": acl.users, "roles": acl.roles}


def _print(acls: list[AclDescription]) -> None:
    terminal.print_table(
        ["topic", "public", "users", "roles"],
        [
            (
                terminal.name(acl.topic),
                "yes" if acl.public else "no",
                ", ".join(acl.users) or "-",
                ", ".join(acl.roles) or "-",
            )
            for acl in acls
        ],
        fold=["users", "roles"],
    )
