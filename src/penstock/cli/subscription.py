"""`penstock subscription`: list, describe, reset. They are deleted as groups are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import resetting, terminal
from penstock.cli.broker import complete_group, complete_topic, connected
from penstock.cli.options import YesOption, wants_json
from penstock.cli.program import Program

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.groups import SubscriptionProgress

app = Program(help="List, describe and reset subscriptions (BlipMQ, Fujin, Felix).")

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="The subscription: its name, or # and its number.",
        autocompletion=complete_group,
        show_default=False,
    ),
]

TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", autocompletion=complete_topic, help="Only on this topic."),
]


@app.command("list")
def list_subscriptions(context: typer.Context, topic: TopicOption = None) -> None:
    """List the subscriptions: lag, deliveries in flight, redeliveries, dead letters.

    Lag counts records that are not settled. Redeliveries and dead letters
    are counted from the start of the broker.

    Examples:
    $ penstock subscription list
    $ penstock subscription list --topic orders
    """
    with connected(context) as client:
        rows = [subscription_row(each) for each in client.monitoring.subscriptions(topic=topic or "")]
    if wants_json(context):
        terminal.print_json(rows)
        return
    print_subscriptions(rows)


@app.command()
def describe(
    context: typer.Context,
    name: NameArgument,
    topic: TopicOption = None,
) -> None:
    """Show where a subscription is in each partition.

    Examples:
    $ penstock subscription describe jobs
    $ penstock subscription describe '#17'
    """
    from penstock.errors import EntryNotFound

    with connected(context) as client:
        rows = [subscription_row(each) for each in client.monitoring.subscriptions(name, topic or "")]
    if not rows:
        raise EntryNotFound(f"subscription not found: {name} (list them with: penstock subscription list)")
    if wants_json(context):
        terminal.print_json(rows)
        return
    print_subscriptions(rows)
    print()
    terminal.print_table(
        ["topic", "partition", "position", "next offset"],
        [
            (terminal.name(row["topic"]), each["partition"], each["position"], each["next_offset"])
            for row in rows
            for each in row["partitions"]
        ],
        right=["partition", "position", "next offset"],
    )


@app.command()
def reset(
    context: typer.Context,
    name: NameArgument,
    topic: resetting.TopicOption,
    to: resetting.ToOption = None,
    shift: resetting.ShiftOption = None,
    partition: resetting.PartitionOption = None,
    dry_run: resetting.DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Move a subscription, so that its records are delivered again or skipped.

    Records before the position count as settled, those from it on are
    delivered as if for the first time. The options are those of
    [bold]penstock group reset[/bold]. Refused while it has readers.

    Examples:
    $ penstock subscription reset jobs --topic orders --to earliest
    $ penstock subscription reset jobs --topic orders --shift -100 --dry-run
    $ penstock subscription reset '#17' --topic orders --to -10m --yes
    """
    resetting.move(
        context,
        "subscription",
        name,
        topic,
        lambda client: client.monitoring.reset_subscription,
        to=to,
        shift=shift,
        partition=partition,
        dry_run=dry_run,
        yes=yes,
    )


def print_subscriptions(rows: list[dict[str, Any]]) -> None:
    columns = ["subscription", "topic", "lag", "behind", "in flight", "redelivered", "dead letters"]
    terminal.print_table(
        columns,
        [
            (
                terminal.name(row["group"]),
                terminal.name(row["topic"]),
                row["lag"],
                behind(row["lag_ms"]),
                row["in_flight"],
                row["redeliveries"],
                row["dead_letters"] + row["dead_letters_waiting"],
            )
            for row in rows
        ],
        right=columns[2:],
        drop=["redelivered", "dead letters", "in flight"],
    )


def subscription_row(progress: SubscriptionProgress) -> dict[str, Any]:
    """A subscription as programs get it, with what it has in common with groups."""
    return {
        "group": progress.name,
        "topic": progress.topic,
        "state": "subscription",
        "members": None,
        "owner": progress.owner,
        "created_ms": progress.created_ms,
        "lag": progress.lag,
        "lag_ms": known(progress.lag_ms),
        "in_flight": progress.in_flight,
        "redeliveries": progress.redeliveries,
        "dead_letters": progress.dead_letters,
        "dead_letters_waiting": progress.dead_letters_waiting,
        "partitions": [
            {"partition": each.partition, "position": each.position, "next_offset": each.next_offset}
            for each in progress.partitions
        ],
    }


def known(number: int) -> int | None:
    """Return a number as JSON has it; on the wire, -1 stands for one that is not known."""
    return None if number < 0 else number


def behind(duration_ms: int | None) -> str:
    """Return a time span in words: two units at most, as in 3h12m."""
    if duration_ms is None:
        return "?"
    seconds = duration_ms // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            smaller, smaller_unit = {"d": (3_600, "h"), "h": (60, "m"), "m": (1, "s")}[unit]
            rest = seconds % size // smaller
            return f"{seconds // size}{unit}" + (f"{rest}{smaller_unit}" if rest else "")
    return f"{seconds}s"
