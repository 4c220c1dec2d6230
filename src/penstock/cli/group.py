"""`penstock group`: list, describe, reset, delete."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_group, complete_topic, connected
from penstock.cli.options import JsonOption, ServerOption, YesOption, wants_json

if TYPE_CHECKING:
    from penstock.clients.records import GroupDescription
    from penstock.protocols.flymq.sync import FlyMQClient

app = typer.Typer(no_args_is_help=True, help="See how far groups have read; move or delete them.")

GroupArgument = Annotated[
    str, typer.Argument(metavar="GROUP", help="Its name.", autocompletion=complete_group, show_default=False)
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=complete_topic, help="Only in this topic."),
]


@app.command("list")
def list_groups(context: typer.Context, server: ServerOption = None, as_json: JsonOption = False) -> None:
    """List the groups, with how many records each has yet to read.

    Subscriptions of BlipMQ have a number instead of a name: #17.

    Examples:
    $ penstock group list
    """
    with connected(context, server) as client:
        rows = [_row(client, each) for each in sorted(client.groups(), key=lambda each: (each.group, each.topic))]
    if wants_json(context, as_json):
        terminal.print_json(rows)
        return
    if not rows and terminal.on_terminal():
        terminal.hint("no groups yet; one begins with: penstock consume TOPIC --group NAME")
        return
    terminal.print_table(
        ["group", "topic", "members", "lag"],
        [(row["group"], row["topic"], row["members"], _or_gone(row["lag"])) for row in rows],
        right=["members", "lag"],
    )


@app.command()
def describe(
    context: typer.Context,
    group: GroupArgument,
    topic: TopicOption = None,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group's committed offset and lag in each partition.

    Examples:
    $ penstock group describe billing
    $ penstock group describe billing --topic orders
    """
    with connected(context, server) as client:
        rows = [_row(client, each) for each in client.describe_group(group, topic)]
    if wants_json(context, as_json):
        terminal.print_json(rows)
        return
    columns = ["topic", "partition", "committed", "next offset", "lag", "members"]
    terminal.print_table(
        columns,
        [
            (
                row["topic"],
                each["partition"],
                each["committed"],
                _or_gone(each["next_offset"]),
                _or_gone(each["lag"]),
                row["members"],
            )
            for row in rows
            for each in row["partitions"]
        ],
        right=columns[1:],
    )


@app.command()
def reset(
    context: typer.Context,
    group: GroupArgument,
    topic: Annotated[
        str, typer.Option("--topic", "-t", metavar="TOPIC", help="In this topic.", autocompletion=complete_topic)
    ],
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION", help="earliest, latest, an offset, a time, or how long ago.", show_default=False
        ),
    ],
    partition: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Only this one; all partitions unless given.")
    ] = None,
    yes: YesOption = False,
    server: ServerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a group's committed offsets, so that it reads again or skips.

    A time is ISO 8601, or how long ago it was. Asks first; [bold]--yes[/bold] does not.

    Examples:
    $ penstock group reset billing --topic orders --to earliest
    $ penstock group reset billing --topic orders --to -10m
    $ penstock group reset billing --topic orders --partition 2 --to 1500 --yes
    """
    from penstock.cli.positions import parse_position

    position = parse_position(to, time.time_ns() // 1_000_000, flag="--to")
    with connected(context, server) as client:
        partitions = [each.partition for each in client.describe_topic(topic).partitions]
        if partition is not None:
            partitions = [partition]
        where = f"partition {partition} of topic {topic}" if partition is not None else f"topic {topic}"
        terminal.confirm(f"Move group {group} in {where} to {to}?", yes=yes)
        moved = {each: client.reset(topic, group, each, position) for each in partitions}
    if wants_json(context, as_json):
        terminal.print_json(
            {"group": group, "topic": topic, "partitions": [{"partition": k, "committed": v} for k, v in moved.items()]}
        )
    else:
        terminal.print_table(
            ["topic", "partition", "committed"],
            [(topic, each, offset) for each, offset in moved.items()],
            right=["partition", "committed"],
        )


@app.command()
def delete(
    context: typer.Context,
    group: GroupArgument,
    topic: TopicOption = None,
    yes: YesOption = False,
    server: ServerOption = None,
) -> None:
    """Forget a group's committed offsets and subscriptions, in one topic or in all.

    Asks first; [bold]--yes[/bold] does not.

    Examples:
    $ penstock group delete billing
    $ penstock group delete billing --topic orders --yes
    """
    with connected(context, server) as client:
        described = client.describe_group(group, topic)
        topics = ", ".join(each.topic for each in described)
        terminal.confirm(f"Delete group {group} and its offsets in {topics}?", yes=yes)
        client.delete_group(group, topic)
    print(f"deleted group {terminal.visible(group)} in {terminal.visible(topics)}")


def _row(client: FlyMQClient, described: GroupDescription) -> dict[str, Any]:
    """A group in one topic with its lag by partition; None where the group has outlived the topic."""
    from penstock.errors import PartitionNotFound, TopicNotFound

    partitions: list[dict[str, Any]] = []
    total: int | None = 0
    for partition, committed in sorted(described.offsets.items()):
        row: dict[str, Any] = {"partition": partition, "committed": committed, "next_offset": None, "lag": None}
        try:
            lag = client.lag(described.topic, described.group, partition)
        except (TopicNotFound, PartitionNotFound):
            total = None
        else:
            row |= {"next_offset": lag.next_offset, "lag": lag.lag}
            total = None if total is None else total + lag.lag
        partitions.append(row)
    return {
        "group": described.group,
        "topic": described.topic,
        "members": described.members,
        "lag": total,
        "partitions": partitions,
    }


def _or_gone(number: int | None) -> object:
    return "no topic" if number is None else number
