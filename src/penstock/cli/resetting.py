"""What `penstock group reset` and `penstock subscription reset` share: their options, and the table of what changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import terminal
from penstock.cli.broker import complete_topic, connected
from penstock.cli.options import wants_json

if TYPE_CHECKING:
    from penstock.protocols.flymq.operations.groups import MovedPosition
    from penstock.protocols.flymq.sync import FlyMQClient

TopicOption = Annotated[
    str, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic.", autocompletion=complete_topic)
]
ToOption = Annotated[
    str | None,
    typer.Option(metavar="POSITION", help="earliest, latest, an offset, a time, or how long ago.", show_default=False),
]
ShiftOption = Annotated[
    int | None,
    typer.Option(metavar="RECORDS", help="Records to skip, or to read again if negative.", show_default=False),
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", "-p", metavar="N", min=0, help="Only this one; all partitions unless given."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]

Reset = Callable[..., "list[MovedPosition]"]
"""`reset_group` or `reset_subscription` of a client."""


def move(
    context: typer.Context,
    kind: str,
    name: str,
    topic: str,
    reset_of: Callable[[FlyMQClient], Reset],
    *,
    to: str | None,
    shift: int | None,
    partition: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Reset a group or a subscription, after a confirmation, and print what changed in each partition."""
    from penstock.cli.positions import parse_position

    if (to is None) == (shift is None):
        raise typer.BadParameter("give a position with --to, or a number of records with --shift")
    if to is not None and to[:1] == "-" and to[1:].isdecimal():
        raise typer.BadParameter(
            f"{to} is not a position: to go back {to[1:]} records, use --shift {to}", param_hint="--to"
        )
    position = None if to is None else parse_position(to, time.time_ns() // 1_000_000, flag="--to")
    where = f"partition {partition} of topic {topic}" if partition is not None else f"topic {topic}"
    wanted = f"to {to}" if shift is None else f"by {shift} records"
    with connected(context) as client:
        if not dry_run:
            terminal.confirm(f"Move {kind} {name} in {where} {wanted}?", yes=yes)
        moved = reset_of(client)(name, topic, position, shift=shift, partition=partition, preview=dry_run)
    if wants_json(context):
        terminal.print_json({kind: name, "topic": topic, "applied": not dry_run, "partitions": list(map(_row, moved))})
        return
    terminal.print_table(
        ["topic", "partition", "before", "after"],
        [(terminal.name(topic), each.partition, "-" if each.before < 0 else each.before, each.after) for each in moved],
        right=["partition", "before", "after"],
    )


def _row(moved: MovedPosition) -> dict[str, Any]:
    return {
        "partition": moved.partition,
        "before": None if moved.before < 0 else moved.before,
        "after": moved.after,
        "log_start": moved.log_start,
        "next_offset": moved.next_offset,
    }
