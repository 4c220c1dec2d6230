"""`penstock group`: list, describe, reset, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import resetting, terminal
from penstock.cli.broker import complete_group, complete_topic, connected
from penstock.cli.options import YesOption, wants_json
from penstock.cli.program import Program
from penstock.cli.subscription import behind, known, print_subscriptions, subscription_row
from penstock.units import format_duration_ms

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.groups import GroupProgress

app = Program(help="List, describe, reset and delete consumer groups.")

GroupArgument = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="The name of the group.", autocompletion=complete_group, show_default=False),
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=complete_topic, help="Only in this topic."),
]


@app.command("list")
def list_groups(context: typer.Context) -> None:
    """List the groups with their lag, in records and in time.

    Subscriptions of BlipMQ, Fujin and Felix are listed too. One without
    a name has a number: #17.

    Examples:
    $ penstock group list
    """
    with connected(context) as client:
        rows = [_group(each) for each in client.monitoring.groups()]
        rows += [subscription_row(each) for each in client.monitoring.subscriptions()]
    rows.sort(key=lambda row: (row["group"], row["topic"]))
    terminal.print_list(
        context,
        rows,
        dict,
        ["group", "topic", "state", "members", "lag", "behind"],
        lambda row: (
            terminal.name(row["group"]),
            terminal.name(row["topic"]),
            row["state"],
            _or_none(row["members"]),
            _or_gone(row["lag"]),
            behind(row["lag_ms"]),
        ),
        empty="no groups yet; one begins with: penstock consume TOPIC --group NAME",
        right=["members", "lag", "behind"],
        drop=["members", "state"],
    )


@app.command()
def describe(context: typer.Context, group: GroupArgument, topic: TopicOption = None) -> None:
    """Show a group's members, and the committed offset, lag and owner of each partition.

    If a group has committed nothing in a partition, all its records count
    as lag.

    Examples:
    $ penstock group describe billing
    $ penstock group describe billing --topic orders
    """
    from penstock.errors import GroupNotFound

    with connected(context) as client:
        rows = [_group(each) for each in client.monitoring.groups(group, topic or "")]
        subscriptions = [subscription_row(each) for each in client.monitoring.subscriptions(group, topic or "")]
    if not rows and not subscriptions:
        raise GroupNotFound(f"consumer group not found: {group if topic is None else f'{topic}:{group}'}")
    if wants_json(context):
        terminal.print_json(rows + subscriptions)
        return
    if rows:
        _print_group(rows)
    if subscriptions:
        print_subscriptions(subscriptions)


def _print_group(rows: list[dict[str, Any]]) -> None:
    columns = ["topic", "partition", "committed", "next offset", "lag", "behind", "member"]
    terminal.print_table(
        columns,
        [
            (
                terminal.name(row["topic"]),
                each["partition"],
                _or_none(each["committed"]),
                _or_gone(each["next_offset"]),
                _or_gone(each["lag"]),
                behind(each["lag_ms"]),
                each["member"] or "-",
            )
            for row in rows
            for each in row["partitions"]
        ],
        right=columns[1:-1],
        drop=["next offset", "behind", "member"],
    )
    members = {each["id"]: each for row in rows for each in row["member_list"]}
    if members:
        print()
        print(f"generation {rows[0]['generation']}, {rows[0]['state']}")
        print()
        terminal.print_table(
            ["member", "instance", "principal", "partitions", "session", "last heartbeat"],
            [
                (
                    each["id"],
                    each["instance"] or "-",
                    each["principal"],
                    sum(part["member"] == each["id"] for row in rows for part in row["partitions"]),
                    format_duration_ms(each["session_ms"]),
                    behind(each["silent_ms"]),
                )
                for each in members.values()
            ],
            right=["partitions", "session", "last heartbeat"],
            drop=["session", "principal", "partitions"],
        )


@app.command()
def reset(
    context: typer.Context,
    group: GroupArgument,
    topic: resetting.TopicOption,
    to: resetting.ToOption = None,
    shift: resetting.ShiftOption = None,
    partition: resetting.PartitionOption = None,
    dry_run: resetting.DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Move a group's committed offsets, so that it reads again or skips.

    A time is ISO 8601, or how long ago it was. Positions stay within the
    log. Asks for confirmation unless [bold]--yes[/bold] is given. Refused while
    the group has members.

    A group that does not exist is created. Subscriptions of BlipMQ, Fujin
    and Felix have no committed offsets: move them with
    [bold]penstock subscription reset[/bold].

    Examples:
    $ penstock group reset billing --topic orders --to earliest
    $ penstock group reset billing --topic orders --to -10m --dry-run
    $ penstock group reset billing --topic orders --shift -100
    $ penstock group reset billing --topic orders --partition 2 --to 1500 --yes
    """
    resetting.move(
        context,
        "group",
        group,
        topic,
        lambda client: client.monitoring.reset_group,
        to=to,
        shift=shift,
        partition=partition,
        dry_run=dry_run,
        yes=yes,
    )


@app.command()
def delete(context: typer.Context, group: GroupArgument, topic: TopicOption = None, yes: YesOption = False) -> None:
    """Delete a group's committed offsets and subscriptions, in one topic or in all.

    Asks for confirmation unless [bold]--yes[/bold] is given.

    Examples:
    $ penstock group delete billing
    $ penstock group delete billing --topic orders --yes
    """
    with connected(context) as client:
        described = client.describe_group(group, topic)
        topics = ", ".join(each.topic for each in described)
        terminal.confirm(f"Delete group {group} and its offsets in {topics}?", yes=yes)
        client.delete_group(group, topic)
    terminal.print_outcome(
        context,
        f"deleted group {group} in {topics}",
        {"group": group, "topics": [each.topic for each in described], "deleted": True},
    )


def _group(progress: GroupProgress) -> dict[str, Any]:
    """A group in one topic as programs get it; None stands for what is not known, as where the group has outlived the topic."""
    partitions = [
        {
            "partition": each.partition,
            "committed": known(each.committed),
            "next_offset": known(each.next_offset),
            "lag": known(each.lag),
            "lag_ms": known(each.lag_ms),
            "member": each.member or None,
        }
        for each in progress.partitions
    ]
    return {
        "group": progress.group,
        "topic": progress.topic,
        "state": progress.state,
        "generation": progress.generation,
        "members": progress.sessions + len(progress.members),
        "lag": _total([each.lag for each in progress.partitions], sum),
        "lag_ms": _total([each.lag_ms for each in progress.partitions], max),
        "partitions": partitions,
        "member_list": [
            {
                "id": each.id,
                "instance": each.instance or None,
                "principal": each.principal,
                "session_ms": each.session_ms,
                "silent_ms": each.silent_ms,
            }
            for each in progress.members
        ],
    }


def _total(numbers: Sequence[int], combine: Callable[[Sequence[int]], int]) -> int | None:
    return None if any(number < 0 for number in numbers) else combine([0, *numbers])


def _or_none(number: int | None) -> object:
    return "-" if number is None else number


def _or_gone(number: int | None) -> object:
    return "no topic" if number is None else number
